"""Federated k-modes: silos send modes and sizes, the coordinator clusters the modes.

K-modes (Huang, 1998) has the simple matching distance, and the most frequent levels as the centre
of a cluster. A mode is worked with as cells, (mode, level), and travels as codes, (mode, variable).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.errors import SettingsError
from silomix.model.families.dirichlet import shares_of, sum_by
from silomix.model.sentences import at_least
from silomix.rivals.federation import keep_labels, open_silos, points_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from silomix.kernels.arrays import Array, Floats, Ints, Rng
    from silomix.model.reading import Table
    from silomix.rivals.federation import Federation, Points, RivalResult
    from silomix.silo.local import Silo

STREAM = 0x6B6D6F
SILO, SERVER = 0, 1  # branches of the random stream
FEWEST = 2  # a silo does not send the mode of fewer rows
SERVER_PASSES = 100


class LocalModes(NamedTuple):
    """A silo's modes, (mode, variable), and their rows, (mode,)."""

    modes: Ints
    sizes: Ints


class NearCentres(NamedTuple):
    """Rows of a silo near each centre, (centre,), and what they add up to, (centre, statistic)."""

    sizes: Ints
    statistics: Array


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
    for name, value in (("clusters", clusters), ("rounds", rounds), ("restarts", restarts)):
        at_least(name, value, 1)
    federation = open_silos(table, silo, knows="categories", unused=settings, **settings)
    with federation.stage("rounds"):
        offsets = federation.study.table_schema.offsets
        update = partial(update_locally, clusters)
        server = partial(cluster_modes, offsets=offsets, clusters=clusters, restarts=restarts)
        modes, done = exchange(federation, STREAM, rounds, update, server)
    with federation.stage("assign"):
        found: list[NearCentres] = federation.ask(partial(assign_to_modes, modes))
    sizes = np.sum([part.sizes for part in found], axis=0)
    counts = np.sum([part.statistics for part in found], axis=0).astype(np.float64)
    probabilities = shares_of(counts, offsets)
    weights = sizes / sizes.sum()
    return federation.result("fed_kmodes", weights[None], probabilities[None], f"Rounds: {done}.")


def exchange(
    federation: Federation,
    stream: int,
    rounds: int,
    update: Callable[..., Any],
    server: Callable[..., Array],
) -> tuple[Array, int]:
    """Run the rounds; return the global centres, (centre, variable), and how many it took.

    Parameters
    ----------
    stream : of random numbers.
    update : asked of each silo with the number of the round and the centres, None at first.
    server : makes the centres of what the silos answer, with `rng=`.
    """
    centres, seen, number = None, set[bytes](), 0
    while True:
        found = federation.ask(partial(update, number, centres))
        rng = np.random.default_rng([federation.study.seed, stream, SERVER, number])
        centres = server(found, rng=rng)
        if number == rounds or centres.tobytes() in seen:
            return centres, number
        seen.add(centres.tobytes())
        number += 1


def cluster_modes(
    found: Sequence[LocalModes], *, offsets: Ints, clusters: int, restarts: int, rng: Rng
) -> Ints:
    """Return the modes of the silos' modes, weighted by size, in the order of their codes.

    Returns
    -------
    (mode, variable); at most `clusters`.
    """
    codes = np.concatenate([part.modes for part in found])
    if not len(codes):
        raise SettingsError(
            f"no silo has {FEWEST} rows in one of {clusters} clusters; ask for fewer"
        )
    points = points_of(codes, offsets, np.concatenate([part.sizes for part in found]))
    tried = [k_modes(points, clusters, SERVER_PASSES, rng)[1] for _ in range(restarts)]
    best = min(tried, key=lambda modes: cost(points, modes))
    return np.unique(codes_of(best, offsets), axis=0)


def cost(points: Points, modes: Floats) -> float:
    """Return Σ_j S_j d(m_j, nearest mode), d the number of known cells that differ."""
    known = points.cells.sum(axis=1)
    return float(points.counts @ (known - (points.cells @ modes.T).max(axis=1)))


def codes_of(modes: Floats, offsets: Ints) -> Ints:
    """Return the level codes of modes given as cells: (mode, variable)."""
    parts = np.split(modes, offsets[1:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], axis=1)


def k_modes(points: Points, clusters: int, passes: int, rng: Rng) -> tuple[Ints, Floats]:
    """Cluster from distinct points drawn at random, until nothing moves or for so many passes.

    With fewer distinct points than `clusters`, there are as many clusters as those.

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
    """Return the nearest mode of each point: (point,).

    Of equally near ones, the point's current one if it is among them, else one at random. A
    missing cell is as far from every mode.
    """
    # matches are whole numbers, so less than one half decides among equals and nothing else
    matches = points.cells @ modes.T
    near = matches + rng.random(matches.shape) / 2
    if current is not None:
        near[np.arange(len(near)), current] += 0.5
    return near.argmax(axis=1)


def update_modes(points: Points, labels: Ints, modes: Floats, rng: Rng) -> Floats:
    """Return the most frequent levels of each cluster, at random of equally frequent ones.

    A cluster without points keeps its mode.
    """
    counts = sum_by(labels, points.cells * points.counts[:, None], len(modes))
    codes = codes_of(counts + rng.random(counts.shape) / 2, points.offsets)
    empty = np.bincount(labels, minlength=len(modes)) == 0
    return np.where(empty[:, None], modes, points_of(codes, points.offsets).cells)


def update_locally(clusters: int, number: int, modes: Ints | None, silo: Silo) -> LocalModes:
    """Return the modes of a silo's own rows after one update.

    Parameters
    ----------
    clusters : how many to begin with when `modes` is None.
    number : of the round, for the randomness.
    modes : (mode, variable), the global modes to begin with; None to begin with rows drawn at
        random.
    """
    points = points_of(silo.shard.codes, silo.shard.schema.offsets)
    rng = np.random.default_rng([silo.study.seed, STREAM, SILO, silo.place, number])
    if modes is None:
        _, own = k_modes(points, clusters, 0, rng)
    else:
        received = points_of(modes, points.offsets).cells
        own = received[np.unique(nearest_mode(points, received, rng))]
    own = update_modes(points, nearest_mode(points, own, rng), own, rng)
    sizes = np.bincount(nearest_mode(points, own, rng), minlength=len(own))
    enough = sizes >= FEWEST
    return LocalModes(codes_of(own[enough], points.offsets), sizes[enough])


def assign_to_modes(modes: Ints, silo: Silo) -> NearCentres:
    """Have a silo keep its rows' nearest modes, (mode, variable), and count."""
    points = points_of(silo.shard.codes, silo.shard.schema.offsets)
    rng = np.random.default_rng([silo.study.seed, STREAM, SILO, silo.place])
    labels = nearest_mode(points, points_of(modes, points.offsets).cells, rng)
    counts = sum_by(labels, points.cells, len(modes)).astype(np.int64)
    return NearCentres(keep_labels(silo, labels, len(modes)), counts)
