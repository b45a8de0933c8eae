"""What a command is: a function whose parameters become options, and whose result is shown."""

import inspect
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.core import TyperCommand

from silomix import errors
from silomix.cli import as_option, exit_code
from silomix.model.columns import guess_told
from silomix.model.reading import Table
from silomix.model.sentences import printable_lines
from silomix.model.table import expand, infer_schema
from silomix.posterior import Posterior
from silomix.report.display import Escaped
from silomix.report.summary import posterior_record, posterior_view
from silomix.study import Study, make_study
from silomix.study.keywords import PRESETS, SETTINGS, called_here
from silomix.study.methods import METHOD, OUTPUT, SAMPLER
from silomix.study.roster import read_roster
from silomix.study.validation import ATTRIBUTE

TABLE = "The table"
# Each says in one line which value to choose, and why; a command may say it in its own way.
TEXTS = {
    TABLE: {
        "table": "CSV, TSV (or their .gz) or Parquet: one row per unit, one column per variable.",
        "data": "This silo's table: CSV, TSV (or their .gz) or Parquet.",
        "silo": "Column that names each row's silo.",
        "silo_column": "Column that names each row's silo, if the table has other silos' rows.",
        "variables": "Columns to cluster on (a,b,c); by default all that no other option uses.",
        "exclude": "Columns to leave out, as a,b: identifiers, dates.",
        "kind": "age=gaussian, log-gaussian, gaussian-full, student-t, poisson, negative-binomial "
        "or categorical.",
        "bins": "age=4 cuts numbers into four levels, at quantiles; repeatable.",
        "id_column": "Column that identifies each row; kept with its label.",
        "outside": "Columns to compare, not to cluster on: age,ward=levels,sex=f.",
        "outside_method": "averaged (default) weighs rows by membership; labels: as in the paper.",
        "na_value": "-9,age=99.9: codes for missing cells, -9 everywhere, 99.9 in one column; "
        "repeatable.",
        "missing": "marginalise (default) skips missing cells; level makes them a level.",
        "frequency": "Column of counts, if each row stands for several identical ones.",
        "study": "The study file that all silos have, such as study.toml.",
    },
    SAMPLER: {
        "preset": "paper: the published method; files: silos by file; network: silos online.",
        "threads": "Cores to use (default all); the result is the same.",
        "checkpoint": "Folder from which a stopped run continues; for long runs.",
    },
    OUTPUT: {
        "out": "Folder for the results.",
        "name": "3=frail: names a cluster; report --force puts the name into all of fit's files.",
        "policy": "What may leave: policy.toml or a preset; without it, the preset named default.",
        "ledger": "File that records what left; by default one for all tables of this user.",
        "table_name": "What the ledger calls the table, wherever it is; its path by default.",
        "force": "Replace files that exist already.",
        "quiet": "Do not show progress, notices, or which kinds were guessed.",
        "as_json": "Print the result as JSON and nothing else.",
        "debug": "Show the traceback of an error, and every cell it is about, for a bug report.",
    },
}

# Options that are not called as their parameter is.
SPELLED = {"as_json": "--json", "id_column": "--id"}
# Options on the columns of a table, as `about_columns` and `study_of` take them.
COLUMNS: dict[str, type] = dict.fromkeys(["variables", "exclude", "missing", "frequency"], str)
COLUMNS |= dict.fromkeys(["kind", "bins", "na_value"], list[str])
# Options on where a silo's rows are, and what left is counted, as `silo.local.open_site` has them.
WHERE = {"silo_column": str, "frequency": str, "id_column": str, "table_name": str, "ledger": Path}
# What a shell offers to complete a value with.
WORDS: dict[str, Sequence[str]] = {
    "preset": tuple(PRESETS),
    "missing": ("marginalise", "level"),
    "outside_method": ("averaged", "labels"),
    "transport": ("in-process", "joblib"),
}
# The headings in a command's docstring above what its options are for, and above the line that
# its help page ends with.
PARAMETERS, EXAMPLE = "\n\nParameters\n----------\n", "\n\nExamples\n--------\n"


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


