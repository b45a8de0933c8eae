"""Table → Schema, table and Schema → Shard."""

from __future__ import annotations

import re
import warnings
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from silomix.errors import DataError, DataWarning, SettingsError
from silomix.model.draws import MISSING_LEVEL
from silomix.model.reading import PACKED_TEXT, Cells, declared_levels, read_cells, read_table
from silomix.model.schema import Missing, Schema, Shard, Variable
from silomix.model.sentences import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import narwhals as nw

    from silomix.kernels.arrays import Bools, Ints
    from silomix.model.reading import Table

# The one level of a variable that no row of the table has: every cell of it is missing.
UNOBSERVED_LEVEL = "(unobserved)"

# A column with more numbers, days or all-different texts is not taken for categorical.
MOST_LEVELS = 50

# Counts of rows that add up to more are a mistake.
MOST_ROWS = 10**9

# Texts that other programs write for a missing cell.
LIKE_MISSING = (".", "?", "-")

NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
DAY = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?", re.ASCII)


def load(
    table: Table,
    *,
    schema: Schema | None = None,
    variables: Sequence[str] | None = None,
    frequency: str | None = None,
    missing: Missing = "marginalise",
    where: str = "the table",
) -> Shard:
    """Read a table, check it, and return its rows as level codes.

    Parameters
    ----------
    table : a frame or the path of a file, as for `read_table`.
    schema : what the table must agree with; inferred from the table by default.
    variables : the columns to use when the schema is inferred; all by default.
    frequency : the column that says how many rows each row stands for.
    missing : what a missing cell means when the schema is inferred; a schema has its own.
    where : what messages call the table, such as the name of its silo.
    """
    if schema is not None and variables is not None:
        raise SettingsError("give schema or variables, not both: a schema names its variables")
    frame = read_table(table)
    if frequency is not None:
        frame = expand(frame, frequency, where=where)
        where = f"{where}, rows repeated by {frequency!r}"
    if schema is None:
        schema = infer_schema(frame, variables=variables, missing=missing, where=where)
    return encode(frame, schema, where=where)


def expand(table: Table, frequency: str, *, where: str = "the table") -> nw.DataFrame[Any]:
    """Return the table with each row repeated as often as its column `frequency` says.

    That column is dropped; a row with a count of zero disappears.
    """
    frame, frequency = read_table(table), str(frequency)
    _check_names([frequency], frame, where)
    cells = read_cells(frame.get_column(frequency), f"{where}: column {frequency!r}")
    is_count = np.array([text.isdecimal() for text in cells.texts] + [False])
    wrong = np.flatnonzero(~is_count[cells.codes])
    if wrong.size:
        code = cells.codes[wrong[0]]
        found = "a missing cell" if code < 0 else repr(cells.texts[code])
        raise DataError(
            f"{where}: column {frequency!r} has {found} in data row {wrong[0] + 1}; a count of "
            "rows is whole, zero or more: correct it or remove the row"
        )
    counts = [int(text) for text in cells.texts]
    total = sum(map(int.__mul__, counts, np.bincount(cells.codes, minlength=len(counts)).tolist()))
    if total > MOST_ROWS:
        raise DataError(
            f"{where}: the counts in column {frequency!r} add up to {total} rows, more than "
            f"{MOST_ROWS}: correct them"
        )
    repeats = np.array(counts, dtype=np.int64)[cells.codes]
    return frame.drop(frequency)[np.repeat(np.arange(len(frame)), repeats)]


