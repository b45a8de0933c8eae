"""Heat maps in matplotlib: of a release's profiles, and of a posterior.

Matplotlib is imported when something is drawn: it is in the extra "report".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from silomix.kernels.arrays import Floats

# Colours along the scales, evenly spaced: p for shares and d for differences.
LIGHT = {
    "p": ("#f5f8fc", "#9ecae1", "#3182bd", "#08306b"),
    "d": ("#b35806", "#f1a340", "#fee0b6", "#f7f7f7", "#d8daeb", "#998ec3", "#542788"),
}
# Cells of a heat map up to which each one's number is written in it.
MOST_NUMBERS = 300
# Characters from which names of clusters stand slantwise.
LONG = 5
# Lines up to which each has its name: more would overlap at the largest height.
MOST_NAMES = 130


def new_axis(ax: Axes | None, size: tuple[float, float] = (6.4, 4.0)) -> Axes:
    """Axis given, or one on a new figure of so many inches."""
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("a figure needs matplotlib", extra="report") from None
    return Figure(figsize=size, layout="constrained").add_subplot()


def name_ticks(ax: Axes, names: Sequence[str]) -> None:
    """Name the places along an axis, long names slantwise."""
    turn, side = (30, "right") if max(map(len, names)) > LONG else (0, "center")
    ax.set_xticks(range(len(names)), names, parse_math=False, rotation=turn, ha=side)


def draw_heat(
    ax: Axes | None,
    values: Floats,
    lines: Sequence[str],
    columns: Sequence[str],
    words: tuple[str, str],
) -> Axes:
    """Draw values (line, column) as a heat map with a colour bar, and numbers if few.

    Values below zero are differences, whose scale is even around zero; others are shares. `words`
    are the label of the colour bar and the title.
    """
    ax = new_axis(ax, (min(3.2 + 0.55 * values.shape[1], 30.0), height_of(len(lines))))
    from matplotlib.colors import LinearSegmentedColormap

    view, form, edges = "p", ".2f", (0.0, 1.0)
    if np.nanmin(values) < 0:
        largest = max(float(np.abs(values).max()), 0.5)
        view, form, edges = "d", "+.1f", (-largest, largest)
    colours = LinearSegmentedColormap.from_list(view, LIGHT[view])
    image = ax.imshow(values, cmap=colours, vmin=edges[0], vmax=edges[1], aspect="auto")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, label=words[0], pad=0.02)
    if len(lines) <= MOST_NAMES:
        ax.set_yticks(range(len(lines)), lines, fontsize=8, parse_math=False)
    name_ticks(ax, columns)
    ax.set(xlabel="cluster", title=words[1])
    few = np.argwhere(np.isfinite(values)) if values.size <= MOST_NUMBERS else ()
    for line, column in few:
        value = values[line, column]
        colour = ink(255 * np.array(colours(image.norm(value))[:3]))
        text = format(value, form)
        ax.text(column, line, text, color=colour, ha="center", va="center", fontsize=7)
    return ax


def height_of(lines: int) -> float:
    """Inches for so many lines of a heat map."""
    return min(1.5 + 0.22 * lines, 30.0)


def ink(colour: Floats) -> str:
    """Black or white, whichever reads better on a colour (red, green, blue), 0 to 255."""
    light = colour / 255
    linear = np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
    # the relative luminance of WCAG 2.2 at which both contrasts are equal
    return "#000" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "#fff"
