"""The command that makes a report of results that are there."""
# annotations are evaluated here, since typer builds the options from them

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from silomix import options as opt
from silomix.errors import FileError
from silomix.posterior import load
from silomix.report import write_report
from silomix.results import check_free
from silomix.results.posterior import SAVED
from silomix.terminal import explaining, show

REPORT = "report.html"

Results = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Folder that fit wrote with --out, or a saved posterior.",
        show_default=False,
    ),
]
ReportOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help=f"The page; {REPORT} next to the posterior when left out.",
        rich_help_panel=opt.OUTPUT,
        show_default=False,
    ),
]


def report_command(
    results: Results,
    *,
    out: ReportOut = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write one HTML page that says what was found, and whether to trust it; opens offline."""
    with explaining(debug=debug):
        saved = find_posterior(results)
        page = out or saved.with_name(REPORT)
        check_free([page], force=force)
        posterior = load(saved)
        write_report(posterior, page)
        record = {
            "trusted": posterior.diagnostics.trusted,
            "verdict": posterior.diagnostics.verdict,
            "clusters": posterior.n_clusters,
            "bytes": page.stat().st_size,
            "files": [str(page)],
        }
        show(record, Text(posterior.diagnostics.verdict), as_json=as_json, last=f"Report: {page}")


def find_posterior(results: Path) -> Path:
    """Return the saved posterior in a folder of results, or the file itself."""
    if not results.is_dir():
        return results
    saved = results / SAVED
    if not saved.is_file():
        raise FileError(
            f"{results} has no {SAVED}; give a folder that `silomix fit --out` wrote, or a file "
            "that Posterior.save wrote"
        )
    return saved
