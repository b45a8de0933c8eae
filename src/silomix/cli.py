"""The command `silomix`: parse, call, print."""
# annotations are evaluated here, since typer builds the options from them

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Group, RenderableType
from rich.text import Text

import silomix
from silomix import options as opt
from silomix.apply import apply_study
from silomix.data import read_table
from silomix.demo import demo_record, demo_view, run_demo
from silomix.results import (
    as_record,
    check_free,
    describe,
    silo_files,
    table_view,
    write_silo,
    write_table,
)
from silomix.roster import read_roster, rows_of, table_schema
from silomix.simulate import SILO_COLUMN
from silomix.simulate import simulate as draw_table
from silomix.study import Study, digest, make_study, read_study, write_study
from silomix.terminal import EPILOG, explaining, show

ALL_ROWS = "all rows"
"""Name of the one silo of a table that is not split."""

app = typer.Typer(
    help="Bayesian clustering across data silos that may not pool their rows.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    app(prog_name="silomix")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"silomix {silomix.__version__}")
        raise typer.Exit


@app.callback()
def _start(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print it and stop."
        ),
    ] = False,
) -> None:
    pass


@app.command("demo")
def demo_command(out: opt.DemoOut, as_json: opt.Json = False, debug: opt.Debug = False) -> None:
    """Cluster four simulated hospitals, each on its own rows, and compare with the truth."""
    with explaining(debug=debug):
        hospitals = run_demo(out)
        record = demo_record(hospitals, out)
        show(record, demo_view(hospitals), as_json=as_json, last=f"Report: {record['report']}")


@app.command("simulate")
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
        if out.suffix != ".csv":
            raise typer.BadParameter(f"{out} does not end in .csv", param_hint="--out")
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


@app.command("study")
def study_command(
    table: opt.TableFile,
    *,
    out: opt.StudyOut,
    silo: opt.Column = None,
    silos: opt.Names = None,
    variables: opt.Variables = None,
    missing: opt.Missing = None,
    frequency: opt.Frequency = None,
    preset: opt.Preset = None,
    components: opt.Components = None,
    iterations: opt.Iterations = None,
    burn_in: opt.BurnIn = None,
    chains: opt.Chains = None,
    thin: opt.Thin = None,
    seed: opt.Seed = None,
    title: opt.Title = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write a study file: every setting of a study, for all silos to work from."""
    columns = _given(variables=_split(variables), missing=missing, frequency=frequency)
    settings = _given(
        preset=preset,
        components=components,
        iterations=iterations,
        burn_in=burn_in,
        chains=chains,
        thin=thin,
        seed=seed,
        title=title,
    )
    with explaining(debug=debug):
        if (silo is None) == (silos is None):
            raise typer.BadParameter("give --silo COLUMN, or --silos with the names: not both")
        check_free([out], force=force)
        frame = read_table(table)
        names = _split(silos) or read_roster(frame, str(silo)).names
        study = make_study(table_schema(frame, silo=silo, **columns), names, **settings)
        write_study(study, out)
        show(
            _study_record(study, out), _study_view(study), as_json=as_json, last=f"Study: {out}"
        )


@app.command("sample")
def sample_command(
    table: opt.TableFile,
    *,
    out: opt.SampleOut,
    study: opt.StudyFile = None,
    silo_column: opt.SiloColumn = None,
    silo: opt.Silo = None,
    silos: opt.Silos = None,
    variables: opt.Variables = None,
    missing: opt.Missing = None,
    frequency: opt.Frequency = None,
    components: opt.Components = None,
    iterations: opt.Iterations = None,
    burn_in: opt.BurnIn = None,
    chains: opt.Chains = None,
    thin: opt.Thin = None,
    seed: opt.Seed = None,
    partition: opt.PartitionMethod = None,
    relabel: opt.Relabel = None,
    threads: opt.Threads = None,
    checkpoint: opt.Checkpoint = None,
    keep_draws: opt.KeepDraws = False,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Cluster the rows of one silo: sample its posterior, partition, relabel, summarise."""
    columns = _given(variables=_split(variables), missing=missing)
    settings = _given(
        components=components,
        iterations=iterations,
        burn_in=burn_in,
        chains=chains,
        thin=thin,
        seed=seed,
        partition=partition,
        relabel=relabel,
    )
    with explaining(debug=debug):
        _check_silo(study, silo_column, silo, silos)
        _check_study(study, columns | settings | _given(silos=silos))
        check_free(silo_files(out, keep_draws=keep_draws), force=force)
        frame = read_table(table)
        if study is not None:
            plan = read_study(study)
        else:
            names = read_roster(frame, silo_column).names if silo_column else _unnamed(silos)
            schema = table_schema(frame, silo=silo_column, frequency=frequency, **columns)
            plan = make_study(schema, names, **settings)
        name = silo or ALL_ROWS
        posterior = apply_study(
            rows_of(frame, silo_column, name) if silo_column else frame,
            plan,
            name,
            frequency=frequency,
            threads=threads,
            checkpoint=checkpoint,
        )
        files = write_silo(out, name, posterior, keep_draws=keep_draws)
        record = as_record(name, posterior) | {"files": [str(file) for file in files]}
        show(record, describe(name, posterior), as_json=as_json, last=f"Results: {out}")


def _given(**settings: object) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",")]


def _unnamed(silos: int | None) -> list[str]:
    return [ALL_ROWS, *(f"silo {place}" for place in range(2, (silos or 1) + 1))]


def _check_silo(
    study: Path | None, column: str | None, silo: str | None, silos: int | None
) -> None:
    if silo is None and (study or column):
        raise typer.BadParameter(
            "--study and --silo-column need --silo NAME: which silo is it?"
        )
    if silo is not None and not (study or column):
        raise typer.BadParameter(
            "--silo needs --silo-column COLUMN, to find its rows, or --study"
        )
    if silos is not None and column is not None:
        raise typer.BadParameter(
            "--silo-column says how many silos there are; leave out --silos"
        )


def _check_study(study: Path | None, settings: dict[str, Any]) -> None:
    if study is not None and settings:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise typer.BadParameter(f"{study} has every setting; leave out {options}")


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
        table.add_row(variable.name, _listing(variable.levels))
    return Group(
        Text(f"{len(study.silos)} silos: {_listing(study.silos)}"),
        table,
        Text(f"Digest: {digest(study)}"),
    )


def _listing(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
