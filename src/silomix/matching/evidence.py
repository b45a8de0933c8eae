"""Merge groups of clusters while the evidence of their profiles rises: the default."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from silomix.matching.greedy import join_groups, profile_gain, sharing
from silomix.matching.records import MatchingInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.matching.greedy import Groups, Wanted
    from silomix.matching.profile import Profile
    from silomix.matching.records import LocalClusters


def evidence_groups(
    clusters: LocalClusters, profile: Profile
) -> tuple[NDArray[np.int64], MatchingInfo]:
    """Join the two groups whose Dirichlet–multinomial evidence rises most, until none rises.

    The rise is g(n_a + n_b) − g(n_a) − g(n_b) on effective counts, without a term for the
    weights: that belongs to a model with one vector of weights for all silos, and would merge
    clusters that live in different silos. Two groups that share a silo do not merge: the silo
    has told its clusters apart. Beforehand a grouping is as likely as under the top level of a
    hierarchical Dirichlet process (Teh et al., 2006): the next local cluster joins a group with
    odds of the number of its members, or opens one with odds 1. Were all groupings equally
    likely, the ways to split a group would double with each member, and among a hundred silos
    chance alone would keep copies of one cluster apart.

    Returns
    -------
    groups : (local,)
    info : the gain of each merge.
    """
    alone = np.arange(len(clusters.silo))
    groups, merges = join_groups(clusters, alone, profile, apart_gain)
    return groups, MatchingInfo(gains=tuple(gain for _, _, gain in merges))


def apart_gain(
    groups: Groups, one: int, others: NDArray[np.int64], wanted: Wanted
) -> NDArray[np.float64]:
    """Return the gain of joining each of the others: (other,).

    −inf where a silo is in both, and where the gain does not count.
    """
    apart = ~sharing(groups, one, others)
    some = others[apart]
    prior = membership_gain(groups.silos[one], groups.silos[some], groups.rows.shape[1])
    prior = prior + groups.profile.log_join_odds
    gains = np.full(len(others), -np.inf)
    wanted = wanted._replace(floor=wanted.floor[apart])
    gains[apart] = profile_gain(groups, one, some, prior, wanted)
    return gains


def membership_gain(one: np.int64, others: NDArray[np.int64], silos: int) -> NDArray[np.float64]:
    """Return lnΓ(m_a + m_b) − lnΓ(m_a) − lnΓ(m_b), m the local clusters of a group: (other,).

    Two groups have no silo in common: together they have no more clusters than there are silos.
    """
    logs = log_gammas(silos)
    return logs[one + others] - logs[one] - logs[others]


@cache
def log_gammas(most: int) -> NDArray[np.float64]:
    """Return lnΓ of the whole numbers from 0 to `most`."""
    return np.asarray(gammaln(np.arange(most + 1)))
