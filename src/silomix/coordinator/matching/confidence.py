"""How sure the grouping is: sample groupings from their evidence, count who shares a group."""

from __future__ import annotations

import numpy as np

from silomix.coordinator.matching.evidence import LocalClusters, Profile, by_appearance, sum_blocks
from silomix.kernels.arrays import Floats, Ints, Rng

# with more, the confidence is not computed
MOST_LOCAL_CLUSTERS = 2000
# sweeps dropped, and sweeps counted
BURN_IN, SWEEPS = 50, 250


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
