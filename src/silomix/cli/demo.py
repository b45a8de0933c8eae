"""The demonstration: four simulated hospitals, one clustering, and how close it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Group
from rich.text import Text

from silomix.api import fit
from silomix.model.files import writing
from silomix.model.metrics import adjusted_rand_index, highest_density_interval, pair_clusters
from silomix.model.table import load
from silomix.posterior import row_membership
from silomix.report.display import as_text, frame_view
from silomix.report.results_folder import PAGE, write_posterior, write_table, write_text
from silomix.report.summary import json_lines, posterior_record, posterior_view, verdict_view
from silomix.simulate import SILO_COLUMN, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from silomix.kernels.arrays import Ints
    from silomix.posterior import Posterior
    from silomix.simulate import Truth

DESIGN, SEPARABILITY, SEED = "non-nested", "easy", 1
COLUMN = "hospital"
COMPARISON = "comparison.txt"


class Demo(NamedTuple):
    """The outcome.

    Attributes
    ----------
    planted : a line for each planted cluster: its weight in the design of Fendler et al. (2026),
        table 1, the rows drawn from it, and the cluster found that shares most rows with it, with
        its posterior share and interval; nan where there is none.
    hospitals : a line for each: its rows, in how many clusters they were planted, how many it
        found on its own rows, what those are among the clusters of all hospitals, and the adjusted
        Rand index of its rows' final labels and the planted ones.
    agreement, best : adjusted Rand index of the labels found, and of those that the true
        parameters would give.
    comparison : the file with all this.
    """

    posterior: Posterior
    planted: pd.DataFrame
    hospitals: pd.DataFrame
    agreement: float
    best: float
    comparison: Path


def run_demo(folder: Path, **settings: Any) -> Demo:
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
    found = compare(posterior, table, truth, folder / COMPARISON)
    write_posterior(folder, posterior)
    view = Group(demo_view(found), posterior_view(posterior))
    write_text(as_text(view), found.comparison)
    return found


def compare(posterior: Posterior, table: pd.DataFrame, truth: Truth, text: Path) -> Demo:
    """Compare a fit with what its table was drawn from; `text` is where that will stand."""
    found = adjusted_rand_index(truth.labels, posterior.labels)
    best = adjusted_rand_index(truth.labels, best_labels(table, truth))
    hospitals = _hospitals(posterior, table, truth)
    return Demo(posterior, _planted(posterior, truth), hospitals, found, best, text)


def _planted(posterior: Posterior, truth: Truth) -> pd.DataFrame:
    clusters = {"true_clusters": len(truth.weights), "clusters": posterior.n_clusters}
    pairs = pair_clusters(truth.labels, posterior.labels, **clusters)
    lower, upper = highest_density_interval(posterior.weights)
    shares = posterior.weights.mean(axis=0, dtype=np.float64)
    found = pd.DataFrame({"share": shares, "lower": lower, "upper": upper})
    rows = np.bincount(truth.labels, minlength=len(truth.weights))
    planted = pd.DataFrame({"weight": truth.weights, "rows": rows, "found": pairs})
    planted["found"] = planted["found"].where(pairs >= 0).astype("Int64")
    return planted.join(found, on="found")


def _hospitals(posterior: Posterior, table: pd.DataFrame, truth: Truth) -> pd.DataFrame:
    lines = []
    groups = posterior.correspondence.groups if posterior.correspondence else ()
    for name, own in zip(posterior.silos, groups, strict=False):
        here = (table[COLUMN] == name).to_numpy()
        line = {
            "name": name,
            "rows": int(here.sum()),
            "planted": len(np.unique(truth.labels[here])),
            "found": len(own),
            "clusters": np.unique(own).tolist(),
            "agreement": adjusted_rand_index(truth.labels[here], posterior.labels[here]),
        }
        lines.append(line)
    return pd.DataFrame(lines)


def best_labels(table: pd.DataFrame, truth: Truth) -> Ints:
    """Return the most probable cluster of each row under the true parameters: (row,)."""
    labels = np.empty(len(table), dtype=np.int64)
    variables = table.drop(columns=COLUMN)
    schema = load(variables).schema
    for name, weights in zip(table[COLUMN].unique(), truth.weights_by_silo, strict=True):
        here = (table[COLUMN] == name).to_numpy()
        shard = load(variables[here], schema=schema)
        known = row_membership(shard, weights[None], truth.probabilities[None])
        labels[here] = known.membership.argmax(axis=1)
    return labels


def demo_record(demo: Demo) -> dict[str, Any]:
    """Return the outcome for a program."""
    return posterior_record(demo.posterior) | {
        "ari": demo.agreement,
        "best_ari": demo.best,
        "planted": json_lines(demo.planted),
        "hospitals": json_lines(demo.hospitals),
        "comparison": demo.comparison,
        "report": demo.comparison.with_name(PAGE),
    }


def demo_view(demo: Demo) -> RenderableType:
    """Return the outcome for a person."""
    found = ["not found" if pd.isna(c) else f"cluster {c}" for c in demo.planted["found"]]
    heads = {"weight": "weight in the paper", "rows": "rows drawn", "found": "found as"}
    heads |= {"lower": "95% from", "upper": "to"}
    planted = demo.planted.assign(found=found).rename(columns=heads)
    which = ["clusters " + " ".join(map(str, own)) for own in demo.hospitals["clusters"]]
    agreement = demo.hospitals["agreement"].map("{:.3f}".format)
    hospitals = demo.hospitals.assign(clusters=which, agreement=agreement)
    heads = {"name": COLUMN, "clusters": "which are", "agreement": "ARI"}
    what = (
        f"Four simulated hospitals ({DESIGN}, {SEPARABILITY}, seed {SEED}) and {len(demo.planted)} "
        "clusters; no hospital has them all. Each sampled its own rows; the coordinator matched "
        f"and combined what they released, and found {demo.posterior.n_clusters} clusters."
    )
    how_well = (
        f"Adjusted Rand index with the planted clusters: {demo.agreement:.3f}; the true "
        f"parameters would give {demo.best:.3f} (1 is equal, 0 is chance)."
    )
    return Group(
        Text(what),
        Text(how_well),
        frame_view(planted.rename_axis("planted").reset_index()),
        frame_view(hospitals.rename(columns=heads), left=["which are"]),
        verdict_view(demo.posterior.diagnostics),
    )
