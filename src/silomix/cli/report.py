"""The command that makes a report of results that are there."""
# annotations are evaluated here, since typer builds the options from them

from pathlib import Path
from typing import Any

import typer

from silomix import options as opt
from silomix.cli.parsing import given, split
from silomix.data import read_table
from silomix.errors import FileError, SettingsError
from silomix.posterior import load
from silomix.posterior.outside import Outside, check_method, compare_outside
from silomix.report import write_report
from silomix.results import PAGE, check_free, verdict_view, write_table
from silomix.results.posterior import SAVED
from silomix.terminal import explaining, show
from silomix.words import plural

OUTSIDE = "outside.csv"


def report_command(
    results: opt.Results,
    *,
    table: opt.OutsideRows = None,
    silo: opt.AssignColumn = None,
    outside: opt.OutsideColumns = None,
    outside_method: opt.OutsideMethod = None,
    threads: opt.Threads = None,
    out: opt.ReportOut = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write one HTML page that says what was found, and whether to trust it; opens offline."""
    with explaining(debug=debug):
        if (table is None) != (outside is None):
            raise typer.BadParameter("--table and --outside need each other; give both or none")
        check_outside_method(outside, outside_method)
        saved = find_posterior(results)
        page = out or saved.with_name(PAGE)
        numbers = page.with_name(OUTSIDE)
        if out is None and outside is None and page.exists() and not force:
            raise SettingsError(
                f"{page} is there already, as fit writes it with its results: open it; or give "
                "--out for another page, or --force to write it again"
            )
        check_free([page] if outside is None else [page, numbers], force=force)
        posterior = load(saved)
        found = None
        if table is not None and outside is not None:
            frame = read_table(table)
            settings = given(method=outside_method, threads=threads)
            found = compare_outside(posterior, frame, columns_of(outside), silo, **settings)
            write_outside(found, numbers)
        write_report(posterior, page, outside=found)
        record = {
            "trusted": posterior.diagnostics.trusted,
            "verdict": posterior.diagnostics.verdict,
            "clusters": posterior.n_clusters,
            "bytes": page.stat().st_size,
            "files": [str(page)] if found is None else [str(page), str(numbers)],
        } | outside_record(found)
        last = [*tell_outside(found, numbers), f"Report: {page}"]
        show(record, verdict_view(posterior.diagnostics), as_json=as_json, last="\n".join(last))


def columns_of(outside: str) -> dict[str, Any]:
    """Return the columns in a,b=levels, each with what to compare; None where it is not said."""
    parts = [name.rpartition("=") for name in split(outside) or []]
    return {name if sign else kind: kind if sign else None for name, sign, kind in parts}


def check_outside_method(outside: str | None, method: str | None) -> None:
    """Refuse, before the work, a method that is none, or one for nothing."""
    if method is not None and outside is None:
        raise typer.BadParameter("--outside-method needs --outside: say which columns")
    if method is not None:
        check_method(method)


def write_outside(found: Outside, path: Path) -> None:
    """Write the comparison of the outside variables as CSV."""
    write_table(found.frame(frame_like="pandas"), path)


def outside_record(found: Outside | None) -> dict[str, Any]:
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


def tell_outside(found: Outside | None, path: Path) -> list[str]:
    """Return for a person how many comparisons differ, and where they are; nothing for none."""
    if found is None:
        return []
    told = f"{_differ(found)} of {plural(found.tests, 'comparison')} differ significantly"
    return [f"Outside variables: {told}, with p at most {found.threshold:.2g}: {path}"]


def _differ(found: Outside) -> int:
    return sum(int(found.significant(one).sum()) for one in found.comparisons)


def find_posterior(results: Path) -> Path:
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
