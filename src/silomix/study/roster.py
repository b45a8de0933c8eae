"""The silos of a table: their names, their rows, and the rows' identifiers."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.errors import DataError, DataWarning, cell, warn
from silomix.model.columns import alike
from silomix.model.reading import Table, find_column, read_cells, read_table
from silomix.model.sentences import did_you_mean, plural, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    import narwhals as nw

    from silomix.kernels.arrays import Array, Ints
    from silomix.study import Study

DIGITS = re.compile(r"([0-9]+)")
SPLIT_STREAM = 0x73706C
# Repeated identifiers that a message names; the others are only counted.
MOST_NAMED = 3


class Roster(NamedTuple):
    """The silos of a table.

    Attributes
    ----------
    names : in natural order, in which "site 2" comes before "site 10".
    places : (row,), index of each row's silo in `names`.
    """

    names: tuple[str, ...]
    places: Ints


def read_roster(table: Table, column: str | None) -> Roster:
    """Silos in a column, spelled as levels are; without a column, a single silo.

    Raises
    ------
    DataError
        When there is no such column, or it is empty in a row.
    """
    frame = read_table(table)
    if column is None:
        return Roster(("all",), np.zeros(len(frame), dtype=np.int64))
    silos = find_column(frame, column, "to tell the silos apart")
    cells = read_cells(silos, f"the silo column {column!r}")
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
    """Identifier of each row, spelled as in the table: (row,).

    Parameters
    ----------
    is_repeated : whether repeated identifiers are intended; otherwise a warning names them.
    """
    cells = read_cells(find_column(read_table(table), column, "to name its rows"), f"{column!r}")
    rows = np.bincount(cells.codes[~cells.missing])
    repeated = [cells.texts[place] for place in np.flatnonzero(rows > 1)]
    named, n = int((rows == 1).sum()), len(cells.codes)
    if not is_repeated and named < n:
        problem = f"the column {column!r} tells {named} of {plural(n, 'row')} apart (it repeats "
        several = cell(quoted(repeated, MOST_NAMED), plural(len(repeated), "value"))
        problem += f"{several if repeated else 'only blank cells'})"
        warn(DataWarning(f"{problem}; each row is clustered by itself"))
    return np.array([*cells.texts, None], dtype=object)[cells.codes]


def random_shards(rows: int, shards: int, seed: int) -> Roster:
    """Split rows at random into shards whose sizes differ by at most one."""
    order = np.random.default_rng([seed, SPLIT_STREAM]).permutation(rows)
    return Roster(tuple(f"shard {place + 1}" for place in range(shards)), order % shards)


def own_rows(table: Table, column: str | None, silo: str, study: Study) -> nw.DataFrame[Any]:
    """Rows of one silo of a study: those that a column assigns to it, or all rows.

    Without a column, warn of one that seems to name the study's silos: other silos' rows would be
    taken for this one's.
    """
    frame = read_table(table)
    if column is not None:
        names, places = read_roster(frame, column)
        if silo not in names:
            absent = set(names).difference(study.silos)  # another silo is not meant
            raise DataError(
                f"the silo column {column!r} has no row of {silo!r}"
                + cell(f"{did_you_mean(silo, absent)}; it has {quoted(names)}: ", "; ")
                + "correct the name, or check that this is the right table"
            )
        return frame[np.flatnonzero(places == names.index(silo))]
    variables = {variable.column for variable in study.table_schema.variables}
    for name, names_in_it in silo_columns(frame, study.silos, variables).items():
        if len(names_in_it) > 1:
            text = f"all {len(frame)} rows are taken for those of {silo!r}"
            but = f"though the column {name!r} names {len(names_in_it)} silos of the study"
            advice = "if they are not, name the column that tells the silos apart (--silo-column)"
            warn(DataWarning(f"{text}, {but}; {advice}"))
    return frame


def silo_columns(
    frame: nw.DataFrame[Any], silos: Iterable[str], variables: set[str]
) -> dict[str, list[str]]:
    """Columns, variables excluded, with nothing but names of silos, and these names."""
    names, columns = set(silos), {}
    for name in frame.columns:
        with suppress(DataError):  # cells that are no levels are no names either
            texts = [] if name in variables else read_cells(frame.get_column(name), name).texts
            if texts and names.issuperset(texts):
                columns[name] = texts
    return columns


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sorting key by which numbers inside names count as numbers."""
    parts = [part for part in DIGITS.split(name) if part]
    return [(0, int(p), "") if DIGITS.fullmatch(p) else (1, 0, p) for p in parts], name
