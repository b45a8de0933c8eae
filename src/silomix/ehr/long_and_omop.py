"""Read health records: a long table of events, or OMOP tables.

Tables and columns of OMOP are those of https://ohdsi.github.io/CommonDataModel/cdm54.html.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.ehr.code_list import CodeList, Codes, read_codes, refuse_codes
from silomix.ehr.counting import Between, EhrTable, Request, count, set_codes, set_people
from silomix.ehr.database import (
    DEFAULT_ENGINE,
    Engine,
    InDatabase,
    file_kind,
    load_duckdb,
    name_of,
    open_source,
    opened,
    tables_in,
)
from silomix.errors import DataError, SettingsError
from silomix.model import sentences

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from duckdb import DuckDBPyConnection as Connection

    from silomix.ehr.database import Records, Source


WITHOUT_DATE = "DATE '2000-01-01'"

PERSON = "person_id"
# Column of the table person with the silo, by its name in the result.
SILOS = {"care_site": "care_site_id", "location": "location_id"}
ANCESTORS = "concept_ancestor"
# The columns that are read of each table; only `death` may be missing, and `concept_ancestor` where
# no code asks for its descendants.
CLINICAL = {
    "person": [PERSON],
    "observation_period": [PERSON, "observation_period_start_date", "observation_period_end_date"],
    "condition_occurrence": [PERSON, "condition_concept_id", "condition_start_date"],
    "death": [PERSON, "death_date"],
}
VOCABULARY = {ANCESTORS: ["ancestor_concept_id", "descendant_concept_id"]}
CONCEPT = re.compile(r"0*[1-9][0-9]*")
ANY_AGE = 10_000

DESCENDANTS = f"""
UNION SELECT condition, whole(descendant_concept_id) FROM given
JOIN source_{ANCESTORS} ON whole(ancestor_concept_id) = given.code
WHERE given.below AND whole(descendant_concept_id) IS NOT NULL
"""
PERIODS = """
CREATE TEMP TABLE periods AS SELECT *, coalesce(first <= last, FALSE) AS usable FROM (
    SELECT whole(person_id) AS person, day_of(observation_period_start_date) AS first,
        day_of(observation_period_end_date) AS last FROM source_observation_period
)
"""
OMOP_EVENTS = """
CREATE TEMP VIEW events AS SELECT whole(person_id) AS person,
    nullif(whole(condition_concept_id), 0) AS code,
    CASE WHEN whole(condition_concept_id) = 0 OR condition_concept_id IS NULL
        THEN 'no-code' ELSE 'bad-code' END AS uncoded,
    day_of(condition_start_date) AS date, condition_start_date IS NOT NULL AS dated
