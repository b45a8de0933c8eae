"""Federated k-means and k-modes: silos send centres, the coordinator clusters these.

K-means sends sums and counts. A point is a row, or a silo's cluster: sums of cells, (point,
variable), and their number, without missing cells. Cells are divided by the standard deviation over
all silos, so that variables have equal weight.

K-modes (Huang, 1998) sends modes and sizes. It has the simple matching distance, and the most
frequent levels as the centre of a cluster. A mode is represented as cells, (mode, level), and sent
as codes, (mode, variable).
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.errors import SettingsError
from silomix.kernels.arrays import Array, Floats, Ints, Rng, sum_by
from silomix.rivals.federation import keep_labels, open_silos, points_of, sum_clusters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from silomix.model.reading import Table
    from silomix.model.schema import Shard
    from silomix.rivals.federation import ClusterSums, Federation, Points, RivalResult
    from silomix.silo.local import Silo

MEANS, MODES = 0x6B6D65, 0x6B6D6F  # random streams
SILO, SERVER = 0, 1  # and branches of them
FEWEST = 2  # a silo does not send the centre of fewer rows
SERVER_PASSES = 100
# Decimals of means, in standard deviations, that are compared.
DECIMALS = 6


class Sums(NamedTuple):
    """Points as sums of their cells, and numbers of cells; both (point, variable)."""

    total: Floats
    known: Floats


class Moments(NamedTuple):
    """Number of a silo's cells of each variable, their sum, and their sum of squares."""

    known: Floats
    total: Floats
    squares: Floats


class LocalModes(NamedTuple):
    """A silo's modes, (mode, variable), and their rows, (mode,)."""

    modes: Ints
    sizes: Ints


class Steps(NamedTuple):
    """Functions and settings in which the two methods differ.

    Attributes
    ----------
    stream : of random numbers.
    update : question to each silo, given the number of the round and the centres, None at first.
    climb : clusters the answers from one start: (cost, centres), given the fields of the answers,
        the number of clusters and a generator.
    nearest : a silo's nearest centre of each row: (row,).
    clusters, rounds, restarts : as for `fed_kmeans`.
    """

    stream: int
    update: Callable[..., Any]
    climb: Callable[..., tuple[float, Array]]
    nearest: Callable[..., Ints]
    clusters: int
    rounds: int
    restarts: int


def fed_kmeans(
    table: Table,
    silo: str | None = None,
    *,
    clusters: int,
    rounds: int = 20,
    restarts: int = 10,
    **settings: Any,
) -> RivalResult:
    """Cluster rows of numbers by federated k-means with a known number of clusters.

    Garst and Reinders (2025), with one more server update at the end, as `fed_kmodes` has it. A
    silo starts by k-means++ (Arthur and Vassilvitskii, 2007) on its rows; then in each round it
    assigns its rows to the global centres, forgets those that got none, updates the others once,
    and sends sums and counts, but none of fewer than two rows. The server clusters the means of all
    silos, weighted by their rows, from fresh starts each time. Rounds end when the global centres
    repeat.

    Weights are the proportions of the final clusters, parameters their means and standard
    deviations: one draw, with no statement of uncertainty.

    Parameters
    ----------
    table, silo : as for `silomix.fit`; without a silo column the table is one silo.
    clusters : how many there are.
    rounds : the most.
    restarts : random starts of the server's clustering; the smallest cost wins.
    settings : seed, threads, variables, kinds, as for `silomix.fit`.

    Examples
    --------
    >>> numbers, _ = silomix.simulate("homogeneous", rows=400, seed=1, variables="gaussian")
    >>> result = silomix.rivals.fed_kmeans(numbers, "silo", clusters=5, seed=1)
    >>> result.n_clusters
    5
    """
    own = {"clusters": clusters, "rounds": rounds, "restarts": restarts}
    federation = open_silos(table, silo, knows="numbers", unused=settings, own=own, **settings)
    with federation.stage("rounds"):
        scales = standard_deviations(federation.ask(partial(measure)))
    update, nearest = partial(update_means, clusters, scales), partial(nearest_means, scales)
    steps = Steps(MEANS, update, climb_means, nearest, **own)
    return _federate("fed_kmeans", federation, steps)


