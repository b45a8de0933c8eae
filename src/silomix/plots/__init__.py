"""Figures as functions: each takes a posterior, or a study's table, and an axis, and returns it.

Needs matplotlib, in the extra "report". Colours are safe for the colour-blind: cividis for shares,
PuOr for differences, and markers that differ.
"""

from __future__ import annotations

from silomix.plots.clusters import cluster_sizes, mca_map, number_of_clusters
from silomix.plots.common import save_figure
from silomix.plots.drift import drift
from silomix.plots.profiles import profile_heat_map, scaled_difference
from silomix.plots.silos import silo_clusters, silo_weights
from silomix.plots.study import agreement, coverage
from silomix.plots.traces import trace

__all__ = [
    "agreement",
    "cluster_sizes",
    "coverage",
    "drift",
    "mca_map",
    "number_of_clusters",
    "profile_heat_map",
    "save_figure",
    "scaled_difference",
    "silo_clusters",
    "silo_weights",
    "trace",
]
