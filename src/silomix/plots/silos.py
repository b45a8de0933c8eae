"""Figures of the silos: what they hold, how much they count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import SilomixError
from silomix.plots.common import COLOURS, axis, cluster_names, heat, lines_of
from silomix.plots.profiles import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from silomix.posterior import Posterior


def silo_clusters(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw each cluster's share of each silo's rows; a dot marks what the silo found on its own.

    Examples
    --------
    >>> silomix.plots.silo_clusters(posterior).get_title()
    'Which silos hold which cluster'
    """
    clusters = posterior.n_clusters
    ax = axis(ax, (2.8 + 0.55 * clusters, lines_of(len(posterior.silos))))
    shares = posterior.weights_by_silo.mean(axis=0, dtype=np.float64)
    heat(ax, shares, colours="cividis", limits=(0.0, 1.0), label="share of the silo's rows")
    if posterior.correspondence is not None:
        silo, cluster = np.nonzero(posterior.correspondence.held)
        ax.scatter(
            cluster + 0.38,
            silo - 0.33,
            s=14,
            color=COLOURS[1],
            edgecolors="white",
            linewidths=0.6,
            label="found by the silo",
        )
        ax.legend(loc="lower left", bbox_to_anchor=(0, -0.35), fontsize=7, frameon=False)
    _label(ax, posterior.silos, clusters)
    ax.set_title("Which silos hold which cluster")
    return ax


def silo_weights(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw λ, the silos' say in the clusters' sizes, and μ, their say in each profile.

    Examples
    --------
    >>> silomix.plots.silo_weights(posterior).get_title()
    'Silo weights'
    """
    say = posterior.silo_weights
    if say is None:
        raise SilomixError(
            "this posterior has no silo weights: its draws are not weighted means of the silos'"
        )
    silos, clusters = say.profiles.shape
    ax = axis(ax, (3.2 + 0.55 * clusters, lines_of(silos)))
    both = np.column_stack([say.weights, np.where(say.profiles > 0, say.profiles, np.nan)])
    heat(ax, both, colours="cividis", limits=(0.0, 1.0), label="say of the silo")
    ax.axvline(0.5, color="white", linewidth=4)
    _label(ax, say.silos, clusters)
    ax.set_xticks(range(clusters + 1), ["λ", *(f"μ {name}" for name in cluster_names(clusters))])
    ax.set_xlabel("λ, and μ by cluster")
    ax.set_title("Silo weights")
    return ax


def _label(ax: Axes, silos: Sequence[str], clusters: int) -> None:
    ax.set_yticks(range(len(silos)), [plain(name) for name in silos], fontsize=8)
    ax.set_xticks(range(clusters), cluster_names(clusters))
    ax.set_xlabel("cluster")
