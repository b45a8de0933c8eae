"""The silos of a table: who is in the silo column, which rows are whose, what rows are called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.errors import DataError, DataWarning, cell, warn
from silomix.model.reading import Table, find_column, read_cells, read_table
from silomix.model.sentences import did_you_mean, plural, quoted
from silomix.model.suspicions import alike

if TYPE_CHECKING:
    from collections.abc import Iterable

    import narwhals as nw

    from silomix.kernels.arrays import Array, Ints
    from silomix.model.reading import Table
    from silomix.study import Study

DIGITS = re.compile(r"([0-9]+)")
SPLIT_STREAM = 0x73706C
# Ids that a message names; the others are only counted.
MOST_NAMED = 3


class Roster(NamedTuple):
    """The silos of a table.

    Attributes
    ----------
    names : in natural order, in which "site 2" comes before "site 10".
    places : (row,), the place of each row's silo in `names`.
    """

    names: tuple[str, ...]
    places: Ints


def read_roster(table: Table, column: str | None) -> Roster:
    """Return the silos that a column names, spelled as levels are; without one, a single silo.

    Raises
    ------
    DataError
        When there is no such column, or a row does not say whose it is.
    """
    frame = read_table(table)
    if column is None:
        return Roster(("all",), np.zeros(len(frame), dtype=np.int64))
    found = find_column(frame, column, "to tell the silos apart")
    cells = read_cells(found, f"the silo column {column!r}")
    if cells.missing.any():
        row = np.argmax(cells.missing) + 1
        raise DataError(
            f"the silo column {column!r} is empty in data row {row}; fill it in or remove the row"
        )
    for group in alike(cells.texts):
        text = f"the silo column {column!r} has {cell(quoted(group), plural(len(group), 'name'))}"
        raise DataError(f"{text}, which differ only in capitals or spaces: spell them alike")
    names = sorted(cells.texts, key=natural)
    places = np.array([names.index(text) for text in cells.texts], dtype=np.int64)
    return Roster(tuple(names), places[cells.codes])


def read_ids(table: Table, column: str, *, is_repeated: bool = False) -> Array:
    """Return what a column calls each row, spelled as in the table: (row,).

    Parameters
    ----------
    is_repeated : whether rows stand there several times on purpose; otherwise a warning says so.
    """
    cells = read_cells(find_column(read_table(table), column, "to name its rows"), f"{column!r}")
    rows = np.bincount(cells.codes[~cells.missing])
    repeated = [cells.texts[place] for place in np.flatnonzero(rows > 1)]
    named, n = int((rows == 1).sum()), len(cells.codes)
    if not is_repeated and named < n:
        told = f"the column {column!r} tells {named} of {plural(n, 'row')} apart (it repeats "
        several = cell(quoted(repeated, MOST_NAMED), plural(len(repeated), "value"))
        told += f"{several if repeated else 'only blank cells'})"
        warn(DataWarning(f"{told}; each row is clustered by itself"))
    return np.array([*cells.texts, None], dtype=object)[cells.codes]


def random_shards(rows: int, shards: int, seed: int) -> Roster:
    """Split rows at random into shards whose sizes differ by at most one."""
    order = np.random.default_rng([seed, SPLIT_STREAM]).permutation(rows)
    return Roster(tuple(f"shard {place + 1}" for place in range(shards)), order % shards)


def own_rows(table: Table, column: str | None, silo: str, study: Study) -> nw.DataFrame[Any]:
    """Return the rows of one silo of a study: those a column says are its own, or all rows.

    Without a column, one that looks as if it named the study's silos is worth a warning: the rows
    of others would be taken for this silo's.
    """
    frame = read_table(table)
    if column is not None:
        names, places = read_roster(frame, column)
        if silo not in names:
            others = set(names).difference(study.silos)  # another silo is not meant
            raise DataError(
                f"the silo column {column!r} has no row of {silo!r}"
                + cell(f"{did_you_mean(silo, others)}; it has {quoted(names)}: ", "; ")
                + "correct the name, or check that this is the right table"
            )
        return frame[np.flatnonzero(places == names.index(silo))]
    variables = {variable.column for variable in study.table_schema.variables}
    for name, found in silo_columns(frame, study.silos, variables).items():
        if len(found) > 1:
            taken = f"all {len(frame)} rows are taken for those of {silo!r}"
            but = f"though the column {name!r} names {len(found)} silos of the study"
            advice = "if they are not, name the column that tells the silos apart (--silo-column)"
            warn(DataWarning(f"{taken}, {but}; {advice}"))
    return frame


def silo_columns(
    frame: nw.DataFrame[Any], silos: Iterable[str], variables: set[str]
) -> dict[str, list[str]]:
    """Return the columns, variables apart, that hold names of silos and nothing else.

    Each comes with the names that it holds.
    """
    known, found = set(silos), {}
    for name in frame.columns:
        if name in variables:
            continue
        try:
            texts = read_cells(frame.get_column(name), name).texts
        except DataError:
            continue  # cells that are no levels are no names either
        if texts and known.issuperset(texts):
            found[name] = texts
    return found


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sorting key by which numbers inside names count as numbers."""
    parts = [part for part in DIGITS.split(name) if part]
    numbered = [(0, int(p), "") if DIGITS.fullmatch(p) else (1, 0, p) for p in parts]
    return numbered, name
