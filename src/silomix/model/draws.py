"""Records that the stages pass on: draws, partitions, correspondences, silo weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from silomix.model.schema import PooledModel, Prior, Shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from silomix.families.product import Product
    from silomix.kernels.arrays import Array, Bools, Bytes, Floats, Ints, Reals, Singles


# Minimum sweeps before a silo checks whether its chains agree. With half as many, the six simulated
# designs give the same results, but one real data set ended more often in a worse mode.
SHORTEST_BLOCK = 1_000

# Kept memberships are whole multiples of one over this.
PARTS = 10_000


@dataclass(frozen=True)
class Schedule:
    """Length of the sampling, burn-in and thinning.

    The sweeps are numbered 1 … iterations; sweep i is kept when i > burn_in and i − burn_in is
    a multiple of `thin`.

    Attributes
    ----------
    adaptive : whether a silo may stop before `iterations`, after one of the `blocks`.

    Examples
    --------
    >>> silomix.Schedule(iterations=1000, burn_in=500, thin=5).kept
    100
    >>> [block.iterations for block in silomix.Schedule(adaptive=True).blocks]
    [1250, 2500, 5000, 10000, 20000]
    """

    iterations: int = 20_000
    burn_in: int = 10_000
    chains: int = 2
    thin: int = 10
    adaptive: bool = False

    @property
    def kept(self) -> int:
        """Draws kept per chain."""
        return (self.iterations - self.burn_in) // self.thin

    @property
    def blocks(self) -> tuple[Schedule, ...]:
        """The fixed schedules to try in turn; the last is the longest.

        Each is twice as long as the one before and drops all of it as burn-in, so a chain that
        goes on from the end of one block has the draws of the next.
        """
        whole = replace(self, adaptive=False)
        half = self.iterations // 2
        if not self.adaptive or half < SHORTEST_BLOCK:
            return (whole,)
        burn_in = half // 2
        thin = max(1, (half - burn_in) // self.kept)
        shorter = replace(self, iterations=half, burn_in=burn_in, thin=thin)
        return (*shorter.blocks, whole)


@dataclass(frozen=True)
class Trace:
    """One label-invariant quantity along the kept draws, and how well it mixed.

    Attributes
    ----------
    values : (chain, draw).
    rhat, ess : rank-normalised split R-hat and bulk effective sample size; nan when constant.
    """

    values: Floats
    rhat: float
    ess: float


@dataclass(frozen=True)
class Diagnostics:
    """Convergence diagnostics of a run.

    Attributes
    ----------
    traces : by name: log_likelihood, occupied, largest_weight, allocation_entropy.
    trusted : whether every trace mixed.
    verdict : one plain sentence.

    Examples
    --------
    >>> draws.diagnostics.trusted
    True
    >>> sorted(draws.diagnostics.traces)
    ['allocation_entropy', 'largest_weight', 'log_likelihood', 'occupied']
    """

    traces: Mapping[str, Trace]
    trusted: bool
    verdict: str


@dataclass(frozen=True, eq=False)
class Draws:
    """Kept draws of one silo's posterior, chains one after the other. They never leave it.

    Attributes
    ----------
    shard : the rows that were sampled.
    labels : (draw, row), the component of each row.
    weights : (draw, component), float32.
    probabilities : (draw, component, parameter), float32: of categories the probabilities of the
        levels, columns as in `levels`.
    log_likelihood : (draw,), float64: log p(rows | weights, probabilities) of that draw, the
        labels summed out.
    chain : (draw,), the chain each draw came from.
    last_states : (chain, byte), from which a chain can go on: the labels after the last sweep, and
        the bytes of what else was drawn for the rows.
    prior, silos, seed, schedule : how they were made.
    diagnostics : whether to trust them.

    Examples
    --------
    >>> draws.components, draws.probabilities.shape, draws.levels[0]
    (8, (1000, 8, 26), ('x1', '1'))
    """

    shard: Shard
    labels: Bytes
    weights: Singles
    probabilities: Singles
    log_likelihood: Floats
    chain: Ints
    last_states: Bytes
    prior: Prior
    silos: int
    seed: int
    schedule: Schedule
    diagnostics: Diagnostics

    @cached_property
    def family(self) -> Product:
        """The family of the variables, under the prior of the pooled model."""
        from silomix.families import make_family

        return make_family(self.shard.schema, self.prior)

    @property
    def silo_family(self) -> Product:
        """The same under the silo's share of the prior, with which it sampled."""
        return PooledModel(self.prior, self.family, self.seed).shared_family(self.silos)

    @property
    def components(self) -> int:
        """C⁺, the number of mixture components, empty ones included."""
        return int(self.weights.shape[1])

    @property
    def levels(self) -> list[tuple[str, str]]:
        """(variable, level) of each place of the last axis of `probabilities`."""
        return self.shard.schema.levels


