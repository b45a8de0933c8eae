"""The silo's side of the seam: `answer(query, silo)`, and nothing else, runs next to the rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import (
    DataError,
    MessageError,
    MissingDependency,
    PolicyRefusal,
    SettingsError,
    StudyMismatch,
)
from silomix.kernels.layout import lay_out
from silomix.kernels.likelihood import distinct_rows, row_table
from silomix.kernels.random_numbers import chain_key, fold
from silomix.messages import (
    REPLIES,
    AssignReply,
    AssignRows,
    CountDistinctRows,
    DistinctRows,
    DivergenceCost,
    DivergenceReply,
    LogLikelihood,
    LogLikelihoodReply,
    PolishReply,
    PolishRound,
    Received,
    Refused,
    SampleLocally,
    ShareReleases,
)
from silomix.messages.container import digest as digest_question
from silomix.messages.door import breaches, check_query
from silomix.messages.release_record import same_draws
from silomix.messages.released_draws import divergence_cost, make_reference, matched_draws
from silomix.messages.rounding import has_rules, with_own_counts
from silomix.model.families.categorical import draw_given_parameters
from silomix.model.families.weighted_draws import mean_log_likelihood, some_draws
from silomix.model.sentences import plural
from silomix.posterior import row_membership, to_four_decimals
from silomix.silo.disclosure import check_tier, fold_small
from silomix.silo.ledger import check_account, note_left
from silomix.silo.partition import partition
from silomix.silo.relabel import align_draws
from silomix.silo.release import make_release, release_row_counts, release_sizes
from silomix.silo.sampler import Job, sample_in_blocks
from silomix.silo.store import Kept, Store
from silomix.study import Divergence, digest
from silomix.study.policy import OPEN, UNLIMITED, Policy, check_study, echo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from silomix.kernels.layout import Layout
    from silomix.kernels.likelihood import RowTable
    from silomix.messages import Query
    from silomix.messages.progress import Progress
    from silomix.messages.release_record import Release
    from silomix.model.draws import Draws, LocalPosterior, MatchedDraws, Partition
    from silomix.model.schema import Shard
    from silomix.silo.ledger import Account
    from silomix.study import Study

POLISH_STREAM = 1 << 20
"""Stands where a chain's number would, far from any."""
DIVERGENCE_STREAM = 0x646976
STARTING_DRAWS = 200
"""Draws, about, that a silo releases where a polish follows: they are only where it starts."""
ENOUGH_AGREEMENT = 0.85
"""Adjusted Rand index of its chains' partitions at which a silo need not sample longer."""

log = logging.getLogger("silomix.silo.answer")


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


def answer(query: Query, silo: Silo) -> Any:
    """Answer one question about the silo's rows, if its policy lets it.

    Raises
    ------
    PolicyRefusal
        When it does not.
    """
    if silo.account is not None:
        check_account(silo.account)
    permit(query, silo)
    reply = HANDLERS[type(query)](query, silo)
    if silo.account is not None and not isinstance(reply, Received):
        note_left(silo.account, type(reply).__name__)
    return reply


def answer_or_refuse(query: Query, silo: Silo) -> Any:
    """Answer a question from elsewhere; whatever goes wrong, only a code leaves.

    The text of an error may quote a row: it goes to the silo's own log.
    """
    try:
        check_query(query, silo.study, silo.name)
        return answer(query, silo)
    except Exception as error:
        code = refusal_code(error)
        log.exception("%s: %s refused: %s", silo.name, type(query).__name__, code)
        return Refused(code)


def refusal_code(error: Exception) -> str:
    """Return what may be said of an error outside: one of `silomix.messages.REFUSALS`."""
    if isinstance(error, PolicyRefusal):
        return error.code
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code
    return "failed"


CODES: dict[type[Exception], str] = {
    StudyMismatch: "study",
    MessageError: "question",
    DataError: "data",
    SettingsError: "study",
    MissingDependency: "dependency",
}


def permit(query: Query, silo: Silo) -> None:
    """Refuse a question that the silo's policy does not allow, or not once more.

    A question asked twice gets the same answer and counts once; one about several points counts
    as many times.
    """
    check_study(silo.study, silo.policy.limits, silo.name)
    kind = _counted(query, silo)
    if kind is not None and getattr(silo.policy.exchanges, kind) == 0:
        raise PolicyRefusal(
            f"{silo.name}: its policy does not allow {kind}; its owner can change "
            f"exchanges.{kind} in the policy file, or the study can do without",
        )
    if isinstance(query, ShareReleases):
        _check_own(query, silo)
    if isinstance(query, ShareReleases | DivergenceCost):
        _check_shown(query.releases, silo)
    if kind is not None:
        _count(query, kind, silo)


