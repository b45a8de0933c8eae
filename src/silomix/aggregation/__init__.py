"""Releases + Correspondence -> global draws: learn how to weigh the silos, and combine them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.aggregation.cmc import average_elementwise, inverse_variances, uniform_weights
from silomix.aggregation.matched import SMALLEST, STREAM, combine, matched_draws, mix
from silomix.aggregation.product import draw, multiply
from silomix.aggregation.vcmc import Model, objective_draws, size_weights, solve
from silomix.messages import ShareReleases
from silomix.rounding import draw_profile, has_rules, join_sources, read_sources
from silomix.types import SiloWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from silomix.aggregation.solvers import Solution
    from silomix.messages import Silos
    from silomix.release import Release
    from silomix.study import Aggregation
    from silomix.types import Correspondence, MatchedDraws, Prior

__all__ = ["Aggregated", "aggregate", "combine", "matched_draws"]

PRODUCT = 3
"""Branch of the random stream: the fresh draws of a product."""


@dataclass(frozen=True, eq=False)
class Aggregated:
    """Global draws, and how the silos were weighed.

    Attributes
    ----------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    silo_weights : λ and μ. Under "cmc", μ is the mean over levels of the elementwise weights;
        under "product", which has none, the silos' shares of the effective rows and cells.
    elbo : the objective reached; None where nothing was maximised.
    elbo_trace : (evaluation,), the objective along the way of the best start, or None.
    notes : plain sentences that a reader of the result should see.
    matched : the silos' draws, in the order in which they were combined.
    """

    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    silo_weights: SiloWeights
    elbo: float | None
    elbo_trace: NDArray[np.float64] | None
    notes: tuple[str, ...]
    matched: MatchedDraws


def aggregate(
    releases: Sequence[Release],
    correspondence: Correspondence,
    settings: Aggregation,
    silos: Silos,
    *,
    prior: Prior,
    offsets: NDArray[np.int64],
    count: int,
    seed: int,
    threads: int = 1,
) -> Aggregated:
    """Combine the silos' draws into `count` global ones.

    Parameters
    ----------
    releases : one of each silo, in the order of `correspondence.silos`.
    silos : asked for the data term of the objective, under "vcmc" only.
    prior : of the pooled model.
    offsets : (variable + 1,), where each variable's levels start.
    seed : of all randomness here; the result does not depend on `threads`.
    """
    matched = matched_draws(releases, correspondence, count, prior, offsets, seed)
    job = _Job(
        matched=matched,
        correspondence=correspondence,
        rows=np.array([release.rows for release in releases], dtype=np.int64),
        settings=settings,
        silos=silos,
        share=ShareReleases(tuple(releases), correspondence.groups, count, matched),
        offsets=offsets,
        model=Model(prior, np.diff(offsets), sum(r.rows for r in releases), seed, threads),
    )
    method = "uniform" if len(releases) == 1 and settings.method == "vcmc" else settings.method
    return METHODS[method](job)


@dataclass(frozen=True, eq=False)
class _Job:
    """What every method starts from; rows is (silo,)."""

    matched: MatchedDraws
    correspondence: Correspondence
    rows: NDArray[np.int64]
    settings: Aggregation
    silos: Silos
    share: ShareReleases
    offsets: NDArray[np.int64]
    model: Model


def _vcmc(job: _Job) -> Aggregated:
    start = size_weights(job.rows, job.correspondence)
    found = solve(job.matched, start, job.settings, job.silos, job.share, job.model)
    weights, probabilities = mix(job.matched, found.weights, found.profiles)
    return Aggregated(
        weights=weights,
        probabilities=probabilities,
        silo_weights=_named(job, found.weights, found.profiles),
        elbo=found.elbo,
        elbo_trace=found.trace,
        notes=tuple(_notes(job, found)),
        matched=job.matched,
    )


def _cmc(job: _Job) -> Aggregated:
    by_silo, elements = inverse_variances(job.matched, job.rows)
    return _without_objective(
        job,
        np.tensordot(by_silo, job.matched.weights, axes=1),
        average_elementwise(job.matched, elements, job.offsets),
        _named(job, by_silo, elements.mean(axis=2)),
    )


def _uniform(job: _Job) -> Aggregated:
    silo_weights = _named(job, *uniform_weights(job.matched.held))
    return _without_objective(job, *combine(job.matched, silo_weights), silo_weights)


def _product(job: _Job) -> Aggregated:
    product = multiply(job.matched, job.rows, job.model.prior, job.offsets)
    rng = np.random.default_rng([job.model.seed, STREAM, PRODUCT])
    count = job.matched.weights.shape[1]
    weights, profiles = draw(product, count, job.offsets, rng)
    if any(has_rules(release) for release in job.share.releases):
        profiles = _profiles_behind(job, count, rng)
    cells = np.maximum(product.cells, SMALLEST * job.matched.held)
    shares = _named(job, product.rows / product.rows.sum(), cells / cells.sum(axis=0))
    return _without_objective(job, weights, profiles, shares)


def _profiles_behind(job: _Job, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw every cluster's profile given what rounded releases can stand for."""
    sources = join_sources([read_sources(release, job.offsets) for release in job.share.releases])
    groups = np.concatenate(job.correspondence.groups)
    return np.stack(
        [
            draw_profile(
                sources.of(np.flatnonzero(groups == cluster)),
                job.model.prior.beta,
                job.offsets,
                count,
                rng,
            )
            for cluster in range(job.correspondence.clusters)
        ],
        axis=1,
    )


METHODS: dict[str, Callable[[_Job], Aggregated]] = {
    "vcmc": _vcmc,
    "cmc": _cmc,
    "uniform": _uniform,
    "product": _product,
}


def _without_objective(
    job: _Job,
    weights: NDArray[np.float64],
    probabilities: NDArray[np.float64],
    silo_weights: SiloWeights,
) -> Aggregated:
    return Aggregated(weights, probabilities, silo_weights, None, None, (), job.matched)


def _named(job: _Job, weights: NDArray[np.float64], profiles: NDArray[np.float64]) -> SiloWeights:
    return SiloWeights(job.correspondence.silos, weights, profiles)


def _notes(job: _Job, found: Solution) -> list[str]:
    notes = []
    used = objective_draws(job.settings.draws, job.model.rows)
    if used < job.settings.draws:
        notes.append(
            f"The aggregation weights were learned on {used} draws instead of "
            f"{job.settings.draws}, since there are {job.model.rows:,} rows."
        )
    if found.floor_binds.any():
        names = [
            name
            for name, binds in zip(job.correspondence.silos, found.floor_binds, strict=True)
            if binds
        ]
        notes.append(
            f"The weight of {', '.join(names)} fell to the floor, {job.settings.floor:g}: with "
            "alpha below one the objective rewards a silo for vanishing when clusters are its "
            "own, and without the floor it has no maximum. See whether those clusters are real."
        )
    if not found.converged and job.settings.solver.method != "few-rounds":
        notes.append(
            f"The aggregation weights were still moving after {len(found.trace)} evaluations; "
            "allow more steps."
        )
    return notes
