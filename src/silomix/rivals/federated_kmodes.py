"""Federated k-modes: silos send modes and sizes, the coordinator clusters the modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import SettingsError
from silomix.families.categorical import one_hot
from silomix.rivals.federation import keep_labels, open_silos
from silomix.rivals.kmodes import Points, assign, distances, k_modes, level_counts, update
from silomix.rivals.levels import Levels
from silomix.rivals.record import RivalResult, Stopwatch
from silomix.sampler import at_least
from silomix.silo import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.rivals.federation import Federation
    from silomix.silo import Silo
    from silomix.types import Missing, Schema

STREAM = 0x6B6D6F
SILO, SERVER = 0, 1
"""Branches of the random stream."""

FEWEST = 2
"""A silo does not send the mode of fewer rows."""

SERVER_PASSES = 100


@dataclass(frozen=True, eq=False)
class UpdateModes:
    """Ask a silo for modes of its own rows.

    Attributes
    ----------
    round : for the randomness.
    clusters : how many to begin with when `modes` is None.
    modes : (mode, variable), the codes of the global modes to begin with; None to begin with
        rows drawn at random.
    """

    round: int
    clusters: int
    modes: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class LocalModes:
    """A silo's modes, (mode, variable) as codes, and their rows, (mode,)."""

    modes: NDArray[np.int64]
    sizes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AssignToModes:
    """Have a silo keep its rows' nearest modes, and count; modes is (mode, variable)."""

    modes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ModeCounts:
    """Rows of a silo near each mode, (mode,), and their cells, (mode, level)."""

    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]


def fed_kmodes(
    table: Table,
    silo: str | None = None,
    *,
    clusters: int,
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    rounds: int = 20,
    restarts: int = 10,
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
    table : any frame that narwhals reads (pandas, polars, Arrow), or a path to CSV or Parquet.
    silo : the column that names each row's silo; left out, the table is one silo.
    clusters : how many there are.
    seed : same seed, same result, on any number of threads.
    threads : cores to use; all when left out.
    variables : columns to use; by default all but the silo column.
    missing : "marginalise" leaves missing cells out; "level" makes them a level.
    rounds : the most.
    restarts : random starts of the server's clustering; the smallest cost wins.

    Examples
    --------
    >>> result = silomix.rivals.fed_kmodes(table, "silo", clusters=5, seed=1)
    >>> result.n_clusters
    5
    """
    clusters, rounds = at_least("clusters", clusters, 1), at_least("rounds", rounds, 1)
    restarts, watch = at_least("restarts", restarts, 1), Stopwatch()
    federation = open_silos(
        table, silo, seed=seed, threads=threads, variables=variables, missing=missing
    )
    schema = federation.study.table_schema
    with watch.stage("rounds"):
        modes, done = exchange(federation, clusters, rounds, restarts)
    with watch.stage("assign"):
        found: list[ModeCounts] = federation.ask(AssignToModes(modes))
        sizes = np.sum([part.sizes for part in found], axis=0)
        counts = np.sum([part.counts for part in found], axis=0).astype(np.float64)
    return RivalResult(
        name="fed_kmodes",
        labels=federation.labels(),
        weights=(sizes / sizes.sum())[None],
        probabilities=proportions(counts, Levels(schema.offsets))[None],
        levels=schema.levels,
        seconds=watch.seconds,
        bytes_sent=federation.bytes_sent,
        notes=(f"Rounds: {done}.",),
    )


def exchange(
    federation: Federation, clusters: int, rounds: int, restarts: int
) -> tuple[NDArray[np.int64], int]:
    """Run the rounds; return the global modes, (mode, variable), and how many rounds it took."""

    def serve(number: int, modes: NDArray[np.int64] | None) -> NDArray[np.int64]:
        found: list[LocalModes] = federation.ask(UpdateModes(number, clusters, modes))
        rng = np.random.default_rng([federation.study.seed, STREAM, SERVER, number])
        return cluster_modes(found, federation.study.table_schema, clusters, restarts, rng)

    modes = serve(0, None)
    seen = {modes.tobytes()}
    for number in range(1, rounds + 1):
        modes = serve(number, modes)
        if modes.tobytes() in seen:
            return modes, number
        seen.add(modes.tobytes())
    return modes, rounds


def cluster_modes(
    found: Sequence[LocalModes],
    schema: Schema,
    clusters: int,
    restarts: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the modes of the silos' modes, weighted by size, in the order of their codes.

    Returns
    -------
    (mode, variable); at most `clusters`.
    """
    stacked = np.concatenate([part.modes for part in found])
    if not len(stacked):
        raise SettingsError(
            f"no silo has a mode of at least {FEWEST} rows; ask for fewer than {clusters} clusters"
        )
    sizes = np.concatenate([part.sizes for part in found])
    points = Points(one_hot(stacked.astype(np.uint32), schema.offsets), sizes, schema.offsets)
    tried = [k_modes(points, clusters, SERVER_PASSES, rng)[1] for _ in range(restarts)]
    best = min(tried, key=lambda modes: cost(points, modes))
    return np.unique(codes_of(best, schema), axis=0)


def cost(points: Points, modes: NDArray[np.float64]) -> float:
    """Return Σ_j S_j d(m_j, nearest mode)."""
    return float(points.counts @ distances(points.cells, modes).min(axis=1))


def codes_of(modes: NDArray[np.float64], schema: Schema) -> NDArray[np.int64]:
    """Return the level codes of modes given as cells: (mode, variable)."""
    parts = np.split(modes, schema.offsets[1:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], axis=1)


def proportions(counts: NDArray[np.float64], levels: Levels) -> NDArray[np.float64]:
    """Return each level's share of the known cells of its variable; equal ones where none is."""
    totals = levels.spread(levels.totals(counts))
    equal = np.broadcast_to(levels.spread(1.0 / levels.sizes), counts.shape)
    return np.where(totals > 0, counts / np.maximum(totals, 1.0), equal)


def _update(query: UpdateModes, silo: Silo) -> LocalModes:
    schema, rows = silo.shard.schema, silo.shard.rows
    rng = np.random.default_rng([silo.study.seed, STREAM, SILO, silo.place, query.round])
    points = Points(
        one_hot(silo.shard.codes, schema.offsets), np.ones(rows, np.int64), schema.offsets
    )
    if query.modes is None:
        _, modes = k_modes(points, query.clusters, 0, rng)
    else:
        received = one_hot(query.modes.astype(np.uint32), schema.offsets)
        modes = received[np.unique(assign(points.cells, received, rng))]
    modes = update(points, assign(points.cells, modes, rng), modes, rng)
    labels = assign(points.cells, modes, rng)
    sizes = np.bincount(labels, minlength=len(modes))
    enough = sizes >= FEWEST
    return LocalModes(codes_of(modes[enough], schema), sizes[enough])


def _assign(query: AssignToModes, silo: Silo) -> ModeCounts:
    schema, rows = silo.shard.schema, silo.shard.rows
    rng = np.random.default_rng([silo.study.seed, STREAM, SILO, silo.place])
    points = Points(
        one_hot(silo.shard.codes, schema.offsets), np.ones(rows, np.int64), schema.offsets
    )
    labels = assign(points.cells, one_hot(query.modes.astype(np.uint32), schema.offsets), rng)
    kept = keep_labels(silo, labels, len(query.modes))
    counts = level_counts(points, labels, len(query.modes))
    return ModeCounts(kept.sizes, counts.astype(np.int64))


HANDLERS.update({UpdateModes: _update, AssignToModes: _assign})
