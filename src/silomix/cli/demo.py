"""The demonstration: four simulated hospitals, one clustering, and how close it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Group
from rich.text import Text

from silomix.api import fit
from silomix.model.files import writing
from silomix.model.metrics import adjusted_rand_index, highest_density_interval, pair_clusters
from silomix.model.table import load
from silomix.posterior import row_membership
from silomix.report.display import as_text, table_view
from silomix.report.results_folder import PAGE, write_posterior, write_table, write_text
from silomix.report.summary import posterior_record, posterior_view, verdict_view
from silomix.simulate import SILO_COLUMN, simulate

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from rich.console import RenderableType

    from silomix.kernels.arrays import Ints
    from silomix.posterior import Posterior
    from silomix.simulate import Truth

DESIGN, SEPARABILITY, SEED = "non-nested", "easy", 1
COLUMN = "hospital"
COMPARISON = "comparison.txt"


class Planted(NamedTuple):
    """A planted cluster, and the one that was found for it.

    Attributes
    ----------
    weight : its share of all rows in the design of Fendler et al. (2026), table 1.
    rows : drawn from it.
    found : the cluster that shares most rows with it, None where there is none.
    share, lower, upper : of that cluster: posterior mean and interval; None without one.
    """

    weight: float
    rows: int
    found: int | None = None
    share: float | None = None
    lower: float | None = None
    upper: float | None = None


class Hospital(NamedTuple):
    """What one hospital holds.

    Attributes
    ----------
    planted : clusters that its rows were drawn from.
    found : clusters that it found on its own rows.
    clusters : what those are among the clusters of all hospitals.
    agreement : adjusted Rand index of its rows' final labels and the planted ones.
    """

    name: str
    rows: int
    planted: int
    found: int
    clusters: tuple[int, ...]
    agreement: float


class Demo(NamedTuple):
    """The outcome.

    Attributes
    ----------
    agreement, best : adjusted Rand index of the labels found, and of those that the true
        parameters would give.
    """

    posterior: Posterior
    planted: list[Planted]
    hospitals: list[Hospital]
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


def _planted(posterior: Posterior, truth: Truth) -> list[Planted]:
    clusters = {"true_clusters": len(truth.weights), "clusters": posterior.n_clusters}
    pairs = pair_clusters(truth.labels, posterior.labels, **clusters)
    rows = np.bincount(truth.labels, minlength=len(truth.weights))
    means = posterior.weights.mean(axis=0, dtype=np.float64)
    found = np.stack([means, *highest_density_interval(posterior.weights)], axis=1).tolist()
    return [
        Planted(float(weight), int(count), *([int(pair), *found[pair]] if pair >= 0 else []))
        for weight, count, pair in zip(truth.weights, rows, pairs, strict=True)
    ]


def _hospitals(posterior: Posterior, table: pd.DataFrame, truth: Truth) -> list[Hospital]:
    groups = posterior.correspondence.groups if posterior.correspondence else ()
    hospitals = []
    for name, own in zip(posterior.silos, groups, strict=False):
        here = (table[COLUMN] == name).to_numpy()
        planted, clusters = len(np.unique(truth.labels[here])), tuple(np.unique(own).tolist())
        agreement = adjusted_rand_index(truth.labels[here], posterior.labels[here])
        hospitals.append(Hospital(name, int(here.sum()), planted, len(own), clusters, agreement))
    return hospitals


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
        "planted": [planted._asdict() for planted in demo.planted],
        "hospitals": [hospital._asdict() for hospital in demo.hospitals],
        "comparison": str(demo.comparison),
        "report": str(demo.comparison.with_name(PAGE)),
    }


def demo_view(demo: Demo) -> RenderableType:
    """Return the outcome for a person."""
    headings = "planted", "weight in the paper", "rows drawn", "found as", "share", "95% interval"
    planted = table_view(*headings)
    for number, one in enumerate(demo.planted):
        found = ["not found"]
        if one.found is not None:
            interval = f"{one.lower:.1%} to {one.upper:.1%}"
            found = [f"cluster {one.found}", f"{one.share:.1%}", interval]
        planted.add_row(str(number), f"{one.weight:.1%}", f"{one.rows:,}", *found)
    headings = COLUMN, "rows", "planted", "found", "which are", "ARI"
    hospitals = table_view(*headings, left=["which are"])
    for name, rows, own, held, clusters, agreement in demo.hospitals:
        which = "clusters " + " ".join(map(str, clusters))
        hospitals.add_row(name, f"{rows:,}", str(own), str(held), which, f"{agreement:.3f}")
    what = (
        f"Four simulated hospitals ({DESIGN}, {SEPARABILITY}, seed {SEED}) and {len(demo.planted)} "
        "clusters; no hospital has them all. Each sampled its own rows; the coordinator matched "
        f"and combined what they released, and found {demo.posterior.n_clusters} clusters."
    )
    how_well = (
        f"Adjusted Rand index with the planted clusters: {demo.agreement:.3f}; the true "
        f"parameters would give {demo.best:.3f} (1 is equal, 0 is chance)."
    )
    verdict = verdict_view(demo.posterior.diagnostics)
    return Group(Text(what), Text(how_well), planted, hospitals, verdict)
