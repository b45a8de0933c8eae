"""Connect clusters whose medians are closer than a radius."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from silomix.matching.records import MatchingInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from silomix.release import Release

    Distance = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]

BLOCK = 1000
"""Clusters whose distances to all others are in memory at a time."""


def ball_groups(
    releases: Sequence[Release],
    offsets: NDArray[np.int64],
    *,
    exponent: float = 0.25,
    radius: float | None = None,
    distance: Distance = cdist,
) -> tuple[NDArray[np.int64], MatchingInfo]:
    """Return the connected components of the graph of close clusters.

    Ball matching (Fendler et al., 2026, algorithm 2). An edge needs one cluster inside the
    other's ball, not both: the algorithm as printed adds an edge for each direction. Clusters
    of one silo may be connected too. The last level of each variable is dropped, as in the
    paper, so with three levels or more the answer depends on their order.

    Parameters
    ----------
    releases : one from each silo, in the order of the roster.
    offsets : (variable + 1,), where each variable's levels start.
    exponent : of the radius (log n_s / n_s)^exponent of a silo's clusters: 1/4 for an
        over-fitted mixture, 1/2 for a finite one. A silo of one row has radius 0: its cluster
        is matched only if it lies in another's ball.
    radius : one radius for every cluster instead.
    distance : from points, (point, coordinate), to others: (point, other); Euclidean by
        default.

    Returns
    -------
    groups : (local,)
    info : nothing.
    """
    points = np.concatenate([free_coordinates(r.medians, offsets) for r in releases])
    clusters = [release.clusters for release in releases]
    if radius is None:
        rows = np.array([release.rows for release in releases], dtype=np.float64)
        radii = np.repeat((np.log(rows) / rows) ** exponent, clusters)
    else:
        radii = np.full(sum(clusters), radius)
    return components(points, radii, distance), MatchingInfo()


def free_coordinates(
    medians: NDArray[np.float64], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return (cluster, Σ(K_q − 1)): the medians without the last level of each variable."""
    return np.delete(medians, offsets[1:] - 1, axis=1)


def components(
    points: NDArray[np.float64], radii: NDArray[np.float64], distance: Distance
) -> NDArray[np.int64]:
    """Return the component of each point, joined to all points nearer than either's radius.

    Parameters
    ----------
    points : (point, coordinate)
    radii : (point,)
    distance : from points to others.
    """
    edges = []
    for start in range(0, len(points), BLOCK):
        some = slice(start, start + BLOCK)
        reach = np.maximum(radii[some, None], radii)
        near, far = np.nonzero(distance(points[some], points) < reach)
        edges.append(np.stack([near + start, far]))
    ends = np.concatenate(edges, axis=1)
    graph = coo_array((np.ones(ends.shape[1], dtype=np.int8), tuple(ends)), (len(points),) * 2)
    return connected_components(graph, directed=False)[1].astype(np.int64)
