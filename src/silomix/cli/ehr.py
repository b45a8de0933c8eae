"""Turn health records into a table to fit: people × conditions."""
# annotations are evaluated here, since the options are made from them

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix.cli import command as cli
from silomix.ehr import EhrTable, Engine, InDatabase, LongColumns, read_long, read_omop
from silomix.model.files import finishing
from silomix.model.sentences import printable
from silomix.model.spreadsheet import write_table
from silomix.report.display import frame_view
from silomix.report.results_folder import check_free
from silomix.report.summary import json_lines

DROPPED = ".dropped.csv"
# Options of both commands, and what the help pages say of them.
SHARED = {"carry": str, "first_date": str, "last_date": str, "at_least": int}
SHARED |= {"memory": str, "scratch": Path, "threads": int}
TEXTS: dict[str, Any] = {
    "codes": "The code list: a CSV with columns condition and code.",
    "out": "The table, such as p.parquet; p.dropped.csv lists what was dropped.",
    "carry": "Further columns of each person to keep, as a,b,c.",
    "first_date": "Earlier events do not count: YYYY-MM-DD.",
    "last_date": "Later events do not count: YYYY-MM-DD.",
    "at_least": "Minimum number of conditions for a person to be kept (default 0); 2 is common.",
    "memory": f"Maximum memory (default {Engine.memory}); the rest goes to disk.",
    "scratch": "Folder for temporary files (default: the system's).",
}


@cli.command(settings=SHARED, **TEXTS)
def long_command(
    events: Path,
    *,
    codes: Path,
    out: Path,
    table: str | None = None,
    people: Path | None = None,
    people_table: str | None = None,
    person: str = LongColumns.person,
    code: str = LongColumns.code,
    date: str = "date",
    date_format: str | None = None,
    vocabulary: str | None = None,
    force: bool = False,
    **shared: Any,
) -> cli.Shown:
    """Turn a long table of coded events into a row per person and a 0/1 column per condition.

    Parameters
    ----------
    events : Events: CSV, TSV, Parquet, DuckDB.
    table : Which table, if EVENTS is a DuckDB file.
    people : Table of people to keep; by default, all with events.
    people_table : Which table, if --people is a DuckDB file.
    person : Column of person ids.
    code : Column of codes.
    date : Column of dates; '' if there is none.
    date_format : Format of dates other than YYYY-MM-DD, such as %d/%m/%Y.
    vocabulary : Column of code systems, if codes have one.

    Examples
    --------
    silomix ehr long events.csv --codes codes.csv --out people.parquet
    """
    if people_table is not None and people is None:
        raise typer.BadParameter("--people-table names a table of --people; give both")
    columns = LongColumns(person, code, date or None, vocabulary, date_format)
    whose = None if people is None else _source(people, people_table)
    read = partial(read_long, _source(events, table), codes, people=whose, columns=columns)
    return _write(read, out, force=force, **shared)


@cli.command(settings=SHARED, **TEXTS)
def omop_command(
    cdm: Path,
    *,
    codes: Path,
    out: Path,
    schema: str | None = None,
    silo: str | None = None,
    age_from: int | None = None,
    age_to: int | None = None,
    force: bool = False,
    **shared: Any,
) -> cli.Shown:
    """Turn OMOP tables into a row per person and a 0/1 column per condition.

    Parameters
    ----------
    cdm : DuckDB file, or folder with one file per table.
    schema : Schema of the tables, if several have them.
    silo : care_site or location; adds that column.
    age_from : Minimum age when first observed.
    age_to : Maximum age when first observed.

    Examples
    --------
    silomix ehr omop cdm.duckdb --codes codes.csv --out people.parquet
    """
    read = partial(read_omop, _source(cdm, schema), codes, silo=silo, ages=(age_from, age_to))
    return _write(read, out, force=force, **shared)


def _source(file: Path, name: str | None) -> Path | InDatabase:
    return file if name is None else InDatabase(file, name)


def _write(read: Callable[..., EhrTable], out: Path, *, force: bool, **shared: Any) -> cli.Shown:
    """Write the table, and what was dropped beside it, with the options `SHARED`."""
    beside = out.with_suffix(DROPPED)
    check_free([out, beside], force=force)
    shared["between"] = shared.pop("first_date", None), shared.pop("last_date", None)
    shared["carry"] = cli.split(shared.pop("carry", None)) or ()
    limits = {name: shared.pop(name) for name in shared.keys() & {"memory", "scratch", "threads"}}
    with finishing([out, beside]):
        result = read(**shared, out=out, engine=Engine(**limits))
        write_table(result.dropped, beside)
    record = {
        "people": result.people,
        "people_without_condition": result.zeros,
        "events_read": result.events_read,
        "events_kept": result.events_kept,
        "conditions": json_lines(result.conditions),
        "dropped": json_lines(result.dropped),
        "unlisted": json_lines(result.unlisted),
        "files": [out, beside],
    }
    kept = (
        f"{result.people:,} people, {result.zeros:,} of them without any condition; "
        f"{result.events_kept:,} of {result.events_read:,} events kept"
    )
    parts: list[RenderableType] = [Text(kept, style="bold"), frame_view(result.conditions)]
    if len(result.dropped):
        heads = {"reason": "dropped", "what_to_do": "what to do"}
        parts.append(frame_view(result.dropped.rename(columns=heads), left=["what to do"]))
    if len(result.unlisted):
        pairs = (f"{code} ({events:,})" for code, events in result.unlisted.itertuples(index=False))
        frequent = f"Most frequent codes that are not in the list: {', '.join(pairs)}"
        parts.append(Text(printable(frequent)))
    return cli.Shown(record, Group(*parts), f"People: {out}\nDropped: {beside}")