def fed_kmodes(
    table: Table,
    silo: str | None = None,
    *,
    clusters: int,
    rounds: int = 20,
    restarts: int = 10,
    **settings: Any,
) -> RivalResult:
    """Cluster rows by federated k-modes with a known number of clusters.

    Federated k-means (Garst and Reinders, 2025) with simple matching in place of the Euclidean
    distance and modes in place of means, and one more server update at the end, as in Fendler et
    al. (2026), section 5.4. A silo starts from rows drawn at random; then in each round it assigns
    its rows to the global modes, forgets those that got none, updates the others once, and sends
    modes and sizes, but none of fewer than two rows. The server clusters the modes of all silos,
    weighted by size,

        min Σ_j S_j d(m_j, M_a(j)),

    from fresh random starts each time. Rounds end when the global modes repeat. (The published
    code has a fixed number of rounds, and never aggregates the silos' last update.)

    Silos often send equal modes; with fewer distinct ones than `clusters` there are fewer
    clusters. Weights and probabilities are the proportions in the final clusters: one draw, with
    no statement of uncertainty.

    Parameters
    ----------
    table, silo : as for `silomix.fit`; without a silo column the table is one silo.
    clusters : how many there are.
    rounds : the most.
    restarts : random starts of the server's clustering; the smallest cost wins.
    settings : seed, threads, variables, missing, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.fed_kmodes(table, "silo", clusters=5, seed=1)
    >>> result.n_clusters
    5
    """
    own = {"clusters": clusters, "rounds": rounds, "restarts": restarts}
    federation = open_silos(table, silo, knows="categories", unused=settings, own=own, **settings)
    climb = partial(climb_modes, federation.study.table_schema.offsets)
    update = partial(update_modes_locally, clusters)
    steps = Steps(MODES, update, climb, nearest_modes, **own)
    return _federate("fed_kmodes", federation, steps)


def _federate(name: str, federation: Federation, steps: Steps) -> RivalResult:
    """Run the rounds, then assign the rows."""
    family = federation.study.pooled_model.family
    with federation.stage("rounds"):
        centres, done = exchange(federation, steps)
    with federation.stage("assign"):
        near: list[ClusterSums] = federation.ask(partial(assign, steps.nearest, centres))
    sizes, sums = (np.add.reduce(part, dtype=np.float64) for part in zip(*near, strict=True))
    parameters = family.from_moments(family.means(sums)[0])
    weights = sizes / sizes.sum()
    return federation.result(name, weights[None], parameters[None], f"Rounds: {done}.")


def exchange(federation: Federation, steps: Steps) -> tuple[Array, int]:
    """Run the rounds; return the global centres, (centre, variable), and the number of rounds."""
    centres, earlier, number = None, set[bytes](), 0
    while True:
        answers = federation.ask(partial(steps.update, number, centres))
        rng = np.random.default_rng([federation.study.seed, steps.stream, SERVER, number])
        centres = cluster_centres(answers, steps, rng)
        if number == steps.rounds or centres.tobytes() in earlier:
            return centres, number
        earlier.add(centres.tobytes())
        number += 1


def cluster_centres(answers: Sequence[Any], steps: Steps, rng: Rng) -> Array:
    """Cheapest clustering of the silos' centres, weighted by rows.

    Returns
    -------
    (centre, variable), sorted; at most `steps.clusters`.
    """
    points = [np.concatenate(part) for part in zip(*answers, strict=True)]
    if not len(points[0]):
        raise SettingsError(
            f"no silo has {FEWEST} rows in one of {steps.clusters} clusters; ask for fewer"
        )
    tried = [steps.climb(*points, steps.clusters, rng) for _ in range(steps.restarts)]
    return np.unique(min(tried, key=itemgetter(0))[1], axis=0)


def assign(nearest: Callable[..., Ints], centres: Array, silo: Silo) -> ClusterSums:
    """Assign a silo's rows to their nearest centres, and sum the rows of each."""
    labels = nearest(centres, silo)
    keep_labels(silo, labels, len(centres))
    return sum_clusters(silo, labels, len(centres))


