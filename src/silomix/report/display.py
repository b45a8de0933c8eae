"""Parts of the page: tables as records, formats of numbers, colours, small drawings.

A terminal shows the same tables; `assets/report.html.j2` has the one macro that writes one.

Shares go from pale to dark blue, differences from orange over neutral to purple; the colour-blind
tell both apart, by lightness and by hue. The page allows no inline style, so its colours are
classes of a style sheet. The text on a colour is black or white, whichever has the higher contrast,
which is never below 4.5 to 1.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from markupsafe import Markup
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table as TerminalTable
from rich.text import Text

from silomix.messages.heat_map import ink
from silomix.model.sentences import amount, printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pandas as pd
    from rich.segment import Segment

    from silomix.kernels.arrays import Floats, Reals
    from silomix.model.schema import Variable
    from silomix.posterior.characterise import ClusterMap

# Characters in a line of text.
WIDTH = 88

# Okabe and Ito's colours (2008), and as many markers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = "osD^vP"
# Scaled difference from which the colour is the strongest, if any is so large.
LARGEST = 2.0
# Steps of a scale of the page; there is one colour more.
STEPS = 20
# Those of dark pages, likewise.
DARK = {
    "p": ("#1d2530", "#1f4e79", "#4292c6", "#c6e2f7"),
    "d": ("#f6b25c", "#a8641a", "#4a3a28", "#23272f", "#3b3556", "#7466ab", "#c3b5f0"),
}

# A chart in pixels: its size, and where its frame begins on the left, after a dozen figures, and at
# the top.
CHART, LEFT, TOP = (360, 220), 90, 10
SQUARE = 330
# Letters of a cluster's name that have room beside its disc.
LONGEST_LABEL = 20


class Cell(NamedTuple):
    """A cell of a table.

    Attributes
    ----------
    text : what it says; `Markup` only where this package drew it.
    heat : class of its colour, or nothing.
    note : a second line, in small print.
    """

    text: object
    heat: str = ""
    note: str = ""


class Table(NamedTuple):
    """A table whose first column names the lines.

    Attributes
    ----------
    caption : what it shows.
    heads : headings of all columns; an empty one is of drawings.
    rows : cells, line by line, as many as there are headings.
    left : positions of the columns that hold text; the others hold numbers.
    kind : classes of the page: "tall" scrolls, "grid" has coloured cells, and "differences" colours
        them as such.
    narrow : columns that a terminal has room for; all if None.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: Collection[int] = (0,)
    kind: str = ""
    narrow: int | None = None


class Picture(NamedTuple):
    """A drawing, what it shows, and the same in numbers."""

    drawing: Markup
    caption: str
    table: Table


def shown_name(variable: Variable) -> str:
    """Name of a variable, or of its logarithm if its parameters describe that."""
    is_log = variable.transform == "log" and variable.kind != "parameter"
    return f"log {variable.name}" if is_log else variable.name


def make_table(caption: str, columns: Mapping[str, Any], **options: Any) -> Table:
    """Return a table from its columns by heading: iterables of values, some of them `Cell`s."""
    return from_lines(caption, columns, zip(*columns.values(), strict=True), **options)


def from_lines(
    caption: str, heads: Iterable[object], lines: Iterable[Any], **options: Any
) -> Table:
    """Return a table from its headings and its lines of values, some of them `Cell`s.

    Options are further attributes of `Table`.
    """
    rows = tuple(tuple(x if isinstance(x, Cell) else Cell(x) for x in line) for line in lines)
    return Table(caption, tuple(map(str, heads)), rows, **options)


def heat_lines(names: Iterable[str], shares: Reals, form: Callable[[float], str]) -> list[Any]:
    """Return lines of a table: a name, and shares (line, column) in their colours."""
    each = zip(names, shares, strict=True)
    return [[name, *(Cell(form(s), heat_class(s)) for s in line)] for name, line in each]


