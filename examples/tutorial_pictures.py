"""Draw the pictures of docs/tutorial.md, from the same table, settings and seed.

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
