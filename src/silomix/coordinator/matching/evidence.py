"""Local clusters, and the evidence that some of them are the same, with or without drift.

Under drift, counts of one silo say less of the profile that the silos share: they are discounted at
κ (`Family.discount`), and add up over silos as counts do without drift. What they
are compared with is how much *unrelated* clusters differ. In a variable in which a silo's own
clusters hardly differ, two clusters that agree need not be the same: there the prior of a profile
is Dirichlet(τ_q ḡ_q) with a large τ_q, learned from the differences between clusters of one silo,
which are surely not the same. Otherwise many variables that tell nobody apart would, together, join
what the few others tell apart, since drift limits what those can say.

κ is chosen together with the grouping: every variable is either the same in all silos, κ_q = ∞, or
drifts with one κ that all drifting variables share; the polish learns each κ_q by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import betaln, gammaln, logsumexp

from silomix.kernels.arrays import Bools, Floats, Ints, Rng, by_appearance, sum_by
from silomix.kernels.dirichlet_multinomial import gains_above
from silomix.messages.released_draws import release_medians

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from silomix.families.product import Product
    from silomix.messages import Release, Silos

    Find = Callable[["DriftEvidence"], Ints]

# prior odds of joining under drift, where unlike clusters join more easily, in those without
JOIN_ODDS = 0.5
# the values that drifting variables may share
KAPPAS = np.geomspace(10.0, 1000.0, 8)
TIE = 1e-9
# how often to look again which variables drift, and to group again
PASSES = 2


@dataclass(frozen=True, eq=False)
class LocalClusters:
    """All silos' local clusters, one after the other in the order of the roster.

    Attributes
    ----------
    names : of the silos.
    silo : (local,), place in `names` of the silo each cluster is of.
    sizes : (local,), its rows.
    counts : (local, statistic), what its rows add up to, as far as its draws are worth them.
    """

    names: tuple[str, ...]
    silo: Ints
    sizes: Ints
    counts: Floats

    def canonical_order(self) -> Ints:
        """Clusters sorted by silo name, then by what is in them: (local,).

        An algorithm that goes through them in this order, and breaks ties by it, gives the
        same answer however the silos are listed and their clusters numbered.
        """
        alphabetical = np.argsort(np.argsort(np.array(self.names)))
        keys = [*self.counts.T[::-1], self.sizes, alphabetical[self.silo]]
        return np.lexsort(keys)


def local_clusters(releases: Sequence[Release], counts: Sequence[Floats]) -> LocalClusters:
    """Local clusters of all releases, with the effective counts of each."""
    return LocalClusters(
        names=tuple(release.silo for release in releases),
        silo=np.repeat(np.arange(len(releases)), [release.clusters for release in releases]),
        sizes=np.concatenate([release.sizes for release in releases]),
        counts=np.concatenate(counts),
    )


class Blocks(NamedTuple):
    """Sums of the clusters of one silo in one group, which drift together.

    Attributes
    ----------
    block : (local,), numbered in the order in which they first appear.
    silo, group : (block,)
    counts : (block, statistic), effective sums as they are.
    """

    block: Ints
    silo: Ints
    group: Ints
    counts: Floats


def sum_blocks(clusters: LocalClusters, order: Ints, groups: Ints) -> Blocks:
    """Add up the clusters of one silo that share a group; groups : (local,), in this order."""
    silo = clusters.silo[order]
    block = by_appearance(silo * (1 + groups.max()) + groups)
    first = np.unique(block, return_index=True)[1]
    counts = sum_by(block, clusters.counts[order], len(first))
    return Blocks(block, silo[first], groups[first], counts)


@dataclass(frozen=True, eq=False)
class DriftEvidence:
    """Evidence of what clusters add up to, where silos may differ by κ.

    Attributes
    ----------
    family : under the prior of the pooled model.
    kappa : (variable,), how alike the silos' parameters are; the same everywhere when left out.
    base : (coordinate,), χ of the prior of a cluster's shared parameters, if it is another.
    """

    family: Product
    kappa: Floats | None = None
    base: Floats | None = None

    def of(self, statistics: Floats) -> Floats:
        """Log probability of each group, from discounted sums: (..., variable)."""
        return self.family.log_evidence(statistics, self.base)

    def discount(self, statistics: Floats) -> Floats:
        """Sums of one silo, discounted for its drift: (..., statistic)."""
        return statistics if self.kappa is None else self.family.discount(statistics, self.kappa)

    def remainder(self, statistics: Floats) -> Floats:
        """Part of the rows' log probability that discounting leaves out: (...,)."""
        if self.kappa is None:
            return np.zeros(statistics.shape[:-1])
        return np.asarray(self.family.log_remainder(statistics, self.kappa).sum(axis=-1))

    @property
    def prior(self) -> Floats:
        """χ of the prior of a cluster's shared parameters: (coordinate,)."""
        return self.family.prior() if self.base is None else self.base

    @property
    def drifts(self) -> Bools:
        """In which variables silos may differ: (variable,)."""
        same = np.zeros(len(self.family.variables), dtype=np.bool_)
        return same if self.kappa is None else np.isfinite(self.kappa)

    @property
    def log_join_odds(self) -> float:
        """Term of the log prior of a grouping for each join."""
        return float(np.log(JOIN_ODDS)) if self.drifts.any() else 0.0


