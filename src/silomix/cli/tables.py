"""Commands around a table: draw one, and write the study file of one."""
# annotations are evaluated here, since typer builds the options from them

from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix import options as opt
from silomix.cli.parsing import columns_to_use, given, rounds, split
from silomix.cohort import CONDITIONS, PUBLISHED_ROWS, planted, truth_files, write_cohort
from silomix.data import read_table
from silomix.report.display import table_view
from silomix.report.results_folder import check_free, write_table
from silomix.roster import read_roster, table_schema
from silomix.simulate import SILO_COLUMN, one_of
from silomix.simulate import simulate as draw_table
from silomix.study import Study, digest, make_study, write_study
from silomix.terminal import explaining, show
from silomix.words import listing

MOST_NAMES = 12
COHORT = "cohort"
"""The one word of `simulate` that is no design: it writes `simulate_cohort` to Parquet."""


def simulate_command(
    design: opt.Design,
    *,
    out: opt.SimulateOut,
    separability: opt.Separability = None,
    rows: opt.Rows = None,
    silos: opt.SilosToDraw = None,
    seed: opt.Seed = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Draw a table whose clusters are known, to try things on."""
    with explaining(debug=debug):
        if design == COHORT:
            if given(separability=separability, silos=silos):
                raise typer.BadParameter(
                    f"{COHORT} has its own clusters and no silos: leave out "
                    "--separability and --silos"
                )
            _simulate_cohort(out, given(rows=rows, seed=seed), force=force, as_json=as_json)
            return
        one_of("design", design, opt.ALL_DESIGNS)
        _check_suffix(out, ".csv")
        truth_out = out.with_suffix(".truth.csv")
        check_free([out, truth_out], force=force)
        table, truth = draw_table(
            design, separability=separability, rows=rows, silos=silos, seed=seed or 0
        )
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
        told = f"{design}: {len(table):,} rows, {len(truth.silos)} silos, {clusters} clusters"
        last = f"Table: {out}\nTrue clusters: {truth_out}"
        show(record, Text(told), as_json=as_json, last=last)


def _simulate_cohort(out: Path, settings: dict[str, Any], *, force: bool, as_json: bool) -> None:
    """Write a cohort and its truth, a chunk at a time."""
    _check_suffix(out, ".parquet")
    labels_out, truth_out = truth_files(out)
    check_free([out, labels_out, truth_out], force=force)
    settings = {"rows": PUBLISHED_ROWS, **settings}
    write_cohort(out, **settings)
    clusters = len(planted().weights)
    record = {
        "design": COHORT,
        "rows": settings["rows"],
        "conditions": list(CONDITIONS),
        "clusters": clusters,
        "files": [str(out), str(labels_out), str(truth_out)],
    }
    told = f"{COHORT}: {settings['rows']:,} rows, {len(CONDITIONS)} conditions, {clusters} clusters"
    last = f"Table: {out}\nTrue clusters: {labels_out}\nTheir parameters: {truth_out}"
    show(record, Text(told), as_json=as_json, last=last)


def _check_suffix(out: Path, suffix: str) -> None:
    if out.suffix != suffix:
        raise typer.BadParameter(f"{out} does not end in {suffix}", param_hint="--out")


def study_command(
    table: opt.TableFile,
    *,
    out: opt.StudyOut,
    silo: opt.Column = None,
    silos: opt.Names = None,
    variables: opt.Variables = None,
    exclude: opt.Exclude = None,
    missing: opt.Missing = None,
    frequency: opt.Frequency = None,
    preset: opt.Preset = None,
    components: opt.Components = None,
    alpha: opt.Alpha = None,
    beta: opt.Beta = None,
    drift: opt.Drift = None,
    iterations: opt.Iterations = None,
    burn_in: opt.BurnIn = None,
    chains: opt.Chains = None,
    thin: opt.Thin = None,
    seed: opt.Seed = None,
    partition: opt.PartitionMethod = None,
    relabel: opt.Relabel = None,
    matching: opt.Matching = None,
    absorb: opt.Absorb = None,
    aggregation: opt.Aggregation = None,
    oracle: opt.Oracle = None,
    solver: opt.Solver = None,
    polish: opt.Polish = None,
    strategy: opt.Strategy = None,
    assign: opt.Assign = None,
    tier: opt.Tier = None,
    title: opt.Title = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write a study file: every setting of a study, for all silos to work from."""
    columns = given(missing=missing, frequency=frequency)
    settings = given(
        preset=preset,
        components=components,
        alpha=alpha,
        beta=beta,
        drift=drift,
        iterations=iterations,
        burn_in=burn_in,
        chains=chains,
        thin=thin,
        seed=seed,
        partition=partition,
        relabel=relabel,
        matching=matching,
        absorb=absorb,
        aggregation=aggregation,
        oracle=oracle,
        solver=solver,
        polish=rounds(polish),
        strategy=strategy,
        assign=assign,
        tier=tier,
        title=title,
    )
    with explaining(debug=debug):
        if (silo is None) == (silos is None):
            raise typer.BadParameter("give --silo COLUMN, or --silos with the names: not both")
        check_free([out], force=force)
        frame = read_table(table)
        chosen = columns_to_use(frame, variables, exclude, apart=[silo, frequency])
        names = split(silos) or read_roster(frame, str(silo)).names
        schema = table_schema(frame, silo=silo, variables=chosen, **columns)
        study = make_study(schema, names, **settings)
        write_study(study, out)
        show(_study_record(study, out), _study_view(study), as_json=as_json, last=f"Study: {out}")


def _study_record(study: Study, out: Path) -> dict[str, Any]:
    return {
        "digest": digest(study),
        "silos": list(study.silos),
        "variables": {variable.name: list(variable.levels) for variable in study.variables},
        "settings": study.model_dump(mode="json", exclude={"silos", "variables"}),
        "files": [str(out)],
    }


def _study_view(study: Study) -> RenderableType:
    table = table_view("variable", "levels")
    for variable in study.variables:
        table.add_row(variable.name, listing(variable.levels, MOST_NAMES))
    return Group(
        Text(f"{len(study.silos)} silos: {listing(study.silos, MOST_NAMES)}"),
        table,
        Text(f"Digest: {digest(study)}"),
    )
