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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import betaln, gammaln, logsumexp

from silomix.coordinator.matching import generic_grouping
from silomix.families.dirichlet import sum_by
from silomix.kernels import grouping
from silomix.kernels.arrays import Bools, Floats, Ints, Rng
from silomix.messages.released_draws import release_medians

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from silomix.families.product import Product
    from silomix.messages import Release, Silos

    Find = Callable[["Profile"], Ints]

# prior odds of joining under drift, where unlike clusters join more easily, in those without
JOIN_ODDS = 0.5
# the values that drifting variables may share
KAPPAS = np.geomspace(10.0, 1000.0, 8)
TIE = 1e-9
# how often to look again which variables drift, and to group again
PASSES = 2
# with more, the confidence is not computed
MOST_LOCAL_CLUSTERS = 2000
# sweeps dropped, and sweeps counted
BURN_IN, SWEEPS = 50, 250


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
        """Return the clusters sorted by silo name, then by what is in them: (local,).

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


def by_appearance(ids: Ints) -> Ints:
    """Return ids numbered anew, 0, 1, …, in the order in which they first appear."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


class Blocks(NamedTuple):
    """What clusters of one silo in one group add up to: they drift together.

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
class Profile:
    """How what clusters add up to becomes evidence.

    Attributes
    ----------
    family : under the prior of the pooled model.
    kappa : (variable,), how alike the silos' parameters are; the same everywhere when left out.
    base : (coordinate,), χ of the prior of a cluster's shared parameters, if it is another.
    """

    family: Product
    kappa: Floats | None = None
    base: Floats | None = None

    def evidence(self, statistics: Floats) -> Floats:
        """Return ln p of each group, from discounted sums: (..., variable)."""
        return self.family.log_evidence(statistics, self.base)

    def discount(self, statistics: Floats) -> Floats:
        """Return what sums of one silo say of the shared parameters: (..., statistic)."""
        return statistics if self.kappa is None else self.family.discount(statistics, self.kappa)

    def remainder(self, statistics: Floats) -> Floats:
        """Return what discounting leaves out of the log probability of the rows: (...,)."""
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
        """What each join adds to the log prior of a grouping."""
        return float(np.log(JOIN_ODDS)) if self.drifts.any() else 0.0

    def weigh(self, counts: Floats) -> tuple[ModuleType, Any]:
        """Return what scores groups, compiled where it can be, and the groups as it takes them.

        Parameters
        ----------
        counts : (group, statistic), discounted; joining two changes them in place.
        """
        evidence = np.zeros((len(counts), len(self.family.variables)))
        if not self.family.is_categorical:
            return generic_grouping, generic_grouping.Weighed(counts, evidence, self.evidence)
        starts = self.family.starts
        room = np.zeros((len(counts), len(starts)))
        return grouping, grouping.Weighed(counts, evidence, room, self.prior, starts)

    def sample_groupings(self, counts: Floats, silo: Ints, *how: Any) -> Ints:
        """Count how often two blocks share a group, over sampled groupings: (block, block).

        Parameters
        ----------
        counts : (block, statistic), discounted; silo : (block,), numbered without gaps.
        how : the groups to begin with, sweeps to drop and to count, and the randomness.
        """
        given, odds = (counts, silo), self.log_join_odds
        if not self.family.is_categorical:
            each = generic_grouping.Blocks(*given, self.evidence, odds)
            return generic_grouping.sample_groupings(each, *how)
        alone, starts = self.evidence(counts).sum(axis=1), self.family.starts
        blocks = grouping.Blocks(*given, alone, self.prior, starts, odds)
        return grouping.sample_groupings(blocks, *how)


def drift_profile(clusters: LocalClusters, family: Product, kappa: Floats) -> Profile:
    """Return the evidence under drift at κ, with the spread of unrelated clusters learned.

    The local clusters are looked at one by one, each counting (clusters of its silo −
    1)/(clusters of its silo), so that a silo's only cluster, which may differ from others by drift
    alone, says nothing.
    """
    siblings = np.bincount(clusters.silo)[clusters.silo]
    counts = family.discount(clusters.counts, kappa)
    return Profile(family, kappa, family.unrelated(counts, (siblings - 1) / siblings))


@dataclass(frozen=True, eq=False)
class MatchingProblem:
    """What a matching may look at, and ask.

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
    evidence: Profile
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
    profile: Profile