def measure(silo: Silo) -> Moments:
    """Moments of a silo's cells, variable by variable."""
    total, counts = rows_of(silo.shard, np.ones(len(silo.shard.schema.variables)))
    return Moments(*(part.sum(axis=0) for part in (counts, total, np.square(total))))


def standard_deviations(moments: Sequence[Moments]) -> Floats:
    """Standard deviation over all silos' cells, 1 where all are equal: (variable,)."""
    counts, total, squares = (np.sum(part, axis=0) for part in zip(*moments, strict=True))
    rows = np.maximum(counts, 1.0)
    variance = squares / rows - np.square(total / rows)
    return np.sqrt(np.where(variance > 0, variance, 1.0))


def rows_of(shard: Shard, scales: Floats) -> Sums:
    """Rows as points, with each variable's cells divided by its scale."""
    cells = np.concatenate(shard.cells, axis=1) / scales
    observed = ~np.isnan(cells)
    return Sums(np.where(observed, cells, 0.0), observed.astype(np.float64))


def add_up(points: Sums, labels: Ints, clusters: int) -> Sums:
    """Sum points by cluster."""
    return Sums(*(sum_by(labels, part, clusters) for part in points))


def means_of(points: Sums) -> Floats:
    """Means of points, 0 without cells: (point, variable)."""
    return points.total / np.maximum(points.known, 1.0)


def distances(points: Sums, centres: Floats) -> Floats:
    """Squared distance Σ n (x − c)² over the observed cells: (point, centre)."""
    squares = (points.total * means_of(points)).sum(axis=1)
    return squares[:, None] - 2 * points.total @ centres.T + points.known @ np.square(centres).T


def spread_start(points: Sums, clusters: int, rng: Rng) -> Floats:
    """k-means++ starts, each drawn in proportion to its distance from the earlier ones.

    With fewer distinct points than `clusters`, there is one start for each.
    """
    means, chance = means_of(points), points.known.sum(axis=1)
    centres = np.empty((0, means.shape[1]))
    while len(centres) < clusters and chance.sum() > 0:
        index = rng.choice(len(means), p=chance / chance.sum())
        centres = np.append(centres, means[[index]], axis=0)
        chance = np.maximum(distances(points, centres).min(axis=1), 0.0)
        chance[chance < 10.0**-DECIMALS] = 0.0
    return centres


def k_means(points: Sums, centres: Floats, passes: int) -> Floats:
    """Centres after at most `passes` passes, or at convergence; one without points stays."""
    labels = None
    for _ in range(passes):
        moved = distances(points, centres).argmin(axis=1)
        if labels is not None and (moved == labels).all():
            break
        labels, sums = moved, add_up(points, moved, len(centres))
        centres = np.where(sums.known > 0, means_of(sums), centres)
    return centres


def climb_means(total: Floats, counts: Floats, clusters: int, rng: Rng) -> tuple[float, Floats]:
    """Cluster points from one start; return the cost, up to a constant, and the centres."""
    points = Sums(total, counts)
    centres = k_means(points, spread_start(points, clusters, rng), SERVER_PASSES)
    return float(distances(points, centres).min(axis=1).sum()), np.round(centres, DECIMALS)


def update_means(
    clusters: int, scales: Floats, number: int, centres: Floats | None, silo: Silo
) -> Sums:
    """Clusters of a silo's own rows after one update.

    Parameters
    ----------
    clusters : initial number when `centres` is None.
    scales : (variable,)
    number : of the round, for the random numbers.
    centres : (centre, variable), the global ones; None to start from rows.
    """
    points = rows_of(silo.shard, scales)
    if centres is None:
        rng = np.random.default_rng([silo.study.seed, MEANS, SILO, silo.place, number])
        starts = spread_start(points, clusters, rng)
    else:
        starts = centres[np.unique(distances(points, centres).argmin(axis=1))]
    labels = distances(points, k_means(points, starts, 1)).argmin(axis=1)
    sums, enough = add_up(points, labels, len(starts)), np.bincount(labels, minlength=len(starts))
    return Sums(*(part[enough >= FEWEST] for part in sums))


def nearest_means(scales: Floats, centres: Floats, silo: Silo) -> Ints:
    """Nearest of the centres, (centre, variable), to each of a silo's rows: (row,)."""
    return distances(rows_of(silo.shard, scales), centres).argmin(axis=1)


