"""Commands of the whole method: fit, assign rows to what was found, report it."""
# annotations are evaluated here, since the options are made from them

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from silomix.api import fit
from silomix.cli import command as cli
from silomix.errors import SettingsError
from silomix.messages.progress import StageClock, showing, tell_seconds
from silomix.model.files import finishing
from silomix.model.reading import read_table
from silomix.model.sentences import one_of, plural
from silomix.model.spreadsheet import write_table
from silomix.model.table import expand
from silomix.posterior import Posterior, load
from silomix.posterior.verdict import sentences
from silomix.report import results_folder as folder
from silomix.report import summary, write_report
from silomix.report.outside_variables import (
    AGAINST,
    Outside,
    compare_outside,
    read_outside,
    regress_membership,
)


@cli.command(
    settings=cli.settings_of()
    | cli.COLUMNS
    | {"shards": int, "preset": str, "checkpoint": Path, "transport": str, "policy": str}
    | {"threads": int}
)
def fit_command(
    table: Path,
    *,
    out: Path,
    silo: str | None = None,
    id_column: str | None = None,
    outside: str | None = None,
    outside_method: str | None = None,
    force: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> cli.Shown:
    """Cluster the rows of all silos: each clusters its own, and a coordinator combines the results.

    Parameters
    ----------
    silo : Column that names each row's silo; without it, all rows are one silo.
    policy : What may leave a silo: policy.toml or a preset (default: the preset open).
    shards : Without --silo: split the rows at random into N silos, for speed.
    transport : in-process (default), or joblib, with a process per core.

    Examples
    --------
    silomix fit table.csv --silo hospital --seed 1 --out results
    """
    if silo is not None and "shards" in settings:
        raise typer.BadParameter("--silo and --shards both say how to split the rows; give one")
    files = folder.posterior_files(out)
    folder.check_free(files, force=force)
    others = _outside_columns(outside, outside_method)
    keywords = cli.about_columns(others, **settings)
    frequency, codes = keywords.get("frequency"), keywords.get("na_values")
    for column in (*keywords.get("variables", ()), silo, frequency, id_column):
        if column in others:
            raise typer.BadParameter(f"--outside names {column!r}, which another option uses too")
    # refused before the work: columns that are not there, or cannot be compared
    if others:
        read_outside(read_table(table), others, codes)
    with showing(quiet=quiet) as report, cli.noting() as warned:
        clock = StageClock(report=report)
        posterior = fit(table, silo, **keywords, **cli.given(id=id_column), progress=clock)
        seconds = clock.stop()
    judged, notes = posterior.diagnostics, posterior.diagnostics.notes
    # files have every note; what was a warning is not printed again
    fresh = replace(judged, notes=tuple(note for note in notes if note not in warned))
    judged = replace(judged, notes=tuple(warned.get(note, note) for note in notes))
    posterior = replace(posterior, diagnostics=judged)
    record = summary.posterior_record(posterior)
    last = cli.tell_guess(posterior.study, settings.get("kind"), quiet=quiet)
    last += tell_seconds(seconds) + cli.tell_checkpoint(settings.get("checkpoint"))
    with finishing(files):
        files = folder.write_posterior(out, posterior)
        if others:
            rows, threads = expand(table, frequency), settings.get("threads")
            labels = posterior.labels if outside_method == "labels" else None
            options = cli.given(method=outside_method, na_values=codes, labels=labels)
            compared = compare_outside(posterior, rows, others, silo, threads=threads, **options)
            last += _write_outside(compared, out / folder.PAGE, record)
            files.append(out / folder.OUTSIDE)
    record["seconds"] = {stage: round(each, 3) for stage, each in seconds.items()}
    record["files"] = files
    view = summary.posterior_view(replace(posterior, diagnostics=fresh))
    return cli.Shown(record, view, "\n".join([*last, f"Results: {out}"]))


@cli.command()
def assign_command(
    results: Path,
    table: Path,
    *,
    out: Path,
    silo: str | None = None,
    id_column: str | None = None,
    probabilities: bool = False,
    name: list[str] | None = None,
    threads: int | None = None,
    force: bool = False,
    quiet: bool = False,  # noqa: ARG001 (as for every command, notices are left out)
) -> cli.Shown:
    """Find the cluster of each row of a table, old or new, under a saved posterior.

    Parameters
    ----------
    results : Folder that fit wrote with --out, or a saved posterior.
    out : File for the labels, such as labels.csv: a line for each row.
    silo : Column that names each row's silo, or the name of the silo that all rows come from.
    probabilities : Add the probability of each cluster: p0, p1 and so on.

    Examples
    --------
    silomix assign results new.csv --silo hospital --out labels.csv
    """
    folder.check_free([out], force=force)
    posterior = _load(results, name)
    options: dict[str, Any] = {"threads": threads, "probabilities": probabilities}
    labels = posterior.labels_frame(table, silo, id=id_column, frame_like="pandas", **options)
    with finishing([out]):
        write_table(labels, out, private=True)
    record = summary.assigned_record(posterior, labels) | {"files": [out]}
    return cli.Shown(record, summary.assigned_view(posterior, labels), f"Labels: {out}")


@cli.command()
def report_command(
    results: Path,
    *,
    table: Path | None = None,
    silo: str | None = None,
    outside: str | None = None,
    outside_method: str | None = None,
    covariates: str | None = None,
    na_value: list[str] | None = None,
    name: list[str] | None = None,
    threads: int | None = None,
    out: Path | None = None,
    force: bool = False,
) -> cli.Shown:
    """Write one HTML page: what was found, and whether to trust it; opens offline.

    Parameters
    ----------
    results : Folder that fit wrote with --out, or a saved posterior.
    table : The rows, needed for --outside and --covariates.
    covariates : Other columns that may explain membership; odds ratios in odds.csv only.
    silo : Column that names each row's silo, or the name of the silo that all rows come from.
    out : The page or its folder; CSV files go beside it (default: fit's, which needs --force).

    Examples
    --------
    silomix report results --out report.html
    """
    if (table is None) != (outside is None and covariates is None):
        raise typer.BadParameter("--table needs --outside or --covariates, and they need it")
    columns = _outside_columns(outside, outside_method)
    page = out or (results if results.is_dir() else results.parent)
    is_page = out is not None and (out.is_file() or bool(out.suffix and not out.is_dir()))
    page = page if is_page else page / folder.PAGE
    wanted = {folder.OUTSIDE: outside, folder.ODDS: covariates}
    files = [page, *(page.with_name(file) for file in wanted if wanted[file] is not None)]
    # a file beside the page has the same name for every page
    elsewhere = {"instead": "--out in another folder"} if len(files) > 1 else {}
    folder.check_free(files, force=force, **elsewhere)
    if outside is None and page.exists() and page.with_name(folder.OUTSIDE).exists():
        raise SettingsError(
            f"{page} compares other columns ({folder.OUTSIDE} beside it), made from the rows; "
            "give --table and --outside again to keep that, or another --out"
        )
    posterior = _load(results, name)
    record: dict[str, Any] = {
        "trusted": posterior.diagnostics.trusted,
        "verdict": posterior.diagnostics.verdict,
        "clusters": posterior.n_clusters,
    }
    last = [f"Report: {page}"]
    options = cli.given(threads=threads, na_values=cli.na_values(na_value))
    renamed = results if name and force and out is None and results.is_dir() else None
    with finishing([*files, *(folder.posterior_files(renamed) if renamed else [])]):
        if table is not None and covariates is not None:
            others, in_pandas = _outside_columns(covariates), replace(posterior, backend="pandas")
            odds = regress_membership(in_pandas, table, others, **options)
            write_table(odds, page.with_name(folder.ODDS))
            last.append(f"Odds of membership: {page.with_name(folder.ODDS)}")
        if renamed is not None:
            folder.write_names(renamed, posterior)
            last.append(f"Names are now in the files of {renamed}, too")
        if table is None or outside is None:
            write_report(posterior, page)
        else:
            options |= cli.given(method=outside_method)
            compared = compare_outside(posterior, read_table(table), columns, silo, **options)
            last = _write_outside(compared, page, record) + last
    record |= {"bytes": page.stat().st_size, "files": files}
    return cli.Shown(record, Text("\n".join(sentences(posterior.diagnostics))), "\n".join(last))


def _outside_columns(outside: str | None, method: str | None = None) -> dict[str, Any]:
    """Columns in a,b=levels, each with what to compare; None where that is not stated."""
    if method is not None:
        if outside is None:
            raise typer.BadParameter("--outside-method needs --outside: say which columns")
        one_of("method", method, AGAINST)
    parts = [name.rpartition("=") for name in cli.split(outside) or []]
    return {name if sign else kind: kind if sign else None for name, sign, kind in parts}


def _write_outside(compared: Outside, page: Path, record: dict[str, Any]) -> list[str]:
    """Write a comparison in outside variables on the page, and its numbers beside it.

    How it was judged goes into the record, for a program; the line for a person is returned.
    """
    numbers = page.with_name(folder.OUTSIDE)
    write_table(compared.frame(frame_like="pandas"), numbers)
    write_report(compared.posterior, page, outside=compared)
    differ = sum(int(compared.significant(each).sum()) for each in compared.comparisons)
    record["outside"] = {
        "method": compared.method,
        "tests": compared.tests,
        "threshold": compared.threshold,
        "significant": differ,
        "missing": dict(compared.missing),
    }
    judged = f"significant differences in {differ} of {plural(compared.tests, 'comparison')}"
    return [f"Outside variables: {judged}, with p at most {compared.threshold:.2g}: {numbers}"]


def _load(results: Path, name: Sequence[str] | None) -> Posterior:
    """Load a saved posterior, with the names of clusters that --name gives."""
    posterior, names = load(results), cli.by_column("--name", name)
    return posterior.with_names({**posterior.names, **names}) if names else posterior