def as_view(table: Table, most: int | None = None) -> TerminalTable:
    """Return the first lines of a table for the terminal, without its drawings and small print."""
    view = TerminalTable(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [position for position, head in enumerate(table.heads[: table.narrow]) if head]
    for position in shown:
        justify: Literal["left", "right"] = "left" if position in table.left else "right"
        # numbers stay in their line, however long the names beside them
        widths = [len(str(row[position].text)) for row in table.rows[:most]]
        least = None if justify == "left" else max(widths, default=0)
        head = Text(printable(table.heads[position]))
        view.add_column(head, justify=justify, overflow="fold", min_width=least)
    for row in table.rows[:most]:
        view.add_row(*(Text(printable(str(row[position].text))) for position in shown))
    if most is not None and len(table.rows) > most:
        view.add_row(f"{len(table.rows) - most} more")
    return view


def frame_view(frame: pd.DataFrame, left: Collection[str] = ()) -> TerminalTable:
    """Return a frame for people: counts with commas, shares in per cent.

    The first column, and those named in `left`, hold text.
    """
    text = {0, *map(list(frame.columns).index, left)}
    columns = {str(name): map(_cell, frame[name]) for name in frame}
    return as_view(make_table("", columns, left=text))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Escaped(NamedTuple):
    """A view in which no text steers the screen, whoever wrote it."""

    view: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the parts of the view, their texts escaped."""
        for part in console.render(self.view, options):
            yield part if part.control else part._replace(text=printable_lines(part.text))


def as_text(view: RenderableType) -> str:
    """Return a view as plain text, for a file."""
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None, highlight=False).print(Escaped(view))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def heat_class(share: float, view: str = "p") -> str:
    """Return the class of a place from 0 to 1 on a scale of the page; beyond, it is clipped."""
    return f"{view}{round(STEPS * float(np.clip(share, 0.0, 1.0)))}"


def apart_class(scaled: float, largest: float = LARGEST) -> str:
    """Return the class of a scaled difference; beyond the largest it is clipped."""
    return heat_class((scaled / largest + 1) / 2, "d")


def heat_rules(anchors: Sequence[str], view: str, before: str = "") -> str:
    """Return the style rules that colour the cells of a view.

    Parameters
    ----------
    anchors : colours, evenly spaced along the scale.
    view : "p" or "d": the rules hold inside an element with this `data-view`.
    before : a selector to put in front.
    """
    known = np.array([list(bytes.fromhex(colour[1:])) for colour in anchors])
    scale, places = np.linspace(0.0, 1.0, STEPS + 1), np.linspace(0.0, 1.0, len(anchors))
    mixed = np.stack([np.interp(scale, places, channel) for channel in known.T], axis=1).round()
    return "".join(
        f"{before}[data-view={view}] .{view}{step}"
        f"{{background:#{bytes(colour.astype(np.uint8)).hex()};color:{ink(colour)}}}\n"
        for step, colour in enumerate(mixed)
    )


def bar(mean: float, lower: float = np.nan, upper: float = np.nan) -> Markup:
    """Return a bar for a share from 0 to 1, with its interval where there is one."""
    parts = [
        _element("rect", "bar-all", x=0, y=0, width=100, height=10),
        _element("rect", "bar-mean", x=0, y=2, width=100 * mean, height=6),
    ]
    if lower <= upper:
        width = max(100 * (upper - lower), 0.4)
        parts.append(_element("rect", "bar-interval", x=100 * lower, y=4, width=width, height=2))
    return _small("bar", parts, 10)


def whisker(middle: float, lower: float, upper: float, reach: float) -> Markup:
    """Return a difference with its interval, before a line at zero; `reach` is at both ends."""
    at, low, high = (50 + 49 * value / reach for value in (middle, lower, upper))
    parts = [
        _element("rect", "bar-zero", x=49.7, y=0, width=0.6, height=10),
        _element("rect", "bar-interval", x=low, y=4.2, width=max(high - low, 0.4), height=1.6),
        _element("rect", "bar-dot", x=at - 1.2, y=1.5, width=2.4, height=7),
    ]
    return _small("bar", parts, 10)


def curve(places: Floats, density: Floats, behind: Floats) -> Markup:
    """Return a small curve of a density before another, as tall: all of them (place,)."""
    x = 100 * (places - places[0]) / (places[-1] - places[0])

    def area(kind: str, heights: Floats) -> Markup:
        points = _points(x, 30 - 28 * heights / heights.max())
        return _element("polygon", kind, points=f"0,30 {points} 100,30")

    return _small("curve", [area("bar-all", behind), area("bar-mean", density)], 30)


def line_chart(values: Reals, *, name: str, along: str) -> Markup:
    """Return a line of values (place,) against their place.

    Parameters
    ----------
    name : of what is drawn, for those who cannot see it.
    along : what the places are, under the axis.
    """
    low, high = float(values.min()), float(values.max())
    right, floor = CHART[0] - 10, CHART[1] - 34
    x = np.linspace(LEFT, right, len(values))
    y = TOP + (high - values) / (high - low or 1.0) * (floor - TOP)
    parts = [
        *(_element("line", "rule", x1=LEFT, x2=right, y1=at, y2=at) for at in (floor, TOP)),
        _text(amount(low), LEFT - 5, floor, "end"),
        _text(amount(high), LEFT - 5, TOP, "end"),
        _text("1", LEFT, floor + 14, "start"),
        _text(str(len(values)), right, floor + 14, "end"),
        _text(along, (LEFT + right) / 2, floor + 28, "middle"),
        _element("polyline", "trace", points=_points(x, y)),
    ]
    return _chart(parts, CHART, name)


def map_chart(plane: ClusterMap, shares: Reals, names: Sequence[str], caption: str) -> Markup:
    """Return clusters in the plane: a disc as large as the cluster's share.

    Parameters
    ----------
    shares : (cluster,), of all rows.
    names : of the clusters; beside a disc, a long one is only its number.
    caption : what is drawn, for those who cannot see it.
    """
    middle = SQUARE / 2
    scale = middle / (np.abs(plane.centres).max() * 1.25 or 1.0)
    places = middle + scale * plane.centres * [1, -1]
    radii = 4 + 22 * np.sqrt(shares)
    discs = list(zip(places, radii, strict=True))
    labels = [name if len(name) <= LONGEST_LABEL else name.partition(":")[0] for name in names]
    parts = [
        _element("line", "rule", x1=0, x2=SQUARE, y1=middle, y2=middle),
        _element("line", "rule", x1=middle, x2=middle, y1=0, y2=SQUARE),
        # in corners, where no disc can be
        _text("axis 1 →", SQUARE - 4, SQUARE - 8, "end", "axis"),
        _text("axis 2 ↑", 4, 8, "start", "axis"),
        *(_element("circle", "disc", cx=x, cy=y, r=radius) for (x, y), radius in discs),
        # above all discs, since one may lie on another
        *(
            _text(name, x, y - radius - 6, "middle", "disc-name")
            for name, ((x, y), radius) in zip(labels, discs, strict=True)
        ),
    ]
    return _chart(parts, (SQUARE, SQUARE), caption)


def _chart(parts: Iterable[Markup], size: tuple[int, int], name: str) -> Markup:
    box = f"0 0 {size[0]} {size[1]}"
    return _element("svg", "chart", parts, role="img", viewBox=box, aria_label=name)


def _small(kind: str, parts: Iterable[Markup], height: int) -> Markup:
    """Return a drawing in a cell, as wide as that, which those who cannot see need not know of."""
    hidden = {"preserveAspectRatio": "none", "aria_hidden": "true"}
    return _element("svg", kind, parts, viewBox=f"0 0 100 {height}", **hidden)


def _points(x: Reals, y: Reals) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _text(text: str, x: float, y: float, anchor: str, kind: str = "tick") -> Markup:
    placed = {"text_anchor": anchor, "dominant_baseline": "central"}
    return _element("text", kind, [text], x=x, y=y, **placed)


def _element(tag: str, kind: str, inside: Iterable[str] = (), **attributes: float | str) -> Markup:
    """Return an element; Markup escapes whatever text is put into it."""
    texts = {
        name.replace("_", "-"): value if isinstance(value, str) else f"{value:.4g}"
        for name, value in {"class": kind, **attributes}.items()
    }
    written = Markup("").join(Markup(' {}="{}"').format(*pair) for pair in texts.items())
    return Markup("<{0}{1}>{2}</{0}>").format(tag, written, Markup("").join(inside))