def group_under_drift(clusters: LocalClusters, plain: Profile, find: Find) -> tuple[Ints, Profile]:
    """Return the grouping that is most probable with its κ, and the evidence at that κ.

    A κ is judged by what its joins add to the log probability of all clusters standing alone, so
    that without a join no κ is better than another. Drift, over all its κ, must be more probable
    than none; and since it was looked for in all pairs of clusters, by a factor of their number.

    Parameters
    ----------
    clusters : all silos' clusters.
    plain : without drift.
    find : the grouping, (local,), under a profile's evidence.
    """
    nowhere = np.full(len(plain.family.variables), np.inf)
    alike = drift_profile(clusters, plain.family, nowhere)
    same = _judge(clusters, alike, find)
    drifting = [_best_at(clusters, alike, kappa, find) for kappa in KAPPAS]
    of_silo = np.bincount(clusters.silo)
    pairs = (of_silo.sum() ** 2 - (of_silo**2).sum()) // 2  # of clusters of different silos
    # the first join pays its own prior odds: they are not charged twice
    price = np.log(max(pairs, 1)) + drifting[0].profile.log_join_odds
    # without a pair of silos the two are equal but for rounding
    drifts = logsumexp([found.value for found in drifting]) - price > same.value + TIE
    best = max(drifting, key=lambda found: found.value) if drifts else same
    return best.groups, best.profile


def _best_at(clusters: LocalClusters, alike: Profile, kappa: float, find: Find) -> Judged:
    """Group with all variables drifting; then, as long as it helps, with those that do."""
    family = alike.family
    drifting = drift_profile(clusters, family, np.full(len(family.variables), kappa))
    best = now = _judge(clusters, drifting, find)
    for _ in range(PASSES):
        gains = [gain_by_variable(clusters, now.groups, each) for each in (drifting, alike)]
        drifts = family.together(gains[0]) > family.together(gains[1])
        if not drifts.any() or np.array_equal(drifts, now.profile.drifts):
            break
        chosen = np.repeat(drifts, family.conjugates)
        base = np.where(chosen, drifting.prior, alike.prior)
        some = replace(alike, kappa=np.where(drifts, kappa, np.inf), base=base)
        now = _judge(clusters, some, find)
        if now.value <= best.value:
            break
        best = now
    return best


def _judge(clusters: LocalClusters, profile: Profile, find: Find) -> Judged:
    groups = find(profile)
    value = join_gain(clusters, groups, profile) + _log_prior(profile.drifts[profile.family.leads])
    return Judged(value, groups, profile)


def _log_prior(drifts: Bools) -> float:
    """Return the log prior of which variables drift, (variable,), and how much.

    Half is on no drift at all, a quarter on drift in all variables; otherwise the share of
    variables that drift is uniform beforehand. The value they share is uniform on `KAPPAS`.
    """
    if not drifts.any():
        return float(np.log(0.5))
    pattern = 0.0 if drifts.all() else betaln(1 + drifts.sum(), 1 + (~drifts).sum())
    return float(np.log(0.25 / len(KAPPAS)) + pattern)


def join_gain(clusters: LocalClusters, groups: Ints, profile: Profile) -> float:
    """Return the log probability of a grouping less that of every block by itself.

    A block is what clusters of one silo in one group add up to.
    """
    blocks = sum_blocks(clusters, np.arange(len(groups)), groups)
    members = np.bincount(blocks.group)
    members = members[members > 0]
    joins = members.sum() - len(members)
    prior = gammaln(members).sum() + joins * profile.log_join_odds
    return float(gain_by_variable(clusters, groups, profile).sum() + prior)


def gain_by_variable(clusters: LocalClusters, groups: Ints, profile: Profile) -> Floats:
    """Return the evidence of the groups less that of their blocks: (variable,)."""
    blocks = sum_blocks(clusters, np.arange(len(groups)), groups)
    counts = profile.discount(blocks.counts)
    together = sum_by(blocks.group, counts, int(blocks.group.max()) + 1)
    joined, apart = (profile.evidence(sums).sum(axis=0) for sums in (together, counts))
    return joined - apart


def co_occurrence(
    clusters: LocalClusters, groups: Ints, profile: Profile, rng: Rng, sweeps: int = SWEEPS
) -> Floats:
    """Return how often each two local clusters share a group, over sampled groupings.

    Block Gibbs over the local clusters (the merge step of SNOB: Zuanetti et al., 2019), which
    starts from `groups`. A grouping's probability is proportional to the product over its
    groups of Γ(blocks in it) and their profile evidence, as in `evidence_groups`; no group has
    two blocks of one silo. Clusters of one silo that share a group in `groups` were put
    there on purpose and stay together.

    Parameters
    ----------
    clusters : all silos' clusters.
    groups : (local,)
    profile : how counts become evidence.
    rng : the chain's randomness.
    sweeps : how many to count, after the burn-in.

    Returns
    -------
    (local, local), ones on the diagonal.
    """
    order = clusters.canonical_order()
    found = sum_blocks(clusters, order, by_appearance(groups[order]))
    counts, silo = profile.discount(found.counts), by_appearance(found.silo)
    together = profile.sample_groupings(counts, silo, found.group, BURN_IN, sweeps, rng) / sweeps
    of_local = np.empty(len(order), dtype=np.int64)
    of_local[order] = found.block
    return together[np.ix_(of_local, of_local)]
