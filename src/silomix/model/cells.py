"""Column → distinct texts and codes: one spelling for a value, whichever library holds it.

1, 1.0 and "1.0" are "1"; True, "True" and "TRUE" are "true"; a day is "2026-01-31" with or
without a midnight; everything else is its text. Nulls and NaN are missing cells.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np
import pandas as pd

from silomix.errors import DataError

if TYPE_CHECKING:
    from silomix.kernels.arrays import Bools, Ints

WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0+", re.ASCII)
BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}


@dataclass(frozen=True, eq=False)
class Cells:
    """One column as text.

    Attributes
    ----------
    texts : the distinct spellings, in no particular order.
    codes : (row,), place of the cell's spelling in `texts`; −1 for a missing cell.
    """

    texts: list[str]
    codes: Ints

    @property
    def missing(self) -> Bools:
        """Which cells are missing: (row,)."""
        return self.codes < 0


def spell(value: object) -> str:
    """Return the one spelling of a value."""
    if isinstance(value, date):
        return value.isoformat().removesuffix("T00:00:00")
    text = str(value)
    whole = WHOLE.fullmatch(text)
    if whole:
        return "0" if whole[1] == "-0" else whole[1]
    return BOOLEANS.get(text, text)


def read_cells(column: nw.Series[Any], label: str) -> Cells:
    """Return the distinct texts of a column and the code of every cell.

    `label` names the column in messages.
    """
    values = _present_values(column, label)
    # as an array, numbers of 32 bits keep their short spelling, and any NaN gets the code −1
    is_float = values.dtype.kind == "f"
    places, distinct = pd.factorize(values.to_numpy()) if is_float else pd.factorize(values)
    spelled = [spell(value) for value in distinct]
    texts = {text: code for code, text in enumerate(dict.fromkeys(spelled))}
    codes = np.full(len(column), -1, dtype=np.int64)
    lookup = np.array([texts[text] for text in spelled] + [-1])
    codes[~column.is_null().to_numpy()] = lookup[places]
    return Cells(list(texts), codes)


def declared_levels(column: nw.Series[Any]) -> list[str] | None:
    """Return the levels that the type of a column declares, in order; None if it does not."""
    native = column.to_native()
    if isinstance(native, pd.Series) and isinstance(native.dtype, pd.CategoricalDtype):
        categories = list(native.cat.categories)
    elif isinstance(column.dtype, nw.Enum):
        categories = list(column.dtype.categories)
    elif getattr(getattr(native, "type", None), "ordered", False):
        # an Arrow dictionary; when it is not ordered, it is only a way to store text
        categories = native.unify_dictionaries().chunk(0).dictionary.to_pylist()
    else:
        return None
    return list(dict.fromkeys(spell(category) for category in categories))


def _present_values(column: nw.Series[Any], label: str) -> pd.Series[Any]:
    advice = "split it into columns of single values, or leave it out with {variables}"
    if column.dtype.is_nested():
        raise DataError(f"{label} has cells of type {column.dtype}; {advice}", variables=...)
    present = column.drop_nulls()
    is_pandas = column.implementation.is_pandas()
    values = present.to_native() if is_pandas else pd.Series(present.to_numpy())
    kinds: set[Any] = set(map(type, values)) if values.dtype == object else set()
    for kind in kinds:
        if not issubclass(kind, Hashable) or issubclass(kind, tuple | frozenset | bytes):
            raise DataError(f"{label} has cells of type {kind.__name__}; {advice}", variables=...)
    if {bool, np.bool_} & kinds and len(kinds) > 1:
        return values.map(spell)  # True == 1: factorize would take them for the same value
    return values
