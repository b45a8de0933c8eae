"""Initial labels of chains with as many components as clusters.

From random labels such a chain often gets stuck where one component holds two clusters and another
a stray row; a mixture with spare components escapes from there. So each chain first runs for a
while with several times as many components under the same prior, few of which empty; then these
are merged greedily, the pair first whose merger leaves log p(rows, labels) largest, until as many
are left as there are clusters. Initial labels do not change the posterior.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from silomix.families.rows import Rows
from silomix.model.draws import Schedule
from silomix.silo.sampler import Job, sample_shard

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Bytes, Floats
    from silomix.model.schema import Shard

# components for each cluster, but never more than a byte can number
TIMES_AS_MANY, MOST_COMPONENTS = 3, 255
# after only 100 sweeps, some chains have not yet separated overlapping clusters
SWEEPS = 600
# stream of random numbers of these draws, different from that of the chains they start
STREAM = 0x6B6E77


def starting_labels(shard: Shard, job: Job, threads: int) -> Bytes:
    """Initial labels of each chain of a job: (chain, row)."""
    schedule = Schedule(SWEEPS, SWEEPS - 1, job.schedule.chains, 1, adaptive=False)
    many = replace(
        job, components=min(TIMES_AS_MANY * job.components, MOST_COMPONENTS), schedule=schedule
    )
    draws = sample_shard(shard, replace(many, seed=job.seed ^ STREAM), threads=threads)
    rows = Rows(shard, draws.silo_family)
    options = job.components, rows, job.prior.alpha
    joined = [join_components(labels, *options) for labels in draws.labels]
    return np.array(joined, dtype=np.uint8)


def join_components(labels: Bytes, clusters: int, rows: Rows, alpha: float) -> Array:
    """Merge components, (row,), until `clusters` hold rows: (row,), numbered from 0."""
    _, merged, members = np.unique(labels, return_inverse=True, return_counts=True)
    sums = rows.sum_statistics(merged, len(members))

    def score(members: Array, sums: Array) -> Floats:
        """Contribution of components to log p(rows, labels): (...,)."""
        evidence = rows.family.log_evidence(sums).sum(axis=-1)
        return np.asarray(evidence + gammaln(alpha + members) - gammaln(alpha))

    while len(members) > clusters:
        a, b = np.array(list(combinations(range(len(members)), 2))).T
        single = score(members, sums)
        joint = score(members[a] + members[b], sums[a] + sums[b])
        best = np.argmax(joint - single[a] - single[b])
        target, gone = a[best], b[best]
        members[target] += members[gone]
        sums[target] += sums[gone]
        members, sums = np.delete(members, gone), np.delete(sums, gone, axis=0)
        merged = np.where(merged == gone, target, merged - (merged > gone))
    return merged
