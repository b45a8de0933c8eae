"""What all results share: tables and text, on the screen and in files."""

from __future__ import annotations

import csv
import io
import math
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from silomix.atomic import replace_file, whole_file
from silomix.errors import SettingsError
from silomix.spreadsheet import for_spreadsheet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import RenderableType

INTERVAL = 0.95
SUMMARY = "summary.txt"
WIDTH = 88
MOST_NAMED = 3
"""Files in the way that a message names; of more it says where they are."""
TEXTS = (pd.StringDtype, pd.CategoricalDtype)


def table_view(*headings: str, left: Sequence[str] = ()) -> Table:
    """Return an empty table in the house style: numbers to the right, few lines.

    The first column, and those named in `left`, hold text.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        text = place == 0 or heading in left
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    return table


def or_none(value: float) -> float | None:
    """Return the number for JSON, which has no nan and no infinity."""
    return float(value) if math.isfinite(value) else None


def as_text(view: RenderableType) -> str:
    """Return a view as plain text, for a file."""
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None, highlight=False).print(view)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def check_free(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to replace files that exist, unless forced. Call it before the work."""
    taken = [path for path in paths if path.exists()]
    if taken and not force:
        told = f"{', '.join(map(str, taken))} exist{'s' if len(taken) == 1 else ''} already"
        if len(taken) > MOST_NAMED:
            told = f"{taken[0].parent} has results already, {len(taken)} files"
        raise SettingsError(f"{told}; give --force to replace, or another --out")


def write_table(table: pd.DataFrame, path: Path, *, private: bool = False) -> None:
    """Write a table as CSV, whose texts no spreadsheet takes for formulas.

    Parameters
    ----------
    private : only its owner may open it.
    """
    safe = _for_spreadsheets(table)
    with writing(path), whole_file(path, private=private) as file:
        safe.to_csv(
            file,
            index=False,
            float_format="%.6g",
            lineterminator="\n",
            # csv leaves a carriage return bare where lines end otherwise, and readers end the line
            quoting=csv.QUOTE_NONNUMERIC if _has_returns(safe) else csv.QUOTE_MINIMAL,
        )


def _for_spreadsheets(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its texts and headings as `silomix.spreadsheet` has them."""
    headings = [str(name) for name in table.columns]
    safe = table.set_axis(
        [for_spreadsheet(name, first=place == 0) for place, name in enumerate(headings)], axis=1
    )
    for place in range(safe.shape[1]):
        column = safe.iloc[:, place]
        if isinstance(column.dtype, TEXTS) or column.dtype == object:
            guard = partial(_safe, first=place == 0)
            texts = column.astype(object).map(guard, na_action="ignore")
            safe.isetitem(place, texts.to_numpy(dtype=object))
    return safe


def _safe(cell: object, *, first: bool) -> object:
    return for_spreadsheet(cell, first=first) if isinstance(cell, str) else cell


def _has_returns(table: pd.DataFrame) -> bool:
    texts = table.select_dtypes(exclude="number")
    cells = chain(table.columns, *(texts.iloc[:, place] for place in range(texts.shape[1])))
    return any(isinstance(cell, str) and "\r" in cell for cell in cells)


def write_text(text: str, path: Path) -> None:
    """Write text as UTF-8."""
    with writing(path):
        replace_file(path, text.encode())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says about a file that cannot be written into a settings error."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError(
            f"{path} cannot be written: {reason}; choose another place, with enough space"
        ) from error
