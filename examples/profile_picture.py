"""Draw the cluster profiles of the demonstration's first hospital as a heat map.

Needs matplotlib: pip install 'silomix[report]'. Run it from the root of the repository:

    python examples/profile_picture.py docs/images/profile.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import silomix

if TYPE_CHECKING:
    from silomix import LocalPosterior


def first_hospital() -> LocalPosterior:
    """Return the posterior of the demonstration's first hospital."""
    table, truth = silomix.simulate("non-nested", separability="easy", seed=1)
    rows = table[table["silo"] == truth.silos[0]].drop(columns="silo")
    draws = silomix.sample(rows, silos=len(truth.silos), seed=1)
    return silomix.local_posterior(draws)


def draw_profiles(posterior: LocalPosterior) -> Figure:
    """Return a heat map: clusters down, the levels of each variable across."""
    schema = posterior.draws.shard.schema
    means = posterior.probabilities.mean(axis=0)
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(means, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(
        range(len(means)),
        [f"cluster {k} ({size} rows)" for k, size in enumerate(posterior.sizes)],
    )
    axes.set_xticks(range(means.shape[1]), [level for _, level in posterior.levels])
    for edge in schema.offsets[1:-1]:
        axes.axvline(edge - 0.5, color="white", linewidth=4)
    middles = (schema.offsets[:-1] + schema.offsets[1:] - 1) / 2
    names = axes.secondary_xaxis("top")
    names.set_xticks(middles, [variable.name for variable in schema.variables])
    for axis in (axes, names):
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    for cluster, level in np.ndindex(*means.shape):
        value = means[cluster, level]
        axes.text(
            level,
            cluster,
            f"{value:.2f}".lstrip("0") if value < 0.995 else "1",
            ha="center",
            va="center",
            fontsize=7,
            color="white" if value > 0.5 else "black",
        )
    figure.colorbar(image, label="probability", pad=0.01)
    return figure


def main() -> None:
    """Write the picture to the path given on the command line."""
    mpl.use("agg")
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "profile.png")
    draw_profiles(first_hospital()).savefig(target, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
