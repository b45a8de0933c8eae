"""Join groups of local clusters, best pair first, while the evidence rises: the default.

`absorb_groups` then folds groups into groups of their own silo, where the evidence does not tell
them apart.

`split_unions` finds local clusters that are two clusters of other silos in one. A silo with few
rows may not tell apart what other silos do. Its joint cluster matches neither of the two and stays
alone: a global cluster too many, which the polish empties only slowly. But whatever the family,
what its rows add up to is a weighted sum of what those of the two add up to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from silomix.coordinator.matching.evidence import LocalClusters, Scored, sum_blocks
from silomix.kernels.arrays import Bools, Bytes, Floats, Ints, by_appearance, sum_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.coordinator.matching.evidence import DriftEvidence, MatchingProblem
    from silomix.study import Evidence

    # (groups, one, others, floor, best_only=) -> gains, see `apart_gain`
    Gain = Callable[..., Floats]

# a rise of the log evidence by less than this may be rounding
SMALLEST_GAIN = 1e-6

OUTDATED = -1
# groups that share a silo stay apart if the evidence tells them apart by more than n to this power
SEARCH = 1.5
# or by anything at all, if each has at least this share of the rows of these silos, and so many:
# among sixty rows noise alone sets apart six
SPLINTER, FEW = 0.1, 50
# a silo's cluster with fewer rows may be rows that are far from all others by chance
STRAY_ROWS = 10
# shares of the first of the two that are tried
SHARES = np.linspace(0.1, 0.9, 17)
# groups that may be one of the two: those that a cluster is most like
NEAREST = 8


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of local clusters; joining two writes their sum in the place of the first.

    Attributes
    ----------
    evidence : of what clusters add up to.
    scored : what they add up to, discounted for drift, and the evidence of that.
    rows : (group,)
    held : (group, byte), a bit for each silo: whether it has a cluster in the group.
    silos : (group,), how many silos have.
    by_silo : for each group, the effective counts of each of its silos as they are: (statistic,).
    """

    evidence: DriftEvidence
    scored: Scored
    rows: Floats
    held: Bytes
    silos: Ints
    by_silo: list[dict[int, Floats]]


def match_by_evidence(problem: MatchingProblem, _: Evidence) -> Ints:
    """Groups of `evidence_groups`: (local,)."""
    return evidence_groups(problem.clusters, problem.evidence, problem.start)


def evidence_groups(
    clusters: LocalClusters, evidence: DriftEvidence, start: Ints | None = None
) -> Ints:
    """Join the two groups whose evidence rises most, again and again: (local,).

    The rise is g(n_a + n_b) − g(n_a) − g(n_b), g the family's log evidence of sums, of categories
    the Dirichlet–multinomial of effective counts; without a term for the
    weights: that belongs to a model with one vector of weights for all silos, and would merge
    clusters that live in different silos. Two groups that share a silo do not merge: the silo
    has told its clusters apart. Beforehand a grouping is as likely as under the top level of a
    hierarchical Dirichlet process (Teh et al., 2006): the next local cluster joins a group with
    odds of the number of its members, or opens one with odds 1. Were all groupings equally
    likely, the ways to split a group would double with each member, and among a hundred silos
    chance alone would keep copies of one cluster apart.

    Parameters
    ----------
    start : (local,), the groups to begin with, every cluster by itself when left out. `match` lets
        stray rows join another cluster of their silo first: each silo found them among all of its
        rows, and pays for that search alone. Those of two silos say too little against being one
        cluster; once the strays of thirteen silos are one, it fits nowhere.
    """
    start = np.arange(len(clusters.silo)) if start is None else start
    return join_groups(clusters, start, evidence, apart_gain)


def join_groups(clusters: LocalClusters, groups: Ints, evidence: DriftEvidence, gain: Gain) -> Ints:
    """Join groups, the pair with the largest gain first, until no gain is left: (local,).

    Ties go to the pair that comes first in the canonical order of the clusters.

    Parameters
    ----------
    groups : (local,), the groups to begin with.
    evidence : of what clusters add up to.
    gain : rise of the log evidence when one group joins each of some others; −inf where it
        must not, and maybe where it does not count.
    """
    order = clusters.canonical_order()
    joined = by_appearance(groups[order])
    for one, other, _ in greedy_merges(sum_up(clusters, order, joined, evidence), gain):
        joined[joined == other] = one
    back = np.empty_like(joined)
    back[order] = joined
    return back


def sum_up(clusters: LocalClusters, order: Ints, start: Ints, evidence: DriftEvidence) -> Groups:
    """Sum local clusters, taken in this order, into the groups they start in: (local,)."""
    blocks = sum_blocks(clusters, order, start)
    counts = sum_by(blocks.group, evidence.discount(blocks.counts), 1 + int(start.max()))
    by_silo: list[dict[int, Floats]] = [{} for _ in counts]
    rows = np.bincount(start, weights=clusters.sizes[order]).astype(np.float64)
    held = np.zeros((len(counts), len(clusters.names)), dtype=np.bool_)
    for s, g, own in zip(blocks.silo.tolist(), blocks.group.tolist(), blocks.counts, strict=True):
        by_silo[g][s] = own
        held[g, s] = True
    bits, silos = np.packbits(held, axis=1), held.sum(axis=1)
    return Groups(evidence, Scored(counts, evidence), rows, bits, silos, by_silo)


