"""Draw the picture of docs/explanation/drift.md: silos that differ, and what is learned of them.

Six hospitals share three clusters of fifteen variables. In three variables each has ways of its
own, with κ = 15, 40 and 100; in the others a cluster has the same profile everywhere.

Needs matplotlib: pip install 'silomix[report]'. Run it from the root of the repository:

    python examples/drift_picture.py docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import silomix
from silomix.posterior.characterise import spread

DPI = 90
HOSPITALS, CLUSTERS, ROWS = 6, 3, 800
KAPPA = {"admission": 15.0, "coding": 40.0, "tests": 100.0}
KAPPA |= {f"sign {number}": np.inf for number in range(1, 13)}


def simulate_drift(rng: np.random.Generator) -> pd.DataFrame:
    """Return a table whose hospitals differ in the first three variables."""
    shared = rng.choice([0.1, 0.5, 0.9], (len(KAPPA), CLUSTERS))
    hospital = np.repeat(np.arange(HOSPITALS), ROWS)
    cluster = rng.integers(CLUSTERS, size=HOSPITALS * ROWS)
    table = {"hospital": [f"hospital {place + 1}" for place in hospital]}
    for mean, (name, kappa) in zip(shared, KAPPA.items(), strict=True):
        own = np.tile(mean, (HOSPITALS, 1))
        if np.isfinite(kappa):
            own = rng.beta(kappa * own, kappa * (1 - own))
        table[name] = np.where(rng.random(len(cluster)) < own[hospital, cluster], "yes", "no")
    return pd.DataFrame(table)


def main() -> None:
    """Write the picture into the folder given on the command line."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    table = simulate_drift(np.random.default_rng(2))
    posterior = silomix.fit(table, silo="hospital", iterations=4000, seed=1)
    ax = silomix.plots.drift(posterior)
    names = posterior.drift()["variable"]
    truth = 100 * spread(np.array([KAPPA[name] for name in names]))
    ax.scatter(truth, range(len(names)), s=150, marker="|", color="#d55e00", label="simulated")
    ax.legend(loc="lower right", frameon=False)
    silomix.plots.save_figure(ax, folder / "drift.png", dpi=DPI)


if __name__ == "__main__":
    main()
