"""FedMerDel: variational fits in the silos, merged from counts alone in one exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.families.categorical import one_hot
from silomix.kernels.likelihood import distinct_rows
from silomix.matching.local_clusters import by_appearance
from silomix.rivals.federation import ClusterSizes, keep_labels, open_silos
from silomix.rivals.kmodes import Points
from silomix.rivals.levels import Levels
from silomix.rivals.merging import (
    Components,
    Merging,
    greedy_search,
    largest_first,
    random_search,
)
from silomix.rivals.record import RivalResult, Stopwatch
from silomix.rivals.variational import Problem, Search, entropy_lost, fit_mixture, share_out
from silomix.silo import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.silo import Silo
    from silomix.types import Missing

STREAM = 0x66656D
SILO, MERGES, DRAWS = 0, 1, 2
"""Branches of the random stream."""


@dataclass(frozen=True)
class FitComponents:
    """Ask a silo for its components.

    Attributes
    ----------
    search : how it looks for them.
    losses : whether to tell what its own merges would cost in entropy.
    """

    search: Search
    losses: bool


@dataclass(frozen=True, eq=False)
class LocalComponents:
    """A silo's components, as sums over its rows.

    Attributes
    ----------
    members : (component,), expected rows; counts : (component, level), expected cells.
    entropy : of the rows' shares, for the lower bound.
    lost : (component, component), entropy lost in a merge, or None.
    """

    members: NDArray[np.float64]
    counts: NDArray[np.float64]
    entropy: float
    lost: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class AssignComponents:
    """Tell a silo where its components went, and have it keep its rows' clusters.

    Attributes
    ----------
    search : as before: the priors.
    members, counts : what the silo answered.
    groups : (component,), the global cluster of each.
    clusters : how many there are.
    """

    search: Search
    members: NDArray[np.float64]
    counts: NDArray[np.float64]
    groups: NDArray[np.int64]
    clusters: int


def fedmerdel(
    table: Table,
    silo: str | None = None,
    *,
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    search: Search | None = None,
    merging: Merging | None = None,
    draws: int = 1000,
) -> RivalResult:
    """Fit each silo by variational inference, then merge the components of all silos.

    FedMerDel (Rao et al., 2026) on the model of VICatMix (Rao and Kirk, 2024). A silo fits a
    categorical mixture with merge and delete moves (`silomix.rivals.variational`) and sends, of
    each component, expected rows and cells. The coordinator looks at the mixture of all silos'
    components, in which a row has shares in those of its own silo only; two components a, b merge
    if that raises the lower bound:

        g(n_a + n_b) − g(n_a) − g(n_b) + ln Γ(α + N_a + N_b) Γ(α) / [Γ(α + N_a) Γ(α + N_b)] > 0,

    which counts alone decide. The candidate pairs, and where a random search ends, are not in
    what was published: the reading is in `silomix.rivals.merging`. A row's cluster is that of its
    most probable component. Nothing ever splits.

    The draws come from q: weights ~ Dirichlet(α + N), level probabilities ~ Dirichlet(e_q + n).

    Parameters
    ----------
    table : any frame that narwhals reads (pandas, polars, Arrow), or a path to CSV or Parquet.
    silo : the column that names each row's silo; left out, the table is one silo.
    seed : same seed, same result, on any number of threads.
    threads : cores to use; all when left out.
    variables : columns to use; by default all but the silo column.
    missing : "marginalise" leaves missing cells out; "level" makes them a level.
    search : the silos' search; `Search()` when left out.
    merging : the coordinator's; greedy over pairs of different silos when left out.
    draws : how many to draw from q.

    Examples
    --------
    >>> result = silomix.rivals.fedmerdel(table, "silo", seed=1)
    >>> result.n_clusters
    5
    """
    search, merging, watch = search or Search(), merging or Merging(), Stopwatch()
    federation = open_silos(
        table, silo, seed=seed, threads=threads, variables=variables, missing=missing
    )
    schema = federation.study.table_schema
    levels = Levels(schema.offsets, search.beta)
    with watch.stage("local"):
        found = federation.ask(FitComponents(search, merging.pairs == "any"))
    with watch.stage("merge"):
        groups = merge_components(found, levels, search.alpha, merging, seed)
        members, counts = sum_groups(found, groups)
    with watch.stage("assign"):
        questions = {
            name: AssignComponents(search, part.members, part.counts, group, len(members))
            for name, part, group in zip(federation.tally.names, found, groups, strict=True)
        }
        federation.ask(questions)
        rng = np.random.default_rng([seed, STREAM, DRAWS])
        weights = rng.dirichlet(search.alpha + members, draws)
        probabilities = levels.draw(counts, draws, rng)
    return RivalResult(
        name="fedmerdel",
        labels=federation.labels(),
        weights=weights,
        probabilities=probabilities,
        levels=schema.levels,
        seconds=watch.seconds,
        bytes_sent=federation.bytes_sent,
        notes=(f"{len(np.concatenate(groups))} local components became {len(members)} clusters.",),
    )


def merge_components(
    found: Sequence[LocalComponents],
    levels: Levels,
    alpha: float,
    merging: Merging,
    seed: int,
) -> list[NDArray[np.int64]]:
    """Return, for each silo (component,), the cluster of its components, largest first."""
    sizes = [len(part.members) for part in found]
    silo = np.repeat(np.arange(len(found)), sizes)
    components = Components(
        members=np.concatenate([part.members for part in found]),
        counts=np.concatenate([part.counts for part in found]),
        held=silo[:, None] == np.arange(len(found)),
        lost=all_losses(found) if merging.pairs == "any" else None,
        levels=levels,
        alpha=alpha,
    )
    rows = components.members.copy()
    if merging.search == "greedy":
        groups = greedy_search(components)
    else:
        groups = random_search(components, np.random.default_rng([seed, STREAM, MERGES]))
    return np.split(largest_first(by_appearance(groups), rows), np.cumsum(sizes)[:-1])


def all_losses(found: Sequence[LocalComponents]) -> NDArray[np.float64]:
    """Return the entropy lost by each pair, zero across silos: (component, component)."""
    total = sum(len(part.members) for part in found)
    lost, first = np.zeros((total, total)), 0
    for part in found:
        last = first + len(part.members)
        if part.lost is not None:
            lost[first:last, first:last] = part.lost
        first = last
    return lost


def sum_groups(
    found: Sequence[LocalComponents], groups: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the members, (cluster,), and counts, (cluster, level), of the merged components."""
    clusters = 1 + max(int(group.max()) for group in groups)
    members = np.zeros(clusters)
    counts = np.zeros((clusters, found[0].counts.shape[1]))
    for part, group in zip(found, groups, strict=True):
        np.add.at(members, group, part.members)
        np.add.at(counts, group, part.counts)
    return members, counts


def _fit(query: FitComponents, silo: Silo) -> LocalComponents:
    schema = silo.shard.schema
    rows = distinct_rows(silo.shard.codes)
    points = Points(one_hot(rows.codes, schema.offsets), rows.counts, schema.offsets)
    problem = Problem(points, Levels(schema.offsets, query.search.beta), query.search)
    rng = np.random.default_rng([silo.study.seed, STREAM, SILO, silo.place])
    fit = fit_mixture(problem, rng)
    lost = entropy_lost(points, fit.shares) if query.losses else None
    return LocalComponents(fit.members, fit.counts, fit.entropy, lost)


def _assign(query: AssignComponents, silo: Silo) -> ClusterSizes:
    schema = silo.shard.schema
    shares = share_out(
        one_hot(silo.shard.codes, schema.offsets),
        query.members,
        query.counts,
        Levels(schema.offsets, query.search.beta),
        query.search.alpha,
    )
    labels = query.groups[shares.argmax(axis=1)]
    return keep_labels(silo, labels, query.clusters)


HANDLERS.update({FitComponents: _fit, AssignComponents: _assign})
