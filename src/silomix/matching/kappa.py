"""How alike the silos are, for a matching: one κ for all variables, chosen with the grouping."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from silomix.matching.greedy import sum_blocks
from silomix.matching.profile import drift_profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from silomix.matching.profile import Profile
    from silomix.matching.records import LocalClusters, MatchingInfo

    Find = Callable[[Profile], tuple[NDArray[np.int64], MatchingInfo]]

KAPPAS = np.append(np.geomspace(10.0, 1000.0, 8), np.inf)
"""The values that are compared; at the last there is no drift."""


def group_under_drift(
    clusters: LocalClusters, offsets: NDArray[np.int64], beta: float, find: Find
) -> tuple[NDArray[np.int64], MatchingInfo, Profile]:
    """Return the grouping that is most probable with its κ, and the evidence at that κ.

    A κ is judged by what its joins add to the log probability of all clusters standing alone, so
    that without a join no κ is better than another; and a drift that was looked for in all pairs
    of clusters must beat their number.

    Parameters
    ----------
    clusters : all silos' clusters.
    offsets : (variable + 1,), where each variable's levels start.
    beta : concentration of the level probabilities in the pooled model.
    find : the grouping, (local,), under a profile's evidence.
    """
    pairs = _pairs(clusters)
    best = None
    for kappa in KAPPAS:
        profile = drift_profile(clusters, offsets, beta, kappa)
        groups, info = find(profile)
        value = join_gain(clusters, groups, profile) + log_prior(kappa, pairs)
        if best is None or value > best[0]:
            best = value, groups, replace(info, kappa=float(kappa)), profile
    assert best is not None
    return best[1:]


def log_prior(kappa: float, pairs: int) -> float:
    """Return the log prior of κ: half at ∞, half spread over the rest, less the price of search."""
    if np.isinf(kappa):
        return float(np.log(0.5))
    return float(np.log(0.5 / (len(KAPPAS) - 1)) - np.log(max(pairs, 1)))


def _pairs(clusters: LocalClusters) -> int:
    """Return how many pairs of local clusters are of different silos."""
    of_silo = np.bincount(clusters.silo)
    return int((of_silo.sum() ** 2 - (of_silo**2).sum()) // 2)


def join_gain(clusters: LocalClusters, groups: NDArray[np.int64], profile: Profile) -> float:
    """Return the log probability of a grouping less that of every block by itself.

    A block is what clusters of one silo in one group add up to.
    """
    order = np.arange(len(groups))
    _, group, own = sum_blocks(clusters, order, groups)
    counts = profile.discount(own)
    members = np.bincount(group)
    together = np.zeros((len(members), counts.shape[1]))
    np.add.at(together, group, counts)
    occupied = members > 0
    evidence = profile.evidence(together[occupied]).sum() - profile.evidence(counts).sum()
    joins = members[occupied].sum() - occupied.sum()
    return float(evidence + gammaln(members[occupied]).sum() + joins * profile.log_join_odds)