def climb_modes(
    offsets: Ints, modes: Ints, sizes: Ints, clusters: int, rng: Rng
) -> tuple[float, Ints]:
    """Cluster modes, weighted by size, from one start; return the cost and the new modes."""
    points = points_of(modes, offsets, sizes)
    _, centres = k_modes(points, clusters, SERVER_PASSES, rng)
    return cost(points, centres), codes_of(centres, offsets)


def cost(points: Points, modes: Floats) -> float:
    """Cost Σ_j S_j d(m_j, nearest mode), d the number of observed cells that differ."""
    observed = points.cells.sum(axis=1)
    return float(points.counts @ (observed - (points.cells @ modes.T).max(axis=1)))


def codes_of(modes: Floats, offsets: Ints) -> Ints:
    """Level codes of modes given as cells: (mode, variable)."""
    parts = np.split(modes, offsets[1:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], axis=1)


def k_modes(points: Points, clusters: int, passes: int, rng: Rng) -> tuple[Ints, Floats]:
    """Cluster from random distinct points, to convergence or for at most `passes` passes.

    With fewer distinct points than `clusters`, there is one cluster for each.

    Returns
    -------
    labels : (point,); modes : (cluster, level), as cells.
    """
    distinct = np.unique(points.cells, axis=0)
    modes = distinct[rng.permutation(len(distinct))[:clusters]]
    labels = nearest_mode(points, modes, rng)
    for _ in range(passes):
        modes = update_modes(points, labels, modes, rng)
        moved = nearest_mode(points, modes, rng, labels)
        if (moved == labels).all():
            break
        labels = moved
    return labels, modes


def nearest_mode(points: Points, modes: Floats, rng: Rng, current: Ints | None = None) -> Ints:
    """Nearest mode of each point: (point,).

    Ties go to the point's current mode if it is among them, else to a random one. A missing cell
    is equally far from every mode.
    """
    # matches are whole numbers, so that less than one half only breaks ties
    matches = points.cells @ modes.T
    near = matches + rng.random(matches.shape) / 2
    if current is not None:
        near[np.arange(len(near)), current] += 0.5
    return near.argmax(axis=1)


def update_modes(points: Points, labels: Ints, modes: Floats, rng: Rng) -> Floats:
    """Most frequent levels of each cluster, ties at random.

    A cluster without points keeps its mode.
    """
    counts = sum_by(labels, points.cells * points.counts[:, None], len(modes))
    codes = codes_of(counts + rng.random(counts.shape) / 2, points.offsets)
    empty = np.bincount(labels, minlength=len(modes)) == 0
    return np.where(empty[:, None], modes, points_of(codes, points.offsets).cells)


def update_modes_locally(clusters: int, number: int, modes: Ints | None, silo: Silo) -> LocalModes:
    """Modes of a silo's own rows after one update.

    Parameters
    ----------
    clusters : initial number when `modes` is None.
    number : of the round, for the random numbers.
    modes : (mode, variable), the global modes; None to start from random rows.
    """
    points = points_of(silo.shard.codes, silo.shard.schema.offsets)
    rng = np.random.default_rng([silo.study.seed, MODES, SILO, silo.place, number])
    if modes is None:
        _, cells = k_modes(points, clusters, 0, rng)
    else:
        received = points_of(modes, points.offsets).cells
        cells = received[np.unique(nearest_mode(points, received, rng))]
    cells = update_modes(points, nearest_mode(points, cells, rng), cells, rng)
    sizes = np.bincount(nearest_mode(points, cells, rng), minlength=len(cells))
    enough = sizes >= FEWEST
    return LocalModes(codes_of(cells[enough], points.offsets), sizes[enough])


def nearest_modes(modes: Ints, silo: Silo) -> Ints:
    """Nearest of the modes, (mode, variable), to each of a silo's rows: (row,)."""
    points = points_of(silo.shard.codes, silo.shard.schema.offsets)
    rng = np.random.default_rng([silo.study.seed, MODES, SILO, silo.place])
    return nearest_mode(points, points_of(modes, points.offsets).cells, rng)
