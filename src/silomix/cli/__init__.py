"""The command `silomix`: parse, call, print."""

from collections.abc import Callable
from typing import Annotated

import typer

import silomix
from silomix.cli.ehr import ehr_app
from silomix.cli.examples import epilog
from silomix.cli.exchange import answer_command, coordinate_command
from silomix.cli.flare import flare_app
from silomix.cli.ledger import ledger_command
from silomix.cli.once import OnceCommand
from silomix.cli.release import inspect_command, release_command
from silomix.cli.report import report_command
from silomix.cli.silo import sample_command
from silomix.cli.tables import simulate_command, study_command
from silomix.cli.whole import assign_command, demo_command, fit_command
from silomix.terminal import EPILOG

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo_command,
    "fit": fit_command,
    "assign": assign_command,
    "report": report_command,
    "simulate": simulate_command,
    "study": study_command,
    "coordinate": coordinate_command,
    "answer": answer_command,
    "sample": sample_command,
    "release": release_command,
    "inspect": inspect_command,
    "ledger": ledger_command,
}
"""In the order of the help page."""


def main() -> None:
    """Run the command line."""
    app(prog_name="silomix")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"silomix {silomix.__version__}")
        raise typer.Exit


def _start(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print it and stop.",
            metavar="",
        ),
    ] = False,
) -> None:
    pass


def _make_app() -> typer.Typer:
    made = typer.Typer(
        help="Bayesian clustering across data silos that may not pool their rows.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_start)
    for name, command in COMMANDS.items():
        made.command(name, cls=OnceCommand, epilog=epilog(name))(command)
    made.add_typer(ehr_app, name="ehr")
    made.add_typer(flare_app, name="flare")
    return made


app = _make_app()