FROM source_condition_occurrence
"""
# A person's first observed day that counts is `since`.
OMOP_PEOPLE = """
SELECT p.*, CASE {reasons} END AS reason FROM (SELECT {cells} FROM source_person) p LEFT JOIN (
    SELECT person, min(greatest(first, DATE '{first}'))
        FILTER (first <= DATE '{last}' AND last >= DATE '{first}') AS since
    FROM periods WHERE usable GROUP BY person
) o ON o.person = p.person
"""
OBSERVED = """EXISTS (SELECT 1 FROM periods o
    WHERE o.person = e.person AND o.usable AND e.date BETWEEN o.first AND o.last)"""
DEAD = """e.date > (
    SELECT min(day_of(death_date)) FROM source_death WHERE whole(person_id) = e.person)"""
UNUSABLE = "UNION ALL SELECT 'bad-period', person, 0 FROM periods WHERE NOT usable"


@dataclass(frozen=True)
class LongColumns:
    """Names of the columns of a long table.

    Attributes
    ----------
    person : the person's id; also in the table of people, and in the result.
    code : the recorded code.
    date : the date; None if the table has none.
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
        kept, with or without events. By default, everybody with an event is kept.
    columns : the names of the columns.
    carry : columns to keep, such as the hospital: of `people`, or without it of `events`,
        where they must then be constant in all rows of a person.
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
        try:
            connection.execute("SELECT try_strptime('', coalesce($1, '%Y'))", [columns.date_format])
        except load_duckdb().InvalidInputException:
            why = "write %d for the day, %m the month, %Y the year"
            raise SettingsError(f"the date format is {columns.date_format!r}; {why}") from None
        spelled = [f"{c.vocabulary}:{c.code}" if c.vocabulary else c.code for c in listed.codes]
        set_codes(connection, listed, "VARCHAR", spelled)
        source = open_source(connection, events, "events")
        person, kind = source.find(columns.person)
        if people is None:
            _people_of_events(connection, source, person, carry)
        else:
            table = open_source(connection, people, "people")
            people_id, people_kind = table.find(columns.person)
            if kind != people_kind and not ("INT" in kind and "INT" in people_kind):
                # ids of different types are compared as text
                person, people_id = f"{person}::VARCHAR", f"{people_id}::VARCHAR"
            cells = [f"{people_id} AS person", "NULL::VARCHAR AS reason"]
            cells += [f"{table.find(name)[0]} AS carried_{n}" for n, name in enumerate(carry)]
            set_people(connection, f"SELECT {', '.join(cells)} FROM {table.view}", table.where)
        _set_events(connection, source, person, columns)
        return count(connection, request, where, tests={})


def _check_settings(codes: CodeList, columns: LongColumns, between: tuple[object, object]) -> None:
    parents = [code for code in codes.codes if code.include_descendants]
    refuse_codes(codes, parents, "has include_descendants, which is for OMOP; list those below it")
    if columns.date is None and between != (None, None):
        raise SettingsError("a first or last date needs the column of dates; name it")
    without = [code for code in codes.codes if not code.vocabulary]
    if columns.vocabulary is not None:
        refuse_codes(codes, without, "has no vocabulary, as the events have; fill it in")
    elif len(without) < len(codes.codes):
        raise SettingsError(f"{codes.source} names vocabularies; name their column, or drop them")


def _people_of_events(
    connection: Connection, source: Records, person: str, carry: Sequence[str]
) -> None:
    """Make the table `people` from the events; carried columns have one value per person."""
    cells = f"{person} AS person, NULL::VARCHAR AS reason"
    for n, name in enumerate(carry):
        column, _ = source.find(name)
        cells += f", min({column}) AS carried_{n}, max({column}) AS largest_{n}"
    query = f"SELECT {cells} FROM {source.view} WHERE {person} IS NOT NULL GROUP BY {person}"
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
    plain = code = f"{source.find(columns.code)[0]}::VARCHAR"
    if columns.vocabulary is not None:
        code = f"{source.find(columns.vocabulary)[0]} || ':' || {plain}"
    day, dated = WITHOUT_DATE, "TRUE"
    if columns.date is not None:
        cell, kind = source.find(columns.date)
        day, dated = f"day_of({cell})", f"{cell} IS NOT NULL"
        if columns.date_format is not None and not kind.startswith(("DATE", "TIMESTAMP")):
            escaped = columns.date_format.replace("'", "''")
            parsed = f"try_strptime({cell}::VARCHAR, '{escaped}')"
            # DuckDB's %Y takes a year of two digits for one of the first century
            day = f"CASE WHEN year({parsed}) >= 1000 THEN CAST({parsed} AS DATE) END"
    connection.execute(
        f"CREATE TEMP VIEW events AS SELECT {person} AS person, {code} AS code, {day} AS date, "
        f"{dated} AS dated, if({plain} IS NULL, 'no-code', 'no-vocabulary') AS uncoded "
        f"FROM {source.view}"
    )


