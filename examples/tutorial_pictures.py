"""Draw the pictures of docs/tutorial.md and docs/reference/figures.md, of one table and seed.

Needs matplotlib: pip install 'silomix[report]'. Run it from the root of the repository:

    python examples/tutorial_pictures.py docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

import silomix

DPI = 90
PICTURES = {
    "tutorial-sizes.png": silomix.plots.cluster_sizes,
    "tutorial-profiles.png": silomix.plots.scaled_difference,
    "tutorial-silos.png": silomix.plots.silo_clusters,
    "figure-heat-map.png": silomix.plots.profile_heat_map,
    "figure-number.png": silomix.plots.number_of_clusters,
    "figure-map.png": silomix.plots.mca_map,
    "figure-weights.png": silomix.plots.silo_weights,
    "figure-trace.png": silomix.plots.trace,
}


def main() -> None:
    """Write the pictures into the folder given on the command line."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    table, _ = silomix.simulate("non-nested", separability="easy", seed=1)
    table = table.rename(columns={"silo": "hospital"})
    posterior = silomix.fit(table, silo="hospital", iterations=4000, seed=1)
    for name, draw in PICTURES.items():
        silomix.plots.save_figure(draw(posterior), folder / name, dpi=DPI)


if __name__ == "__main__":
    main()
