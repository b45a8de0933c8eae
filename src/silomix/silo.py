"""The silo's side of the seam: `answer(query, silo)`, and nothing else, runs next to the rows."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.aggregation.oracles import distinct_rows, silo_log_likelihood
from silomix.families.categorical import draw_given_parameters
from silomix.kernels.layout import lay_out
from silomix.kernels.reference import chain_key, fold
from silomix.matching.divergence import divergence_cost
from silomix.messages import (
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
    SampleLocally,
)
from silomix.partition import partition
from silomix.posterior import row_membership
from silomix.relabel import local_posterior
from silomix.release import make_release
from silomix.sampler import Job, sample_shard
from silomix.study import digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from silomix.kernels.layout import Layout
    from silomix.messages import Query
    from silomix.release import Release
    from silomix.sampler import Progress
    from silomix.study import Study
    from silomix.types import LocalPosterior, Shard

POLISH_STREAM = 1 << 20
"""Stands where a chain's number would, far from any."""
DIVERGENCE_STREAM = 0x646976


class Store:
    """What a silo keeps between questions; everything in it can be made again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.local: LocalPosterior | None = None
        self.layout: Layout | None = None
        self.membership: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class Silo:
    """One silo: its rows, the study it takes part in, and its store.

    Attributes
    ----------
    name, place : as in the study's roster.
    threads : cores its answers may use; they do not change them.
    checkpoint : folder for its sampler's checkpoints, or None.
    progress : told how far its sampler is.
    """

    name: str
    place: int
    shard: Shard
    study: Study
    store: Store = field(default_factory=Store)
    threads: int = 1
    checkpoint: Path | None = None
    progress: Callable[[Progress], None] | None = None


def answer(query: Query, silo: Silo) -> Any:
    """Answer one question about the silo's rows."""
    return HANDLERS[type(query)](query, silo)


def local_result(silo: Silo) -> LocalPosterior:
    """Return the silo's own posterior, sampling it if the store has none."""
    with silo.store.lock:
        if silo.store.local is None:
            silo.store.local = _sample(silo)
        return silo.store.local


def _sample(silo: Silo) -> LocalPosterior:
    study = silo.study
    job = Job(
        components=study.model.components,
        prior=study.prior,
        schedule=study.sampling,
        silos=len(study.silos),
        silo=silo.place,
        seed=study.seed,
    )
    draws = sample_shard(
        silo.shard,
        job,
        threads=silo.threads,
        progress=silo.progress,
        checkpoint=silo.checkpoint,
    )
    settings = study.local
    clusters = partition(
        draws,
        settings.partition,
        one_cluster=settings.one_cluster,
        threshold=settings.threshold,
        subsample=settings.subsample,
    )
    return local_posterior(draws, clusters, settings.relabel)


def _layout(silo: Silo) -> Layout:
    with silo.store.lock:
        if silo.store.layout is None:
            silo.store.layout = lay_out(silo.shard.codes, silo.shard.schema.sizes)
        return silo.store.layout


def _release(_: SampleLocally, silo: Silo) -> Release:
    return make_release(
        local_result(silo),
        silo=silo.name,
        place=silo.place,
        study=digest(silo.study),
        tier=silo.study.tier,
    )


def _divergence(query: DivergenceCost, silo: Silo) -> DivergenceReply:
    local, study = local_result(silo), silo.study
    rng = np.random.default_rng([study.seed, DIVERGENCE_STREAM, silo.place, query.round])
    mean = local.weights.mean(axis=0)
    cost = divergence_cost(query, silo.shard, mean, local.probabilities, study.prior, rng)
    return DivergenceReply(cost)


def _log_likelihood(query: LogLikelihood, silo: Silo) -> LogLikelihoodReply:
    return silo_log_likelihood(query, silo.shard.codes, silo.shard.schema.sizes)


def _distinct_rows(_: CountDistinctRows, silo: Silo) -> DistinctRows:
    return distinct_rows(silo.shard.codes)


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
    return PolishReply(drawn.counts, drawn.members, drawn.weights, drawn.log_likelihood)


def _assign(query: AssignRows, silo: Silo) -> AssignReply:
    clusters = query.probabilities.shape[1]
    if query.groups is None:
        found = row_membership(silo.shard, query.weights, query.probabilities, silo.threads)
        membership = found.membership.astype(np.float32)
    else:
        membership = np.zeros((silo.shard.rows, clusters), dtype=np.float32)
        labels = query.groups[local_result(silo).partition.labels]
        membership[np.arange(silo.shard.rows), labels] = 1.0
    silo.store.membership = membership
    sizes = np.bincount(membership.argmax(axis=1), minlength=clusters)
    return AssignReply(sizes, membership.sum(axis=0, dtype=np.float64))


HANDLERS: dict[type, Callable[[Any, Silo], Any]] = {
    SampleLocally: _release,
    DivergenceCost: _divergence,
    LogLikelihood: _log_likelihood,
    CountDistinctRows: _distinct_rows,
    PolishRound: _polish,
    AssignRows: _assign,
}
