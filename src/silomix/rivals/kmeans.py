"""Federated k-means: silos send sums and counts, the coordinator clusters the means.

A point is a row, or a silo's cluster; both are cells that were added up, (point, variable), and how
many of them there were: a missing cell weighs nothing. Cells are over the standard deviation of all
silos' cells, so that variables count alike.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.errors import SettingsError
from silomix.model.families.dirichlet import sum_by
from silomix.model.families.rows import Rows
from silomix.model.sentences import at_least
from silomix.rivals.federation import keep_labels, open_silos
from silomix.rivals.kmodes import FEWEST, SERVER_PASSES, SILO, NearCentres, exchange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints, Rng
    from silomix.model.reading import Table
    from silomix.model.schema import Shard
    from silomix.rivals.federation import RivalResult
    from silomix.silo.local import Silo

STREAM = 0x6B6D65
# Centres that differ by less, in standard deviations, are the same.
DECIMALS = 6


class Sums(NamedTuple):
    """Points: what their cells add up to, and how many cells; both (point, variable)."""

    total: Floats
    known: Floats


class Moments(NamedTuple):
    """How many cells a silo has of each variable, and the sums of them and of their squares."""

    known: Floats
    total: Floats
    squares: Floats


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
    for name, value in (("clusters", clusters), ("rounds", rounds), ("restarts", restarts)):
        at_least(name, value, 1)
    federation = open_silos(table, silo, knows="numbers", unused=settings, **settings)
    family = federation.study.pooled_model.family
    with federation.stage("rounds"):
        moments: list[Moments] = federation.ask(partial(measure))
        scales = standard_deviations(moments)
        server = partial(cluster_means, clusters=clusters, restarts=restarts)
        update = partial(update_locally, clusters, scales)
        centres, done = exchange(federation, STREAM, rounds, update, server)
    with federation.stage("assign"):
        found: list[NearCentres] = federation.ask(partial(assign_to_centres, scales, centres))
    sizes = np.sum([part.sizes for part in found], axis=0)
    sums = np.sum([part.statistics for part in found], axis=0)
    parameters = family.from_moments(family.means(sums)[0])
    weights = sizes / sizes.sum()
    return federation.result("fed_kmeans", weights[None], parameters[None], f"Rounds: {done}.")


def measure(silo: Silo) -> Moments:
    """Return what a silo's cells add up to, variable by variable."""
    total, known = rows_of(silo.shard, np.ones(len(silo.shard.schema.variables)))
    return Moments(*(part.sum(axis=0) for part in (known, total, np.square(total))))


def standard_deviations(moments: Sequence[Moments]) -> Floats:
    """Return those of all silos' cells, 1 where all are the same: (variable,)."""
    known, total, squares = (np.sum(part, axis=0) for part in zip(*moments, strict=True))
    rows = np.maximum(known, 1.0)
    variance = squares / rows - np.square(total / rows)
    return np.sqrt(np.where(variance > 0, variance, 1.0))


def rows_of(shard: Shard, scales: Floats) -> Sums:
    """Return rows as points, each variable's cells over its scale."""
    cells = np.concatenate(shard.cells, axis=1) / scales
    known = ~np.isnan(cells)
    return Sums(np.where(known, cells, 0.0), known.astype(np.float64))


def add_up(points: Sums, labels: Ints, clusters: int) -> Sums:
    """Return clusters of points as points."""
    return Sums(*(sum_by(labels, part, clusters) for part in points))


def means_of(points: Sums) -> Floats:
    """Return the means of points, 0 of no cell: (point, variable)."""
    return points.total / np.maximum(points.known, 1.0)


def distances(points: Sums, centres: Floats) -> Floats:
    """Return Σ n (x − c)² over the cells that are known: (point, centre)."""
    squares = (points.total * means_of(points)).sum(axis=1)
    return squares[:, None] - 2 * points.total @ centres.T + points.known @ np.square(centres).T


def spread_start(points: Sums, clusters: int, rng: Rng) -> Floats:
    """Return k-means++ starts, each drawn in proportion to its distance from those before.

    Where fewer points than `clusters` are apart, there are as many starts as those.
    """
    means, chance = means_of(points), points.known.sum(axis=1)
    centres = np.empty((0, means.shape[1]))
    while len(centres) < clusters and chance.sum() > 0:
        drawn = rng.choice(len(means), p=chance / chance.sum())
        centres = np.append(centres, means[[drawn]], axis=0)
        chance = np.maximum(distances(points, centres).min(axis=1), 0.0)
        chance[chance < 10.0**-DECIMALS] = 0.0
    return centres


def k_means(points: Sums, centres: Floats, passes: int) -> Floats:
    """Return the centres after so many passes, or when nothing moves; one without points stays."""
    labels = None
    for _ in range(passes):
        moved = distances(points, centres).argmin(axis=1)
        if labels is not None and (moved == labels).all():
            break
        labels, sums = moved, add_up(points, moved, len(centres))
        centres = np.where(sums.known > 0, means_of(sums), centres)
    return centres


def cluster_means(found: Sequence[Sums], *, clusters: int, restarts: int, rng: Rng) -> Floats:
    """Return the centres of the silos' means, weighted by rows: (centre, variable), in order."""
    points = Sums(*(np.concatenate(part) for part in zip(*found, strict=True)))
    if not len(points.total):
        raise SettingsError(
            f"no silo has {FEWEST} rows in one of {clusters} clusters; ask for fewer"
        )
    starts = [spread_start(points, clusters, rng) for _ in range(restarts)]
    tried = [k_means(points, start, SERVER_PASSES) for start in starts]
    best = min(tried, key=lambda centres: distances(points, centres).min(axis=1).sum())
    return np.unique(np.round(best, DECIMALS), axis=0)


def update_locally(
    clusters: int, scales: Floats, number: int, centres: Floats | None, silo: Silo
) -> Sums:
    """Return the clusters of a silo's own rows after one update.

    Parameters
    ----------
    clusters : how many to begin with when `centres` is None.
    scales : (variable,)
    number : of the round, for the randomness.
    centres : (centre, variable), the global ones to begin with; None to begin with rows.
    """
    points = rows_of(silo.shard, scales)
    if centres is None:
        rng = np.random.default_rng([silo.study.seed, STREAM, SILO, silo.place, number])
        own = spread_start(points, clusters, rng)
    else:
        own = centres[np.unique(distances(points, centres).argmin(axis=1))]
    labels = distances(points, k_means(points, own, 1)).argmin(axis=1)
    sums, enough = add_up(points, labels, len(own)), np.bincount(labels, minlength=len(own))
    return Sums(*(part[enough >= FEWEST] for part in sums))


def assign_to_centres(scales: Floats, centres: Floats, silo: Silo) -> NearCentres:
    """Have a silo keep its rows' nearest centres, (centre, variable), and add them up."""
    labels = distances(rows_of(silo.shard, scales), centres).argmin(axis=1)
    rows = Rows(silo.shard, silo.study.pooled_model.family)
    statistics = rows.sum_statistics(labels, len(centres))
    return NearCentres(keep_labels(silo, labels, len(centres)), statistics)