def infer_schema(
    table: Table,
    *,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    where: str = "the table",
) -> Schema:
    """Return the variables and levels that a table has.

    A pandas categorical, a polars Enum or an ordered Arrow dictionary declares its levels:
    their order is kept, and so are those that no row has. Other columns have the levels that
    are observed, in numeric order when all are numbers, otherwise in lexical order. A column
    that is missing in every row becomes a variable with the one level `UNOBSERVED_LEVEL`
    (`MISSING_LEVEL` under `missing="level"`), which has no effect, and a warning.

    Parameters
    ----------
    table : a frame or the path of a file, as for `read_table`.
    variables : the columns to use; all by default.
    missing : "marginalise", or "level" to give `MISSING_LEVEL` to variables with missing cells.
    where : what messages call the table.
    """
    if missing not in get_args(Missing):
        raise SettingsError(f"{{missing}} is not one of {get_args(Missing)}", missing=missing)
    frame = read_table(table)
    names = [str(name) for name in (frame.columns if variables is None else variables)]
    _check_names(names, frame, where)
    _check_rows(frame, 2, where)
    packed = PACKED_TEXT in getattr(frame.to_native(), "attrs", {})
    inferred = []
    for name in names:
        column = frame.get_column(name)
        label = f"{where}: column {name!r}"
        declared = None if packed else declared_levels(column)
        cells = read_cells(column, label)
        inferred.append(_infer_levels(cells, declared, missing, label))
        _warn_like_missing(cells, label)
    _warn_constant(names, inferred, where)
    return Schema(tuple(map(Variable, names, inferred)), missing)


def encode(table: Table, schema: Schema, *, where: str = "the table") -> Shard:
    """Check a table against a schema and return all its rows as level codes.

    Parameters
    ----------
    table : a frame or the path of a file, as for `read_table`; one row is enough, and columns
        that the schema does not name are ignored.
    schema : the variables and their levels.
    where : what messages call the table, such as the name of its silo.
    """
    frame = read_table(table)
    _check_names([variable.name for variable in schema.variables], frame, where)
    _check_rows(frame, 1, where)
    kind = np.min_scalar_type(int(schema.sizes.max()))
    codes = np.empty((len(frame), len(schema.variables)), dtype=kind)
    for place, variable in enumerate(schema.variables):
        label = f"{where}: column {variable.name!r}"
        cells = read_cells(frame.get_column(variable.name), label)
        codes[:, place] = _level_codes(cells, variable, schema.missing, label)
    return Shard(schema, codes)


def _infer_levels(
    cells: Cells, declared: list[str] | None, missing: Missing, label: str
) -> tuple[str, ...]:
    if declared is None:
        _check_countable(cells, label)
    levels = _in_order(cells.texts) if declared is None else declared
    _check_spaces(levels, label)
    if not levels:
        _warn_missing_in_full(label)
    if missing == "level" and cells.missing.any():
        levels = [level for level in levels if level != MISSING_LEVEL] + [MISSING_LEVEL]
    return tuple(levels or [UNOBSERVED_LEVEL])


def _in_order(levels: list[str]) -> list[str]:
    if all(NUMBER.fullmatch(level) for level in levels):
        return sorted(levels, key=lambda level: (float(level), level))
    return sorted(levels)


def _level_codes(cells: Cells, variable: Variable, missing: Missing, label: str) -> Ints:
    """Return the level code of each cell: (row,)."""
    codes = {level: code for code, level in enumerate(variable.levels)}
    blank = codes.get(MISSING_LEVEL, -1) if missing == "level" else len(variable.levels)
    for place, text in enumerate(cells.texts):
        if text not in codes:
            raise DataError(_unseen(repr(text), cells.codes == place, variable, label), schema=None)
    if blank < 0 and cells.missing.any():
        found = f"a missing cell, which is a level of its own here ({MISSING_LEVEL!r})"
        raise DataError(_unseen(found, cells.missing, variable, label), schema=None)
    if cells.missing.all() and variable.levels not in {(UNOBSERVED_LEVEL,), (MISSING_LEVEL,)}:
        _warn_missing_in_full(label)
    lookup = np.array([codes[text] for text in cells.texts] + [blank], dtype=np.int64)
    return lookup[cells.codes]


