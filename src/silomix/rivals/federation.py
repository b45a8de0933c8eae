"""What every rival starts from and returns: silos to ask, rows as cells, one kind of result."""

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
from silomix.coordinator.pipeline import CountingSilos
from silomix.errors import DataError, SettingsError
from silomix.families.categorical import one_hot
from silomix.families.dirichlet import log_evidence, sum_by
from silomix.kernels.arrays import Floats, Ints, Reals
from silomix.model.reading import Table, read_table
from silomix.model.sentences import at_least, quoted
from silomix.model.table import load
from silomix.silo.local import Silo
from silomix.study import Study, make_study
from silomix.study.roster import read_roster
from silomix.study.validation import Record, cores
from silomix.transports.in_process import InProcess

# What `silomix.fit` is told of columns.
ABOUT = ("variables", "kinds", "bins", "missing", "na_values")
# Settings of silomix's steps, by the step that a rival does in its own way, or does without.
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
    levels : what each column stands for: (variable, level or parameter).
    seconds : by stage, CPU seconds of this process on all its threads.
    bytes_sent : by silo, and by kind of reply, what left it.
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
        """Number of clusters that hold rows; the arrays may know of more."""
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
    study : what they agreed on; a rival's own settings come with its questions.
    silos : each with its own rows.
    tally : asks them, and counts the bytes of the replies.
    places : (row,), the index of each row's silo.
    threads : cores to use.
    bytes_sent : by silo, and by kind of reply, what left it.
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
        """Take the time of a stage, or of a part of it."""
        start = self.seconds.get(name, 0.0) - time.process_time()
        yield
        self.seconds[name] = start + time.process_time()

    def result(self, name: str, weights: Reals, parameters: Reals, *notes: str) -> RivalResult:
        """Return the result of a rival; the labels are those that the silos keep.

        Parameters
        ----------
        weights : (draw, cluster); parameters : (draw, cluster, parameter), in the study's units.
        """
        labels = gather_assignment(self.silos.silos, self.places).labels
        family = self.study.pooled_model.family
        found = weights, family.describe(parameters), family.names()
        return RivalResult(name, labels, *found, self.seconds, self.bytes_sent, notes)


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
    pooled : whether every row leaves its silo, for one that has them all.
    knows : "categories" or "numbers", if the rival knows no other columns.
    own : numbers that only the rival has, such as of its clusters, by name, each 1 or more.
    unused, fixed : settings that the rival does not have, all those of some of `STEPS`, or has
        values of its own for.
    settings : `ABOUT` columns, as for `silomix.fit`; and of the study, for what the rival shares
        with silomix.

    Raises
    ------
    SettingsError
        When one of the settings is unused or fixed, or a number too small.
    DataError
        When the table has columns that the rival does not know.
    """
    for name, value in (own or {}).items():
        at_least(name, value, 1)
    fixed, about = fixed or {}, {name: settings.pop(name) for name in ABOUT if name in settings}
    refused = {*fixed, *(name for step in unused for name in STEPS.get(step, (step,)))}
    for name in refused & set(settings):
        raise SettingsError(f"{name} cannot be set in this method; leave it out")
    frame = read_table(table)
    roster = read_roster(frame, silo)
    shard = load(frame, silo=silo, **about)
    others = {"categories": shard.schema.numbers, "numbers": shard.schema.categories}
    if unknown := others.get(knows):
        listed = quoted([variable.name for variable in unknown])
        advice = "leave out or bin" if knows == "categories" else "leave out"
        raise DataError(f"this rival knows {knows} only; {advice} {listed}")
    sizes = np.bincount(roster.places) * sum(part[0].nbytes for part in shard.cells)
    sent = {name: {"rows": int(size)} for name, size in zip(roster.names, sizes, strict=True)}
    names, places = read_roster(frame, None) if pooled else roster
    # no polish follows a rival, and its own paper fixes the number of sweeps
    settings = {"adaptive": False, "polish": 0} | settings | fixed
    study = make_study(shard.schema, names, seed=seed, **settings)
    parts = [
        Silo(name, place, shard.some(places == place), study) for place, name in enumerate(names)
    ]
    silos = InProcess(parts, threads=cores(threads), handlers={partial: partial.__call__})
    tally = CountingSilos(silos)
    return Federation(study, silos, tally, places, cores(threads), sent if pooled else tally.sent)


def keep_labels(silo: Silo, labels: Ints, clusters: int) -> Ints:
    """Have a silo keep its rows' clusters, (row,); return how many are in each: (cluster,)."""
    silo.store.assign(np.eye(clusters, dtype=np.float32)[labels])
    return np.bincount(labels, minlength=clusters)


class Options(Record):
    """Settings of a rival, checked as those of a study are; by name, or in their order."""

    def __init__(self, *values: Any, **settings: Any) -> None:
        names = list(type(self).model_fields)[: len(values)]
        super().__init__(**dict(zip(names, values, strict=True)), **settings)


class Levels(NamedTuple):
    """Categories and their prior.

    Attributes
    ----------
    offsets : (variable + 1,), where each variable's levels start; prior : (level,), shapes.
    """

    offsets: Ints
    prior: Floats

    def evidence(self, counts: Floats) -> Floats:
        """Return ln p(cells), probabilities integrated out: (...,) from (..., level)."""
        return np.asarray(log_evidence(counts, self.offsets, self.prior).sum(axis=-1))


class Points(NamedTuple):
    """What is clustered.

    Attributes
    ----------
    cells : (point, level), one for the level a point has; a missing cell is in no column.
    counts : (point,), how many rows each stands for.
    offsets : (variable + 1,), where each variable's levels start.
    """

    cells: Floats
    counts: Ints
    offsets: Ints


def points_of(codes: NDArray[np.integer], offsets: Ints, counts: Ints | None = None) -> Points:
    """Return rows of codes, (row, variable), as points; each is one row without counts."""
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
    groups : (cluster,), numbered anew by decreasing rows, equal ones as before.
    sizes : (group,); counts : (group, level).
    """
    order = np.argsort(-np.bincount(groups, weights=sizes), kind="stable")
    groups = np.argsort(order)[groups]
    return groups, sum_by(groups, sizes, len(order)), sum_by(groups, counts, len(order))
