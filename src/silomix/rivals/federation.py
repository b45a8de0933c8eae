"""Common parts of all rivals: silos to ask, rows as cells, one kind of result."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silomix.api import gather_assignment
from silomix.errors import DataError, SettingsError
from silomix.families.categorical import one_hot
from silomix.families.chains import Rows
from silomix.kernels.arrays import Array, Floats, Ints, Reals, sum_by
from silomix.messages.progress import CountingSilos
from silomix.model.reading import Table, read_table
from silomix.model.sentences import at_least, cores, quoted
from silomix.model.table import load
from silomix.silo.local import Silo, split_silos
from silomix.study import Study, make_study
from silomix.study.roster import read_roster
from silomix.study.validation import Record
from silomix.transports.in_process import InProcess

# Keywords of `silomix.fit` about columns.
ABOUT = ("variables", "kinds", "bins", "missing", "na_values")
# Settings of silomix's steps, by step; a rival replaces or omits some steps.
STEPS = {
    "combine": ("aggregation", "oracle", "log_determinant", "solver", "polish", "strategy"),
    "match": ("matching", "absorb", "refine"),
    "partition": ("partition", "one_cluster", "threshold", "subsample", "relabel"),
}


@dataclass(frozen=True, eq=False)
class RivalResult:
    """One clustering of all silos' rows by a method that silomix is compared with.

    Attributes
    ----------
    name : of the function that made it.
    labels : (row,), the cluster of each row, from 0, in the order of the table: the place of its
        cluster in `weights` and `probabilities`.
    weights : (draw, cluster). A point estimate is one draw.
    probabilities : (draw, cluster, level), columns as in `levels`; of numbers the parameters, such
        as mean and standard deviation, in the units of the table.
    levels : of each column, (variable, level or parameter).
    seconds : by stage, CPU seconds of this process on all its threads.
    bytes_sent : by silo, and by kind of reply, bytes that left it.
    notes : plain sentences that a reader of the result should see.

    Examples
    --------
    >>> result = silomix.rivals.fed_kmodes(table, "silo", clusters=5, seed=1)
    >>> result.name, result.labels.shape, result.total_bytes > 0
    ('fed_kmodes', (400,), True)
    """

    name: str
    labels: Ints
    weights: Reals
    probabilities: Reals
    levels: list[tuple[str, str]]
    seconds: Mapping[str, float]
    bytes_sent: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...] = ()

    @property
    def n_clusters(self) -> int:
        """Number of clusters with rows; the arrays may have more."""
        return len(np.unique(self.labels))

    @property
    def total_seconds(self) -> float:
        """CPU seconds of all stages."""
        return sum(self.seconds.values())

    @property
    def total_bytes(self) -> int:
        """Bytes that left all silos."""
        return sum(sum(kinds.values()) for kinds in self.bytes_sent.values())


@dataclass(frozen=True, eq=False)
class Federation:
    """The silos of a table, or one silo with the rows of all.

    Attributes
    ----------
    study : the common settings; a rival's own come with its questions.
    silos : each with its own rows.
    tally : asks them, and counts the bytes of the replies.
    places : (row,), the index of each row's silo.
    threads : cores to use.
    bytes_sent : by silo, and by kind of reply, bytes that left it.
    seconds : by stage, CPU seconds so far.
    """

    study: Study
    silos: InProcess
    tally: CountingSilos
    places: Ints
    threads: int
    bytes_sent: Mapping[str, Mapping[str, int]]
    seconds: dict[str, float] = field(default_factory=dict)

    def ask(self, question: Any) -> list[Any]:
        """Ask every silo one question, or each its own by name; replies in roster order.

        A rival's own question is a function whose last argument is the silo that answers it, the
        others given: `partial(count_blocks)`.
        """
        return list(self.tally.ask(question).values())

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, or a part of it."""
        start = self.seconds.get(name, 0.0) - time.process_time()
        yield
        self.seconds[name] = start + time.process_time()

    def result(self, name: str, weights: Reals, parameters: Reals, *notes: str) -> RivalResult:
        """Result of a rival, with the labels that the silos keep.

        Parameters
        ----------
        weights : (draw, cluster); parameters : (draw, cluster, parameter), in the study's units.
        """
        labels = gather_assignment(self.silos.silos, self.places).labels
        family = self.study.pooled_model.family
        estimates = weights, family.describe(parameters), family.names()
        return RivalResult(name, labels, *estimates, self.seconds, self.bytes_sent, notes)