def _unseen(found: str, cells: Bools, variable: Variable, label: str) -> str:
    return (
        f"{label} has {found} in data row {np.argmax(cells) + 1}, not in its schema, which has "
        f"{quoted(variable.levels)}; add it to the {{schema}} of all silos, or recode the column"
    )


def _check_names(names: list[str], frame: nw.DataFrame[Any], where: str) -> None:
    columns = frame.columns
    if not columns:
        raise DataError(f"{where} has no columns; give one column per variable")
    if not names:
        raise DataError(f"{where}: no variables to use; name at least one column")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{where}: variable {twice!r} is named more than once; name it once")
    known = set(columns)
    absent = [name for name in names if name not in known]
    if absent:
        near = get_close_matches(absent[0], columns, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise DataError(
            f"{where} has no column {absent[0]!r}{hint}; its columns are {quoted(columns)}: "
            "correct the name or add the column"
        )


def _check_rows(frame: nw.DataFrame[Any], least: int, where: str) -> None:
    if len(frame) == 0:
        raise DataError(f"{where} has no rows; give a table with one row per unit")
    if len(frame) < least:
        raise DataError(
            f"{where} has a single row, and clusters need at least {least} to learn from; give "
            "more rows, or a {schema} if this is one silo of a study",
            schema=None,
        )


def _check_countable(cells: Cells, label: str) -> None:
    numbers = [text for text in cells.texts if NUMBER.fullmatch(text) or DAY.fullmatch(text)]
    if len(numbers) > MOST_LEVELS:
        raise DataError(
            f"{label} has {len(numbers)} distinct numbers or dates, such as "
            f"{quoted(numbers[:3])}, and looks continuous: bin it, declare its levels in a "
            "{schema}, or leave it out with {variables}",
            variables=...,
            schema=None,
        )
    if MOST_LEVELS < len(cells.texts) == np.count_nonzero(~cells.missing):
        raise DataError(
            f"{label} has {len(cells.texts)} texts, all different, such as "
            f"{quoted(cells.texts[:3])}, and looks like an identifier: leave it out with "
            "{variables}, or declare its levels in a {schema}",
            variables=...,
            schema=None,
        )


def _check_spaces(levels: Sequence[str], label: str) -> None:
    trimmed: dict[str, str] = {}
    for level in levels:
        if not level.strip():
            raise DataError(
                f"{label} has the level {level!r}, only white space; give it a name, or make "
                "these cells missing"
            )
        twin = trimmed.setdefault(level.strip(), level)
        if twin != level:
            raise DataError(
                f"{label} has the levels {twin!r} and {level!r}, which differ only in white "
                "space; trim them"
            )


def _warn_missing_in_full(label: str) -> None:
    warnings.warn(
        f"{label} is missing in every row and tells nothing about the clusters; check that "
        "this is meant, or leave it out",
        DataWarning,
        stacklevel=3,
    )


def _warn_like_missing(cells: Cells, label: str) -> None:
    for text in LIKE_MISSING:
        if text not in cells.texts or (text == "-" and "+" in cells.texts):
            continue
        rows = np.count_nonzero(cells.codes == cells.texts.index(text))
        warnings.warn(
            f"{label} has the level {text!r}, in {rows} of {len(cells.codes)} rows; if it stands "
            "for a missing cell, leave these cells empty",
            DataWarning,
            stacklevel=3,
        )


def _warn_constant(names: list[str], levels: list[tuple[str, ...]], where: str) -> None:
    missing = {(UNOBSERVED_LEVEL,), (MISSING_LEVEL,)}
    constant = [
        name
        for name, of_it in zip(names, levels, strict=True)
        if len(of_it) == 1 and of_it not in missing
    ]
    if constant:
        warnings.warn(
            DataWarning(
                f"{where}: only one value in {quoted(constant)}, which tells nothing about the "
                "clusters; check that this is meant, or leave it out with {variables}",
                variables=...,
            ),
            stacklevel=3,
        )
