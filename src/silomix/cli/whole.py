"""Commands of the whole method: demonstrate, fit, assign rows to what was found, report it."""
# annotations are evaluated here, since the options are made from them

from pathlib import Path
from typing import Any

import typer

from silomix.api import fit
from silomix.cli.command import Shown, columns_to_use, command, given, settings_of, split
from silomix.cli.demo import demo_record, demo_view, run_demo
from silomix.errors import FileError, SettingsError
from silomix.messages.progress import StageClock, showing, tell_seconds
from silomix.model.reading import read_table
from silomix.model.sentences import plural
from silomix.model.table import expand
from silomix.posterior import load
from silomix.posterior.outside import Outside, check_method, compare_outside, read_outside
from silomix.report import write_report
from silomix.report.results_folder import (
    PAGE,
    SAVED,
    assign_rows,
    check_free,
    posterior_files,
    read_ids,
    write_posterior,
    write_table,
)
from silomix.report.summary import (
    assigned_record,
    assigned_view,
    posterior_record,
    posterior_view,
    verdict_view,
)

OUTSIDE = "outside.csv"
RESULTS = "Folder that fit wrote with --out, or a saved posterior."
WHOSE_ROWS = "Column that says whose row it is, or the silo all rows are of."


@command(out="Folder for reports and tables; replaced.")
def demo_command(*, out: Path, quiet: bool = False) -> Shown:
    """Cluster four simulated hospitals without pooling them; compare with the truth."""
    with showing(quiet=quiet) as report:
        found = run_demo(out, progress=report or False)
    record = demo_record(found)
    last = f"Against the truth: {record['comparison']}\nReport: {record['report']}"
    return Shown(record, demo_view(found), last)


