"""Figures of the clusters' profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.plots.common import axis, cluster_names, heat, lines_of
from silomix.posterior.characterise import contrast, told_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from silomix.posterior import Posterior


def profile_heat_map(
    posterior: Posterior, ax: Axes | None = None, *, both_levels: bool = False
) -> Axes:
    """Draw the probability of each level in each cluster; levels down, clusters across.

    `both_levels` shows the first level of two-level variables too, which the second mirrors.

    Examples
    --------
    >>> silomix.plots.profile_heat_map(posterior).get_title()
    'Probability of each level'
    """
    shown = _shown(posterior, both_levels=both_levels)
    ax = axis(ax, (1.8 + 0.55 * posterior.n_clusters + 1.5, lines_of(len(shown))))
    means = posterior.probabilities.mean(axis=0, dtype=np.float64)[:, shown].T
    heat(ax, means, colours="cividis", limits=(0.0, 1.0), label="probability")
    _label(ax, posterior, shown)
    ax.set_title("Probability of each level")
    return ax


def scaled_difference(
    posterior: Posterior, ax: Axes | None = None, *, both_levels: bool = False
) -> Axes:
    """Draw the scaled difference of each level from the whole population, cluster by cluster.

    Fendler et al. (2026), section 6; the formula is that of `scaled_difference` in
    `silomix.posterior.characterise`.

    Examples
    --------
    >>> silomix.plots.scaled_difference(posterior).get_title()
    'Scaled difference from the whole population'
    """
    shown = _shown(posterior, both_levels=both_levels)
    ax = axis(ax, (1.8 + 0.55 * posterior.n_clusters + 1.5, lines_of(len(shown))))
    scaled = contrast(posterior.weights, posterior.probabilities).scaled[:, shown].T
    edge = max(float(np.abs(scaled).max(initial=0.0)), 0.5)
    heat(
        ax,
        scaled,
        colours="PuOr",
        limits=(-edge, edge),
        label="scaled difference",
        form="+.1f",
    )
    _label(ax, posterior, shown)
    ax.set_title("Scaled difference from the whole population")
    return ax


def _shown(posterior: Posterior, *, both_levels: bool) -> NDArray[np.int64]:
    told = told_columns(posterior.study.table_schema.offsets)
    return np.flatnonzero(told | both_levels)


def _label(ax: Axes, posterior: Posterior, shown: NDArray[np.int64]) -> None:
    names = [" = ".join(posterior.levels[column]) for column in shown]
    ax.set_yticks(range(len(shown)), [plain(name) for name in names], fontsize=8)
    ax.set_xticks(range(posterior.n_clusters), cluster_names(posterior.n_clusters))
    ax.set_xlabel("cluster")


def plain(name: str) -> str:
    """Return a name in which matplotlib sees no formula."""
    return name.replace("$", r"\$")
