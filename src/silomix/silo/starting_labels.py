"""Where chains begin that have as many components as there are clusters, and none to spare.

From labels at random such a chain often rests where a component holds two clusters and another a
stray row: a mixture with spare components gets out of there, one without does not. So each chain
first runs a while with some times as many components under the same prior, few of which empty; then
these are joined, the pair first whose joining leaves log p(rows, labels) largest, until as many are
left as there are clusters. What is sampled is not changed by where a chain begins.
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
# after 100 sweeps, some chains on clusters that overlap have not found them
SWEEPS = 600
# sets the draws here apart from those of the chains that begin where they end
STREAM = 0x6B6E77


def starting_labels(shard: Shard, job: Job, threads: int) -> Bytes:
    """Return labels for each chain of a job to begin with: (chain, row)."""
    schedule = Schedule(SWEEPS, SWEEPS - 1, job.schedule.chains, 1, adaptive=False)
    many = replace(
        job, components=min(TIMES_AS_MANY * job.components, MOST_COMPONENTS), schedule=schedule
    )
    draws = sample_shard(shard, replace(many, seed=job.seed ^ STREAM), threads=threads)
    rows = Rows(shard, draws.silo_family)
    how = job.components, rows, job.prior.alpha
    found = [join_components(labels, *how) for labels in draws.labels]
    return np.array(found, dtype=np.uint8)


def join_components(labels: Bytes, clusters: int, rows: Rows, alpha: float) -> Array:
    """Join components, (row,), until so many hold rows: (row,), numbered from 0."""
    _, found, members = np.unique(labels, return_inverse=True, return_counts=True)
    sums = rows.sum_statistics(found, len(members))

    def score(members: Array, sums: Array) -> Floats:
        """Return what components add to log p(rows, labels): (...,)."""
        evidence = rows.family.log_evidence(sums).sum(axis=-1)
        return np.asarray(evidence + gammaln(alpha + members) - gammaln(alpha))

    while len(members) > clusters:
        one, other = np.array(list(combinations(range(len(members)), 2))).T
        apart = score(members, sums)
        joint = score(members[one] + members[other], sums[one] + sums[other])
        best = np.argmax(joint - apart[one] - apart[other])
        kept, gone = one[best], other[best]
        members[kept] += members[gone]
        sums[kept] += sums[gone]
        members, sums = np.delete(members, gone), np.delete(sums, gone, axis=0)
        found = np.where(found == gone, kept, found - (found > gone))
    return found
