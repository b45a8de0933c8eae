"""What all results share: tables and text, on the screen and in files."""

from __future__ import annotations

import io
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from silomix.atomic import replace_file, whole_file
from silomix.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from rich.console import RenderableType

INTERVAL = 0.95
SUMMARY = "summary.txt"
WIDTH = 88
MOST_NAMED = 3
"""Files in the way that a message names; of more it says where they are."""


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


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV."""
    with writing(path), whole_file(path) as file:
        table.to_csv(file, index=False, float_format="%.6g", lineterminator="\n")


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
