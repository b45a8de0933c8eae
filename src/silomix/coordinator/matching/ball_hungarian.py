"""Matchings by the distance of the clusters' medians: balls, and one to one with a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints
    from silomix.messages import Release
    from silomix.study.settings import Ball

# clusters whose distances to all others are in memory at a time
BLOCK = 1000


def ball_groups(releases: Sequence[Release], offsets: Ints, settings: Ball) -> Ints:
    """Return the connected components of the graph of close clusters: (local,).

    Ball matching (Fendler et al., 2026, algorithm 2). An edge needs one cluster inside the
    other's ball, not both: the algorithm as printed adds an edge for each direction. Clusters
    of one silo may be connected too. The last level of each variable is dropped, as in the
    paper, so with three levels or more the answer depends on their order.

    Parameters
    ----------
    releases : one from each silo, in the order of the roster.
    offsets : (variable + 1,), where each variable's levels start.
    settings : one radius for every cluster, or the exponent of the radius (log n_s / n_s)^exponent
        of a silo's clusters: 1/4 for an over-fitted mixture, 1/2 for a finite one. A silo of one
        row has radius 0: its cluster is matched only if it lies in another's ball.
    """
    points = np.concatenate([free_coordinates(r.medians, offsets) for r in releases])
    if settings.radius is None:
        rows = np.array([release.rows for release in releases], dtype=np.float64)
        radii = (np.log(rows) / rows) ** settings.exponent
        return components(points, np.repeat(radii, [release.clusters for release in releases]))
    return components(points, np.full(len(points), settings.radius))


def free_coordinates(medians: Floats, offsets: Ints) -> Floats:
    """Return (cluster, Σ(K_q − 1)): the medians without the last level of each variable."""
    return np.delete(medians, offsets[1:] - 1, axis=1)


def components(points: Floats, radii: Floats) -> Ints:
    """Return the component of each point, joined to all points nearer than either's radius.

    Parameters
    ----------
    points : (point, coordinate); radii : (point,)
    """
    edges = []
    for start in range(0, len(points), BLOCK):
        some = slice(start, start + BLOCK)
        reach = np.maximum(radii[some, None], radii)
        near, far = np.nonzero(cdist(points[some], points) < reach)
        edges.append(np.stack([near + start, far]))
    ends = np.concatenate(edges, axis=1)
    graph = coo_array((np.ones(ends.shape[1], dtype=np.int8), tuple(ends)), (len(points),) * 2)
    return connected_components(graph, directed=False)[1].astype(np.int64)


def hungarian_groups(releases: Sequence[Release]) -> Ints:
    """Assign clusters to a reference silo's so that the medians' distance is least: (local,).

    Fendler et al. (2026), section "Cluster matching", after Rabinovich, Angelino and Jordan
    (2015): Euclidean distance over all ΣK_q coordinates. As many clusters as possible are
    matched, however far apart: where no silo holds every cluster it cannot be right. The
    reference is the silo with most clusters, then most rows, then first in the roster.
    """
    medians = max(releases, key=lambda release: (release.clusters, release.rows)).medians
    pairs = [linear_sum_assignment(cdist(release.medians, medians)) for release in releases]
    return np.concatenate([reference for _, reference in pairs])