def command(
    *, settings: Mapping[str, type] | None = None, hides_cells: bool = False, **texts: str
) -> Callable[[Callable[..., Shown | None]], Callable[..., None]]:
    """Make a command of a function: parameters before the star are arguments, others options.

    Its docstring says what they are for, where that is not as in `TEXTS`.
    An option that is left out, without a default of its own, is not passed on. A command that
    returns nothing has no --json.

    Parameters
    ----------
    settings : options, by name and type, that the function takes as `**settings`, if given.
    hides_cells : whether messages quote cells of a table only with --debug.
    texts : what the help page says of an option that the docstring cannot say.
    """

    def decorate(function: Callable[..., Shown | None]) -> Callable[..., None]:
        @wraps(function)
        def run(*, debug: bool, as_json: bool = False, **options: Any) -> None:
            hiding = errors.hiding_cells(unless=debug or not hides_cells)
            with hiding, explaining(debug=debug, quiet=bool(options.get("quiet"))):
                shown = function(**given(**options))
                if shown is not None:
                    show(shown, as_json=as_json)

        section = str(inspect.getdoc(function)).partition(PARAMETERS)[2].partition(EXAMPLE)[0]
        help_texts = {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(section)}
        written = inspect.signature(function)
        options = [p for p in written.parameters.values() if p.kind != p.VAR_KEYWORD]
        options += [_option(name, kind | None, None) for name, kind in (settings or {}).items()]
        flags = ("debug",) if written.return_annotation is None else ("as_json", "debug")
        options += [_option(name, bool, default=False) for name in flags]
        described = [_describe(option, help_texts | texts) for option in options]
        run.__signature__ = inspect.Signature(described)  # type: ignore[attr-defined]
        return run

    return decorate


def make_group(module: ModuleType) -> Any:
    """Commands of a module, by name in the order they stand there, as one command."""
    app = typer.Typer(help=module.__doc__, no_args_is_help=True)
    for name, function in vars(module).items():
        if name.endswith("_command"):
            text, _, example = str(inspect.getdoc(function)).partition(EXAMPLE)
            app.command(
                name.removesuffix("_command"),
                cls=OnceCommand,
                help=text.partition(PARAMETERS)[0],
                epilog=f"Example:\n  {' '.join(example.split())}",
            )(function)
    return typer.main.get_group(app)


def settings_of(*names: str) -> dict[str, type]:
    """Types of settings of the study, by name; of all that are options by default."""
    chosen = names or [name for name, setting in SETTINGS.items() if setting.panel]
    return {name: SETTINGS[name].kind for name in chosen}


