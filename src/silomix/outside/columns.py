"""Columns of a table → what to compare: the mean of numbers, or the share of each level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from silomix.data import load
from silomix.data.cells import declared_levels, read_cells
from silomix.data.encoding import MOST_LEVELS, NUMBER
from silomix.data.reading import PACKED_TEXT
from silomix.errors import DataError, SettingsError
from silomix.roster import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import narwhals as nw
    from numpy.typing import NDArray

    from silomix.data.cells import Cells

Kind = Literal["mean", "levels"]
Columns: TypeAlias = "str | Sequence[str] | Mapping[str, Kind | None]"


@dataclass(frozen=True, eq=False)
class Target:
    """What is compared between clusters.

    Attributes
    ----------
    variable : name of the column.
    level : whose share is compared; None where it is the mean of the numbers.
    values : (row,), the number, or 1 where the row has the level and 0 where it has another;
        nan where the cell is missing.
    """

    variable: str
    level: str | None
    values: NDArray[np.float64]


def read_outside(frame: nw.DataFrame[Any], columns: Columns) -> list[Target]:
    """Return what to compare, in the order of the columns.

    Numbers of more than two values have a mean, unless the type of the column declares levels;
    everything else has levels. Of two levels only the second is compared: the first mirrors it.

    Parameters
    ----------
    frame : a row per unit.
    columns : names, or names with "mean" or "levels" to say so; None leaves it to the values.
    """
    kinds = _kinds(columns)
    return [target for name, kind in kinds.items() for target in _read(frame, name, kind)]


def _kinds(columns: Columns) -> dict[str, Kind | None]:
    names = [columns] if isinstance(columns, str) else list(columns)
    if not names:
        raise SettingsError("columns is empty; name at least one column to compare")
    kinds = {name: columns[name] if isinstance(columns, Mapping) else None for name in names}
    for name, kind in kinds.items():
        if kind is not None and kind not in get_args(Kind):
            raise SettingsError(
                f"columns has {kind!r} for {name!r}; it must be one of {get_args(Kind)}"
            )
    return kinds


def _read(frame: nw.DataFrame[Any], name: str, kind: Kind | None) -> list[Target]:
    if name not in frame.columns:
        raise DataError(
            f"the table has no column {name!r} to compare{did_you_mean(name, frame.columns)}; "
            "correct the name or add the column"
        )
    column = frame.get_column(name)
    cells = read_cells(column, f"the table: column {name!r}")
    if cells.missing.all():
        raise DataError(f"the table: column {name!r} is missing in every row; leave it out")
    if len(cells.texts) == 1:
        raise DataError(
            f"the table: column {name!r} has the one value {cells.texts[0]!r}, so no cluster can "
            "differ in it; leave it out"
        )
    packed = PACKED_TEXT in getattr(frame.to_native(), "attrs", {})
    declared = not packed and declared_levels(column) is not None
    if (kind or _guess(cells, declared=declared)) == "mean":
        return [Target(name, None, _numbers(cells, name))]
    return _shares(frame, name, cells)


def _guess(cells: Cells, *, declared: bool) -> Kind:
    numeric = all(NUMBER.fullmatch(text) for text in cells.texts)
    return "mean" if numeric and len(cells.texts) > 2 and not declared else "levels"


def _numbers(cells: Cells, name: str) -> NDArray[np.float64]:
    for place, text in enumerate(cells.texts):
        if not NUMBER.fullmatch(text):
            row = np.argmax(cells.codes == place) + 1
            raise DataError(
                f"the table: column {name!r} has {text!r} in data row {row}, which is no number; "
                "correct it, or compare its levels"
            )
    return np.array([*map(float, cells.texts), np.nan])[cells.codes]


def _shares(frame: nw.DataFrame[Any], name: str, cells: Cells) -> list[Target]:
    if len(cells.texts) > MOST_LEVELS:
        raise DataError(
            f"the table: column {name!r} has {len(cells.texts)} levels, more than the "
            f"{MOST_LEVELS} that a table of clusters can show; group them, or leave it out"
        )
    shard = load(frame, variables=[name])
    (variable,), codes = shard.schema.variables, shard.codes[:, 0]
    missing = codes == len(variable.levels)
    told = [1] if len(variable.levels) == 2 else range(len(variable.levels))
    return [
        Target(name, variable.levels[code], np.where(missing, np.nan, codes == code))
        for code in told
    ]