def greedy_merges(groups: Groups, gain: Gain) -> list[tuple[int, int, float]]:
    """Join the best pair until none rises; return which two were joined, and the gain, in order.

    The table of all pairs is not kept: it would be 10⁸ numbers for 10,000 clusters. Each
    group remembers its best partner among the later ones. When that partner is gone, the gain
    with it still bounds the gains with the others, which are looked at again only if the bound
    comes up as the largest of all: the pairs joined are those of the full table (the generic
    algorithm of Müllner, 2011, arXiv:1109.2378). Gains that could decide nothing need not be
    known: those too small to join for, or below the best of the other group.
    """
    n_groups = len(groups.by_silo)
    alive = np.ones(n_groups, dtype=np.bool_)
    bound = np.full(n_groups, -np.inf)
    partner = np.full(n_groups, OUTDATED)

    def find_partner(one: int) -> None:
        later = one + 1 + np.flatnonzero(alive[one + 1 :])
        bound[one] = -np.inf
        if len(later):
            gains = gain(groups, one, later, np.full(len(later), SMALLEST_GAIN), best_only=True)
            best = int(np.argmax(gains))
            bound[one], partner[one] = gains[best], later[best]

    for one in range(n_groups):
        find_partner(one)
    merges = []
    while bound[one := int(np.argmax(bound))] > SMALLEST_GAIN:
        other = int(partner[one])
        if other == OUTDATED:
            find_partner(one)
            continue
        merges.append((one, other, float(bound[one])))
        join(groups, one, other)
        alive[other], bound[other] = False, -np.inf
        partner[(partner == one) | (partner == other)] = OUTDATED
        find_partner(one)
        earlier = np.flatnonzero(alive[:one])
        floor = np.maximum(bound[earlier], SMALLEST_GAIN)
        gains = gain(groups, one, earlier, floor, best_only=False)
        better = gains >= bound[earlier]
        bound[earlier[better]], partner[earlier[better]] = gains[better], one
    return merges


def join(groups: Groups, one: int, other: int) -> None:
    """Add a group to another, in place."""
    mine, others = groups.by_silo[one], groups.by_silo[other]
    shared = mine.keys() & others.keys()
    counts = groups.scored.counts
    counts[one] += counts[other]
    if shared:
        counts[one] += joint_discount(groups, one, other)[0]
    groups.by_silo[one] = mine | others | {s: mine[s] + others[s] for s in shared}
    groups.scored.update(slice(one, one + 1))
    groups.rows[one] += groups.rows[other]
    groups.held[one] |= groups.held[other]
    groups.silos[one] += groups.silos[other] - len(shared)


def joint_discount(groups: Groups, one: int, other: int) -> tuple[Floats, float]:
    """Change where two groups share silos, whose clusters would drift together.

    Returns
    -------
    counts : (statistic,), discounted together less discounted one by one.
    remainder : the same of what discounting leaves out of the log probability.
    """
    mine, others = groups.by_silo[one], groups.by_silo[other]
    shared = sorted(mine.keys() & others.keys())
    a, b = np.array([mine[s] for s in shared]), np.array([others[s] for s in shared])
    discount, remainder = groups.evidence.discount, groups.evidence.remainder
    counts = discount(a + b) - discount(a) - discount(b)
    left_out = remainder(a + b) - remainder(a) - remainder(b)
    return counts.sum(axis=0), float(left_out.sum())


def sharing(groups: Groups, one: int, others: Ints) -> Bools:
    """Which of the others have a silo in common with one group: (other,)."""
    return np.asarray((groups.held[others] & groups.held[one]).any(axis=1))


def apart_gain(groups: Groups, one: int, others: Ints, floor: Floats, *, best_only: bool) -> Floats:
    """Gain of joining each of the others: (other,).

    −inf where a silo is in both, and where the gain does not count: below its floor, (other,), or
    with `best_only` below the largest.
    """
    apart = ~sharing(groups, one, others)
    some = others[apart]
    prior = membership_gain(groups.silos[one], groups.silos[some]) + groups.evidence.log_join_odds
    gains = np.full(len(others), -np.inf)
    gains[apart] = groups.scored.gains_above(one, some, prior, floor[apart], best_only=best_only)
    return gains


def membership_gain(one: np.int64, others: Ints) -> Floats:
    """Gain lnΓ(m_a + m_b) − lnΓ(m_a) − lnΓ(m_b), m the local clusters of a group: (other,)."""
    return np.asarray(gammaln(one + others) - gammaln(one) - gammaln(others))


def folding_limit(absorb: int) -> float:
    """Rows from which a group is left alone; under True no number is enough."""
    return np.inf if absorb is True else float(absorb)


