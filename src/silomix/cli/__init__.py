"""The command `silomix`: which commands there are, how they end, what they call settings."""

import ast
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import silomix
from silomix import errors

# How a command ends, by exit code.
EXITS = {
    0: "done",
    1: "something unexpected; --debug shows where",
    2: "the command line is wrong: an unknown, missing or contradictory option",
    3: "the table cannot be used as it is",
    4: "a setting is wrong, a file is in the way, or an extra is not installed",
    5: "a checkpoint, study, message or saved posterior belongs to something else, or is damaged",
    6: "a silo refused (its policy, or another reason) or is unavailable",
    7: "not an error: the silos still have to answer",
    130: "interrupted",
}
CAUSES: dict[int, tuple[type[BaseException], ...]] = {
    3: (errors.DataError,),
    4: (errors.SettingsError, errors.MissingDependency),
    5: (errors.CheckpointError, errors.FileError, errors.MessageError, errors.StudyMismatch),
    6: (errors.PolicyRefusal, errors.SiloError),
    7: (errors.OpenQuestion,),
    130: (KeyboardInterrupt,),
}

EPILOG = "\n".join(["Exit codes:", *(f"{code:>3}  {meaning}" for code, meaning in EXITS.items())])

# Settings that the commands do not call by their own name.
IN_SHELL = {
    "kinds": "--kind",
    "na_values": "--na-value",
    "transforms": "--transform",
    "method": "--outside-method",
    "design": "DESIGN",
    "schema": "study file ([[variables]])",
}

# Modules with commands, and modules that are one command with commands of its own, in the order
# of the help page. A command is a function called `..._command`; its docstring is its help.
MODULES = ("prepare", "one_table", "exchange", "silo_side")
GROUPS = ("ehr", "flare")


def _list_commands() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the name of each command, and with it its module and its line on the help page.

    They are read from the source: importing every module to show one page takes seconds.
    """
    for module in (*MODULES, *GROUPS):
        source = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
        if module in GROUPS:
            yield module, (module, ast.get_docstring(source) or "")
            continue
        for node in source.body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_command"):
                line = (ast.get_docstring(node) or "").partition("\n")[0]
                yield node.name.removesuffix("_command"), (module, line)


COMMANDS = dict(_list_commands())


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
    from silomix.cli.command import make_group  # slow to import, with all settings

    group = make_group(import_module(f"silomix.cli.{COMMANDS[name][0]}"))
    return group if name in GROUPS else group.commands[name]


def exit_code(error: BaseException) -> int:
    """Exit code of an error."""
    return next((code for code, kinds in CAUSES.items() if isinstance(error, kinds)), 1)


def as_option(name: str, value: object) -> str:
    """A setting as a shell writes it: its option, with the value where one is meant."""
    option = IN_SHELL.get(name, f"--{name.replace('_', '-')}")
    if isinstance(value, Mapping):  # codes for missing cells, by column
        pairs = [f"{column}={code}" for column, codes in value.items() for code in codes]
        return f"{option} {shlex.quote(','.join(pairs))}"
    return option if value is None or value is ... else f"{option} {value!r}"


def main() -> None:
    """Run the command line."""
    app(prog_name="silomix")


app = typer.Typer(
    help="Bayesian clustering across data silos that may not pool their rows.",
    epilog=EPILOG,
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERSION = typer.Option("--version", help="Show the version.", metavar="")


@app.callback()
def _start(version: Annotated[bool, VERSION] = False) -> None:
    if version:
        typer.echo(f"silomix {silomix.__version__}")
        raise typer.Exit


for _name, (_, _line) in COMMANDS.items():
    app.command(_name, cls=ListedCommand, help=_line)(lambda: None)