def read_omop(
    cdm: str | Path | InDatabase,
    codes: Codes,
    *,
    silo: str | None = None,
    carry: Sequence[str] = (),
    between: Between = (None, None),
    ages: tuple[int | None, int | None] = (None, None),
    at_least: int = 0,
    out: str | Path | None = None,
    engine: Engine = DEFAULT_ENGINE,
) -> EhrTable:
    r"""Read OMOP tables into one row per person and one 0/1 column per condition.

    Needs the tables person, observation_period and condition_occurrence; uses death, if it is
    there, and concept_ancestor, if the code list asks for descendants. Everybody in person who
    was observed is kept, with or without events.

    Parameters
    ----------
    cdm : a DuckDB file, an `InDatabase` that names the schema in it (needed if several have such
        tables; only concept_ancestor may be in another), or a folder of CSV, TSV or Parquet files
        named after the tables.
    codes : a code list of concept ids: the path of a CSV file, a mapping, or a `CodeList`. Its
        vocabularies are for people: an id is enough.
    silo : "care_site" or "location" for a column of that name with the person's care_site_id or
        location_id, which may be text; people without one are dropped.
    carry : further columns of the table person to keep, such as gender_concept_id.
    between : the first and the last date that count; None for no limit. People who were not
        observed between them are dropped.
    ages : the youngest and the oldest age to keep, in the year of the person's first observed day
        that counts, by year of birth alone; None for no limit.
    at_least : conditions a person must have to be kept.
    out : a Parquet file to write; the table is then never in memory.
    engine : how much memory to use, and where the rest goes.

    Returns
    -------
    EhrTable
        The table, in the order of the person ids, and an account of what was dropped.

    Examples
    --------
    >>> from pathlib import Path
    >>> from silomix import ehr
    >>> tables = {
    ...     "person": "person_id,year_of_birth,care_site_id 1,1931,7 2,1938,8 3,1970,7",
    ...     "observation_period": "person_id,observation_period_start_date,"
    ...     "observation_period_end_date 1,2015-01-01,2020-12-31 2,2018-01-01,2020-12-31 "
    ...     "3,2015-01-01,2020-12-31",
    ...     "condition_occurrence": "person_id,condition_concept_id,condition_start_date "
    ...     "1,317009,2016-03-01 2,317009,2016-03-01 2,0,2019-03-01",
    ... }
    >>> Path("cdm").mkdir()
    >>> for name, rows in tables.items():
    ...     _ = Path(f"cdm/{name}.csv").write_text("\n".join(rows.split()), encoding="utf-8")
    >>> found = ehr.read_omop("cdm", {"asthma": [317009]}, silo="care_site", ages=(80, None))
    >>> print(found.table)
       person_id care_site  asthma
    0          1         7       1
    1          2         8       0
    >>> print(found.dropped[["reason", "events", "people"]])
                                         reason  events  people
    0    the person's age is outside the limits       0       1
    1                     no code, or concept 0       1       1
    2  outside the person's observation periods       1       1
    """
    listed = read_codes(codes)
    invalid = [c for c in listed.codes if not CONCEPT.fullmatch(c.code) or int(c.code) >= 2**63]
    refuse_codes(listed, invalid, "is not a concept id, which is a whole number above 0")
    youngest = sentences.at_least("the youngest age", ages[0] or 0, 0)
    oldest = sentences.at_least("the oldest age", ANY_AGE if ages[1] is None else ages[1], youngest)
    if silo is not None:
        sentences.one_of("silo", silo, SILOS, " for OMOP")
    request = Request(listed, [PERSON, *([silo] if silo else []), *carry], between, at_least, out)
    schema = cdm if isinstance(cdm, InDatabase) else InDatabase(cdm, "")
    where = f"{schema.file}, schema {schema.name}" if schema.name else str(schema.file)
    with opened(engine, where) as connection:
        tables = _open_tables(connection, schema, where, listed)
        more = DESCENDANTS if ANCESTORS in tables else ""
        set_codes(connection, listed, "BIGINT", [code.code for code in listed.codes], more)
        connection.execute(PERIODS)
        tests = {"outside-observation": f"NOT {OBSERVED}"}
        if "death" in tables:
            tests["after-death"] = DEAD
        limits = None if ages == (None, None) else (youngest, oldest)
        _read_people(connection, tables["person"], request, silo, limits)
        connection.execute(OMOP_EVENTS)
        return count(connection, request, tables["condition_occurrence"].where, tests, UNUSABLE)