class Scored:
    """Groups that may join: what they add up to, and the evidence of that.

    Attributes
    ----------
    counts : (group, statistic), discounted; whoever changes them calls `update`.
    values : (group, variable)
    room : (group, variable + 1), upper bound, from each variable on, of what a group of categories
        contributes to the gain of a join. Evidence g of categories is convex, so a variable adds at
        most r(n_a) + r(n_b), r(n) = ½ g(2n) − g(n), which it attains where the counts are equal.
    """

    def __init__(self, counts: Floats, evidence: DriftEvidence) -> None:
        self.counts, self.evidence = counts, evidence
        groups, variables = len(counts), len(evidence.family.variables)
        self.values, self.room = np.zeros((groups, variables)), np.zeros((groups, variables + 1))
        self.update(slice(None))

    def update(self, some: slice) -> None:
        """Bring the evidence of some groups up to date."""
        self.values[some] = self.evidence.of(self.counts[some])
        if self.evidence.family.is_categorical:
            room = 0.5 * self.evidence.of(2.0 * self.counts[some]) - self.values[some]
            self.room[some, :-1] = room[:, ::-1].cumsum(axis=1)[:, ::-1]

    def gains_above(
        self, one: int, others: Ints, start: Floats, floor: Floats, *, best_only: bool
    ) -> Floats:
        """Gains of joining one group with others, each with its `start` added: (other,).

        −inf for a gain below its floor, and with `best_only` maybe for one below the largest. Most
        pairs of categories are given up after a few variables.
        """
        family, groups = self.evidence.family, (self.counts, self.values, self.room)
        if family.is_categorical:
            prior = self.evidence.prior, family.starts
            return gains_above(groups, prior, one, others, start, floor, best_only)
        joint = self.evidence.of(self.counts[one] + self.counts[others])
        gains = start + (joint - (self.values[one] + self.values[others])).sum(axis=1)
        return np.where(gains < floor, -np.inf, gains)


def drift_evidence(clusters: LocalClusters, family: Product, kappa: Floats) -> DriftEvidence:
    """Evidence under drift at κ, with the spread of unrelated clusters learned.

    The local clusters are looked at one by one, each counting (clusters of its silo −
    1)/(clusters of its silo), so that a silo's only cluster, which may differ from others by drift
    alone, says nothing.
    """
    siblings = np.bincount(clusters.silo)[clusters.silo]
    counts = family.discount(clusters.counts, kappa)
    return DriftEvidence(family, kappa, family.unrelated(counts, (siblings - 1) / siblings))


@dataclass(frozen=True, eq=False)
class MatchingProblem:
    """Input of a matching, and the silos that it may ask.

    Attributes
    ----------
    releases : one from each silo, in the order of the roster.
    clusters : all their clusters.
    evidence : for clusters being the same, in `evidence.family`.
    start : (local,), groups to begin with: a silo's stray rows are in another cluster of that silo.
    silos : for questions.
    rng : the matching's randomness.
    """

    releases: Sequence[Release]
    clusters: LocalClusters
    evidence: DriftEvidence
    start: Ints
    silos: Silos
    rng: Rng

    @property
    def medians(self) -> list[Floats]:
        """Posterior medians of each silo's clusters: (cluster, parameter)."""
        return [release_medians(release, self.evidence.family) for release in self.releases]


