"""What the figures share: an axis to draw on, a heat map, a file to write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import MissingDependency, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

KINDS = (".png", ".svg")
MOST_NUMBERS = 300
"""Cells of a heat map up to which each one's number is written in it."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = "osD^vP"
"""Okabe and Ito's colours (2008), and as many markers."""


def axis(ax: Axes | None, size: tuple[float, float] = (6.4, 4.0)) -> Axes:
    """Return the axis given, or one on a new figure of so many inches."""
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency(
            "a figure needs matplotlib: pip install 'silomix[report]'"
        ) from None
    return Figure(figsize=size, layout="constrained").add_subplot()


def save_figure(ax: Axes, path: str | Path, *, dpi: int = 150) -> Path:
    """Write the figure of an axis as PNG or SVG, by the end of its name, and return the path.

    The same figure makes the same file: no date and no version of a program is written.

    Examples
    --------
    >>> ax = silomix.plots.cluster_sizes(posterior)
    >>> silomix.plots.save_figure(ax, "sizes.png", dpi=60).name
    'sizes.png'
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in KINDS:
        raise SettingsError(f"{target} must end in one of {', '.join(KINDS)}")
    import matplotlib as mpl

    empty = {"Software": None} if kind == ".png" else {"Date": None, "Creator": None}
    figure = ax.get_figure(root=True)
    if figure is None:
        raise SettingsError("the axis is on no figure any more; draw it again before saving")
    with mpl.rc_context({"svg.hashsalt": "silomix"}):
        figure.savefig(target, dpi=dpi, metadata=empty)
    return target


def heat(
    ax: Axes,
    values: NDArray[np.floating],
    *,
    colours: str,
    limits: tuple[float, float],
    label: str,
    form: str = ".2f",
) -> None:
    """Draw a matrix (line, column) as a heat map with a colour bar, and numbers if few."""
    image = ax.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    figure = ax.get_figure()
    if figure is not None:
        figure.colorbar(image, ax=ax, label=label, pad=0.02)
    if values.size > MOST_NUMBERS:
        return
    for line, column in np.ndindex(*values.shape):
        if np.isfinite(values[line, column]):
            red, green, blue, _ = image.cmap(image.norm(values[line, column]))
            light = 0.299 * red + 0.587 * green + 0.114 * blue
            ax.text(
                column,
                line,
                format(values[line, column], form),
                ha="center",
                va="center",
                fontsize=7,
                color="black" if light > 0.5 else "white",
            )


def lines_of(count: int) -> float:
    """Return inches for so many lines of a heat map."""
    return min(1.5 + 0.22 * count, 30.0)


def cluster_names(clusters: int) -> Sequence[str]:
    """Return the clusters' numbers."""
    return [str(cluster) for cluster in range(clusters)]