def open_silos(
    table: Table,
    silo: str | None,
    *,
    seed: int = 0,
    threads: int | None = None,
    pooled: bool = False,
    knows: str = "all",
    own: Mapping[str, int] | None = None,
    unused: Collection[str] = (),
    fixed: dict[str, Any] | None = None,
    **settings: Any,
) -> Federation:
    """Split a table into its silos.

    Parameters
    ----------
    table, silo, seed, threads : as for `silomix.fit`; without a silo column the table is one silo.
    pooled : whether the rows of all silos are pooled in one.
    knows : "categories" or "numbers", if the rival handles no other columns.
    own : the rival's own counts, such as of clusters, by name, each 1 or more.
    unused, fixed : settings that the rival does not have (names, or steps of `STEPS`), or that it
        fixes.
    settings : `ABOUT` columns, as for `silomix.fit`; and of the study, for what the rival shares
        with silomix.

    Raises
    ------
    SettingsError
        When one of the settings is unused or fixed, or a number too small.
    DataError
        When the table has columns that the rival does not handle.
    """
    for name, value in (own or {}).items():
        at_least(name, value, 1)
    fixed, options = fixed or {}, {name: settings.pop(name) for name in ABOUT if name in settings}
    refused = {*fixed, *(name for step in unused for name in STEPS.get(step, (step,)))}
    for name in refused & set(settings):
        raise SettingsError(f"{name} cannot be set in this method; leave it out")
    frame = read_table(table)
    roster = read_roster(frame, silo)
    shard = load(frame, silo=silo, **options)
    unsupported = {"categories": shard.schema.numbers, "numbers": shard.schema.categories}
    if unknown := unsupported.get(knows):
        listed = quoted([variable.name for variable in unknown])
        advice = "leave out or bin" if knows == "categories" else "leave out"
        raise DataError(f"this rival knows {knows} only; {advice} {listed}")
    sizes = np.bincount(roster.places) * sum(part[0].nbytes for part in shard.cells)
    sent = {name: {"rows": int(size)} for name, size in zip(roster.names, sizes, strict=True)}
    roster = read_roster(frame, None) if pooled else roster
    # no polish follows a rival, and its own paper fixes the number of sweeps
    settings = {"adaptive": False, "polish": 0} | settings | fixed
    study = make_study(shard.schema, roster.names, seed=seed, **settings)
    parts = split_silos(shard, roster, study)
    silos = InProcess(parts, threads=cores(threads), handlers={partial: partial.__call__})
    tally = CountingSilos(silos)
    sent = sent if pooled else tally.sent
    return Federation(study, silos, tally, roster.places, cores(threads), sent)


class ClusterSums(NamedTuple):
    """Rows of a silo's clusters, (cluster,), and their sums, (cluster, statistic)."""

    sizes: Ints
    statistics: Array


def sum_clusters(silo: Silo, labels: Ints, clusters: int) -> ClusterSums:
    """Sizes and sums of the clusters of a silo's rows, given their labels: (row,)."""
    rows = Rows(silo.shard, silo.study.pooled_model.family)
    sums = rows.sum_statistics(labels, clusters)
    return ClusterSums(np.bincount(labels, minlength=clusters), sums)


def keep_labels(silo: Silo, labels: Ints, clusters: int) -> Ints:
    """Keep a silo's clusters of its rows, (row,), in its store; their sizes: (cluster,)."""
    silo.store.assign(np.eye(clusters, dtype=np.float32)[labels])
    return np.bincount(labels, minlength=clusters)


class Options(Record):
    """Settings of a rival, checked as those of a study; by name, or by position."""

    def __init__(self, *values: Any, **settings: Any) -> None:
        names = list(type(self).model_fields)[: len(values)]
        super().__init__(**dict(zip(names, values, strict=True)), **settings)


class Points(NamedTuple):
    """Points to cluster.

    Attributes
    ----------
    cells : (point, level), 1 for the level of a point; missing cells have none.
    counts : (point,), rows of each.
    offsets : (variable + 1,), index of each variable's first level.
    """

    cells: Floats
    counts: Ints
    offsets: Ints


def points_of(codes: NDArray[np.integer], offsets: Ints, counts: Ints | None = None) -> Points:
    """Rows of codes, (row, variable), as points; each is one row without counts."""
    cells = one_hot(codes.astype(np.uint32), offsets)
    return Points(cells, np.ones(len(codes), np.int64) if counts is None else counts, offsets)


def merge_clusters(groups: Ints, sizes: Floats, counts: Floats) -> tuple[Ints, Floats, Floats]:
    """Add up clusters by group, the largest group first.

    Parameters
    ----------
    groups : (cluster,), 0, 1, …, none of them empty.
    sizes : (cluster,), rows; counts : (cluster, level), cells.

    Returns
    -------
    groups : (cluster,), renumbered by decreasing rows, ties in their order.
    sizes : (group,); counts : (group, level).
    """
    order = np.argsort(-np.bincount(groups, weights=sizes), kind="stable")
    groups = np.argsort(order)[groups]
    return groups, sum_by(groups, sizes, len(order)), sum_by(groups, counts, len(order))
