"""The commands that read health records: `silomix ehr ...`."""
# annotations are evaluated here, since typer builds the options from them

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix import options as opt
from silomix.cli.examples import epilog
from silomix.cli.once import OnceCommand
from silomix.cli.parsing import split
from silomix.ehr import EhrTable, Engine, InDatabase, LongColumns, read_long, read_omop
from silomix.report.display import table_view
from silomix.report.results_folder import check_free, write_table
from silomix.terminal import explaining, show

Events = Annotated[
    Path, typer.Argument(metavar="EVENTS", help="A row per event: CSV, TSV, Parquet or DuckDB.")
]
Cdm = Annotated[
    Path, typer.Argument(metavar="CDM", help="A DuckDB file, or a folder with a file per table.")
]
CodesFile = Annotated[
    Path, typer.Option("--codes", help="The code list: a CSV with columns condition and code.")
]
PeopleOut = Annotated[
    Path,
    typer.Option(
        "--out", help="Such as people.parquet; people.dropped.csv says what is not in it."
    ),
]
Carry = Annotated[
    str | None, typer.Option("--carry", help="Columns of each person that go along, as a,b,c.")
]
FirstDate = Annotated[
    str | None, typer.Option("--first-date", help="Earlier events do not count: YYYY-MM-DD.")
]
LastDate = Annotated[
    str | None, typer.Option("--last-date", help="Later events do not count: YYYY-MM-DD.")
]
AtLeast = Annotated[
    int, typer.Option("--at-least", help="Conditions a person must have to be kept; 2 is common.")
]
Memory = Annotated[str, typer.Option("--memory", help="Most memory to use; the rest goes to disk.")]
Scratch = Annotated[
    Path | None,
    typer.Option("--scratch", help="Folder for that; the system's temporary one by default."),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="Cores to use (default all); the result is the same."),
]


def long_command(
    events: Events,
    *,
    codes: CodesFile,
    out: PeopleOut,
    table: Annotated[
        str | None, typer.Option("--table", help="Which table, if EVENTS is a DuckDB file.")
    ] = None,
    people: Annotated[
        Path | None,
        typer.Option("--people", help="A row per person to keep; all who have events if left out."),
    ] = None,
    people_table: Annotated[
        str | None, typer.Option("--people-table", help="Which table, if that is a DuckDB file.")
    ] = None,
    person: Annotated[
        str, typer.Option("--person", help="Column of person ids.")
    ] = LongColumns.person,
    code: Annotated[str, typer.Option("--code", help="Column of codes.")] = LongColumns.code,
    date: Annotated[
        str, typer.Option("--date", help="Column of dates; '' if there is none.")
    ] = "date",
    date_format: Annotated[
        str | None, typer.Option("--date-format", help="Of other dates than YYYY-MM-DD: %d/%m/%Y.")
    ] = None,
    vocabulary: Annotated[
        str | None, typer.Option("--vocabulary", help="Column of code systems, if codes name them.")
    ] = None,
    carry: Carry = None,
    first_date: FirstDate = None,
    last_date: LastDate = None,
    at_least: AtLeast = 0,
    memory: Memory = Engine.memory,
    scratch: Scratch = None,
    threads: Threads = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Read a long table of coded events into a row per person, a 0/1 column per condition."""
    with explaining(debug=debug):
        if people_table is not None and people is None:
            raise typer.BadParameter("--people-table names a table of --people; give both")
        check_free([out, _dropped_file(out)], force=force)
        found = read_long(
            events if table is None else InDatabase(events, table),
            codes,
            people=people
            if people is None or people_table is None
            else InDatabase(people, people_table),
            columns=LongColumns(person, code, date or None, vocabulary, date_format),
            carry=split(carry) or (),
            between=(first_date, last_date),
            at_least=at_least,
            out=out,
            engine=Engine(memory, scratch, threads),
        )
        _tell(found, out, as_json=as_json)


def omop_command(
    cdm: Cdm,
    *,
    codes: CodesFile,
    out: PeopleOut,
    schema: Annotated[
        str | None, typer.Option("--schema", help="Where the tables are, if several have them.")
    ] = None,
    silo: Annotated[
        str | None,
        typer.Option("--silo", help="care_site or location: adds a column with each person's."),
    ] = None,
    carry: Carry = None,
    first_date: FirstDate = None,
    last_date: LastDate = None,
    age_from: Annotated[
        int | None, typer.Option("--age-from", help="Youngest age when first observed.")
    ] = None,
    age_to: Annotated[
        int | None, typer.Option("--age-to", help="Oldest age when first observed.")
    ] = None,
    at_least: AtLeast = 0,
    memory: Memory = Engine.memory,
    scratch: Scratch = None,
    threads: Threads = None,
    force: opt.Force = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Read OMOP tables into a row per person, a 0/1 column per condition."""
    with explaining(debug=debug):
        check_free([out, _dropped_file(out)], force=force)
        found = read_omop(
            cdm if schema is None else InDatabase(cdm, schema),
            codes,
            silo=silo,
            carry=split(carry) or (),
            between=(first_date, last_date),
            ages=(age_from, age_to),
            at_least=at_least,
            out=out,
            engine=Engine(memory, scratch, threads),
        )
        _tell(found, out, as_json=as_json)


def _dropped_file(out: Path) -> Path:
    return out.with_suffix(".dropped.csv")


def _tell(found: EhrTable, out: Path, *, as_json: bool) -> None:
    """Write what was dropped, and print the account."""
    beside = _dropped_file(out)
    write_table(found.dropped, beside)
    record = {
        "people": found.people,
        "people_without_condition": found.zeros,
        "events_read": found.events_read,
        "events_kept": found.events_kept,
        "conditions": _rows(found.conditions),
        "dropped": _rows(found.dropped),
        "unlisted": _rows(found.unlisted),
        "files": [str(out), str(beside)],
    }
    last = f"People: {out}\nDropped: {beside}"
    show(record, _view(found), as_json=as_json, last=last)


def _rows(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    plain = frame.astype(object)
    return plain.where(plain.notna(), None).to_dict(orient="records")


def _view(found: EhrTable) -> RenderableType:
    told = Text(
        f"{found.people:,} people, {found.zeros:,} of them without any condition; "
        f"{found.events_kept:,} of {found.events_read:,} events kept",
        style="bold",
    )
    have = table_view("condition", "people", "prevalence", "events")
    for name, people, share, events in found.conditions.itertuples(index=False):
        have.add_row(
            Text(_printable(name)),
            f"{people:,}",
            "" if pd.isna(share) else f"{share:.1%}",
            f"{events:,}",
        )
    dropped = table_view("dropped", "events", "people", "what to do", left=("what to do",))
    for reason, events, people, advice in found.dropped.itertuples(index=False):
        dropped.add_row(reason, f"{events:,}", f"{people:,}", advice)
    parts: list[RenderableType] = [told, have]
    if len(found.dropped):
        parts.append(dropped)
    if len(found.unlisted):
        frequent = [
            f"{_printable(code)} ({events:,})"
            for code, events in found.unlisted.itertuples(index=False)
        ]
        parts.append(Text(f"Most frequent codes that are not in the list: {', '.join(frequent)}"))
    return Group(*parts)


def _printable(name: str) -> str:
    """Return a name from a file as text that cannot steer the terminal."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in name)


ehr_app = typer.Typer(
    help="Health records into a table to fit: people × conditions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
KINDS: dict[str, Callable[..., None]] = {"long": long_command, "omop": omop_command}
for name, command in KINDS.items():
    ehr_app.command(name, cls=OnceCommand, epilog=epilog(f"ehr {name}"))(command)