@dataclass(frozen=True, eq=False)
class Partition:
    """One clustering of the rows, derived from the draws.

    Attributes
    ----------
    labels : (row,), 0 … k − 1, largest cluster first.
    sizes : (cluster,), rows in each.
    method : "linkage", "pam", or "given" by the caller.
    silhouettes : average silhouette width by number of clusters tried.
    subsample : number of rows that were clustered directly when the table was too long for an
        n × n matrix; None when all of them were.
    agreement : adjusted Rand index of the partitions that the chains give each on its own
        (`silo.partition.chain_agreement`); 1 for one chain, one cluster, or a given partition.

    Examples
    --------
    >>> partition = silomix.local_posterior(draws).partition
    >>> partition.method, partition.clusters, int(partition.sizes.sum())
    ('linkage', 5, 200)
    """

    labels: Ints
    sizes: Ints
    method: str
    silhouettes: Mapping[int, float] = field(default_factory=dict)
    subsample: int | None = None
    agreement: float = 1.0

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return len(self.sizes)


@dataclass(frozen=True, eq=False)
class LocalPosterior:
    """One silo's draws, relabelled so that cluster k means the same in every draw.

    Attributes
    ----------
    weights : (draw, cluster), each draw sums to one.
    probabilities : (draw, cluster, level), columns as in `levels`.
    partition : the clustering the draws follow.
    relabel : "match" or "average".
    prior_draws : (cluster,), share of the draws in which the cluster had to take an empty
        component, whose parameters come from the prior (zero under "average").
    memberships : (row, cluster), share of the draws in which the row sat in the cluster's
        component; a row in components without a cluster adds up to less than one.
    draws : the draws that were relabelled.

    Examples
    --------
    >>> local = silomix.local_posterior(draws)
    >>> local.probabilities.shape, local.relabel
    ((1000, 5, 26), 'match')
    """

    weights: Singles
    probabilities: Singles
    partition: Partition
    relabel: str
    prior_draws: Floats
    memberships: Floats
    draws: Draws

    @property
    def sizes(self) -> Ints:
        """Rows in each cluster."""
        return self.partition.sizes

    @property
    def levels(self) -> list[tuple[str, str]]:
        """(variable, level) of each place of the last axis of `probabilities`."""
        return self.draws.levels


