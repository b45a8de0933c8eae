"""Commands before a study: draw a table to try things on, and write the study file."""
# annotations are evaluated here, since the options are made from them

from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix.cli.command import WORDS, Shown, columns_to_use, command, given, settings_of, split
from silomix.model.reading import read_table
from silomix.model.sentences import listing, one_of
from silomix.model.table import expand, infer_schema
from silomix.report.display import table_view
from silomix.report.results_folder import check_free, write_table
from silomix.simulate import DESIGNS, SILO_COLUMN
from silomix.simulate import simulate as draw_table
from silomix.simulate.cohort import CONDITIONS, PUBLISHED_ROWS, planted, truth_files, write_cohort
from silomix.study import Study, digest, make_study, write_study
from silomix.study.roster import read_roster

MOST_NAMES = 12
# The one word of `simulate` that is no design: it writes `simulate_cohort` to Parquet.
COHORT = "cohort"

WORDS["design"] = (*DESIGNS, COHORT)


@command(
    settings=settings_of("seed"),
    design=f"One of {', '.join(WORDS['design'])}.",
    out="The table: t.csv, or t.parquet of a cohort; the truth is put beside.",
)
def simulate_command(
    design: str,
    *,
    out: Path,
    separability: str | None = None,
    rows: int | None = None,
    silos: int | None = None,
    force: bool = False,
    **seed: Any,
) -> Shown:
    """Draw a table whose clusters are known, to try things on."""
    if design == COHORT:
        if separability is not None or silos is not None:
            raise typer.BadParameter(
                f"{COHORT} has its own clusters and no silos: leave out --separability and --silos"
            )
        size = PUBLISHED_ROWS if rows is None else rows
        return _simulate_cohort(out, size, force=force, **seed)
    one_of("design", design, WORDS["design"])
    _check_suffix(out, ".csv")
    truth_out = out.with_suffix(".truth.csv")
    check_free([out, truth_out], force=force)
    table, truth = draw_table(design, separability=separability, rows=rows, silos=silos, **seed)
    write_table(table, out)
    labels = pd.DataFrame({SILO_COLUMN: table[SILO_COLUMN], "cluster": truth.labels})
    write_table(labels, truth_out)
    clusters = len(truth.weights)
    record = {
        "design": design,
        "rows": len(table),
        "silos": list(truth.silos),
        "clusters": clusters,
        "files": [str(out), str(truth_out)],
    }
    text = f"{design}: {len(table):,} rows, {len(truth.silos)} silos, {clusters} clusters"
    return Shown(record, Text(text), f"Table: {out}\nTrue clusters: {truth_out}")


def _simulate_cohort(out: Path, rows: int, *, force: bool, **seed: Any) -> Shown:
    """Write a cohort and its truth, a chunk at a time."""
    _check_suffix(out, ".parquet")
    labels_out, truth_out = truth_files(out)
    check_free([out, labels_out, truth_out], force=force)
    write_cohort(out, rows=rows, **seed)
    clusters = len(planted().weights)
    record = {
        "design": COHORT,
        "rows": rows,
        "conditions": list(CONDITIONS),
        "clusters": clusters,
        "files": [str(out), str(labels_out), str(truth_out)],
    }
    text = f"{COHORT}: {rows:,} rows, {len(CONDITIONS)} conditions, {clusters} clusters"
    last = f"Table: {out}\nTrue clusters: {labels_out}\nTheir parameters: {truth_out}"
    return Shown(record, Text(text), last)


def _check_suffix(out: Path, suffix: str) -> None:
    if out.suffix != suffix:
        raise typer.BadParameter(f"{out} does not end in {suffix}", param_hint="--out")


@command(
    settings=settings_of() | {"preset": str},
    out="The study file, such as study.toml.",
    silos="Names of the silos, as a,b,c, where no column has them.",
)
def study_command(
    table: Path,
    *,
    out: Path,
    silo: str | None = None,
    silos: str | None = None,
    variables: str | None = None,
    exclude: str | None = None,
    missing: str | None = None,
    frequency: str | None = None,
    force: bool = False,
    **settings: Any,
) -> Shown:
    """Write a study file: every setting of a study, for all silos to work from."""
    if (silo is None) == (silos is None):
        raise typer.BadParameter("give --silo COLUMN, or --silos with the names: not both")
    check_free([out], force=force)
    frame = read_table(table)
    chosen = columns_to_use(frame, variables, exclude, apart=[silo, frequency])
    names = split(silos) or read_roster(frame, str(silo)).names
    rows = expand(frame, frequency)
    schema = infer_schema(rows, silo=silo, variables=chosen, **given(missing=missing))
    study = make_study(schema, names, **settings)
    write_study(study, out)
    record = {
        "digest": digest(study),
        "silos": list(study.silos),
        "variables": {variable.name: list(variable.levels) for variable in study.variables},
        "settings": study.model_dump(mode="json", exclude={"silos", "variables"}),
        "files": [str(out)],
    }
    return Shown(record, _study_view(study), f"Study: {out}")


def _study_view(study: Study) -> RenderableType:
    table = table_view("variable", "levels")
    for variable in study.variables:
        table.add_row(variable.name, listing(variable.levels, MOST_NAMES))
    return Group(
        Text(f"{len(study.silos)} silos: {listing(study.silos, MOST_NAMES)}"),
        table,
        Text(f"Digest: {digest(study)}"),
    )
