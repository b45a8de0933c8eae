"""All silos' local clusters in one list, and sums over those that share a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints
    from silomix.messages import Release


@dataclass(frozen=True, eq=False)
class LocalClusters:
    """All silos' local clusters, one after the other in the order of the roster.

    Attributes
    ----------
    names : of the silos.
    silo : (local,), place in `names` of the silo each cluster is of.
    sizes : (local,), its rows.
    counts : (local, level), its effective counts.
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


def local_clusters(releases: Sequence[Release]) -> LocalClusters:
    """List the local clusters of all releases."""
    return LocalClusters(
        names=tuple(release.silo for release in releases),
        silo=np.repeat(np.arange(len(releases)), [release.clusters for release in releases]),
        sizes=np.concatenate([release.sizes for release in releases]),
        counts=np.concatenate([release.effective_counts for release in releases]),
    )


def by_appearance(ids: Ints) -> Ints:
    """Return ids numbered anew, 0, 1, …, in the order in which they first appear."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


@dataclass(frozen=True, eq=False)
class Blocks:
    """What clusters of one silo in one group add up to: they drift together.

    Attributes
    ----------
    block : (local,), numbered in the order in which they first appear.
    silo, group : (block,)
    counts : (block, level), effective counts as they are.
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
    counts = np.zeros((len(first), clusters.counts.shape[1]))
    np.add.at(counts, block, clusters.counts[order])
    return Blocks(block, silo[first], groups[first], counts)
