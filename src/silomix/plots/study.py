"""Figures of a simulation study, from a table with a line for each cell and method.

Its columns: `cell`, `method`, `ARI`, and for coverage `pi`, `p0`, `p1`, … each with a standard
error next to it, such as `ARI se`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import DataError
from silomix.plots.common import COLOURS, MARKERS, axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes

PARAMETERS = {
    "pi": "weights",
    "p0": "probabilities, lowest",
    "p1": "low",
    "p2": "high",
    "p3": "highest",
}
"""Columns of coverage, and what they cover."""
ERRORS = 2.0
"""Standard errors each way."""


def agreement(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the adjusted Rand index of each method in each cell, ± two standard errors.

    Examples
    --------
    >>> import pandas as pd
    >>> line = {"cell": "nested", "method": "default", "ARI": 0.9, "ARI se": 0.01}
    >>> silomix.plots.agreement(pd.DataFrame([line])).get_ylabel()
    'adjusted Rand index'
    """
    _check(summary, ["cell", "method", "ARI", "ARI se"])
    ax = axis(ax, (7.2, 4.0))
    _points(ax, summary, "cell", "ARI", "ARI se")
    ax.set(ylabel="adjusted Rand index", title="Agreement with the true clusters")
    ax.set_ylim(top=1.0)
    return ax


def coverage(
    summary: pd.DataFrame, ax: Axes | None = None, *, parameter: str = "pi", level: float = 0.95
) -> Axes:
    """Draw how often intervals hold the true value, ± two standard errors, and should hold it.

    Parameters
    ----------
    parameter : "pi" for the weights, or "p0" to "p3" for level probabilities by their size.
    level : of the intervals.

    Examples
    --------
    >>> import pandas as pd
    >>> line = {"cell": "nested", "method": "default", "pi": 0.94, "pi se": 0.01}
    >>> silomix.plots.coverage(pd.DataFrame([line])).get_title()
    'Coverage of 95% intervals: weights'
    """
    _check(summary, ["cell", "method", parameter, f"{parameter} se"])
    ax = axis(ax, (7.2, 4.0))
    _points(ax, summary, "cell", parameter, f"{parameter} se")
    ax.axhline(level, color="black", linewidth=0.8, linestyle="--", label=f"{level:.0%} wanted")
    ax.legend(fontsize=8)
    named = PARAMETERS.get(parameter, parameter)
    ax.set(ylabel="coverage", title=f"Coverage of {level:.0%} intervals: {named}")
    return ax


def _points(ax: Axes, summary: pd.DataFrame, across: str, value: str, error: str) -> None:
    cells = list(dict.fromkeys(summary[across]))
    methods = list(dict.fromkeys(summary["method"]))
    for place, method in enumerate(methods):
        lines = summary[summary["method"] == method]
        x = np.array([cells.index(cell) for cell in lines[across]], dtype=np.float64)
        shift = (place - (len(methods) - 1) / 2) * 0.6 / max(len(methods), 1)
        ax.errorbar(
            x + shift,
            lines[value].to_numpy(dtype=np.float64),
            ERRORS * lines[error].to_numpy(dtype=np.float64),
            fmt=MARKERS[place % len(MARKERS)],
            color=COLOURS[place % len(COLOURS)],
            capsize=3,
            label=str(method),
        )
    ax.set_xticks(range(len(cells)), cells, rotation=20, ha="right", fontsize=8)
    ax.legend(fontsize=8)


def _check(summary: pd.DataFrame, wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in summary.columns]
    if missing:
        raise DataError(
            f"the table of the study has no column {', '.join(map(repr, missing))}; it needs "
            f"{', '.join(map(repr, wanted))}"
        )