class Judged(NamedTuple):
    """A grouping, the evidence that found it, and their log probability."""

    value: float
    groups: Ints
    evidence: DriftEvidence


def group_under_drift(
    clusters: LocalClusters, plain: DriftEvidence, find: Find
) -> tuple[Ints, DriftEvidence]:
    """Grouping that is most probable with its κ, and the evidence at that κ.

    A κ is judged by what its joins add to the log probability of all clusters standing alone, so
    that without a join no κ is better than another. Drift, over all its κ, must be more probable
    than none; and since it was looked for in all pairs of clusters, by a factor of their number.

    Parameters
    ----------
    clusters : all silos' clusters.
    plain : without drift.
    find : the grouping, (local,), under some evidence.
    """
    nowhere = np.full(len(plain.family.variables), np.inf)
    alike = drift_evidence(clusters, plain.family, nowhere)
    same = _judge(clusters, alike, find)
    drifting = [_best_at(clusters, alike, kappa, find) for kappa in KAPPAS]
    of_silo = np.bincount(clusters.silo)
    pairs = (of_silo.sum() ** 2 - (of_silo**2).sum()) // 2  # of clusters of different silos
    # the first join pays its own prior odds: they are not charged twice
    price = np.log(max(pairs, 1)) + drifting[0].evidence.log_join_odds
    # without a pair of silos the two are equal but for rounding
    drifts = logsumexp([found.value for found in drifting]) - price > same.value + TIE
    best = max(drifting, key=lambda found: found.value) if drifts else same
    return best.groups, best.evidence


def _best_at(clusters: LocalClusters, alike: DriftEvidence, kappa: float, find: Find) -> Judged:
    """Group with all variables drifting; then, as long as it helps, with those that do."""
    family = alike.family
    drifting = drift_evidence(clusters, family, np.full(len(family.variables), kappa))
    best = now = _judge(clusters, drifting, find)
    for _ in range(PASSES):
        gains = [gain_by_variable(clusters, now.groups, each) for each in (drifting, alike)]
        drifts = family.together(gains[0]) > family.together(gains[1])
        if not drifts.any() or np.array_equal(drifts, now.evidence.drifts):
            break
        chosen = np.repeat(drifts, family.conjugates)
        base = np.where(chosen, drifting.prior, alike.prior)
        some = replace(alike, kappa=np.where(drifts, kappa, np.inf), base=base)
        now = _judge(clusters, some, find)
        if now.value <= best.value:
            break
        best = now
    return best


def _judge(clusters: LocalClusters, evidence: DriftEvidence, find: Find) -> Judged:
    groups = find(evidence)
    prior = _log_prior(evidence.drifts[evidence.family.leads])
    return Judged(join_gain(clusters, groups, evidence) + prior, groups, evidence)


def _log_prior(drifts: Bools) -> float:
    """Log prior of which variables drift, (variable,), and how much.

    Half is on no drift at all, a quarter on drift in all variables; otherwise the share of
    variables that drift is uniform beforehand. The value they share is uniform on `KAPPAS`.
    """
    if not drifts.any():
        return float(np.log(0.5))
    pattern = 0.0 if drifts.all() else betaln(1 + drifts.sum(), 1 + (~drifts).sum())
    return float(np.log(0.25 / len(KAPPAS)) + pattern)


def join_gain(clusters: LocalClusters, groups: Ints, evidence: DriftEvidence) -> float:
    """Log probability of a grouping less that of every block by itself.

    A block is what clusters of one silo in one group add up to.
    """
    blocks = sum_blocks(clusters, np.arange(len(groups)), groups)
    members = np.bincount(blocks.group)
    members = members[members > 0]
    joins = members.sum() - len(members)
    prior = gammaln(members).sum() + joins * evidence.log_join_odds
    return float(gain_by_variable(clusters, groups, evidence).sum() + prior)


def gain_by_variable(clusters: LocalClusters, groups: Ints, evidence: DriftEvidence) -> Floats:
    """Evidence of the groups less that of their blocks: (variable,)."""
    blocks = sum_blocks(clusters, np.arange(len(groups)), groups)
    counts = evidence.discount(blocks.counts)
    together = sum_by(blocks.group, counts, int(blocks.group.max()) + 1)
    joined, apart = (evidence.of(sums).sum(axis=0) for sums in (together, counts))
    return joined - apart
