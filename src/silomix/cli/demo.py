"""The demonstration: four simulated hospitals, one clustering, and how close it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Group
from rich.text import Text

from silomix.api import fit
from silomix.cli.terminal import Shown
from silomix.model.files import writing
from silomix.model.metrics import adjusted_rand_index, highest_density_interval, pair_clusters
from silomix.model.schema import Shard
from silomix.model.table import load
from silomix.posterior.membership import row_membership
from silomix.report.display import as_text, frame_view
from silomix.report.results_folder import PAGE, write_posterior, write_table, write_text
from silomix.report.summary import json_lines, posterior_record, posterior_view
from silomix.simulate import SILO_COLUMN, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from silomix.kernels.arrays import Ints
    from silomix.posterior import Posterior
    from silomix.simulate import Truth

DESIGN, SEPARABILITY, SEED = "non-nested", "easy", 1
COLUMN = "hospital"


def run_demo(folder: Path, **settings: Any) -> Shown:
    """Simulate the hospitals, fit, compare, and write everything to `folder`.

    `settings` go to `silomix.fit`.
    """
    table, truth = simulate(DESIGN, separability=SEPARABILITY, seed=SEED)
    table = table.rename(columns={SILO_COLUMN: COLUMN})
    table[COLUMN] = table[COLUMN].str.replace("silo", COLUMN)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_table(table, folder / "table.csv")
    posterior = fit(table, COLUMN, seed=SEED, title="The silomix demonstration", **settings)
    write_posterior(folder, posterior)
    found = compare(posterior, table, truth, folder)
    write_text(as_text(found.view), found.record["comparison"])
    return found


def compare(posterior: Posterior, table: pd.DataFrame, truth: Truth, folder: Path) -> Shown:
    """Compare a fit with what its table was drawn from; `folder` is where that will stand."""
    planted = _planted(posterior, truth)
    # of the labels found, and of those that the true parameters would give
    agreement = adjusted_rand_index(truth.labels, posterior.labels)
    best = adjusted_rand_index(truth.labels, best_labels(table, truth))
    view = Group(
        Text(
            f"Four simulated hospitals ({DESIGN}, {SEPARABILITY}, seed {SEED}) and {len(planted)} "
            "clusters; no hospital has them all. Each sampled its own rows; the coordinator "
            f"matched and combined what they released, and found {posterior.n_clusters} clusters."
        ),
        Text(
            f"Adjusted Rand index with the planted clusters: {agreement:.3f}; the true parameters "
            f"would give {best:.3f} (1 is equal, 0 is chance)."
        ),
        _planted_view(planted),
        posterior_view(posterior),
    )
    comparison, page = folder / "comparison.txt", folder / PAGE
    record = posterior_record(posterior) | {
        "ari": agreement,
        "best_ari": best,
        "planted": json_lines(planted),
        "comparison": comparison,
        "report": page,
    }
    return Shown(record, view, f"Against the truth: {comparison}\nReport: {page}")


def _planted(posterior: Posterior, truth: Truth) -> pd.DataFrame:
    """Return a line for each planted cluster.

    Its weight in the design of Fendler et al. (2026), table 1, the rows drawn from it, and the
    cluster found that shares most rows with it, with its posterior share and interval; nan where
    there is none.
    """
    clusters = {"true_clusters": len(truth.weights), "clusters": posterior.n_clusters}
    pairs = pair_clusters(truth.labels, posterior.labels, **clusters)
    lower, upper = highest_density_interval(posterior.weights)
    shares = posterior.weights.mean(axis=0, dtype=np.float64)
    found = pd.DataFrame({"share": shares, "lower": lower, "upper": upper})
    rows = np.bincount(truth.labels, minlength=len(truth.weights))
    planted = pd.DataFrame({"weight": truth.weights, "rows": rows, "found": pairs})
    planted["found"] = planted["found"].where(pairs >= 0).astype("Int64")
    return planted.join(found, on="found")


def best_labels(table: pd.DataFrame, truth: Truth) -> Ints:
    """Return the most probable cluster of each row under the true parameters: (row,)."""
    shard, places = load(table.drop(columns=COLUMN)), pd.factorize(table[COLUMN])[0]
    labels = np.empty(len(table), dtype=np.int64)
    for place, weights in enumerate(truth.weights_by_silo):
        own = Shard(shard.schema, shard.codes[places == place])
        known = row_membership(own, weights[None], truth.probabilities[None])
        labels[places == place] = known.membership.argmax(axis=1)
    return labels


def _planted_view(planted: pd.DataFrame) -> RenderableType:
    found = ["not found" if pd.isna(c) else f"cluster {c}" for c in planted["found"]]
    heads = {"weight": "weight in the paper", "rows": "rows drawn", "found": "found as"}
    heads |= {"lower": "95% from", "upper": "to"}
    shown = planted.assign(found=found).rename(columns=heads).rename_axis("planted")
    return frame_view(shown.reset_index())
