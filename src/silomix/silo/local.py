"""One silo, and its own posterior: sample as long as needed, partition, relabel, release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from silomix.silo.disclosure import fold_small
from silomix.silo.partition import partition
from silomix.silo.relabel import align_draws
from silomix.silo.release import make_release
from silomix.silo.sampler import Job, sample_in_blocks
from silomix.silo.store import Kept, Store
from silomix.study import digest
from silomix.study.policy import OPEN, Policy, check_study

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from silomix.messages.progress import Progress
    from silomix.model.draws import Draws, LocalPosterior, Partition
    from silomix.model.schema import Shard
    from silomix.silo.ledger import Account
    from silomix.study import Study

# Draws, about, that a silo releases where a polish follows: they are only where it starts.
STARTING_DRAWS = 200
# Adjusted Rand index of its chains' partitions at which a silo need not sample longer.
ENOUGH_AGREEMENT = 0.85


@dataclass(frozen=True, eq=False)
class Silo:
    """One silo: its rows, the study it takes part in, its own policy, and its store.

    Attributes
    ----------
    name, place : as in the study's roster.
    policy : what it lets out; nobody else can change it.
    threads : cores its answers may use; they do not change them.
    checkpoint : folder for its sampler's checkpoints, or None.
    progress : told how far its sampler is.
    account : its place in the silo's ledger of studies; None inside one process, where the rows
        are at hand.
    """

    name: str
    place: int
    shard: Shard
    study: Study
    store: Store = field(default_factory=Store)
    policy: Policy = OPEN
    threads: int = 1
    checkpoint: Path | None = None
    progress: Callable[[Progress], None] | None = None
    account: Account | None = None


def sample_locally(silo: Silo) -> LocalPosterior:
    """Return the silo's own posterior: sample, partition, relabel."""
    study = silo.study
    check_study(study, silo.policy.limits, silo.name)
    job = Job(
        components=study.model.components,
        prior=study.prior,
        schedule=study.sampling,
        silos=len(study.silos),
        silo=silo.place,
        seed=study.seed,
    )
    blocks = sample_in_blocks(
        silo.shard,
        job,
        threads=silo.threads,
        progress=silo.progress,
        checkpoint=silo.checkpoint,
    )
    settings = study.local
    draws = next(blocks)
    while True:
        clusters = partition(
            draws,
            settings.partition,
            one_cluster=settings.one_cluster,
            threshold=settings.threshold,
            subsample=settings.subsample,
        )
        longer = None if ran_enough(draws, clusters, study) else next(blocks, None)
        if longer is None:
            return align_draws(draws, clusters, settings.relabel)
        draws = longer


def ran_enough(draws: Draws, clusters: Partition, study: Study) -> bool:
    """Tell whether a silo's chains need not go on.

    They agree on the clusters. Where other silos and a polish follow, that is all these need to
    begin with; otherwise the draws are the answer, and their traces must have mixed too.
    """
    if clusters.agreement < ENOUGH_AGREEMENT:
        return False
    only_begin = study.polish.rounds != 0 and len(study.silos) > 1
    return only_begin or draws.diagnostics.trusted


def kept_posterior(silo: Silo) -> Kept:
    """Return what the silo's sampling gave, sampling if the store has nothing."""
    with silo.store.lock:
        if silo.store.kept is None:
            sampled = sample_locally(silo)
            local = fold_small(sampled, silo.policy.minimum_count)
            release = make_release(
                sampled,
                silo=silo.name,
                place=silo.place,
                study=digest(silo.study),
                tier=silo.study.tier,
                policy=silo.policy,
                most_draws=STARTING_DRAWS if silo.study.polish.rounds != 0 else None,
            )
            kept = Kept(release, local.weights, local.probabilities, local.partition.labels)
            silo.store.keep(kept)
            return kept
        return silo.store.kept
