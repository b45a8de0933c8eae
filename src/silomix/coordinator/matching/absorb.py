"""Fold groups into groups of their own silo, where the evidence does not tell them apart."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.matching.greedy import join_groups, joint_discount, sharing

if TYPE_CHECKING:
    from silomix.coordinator.matching.greedy import Groups, Wanted
    from silomix.coordinator.matching.local_clusters import LocalClusters
    from silomix.coordinator.matching.profile import Profile
    from silomix.kernels.arrays import Floats, Ints


# groups stay apart if the evidence tells them apart by more than n to this power
SEARCH = 1.5


def folding_limit(absorb: int) -> float:
    """Return how many rows a group must have to be left alone; under True no number is enough."""
    return np.inf if absorb is True else float(absorb)


def absorb_groups(clusters: LocalClusters, groups: Ints, profile: Profile, *, limit: float) -> Ints:
    """Let groups join a group that shares a silo with them, if their profiles do not differ.

    A silo may split a few rows, or half a cluster, off one of its clusters. Among n rows some
    always look apart, so two groups stay apart only if all their silos together say so by a
    factor of more than n to the power `SEARCH`. Doubt about who belongs is in the effective
    counts, so rows that a silo picked out without reason say little; the sizes of the groups do
    not matter. Best gain first, until none rises; groups that share no silo are left to the
    matching.

    Parameters
    ----------
    groups : (local,)
    profile : how counts become evidence.
    limit : rows, over all silos, from which a group is left alone: one of the two has fewer.

    Returns
    -------
    (local,)
    """
    rows = np.bincount(clusters.silo, weights=clusters.sizes).astype(np.float64)
    return join_groups(clusters, groups, profile, partial(folding_gain, limit=limit, rows=rows))


def folding_gain(
    groups: Groups, one: int, others: Ints, _: Wanted, *, limit: float, rows: Floats
) -> Floats:
    """Return the gain of joining each of the others; −inf where they must not: (other,).

    `rows` is (silo,), how many rows each silo has.
    """
    small = (groups.rows[one].sum() < limit) | (groups.rows[others].sum(axis=1) < limit)
    gains = np.full(len(others), -np.inf)
    for place in np.flatnonzero(small & sharing(groups, one, others)):
        other = others[place]
        counts, remainder = joint_discount(groups, one, other)
        together = groups.profile.evidence(groups.counts[one] + groups.counts[other] + counts)
        apart = (groups.evidence[one] + groups.evidence[other]).sum()
        # once, however many silos they share
        shared = sorted(groups.by_silo[one].keys() & groups.by_silo[other].keys())
        price = SEARCH * np.log(rows[shared].sum())
        gains[place] = together - apart + remainder + price
    return gains
