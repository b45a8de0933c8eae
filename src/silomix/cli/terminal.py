"""What a command prints, to people and to programs, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from silomix import errors

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shown(NamedTuple):
    """What a command found.

    Attributes
    ----------
    record : for programs, printed as JSON; a path as its text.
    view : for people.
    last : what to say after the view, never wrapped: it has paths in it.
    code : the exit code.
    """

    record: dict[str, Any]
    view: RenderableType
    last: str
    code: int = 0


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
UNEXPECTED = 1
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


def as_option(name: str, value: object) -> str:
    """Return a setting as a shell writes it: its option, with the value where one is meant."""
    option = IN_SHELL.get(name, f"--{name.replace('_', '-')}")
    if isinstance(value, Mapping):  # codes for missing cells, by column
        pairs = [f"{column}={code}" for column, codes in value.items() for code in codes]
        return f"{option} {shlex.quote(','.join(pairs))}"
    return option if value is None or value is ... else f"{option} {value!r}"


@contextmanager
def explaining(*, debug: bool, quiet: bool = False) -> Iterator[None]:
    """Run a command's body: warnings in words, errors as one block and an exit code.

    With `debug` the traceback comes too. With `quiet`, and off a terminal, notices about the
    progress of the work are left out.
    """
    logger = logging.getLogger("silomix")
    level = logger.level
    try:
        if quiet or not sys.stderr.isatty():
            logger.setLevel(logging.ERROR)
        with _warnings_in_words():
            yield
    except (typer.Exit, typer.BadParameter, BrokenPipeError):
        raise  # typer's own ways to end
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            typer.echo(traceback.format_exc(), err=True)
        _print_message(*_explanation(error), "bold red")
        raise typer.Exit(exit_code(error)) from None
    finally:
        logger.setLevel(level)


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    return next((code for code, kinds in CAUSES.items() if isinstance(error, kinds)), UNEXPECTED)


def show(found: Shown, *, as_json: bool) -> None:
    """Print a result on standard output, and end with its exit code."""
    if as_json:
        text = json.dumps(found.record, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    else:
        from silomix.model.sentences import printable_lines
        from silomix.report.display import Escaped

        console = Console(highlight=False)
        with console.capture() as captured:
            console.print(Escaped(found.view))
        text = captured.get() + printable_lines(found.last)
    try:
        typer.echo(text, color=True)  # the console has left colours out where they do not belong
    except BrokenPipeError:
        # the work is done, and the reader, such as head, has seen enough; what is still buffered
        # has to go somewhere when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if found.code:
        raise typer.Exit(found.code)


def _explanation(error: BaseException) -> tuple[str, str]:
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted", "with --checkpoint, the same command continues where it stopped"
    if isinstance(error, errors.SilomixError):
        return "Error", error.worded(as_option)
    return "Unexpected error", (
        f"{type(error).__name__}{errors.cell(f': {error}')}\n"
        "This is a fault in silomix: run it again with --debug and report what it shows."
    )


def _print_message(kind: str, message: str, style: str) -> None:
    console = Console(stderr=True, highlight=False)
    from silomix.model.sentences import printable_lines

    text = Text.assemble((f"{kind}: ", style), printable_lines(message))
    console.print(text, soft_wrap=True)


@contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Print our own warnings as sentences; leave everyone else's as they are."""
    with warnings.catch_warnings():
        others, told = warnings.showwarning, set()

        def print_ours(message: Any, *where: Any, **more: Any) -> None:
            if isinstance(message, errors.DataWarning | errors.SamplingWarning):
                text = message.worded(as_option)
                if text not in told:  # a command may read its table more than once
                    _print_message("Warning", text, "bold yellow")
                told.add(text)
            else:
                others(message, *where, **more)

        warnings.showwarning = print_ours
        for category in (errors.DataWarning, errors.SamplingWarning):
            warnings.simplefilter("always", category)
        yield


@contextmanager
def noting() -> Iterator[dict[str, str]]:
    """Collect what is warned of a table, as a result notes it, and as the shell words that."""
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def note(message: Any, *where: Any, **more: Any) -> None:
            if isinstance(message, errors.DataWarning):
                found[errors.as_note(message)] = f"{message.worded(as_option)}."
            shown(message, *where, **more)

        warnings.showwarning = note
        yield found
