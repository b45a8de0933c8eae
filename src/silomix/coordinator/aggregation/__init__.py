"""Releases + Correspondence -> global draws: learn how to weigh the silos, and combine them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.aggregation.closed_form import (
    average_elementwise,
    inverse_variances,
    multiply,
    uniform_weights,
)
from silomix.coordinator.aggregation.objective import Objective
from silomix.coordinator.aggregation.oracles import choose_oracle
from silomix.coordinator.aggregation.vcmc import describe, maximise, objective_draws, size_weights
from silomix.messages import ShareReleases
from silomix.messages.released_draws import MATCHED_STREAM, shared_draws
from silomix.messages.rounding import draw_profile, has_rules, join_sources, read_sources
from silomix.model.draws import SiloWeights
from silomix.model.families.categorical import SMALLEST, mix, some_draws
from silomix.model.families.dirichlet import draw_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints
    from silomix.messages import Release, Silos
    from silomix.model.draws import Correspondence, MatchedDraws
    from silomix.model.schema import Prior
    from silomix.study import Aggregation

__all__ = ["Aggregated", "aggregate"]

# branch of the random stream: the fresh draws of a product
PRODUCT = 3


@dataclass(frozen=True, eq=False)
class Aggregated:
    """Global draws, and how the silos were weighed.

    Attributes
    ----------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    silo_weights : λ and μ. Under "cmc", μ is the mean over levels of the elementwise weights;
        under "product", which has none, the silos' shares of the effective rows and cells.
    matched : the silos' draws, in the order in which they were combined.
    elbo : the objective reached; None where nothing was maximised.
    elbo_trace : (evaluation,), the objective along the way of the best start, or None.
    notes : plain sentences that a reader of the result should see.
    """

    weights: Floats
    probabilities: Floats
    silo_weights: SiloWeights
    matched: MatchedDraws
    elbo: float | None = None
    elbo_trace: Floats | None = None
    notes: tuple[str, ...] = ()


def aggregate(
    releases: Sequence[Release],
    correspondence: Correspondence,
    settings: Aggregation,
    silos: Silos,
    *,
    prior: Prior,
    offsets: Ints,
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
    names, groups = correspondence.silos, correspondence.groups
    share = ShareReleases(tuple(releases), groups, count)
    matched = shared_draws(share, prior, offsets, seed)
    rows = np.array([release.rows for release in releases], dtype=np.int64)
    if settings.method == "product":
        rng = np.random.default_rng([seed, MATCHED_STREAM, PRODUCT])
        product = multiply(matched, rows, prior, offsets)
        weights = rng.dirichlet(product.weights, size=count)
        profiles = draw_levels(product.profiles, offsets, rng, count)
        if any(has_rules(release) for release in releases):
            profiles = _profiles_behind(releases, correspondence, prior, offsets, count, rng)
        cells = np.maximum(product.cells, SMALLEST * matched.held)
        shares = product.rows / product.rows.sum(), cells / cells.sum(axis=0)
        return Aggregated(weights, profiles, SiloWeights(names, *shares), matched)
    if settings.method == "cmc":
        by_silo, elements = inverse_variances(matched, rows)
        weights = np.tensordot(by_silo, matched.weights, axes=1)
        profiles = average_elementwise(matched, elements, offsets)
        by_cluster = elements.mean(axis=2)
        return Aggregated(weights, profiles, SiloWeights(names, by_silo, by_cluster), matched)
    if settings.method == "uniform" or len(releases) == 1:
        even = uniform_weights(matched.held)
        return Aggregated(*mix(matched, *even), SiloWeights(names, *even), matched)
    total, sizes = int(rows.sum()), np.diff(offsets)
    objective = Objective(
        matched=some_draws(matched, 0, objective_draws(settings.draws, total)),
        oracle=choose_oracle(settings, silos, share, sizes, threads),
        prior=prior,
        sizes=sizes,
        log_determinant=settings.log_determinant,
    )
    found = maximise(objective, size_weights(rows, correspondence), settings, seed)
    return Aggregated(
        *mix(matched, found.weights, found.profiles),
        silo_weights=SiloWeights(names, found.weights, found.profiles),
        matched=matched,
        elbo=found.elbo,
        elbo_trace=found.trace,
        notes=describe(found, settings, names, total),
    )


def _profiles_behind(
    releases: Sequence[Release],
    correspondence: Correspondence,
    prior: Prior,
    offsets: Ints,
    count: int,
    rng: np.random.Generator,
) -> Floats:
    """Draw every cluster's profile given what rounded releases can stand for."""
    sources = join_sources([read_sources(release, offsets) for release in releases])
    groups = np.concatenate(correspondence.groups)
    drawn = [
        draw_profile(sources.of(np.flatnonzero(groups == c)), prior.beta, offsets, count, rng)
        for c in range(correspondence.clusters)
    ]
    return np.stack(drawn, axis=1)
