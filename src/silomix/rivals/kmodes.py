"""K-modes (Huang, 1998): simple matching distance, and the most frequent level as the centre."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Points(NamedTuple):
    """What is clustered.

    Attributes
    ----------
    cells : (point, level), one for the level a point has; a missing cell is in no column.
    counts : (point,), how many rows each stands for.
    offsets : (variable + 1,), where each variable's levels start.
    """

    cells: NDArray[np.float64]
    counts: NDArray[np.int64]
    offsets: NDArray[np.int64]


def k_modes(
    points: Points, clusters: int, passes: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Cluster from distinct points drawn at random, until nothing moves or for so many passes.

    With fewer distinct points than `clusters`, there are as many clusters as those.

    Returns
    -------
    labels : (point,); modes : (cluster, level), as cells.
    """
    distinct = np.unique(points.cells, axis=0)
    modes = distinct[rng.permutation(len(distinct))[:clusters]]
    labels = assign(points.cells, modes, rng)
    for _ in range(passes):
        modes = update(points, labels, modes, rng)
        moved = assign(points.cells, modes, rng, labels)
        if (moved == labels).all():
            break
        labels = moved
    return labels, modes


def assign(
    cells: NDArray[np.float64],
    modes: NDArray[np.float64],
    rng: np.random.Generator,
    current: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return the nearest mode of each point: (point,).

    Of equally near ones, the point's current one if it is among them, else one at random. A
    missing cell is as far from every mode.
    """
    near = cells @ modes.T + rng.random((len(cells), len(modes))) / 2
    if current is not None:
        near[np.arange(len(cells)), current] += 0.5
    return near.argmax(axis=1)


def distances(cells: NDArray[np.float64], modes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return in how many known cells each point differs from each mode: (point, cluster)."""
    return cells.sum(axis=1, keepdims=True) - cells @ modes.T


def update(
    points: Points,
    labels: NDArray[np.int64],
    modes: NDArray[np.float64],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return the most frequent levels of each cluster, at random of equally frequent ones.

    A cluster without points keeps its mode.

    Parameters
    ----------
    labels : (point,); modes : (cluster, level), the modes so far.
    """
    counts = level_counts(points, labels, len(modes))
    noisy = counts + rng.random(counts.shape) / 2
    fresh = np.zeros_like(modes)
    for first, last in zip(points.offsets, points.offsets[1:], strict=False):
        best = first + noisy[:, first:last].argmax(axis=1)
        fresh[np.arange(len(modes)), best] = 1.0
    empty = np.bincount(labels, minlength=len(modes)) == 0
    return np.where(empty[:, None], modes, fresh)


def level_counts(points: Points, labels: NDArray[np.int64], clusters: int) -> NDArray[np.float64]:
    """Return how many rows of each cluster have each level: (cluster, level)."""
    counts = np.zeros((clusters, points.cells.shape[1]))
    np.add.at(counts, labels, points.cells * points.counts[:, None])
    return counts
