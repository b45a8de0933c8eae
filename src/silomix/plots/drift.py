"""Figure of how much the silos differ in each variable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.plots.common import COLOURS, axis, lines_of
from silomix.plots.profiles import plain
from silomix.posterior.characterise import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from silomix.posterior import Posterior

MOST_VARIABLES = 40
"""Variables that are drawn, those in which the silos differ most; with more, no name is legible."""


def drift(posterior: Posterior, ax: Axes | None = None, *, level: float = 0.95) -> Axes:
    """Draw how much the silos differ in each variable, the largest difference at the top.

    A dot is the spread: the standard deviation between silos of a probability of one half, in
    percentage points, at the posterior median of κ; a line is its interval. The colour is the
    probability that the silos are alike. Point values, of a run without polish, have neither.

    Examples
    --------
    >>> silomix.plots.drift(posterior).get_title()
    'In which variables the silos differ, 95% intervals'
    """
    frame = posterior.drift(level, frame_like="pandas").head(MOST_VARIABLES)
    ax = axis(ax, (6.4, max(2.4, lines_of(len(frame)))))
    lines = np.arange(len(frame))
    middle = 100 * frame["spread"].to_numpy()
    sampled = bool(frame["same"].notna().all())
    reach = float(middle.max())
    if sampled:
        # the larger κ, the smaller the spread
        ends = 100 * spread(frame[["upper", "lower"]].to_numpy(dtype=np.float64))
        reach = float(ends.max())
        ax.hlines(lines, ends[:, 0], ends[:, 1], color="0.6", linewidth=1.5, zorder=1)
        dots = ax.scatter(
            middle, lines, c=frame["same"], cmap="cividis", vmin=0.0, vmax=1.0, edgecolors="0.3"
        )
        figure = ax.get_figure()
        if figure is not None:
            figure.colorbar(dots, ax=ax, label="P(silos alike)", pad=0.02)
    else:
        ax.scatter(middle, lines, color=COLOURS[0])
    ax.set_yticks(lines, [plain(name) for name in frame["variable"]], fontsize=8)
    ax.set_ylim(len(frame) - 0.5, -0.5)
    # silos that are all alike need a scale too, and dots at zero some room
    edge = 1.05 * max(reach, 1.0)
    ax.set_xlim(-0.02 * edge, edge)
    ax.set_xlabel("spread of a probability of one half between silos, percentage points")
    told = f", {level:.0%} intervals" if sampled else ""
    ax.set_title(f"In which variables the silos differ{told}")
    return ax
