"""Posterior similarity of rows, and overlap of components with clusters, over many draws.

Their definitions in plain NumPy, in the tests, give the same numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from silomix.kernels.arrays import Array, Bytes, Codes, Floats, Ints
from silomix.kernels.reproducible import kernel
from silomix.kernels.vector_instructions import COMPARED, count_equal

# most draws that a one-byte counter can count
BYTE = 255

# rows compared at a time: BYTE draws of them fit the first-level cache
TILE = COMPARED


def co_clustering(labels: Bytes) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Number of draws in which two rows are in the same component.

    Parameters
    ----------
    labels : (draw, row), the component of each row; may be a memory map, read in order.

    Returns
    -------
    (row, row), symmetric, the number of draws on the diagonal; two bytes a cell, four from
    65,536 draws on.
    """
    draws, rows = labels.shape
    together = np.zeros((rows, rows), dtype=np.uint16 if draws < 2**16 else np.uint32)
    for start in range(0, draws, BYTE):
        count_together(np.ascontiguousarray(labels[start : start + BYTE], np.uint8), together)
    for first in range(0, rows, TILE):
        tile = slice(first, first + TILE)
        together[first:, tile] = together[tile, first:].T
    return together


@kernel
def count_together(labels: Bytes, together: Array) -> None:
    """Add at most `BYTE` draws to the counts in `together` on and above its diagonal tiles.

    Parameters
    ----------
    labels : in, (draw, row).
    together : in and out, (row, row).
    """
    draws, rows = labels.shape
    by_row, tile = labels.T.copy(), np.zeros((draws, TILE), dtype=np.uint8)
    counts = np.empty(TILE, dtype=np.uint8)
    for start in range(0, rows, TILE):
        stop = min(start + TILE, rows)
        tile[:, : stop - start] = labels[:, start:stop]
        for row in range(stop):
            count_equal(tile, by_row[row], counts)
            cells = together[row, start:stop]
            for column in range(cells.size):
                cells[column] += counts[column]


@kernel
def sum_by_cluster(distances: Codes, clusters: Ints, n_clusters: int) -> Ints:
    """Sum of each row's distances to the members of each cluster.

    Whole numbers, so that the sums are exact and comparisons do not depend on rounding.

    Parameters
    ----------
    distances : (row, row).
    clusters : (row,), the cluster of each row, 0 … n_clusters − 1.
    n_clusters : the number of clusters.

    Returns
    -------
    (row, cluster)
    """
    rows = distances.shape[0]
    sums = np.zeros((rows, n_clusters), dtype=np.int64)
    for row in range(rows):
        sums_of_row = sums[row]
        from_row = distances[row]
        for other in range(rows):
            sums_of_row[clusters[other]] += from_row[other]
    return sums


@kernel
def contingency(
    labels: Bytes, clusters: Ints, components: int, n_clusters: int
) -> NDArray[np.int32]:
    """Contingency table of components and clusters, draw by draw.

    Parameters
    ----------
    labels : (draw, row), the component of each row.
    clusters : (row,), the cluster of each row, 0 … n_clusters − 1.
    components, n_clusters : the number of each, empty ones included.

    Returns
    -------
    (draw, component, cluster), rows.
    """
    draws, rows = labels.shape
    overlap = np.zeros((draws, components, n_clusters), dtype=np.int32)
    for draw in range(draws):
        table = overlap[draw]
        for row in range(rows):
            table[labels[draw, row], clusters[row]] += 1
    return overlap


@kernel
def add_support(labels: Bytes, share: Floats, support: Floats) -> None:
    """Add to each row's support the clusters' shares of its component, draw by draw.

    Parameters
    ----------
    labels : in, (draw, row).
    share : in, (draw, component, cluster).
    support : in and out, (row, cluster).
    """
    draws, rows = labels.shape
    for row in range(rows):
        support_of_row = support[row]
        for draw in range(draws):
            shares = share[draw, labels[draw, row]]
            for cluster in range(support_of_row.size):
                support_of_row[cluster] += shares[cluster]
