"""A long table of coded events → people × conditions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from silomix.ehr.code_list import read_codes, refuse_codes
from silomix.ehr.counting import Request, count, set_codes, set_people
from silomix.ehr.database import DEFAULT_ENGINE, Engine, load_duckdb, name_of, open_source, opened
from silomix.errors import DataError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from duckdb import DuckDBPyConnection as Connection

    from silomix.ehr.code_list import CodeList, Codes
    from silomix.ehr.counting import Between, EhrTable
    from silomix.ehr.database import Records, Source

WITHOUT_DATE = "DATE '2000-01-01'"


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
    between: Between = (None, None),
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
    _check_settings(listed, columns, between)
    request = Request(listed, [columns.person, *carry], between, at_least, out)
    where = name_of(events, "events")
    with opened(engine, where) as connection:
        _check_format(connection, columns.date_format)
        spelled = [f"{c.vocabulary}:{c.code}" if c.vocabulary else c.code for c in listed.codes]
        set_codes(connection, listed, "VARCHAR", spelled)
        source = open_source(connection, events, "events")
        person = source.cell(columns.person)
        if people is None:
            _people_of_events(connection, source, person, carry)
        else:
            table = open_source(connection, people, "people")
            cells = {f"carried_{n}": table.cell(name) for n, name in enumerate(carry)}
            cells |= {"person": table.cell(columns.person), "reason": "NULL::VARCHAR"}
            set_people(connection, table.select(cells), table.where)
            person = _one_kind(connection, source, person)
        _set_events(connection, source, person, columns)
        return count(connection, request, where, tests={})


def _check_settings(codes: CodeList, columns: LongColumns, between: tuple[object, object]) -> None:
    below = [code for code in codes.codes if code.include_descendants]
    refuse_codes(codes, below, "has include_descendants, which is for OMOP; list those below it")
    if columns.date is None and between != (None, None):
        raise SettingsError("a first or last date needs the column of dates; name it")
    without = [code for code in codes.codes if not code.vocabulary]
    if columns.vocabulary is not None:
        refuse_codes(codes, without, "has no vocabulary, as the events have; fill it in")
    elif len(without) < len(codes.codes):
        raise SettingsError(
            f"{codes.source} names vocabularies; name the column of them too, or drop them"
        )


def _check_format(connection: Connection, date_format: str | None) -> None:
    try:
        connection.execute("SELECT try_strptime('', coalesce($1, '%Y'))", [date_format])
    except load_duckdb().InvalidInputException:
        raise SettingsError(
            f"the date format is {date_format!r}; write it as '%d/%m/%Y' for day, month and year"
        ) from None


def _one_kind(connection: Connection, source: Records, person: str) -> str:
    """Make the ids of people and events comparable; return the SQL of those of the events."""
    kinds = {
        str(connection.sql(f"SELECT {person} FROM {source.view}").types[0]),
        str(connection.sql("SELECT person FROM people").types[0]),
    }
    if len(kinds) == 1 or all("INT" in kind for kind in kinds):
        return person
    connection.execute("ALTER TABLE people ALTER person TYPE VARCHAR")
    return f"CAST({person} AS VARCHAR)"


def _people_of_events(
    connection: Connection, source: Records, person: str, carry: Sequence[str]
) -> None:
    """Make the table `people` from the events; what is carried must be one value per person."""
    cells = {"person": person, "reason": "NULL::VARCHAR"}
    for n, name in enumerate(carry):
        cells[f"carried_{n}"] = f"min({source.cell(name)})"
        cells[f"largest_{n}"] = f"max({source.cell(name)})"
    query = f"{source.select(cells)} WHERE {person} IS NOT NULL GROUP BY {person}"
    set_people(connection, query, source.where)
    for n, name in enumerate(carry):
        torn = connection.execute(
            f"SELECT person, carried_{n}, largest_{n} FROM people "
            f"WHERE carried_{n} <> largest_{n} ORDER BY person LIMIT 1"
        ).fetchone()
        if torn:
            raise DataError(
                f"{source.where}: the column {name!r} of the person {torn[0]!r} is {torn[1]!r} in "
                f"one row and {torn[2]!r} in another; carry it from a table of people instead"
            )


def _set_events(connection: Connection, source: Records, person: str, columns: LongColumns) -> None:
    """Make the view `events` that `silomix.ehr.counting` reads."""
    code = f"CAST({source.cell(columns.code)} AS VARCHAR)"
    cells = {"person": person, "code": code, "date": WITHOUT_DATE, "dated": "TRUE"}
    cells["uncoded"] = f"CASE WHEN {code} IS NULL THEN 'no-code' ELSE 'no-vocabulary' END"
    if columns.vocabulary is not None:
        cells["code"] = f"{source.cell(columns.vocabulary)} || ':' || {code}"
    if columns.date is not None:
        cells["date"] = source.day(columns.date, columns.date_format)
        cells["dated"] = f"({source.cell(columns.date)}) IS NOT NULL"
    connection.execute(f"CREATE TEMP VIEW events AS {source.select(cells)}")
