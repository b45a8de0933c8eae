"""Figures of the clusters: how large, how many, where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.data import encode, read_table
from silomix.errors import SilomixError
from silomix.metrics import highest_density_interval
from silomix.plots.common import COLOURS, MARKERS, axis, cluster_names
from silomix.posterior.characterise import SMALL, cluster_map
from silomix.posterior.characterise import number_of_clusters as posterior_of_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.posterior import Posterior


def cluster_sizes(posterior: Posterior, ax: Axes | None = None, *, level: float = 0.95) -> Axes:
    """Draw each cluster's share of all rows, with its highest-density interval.

    Examples
    --------
    >>> silomix.plots.cluster_sizes(posterior, level=0.9).get_title()
    'Cluster sizes, 90% HDI'
    """
    ax = axis(ax)
    means = posterior.weights.mean(axis=0, dtype=np.float64)
    lower, upper = highest_density_interval(posterior.weights, level)
    reach = np.clip(np.stack([means - lower, upper - means]), 0.0, None)
    ax.errorbar(np.arange(len(means)), means, reach, fmt="o", color=COLOURS[0], capsize=3)
    ax.set_xticks(range(len(means)), cluster_names(len(means)))
    ax.set_ylim(bottom=0.0)
    ax.set(xlabel="cluster", ylabel="share of all rows", title=f"Cluster sizes, {level:.0%} HDI")
    return ax


def number_of_clusters(
    posterior: Posterior, ax: Axes | None = None, *, at_least: float = SMALL
) -> Axes:
    """Draw the posterior of how many of the clusters hold at least such a share of the rows.

    Examples
    --------
    >>> silomix.plots.number_of_clusters(posterior).get_title()
    'Of 5 clusters found'
    """
    ax = axis(ax)
    found = posterior_of_number(posterior.weights, at_least=at_least)
    ax.bar(list(found), list(found.values()), color=COLOURS[0])
    ax.set_xticks(list(found))
    ax.set_xlim(min(found) - 1.5, max(found) + 1.5)
    ax.set_ylim(0.0, 1.0)
    ax.set(
        xlabel=f"clusters with at least {at_least:.1%} of all rows",
        ylabel="posterior probability",
        title=f"Of {posterior.n_clusters} clusters found",
    )
    return ax


def mca_map(posterior: Posterior, ax: Axes | None = None, *, table: Table | None = None) -> Axes:
    """Draw the clusters on the first two axes of a multiple correspondence analysis.

    Parameters
    ----------
    table : rows to draw beneath, where they are: those of one's own silo. Each lies at the mean of
        its levels; missing cells are left out.

    Examples
    --------
    >>> silomix.plots.mca_map(posterior, table=table).get_title()
    'Clusters by correspondence analysis'
    """
    ax = axis(ax, (5.5, 5.0))
    offsets = posterior.study.table_schema.offsets
    found = cluster_map(posterior.weights, posterior.probabilities, offsets)
    if found is None:
        raise SilomixError(
            f"there is no map of {posterior.n_clusters} cluster(s) and {len(offsets) - 1} "
            "variable(s): it takes two clusters that differ, and two variables"
        )
    if table is not None:
        codes = encode(read_table(table), posterior.study.table_schema).codes
        rows = _row_places(codes, found.columns, offsets)
        ax.scatter(rows[:, 0], rows[:, 1], s=4, color="0.75", linewidths=0, rasterized=True)
    shares = posterior.weights.mean(axis=0, dtype=np.float64)
    for cluster, (x, y) in enumerate(found.centres):
        place = cluster % len(COLOURS)
        ax.scatter(x, y, s=60 + 900 * shares[cluster], color=COLOURS[place], alpha=0.6)
        ax.scatter(x, y, s=12, color="black", marker=MARKERS[place])
        ax.annotate(str(cluster), (x, y), textcoords="offset points", xytext=(6, 6))
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    ax.axvline(0.0, color="0.8", linewidth=0.8, zorder=0)
    names = [f"axis {place + 1} ({share:.0%})" for place, share in enumerate(found.shares)]
    ax.set(xlabel=names[0], ylabel=names[1], title="Clusters by correspondence analysis")
    return ax


def _row_places(
    codes: NDArray[np.unsignedinteger], columns: NDArray[np.float64], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return where rows lie: the mean over their levels that are there, (row, axis)."""
    there = codes < np.diff(offsets)
    places = np.where(there, codes + offsets[:-1], 0)
    summed = (columns[places] * there[:, :, None]).sum(axis=1)
    return summed / np.maximum(there.sum(axis=1), 1)[:, None]
