"""Clusters numbered by size, in everything that knows their numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.types import Correspondence, SiloProfiles, SiloWeights


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a posterior that are numbered by cluster; attributes as in `Posterior`."""

    weights: NDArray[np.floating]
    weights_by_silo: NDArray[np.floating]
    probabilities: NDArray[np.floating]
    correspondence: Correspondence | None
    silo_weights: SiloWeights | None
    silo_profiles: SiloProfiles | None = None


def largest_weight_first(weights: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the clusters by decreasing mean weight, equal ones in their order.

    Parameters
    ----------
    weights : (draw, cluster)

    Returns
    -------
    (cluster,), the old number of each new cluster.
    """
    return np.argsort(-weights.mean(axis=0, dtype=np.float64), kind="stable")


def ordered(parts: Parts) -> Parts:
    """Return the parts with cluster 0 the largest, their draws in float32."""
    return _renumber(parts, largest_weight_first(parts.weights))


def _renumber(parts: Parts, order: NDArray[np.int64]) -> Parts:
    new = np.argsort(order)
    match, say, own = parts.correspondence, parts.silo_weights, parts.silo_profiles
    return Parts(
        weights=in_float32(parts.weights[:, order]),
        weights_by_silo=in_float32(parts.weights_by_silo[:, :, order]),
        probabilities=in_float32(parts.probabilities[:, order]),
        correspondence=match and replace(match, groups=tuple(new[g] for g in match.groups)),
        silo_weights=say and replace(say, profiles=say.profiles[:, order]),
        silo_profiles=own and replace(own, probabilities=own.probabilities[:, :, order]),
    )


def in_float32(draws: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return draws as a posterior holds and saves them: far more exact than any summary needs."""
    return np.ascontiguousarray(draws, dtype=np.float32)
