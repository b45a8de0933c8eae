"""Commands before a study: draw a table to try things on, and write the study file."""
# annotations are evaluated here, since the options are made from them

from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.console import Group
from rich.text import Text

from silomix.cli.command import WORDS, command, settings_of, split, study_of
from silomix.cli.terminal import Shown
from silomix.model.reading import read_table
from silomix.model.sentences import listing, one_of
from silomix.report.display import frame_view
from silomix.report.results_folder import check_free, write_table
from silomix.simulate import DESIGNS, SILO_COLUMN
from silomix.simulate import simulate as draw_table
from silomix.simulate.cohort import CONDITIONS, PUBLISHED_ROWS, planted, truth_files, write_cohort
from silomix.study import digest, write_study

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
    """Draw a table whose clusters are known, to try things on.

    Examples
    --------
    silomix simulate non-nested --seed 1 --out table.csv
    """
    cohort = design == COHORT
    if cohort and (separability is not None or silos is not None):
        raise typer.BadParameter(
            f"{COHORT} has its own clusters and no silos: leave out --separability and --silos"
        )
    one_of("design", design, WORDS["design"])
    suffix = ".parquet" if cohort else ".csv"
    if out.suffix != suffix:
        raise typer.BadParameter(f"{out} does not end in {suffix}", param_hint="--out")
    truths = truth_files(out) if cohort else (out.with_suffix(".truth.csv"),)
    check_free([out, *truths], force=force)
    if cohort:
        rows = PUBLISHED_ROWS if rows is None else rows
        write_cohort(out, rows=rows, **seed)
        clusters, has = len(planted().weights), {"conditions": list(CONDITIONS)}
    else:
        table, truth = draw_table(design, separability=separability, rows=rows, silos=silos, **seed)
        write_table(table, out)
        labels = pd.DataFrame({SILO_COLUMN: table[SILO_COLUMN], "cluster": truth.labels})
        write_table(labels, truths[0])
        rows, clusters, has = len(table), len(truth.weights), {"silos": list(truth.silos)}
    record = {"design": design, "rows": rows, **has, "clusters": clusters, "files": [out, *truths]}
    [(noun, names)] = has.items()
    text = f"{design}: {rows:,} rows, {len(names)} {noun}, {clusters} clusters"
    words = ("Table", "True clusters", "Their parameters")
    last = [f"{word}: {file}" for word, file in zip(words, (out, *truths), strict=False)]
    return Shown(record, Text(text), "\n".join(last))


@command(
    settings=settings_of()
    | dict.fromkeys(["preset", "variables", "exclude", "missing", "frequency"], str),
    out="The study file, such as study.toml.",
    silos="Names of the silos, as a,b,c, where no column has them.",
)
def study_command(
    table: Path,
    *,
    out: Path,
    silo: str | None = None,
    silos: str | None = None,
    force: bool = False,
    **settings: Any,
) -> Shown:
    """Write a study file: every setting of a study, for all silos to work from.

    Examples
    --------
    silomix study codebook.csv --silos north,south --preset files --out study.toml
    """
    if (silo is None) == (silos is None):
        raise typer.BadParameter("give --silo COLUMN, or --silos with the names: not both")
    check_free([out], force=force)
    study = study_of(read_table(table), silo, split(silos), **settings)
    write_study(study, out)
    record = {
        "digest": digest(study),
        "silos": list(study.silos),
        "variables": {variable.name: list(variable.levels) for variable in study.variables},
        "settings": study.model_dump(mode="json", exclude={"silos", "variables"}),
        "files": [out],
    }
    levels = [(one.name, listing(one.levels, MOST_NAMES)) for one in study.variables]
    view = Group(
        Text(f"{len(study.silos)} silos: {listing(study.silos, MOST_NAMES)}"),
        frame_view(pd.DataFrame(levels, columns=["variable", "levels"])),
        Text(f"Digest: {digest(study)}"),
    )
    return Shown(record, view, f"Study: {out}")
