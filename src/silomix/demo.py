"""The demonstration: four simulated hospitals, and what each finds on its own rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from silomix.apply import apply_study
from silomix.metrics import adjusted_rand_index
from silomix.results import (
    as_record,
    as_text,
    table_view,
    write_silo,
    write_table,
    write_text,
    writing,
)
from silomix.roster import rows_of, table_schema
from silomix.simulate import SILO_COLUMN, simulate
from silomix.study import make_study, write_study

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from silomix.types import LocalPosterior

DESIGN, SEPARABILITY, SEED = "non-nested", "easy", 1
COLUMN = "hospital"
REPORT = "report.txt"


@dataclass(frozen=True, eq=False)
class Hospital:
    """What one hospital found, and how close it came.

    Attributes
    ----------
    planted : clusters that its rows were drawn from.
    agreement : adjusted Rand index of its partition and the planted one.
    """

    name: str
    posterior: LocalPosterior
    planted: int
    agreement: float


def run_demo(folder: Path) -> list[Hospital]:
    """Simulate the hospitals, sample each one's posterior, and write everything to `folder`."""
    table, truth = simulate(DESIGN, separability=SEPARABILITY, seed=SEED)
    table = table.rename(columns={SILO_COLUMN: COLUMN})
    table[COLUMN] = table[COLUMN].str.replace("silo", COLUMN)
    names = list(dict.fromkeys(table[COLUMN]))
    schema = table_schema(table, silo=COLUMN)
    study = make_study(schema, names, seed=SEED, title="The silomix demonstration")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_table(table, folder / "table.csv")
    write_study(study, folder / "study.toml")
    hospitals = []
    for name in names:
        posterior = apply_study(rows_of(table, COLUMN, name), study, name)
        planted = truth.labels[(table[COLUMN] == name).to_numpy()]
        agreement = adjusted_rand_index(planted, posterior.partition.labels)
        hospitals.append(Hospital(name, posterior, len(np.unique(planted)), agreement))
        write_silo(folder / name.replace(" ", "-"), name, posterior, summary=REPORT)
    write_text(as_text(demo_view(hospitals)), folder / REPORT)
    return hospitals


def demo_record(hospitals: list[Hospital], folder: Path) -> dict[str, Any]:
    """Return the outcome for a program."""
    found = [
        as_record(h.name, h.posterior) | {"planted": h.planted, "ari": h.agreement}
        for h in hospitals
    ]
    return {"hospitals": found, "report": str(folder / REPORT)}


def demo_view(hospitals: list[Hospital]) -> RenderableType:
    """Return the outcome for a person."""
    table = table_view(COLUMN, "rows", "planted", "found", "sizes", "ARI")
    for h in hospitals:
        sizes = h.posterior.sizes
        table.add_row(
            h.name,
            f"{sizes.sum():,}",
            str(h.planted),
            str(len(sizes)),
            " ".join(map(str, sizes)),
            f"{h.agreement:.3f}",
        )
    verdicts = [f"{h.name}: {h.posterior.draws.diagnostics.verdict}" for h in hospitals]
    return Group(
        Text(
            f"Four simulated hospitals ({DESIGN}, {SEPARABILITY}, seed {SEED}); each samples "
            "the posterior of a mixture on its own rows. ARI compares the clusters it found "
            "with the planted ones: 1 is equal, 0 is chance."
        ),
        table,
        *map(Text, verdicts),
    )