@command(
    settings=settings_of()
    | {"shards": int, "missing": str, "preset": str}
    | {"checkpoint": Path, "transport": str, "policy": str},
    out="Folder for the results.",
    silo="Column that says whose row it is; without it, one silo.",
    policy="What a silo lets out: policy.toml, or a preset; open by default.",
)
def fit_command(
    table: Path,
    *,
    out: Path,
    silo: str | None = None,
    variables: str | None = None,
    exclude: str | None = None,
    id_column: str | None = None,
    outside: str | None = None,
    outside_method: str | None = None,
    frequency: str | None = None,
    threads: int | None = None,
    force: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Shown:
    """Cluster the rows of all silos: each samples its own, a coordinator joins them."""
    if silo is not None and "shards" in settings:
        raise typer.BadParameter("--silo and --shards both say how to split the rows; give one")
    check_free([*posterior_files(out), out / OUTSIDE], force=force)
    others = _outside_columns(outside, outside_method)
    ids = [] if id_column is None else [id_column]
    taken = [*(split(variables) or []), silo, frequency]
    for column in others:
        _check_unused("--outside", column, taken)
    for column in ids:
        _check_unused("--id", column, [*taken, *others])
    # refused before the work: columns that are not there, or cannot be compared
    if others:
        read_outside(read_table(table), others)
    named = None if id_column is None else read_ids(table, id_column, frequency)
    unwanted = exclude if variables else ",".join([*given(x=exclude).values(), *others, *ids])
    columns = columns_to_use(table, variables, unwanted or None, apart=[silo, frequency])
    settings |= given(frequency=frequency, threads=threads, variables=columns)
    with showing(quiet=quiet) as report:
        clock = StageClock(report=report)
        posterior = fit(table, silo, **settings, progress=clock)
        seconds = clock.stop()
    files = write_posterior(out, posterior, named)
    (out / OUTSIDE).unlink(missing_ok=True)  # it would be another's
    found = None
    if others:
        found = compare_outside(
            posterior,
            expand(table, frequency),
            others,
            silo,
            labels=posterior.labels if outside_method == "labels" else None,
            **given(method=outside_method, threads=threads),
        )
        write_table(found.frame(frame_like="pandas"), out / OUTSIDE)
        write_report(posterior, out / PAGE, outside=found)
        files.append(out / OUTSIDE)
    record = posterior_record(posterior) | {"files": [str(file) for file in files]}
    record |= _outside_record(found)
    record["seconds"] = {stage: round(took, 3) for stage, took in seconds.items()}
    last = [*tell_seconds(seconds), *_outside_lines(found, out / OUTSIDE), f"Results: {out}"]
    return Shown(record, posterior_view(posterior), "\n".join(last))


@command(
    results=RESULTS,
    out="The labels, such as labels.csv: a line for each row.",
    silo=WHOSE_ROWS,
)
def assign_command(
    results: Path,
    table: Path,
    *,
    out: Path,
    silo: str | None = None,
    id_column: str | None = None,
    threads: int | None = None,
    force: bool = False,
) -> Shown:
    """Find the cluster of each row of a table, old or new, under a saved posterior."""
    check_free([out], force=force)
    found = load(_find_posterior(results))
    named = None if id_column is None else read_ids(table, id_column)
    labels = assign_rows(found, table, silo, threads, named)
    write_table(labels, out, private=True)
    record = assigned_record(found, labels) | {"files": [str(out)]}
    return Shown(record, assigned_view(found, labels), f"Labels: {out}")


@command(
    results=RESULTS,
    table="The rows, if --outside asks for variables that the posterior lacks.",
    silo=WHOSE_ROWS,
    out="The page; report.html next to the posterior when left out.",
)
def report_command(
    results: Path,
    *,
    table: Path | None = None,
    silo: str | None = None,
    outside: str | None = None,
    outside_method: str | None = None,
    threads: int | None = None,
    out: Path | None = None,
    force: bool = False,
) -> Shown:
    """Write one HTML page: what was found, and whether to trust it; opens offline."""
    if (table is None) != (outside is None):
        raise typer.BadParameter("--table and --outside need each other; give both or none")
    columns = _outside_columns(outside, outside_method)
    saved = _find_posterior(results)
    page = out or saved.with_name(PAGE)
    numbers = page.with_name(OUTSIDE)
    if out is None and outside is None and page.exists() and not force:
        raise SettingsError(
            f"{page} is there already, as fit writes it with its results: open it; or give "
            "--out for another page, or --force to write it again"
        )
    files = [page] if outside is None else [page, numbers]
    check_free(files, force=force)
    posterior = load(saved)
    found = None
    if table is not None:
        settings = given(method=outside_method, threads=threads)
        found = compare_outside(posterior, read_table(table), columns, silo, **settings)
        write_table(found.frame(frame_like="pandas"), numbers)
    write_report(posterior, page, outside=found)
    record = {
        "trusted": posterior.diagnostics.trusted,
        "verdict": posterior.diagnostics.verdict,
        "clusters": posterior.n_clusters,
        "bytes": page.stat().st_size,
        "files": [str(file) for file in files],
    } | _outside_record(found)
    last = [*_outside_lines(found, numbers), f"Report: {page}"]
    return Shown(record, verdict_view(posterior.diagnostics), "\n".join(last))


def _check_unused(option: str, column: str, taken: list[str | None]) -> None:
    if column in taken:
        raise typer.BadParameter(f"{option} names {column!r}, which another option uses too")


def _outside_columns(outside: str | None, method: str | None) -> dict[str, Any]:
    """Return the columns in a,b=levels, each with what to compare; None where it is not said."""
    if method is not None:
        if outside is None:
            raise typer.BadParameter("--outside-method needs --outside: say which columns")
        check_method(method)
    parts = [name.rpartition("=") for name in split(outside) or []]
    return {name if sign else kind: kind if sign else None for name, sign, kind in parts}


def _outside_record(found: Outside | None) -> dict[str, Any]:
    """Return for a program how the comparison was judged; nothing where there was none."""
    if found is None:
        return {}
    return {
        "outside": {
            "method": found.method,
            "tests": found.tests,
            "threshold": found.threshold,
            "significant": _differ(found),
            "missing": dict(found.missing),
        }
    }


def _outside_lines(found: Outside | None, path: Path) -> list[str]:
    """Return for a person how many comparisons differ, and where they are; nothing for none."""
    if found is None:
        return []
    differ = f"{_differ(found)} of {plural(found.tests, 'comparison')} differ significantly"
    return [f"Outside variables: {differ}, with p at most {found.threshold:.2g}: {path}"]


def _differ(found: Outside) -> int:
    return sum(int(found.significant(one).sum()) for one in found.comparisons)


def _find_posterior(results: Path) -> Path:
    """Return the saved posterior in a folder of results, or the file itself."""
    if not results.is_dir():
        return results
    saved = results / SAVED
    if not saved.is_file():
        raise FileError(
            f"{results} has no {SAVED}; give a folder that `silomix fit --out` wrote, or the file "
            "of a saved posterior"
        )
    return saved
