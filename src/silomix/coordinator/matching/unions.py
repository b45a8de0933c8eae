"""Local clusters that are two clusters of other silos in one.

A silo with few rows may not tell apart what other silos do. Its joint cluster matches neither of
the two and stays alone: a global cluster too many, which the polish empties only slowly. But
whatever the family, what its rows add up to is a weighted sum of what those of the two add up to.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.coordinator.matching.evidence import LocalClusters, Profile, sum_blocks
from silomix.model.families.dirichlet import sum_by

if TYPE_CHECKING:
    from silomix.kernels.arrays import Bools, Floats, Ints

# shares of the first of the two that are tried
SHARES = np.linspace(0.1, 0.9, 17)
# groups that may be one of the two: those that a cluster is most like
NEAREST = 8


class Union(NamedTuple):
    """A cluster alone in its group that may be two others in one.

    Attributes
    ----------
    gain : how much more probable its rows are as a mixture of the two than as a cluster of its own,
        as a logarithm, less the number of mixtures that were tried.
    group : the group it is alone in; larger : the one of the two with the larger share.
    """

    gain: float
    group: int
    larger: int


def split_unions(
    clusters: LocalClusters, groups: Ints, profile: Profile, confidence: Floats | None
) -> tuple[Ints, Floats | None]:
    """Put clusters that are two others in one into the larger of the two; a polish has to follow.

    It draws anew which rows belong to which, so that only the number of clusters matters.

    Parameters
    ----------
    groups : (local,)
    confidence : (local, local), how often two share a group; None if not computed.

    Returns
    -------
    Both, changed: a cluster that was moved is as sure as that it is a mixture of the two.
    """
    blocks = sum_blocks(clusters, np.arange(len(groups)), groups)
    counts = sum_by(blocks.group, profile.discount(blocks.counts), 1 + int(groups.max()))
    held = np.zeros((len(counts), len(clusters.names)), dtype=np.bool_)
    held[blocks.group, blocks.silo] = True
    while True:
        alone = np.flatnonzero(held.sum(axis=1) == 1)
        unions = [find_union(int(group), counts, held, profile) for group in alone]
        best = max(unions, default=None, key=lambda union: union.gain)
        if best is None or best.gain <= 0.0:
            return groups, confidence
        moved, held[best.group] = groups == best.group, False
        groups = np.where(moved, best.larger, groups)
        if confidence is not None:
            apart = moved[:, None] != moved
            sure = (groups[:, None] == groups) / (1.0 + np.exp(-best.gain))
            confidence = np.where(apart, sure, confidence)


def find_union(group: int, counts: Floats, held: Bools, profile: Profile) -> Union:
    """Return the best mixture of two groups that could be this one, held by one silo.

    The silo has neither of the two: it has told them from whatever else it has.

    Parameters
    ----------
    counts : (group, statistic), discounted; held : (group, silo), none for groups that are gone.
    """
    own = counts[group]
    others = np.flatnonzero(held.any(axis=1) & ~(held & held[group]).any(axis=1))
    alone = profile.evidence(own).sum()
    near = profile.evidence(counts[others] + own) - profile.evidence(counts[others])
    others = np.sort(others[np.argsort(-near.sum(axis=1), kind="stable")[:NEAREST]])
    pairs = np.array([*combinations(others, 2)], dtype=np.int64).reshape(-1, 2)
    if len(pairs) == 0:
        return Union(-np.inf, group, group)
    rows = profile.family.known(counts).mean(axis=-1)[pairs]
    shares = np.stack([SHARES, 1.0 - SHARES], axis=1)
    # as many rows as the two have, in these shares
    most = (rows[:, None] / shares).min(axis=2, keepdims=True)
    mixed = np.einsum("psi,pix->psx", most * shares / rows[:, None], counts[pairs])
    gains = (profile.evidence(mixed + own) - profile.evidence(mixed)).sum(axis=2) - alone
    pair, share = np.unravel_index(gains.argmax(), gains.shape)
    larger = pairs[pair, shares[share].argmax()]
    return Union(float(gains[pair, share] - np.log(gains.size)), group, int(larger))
