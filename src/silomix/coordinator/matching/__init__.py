"""Which local clusters of which silos are the same: [Release] -> Correspondence.

A matching is a function that returns the group of each local cluster of a `MatchingProblem`; it is
registered in `silomix.study.MATCHINGS`. The default is in `greedy`; the paper's ball, Hungarian and
divergence matchings are in `silomix.paper.matchings`.

How sure it is comes from sampled groupings: block Gibbs over the local clusters (the merge step of
SNOB: Zuanetti et al., 2019). A grouping's probability is proportional to the product over its
groups of Γ(blocks in it) and their evidence, times the odds of each join; no group has two blocks
of one silo. A sweep draws the group of each block given all others', by one uniform number; then
two blocks of every silo that has two may exchange their groups.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.matching import greedy
from silomix.coordinator.matching.evidence import (
    DriftEvidence,
    LocalClusters,
    MatchingProblem,
    group_under_drift,
    local_clusters,
    sum_blocks,
)
from silomix.errors import SettingsError
from silomix.kernels.arrays import Array, Bools, Floats, Ints, Rng, by_appearance
from silomix.kernels.reproducible import kernel
from silomix.model.draws import Correspondence
from silomix.study.methods import MATCHINGS, Matching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.messages import Release, Silos
    from silomix.model.schema import PooledModel

__all__ = ["MatchingProblem", "match"]

# with more local clusters, the confidence is not computed
MOST_LOCAL_CLUSTERS = 2000
# sweeps dropped, and sweeps counted
BURN_IN, SWEEPS = 50, 250
# sets of blocks whose gains are remembered
MOST_KNOWN = 2000


def match(
    releases: Sequence[Release],
    counts: Sequence[Floats],
    settings: Matching,
    silos: Silos,
    model: PooledModel,
    *,
    drift: bool,
    polishes: bool = False,
) -> tuple[Correspondence, Floats | None]:
    """Find which local clusters are the same global cluster, and how sure that is.

    Parameters
    ----------
    releases : one from each silo, in the order of the roster.
    counts : the effective counts of each (`silomix.messages.released_draws.effective_counts`).
    settings : the matching and its options.
    silos : asked by matchings that have questions.
    model : profiles are scored under its beta as it stands, not a silo's share of it, for a global
        cluster is one of that model.
    drift : whether a cluster's profile may differ between silos.
    polishes : whether a polish follows, which can sort the rows of a cluster that is two in one.

    Returns
    -------
    correspondence : global clusters by decreasing rows; of equal ones, the one whose first
        local cluster comes first in the roster. Its confidence is left out above
        `MOST_LOCAL_CLUSTERS` local clusters.
    kappa : (variable,), how alike the silos' profiles are; None without drift.
    """
    clusters = local_clusters(releases, counts)
    evidence = DriftEvidence(model.family)
    for_matching, for_confidence = np.random.default_rng(model.seed).spawn(2)
    limit = greedy.folding_limit(settings.absorb)
    # a silo's stray rows are its own affair: how silos differ says nothing about them
    alone, few = np.arange(len(clusters.silo)), min(greedy.STRAY_ROWS, limit)
    start = greedy.absorb_groups(clusters, alone, evidence, limit=few)

    problem = MatchingProblem(releases, clusters, evidence, start, silos, for_matching)
    # a matching that knows no drift is asked once: only what follows is judged under it
    fixed = None if settings.by_evidence else solve(problem, settings)

    def find(evidence: DriftEvidence) -> Ints:
        return solve(replace(problem, evidence=evidence), settings) if fixed is None else fixed

    if drift and len(releases) > 1:
        groups, evidence = group_under_drift(clusters, evidence, find)
    else:
        groups = find(evidence)
    if settings.absorb:
        groups = greedy.absorb_groups(clusters, groups, evidence, limit=limit)
    confidence = None
    if len(groups) <= MOST_LOCAL_CLUSTERS:
        confidence = co_occurrence(clusters, groups, evidence, for_confidence)
    if settings.absorb and polishes:
        groups, confidence = greedy.split_unions(clusters, groups, evidence, confidence)
    groups = number_by_rows(groups, clusters.sizes)
    by_silo = tuple(groups[clusters.silo == silo] for silo in range(len(releases)))
    sizes, method = tuple(release.sizes for release in releases), settings.method
    return Correspondence(clusters.names, by_silo, sizes, method, confidence), evidence.kappa


def solve(problem: MatchingProblem, settings: Matching) -> Ints:
    """Group of each local cluster, by the function that is registered."""
    groups = np.asarray(MATCHINGS.function(settings)(problem, settings))
    if groups.shape != (len(problem.clusters.silo),) or groups.dtype.kind not in "iu":
        raise SettingsError(
            f"the matching {settings.method!r} returned {groups.dtype} of shape {groups.shape}; it "
            f"must return a whole number for each of {len(problem.clusters.silo)} local clusters"
        )
    return groups


def number_by_rows(groups: Ints, sizes: Ints) -> Ints:
    """Groups, (local,), numbered by decreasing rows; of equal ones, the first seen first."""
    _, first, ids = np.unique(groups, return_index=True, return_inverse=True)
    rows = np.bincount(ids, weights=sizes)
    return np.argsort(np.lexsort((first, -rows)))[ids]


def co_occurrence(
    clusters: LocalClusters, groups: Ints, evidence: DriftEvidence, rng: Rng, sweeps: int = SWEEPS
) -> Floats:
    """Share of sampled groupings in which each two local clusters share a group.

    The chain starts from `groups`. Clusters of one silo that share a group there were put there on
    purpose and stay together.

    Parameters
    ----------
    clusters : all silos' clusters.
    groups : (local,)
    evidence : of what clusters add up to.
    rng : the chain's randomness.
    sweeps : how many to count, after the burn-in.

    Returns
    -------
    (local, local), ones on the diagonal.
    """
    order = clusters.canonical_order()
    blocks = sum_blocks(clusters, order, by_appearance(groups[order]))
    counts = evidence.discount(blocks.counts)
    state = Grouping(counts, by_appearance(blocks.silo), blocks.group, evidence)
    together = np.zeros((len(blocks.group),) * 2)
    for sweep in range(BURN_IN + sweeps):
        state.draw_groups(rng)
        state.exchange(rng)
        if sweep >= BURN_IN:
            together += state.group[:, None] == state.group
    of_local = np.empty(len(order), dtype=np.int64)
    of_local[order] = blocks.block
    return (together / sweeps)[np.ix_(of_local, of_local)]


class Grouping:
    """A grouping of blocks, its groups' evidence, and what each block would add to it.

    Attributes
    ----------
    counts : (block, statistic), discounted; silo : (block,), numbered without gaps.
    group : (block,); there are as many groups as blocks, most of them empty.
    members : (group,), blocks in each; held : (group, silo), whether it has one of the silo.
    sums : (group, statistic); values : (group,), their evidence.
    gains : (group, block), g(n + n_b) − g(n), n the group's sums without the block.
    """

    def __init__(self, counts: Floats, silo: Ints, group: Ints, evidence: DriftEvidence) -> None:
        blocks = len(group)
        self.counts, self.silo, self.group, self.evidence = counts, silo, group.copy(), evidence
        self.members = np.zeros(blocks, dtype=np.int64)
        self.held: Bools = np.zeros((blocks, silo.max() + 1), dtype=np.bool_)
        self.sums, self.values = np.zeros(counts.shape), np.zeros(blocks)
        self.gains, self.alone = np.zeros((blocks, blocks)), self.score(counts)
        # a chain that has settled looks at the same few sets of blocks again and again
        self._known: dict[bytes, tuple[Floats, float, Floats]] = {}
        self.update(*np.unique(group))
        by_silo = (np.flatnonzero(silo == place) for place in range(silo.max() + 1))
        self._of_silo = [own for own in by_silo if len(own) > 1]

    def score(self, sums: Floats) -> Floats:
        """Log evidence of sums: (...,)."""
        return np.asarray(self.evidence.of(sums).sum(axis=-1))

    def update(self, *groups: int) -> None:
        """Bring groups up to date, whose blocks have changed."""
        for group in groups:
            inside = self.group == group
            self.members[group] = inside.sum()
            self.held[group] = False
            self.held[group, self.silo[inside]] = True
            key = inside.tobytes()
            if key not in self._known:
                if len(self._known) == MOST_KNOWN:
                    self._known.clear()
                total = self.counts[inside].sum(axis=0)
                value, sign = self.score(total), np.where(inside, -1.0, 1.0)
                changed = self.score(total + sign[:, None] * self.counts)
                self._known[key] = total, float(value), sign * (changed - value)
            self.sums[group], self.values[group], self.gains[group] = self._known[key]

    def draw_groups(self, rng: Rng) -> None:
        """Draw the group of each block given the others': an occupied one, or a new one."""
        uniforms, odds, block = rng.random(len(self.group)), self.evidence.log_join_odds, 0
        state = self.group, self.silo, self.members, self.held, self.gains, self.alone
        while block < len(uniforms):
            block, target = next_move(block, uniforms, odds, state)
            if block < len(uniforms):
                source, self.group[block] = self.group[block], target
                self.update(source, target)
            block += 1

    def exchange(self, rng: Rng) -> None:
        """Gibbs exchange of the groups of two blocks of every silo.

        By single moves they could swap only by way of a new group. The odds of a swap are the ratio
        of the evidence, drawn with a logistic threshold; Metropolis would always swap equal blocks,
        and two silos that do so in each sweep return to the start.
        """
        drawn = [(*rng.choice(own, 2, replace=False), rng.logistic()) for own in self._of_silo]
        while drawn:
            a, b, thresholds = map(np.array, zip(*drawn, strict=True))
            one, other, shift = self.group[a], self.group[b], self.counts[b] - self.counts[a]
            then = self.score(self.sums[one] + shift) + self.score(self.sums[other] - shift)
            swaps = np.flatnonzero(then - self.values[one] - self.values[other] > thresholds)
            if not len(swaps):
                return
            first = int(swaps[0])  # the later ones may depend on it
            self.group[a[first]], self.group[b[first]] = other[first], one[first]
            self.update(one[first], other[first])
            drawn = drawn[first + 1 :]