def absorb_groups(
    clusters: LocalClusters, groups: Ints, evidence: DriftEvidence, *, limit: float
) -> Ints:
    """Join groups that share a silo, if their profiles do not differ.

    A silo may split a few rows, or half a cluster, off one of its clusters. Among n rows some
    always look apart, so a splinter stays only if all silos of the two groups together say so by a
    factor of more than n to the power `SEARCH`. Two clusters of many rows that are each a good part
    of a silo's are no chance find, and stay unless the evidence is for one. Doubt about who belongs
    is in the effective counts, so rows that a silo picked out without reason say little; where
    clusters overlap, a thousand rows may be worth a hundred, which could never pay for a search.
    Best gain first, until none rises; groups that share no silo are left to the matching.

    Parameters
    ----------
    groups : (local,)
    evidence : of what clusters add up to.
    limit : rows, over all silos, from which a group is left alone: one of the two has fewer.

    Returns
    -------
    (local,)
    """
    rows = np.bincount(clusters.silo, weights=clusters.sizes).astype(np.float64)
    return join_groups(clusters, groups, evidence, partial(folding_gain, limit=limit, rows=rows))


def folding_gain(
    groups: Groups, one: int, others: Ints, _: Floats, *, limit: float, rows: Floats, **__: bool
) -> Floats:
    """Gain of joining each of the others; −inf where they must not: (other,).

    `rows` is (silo,), how many rows each silo has.
    """
    counts, values = groups.scored.counts, groups.scored.values
    small = (groups.rows[one] < limit) | (groups.rows[others] < limit)
    gains = np.full(len(others), -np.inf)
    for place in np.flatnonzero(small & sharing(groups, one, others)):
        other = others[place]
        change, remainder = joint_discount(groups, one, other)
        together = groups.evidence.of(counts[one] + counts[other] + change).sum()
        apart = (values[one] + values[other]).sum()
        # once, however many silos they share
        shared = sorted(groups.by_silo[one].keys() & groups.by_silo[other].keys())
        searched = rows[shared].sum()
        least = min(groups.rows[one], groups.rows[other])
        splinter = least < max(SPLINTER * searched, FEW)
        price = SEARCH * np.log(searched) if splinter else 0.0
        gains[place] = together - apart + remainder + price
    return gains


def split_unions(
    clusters: LocalClusters, groups: Ints, evidence: DriftEvidence, confidence: Floats | None
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
    counts = sum_by(blocks.group, evidence.discount(blocks.counts), 1 + int(groups.max()))
    held = np.zeros((len(counts), len(clusters.names)), dtype=np.bool_)
    held[blocks.group, blocks.silo] = True
    while True:
        alone = np.flatnonzero(held.sum(axis=1) == 1).tolist()
        unions = [(*find_union(group, counts, held, evidence), group) for group in alone]
        gain, larger, group = max(unions, default=(0.0, 0, 0), key=itemgetter(0))
        if gain <= 0.0:
            return groups, confidence
        moved, held[group] = groups == group, False
        groups = np.where(moved, larger, groups)
        if confidence is not None:
            apart = moved[:, None] != moved
            sure = (groups[:, None] == groups) / (1.0 + np.exp(-gain))
            confidence = np.where(apart, sure, confidence)


def find_union(
    group: int, counts: Floats, held: Bools, evidence: DriftEvidence
) -> tuple[float, int]:
    """Best mixture of two groups that could be this one, held by one silo.

    The silo has neither of the two: it has told them from whatever else it has.

    Parameters
    ----------
    counts : (group, statistic), discounted; held : (group, silo), none for groups that are gone.

    Returns
    -------
    gain : how much more probable its rows are as a mixture of the two than as a cluster of its own,
        as a logarithm, less the number of mixtures that were tried.
    larger : the one of the two with the larger share.
    """
    own = counts[group]
    others = np.flatnonzero(held.any(axis=1) & ~(held & held[group]).any(axis=1))
    alone = evidence.of(own).sum()
    near = evidence.of(counts[others] + own) - evidence.of(counts[others])
    others = np.sort(others[np.argsort(-near.sum(axis=1), kind="stable")[:NEAREST]])
    pairs = np.array([*combinations(others, 2)], dtype=np.int64).reshape(-1, 2)
    if len(pairs) == 0:
        return -np.inf, group
    rows = evidence.family.known(counts).mean(axis=-1)[pairs]
    shares = np.stack([SHARES, 1.0 - SHARES], axis=1)
    # as many rows as the two have, in these shares
    most = (rows[:, None] / shares).min(axis=2, keepdims=True)
    mixed = np.einsum("psi,pix->psx", most * shares / rows[:, None], counts[pairs])
    gains = (evidence.of(mixed + own) - evidence.of(mixed)).sum(axis=2) - alone
    pair, share = np.unravel_index(gains.argmax(), gains.shape)
    larger = pairs[pair, shares[share].argmax()]
    return float(gains[pair, share] - np.log(gains.size)), int(larger)
