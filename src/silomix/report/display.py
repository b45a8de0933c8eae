"""Tables as records, how their numbers are written, and how a terminal shows them.

The page shows the same records: `assets/report.html.j2` has the one macro that writes a table.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rich.console import RenderableType

INTERVAL = 0.95
# Stands where there is no number.
ABSENT = "–"
WIDTH = 88


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes
    ----------
    text : what it says; `Markup` only where this package drew it.
    heat : class of its colour, or nothing.
    note : a second line, in small print.
    folded : further lines, shown when asked for.
    """

    text: object
    heat: str = ""
    note: str = ""
    folded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table whose first column names the lines.

    Attributes
    ----------
    caption : what it shows.
    heads : headings of all columns; an empty one is of drawings.
    rows : cells, line by line, as many as there are headings.
    left : positions of the columns that hold text; the others hold numbers.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: Collection[int]


def make_table(caption: str, columns: Mapping[str, Any], left: Collection[int] = (0,)) -> Table:
    """Return a table from its columns by heading: iterables of values, some of them `Cell`s."""
    rows = tuple(
        tuple(value if isinstance(value, Cell) else Cell(value) for value in line)
        for line in zip(*columns.values(), strict=True)
    )
    return Table(caption, tuple(columns), rows, left)


def make_pairs(caption: str, heads: tuple[str, str], lines: Mapping[str, object]) -> Table:
    """Return a table of two columns that hold text."""
    return make_table(caption, dict(zip(heads, (lines, lines.values()), strict=True)), left=(0, 1))


def table_view(*heads: str, left: Collection[str] = ()) -> TerminalTable:
    """Return an empty table for the terminal: numbers to the right, few lines.

    The first column, and those named in `left`, hold text.
    """
    view = TerminalTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, head in enumerate(heads):
        text = position == 0 or head in left
        view.add_column(head, justify="left" if text else "right", overflow="fold")
    return view


def as_view(table: Table, most: int | None = None) -> TerminalTable:
    """Return the first lines of a table for the terminal, without its drawings and small print."""
    shown = [position for position, head in enumerate(table.heads) if head]
    left = [table.heads[position] for position in table.left]
    view = table_view(*(table.heads[position] for position in shown), left=left)
    for row in table.rows[:most]:
        view.add_row(*(Text(str(row[position].text)) for position in shown))
    if most is not None and len(table.rows) > most:
        view.add_row(f"{len(table.rows) - most} more")
    return view


def as_text(view: RenderableType) -> str:
    """Return a view as plain text, for a file."""
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None, highlight=False).print(view)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def number(value: float, form: str = ".2f") -> str:
    """Return a formatted number, with a true minus; ABSENT where it is not finite."""
    return format(value, form).replace("-", "−") if np.isfinite(value) else ABSENT


def percent(share: float) -> str:
    """Return a share as a percentage: "32.1%", "0.04%"."""
    return number(share, ".2%" if 0 < share < 0.001 else ".1%")


def span(lower: float, upper: float, form: str) -> str:
    """Return an interval; ABSENT where there is none."""
    return f"{lower:{form}} to {upper:{form}}" if np.isfinite(lower) else ABSENT


def amount(value: float) -> str:
    """Return a number of any size with about four digits, or whole where it has more."""
    return number(value, ",.4g" if abs(value) < 1e4 else ",.0f")


def probability(share: float, draws: int) -> str:
    """Return a probability no surer than so many draws can tell."""
    edge = max(1 / draws, 0.001)
    if share > 1 - edge:
        return f"> {1 - edge:.3g}"
    return f"< {edge:.3g}" if share < edge else number(share, ".3f")