@kernel
def next_move(
    first: int, uniforms: Floats, log_join_odds: float, state: tuple[Array, ...]
) -> tuple[int, int]:
    """Draw the groups of blocks from `first` on, until one moves: that block, and its new group.

    Parameters
    ----------
    uniforms : (block,)
    state : group, silo, members, held, gains and alone, as in `Grouping`.

    Returns
    -------
    The number of blocks, and no group, if none moves.
    """
    group, silo, members, held, gains, alone = state
    choices, masses = np.empty(len(group) + 1, np.int64), np.empty(len(group) + 1)
    occupied = np.flatnonzero(members)
    for block in range(first, len(group)):
        own, n = group[block], 0
        for other in occupied:
            if not held[other, silo[block]]:
                choices[n] = other
                masses[n] = gains[other, block] + math.log(members[other])
                n += 1
        choices[n] = own
        # alone in its group: odds 1, like an empty group, and no join
        odds = math.log(members[own] - 1) if members[own] > 1 else -log_join_odds
        masses[n] = gains[own, block] + odds
        n += 1
        if members[own] > 1:
            choices[n] = members.argmin()
            masses[n] = alone[block] - log_join_odds
            n += 1
        shares = np.exp(masses[:n] - masses[:n].max()).cumsum()
        chosen = min(np.searchsorted(shares, uniforms[block] * shares[-1], side="right"), n - 1)
        if choices[chosen] != own:
            return block, choices[chosen]
    return len(group), -1
