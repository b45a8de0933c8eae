"""The command of one silo: sample its own rows."""
# annotations are evaluated here, since typer builds the options from them

from pathlib import Path
from typing import Any

import typer

from silomix import options as opt
from silomix.apply import apply_study
from silomix.cli.parsing import columns_to_use, given
from silomix.data import read_table
from silomix.progress import showing
from silomix.report.results_folder import check_free, silo_files, write_silo
from silomix.report.summary import silo_record, silo_view
from silomix.roster import own_rows, read_roster, table_schema
from silomix.study import make_study, read_study
from silomix.terminal import explaining, show

ALL_ROWS = "all rows"
"""Name of the one silo of a table that is not split."""


def sample_command(
    table: opt.TableFile,
    *,
    out: opt.ResultsOut,
    study: opt.StudyFile = None,
    silo_column: opt.SiloColumn = None,
    silo: opt.Silo = None,
    silos: opt.Silos = None,
    variables: opt.Variables = None,
    exclude: opt.Exclude = None,
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
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Cluster the rows of one silo: sample its posterior, partition, relabel, summarise."""
    columns = given(missing=missing)
    settings = given(
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
        chosen = given(variables=variables, exclude=exclude)
        _check_study(study, chosen | columns | settings | given(silos=silos))
        check_free(silo_files(out, keep_draws=keep_draws), force=force)
        frame = read_table(table)
        if study is not None:
            plan = read_study(study)
        else:
            names = read_roster(frame, silo_column).names if silo_column else _unnamed(silos)
            used = columns_to_use(frame, variables, exclude, apart=[silo_column, frequency])
            schema = table_schema(
                frame, silo=silo_column, variables=used, frequency=frequency, **columns
            )
            plan = make_study(schema, names, **settings)
        # the draws are the result here, so they are all made
        fixed = plan.schedule.model_copy(update={"adaptive": False})
        plan = plan.model_copy(update={"schedule": fixed})
        name = silo or ALL_ROWS
        with showing(quiet=quiet) as report:
            posterior = apply_study(
                own_rows(frame, silo_column, name, plan),
                plan,
                name,
                frequency=frequency,
                threads=threads,
                checkpoint=checkpoint,
                progress=report or False,
            )
        files = write_silo(out, name, posterior, keep_draws=keep_draws)
        record = silo_record(name, posterior) | {"files": [str(file) for file in files]}
        show(record, silo_view(name, posterior), as_json=as_json, last=f"Results: {out}")


def _unnamed(silos: int | None) -> list[str]:
    return [ALL_ROWS, *(f"silo {place}" for place in range(2, (silos or 1) + 1))]


def _check_silo(
    study: Path | None, column: str | None, silo: str | None, silos: int | None
) -> None:
    if silo is None and (study or column):
        raise typer.BadParameter("--study and --silo-column need --silo NAME: which silo is it?")
    if silo is not None and not (study or column):
        raise typer.BadParameter("--silo needs --silo-column COLUMN, to find its rows, or --study")
    if silos is not None and column is not None:
        raise typer.BadParameter("--silo-column says how many silos there are; leave out --silos")


def _check_study(study: Path | None, settings: dict[str, Any]) -> None:
    if study is not None and settings:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise typer.BadParameter(f"{study} has every setting; leave out {options}")
