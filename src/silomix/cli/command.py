"""What a command is: a function whose parameters become options, and whose result is shown."""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import RenderableType
from typer.core import TyperCommand, TyperOption

from silomix.cli.terminal import explaining, show
from silomix.model.reading import Table, find_column, read_table
from silomix.study.keywords import PRESETS, SETTINGS
from silomix.study.settings import METHOD, OUTPUT, SAMPLER

TABLE = "The table"
# Each says in one line which value to choose, and why; a command may say it in its own way.
TEXTS = {
    TABLE: {
        "table": "CSV, TSV (or their .gz) or Parquet: a row per unit, columns as variables.",
        "data": "This silo's table: CSV, TSV (or their .gz) or Parquet.",
        "silo": "Column that says whose row it is: its values are silos.",
        "silo_column": "Column that says whose row it is, if others' are in it too.",
        "silos": "Silos; 4, or 10 in appendix-b, by default.",
        "rows": "Rows in all; 4000, 50000 in appendix-b, 289821 in cohort.",
        "separability": "easy (default), or poor for clusters that overlap.",
        "shards": "Split the rows at random into N silos instead, to go faster.",
        "variables": "Columns to use, as a,b,c; all others by default.",
        "exclude": "Columns to leave out, as a,b: identifiers, dates, numbers.",
        "id_column": "A column that names each row, such as a number: kept with its label.",
        "outside": "Columns to compare the clusters in, not to cluster: age,sex,ward=levels.",
        "outside_method": "averaged (default) allows for unsure rows; labels, the paper's, not.",
        "missing": "marginalise (default) skips missing cells; level if it means something.",
        "frequency": "Column of counts, if rows stand for many equal ones.",
        "study": "The study file that all silos have, such as study.toml.",
    },
    SAMPLER: {
        "preset": "paper, the published method; files, to go by file; network, silos online.",
        "threads": "Cores to use (default all); the result is the same.",
        "checkpoint": "Folder to go on from after a stop: for long runs.",
        "transport": "in-process (default), or joblib, with a process per core.",
    },
    OUTPUT: {
        "policy": "What may leave: policy.toml, or a preset; default if left out.",
        "ledger": "File that counts what left; silomix-ledger.json beside the table.",
        "table_name": "What the ledger calls the table, wherever it is; its path by default.",
        "force": "Replace files that exist already.",
        "quiet": "Do not show how far the work is.",
        "as_json": "Print the result as JSON and nothing else.",
        "debug": "Show the traceback of an error, for a fault report.",
    },
}

SPELLED = {"as_json": "--json", "id_column": "--id"}
# What a shell offers to complete a value with.
WORDS: dict[str, Collection[str]] = {
    "preset": PRESETS,
    "missing": ("marginalise", "level"),
    "outside_method": ("averaged", "labels"),
    "transport": ("in-process", "joblib"),
    "separability": ("easy", "poor"),
}


class Shown(NamedTuple):
    """What a command found.

    Attributes
    ----------
    record : for programs, printed as JSON.
    view : for people.
    last : what to say after the view, never wrapped: it has paths in it.
    code : the exit code.
    """

    record: dict[str, Any]
    view: RenderableType
    last: str
    code: int = 0


def command(
    *, settings: Mapping[str, type] | None = None, **texts: str
) -> Callable[[Callable[..., Shown]], Callable[..., None]]:
    """Make a command of a function: parameters before the star are arguments, others options.

    Parameters
    ----------
    settings : options, by name and type, that the function takes as `**settings`, if given.
    texts : what the help page says of an option, where it is not as in `TEXTS`.
    """

    def decorate(function: Callable[..., Shown]) -> Callable[..., None]:
        @wraps(function)
        def run(*, as_json: bool, debug: bool, **options: Any) -> None:
            left_out = {name for name in settings or () if options[name] is None}
            given = {name: options[name] for name in options if name not in left_out}
            with explaining(debug=debug):
                found = function(**given)
                show(found.record, found.view, as_json=as_json, last=found.last)
                if found.code:
                    raise typer.Exit(found.code)

        own = [
            p for p in inspect.signature(function).parameters.values() if p.kind != p.VAR_KEYWORD
        ]
        own += [_parameter(name, kind | None, None) for name, kind in (settings or {}).items()]
        own += [_parameter(name, bool, default=False) for name in ("as_json", "debug")]
        described = [
            p.replace(annotation=Annotated[p.annotation, _describe(p, texts)]) for p in own
        ]
        run.__signature__ = inspect.Signature(described)  # type: ignore[attr-defined]
        return run

    return decorate


def settings_of(*names: str) -> dict[str, type]:
    """Return the types of settings of the study, by name; of all that are options by default."""
    chosen = names or [name for name, setting in SETTINGS.items() if setting.panel]
    return {name: SETTINGS[name].kind for name in chosen}


def _parameter(name: str, kind: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _describe(parameter: inspect.Parameter, texts: Mapping[str, str]) -> Any:
    """Return what typer has to know of a parameter."""
    name = parameter.name
    panel = next((panel for panel, known in TEXTS.items() if name in known), OUTPUT)
    text = texts.get(name) or TEXTS[panel].get(name)
    words = WORDS.get(name, ())
    if text is None:
        setting = SETTINGS[name]
        panel, text, words = setting.panel or METHOD, setting.help, setting.words
    shared: dict[str, Any] = {
        "help": text,
        "show_default": False,
        "autocompletion": (lambda: list(words)) if words else None,
    }
    if words and parameter.annotation == int | None:
        shared["parser"] = _number_or_word
    if parameter.kind is not parameter.KEYWORD_ONLY:
        return typer.Argument(metavar=name.upper(), **shared)
    spelled = SPELLED.get(name, f"--{name.replace('_', '-')}")
    if parameter.annotation is bool:
        shared["metavar"] = ""  # no type on the help page
    return typer.Option(spelled, rich_help_panel=panel, **shared)


def _number_or_word(text: str) -> int | str:
    """Return a number where one is given; the study judges any other word."""
    return int(text) if text.removeprefix("-").isdecimal() else text


class OnceCommand(TyperCommand):
    """A command that refuses an option given twice, of which the last would count in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the line, and complain of what stands there twice."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            if times == 1 or not isinstance(parameter, TyperOption):
                continue
            if not parameter.multiple and not parameter.is_flag:
                raise typer.BadParameter(
                    f"given {times} times; give it once, a list as a,b,c", ctx, parameter
                )
        return super().parse_args(ctx, args)


def given(**settings: object) -> dict[str, Any]:
    """Return the settings that the command line has, those left out dropped."""
    return {name: value for name, value in settings.items() if value is not None}


def split(names: str | None) -> list[str] | None:
    """Return the names in a,b,c."""
    return None if names is None else [name.strip() for name in names.split(",")]


def columns_to_use(
    table: Table, variables: str | None, exclude: str | None, apart: Sequence[str | None]
) -> list[str] | None:
    """Return the variables that --variables names or --exclude leaves; None for all.

    Parameters
    ----------
    table : whose columns they are.
    variables, exclude : names as a,b,c; at most one of the two.
    apart : columns with another task, which are no variables.
    """
    if exclude is None:
        return split(variables)
    if variables is not None:
        raise typer.BadParameter("--variables and --exclude both say which columns; give one")
    frame, unwanted = read_table(table), split(exclude) or []
    for name in unwanted:
        find_column(frame, name, "to exclude")
    return [name for name in frame.columns if name not in {*unwanted, *apart}]
