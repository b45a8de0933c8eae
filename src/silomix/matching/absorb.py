"""Fold small groups into groups of their own silo, where the evidence says so."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from silomix.matching.greedy import join_groups, profile_gain
from silomix.matching.records import Absorption

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.matching.greedy import Groups, Profile
    from silomix.matching.records import LocalClusters


SMALL_SHARE = 0.06
"""A group with a larger share of all rows is not small, however few the rows are."""


def folding_limit(absorb: int, rows: int) -> int:
    """Return how many rows a group must have to be left alone: `absorb`, less in small tables."""
    return min(absorb, round(SMALL_SHARE * rows))


def absorb_small(
    clusters: LocalClusters,
    groups: NDArray[np.int64],
    profile: Profile,
    *,
    limit: int,
    alpha: float,
) -> tuple[NDArray[np.int64], tuple[Absorption, ...]]:
    """Let groups of fewer than `limit` rows join a group that shares a silo with them.

    A silo may split a few rows off one of its clusters. Within a silo the weights speak too,
    so the rise of the evidence includes their term for each shared silo. The rows were not
    picked beforehand: among n_s rows some always look apart, so a small group must stay apart
    by a factor of more than n_s. Best gain first, until none rises; groups that share no silo
    are left to the matching.

    Parameters
    ----------
    clusters : all silos' clusters.
    groups : (local,)
    profile : how counts become evidence.
    limit : rows, over all silos, from which a group is left alone.
    alpha : concentration of a silo's weights: its share of the pooled model's prior, under
        which its clusters were found.

    Returns
    -------
    groups : (local,)
    absorbed : what was folded into what.
    """
    rows = np.bincount(clusters.silo, weights=clusters.sizes)
    gain = partial(folding_gain, limit=limit, alpha=alpha, search=np.log(rows))
    folded, merges = join_groups(clusters, groups, profile, gain)
    return folded, tuple(_tell(clusters, *merge) for merge in merges)


def folding_gain(
    groups: Groups,
    one: int,
    others: NDArray[np.int64],
    *,
    limit: int,
    alpha: float,
    search: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the gain of joining each of the others; −inf where neither is small: (other,).

    `search` is (silo,), what a small group must be better by to stay apart in a silo they share.
    """
    shared = groups.held[others] & groups.held[one]
    small = (groups.rows[one].sum() < limit) | (groups.rows[others].sum(axis=1) < limit)
    allowed = small & shared.any(axis=1)
    gains = np.full(len(others), -np.inf)
    if allowed.any():
        some, both = others[allowed], shared[allowed]
        by_silo = weight_gain(groups.rows[one], groups.rows[some], alpha) + search
        weights = np.where(both, by_silo, 0.0)
        gains[allowed] = profile_gain(groups, one, some) + weights.sum(axis=1)
    return gains


def weight_gain(
    one: NDArray[np.int64], other: NDArray[np.int64], alpha: float
) -> NDArray[np.float64]:
    """Return lnΓ(α + n_a + n_b) + lnΓ(α) − lnΓ(α + n_a) − lnΓ(α + n_b), by silo."""
    apart = gammaln(alpha + one) + gammaln(alpha + other)
    return gammaln(alpha + one + other) + gammaln(alpha) - apart


def _tell(clusters: LocalClusters, one: list[int], other: list[int], gain: float) -> Absorption:
    small, large = sorted([one, other], key=lambda group: clusters.sizes[group].sum())
    return Absorption(
        clusters=tuple(clusters.name(local) for local in sorted(small)),
        into=tuple(clusters.name(local) for local in sorted(large)),
        gain=gain,
    )
