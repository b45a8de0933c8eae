"""What a command is: a function whose parameters become options, and whose result is shown."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from silomix.cli.terminal import Shown, explaining, show
from silomix.errors import hiding_cells
from silomix.model.numbers import guess_told
from silomix.model.reading import Table
from silomix.model.table import expand, infer_schema
from silomix.posterior import Posterior
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
        "silos": "Number of silos (default 4; 10 in appendix-b).",
        "rows": "Rows in total (default 4000; 50000 in appendix-b, 289821 in cohort).",
        "separability": "easy (default), or poor for clusters that overlap.",
        "shards": "Without --silo: split the rows at random into N silos, for speed.",
        "variables": "Columns to cluster on (a,b,c); by default all that no other option uses.",
        "exclude": "Columns to leave out, as a,b: identifiers, dates.",
        "kind": "age=gaussian, log-gaussian, gaussian-full, student-t, poisson, negative-binomial "
        "or categorical.",
        "bins": "age=4 cuts numbers into four levels, at quantiles; repeatable.",
        "id_column": "Column that identifies each row; kept with its label.",
        "outside": "Columns to compare, not to cluster on: age,ward=levels,sex=f.",
        "covariates": "Other columns that may explain membership; odds ratios in odds.csv only.",
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
        "transport": "in-process (default), or joblib, with a process per core.",
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

SPELLED = {"as_json": "--json", "id_column": "--id"}
METAVARS = {"name": "CLUSTER=...", "without": "NAME", "rows": "SILO=..."}
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
    "separability": ("easy", "poor"),
}


# The headings in a command's docstring above what its options are for, and above the line that
# its help page ends with.
PARAMETERS, EXAMPLE = "\n\nParameters\n----------\n", "\n\nExamples\n--------\n"


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
            quiet = bool(options.get("quiet"))
            hiding = hiding_cells(unless=debug or not hides_cells)
            with hiding, explaining(debug=debug, quiet=quiet):
                found = function(**given(**options))
                if found is not None:
                    show(found, as_json=as_json)

        section = str(inspect.getdoc(function)).partition(PARAMETERS)[2].partition(EXAMPLE)[0]
        said = {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(section)} | texts
        written = inspect.signature(function)
        own = [p for p in written.parameters.values() if p.kind != p.VAR_KEYWORD]
        own += [_parameter(name, kind | None, None) for name, kind in (settings or {}).items()]
        flags = ("debug",) if written.return_annotation is None else ("as_json", "debug")
        own += [_parameter(name, bool, default=False) for name in flags]
        described = [p.replace(annotation=Annotated[p.annotation, _describe(p, said)]) for p in own]
        run.__signature__ = inspect.Signature(described)  # type: ignore[attr-defined]
        return run

    return decorate


def make_group(module: ModuleType) -> Any:
    """Return the commands of a module, by name in the order they stand there, as one command."""
    app = typer.Typer(help=module.__doc__, no_args_is_help=True)
    for name, function in vars(module).items():
        if name.endswith("_command"):
            about, _, example = str(inspect.getdoc(function)).partition(EXAMPLE)
            text = about.partition(PARAMETERS)[0]
            last = f"Example:\n  {' '.join(example.split())}"
            short = name.removesuffix("_command")
            app.command(short, cls=OnceCommand, help=text, epilog=last)(function)
    return typer.main.get_group(app)


def settings_of(*names: str) -> dict[str, type]:
    """Return the types of settings of the study, by name; of all that are options by default."""
    chosen = names or [name for name, setting in SETTINGS.items() if setting.panel]
    return {name: SETTINGS[name].kind for name in chosen}


def _parameter(name: str, kind: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _describe(parameter: inspect.Parameter, texts: Mapping[str, str]) -> Any:
    """Return what typer has to know of a parameter."""
    name, kind, default = parameter.name, parameter.annotation, parameter.default
    panel = next((panel for panel, known in TEXTS.items() if name in known), None)
    text, words = TEXTS[panel][name] if panel else None, WORDS.get(name, ())
    if name in SETTINGS:
        setting = SETTINGS[name]
        panel, text, words = setting.panel or METHOD, setting.help, setting.words
        if setting.default is True:
            words = ("true", "false")
    shared: dict[str, Any] = {
        "help": texts.get(name, text),
        "show_default": default is not None and default is not False,
        "autocompletion": (lambda: list(words)) if words else None,
    }
    if words and kind == int | None:
        shared |= {"parser": _number_or_word, "metavar": f"<int|{words[0]}>"}
    if parameter.kind is not parameter.KEYWORD_ONLY:
        return typer.Argument(metavar=name.upper(), **shared)
    spelled = SPELLED.get(name, f"--{name.replace('_', '-')}")
    if kind in {bool, list[str] | None}:
        # a flag has no type on the help page; what may be given several times has a name
        usual = "COLUMN=..." if panel == TABLE else "NAME=..."
        shared["metavar"] = "" if kind is bool else METAVARS.get(name, usual)
    return typer.Option(spelled, rich_help_panel=panel, **shared)


def _number_or_word(text: str) -> int | str:
    """Return a number, true or false where one is given; the study judges any other word."""
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


def _items(lines: Sequence[str] | None) -> list[str]:
    """Return each name=value; a comma that does not stand between two is part of one."""
    items: list[str] = []
    for line in lines or ():
        first, *others = line.split(",")
        items.append(first)
        for part in others:
            if "=" in part and "=" in items[-1]:
                items.append(part)
            else:
                items[-1] += f",{part}"
    return items


def by_column(option: str, lines: Sequence[str] | None) -> dict[str, str]:
    """Return what each name=value of an option says; several may stand together, as a=x,b=y."""
    found: dict[str, str] = {}
    for item in _items(lines):
        name, sign, value = item.rpartition("=")
        if not (sign and name and value) or name in found:
            problem = "names the same twice" if name in found else "is not NAME=VALUE"
            raise typer.BadParameter(f"{item!r} {problem}", param_hint=option)
        found[name] = value
    return found


def counts_of(option: str, lines: Sequence[str] | None) -> dict[str, int | str]:
    """Return the number of each name=number of an option; whoever uses it judges other words."""
    return {name: _number_or_word(text) for name, text in by_column(option, lines).items()}


def tell_guess(study: Study, kind: Sequence[str] | None, *, quiet: bool) -> list[str]:
    """Return a line on the columns that were taken as numbers without a --kind, if any were."""
    if quiet:
        return []
    variables, declared = study.table_schema.variables, by_column("--kind", kind)
    told = guess_told(variables, declared, "--kind")
    return [told] if told else []


def tell_checkpoint(folder: Path | None) -> list[str]:
    """Return a line on a checkpoint that has done its work, if there is one."""
    files = [path for path in (folder.rglob("*") if folder else ()) if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    return [f"Checkpoint, which may be deleted now ({size:,.1f} MB): {folder}"] if files else []


def about_columns(others: Iterable[str] = (), **options: Any) -> dict[str, Any]:
    """Return the options of a command as keywords: what `COLUMNS` among them say, as `fit` has it.

    Parameters
    ----------
    others : columns that are left out, as those that --exclude names are.
    """
    used, unwanted = split(options.pop("variables", None)), split(options.pop("exclude", None))
    if used is None:
        unwanted = [*(unwanted or ()), *others] or None
    counts = counts_of("--bins", options.pop("bins", None))
    kinds = by_column("--kind", options.pop("kind", None))
    codes = na_values(options.pop("na_value", None))
    about = given(variables=used, exclude=unwanted, kinds=kinds or None, bins=counts or None)
    return options | about | given(na_values=codes)


def na_values(lines: Sequence[str] | None) -> list[Any] | None:
    """Return what each VALUE and COLUMN=VALUE of --na-value says, as `fit` has it."""
    items = [item for line in lines or () for item in line.split(",")]
    # a code may be a blank
    parts = [(item.lstrip() or item).rpartition("=") for item in items]
    return [{name: value} if sign else value for name, sign, value in parts] or None


def study_of(
    frame: Table, column: str | None, names: Sequence[str] | None, **options: Any
) -> Study:
    """Return the study of a table that options describe.

    Parameters
    ----------
    column : names each row's silo, if there is one.
    names : of the silos; by default those in the column.
    options : `COLUMNS`, and settings of `make_study`.
    """
    settings = about_columns(**options)
    rows = expand(frame, settings.pop("frequency", None))
    words = settings.keys() & {"variables", "exclude", "kinds", "bins", "missing", "na_values"}
    about = {word: settings.pop(word) for word in words}
    schema = infer_schema(rows, silo=column, **about)
    return make_study(schema, names or read_roster(frame, str(column)).names, **settings)


def show_results(
    out: Path, posterior: Posterior, files: Sequence[Path], first: str = "", **more: object
) -> Shown:
    """Return what a posterior's results are, where they were written, and `more`."""
    record = posterior_record(posterior) | more | {"files": [*files]}
    return Shown(record, posterior_view(posterior), f"{first}Results: {out}")
