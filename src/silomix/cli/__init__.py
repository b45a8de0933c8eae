"""The command `silomix`: parse, call, print."""

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import silomix
from silomix.cli.examples import epilog
from silomix.terminal import EPILOG

COMMANDS = {
    "demo": (
        "whole.demo_command",
        "Cluster four simulated hospitals without pooling them, and compare with the truth.",
    ),
    "fit": (
        "whole.fit_command",
        "Cluster the rows of all silos: each samples its own, a coordinator makes one result.",
    ),
    "assign": (
        "whole.assign_command",
        "Find the cluster of each row of a table, old or new, under a saved posterior.",
    ),
    "report": (
        "whole.report_command",
        "Write one HTML page that says what was found, and whether to trust it; opens offline.",
    ),
    "simulate": (
        "prepare.simulate_command",
        "Draw a table whose clusters are known, to try things on.",
    ),
    "study": (
        "prepare.study_command",
        "Write a study file: every setting of a study, for all silos to work from.",
    ),
    "coordinate": (
        "exchange.coordinate_command",
        "Ask the silos by file: take in what they answered, ask the next question, or finish.",
    ),
    "answer": (
        "exchange.answer_command",
        "Answer a silo's open questions from its own table, as far as its own policy allows.",
    ),
    "sample": (
        "silo_side.sample_command",
        "Cluster the rows of one silo: sample its posterior, partition, relabel, summarise.",
    ),
    "release": (
        "silo_side.release_command",
        "Cluster one silo's rows and write what its policy lets out, for its data officer to read.",
    ),
    "inspect": (
        "silo_side.inspect_command",
        "Explain a release in plain words, and what a recipient could infer from it.",
    ),
    "ledger": (
        "silo_side.ledger_command",
        "Show which studies were answered from a table, and let its owner allow another.",
    ),
    "ehr": ("ehr.ehr_app", "Health records into a table to fit: people × conditions."),
    "flare": (
        "flare.flare_app",
        "A live federation on NVIDIA FLARE: separate processes, mutual TLS.",
    ),
}
"""Where each command is, and its line on the help page, in the order of the page.

The line repeats the start of the command's docstring: to list the commands must not import them.
"""


class ListedCommand(TyperCommand):
    """A command on the list, imported as soon as a line calls it."""

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Let the command itself parse its line."""
        return find_command(str(self.name)).make_context(info_name, args, parent, **extra)


@cache
def find_command(name: str) -> Any:
    """Import one of the commands, or groups of commands."""
    from silomix.cli.command import OnceCommand  # slow to import, with all settings

    module, attribute = COMMANDS[name][0].split(".")
    found = getattr(import_module(f"silomix.cli.{module}"), attribute)
    alone = typer.Typer()
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, cls=OnceCommand, epilog=epilog(name))(found)
    return typer.main.get_group(alone).commands[name]


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
    for name, (_, line) in COMMANDS.items():
        made.command(name, cls=ListedCommand, help=line)(lambda: None)
    return made


app = _make_app()
