"""The command `silomix`: parse, call, print."""

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import silomix
from silomix.cli.examples import epilog
from silomix.cli.terminal import EPILOG

# The commands of each module with their line on the help page, in the order of the page. The line
# repeats the start of the command's docstring: to list the commands must not import them.
LINES = {
    "whole": {
        "demo": "Cluster four simulated hospitals without pooling them; compare with the truth.",
        "fit": "Cluster the rows of all silos: each samples its own, a coordinator joins them.",
        "assign": "Find the cluster of each row of a table, old or new, under a saved posterior.",
        "report": "Write one HTML page: what was found, and whether to trust it; opens offline.",
    },
    "prepare": {
        "simulate": "Draw a table whose clusters are known, to try things on.",
        "study": "Write a study file: every setting of a study, for all silos to work from.",
    },
    "exchange": {
        "coordinate": "Ask the silos by file: read their answers, ask the next question, finish.",
        "answer": "Answer a silo's open questions from its own table, as far as its policy allows.",
    },
    "silo_side": {
        "sample": "Cluster the rows of one silo: sample its posterior, partition, summarise.",
        "release": "Cluster one silo's rows and write what its policy lets out, for its officer.",
        "inspect": "Explain a release in plain words, and what a recipient could infer from it.",
        "ledger": "Show which studies were answered from a table, and let its owner allow another.",
    },
    "ehr": {
        "ehr": "Health records into a table to fit: people × conditions.",
    },
    "flare": {
        "flare": "A live federation on NVIDIA FLARE: separate processes, mutual TLS.",
    },
}

COMMANDS = {name: (module, line) for module, of_it in LINES.items() for name, line in of_it.items()}


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

    module = import_module(f"silomix.cli.{COMMANDS[name][0]}")
    alone = typer.Typer()
    if hasattr(module, f"{name}_app"):
        alone.add_typer(getattr(module, f"{name}_app"), name=name)
    else:
        function = getattr(module, f"{name}_command")
        alone.command(name, cls=OnceCommand, epilog=epilog(name))(function)
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
