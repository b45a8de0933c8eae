"""From a table to its study: who is in the silo column, which rows are whose, which levels."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import DataError, DataWarning
from silomix.model.reading import read_cells, read_table
from silomix.model.sentences import did_you_mean, plural, quoted
from silomix.model.table import expand, infer_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import narwhals as nw

    from silomix.kernels.arrays import Ints
    from silomix.model.reading import Table
    from silomix.model.schema import Missing, Schema
    from silomix.study import Study

DIGITS = re.compile(r"([0-9]+)")
SPLIT_STREAM = 0x73706C
# A silo with fewer rows than both, the second of the median silo's, may be there by mistake.
TINY_ROWS, TINY_SHARE = 30, 0.1


@dataclass(frozen=True, eq=False)
class Roster:
    """The silos of a table.

    Attributes
    ----------
    names : in natural order, in which "site 2" comes before "site 10".
    places : (row,), the place of each row's silo in `names`.
    """

    names: tuple[str, ...]
    places: Ints


def table_schema(
    table: Table,
    *,
    silo: str | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    frequency: str | None = None,
) -> Schema:
    """Return the schema of a table, inferred over the rows of all its silos.

    Parameters
    ----------
    table : a frame or the path of a file.
    silo : the column that names the silos, if there is one; it is no variable.
    variables : the columns to use; by default all but the silo and frequency columns.
    missing, frequency : as for `silomix.sample`.
    """
    frame = read_table(table)
    if frequency is not None:
        frame = expand(frame, frequency)
    if variables is None:
        variables = [name for name in frame.columns if name != silo]
    return infer_schema(frame, variables=variables, missing=missing)


def read_roster(table: Table, column: str) -> Roster:
    """Return the silos that a column names, spelled as levels are.

    Raises
    ------
    DataError
        When there is no such column, or a row does not say whose it is.
    """
    frame, column = read_table(table), str(column)
    if column not in frame.columns:
        raise DataError(
            f"the table has no column {column!r} to tell the silos apart"
            f"{did_you_mean(column, frame.columns)}; its columns are "
            f"{quoted(frame.columns)}: correct the name"
        )
    cells = read_cells(frame.get_column(column), f"the silo column {column!r}")
    if cells.missing.any():
        raise DataError(
            f"the silo column {column!r} is empty in data row {np.argmax(cells.missing) + 1}; "
            "say whose row it is, or remove it"
        )
    names = sorted(cells.texts, key=natural)
    place = {name: number for number, name in enumerate(names)}
    places = np.array([place[text] for text in cells.texts], dtype=np.int64)
    return Roster(tuple(names), places[cells.codes])


def choose_variables(
    frame: nw.DataFrame[Any], variables: Sequence[str] | None, silo: str | None
) -> list[str]:
    """Return the columns to cluster: those named, or all but the one that names the silos.

    Raises
    ------
    DataError
        When the column that names the silos is among those named.
    """
    column = None if silo is None else str(silo)
    if variables is None:
        return [name for name in frame.columns if name != column]
    names = [str(name) for name in variables]
    if column in names:
        raise DataError(
            f"column {column!r} names the silos and is among the variables too; leave it out of "
            "one of them"
        )
    return names


def warn_tiny(roster: Roster) -> None:
    """Warn of silos that are much smaller than the others: a name may be misspelt."""
    sizes = np.bincount(roster.places, minlength=len(roster.names))
    tiny = (sizes < TINY_ROWS) & (sizes < TINY_SHARE * np.median(sizes))
    for place in np.flatnonzero(tiny):
        name = roster.names[place]
        others = [roster.names[other] for other in np.flatnonzero(~tiny)]
        warnings.warn(
            f"silo {name!r} has only {plural(int(sizes[place]), 'row')}"
            f"{did_you_mean(name, others)}; it adds little but errors of its own: join it with "
            "another, or correct its name",
            DataWarning,
            stacklevel=4,
        )


def random_shards(rows: int, shards: int, seed: int) -> Roster:
    """Split rows at random into shards whose sizes differ by at most one."""
    order = np.random.default_rng([seed, SPLIT_STREAM]).permutation(rows)
    return Roster(tuple(f"shard {place + 1}" for place in range(shards)), order % shards)


def rows_of(table: Table, column: str, silo: str) -> nw.DataFrame[Any]:
    """Return the rows of one silo."""
    frame = read_table(table)
    roster = read_roster(frame, column)
    if silo not in roster.names:
        raise DataError(
            f"the silo column {column!r} has no row of {silo!r}"
            f"{did_you_mean(silo, roster.names)}; it has "
            f"{quoted(roster.names)}: correct the name, or check that this is the right table"
        )
    return frame[np.flatnonzero(roster.places == roster.names.index(silo))]


def own_rows(table: Table, column: str | None, silo: str, study: Study) -> nw.DataFrame[Any]:
    """Return the rows of one silo of a study: those a column says are its own, or all rows.

    Without a column, one that looks as if it named the study's silos is worth a warning: the rows
    of others would be taken for this silo's.
    """
    if column is not None:
        return rows_of(table, column, silo)
    frame = read_table(table)
    variables = {variable.name for variable in study.table_schema.variables}
    for name, found in silo_columns(frame, study.silos, variables).items():
        if len(found) > 1:
            warnings.warn(
                f"all {len(frame)} rows are taken for those of {silo!r}, though the column "
                f"{name!r} names {len(found)} silos of the study; if they are not, name the column "
                "that tells the silos apart (--silo-column)",
                DataWarning,
                stacklevel=2,
            )
    return frame


def silo_columns(
    frame: nw.DataFrame[Any], silos: Iterable[str], variables: set[str]
) -> dict[str, list[str]]:
    """Return the columns, variables apart, that hold names of silos and nothing else.

    Each comes with the names that it holds.
    """
    known, found = set(silos), {}
    for name in frame.columns:
        texts = [] if name in variables else _texts(frame.get_column(name))
        if texts and known.issuperset(texts):
            found[name] = texts
    return found


def _texts(column: nw.Series[Any]) -> list[str]:
    try:
        return read_cells(column, column.name).texts
    except DataError:
        return []  # cells that are no levels are no names either


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sorting key by which numbers inside names count as numbers."""
    parts = [part for part in DIGITS.split(name) if part]
    numbered = [(0, int(p), "") if DIGITS.fullmatch(p) else (1, 0, p) for p in parts]
    return numbered, name
