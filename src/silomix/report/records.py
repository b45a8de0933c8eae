"""What the page is made of: tables and pictures, and how their numbers are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from markupsafe import Markup

INTERVAL = 0.95
ABSENT = "–"
"""Stands where there is no number."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes
    ----------
    text : what it says; `Markup` only where this package drew it.
    heat : class of its colour, or nothing.
    note : a second line, in small print.
    folded : further lines, shown when asked for.
    more : what to ask for them by.
    """

    text: str | Markup
    heat: str = ""
    note: str = ""
    folded: tuple[str, ...] = ()
    more: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose first column names the lines.

    Attributes
    ----------
    caption : what it shows.
    heads : headings of all columns.
    rows : cells, line by line, as many as there are headings.
    left : places of the columns that hold text; the others hold numbers.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Picture:
    """A drawing, what it shows, and the same in numbers."""

    drawing: Markup
    caption: str
    table: Table


def cells(*texts: str | Markup | Cell) -> tuple[Cell, ...]:
    """Return a line of a table."""
    return tuple(text if isinstance(text, Cell) else Cell(text) for text in texts)


def percent(share: float) -> str:
    """Return a share as a percentage: "32.1%", "0.04%"; ABSENT for nan."""
    if np.isnan(share):
        return ABSENT
    return f"{share:.2%}" if 0 < share < 0.001 else f"{share:.1%}"


def interval(lower: float, upper: float) -> str:
    """Return an interval of shares."""
    return f"{percent(lower)} to {percent(upper)}"


def decimal(number: float, digits: int = 2) -> str:
    """Return a number with so many digits; ABSENT where it is not finite."""
    return f"{number:.{digits}f}" if np.isfinite(number) else ABSENT


def amount(number: float) -> str:
    """Return a number of any size with about four digits, or whole where it has more."""
    shown = f"{number:,.4g}" if abs(number) < 1e4 else f"{number:,.0f}"
    return shown.replace("-", "−")


def signed(number: float) -> str:
    """Return a difference with its sign, which is a true minus."""
    return f"{number:+.2f}".replace("-", "−")


def probability(share: float, draws: int) -> str:
    """Return a probability no surer than so many draws can tell."""
    edge = max(1 / draws, 0.001)
    if share > 1 - edge:
        return f"> {1 - edge:.3g}"
    return f"< {edge:.3g}" if share < edge else f"{share:.3f}"
