"""The demonstration: four simulated hospitals, one clustering, and how close it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from silomix.api import fit
from silomix.data import load
from silomix.metrics import adjusted_rand_index, highest_density_interval, pair_clusters
from silomix.posterior import row_membership
from silomix.report.display import as_text, table_view
from silomix.report.results_folder import PAGE, write_posterior, write_table, write_text, writing
from silomix.report.summary import posterior_record, posterior_view, verdict_view
from silomix.simulate import SILO_COLUMN, simulate

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray
    from rich.console import RenderableType
    from rich.table import Table

    from silomix.posterior import Posterior
    from silomix.simulate import Truth

DESIGN, SEPARABILITY, SEED = "non-nested", "easy", 1
COLUMN = "hospital"
COMPARISON = "comparison.txt"


@dataclass(frozen=True, eq=False)
class Planted:
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


@dataclass(frozen=True, eq=False)
class Hospital:
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


@dataclass(frozen=True, eq=False)
class Demo:
    """The outcome.

    Attributes
    ----------
    agreement, best : adjusted Rand index of the labels found, and of those that the true
        parameters would give.
    """

    posterior: Posterior
    planted: tuple[Planted, ...]
    hospitals: tuple[Hospital, ...]
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
    write_text(as_text(Group(demo_view(found), posterior_view(posterior))), found.comparison)
    return found


def compare(posterior: Posterior, table: pd.DataFrame, truth: Truth, text: Path) -> Demo:
    """Compare a fit with what its table was drawn from; `text` is where that will stand."""
    return Demo(
        posterior=posterior,
        planted=tuple(_planted(posterior, truth)),
        hospitals=tuple(_hospitals(posterior, table, truth)),
        agreement=adjusted_rand_index(truth.labels, posterior.labels),
        best=adjusted_rand_index(truth.labels, best_labels(table, truth)),
        comparison=text,
    )


def _planted(posterior: Posterior, truth: Truth) -> list[Planted]:
    pairs = pair_clusters(
        truth.labels,
        posterior.labels,
        true_clusters=len(truth.weights),
        clusters=posterior.n_clusters,
    )
    rows = np.bincount(truth.labels, minlength=len(truth.weights))
    means = posterior.weights.mean(axis=0, dtype=np.float64)
    lower, upper = highest_density_interval(posterior.weights)
    return [
        Planted(float(weight), int(count))
        if pair < 0
        else Planted(
            float(weight),
            int(count),
            int(pair),
            float(means[pair]),
            float(lower[pair]),
            float(upper[pair]),
        )
        for weight, count, pair in zip(truth.weights, rows, pairs, strict=True)
    ]


def _hospitals(posterior: Posterior, table: pd.DataFrame, truth: Truth) -> list[Hospital]:
    correspondence = posterior.correspondence
    hospitals = []
    for place, name in enumerate(posterior.silos):
        here = (table[COLUMN] == name).to_numpy()
        groups = correspondence.groups[place] if correspondence else np.zeros(0, dtype=np.int64)
        hospitals.append(
            Hospital(
                name=name,
                rows=int(here.sum()),
                planted=len(np.unique(truth.labels[here])),
                found=len(groups),
                clusters=tuple(np.unique(groups).tolist()),
                agreement=adjusted_rand_index(truth.labels[here], posterior.labels[here]),
            )
        )
    return hospitals


def best_labels(table: pd.DataFrame, truth: Truth) -> NDArray[np.int64]:
    """Return the most probable cluster of each row under the true parameters: (row,)."""
    labels = np.empty(len(table), dtype=np.int64)
    names = table[COLUMN].unique()
    schema = load(table.drop(columns=COLUMN)).schema
    for name, weights in zip(names, truth.weights_by_silo, strict=True):
        here = (table[COLUMN] == name).to_numpy()
        shard = load(table.loc[here].drop(columns=COLUMN), schema=schema)
        known = row_membership(shard, weights[None], truth.probabilities[None])
        labels[here] = known.membership.argmax(axis=1)
    return labels


def demo_record(demo: Demo) -> dict[str, Any]:
    """Return the outcome for a program."""
    return posterior_record(demo.posterior) | {
        "ari": demo.agreement,
        "best_ari": demo.best,
        "planted": [vars(planted) for planted in demo.planted],
        "hospitals": [vars(hospital) for hospital in demo.hospitals],
        "comparison": str(demo.comparison),
        "report": str(demo.comparison.with_name(PAGE)),
    }


def demo_view(demo: Demo) -> RenderableType:
    """Return the outcome for a person."""
    posterior, planted = demo.posterior, len(demo.planted)
    return Group(
        Text(
            f"Four simulated hospitals ({DESIGN}, {SEPARABILITY}, seed {SEED}), and {planted} "
            "clusters of which none holds all. Each sampled its own rows; the coordinator "
            f"matched and combined what they released, and found {posterior.n_clusters} clusters."
        ),
        Text(
            f"Adjusted Rand index with the planted clusters: {demo.agreement:.3f}; the true "
            f"parameters would give {demo.best:.3f} (1 is equal, 0 is chance)."
        ),
        _planted_view(demo.planted),
        _hospitals_view(demo.hospitals),
        verdict_view(posterior.diagnostics),
    )


def _planted_view(planted: tuple[Planted, ...]) -> Table:
    table = table_view(
        "planted", "weight in the paper", "rows drawn", "found as", "share", "95% interval"
    )
    for number, one in enumerate(planted):
        drawn = [str(number), f"{one.weight:.1%}", f"{one.rows:,}"]
        if one.found is None:
            table.add_row(*drawn, "not found")
        else:
            interval = f"{one.lower:.1%} to {one.upper:.1%}"
            table.add_row(*drawn, f"cluster {one.found}", f"{one.share:.1%}", interval)
    return table


def _hospitals_view(hospitals: tuple[Hospital, ...]) -> Table:
    table = table_view(COLUMN, "rows", "planted", "found", "which are", "ARI", left=["which are"])
    for one in hospitals:
        table.add_row(
            one.name,
            f"{one.rows:,}",
            str(one.planted),
            str(one.found),
            "clusters " + " ".join(map(str, one.clusters)),
            f"{one.agreement:.3f}",
        )
    return table