@dataclass(frozen=True, eq=False)
class Correspondence:
    """Which local clusters of which silos are the same global cluster.

    Attributes
    ----------
    silos : names, in the order of the roster.
    groups : for each silo (local cluster,), the global cluster it belongs to, 0 … G − 1; the
        global cluster with most rows comes first.
    sizes : for each silo (local cluster,), its rows.
    method : the matching that found it.
    confidence : (local cluster, local cluster) over all silos' local clusters in roster order:
        how often the two share a group when the grouping is sampled; None if not computed.
    """

    silos: tuple[str, ...]
    groups: tuple[Ints, ...]
    sizes: tuple[Ints, ...]
    method: str
    confidence: Floats | None = None

    @cached_property
    def clusters(self) -> int:
        """G, the number of global clusters."""
        return 1 + max(int(group.max()) for group in self.groups)

    @cached_property
    def held(self) -> Bools:
        """Whether a silo holds a global cluster: (silo, cluster)."""
        is_held = np.zeros((len(self.silos), self.clusters), dtype=bool)
        for silo, group in enumerate(self.groups):
            is_held[silo, group] = True
        return is_held

    @cached_property
    def rows(self) -> Floats:
        """Rows of each silo in each global cluster: (silo, cluster)."""
        pairs = zip(self.groups, self.sizes, strict=True)
        return np.array([np.bincount(group, sizes, self.clusters) for group, sizes in pairs])

    def pairs_confidence(self) -> list[Floats]:
        """Mean confidence of each local cluster with its group: by silo, (local cluster,).

        The mean is weighted by rows. A cluster alone in its group has one minus its largest
        confidence with any other cluster; that with a smaller one is multiplied by the ratio of
        their rows.
        """
        if self.confidence is None:
            return [np.full(len(group), np.nan) for group in self.groups]
        ids = np.concatenate(self.groups)
        rows = np.maximum(np.concatenate(self.sizes), 1).astype(np.float64)
        confidence = np.ones(len(ids))
        for local in range(len(ids)):
            others = np.arange(len(ids)) != local
            mates = others & (ids == ids[local])
            if mates.any():
                confidence[local] = np.average(self.confidence[local, mates], weights=rows[mates])
            elif others.any():
                share = np.minimum(1.0, rows[others] / rows[local])
                confidence[local] = 1.0 - (self.confidence[local, others] * share).max()
        return np.split(confidence, np.cumsum([len(group) for group in self.groups])[:-1])

    def cluster_confidence(self) -> Floats:
        """Confidence of each global cluster, averaged over its rows: (cluster,)."""
        ids, rows = np.concatenate(self.groups), np.maximum(np.concatenate(self.sizes), 1)
        confidence = np.concatenate(self.pairs_confidence())
        return np.bincount(ids, weights=rows * confidence) / np.bincount(ids, weights=rows)


@dataclass(frozen=True, eq=False)
class MatchedDraws:
    """The silos' draws in the global clusters' terms, draw t of one silo unrelated to t of another.

    Attributes
    ----------
    weights : (silo, draw, cluster), zero where the silo lacks the cluster.
    parameters : (silo, draw, cluster, parameter); where the silo lacks the cluster, zeros.
    held : (silo, cluster), True where the silo has the cluster.
    """

    weights: Floats
    parameters: Floats
    held: Bools

    def some(self, start: int, stop: int) -> MatchedDraws:
        """Draws `start` to before `stop`; a random subset, since the order is random."""
        chosen = slice(start, stop)
        return MatchedDraws(self.weights[:, chosen], self.parameters[:, chosen], self.held)


@dataclass(frozen=True, eq=False)
class SiloProfiles:
    """The silos' own profiles, around the shared ones (drift).

    A silo's profile of a cluster is Dirichlet(κ_q m_c) around the shared profile m_c, variable by
    variable: the larger κ_q, the more alike the silos are; at infinity they are the same.

    Attributes
    ----------
    kappa : (draw, variable), κ_q; one draw, a point value, where no polish sampled it.
    parameters : (silo draw, silo, cluster, parameter), each silo's own profiles. They belong to the
        posterior's last draws, not to all of them: its weights and its shared profiles at
        `[-len(parameters):]`.
    """

    kappa: Floats
    parameters: Singles


@dataclass(frozen=True, eq=False)
class SiloWeights:
    """Influence of each silo on the aggregation.

    Attributes
    ----------
    silos : names, in the order of the roster.
    weights : (silo,), λ: each silo's influence on the global cluster weights; sums to one.
    profiles : (silo, cluster), μ: their influence on each cluster's profile; columns sum to one,
        zero where the silo lacks the cluster.
    """

    silos: tuple[str, ...]
    weights: Floats
    profiles: Floats


def to_four_decimals(membership: Reals) -> Singles:
    """Probabilities as they are kept, rounded by less than their Monte Carlo error."""
    return from_parts(in_parts(membership))


def in_parts(membership: Reals) -> NDArray[np.uint16]:
    """Probabilities as multiples of 1/`PARTS`."""
    return np.rint(membership.astype(np.float64) * PARTS).astype(np.uint16)


def from_parts(parts: Array) -> Singles:
    """Probabilities from multiples of 1/`PARTS`."""
    return np.divide(parts, PARTS, dtype=np.float32)