def _count(query: Query, kind: str, silo: Silo) -> None:
    """Write a question into the store's ledger; refuse it where the policy's limit is reached."""
    limit: int = getattr(silo.policy.exchanges, kind)
    question, weight = digest_question(query), points(query)
    with silo.store.lock:
        asked = silo.store.ledger.get(kind, {})
        if question in asked:
            return
        left = limit - sum(asked.values())
        if weight > left:
            unit = "point" if isinstance(query, LogLikelihood) else "question"
            spent = "and all were asked"
            if left > 0:
                spent = f"of which {left:,} are left, and this question is about {weight:,}"
            raise PolicyRefusal(
                f"{silo.name}: its policy allows {plural(limit, unit)} about {kind} {spent}; "
                "ask fewer in this study, or let the policy's owner allow more",
                code="limit",
            )
        silo.store.note(kind, question, weight)


def points(query: Query) -> int:
    """Return how often a question counts: a gradient at each starting point of each draw."""
    if isinstance(query, LogLikelihood):
        return len(query.weights) * (query.last - query.first)
    return 1


def count_answered(query: Query, silo: Silo) -> None:
    """Count a question that was answered before the silo's store and ledger knew of it."""
    if silo.account is not None and REPLIES[type(query)] is not Received:
        note_left(silo.account, REPLIES[type(query)].__name__, has_left=True)
    kind = _counted(query, silo)
    if kind is None:
        return
    question = digest_question(query)
    with silo.store.lock:
        if question not in silo.store.ledger.get(kind, {}):
            silo.store.note(kind, question, points(query))


def _counted(query: Query, silo: Silo) -> str | None:
    """Return the limit of the silo's policy that counts this question, if one does."""
    kind = LIMITED.get(type(query))
    if kind is None or getattr(silo.policy.exchanges, kind) >= UNLIMITED:
        return None
    return kind


def _check_own(query: ShareReleases, silo: Silo) -> None:
    """Refuse a sharing in which the silo's release is not its own."""
    if not same_draws(query.releases[silo.place], _kept(silo).release):
        raise MessageError(
            f"{silo.name}: the release that the coordinator shows as its own is not the one that "
            "it made; show the one that it answered"
        )


def _check_shown(releases: Sequence[Release], silo: Silo) -> None:
    """Refuse releases of others that the silo's own policy would not have let out.

    Their sender may have made them up, of single rows; see `silomix.messages.door`.
    """
    offsets = silo.study.table_schema.offsets
    for release in releases:
        if release.place == silo.place:
            continue
        for problem in breaches(release, silo.policy, offsets):
            raise PolicyRefusal(
                f"{silo.name}: the release that it is shown as that of {release.silo!r} {problem}, "
                f"and its own policy {silo.policy.name!r} would not let such a one out; use a "
                "study that shows no releases, or let all silos have the same minimum_count and "
                "round_to, and ask where that release comes from",
                code="shown",
            )


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


def _kept(silo: Silo) -> Kept:
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


def _layout(silo: Silo) -> Layout:
    with silo.store.lock:
        if silo.store.layout is None:
            silo.store.layout = lay_out(silo.shard.codes, silo.shard.schema.sizes)
        return silo.store.layout


def _rows(silo: Silo) -> DistinctRows:
    with silo.store.lock:
        if silo.store.rows is None:
            silo.store.rows = DistinctRows(*distinct_rows(silo.shard.codes))
        return silo.store.rows


def _row_table(silo: Silo) -> RowTable:
    with silo.store.lock:
        if silo.store.row_table is None:
            rows = _rows(silo)
            silo.store.row_table = row_table(rows.codes, rows.counts, silo.shard.schema.sizes)
        return silo.store.row_table


def _matched(silo: Silo, key: str) -> MatchedDraws:
    """Return the matched draws that the silo was shown."""
    with silo.store.lock:
        shared = silo.store.shared
        if shared is None or shared.key != key:
            raise PolicyRefusal(
                f"{silo.name}: the question refers to releases that were not shared with it; "
                "share them first",
                code="order",
            )
        if silo.store.matched is None:
            silo.store.matched = matched_draws(
                shared.releases,
                shared.groups,
                shared.draws,
                silo.study.prior,
                silo.study.table_schema.offsets,
                silo.study.seed,
            )
        return silo.store.matched


def _release(_: SampleLocally, silo: Silo) -> Release:
    # a policy may have become stricter since the release was made
    check_tier(silo.study.tier, silo.policy, silo.name)
    return replace(_kept(silo).release, policy=echo(silo.policy))


