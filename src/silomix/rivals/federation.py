"""What every rival starts from and returns: a table as silos to ask, and one kind of result."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.api import gather_assignment
from silomix.coordinator.pipeline import Tally
from silomix.errors import SettingsError
from silomix.model.reading import read_table
from silomix.model.schema import Shard
from silomix.model.table import load
from silomix.silo.local import Silo
from silomix.study import make_study
from silomix.study.roster import Roster, choose_variables, read_roster
from silomix.study.validation import cores
from silomix.transports.in_process import InProcess

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from silomix.kernels.arrays import Ints
    from silomix.model.reading import Table
    from silomix.model.schema import Missing
    from silomix.study import Study

# Settings of what silomix does with the silos' draws, which a rival does in its own way.
COMBINING = ("aggregation", "oracle", "log_determinant", "solver", "polish", "strategy")
MATCHING = ("matching", "absorb", "refine")


@dataclass(frozen=True, eq=False)
class RivalResult:
    """One clustering of all silos' rows by a method that silomix is compared with.

    Attributes
    ----------
    name : of the function that made it.
    labels : (row,), the cluster of each row, from 0, in the order of the table: the place of its
        cluster in `weights` and `probabilities`.
    weights : (draw, cluster). A point estimate is one draw.
    probabilities : (draw, cluster, level), columns as in `levels`.
    levels : what each level column stands for: (variable, level).
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
    weights: NDArray[np.floating]
    probabilities: NDArray[np.floating]
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
    tally: Tally
    places: Ints
    threads: int
    bytes_sent: Mapping[str, Mapping[str, int]]
    seconds: dict[str, float] = field(default_factory=dict)

    def ask(self, question: Any) -> list[Any]:
        """Ask every silo one question, or each its own by name; replies in roster order.

        A rival's own question is a function of the silo that answers it, the rest of its arguments
        given: `partial(count_blocks)`.
        """
        return list(self.tally.ask(question).values())

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Take the time of a stage."""
        start = time.process_time()
        yield
        self.seconds[name] = time.process_time() - start

    def result(
        self,
        name: str,
        weights: NDArray[np.floating],
        probabilities: NDArray[np.floating],
        *notes: str,
        labels: Ints | None = None,
    ) -> RivalResult:
        """Return the result of a rival; labels are those that the silos keep when left out."""
        if labels is None:
            labels = gather_assignment(self.silos.silos, self.places).labels
        levels = self.study.table_schema.levels
        return RivalResult(
            name, labels, weights, probabilities, levels, self.seconds, self.bytes_sent, notes
        )


def open_silos(
    table: Table,
    silo: str | None,
    *,
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    pooled: bool = False,
    unused: Collection[str] = (),
    fixed: dict[str, Any] | None = None,
    **settings: Any,
) -> Federation:
    """Split a table into its silos.

    Parameters
    ----------
    table, silo, variables, missing, seed, threads : as for `silomix.fit`; without a silo column
        the table is one silo.
    pooled : whether every row leaves its silo, for one that has them all.
    unused, fixed : settings that the rival does not have, or has values of its own for.
    settings : of the study, for what the rival shares with silomix.

    Raises
    ------
    SettingsError
        When one of the settings is unused or fixed.
    """
    fixed = fixed or {}
    for name in settings:
        if name in unused or name in fixed:
            raise SettingsError(f"{name} cannot be set in this method; leave it out")
    frame = read_table(table)
    everyone = Roster(("all",), np.zeros(len(frame), dtype=np.int64))
    roster = everyone if silo is None else read_roster(frame, silo)
    shard = load(frame, variables=choose_variables(frame, variables, silo), missing=missing)
    sizes = np.bincount(roster.places) * shard.codes[0].nbytes
    sent = {name: {"rows": int(size)} for name, size in zip(roster.names, sizes, strict=True)}
    names, places = (everyone.names, everyone.places) if pooled else (roster.names, roster.places)
    # no polish follows a rival, and its own paper fixes the number of sweeps
    settings = {"adaptive": False, "polish": 0} | settings | fixed
    study = make_study(shard.schema, names, seed=seed, **settings)
    shards = [Shard(shard.schema, shard.codes[places == place]) for place in range(len(names))]
    own = [Silo(name, place, shards[place], study) for place, name in enumerate(names)]
    silos = InProcess(own, threads=cores(threads), handlers={partial: _call})
    tally = Tally(silos)
    return Federation(study, silos, tally, places, cores(threads), sent if pooled else tally.sent)


def _call(question: partial[Any], silo: Silo) -> Any:
    return question(silo=silo)


def one_of(setting: str, word: str, choices: Collection[str]) -> None:
    """Refuse a word that is not among the choices."""
    if word not in choices:
        raise SettingsError(f"{setting}={word!r} is unknown; choose from {list(choices)}")


def positive(record: object, *names: str) -> None:
    """Refuse a record with a parameter that is not above zero."""
    for name in names:
        if not getattr(record, name) > 0:
            raise SettingsError(f"{name} is {getattr(record, name)}; it must be above 0")


def keep_labels(silo: Silo, labels: Ints, clusters: int) -> Ints:
    """Have a silo keep its rows' clusters, (row,); return how many are in each: (cluster,)."""
    silo.store.assign(np.eye(clusters, dtype=np.float32)[labels])
    return np.bincount(labels, minlength=clusters)
