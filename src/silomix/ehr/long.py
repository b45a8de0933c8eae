"""A long table of coded events → people × conditions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from silomix.ehr.asked import make_request
from silomix.ehr.codes import check_flat, read_codes
from silomix.ehr.counting import check_ids, count, set_bounds, set_codes
from silomix.ehr.engine import (
    DEFAULT_ENGINE,
    Engine,
    find_column,
    load_duckdb,
    name_of,
    opened,
    relation_of,
)
from silomix.ehr.sql import day, formatted_day, identifier
from silomix.errors import DataError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from pathlib import Path

    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from silomix.ehr.codes import CodeList, Codes
    from silomix.ehr.engine import Source
    from silomix.ehr.record import EhrTable

WITHOUT_DATE = "DATE '2000-01-01'"
WHOLE = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG", "HUGE")} | {
    "INTEGER",
    "UINTEGER",
}
"""The types of whole numbers in DuckDB."""


@dataclass(frozen=True)
class LongColumns:
    """How the columns of a long table are called.

    Attributes
    ----------
    person : whose event it is; also in the table of people, and in the result.
    code : what was recorded.
    date : when; None if the table does not say.
    vocabulary : the code system of the code, if the code list names one for each code.
    date_format : of dates in text that are not YYYY-MM-DD, such as "%d/%m/%Y", or in numbers.

    Examples
    --------
    >>> from silomix import ehr
    >>> ehr.LongColumns(person="patid", code="icd10", date="epistart").person
    'patid'
    """

    person: str = "person"
    code: str = "code"
    date: str | None = "date"
    vocabulary: str | None = None
    date_format: str | None = None


DEFAULT_COLUMNS = LongColumns()


def read_long(
    events: Source,
    codes: Codes,
    *,
    people: Source | None = None,
    columns: LongColumns = DEFAULT_COLUMNS,
    carry: Sequence[str] = (),
    between: tuple[str | date | None, str | date | None] = (None, None),
    at_least: int = 0,
    out: str | Path | None = None,
    engine: Engine = DEFAULT_ENGINE,
) -> EhrTable:
    """Read a long table of events into one row per person and one 0/1 column per condition.

    Codes are compared as text, with the white space around them removed and capitals as they are.
    In text, empty cells, NA, NaN and NULL are missing, and dates start with a year of four digits.
    A time with a zone is on the day that it is in UTC.

    Parameters
    ----------
    events : a row per event: a CSV, TSV or Parquet file, an `InDatabase`, or a frame.
    codes : a code list: the path of a CSV file, a mapping, or a `CodeList`.
    people : a table with a row per person, in any form that `events` may have: these people are
        kept, with or without events. Left out, everybody whom `events` names is.
    columns : how the columns are called.
    carry : columns that go along, such as the hospital: of `people`, or without it of `events`,
        where they must then say the same in all rows of a person.
    between : the first and the last date that count; None for no limit.
    at_least : conditions a person must have to be kept.
    out : a Parquet file to write; the table is then never in memory.
    engine : how much memory to use, and where the rest goes.

    Returns
    -------
    EhrTable
        The table, in the order of the person ids, and an account of what was dropped.

    Examples
    --------
    >>> import pandas as pd
    >>> from silomix import ehr
    >>> events = pd.DataFrame(
    ...     {
    ...         "person": ["b", "a", "a"],
    ...         "code": ["I10", "J45", "I10"],
    ...         "date": ["2020-01-31", "2019-05-01", "2021-05-01"],
    ...     }
    ... )
    >>> codes = {"hypertension": ["I10", "I15"], "asthma": ["J45"]}
    >>> found = ehr.read_long(events, codes, between=(None, "2020-12-31"))
    >>> print(found.table)
      person  hypertension  asthma
    0      a             0       1
    1      b             1       0
    >>> print(found.dropped[["reason", "events", "people"]])
                                        reason  events  people
    0  before the first or after the last date       1       1
    """
    listed = read_codes(codes)
    check_flat(listed)
    _check_settings(listed, columns, between)
    request = make_request(listed, columns.person, carry, at_least, out)
    where = name_of(events, "the events")
    with opened(engine, where) as connection:
        _check_format(connection, columns.date_format)
        set_bounds(connection, between)
        _read_codes(connection, listed)
        source = relation_of(connection, events, "the events")
        source.create_view("event_source")
        ids = identifier(*find_column(source, columns.person, where))
        if people is None:
            _people_of_events(connection, source, ids, carry, where)
        else:
            _read_people(connection, people, columns.person, carry)
            ids = _one_kind(connection, ids)
        _events_view(connection, source, ids, columns, where)
        return count(connection, request, where)


def _check_settings(codes: CodeList, columns: LongColumns, between: tuple[object, object]) -> None:
    if columns.date is None and any(end is not None for end in between):
        raise SettingsError("a first or last date needs the column of dates; name it")
    without = [code for code in codes.codes if not code.vocabulary]
    if columns.vocabulary is not None and without:
        raise DataError(
            f"{codes.source}: {without[0].place} has no vocabulary, and the events are told apart "
            f"by their column {columns.vocabulary!r}; fill it in"
        )
    if columns.vocabulary is None and len(without) < len(codes.codes):
        raise SettingsError(
            f"{codes.source} says of which vocabulary its codes are; name the column of the events "
            "that says so too, or drop it from the code list"
        )


def _check_format(connection: DuckDBPyConnection, date_format: str | None) -> None:
    duckdb = load_duckdb()
    try:
        connection.execute("SELECT try_strptime('', coalesce($1, '%Y'))", [date_format])
    except duckdb.InvalidInputException:
        raise SettingsError(
            f"the date format is {date_format!r}; write it as '%d/%m/%Y', with %d, %m and %Y for "
            "day, month and year"
        ) from None


def _read_codes(connection: DuckDBPyConnection, codes: CodeList) -> None:
    places = {name: place for place, name in enumerate(codes.conditions)}
    pairs = [
        (places[code.condition], f"{code.vocabulary}:{code.code}" if code.vocabulary else code.code)
        for code in codes.codes
    ]
    set_codes(connection, "VARCHAR", pairs)


def _one_kind(connection: DuckDBPyConnection, ids: str) -> str:
    """Make the ids of people and events comparable; return the SQL of those of the events."""
    kinds = {
        str(connection.sql(f"SELECT {ids} FROM event_source").types[0]),
        str(connection.sql("SELECT person FROM people").types[0]),
    }
    if len(kinds) == 1 or kinds <= WHOLE:
        return ids
    connection.execute("ALTER TABLE people ALTER person TYPE VARCHAR")
    return f"CAST({ids} AS VARCHAR)"


def _carried(source: DuckDBPyRelation, carry: Sequence[str], where: str) -> list[str]:
    return [identifier(*find_column(source, name, where)) for name in carry]


def _read_people(
    connection: DuckDBPyConnection, people: Source, person: str, carry: Sequence[str]
) -> None:
    """Make the table `people` from one of their own."""
    where = name_of(people, "the people")
    source = relation_of(connection, people, "the people")
    source.create_view("people_source")
    ids = identifier(*find_column(source, person, where))
    carried = [
        f"{column} AS carried_{place}"
        for place, column in enumerate(_carried(source, carry, where))
    ]
    made = ", ".join([f"{ids} AS person", "NULL::VARCHAR AS fate", *carried])
    connection.execute(f"CREATE TEMP TABLE people AS SELECT {made} FROM people_source")
    check_ids(connection, "people", where)


def _people_of_events(
    connection: DuckDBPyConnection,
    source: DuckDBPyRelation,
    ids: str,
    carry: Sequence[str],
    where: str,
) -> None:
    """Make the table `people` from the events; what is carried must be one value per person."""
    columns = _carried(source, carry, where)
    carried = [f"min({column}) AS carried_{place}" for place, column in enumerate(columns)]
    made = ", ".join([f"{ids} AS person", "NULL::VARCHAR AS fate", *carried])
    for name, column in zip(carry, columns, strict=True):
        torn = connection.execute(
            f"SELECT {ids} AS person, min({column}), max({column}) FROM event_source "
            f"WHERE {ids} IS NOT NULL GROUP BY ALL HAVING min({column}) <> max({column}) "
            "ORDER BY person LIMIT 1"
        ).fetchone()
        if torn:
            raise DataError(
                f"{where}: the column {name!r} of the person {torn[0]!r} is {torn[1]!r} in one row "
                f"and {torn[2]!r} in another; carry it from a table of people instead"
            )
    connection.execute(
        f"CREATE TEMP TABLE people AS SELECT {made} FROM event_source "
        f"WHERE {ids} IS NOT NULL GROUP BY {ids}"
    )


def _events_view(
    connection: DuckDBPyConnection,
    source: DuckDBPyRelation,
    ids: str,
    columns: LongColumns,
    where: str,
) -> None:
    """Make the view `events` that `silomix.ehr.counting` reads."""
    code = f"CAST({identifier(*find_column(source, columns.code, where))} AS VARCHAR)"
    uncoded = "'no-code'"
    if columns.vocabulary is not None:
        vocabulary = identifier(*find_column(source, columns.vocabulary, where))
        uncoded = f"CASE WHEN {code} IS NULL THEN 'no-code' ELSE 'no-vocabulary' END"
        code = f"CAST({vocabulary} AS VARCHAR) || ':' || {code}"
    given, when = WITHOUT_DATE, WITHOUT_DATE
    params = {}
    if columns.date is not None:
        column, kind = find_column(source, columns.date, where)
        given = identifier(column, kind)
        when = day(given, kind)
        if columns.date_format is not None and not kind.startswith(("DATE", "TIMESTAMP")):
            when = formatted_day(given, "$format")
            params = {"format": columns.date_format}
    query = (
        f"SELECT {ids} AS person, {code} AS code, {uncoded} AS uncoded, {when} AS date, "
        f"({given}) IS NOT NULL AS dated FROM event_source"
    )
    connection.sql(query, params=params).create_view("events")