def _option(name: str, kind: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _describe(parameter: inspect.Parameter, texts: Mapping[str, str]) -> inspect.Parameter:
    """Annotate a parameter with what typer has to know of it."""
    name, kind, default = parameter.name, parameter.annotation, parameter.default
    panel = next((panel for panel, known in TEXTS.items() if name in known), None)
    text, words = TEXTS[panel][name] if panel else None, WORDS.get(name, ())
    if name in SETTINGS:
        setting = SETTINGS[name]
        panel, text, words = setting.panel or METHOD, setting.help, setting.words
        if setting.default is True:
            words = ("true", "false")
    details: dict[str, Any] = {
        "help": texts.get(name, text),
        "show_default": default is not None and default is not False,
        "autocompletion": (lambda: list(words)) if words else None,
    }
    if words and kind == int | None:
        details |= {"parser": _number_or_word, "metavar": f"<int|{words[0]}>"}
    if kind is bool:
        details["metavar"] = ""  # a flag has no type on the help page
    if kind == list[str] | None:
        details["metavar"] = "NAME" if name == "without" else "NAME=..."
    if parameter.kind is parameter.KEYWORD_ONLY:
        spelled = SPELLED.get(name, f"--{name.replace('_', '-')}")
        declared = typer.Option(spelled, rich_help_panel=panel, **details)
    else:
        declared = typer.Argument(metavar=name.upper(), **details)
    return parameter.replace(annotation=Annotated[kind, declared])


def _number_or_word(text: str) -> int | str:
    """A number, true or false where one is given; the study judges any other word."""
    if text.removeprefix("-").isdecimal():
        return int(text)
    return {"true": True, "false": False}.get(text, text)


class OnceCommand(TyperCommand):
    """A command that refuses an option given twice, of which the last would count in silence.

    One that other programs have is answered with what it is called here.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the line, and complain of what stands there twice, or belongs elsewhere."""
        known = [str(parameter.name) for parameter in self.params]
        for arg in args:
            name = arg.partition("=")[0].removeprefix("--").replace("-", "_")
            here = called_here(name, known) if arg.startswith("--") and name not in known else []
            if here:
                options = " or ".join(f"--{word.replace('_', '-')}" for word in here)
                raise typer.BadParameter(f"there is no {arg.partition('=')[0]}: use {options}", ctx)
        parsed: Any = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(parsed[2]).items():
            if times > 1 and not (parameter.multiple or parameter.is_flag):
                text = f"given {times} times; give it once, a list as a,b,c"
                raise typer.BadParameter(text, ctx, parameter)
        return super().parse_args(ctx, args)


@contextmanager
def explaining(*, debug: bool, quiet: bool = False) -> Iterator[None]:
    """Run a command's body: warnings in words, errors as one block and an exit code.

    With `debug` the traceback comes too. With `quiet`, and off a terminal, notices about the
    progress of the work are left out.
    """
    logger, printed = logging.getLogger("silomix"), set()
    level = logger.level

    def tell(warning: Any) -> bool:
        text = warning.worded(as_option)
        if text not in printed:  # a command may read its table more than once
            _print_message("Warning", text, "bold yellow")
        printed.add(text)
        return True

    try:
        if quiet or not sys.stderr.isatty():
            logger.setLevel(logging.ERROR)
        with _hearing(tell):
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


@contextmanager
def noting() -> Iterator[dict[str, str]]:
    """Collect what is warned of a table, as a result notes it, and as the shell words that."""
    notes: dict[str, str] = {}

    def note(warning: Any) -> bool:
        if isinstance(warning, errors.DataWarning):
            notes[errors.as_note(warning)] = f"{warning.worded(as_option)}."
        return False

    with _hearing(note):
        yield notes


@contextmanager
def _hearing(hear: Callable[[Any], bool]) -> Iterator[None]:
    """Let `hear` have our own warnings; those of others, and where it is False, go on."""
    ours = (errors.DataWarning, errors.SamplingWarning)
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show_warning(message: Any, *where: Any, **more: Any) -> None:
            if not (isinstance(message, ours) and hear(message)):
                others(message, *where, **more)

        warnings.showwarning = show_warning
        for category in ours:
            warnings.simplefilter("always", category)
        yield


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
    text = Text.assemble((f"{kind}: ", style), printable_lines(message))
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def show(shown: Shown, *, as_json: bool) -> None:
    """Print a result on standard output, and end with its exit code."""
    if as_json:
        text = json.dumps(shown.record, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    else:
        console = Console(highlight=False)
        with console.capture() as captured:
            console.print(Escaped(shown.view))
        text = captured.get() + printable_lines(shown.last)
    try:
        typer.echo(text, color=True)  # the console has left colours out where they do not belong
    except BrokenPipeError:
        # the work is done, and the reader, such as head, has seen enough; what is still buffered
        # has to go somewhere when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if shown.code:
        raise typer.Exit(shown.code)


def given(**settings: object) -> dict[str, Any]:
    """Settings that the command line has, those left out dropped."""
    return {name: value for name, value in settings.items() if value is not None}


def split(names: str | None) -> list[str] | None:
    """Names in a,b,c."""
    return None if names is None else [name.strip() for name in names.split(",")]


def by_column(option: str, lines: Sequence[str] | None) -> dict[str, str]:
    """Values by name in each name=value of an option; several may be in one, as a=x,b=y.

    A comma that does not stand between two is part of one.
    """
    values: dict[str, str] = {}
    for line in lines or ():
        head, sign, tail = line.partition("=")
        first, *others = re.split(",(?=[^,]*=)", tail)
        for item in (head + sign + first, *others):
            name, _, value = item.rpartition("=")
            if not (name and value) or name in values:
                problem = "names the same twice" if name in values else "is not NAME=VALUE"
                raise typer.BadParameter(f"{item!r} {problem}", param_hint=option)
            values[name] = value
    return values


def counts_of(option: str, lines: Sequence[str] | None) -> dict[str, int | str]:
    """Numbers by name in each name=number; whoever uses them judges other words."""
    return {name: _number_or_word(text) for name, text in by_column(option, lines).items()}


def tell_guess(study: Study, kind: Sequence[str] | None, *, quiet: bool) -> list[str]:
    """Line on the columns that were taken as numbers without a --kind, if any were."""
    variables, declared = study.table_schema.variables, by_column("--kind", kind)
    line = guess_told(variables, declared, "--kind")
    return [line] if line and not quiet else []


def tell_checkpoint(folder: Path | None) -> list[str]:
    """Line on a checkpoint that has done its work, if there is one."""
    files = [path for path in (folder.rglob("*") if folder else ()) if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    return [f"Checkpoint, which may be deleted now ({size:,.1f} MB): {folder}"] if files else []


def about_columns(others: Iterable[str] = (), **options: Any) -> dict[str, Any]:
    """Options of a command as keywords: what `COLUMNS` among them say, as `fit` has it.

    Parameters
    ----------
    others : columns that are left out, as those that --exclude names are.
    """
    used, unwanted = split(options.pop("variables", None)), split(options.pop("exclude", None))
    if used is None:
        unwanted = [*(unwanted or ()), *others] or None
    return options | given(
        variables=used,
        exclude=unwanted,
        bins=counts_of("--bins", options.pop("bins", None)) or None,
        kinds=by_column("--kind", options.pop("kind", None)) or None,
        na_values=na_values(options.pop("na_value", None)),
    )


def na_values(lines: Sequence[str] | None) -> list[Any] | None:
    """Codes for missing cells in VALUE and COLUMN=VALUE, as `fit` has them."""
    items = [item for line in lines or () for item in line.split(",")]
    # a code may be a blank
    parts = [(item.lstrip() or item).rpartition("=") for item in items]
    return [{name: value} if sign else value for name, sign, value in parts] or None


def study_of(
    frame: Table, column: str | None, names: Sequence[str] | None, **options: Any
) -> Study:
    """Study of a table that options describe.

    Parameters
    ----------
    column : names each row's silo, if there is one.
    names : of the silos; by default those in the column.
    options : `COLUMNS`, and settings of `make_study`.
    """
    settings = about_columns(**options)
    rows = expand(frame, settings.pop("frequency", None))
    words = settings.keys() & {"variables", "exclude", "kinds", "bins", "missing", "na_values"}
    schema = infer_schema(rows, silo=column, **{word: settings.pop(word) for word in words})
    return make_study(schema, names or read_roster(frame, str(column)).names, **settings)


def show_results(
    out: Path, posterior: Posterior, files: Sequence[Path], first: str = "", **more: object
) -> Shown:
    """A posterior's results, where they were written, and `more` for programs."""
    record = posterior_record(posterior) | more | {"files": [*files]}
    return Shown(record, posterior_view(posterior), f"{first}Results: {out}")
