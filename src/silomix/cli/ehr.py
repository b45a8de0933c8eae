"""The commands that read health records: `silomix ehr ...`."""
# annotations are evaluated here, since typer builds the options from them

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from silomix.cli import options as opt
from silomix.cli.command import OnceCommand, split
from silomix.cli.examples import epilog
from silomix.cli.terminal import explaining, show
from silomix.ehr import EhrTable, Engine, InDatabase, LongColumns, read_long, read_omop
from silomix.report.display import table_view
from silomix.report.results_folder import check_free, write_table

Word = str | None
CodesFile = Annotated[Path, Option(help="The code list: a CSV with columns condition and code.")]
Out = Annotated[Path, Option(help="Such as p.parquet; p.dropped.csv says what is not in it.")]
Carry = Annotated[Word, Option(help="Columns of each person that go along, as a,b,c.")]
FirstDate = Annotated[Word, Option(help="Earlier events do not count: YYYY-MM-DD.")]
LastDate = Annotated[Word, Option(help="Later events do not count: YYYY-MM-DD.")]
AtLeast = Annotated[int, Option(help="Conditions a person must have to be kept; 2 is common.")]
Memory = Annotated[str, Option(help="Most memory to use; the rest goes to disk.")]
Scratch = Annotated[
    Path | None, Option(help="Folder for it; the system's temporary one by default.")
]
Threads = Annotated[int | None, Option(help="Cores to use (default all); the result is the same.")]
DROPPED = ".dropped.csv"


def long_command(
    events: Annotated[Path, Argument(metavar="EVENTS", help="Events: CSV, TSV, Parquet, DuckDB.")],
    *,
    codes: CodesFile,
    out: Out,
    table: Annotated[Word, Option(help="Which table, if EVENTS is a DuckDB file.")] = None,
    people: Annotated[Path | None, Option(help="People to keep; else all with events.")] = None,
    people_table: Annotated[Word, Option(help="Which table, if that is a DuckDB file.")] = None,
    person: Annotated[str, Option(help="Column of person ids.")] = LongColumns.person,
    code: Annotated[str, Option(help="Column of codes.")] = LongColumns.code,
    date: Annotated[str, Option(help="Column of dates; '' if there is none.")] = "date",
    date_format: Annotated[Word, Option(help="Of dates unlike YYYY-MM-DD: %d/%m/%Y.")] = None,
    vocabulary: Annotated[Word, Option(help="Column of code systems, if codes have one.")] = None,
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
        check_free([out, out.with_suffix(DROPPED)], force=force)
        found = read_long(
            _source(events, table),
            codes,
            people=None if people is None else _source(people, people_table),
            columns=LongColumns(person, code, date or None, vocabulary, date_format),
            carry=split(carry) or (),
            between=(first_date, last_date),
            at_least=at_least,
            out=out,
            engine=Engine(memory, scratch, threads),
        )
        _show(found, out, as_json=as_json)


def omop_command(
    cdm: Annotated[Path, Argument(metavar="CDM", help="DuckDB file, or folder of a file a table.")],
    *,
    codes: CodesFile,
    out: Out,
    schema: Annotated[Word, Option(help="Where the tables are, if several have them.")] = None,
    silo: Annotated[Word, Option(help="care_site or location: adds a column of it.")] = None,
    carry: Carry = None,
    first_date: FirstDate = None,
    last_date: LastDate = None,
    age_from: Annotated[int | None, Option(help="Youngest age when first observed.")] = None,
    age_to: Annotated[int | None, Option(help="Oldest age when first observed.")] = None,
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
        check_free([out, out.with_suffix(DROPPED)], force=force)
        found = read_omop(
            _source(cdm, schema),
            codes,
            silo=silo,
            carry=split(carry) or (),
            between=(first_date, last_date),
            ages=(age_from, age_to),
            at_least=at_least,
            out=out,
            engine=Engine(memory, scratch, threads),
        )
        _show(found, out, as_json=as_json)


def _source(file: Path, name: str | None) -> Path | InDatabase:
    return file if name is None else InDatabase(file, name)


def _show(found: EhrTable, out: Path, *, as_json: bool) -> None:
    """Write what was dropped, and print the account."""
    beside = out.with_suffix(DROPPED)
    write_table(found.dropped, beside)
    frames = {name: getattr(found, name) for name in ("conditions", "dropped", "unlisted")}
    record = {
        "people": found.people,
        "people_without_condition": found.zeros,
        "events_read": found.events_read,
        "events_kept": found.events_kept,
        **{name: _rows(frame) for name, frame in frames.items()},
        "files": [str(out), str(beside)],
    }
    show(record, _view(found), as_json=as_json, last=f"People: {out}\nDropped: {beside}")


def _rows(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    plain = frame.astype(object)
    return plain.where(plain.notna(), None).to_dict(orient="records")


def _view(found: EhrTable) -> RenderableType:
    kept = (
        f"{found.people:,} people, {found.zeros:,} of them without any condition; "
        f"{found.events_kept:,} of {found.events_read:,} events kept"
    )
    parts: list[RenderableType] = [Text(kept, style="bold"), _table(found.conditions)]
    if len(found.dropped):
        heads = {"reason": "dropped", "what_to_do": "what to do"}
        parts.append(_table(found.dropped.rename(columns=heads)))
    if len(found.unlisted):
        pairs = (f"{code} ({events:,})" for code, events in found.unlisted.itertuples(index=False))
        frequent = f"Most frequent codes that are not in the list: {', '.join(pairs)}"
        parts.append(Text(_printable(frequent)))
    return Group(*parts)


def _table(frame: pd.DataFrame) -> Table:
    shares = frame.select_dtypes(float).map("{:.1%}".format, na_action="ignore").astype(object)
    counts = frame.select_dtypes(int).map("{:,}".format)
    view = table_view(*frame.columns, left=("what to do",))
    for row in frame.assign(**counts, **shares.fillna("")).itertuples(index=False):
        view.add_row(*(Text(_printable(cell)) for cell in row))
    return view


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
