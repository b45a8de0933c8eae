"""Figures of what was watched along the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import SettingsError
from silomix.plots.common import COLOURS, axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from silomix.posterior import Posterior

NAMES = {"elbo": ("step", "relaxed ELBO"), "log_likelihood": ("polish round", "log-likelihood")}
"""By trace, the labels of its axes."""


def trace(posterior: Posterior, ax: Axes | None = None, *, which: str = "elbo") -> Axes:
    """Draw a trace: "elbo", the aggregation's objective, or "log_likelihood", over the polish.

    Examples
    --------
    >>> silomix.plots.trace(posterior, which="log_likelihood").get_xlabel()
    'polish round'
    """
    found = _found(posterior)
    if which not in found:
        known = ", ".join(map(repr, found)) or "none"
        raise SettingsError(f"which is {which!r}; the traces of this posterior are: {known}")
    along, value = NAMES[which]
    ax = axis(ax)
    values = found[which]
    ax.plot(np.arange(1, len(values) + 1), values, color=COLOURS[0], marker=".")
    ax.set(xlabel=along, ylabel=value, title=f"{value} by {along}")
    return ax


def _found(posterior: Posterior) -> dict[str, NDArray[np.floating]]:
    diagnostics = posterior.diagnostics
    found = {} if diagnostics.elbo is None else {"elbo": diagnostics.elbo}
    polish = diagnostics.polish.values if diagnostics.polish else {}
    return found | {name: values for name, values in polish.items() if name in NAMES}
