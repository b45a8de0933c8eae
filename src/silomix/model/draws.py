"""What the stages hand on: draws, partitions, correspondences, weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from silomix.model.prior import PooledModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from silomix.families.product import Product
    from silomix.kernels.arrays import Bools, Bytes, Floats, Ints, Singles
    from silomix.model.prior import Prior
    from silomix.model.schema import Shard


# Sweeps of a chain below which a silo does not look whether its chains agree. At half of it the six
# cells come out the same, but real records in four hospitals fall into a worse mode more often.
SHORTEST_BLOCK = 1_000


@dataclass(frozen=True)
class Schedule:
    """How long to sample and what to keep.

    The sweeps are numbered 1 … iterations; sweep i is kept when i > burn_in and i − burn_in is
    a multiple of `thin`.

    Attributes
    ----------
    adaptive : whether `iterations` is only the maximum: a silo may stop after one of the `blocks`.

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
    """What a person wants to know before trusting a run.

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
    probabilities : (draw, component, level), float32, columns as in `levels`.
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
        """The same under the silo's share of the prior, which the draws were made with."""
        return PooledModel(self.prior, self.family, self.seed).shared_family(self.silos)

    @property
    def components(self) -> int:
        """C⁺, the number of mixture components, empty ones included."""
        return int(self.weights.shape[1])

    @property
    def levels(self) -> list[tuple[str, str]]:
        """What the last axis of `probabilities` stands for: (variable, level)."""
        return self.shard.schema.levels


@dataclass(frozen=True, eq=False)
class Partition:
    """One clustering of the rows, read off the draws.

    Attributes
    ----------
    labels : (row,), 0 … k − 1, largest cluster first.
    sizes : (cluster,), rows in each.
    method : "linkage", "pam", or "given" by the caller.
    silhouettes : average silhouette width by number of clusters tried.
    subsample : rows that were clustered directly when the table was too long for an n × n
        matrix, None when all of them were.
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
    draws : what it was made from.

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
        """What the last axis of `probabilities` stands for: (variable, level)."""
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
        held = np.zeros((len(self.silos), self.clusters), dtype=bool)
        for silo, group in enumerate(self.groups):
            held[silo, group] = True
        return held

    @cached_property
    def rows(self) -> Floats:
        """Rows of each silo in each global cluster: (silo, cluster)."""
        each = zip(self.groups, self.sizes, strict=True)
        return np.array([np.bincount(group, sizes, self.clusters) for group, sizes in each])

    def pairs_confidence(self) -> list[Floats]:
        """Return, for each silo (local cluster,), its mean confidence with the rest of its group.

        The others count by their rows. For a cluster alone in its group it is one minus its
        largest confidence with any other; with a smaller one, times the ratio of their rows.
        """
        if self.confidence is None:
            return [np.full(len(group), np.nan) for group in self.groups]
        ids = np.concatenate(self.groups)
        rows = np.maximum(np.concatenate(self.sizes), 1).astype(np.float64)
        sure = np.ones(len(ids))
        for local in range(len(ids)):
            other = np.arange(len(ids)) != local
            mates = other & (ids == ids[local])
            if mates.any():
                sure[local] = np.average(self.confidence[local, mates], weights=rows[mates])
            elif other.any():
                share = np.minimum(1.0, rows[other] / rows[local])
                sure[local] = 1.0 - (self.confidence[local, other] * share).max()
        return np.split(sure, np.cumsum([len(group) for group in self.groups])[:-1])

    def cluster_confidence(self) -> Floats:
        """Return how sure the matching of each global cluster is, by rows: (cluster,)."""
        ids, rows = np.concatenate(self.groups), np.maximum(np.concatenate(self.sizes), 1)
        sure = np.concatenate(self.pairs_confidence())
        return np.bincount(ids, weights=rows * sure) / np.bincount(ids, weights=rows)


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

    def some(self, first: int, last: int) -> MatchedDraws:
        """Return the draws from `first` up to, without `last`: random ones, as their order is."""
        some = slice(first, last)
        return MatchedDraws(self.weights[:, some], self.parameters[:, some], self.held)


@dataclass(frozen=True, eq=False)
class SiloProfiles:
    """How each silo's profiles differ from the shared ones (drift).

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
    """How much each silo counts in the aggregation.

    Attributes
    ----------
    silos : names, in the order of the roster.
    weights : (silo,), λ: the silos' say in the global cluster weights; sums to one.
    profiles : (silo, cluster), μ: their say in each cluster's profile; columns sum to one, zero
        where the silo lacks the cluster.
    """

    silos: tuple[str, ...]
    weights: Floats
    profiles: Floats
