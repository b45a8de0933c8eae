"""How alike the silos are, for a matching: κ chosen together with the grouping.

Every variable is either the same in all silos, κ_q = ∞, or drifts with one κ that all drifting
variables share; the polish learns each κ_q by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import betaln, gammaln, logsumexp

from silomix.matching.greedy import sum_blocks
from silomix.matching.profile import by_variable, drift_profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from silomix.matching.profile import Profile
    from silomix.matching.records import LocalClusters, MatchingInfo

    Find = Callable[[Profile], tuple[NDArray[np.int64], MatchingInfo]]

KAPPAS = np.geomspace(10.0, 1000.0, 8)
"""The values that drifting variables may share."""
TIE = 1e-9
PASSES = 2
"""How often to look again which variables drift, and to group again."""


def group_under_drift(
    clusters: LocalClusters, offsets: NDArray[np.int64], beta: float, find: Find
) -> tuple[NDArray[np.int64], MatchingInfo, Profile]:
    """Return the grouping that is most probable with its κ, and the evidence at that κ.

    A κ is judged by what its joins add to the log probability of all clusters standing alone, so
    that without a join no κ is better than another. Drift, over all its κ, must be more probable
    than none; and since it was looked for in all pairs of clusters, by a factor of their number.

    Parameters
    ----------
    clusters : all silos' clusters.
    offsets : (variable + 1,), where each variable's levels start.
    beta : concentration of the level probabilities in the pooled model.
    find : the grouping, (local,), under a profile's evidence.
    """
    alike = drift_profile(clusters, offsets, beta, np.full(len(offsets) - 1, np.inf))
    same = _judge(clusters, alike, find)
    drifting = [_best_at(clusters, alike, kappa, find) for kappa in KAPPAS]
    # the first join pays its own prior odds: they are not charged twice
    price = np.log(max(_pairs(clusters), 1)) + drifting[0].profile.log_join_odds
    # without a pair of silos the two are equal but for rounding
    drifts = logsumexp([found.value for found in drifting]) - price > same.value + TIE
    best = max(drifting, key=lambda found: found.value) if drifts else same
    return best.groups, replace(best.info, kappa=best.profile.kappa), best.profile


class Judged(NamedTuple):
    """A grouping, the evidence that found it, and their log probability."""

    value: float
    groups: NDArray[np.int64]
    info: MatchingInfo
    profile: Profile


def _judge(clusters: LocalClusters, profile: Profile, find: Find) -> Judged:
    groups, info = find(profile)
    value = join_gain(clusters, groups, profile) + _log_prior(profile.drifts)
    return Judged(value, groups, info, profile)


def _best_at(clusters: LocalClusters, alike: Profile, kappa: float, find: Find) -> Judged:
    """Group with all variables drifting; then, as long as it helps, with those that do."""
    every = np.full(len(alike.offsets) - 1, kappa)
    drifting = drift_profile(clusters, alike.offsets, alike.beta, every)
    best = now = _judge(clusters, drifting, find)
    for _ in range(PASSES):
        drifts = _variables_that_drift(clusters, now.groups, drifting, alike)
        if not drifts.any() or np.array_equal(drifts, now.profile.drifts):
            break
        now = _judge(clusters, _combine(drifting, alike, drifts, kappa), find)
        if now.value <= best.value:
            break
        best = now
    return best


def _combine(drifting: Profile, alike: Profile, drifts: NDArray[np.bool_], kappa: float) -> Profile:
    """Return the evidence in which some variables, (variable,), drift with κ."""
    of_level = np.repeat(drifts, np.diff(alike.offsets))
    prior = np.where(of_level, drifting.prior, alike.prior)
    return replace(alike, kappa=np.where(drifts, kappa, np.inf), base=prior)


def _variables_that_drift(
    clusters: LocalClusters, groups: NDArray[np.int64], drifting: Profile, alike: Profile
) -> NDArray[np.bool_]:
    """Tell in which variables the joins are more probable with drift: (variable,)."""
    gains = [gain_by_variable(clusters, groups, profile) for profile in (drifting, alike)]
    return gains[0] > gains[1]


def _log_prior(drifts: NDArray[np.bool_]) -> float:
    """Return the log prior of which variables drift, (variable,), and how much.

    Half is on no drift at all, a quarter on drift in all variables; otherwise the share of
    variables that drift is uniform beforehand. The value they share is uniform on `KAPPAS`.
    """
    if not drifts.any():
        return float(np.log(0.5))
    pattern = 0.0 if drifts.all() else betaln(1 + drifts.sum(), 1 + (~drifts).sum())
    return float(np.log(0.25 / len(KAPPAS)) + pattern)


def _pairs(clusters: LocalClusters) -> int:
    """Return how many pairs of local clusters are of different silos."""
    of_silo = np.bincount(clusters.silo)
    return int((of_silo.sum() ** 2 - (of_silo**2).sum()) // 2)


def join_gain(clusters: LocalClusters, groups: NDArray[np.int64], profile: Profile) -> float:
    """Return the log probability of a grouping less that of every block by itself.

    A block is what clusters of one silo in one group add up to.
    """
    _, group, _ = sum_blocks(clusters, np.arange(len(groups)), groups)
    members = np.bincount(group)
    members = members[members > 0]
    joins = members.sum() - len(members)
    prior = gammaln(members).sum() + joins * profile.log_join_odds
    return float(gain_by_variable(clusters, groups, profile).sum() + prior)


def gain_by_variable(
    clusters: LocalClusters, groups: NDArray[np.int64], profile: Profile
) -> NDArray[np.float64]:
    """Return the evidence of the groups less that of their blocks: (variable,)."""
    _, group, own = sum_blocks(clusters, np.arange(len(groups)), groups)
    counts = profile.discount(own)
    together = np.zeros((int(group.max()) + 1, counts.shape[1]))
    np.add.at(together, group, counts)
    joined, apart = (
        by_variable(part, profile.prior, profile.offsets) for part in (together, counts)
    )
    return joined.sum(axis=0) - apart.sum(axis=0)