def _open_tables(
    connection: Connection, cdm: InDatabase, where: str, codes: CodeList
) -> dict[str, Records]:
    """Open the tables; refuse if a required one is missing."""
    below = any(code.include_descendants for code in codes.codes)
    needed = CLINICAL | VOCABULARY if below else CLINICAL
    folder, tables = Path(cdm.file), {}
    items = _in_folder(folder, needed) if folder.is_dir() else _in_database(connection, cdm, needed)
    for name, columns in needed.items():
        if name in items:
            tables[name] = open_source(connection, items[name], name)
            for column in columns:
                tables[name].find(column)
        elif name != "death":
            why = "include_descendants needs it" if name == ANCESTORS else "which is needed"
            raise DataError(f"{where}: has no table {name!r}, {why}; found {', '.join(items)}")
    return tables


def _in_folder(folder: Path, needed: Collection[str]) -> Mapping[str, Source]:
    paths: dict[str, Path] = {}
    for path in sorted(filter(file_kind, folder.iterdir())):
        name = path.name.lower().removesuffix(str(file_kind(path)))
        if name in paths:
            raise DataError(f"{folder}: {paths[name].name} and {path.name} are one table; keep one")
        if name in needed:
            paths[name] = path
    return paths


def _in_database(
    connection: Connection, cdm: InDatabase, needed: Collection[str]
) -> Mapping[str, Source]:
    """Tables of one schema, since clinical tables of two describe different people."""
    file = cdm.file
    places = [name.casefold().rpartition(".")[::2] for name in tables_in(connection, file)]
    homes = sorted({place for place, name in places if name in CLINICAL})
    if not cdm.name and len(homes) > 1:
        raise DataError(
            f"{file}: tables of patients are in the schemas {', '.join(homes)}; say which one "
            "to read (InDatabase, or --schema)"
        )
    home = cdm.name.casefold() or "".join(homes)
    items = {name: InDatabase(file, f"{home}.{name}") for name in needed if (home, name) in places}
    # vocabularies often have a schema of their own
    if ANCESTORS in needed and any(name == ANCESTORS for _, name in places):
        items.setdefault(ANCESTORS, InDatabase(file, ANCESTORS))
    return items


def _read_people(
    connection: Connection,
    table: Records,
    request: Request,
    silo: str | None,
    limits: tuple[int, int] | None,
) -> None:
    """Make the table `people`, with the reason for dropping a person."""
    columns = [table.find(name)[0] for name in request.columns[1 + bool(silo) :]]
    reasons = "WHEN o.person IS NULL THEN 'no-observation' WHEN o.since IS NULL THEN 'unobserved'"
    if silo:
        column, kind = table.find(SILOS[silo])
        # ids may be words; 7.0 in text is 7
        number = f"coalesce(whole({column})::VARCHAR, {column})"
        columns.insert(0, number if kind == "VARCHAR" else column)
        reasons += " WHEN p.carried_0 IS NULL THEN 'no-silo'"
    cells = [f"whole({PERSON}) AS person"]
    cells += [f"{column} AS carried_{n}" for n, column in enumerate(columns)]
    if limits:
        cells.append(f"whole({table.find('year_of_birth')[0]}) AS born")
        reasons += (
            " WHEN p.born IS NULL THEN 'no-birth-year' "
            f"WHEN year(o.since) - p.born NOT BETWEEN {limits[0]} AND {limits[1]} THEN 'age'"
        )
    parts = {"reasons": reasons, "cells": ", ".join(cells)}
    query = OMOP_PEOPLE.format(**parts, first=request.first, last=request.last)
    set_people(connection, query, table.where)
