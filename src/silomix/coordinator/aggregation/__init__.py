"""Releases + Correspondence -> global draws: learn how to weigh the silos, and combine them.

An aggregation is a function that returns the `Aggregated` of an `AggregationProblem`; it is
registered in `silomix.study.AGGREGATIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.messages import Release, ShareReleases, Silos
from silomix.messages.released_draws import mix, shared_draws
from silomix.model.draws import Correspondence, MatchedDraws, SiloWeights
from silomix.study.methods import AGGREGATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.prior import PooledModel
    from silomix.study import Aggregation

__all__ = ["Aggregated", "AggregationProblem", "aggregate"]


@dataclass(frozen=True, eq=False)
class Aggregated:
    """Global draws, and how the silos were weighed.

    Attributes
    ----------
    weights : (draw, cluster); parameters : (draw, cluster, parameter)
    silo_weights : λ and μ. Under "cmc", μ is the mean over parameters of the elementwise weights;
        under "product", which has none, the silos' shares of the effective rows and cells.
    matched : the silos' draws, in the order in which they were combined.
    elbo_trace : (evaluation,), the objective along the way of the best start; None where nothing
        was maximised.
    notes : plain sentences that a reader of the result should see.
    """

    weights: Floats
    parameters: Floats
    silo_weights: SiloWeights
    matched: MatchedDraws
    elbo_trace: Floats | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AggregationProblem:
    """What an aggregation may look at, and ask.

    Attributes
    ----------
    share : the releases, one of each silo in the order of the roster, and their groups.
    correspondence : which of their clusters are the same.
    matched : the silos' draws, under the numbers of the global clusters; as many global draws are
        to be made.
    silos : for questions.
    model : of all rows together.
    threads : the result may not depend on it.
    """

    share: ShareReleases
    correspondence: Correspondence
    matched: MatchedDraws
    silos: Silos
    model: PooledModel
    threads: int = 1

    @property
    def releases(self) -> Sequence[Release]:
        """One of each silo, in the order of the roster."""
        return self.share.releases

    @property
    def rows(self) -> Ints:
        """Of each silo: (silo,)."""
        return np.array([release.rows for release in self.releases], dtype=np.int64)

    def average(self, by_silo: Floats, by_cluster: Floats) -> Aggregated:
        """Return means of the silos' draws, weighted by λ, (silo,), and μ, (silo, cluster)."""
        draws = mix(self.matched, by_silo, by_cluster, self.model.family)
        return self.result(*draws, by_silo, by_cluster)

    def result(
        self, weights: Floats, parameters: Floats, by_silo: Floats, by_cluster: Floats
    ) -> Aggregated:
        """Return global draws, and how much each silo counted: (silo,) and (silo, cluster)."""
        silo_weights = SiloWeights(self.correspondence.silos, by_silo, by_cluster)
        return Aggregated(weights, parameters, silo_weights, self.matched)


def aggregate(
    releases: list[Release],
    correspondence: Correspondence,
    settings: Aggregation,
    silos: Silos,
    model: PooledModel,
    *,
    count: int,
    threads: int = 1,
) -> Aggregated:
    """Combine the silos' draws into `count` global ones.

    Parameters
    ----------
    releases : one of each silo, in the order of `correspondence.silos`.
    silos : asked by aggregations that have questions.
    threads : the result does not depend on it.
    """
    share = ShareReleases(tuple(releases), correspondence.groups, count)
    matched = shared_draws(share, model)
    problem = AggregationProblem(share, correspondence, matched, silos, model, threads)
    found: Aggregated = AGGREGATIONS.function(settings)(problem, settings)
    return found