def _divergence(query: DivergenceCost, silo: Silo) -> DivergenceReply:
    kept, study = _kept(silo), silo.study
    influence = study.matching.reference if isinstance(study.matching, Divergence) else "mean"
    known = make_reference(
        query.releases,
        query.groups,
        influence,
        silos=len(study.silos),
        prior=study.prior,
        offsets=study.table_schema.offsets,
        seed=study.seed,
    )
    rng = np.random.default_rng([study.seed, DIVERGENCE_STREAM, silo.place, query.round])
    mean = kept.weights.mean(axis=0)
    cost = divergence_cost(known, silo.shard, mean, kept.probabilities, study.prior.beta, rng)
    return DivergenceReply(cost)


def _share(query: ShareReleases, silo: Silo) -> Received:
    with silo.store.lock:
        silo.store.share(query)
    return Received()


def _log_likelihood(query: LogLikelihood, silo: Silo) -> LogLikelihoodReply:
    matched = _matched(silo, query.shared)
    draws, clusters = matched.weights.shape[1:]
    if query.last > draws or query.profiles.shape[2] != clusters:
        raise MessageError(
            f"{silo.name}: the question is about draws up to {query.last} of "
            f"{query.profiles.shape[2]} clusters; it was shown {draws} draws of {clusters}"
        )
    some = some_draws(matched, query.first, query.last)
    found = mean_log_likelihood(some, query.weights, query.profiles, _row_table(silo), silo.threads)
    return LogLikelihoodReply(*found)


def _distinct_rows(_: CountDistinctRows, silo: Silo) -> DistinctRows:
    rows = _rows(silo)
    return replace(rows, counts=release_row_counts(rows.counts, silo.policy, silo.name))


def _polish(query: PolishRound, silo: Silo) -> PolishReply:
    key = fold(chain_key(silo.study.seed, silo.place, POLISH_STREAM), query.round)
    drawn = draw_given_parameters(
        _layout(silo),
        key,
        query.weights,
        query.probabilities,
        alpha=query.alpha or 0.0,
        inner_sweeps=query.inner_sweeps,
        threads=silo.threads,
    )
    return PolishReply.of(drawn.counts, drawn.members, drawn.weights, drawn.log_likelihood)


def _assign(query: AssignRows, silo: Silo) -> AssignReply:
    clusters = query.probabilities.shape[1]
    if query.groups is None:
        find = partial(row_membership, silo.shard, query.weights, threads=silo.threads)
        found = find(query.probabilities)
        if _knows_better(silo):
            found = find(_own_profiles(query, found.membership, silo))
        membership = to_four_decimals(found.membership)
    else:
        membership = np.zeros((silo.shard.rows, clusters), dtype=np.float32)
        membership[np.arange(silo.shard.rows), query.groups[_kept(silo).labels]] = 1.0
    silo.store.assign(membership)
    sizes = np.bincount(membership.argmax(axis=1), minlength=clusters)
    return AssignReply(release_sizes(sizes, silo.policy))


def _knows_better(silo: Silo) -> bool:
    """Tell whether the profiles to assign by were made from the silo's rounded release."""
    study = silo.study
    return (
        study.strategy == "consensus"
        and study.aggregation.method == "product"
        and study.polish.rounds == 0
        and has_rules(_kept(silo).release)
    )


def _own_profiles(
    query: AssignRows, membership: NDArray[np.floating], silo: Silo
) -> NDArray[np.floating]:
    """Return the profiles that the silo assigns its rows by: they stay here.

    Parameters
    ----------
    membership : (row, cluster), by the profiles of the question; they say which global cluster a
        local one is.
    """
    kept, study = _kept(silo), silo.study
    rows = np.zeros((kept.release.clusters, membership.shape[1]))
    np.add.at(rows, kept.labels, membership)
    return with_own_counts(
        query.probabilities,
        kept.release,
        kept.probabilities,
        rows.argmax(axis=1),
        prior=study.prior,
        silos=len(study.silos),
        offsets=study.table_schema.offsets,
        seed=study.seed,
    )


HANDLERS: dict[type, Callable[[Any, Silo], Any]] = {
    SampleLocally: _release,
    DivergenceCost: _divergence,
    ShareReleases: _share,
    LogLikelihood: _log_likelihood,
    CountDistinctRows: _distinct_rows,
    PolishRound: _polish,
    AssignRows: _assign,
}

LIMITED: dict[type, str] = {
    DivergenceCost: "divergence",
    ShareReleases: "sharing",
    LogLikelihood: "gradients",
    CountDistinctRows: "distinct_rows",
    PolishRound: "polish",
    AssignRows: "assign",
}
"""Which of a policy's limits counts which question."""
