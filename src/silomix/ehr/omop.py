"""The OMOP common data model, version 5 → people × conditions.

Tables and columns are those of https://ohdsi.github.io/CommonDataModel/cdm54.html.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.ehr.code_list import read_codes, refuse_codes
from silomix.ehr.counting import Request, count, set_codes, set_people
from silomix.ehr.database import (
    DEFAULT_ENGINE,
    Engine,
    InDatabase,
    file_kind,
    open_source,
    opened,
    tables_in,
)
from silomix.errors import DataError, SettingsError
from silomix.model.sentences import at_least as whole_at_least

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duckdb import DuckDBPyConnection as Connection

    from silomix.ehr.code_list import CodeList, Codes
    from silomix.ehr.counting import Between, EhrTable
    from silomix.ehr.database import Records, Source

PERSON = "person_id"
# The column of the table person that says the silo, by its name in the result.
SILOS = {"care_site": "care_site_id", "location": "location_id"}

CLINICAL = ("person", "observation_period", "condition_occurrence", "death")
ANCESTORS = "concept_ancestor"
CONCEPT = re.compile(r"0*[1-9][0-9]*")
ANY_AGE = 10_000

TESTS = {
    "outside-observation": "NOT EXISTS (SELECT 1 FROM periods o WHERE o.person = e.person "
    "AND o.usable AND e.date BETWEEN o.first AND o.last)",
    "after-death": "e.date > (SELECT min(d.date) FROM deaths d WHERE d.person = e.person)",
}
UNUSABLE = "UNION ALL SELECT 'bad-period', person, 0 FROM periods WHERE NOT usable"


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
    carry : further columns of the table person that go along, such as gender_concept_id.
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
    wrong = [c for c in listed.codes if not CONCEPT.fullmatch(c.code) or int(c.code) >= 2**63]
    refuse_codes(listed, wrong, "is not a concept id, which is a whole number above 0")
    youngest = whole_at_least("the youngest age", ages[0] or 0, 0)
    oldest = whole_at_least("the oldest age", ANY_AGE if ages[1] is None else ages[1], youngest)
    if silo is not None and silo not in SILOS:
        raise SettingsError(f"silo is {silo!r}; for OMOP it must be one of {', '.join(SILOS)}")
    columns = [PERSON, *([silo] if silo else []), *carry]
    request = Request(listed, columns, between, at_least, out)
    where = f"{cdm.file}, schema {cdm.name}" if isinstance(cdm, InDatabase) else str(cdm)
    with opened(engine, where) as connection:
        tables = _open_tables(connection, cdm, where, listed)
        _set_codes(connection, listed, tables.get(ANCESTORS))
        _read_observation(connection, tables)
        limits = None if ages == (None, None) else (youngest, oldest)
        _read_people(connection, tables["person"], request, silo, limits)
        events = tables["condition_occurrence"]
        concept, when = "condition_concept_id", "condition_start_date"
        cells = {
            "person": events.whole(PERSON),
            "code": f"nullif({events.whole(concept)}, 0)",
            "uncoded": f"CASE WHEN {events.whole(concept)} = 0 OR ({events.cell(concept)}) IS NULL "
            "THEN 'no-code' ELSE 'bad-code' END",
            "date": events.day(when),
            "dated": f"({events.cell(when)}) IS NOT NULL",
        }
        connection.execute(f"CREATE TEMP VIEW events AS {events.select(cells)}")
        return count(connection, request, events.where, TESTS, UNUSABLE)


def _open_tables(
    connection: Connection, cdm: str | Path | InDatabase, where: str, codes: CodeList
) -> dict[str, Records]:
    """Return the tables that are there; refuse if one is missing that is needed."""
    below = any(code.include_descendants for code in codes.codes)
    wanted = [*CLINICAL, ANCESTORS] if below else list(CLINICAL)
    file, schema = (cdm.file, cdm.name) if isinstance(cdm, InDatabase) else (cdm, None)
    found: Mapping[str, Source] = (
        _in_folder(Path(file), wanted)
        if Path(file).is_dir()
        else _in_database(connection, file, schema, wanted)
    )
    for name in wanted:
        if name not in found and name != "death":
            why = "include_descendants needs it" if name == ANCESTORS else "which is needed"
            raise DataError(f"{where}: has no table {name!r}, {why}; found {', '.join(found)}")
    return {name: open_source(connection, source, name) for name, source in found.items()}


def _in_folder(folder: Path, wanted: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(filter(file_kind, folder.iterdir())):
        name = path.name.lower().removesuffix(str(file_kind(path)))
        if name in found:
            raise DataError(f"{folder}: {found[name].name} and {path.name} are one table; keep one")
        if name in wanted:
            found[name] = path
    return found


def _in_database(
    connection: Connection, file: str | Path, schema: str | None, wanted: Sequence[str]
) -> dict[str, InDatabase]:
    """Return the tables of one schema: clinical tables of two are not of the same people."""
    places = [name.casefold().rpartition(".")[::2] for name in tables_in(connection, file)]
    homes = sorted({place for place, name in places if name in CLINICAL})
    if schema is None and len(homes) > 1:
        raise DataError(
            f"{file}: tables of patients are in the schemas {', '.join(homes)}; say in which one "
            "to look (InDatabase, or --schema)"
        )
    home = schema.casefold() if schema else "".join(homes)
    found = {name: InDatabase(file, f"{home}.{name}") for name in wanted if (home, name) in places}
    # vocabularies often have a schema of their own
    if ANCESTORS in wanted and any(name == ANCESTORS for _, name in places):
        found.setdefault(ANCESTORS, InDatabase(file, ANCESTORS))
    return found


def _set_codes(connection: Connection, codes: CodeList, ancestors: Records | None) -> None:
    """Make the table `codes`, with the descendants that are asked for."""
    descendants = ""
    if ancestors:
        above, code = (ancestors.whole(f"{end}_concept_id") for end in ("ancestor", "descendant"))
        descendants = (
            "UNION SELECT condition, d.code FROM given "
            f"JOIN ({ancestors.select({'above': above, 'code': code})}) d ON d.above = given.code "
            "WHERE given.below AND d.code IS NOT NULL"
        )
    set_codes(connection, codes, "BIGINT", [code.code for code in codes.codes], descendants)


def _read_observation(connection: Connection, tables: Mapping[str, Records]) -> None:
    """Make the tables `periods`, in which a person was observed, and `deaths`."""
    table = tables["observation_period"]
    first, last = (table.day(f"observation_period_{end}_date") for end in ("start", "end"))
    cells = {"person": table.whole(PERSON), "first": first, "last": last}
    connection.execute(
        "CREATE TEMP TABLE periods AS SELECT *, coalesce(first <= last, FALSE) AS usable "
        f"FROM ({table.select(cells)})"
    )
    connection.execute("CREATE TEMP TABLE deaths (person BIGINT, date DATE)")
    if "death" in tables:
        table = tables["death"]
        cells = {"person": table.whole(PERSON), "date": table.day("death_date")}
        connection.execute(f"INSERT INTO deaths {table.select(cells)}")


def _read_people(
    connection: Connection,
    table: Records,
    request: Request,
    silo: str | None,
    limits: tuple[int, int] | None,
) -> None:
    """Make the table `people`, with the reason for which a person is left out."""
    columns = [table.cell(name) for name in request.columns[1 + bool(silo) :]]
    reasons = "WHEN o.person IS NULL THEN 'no-observation' WHEN o.since IS NULL THEN 'unobserved'"
    if silo:
        columns.insert(0, table.label(SILOS[silo]))
        reasons += " WHEN p.carried_0 IS NULL THEN 'no-silo'"
    cells = {"person": table.whole(PERSON)} | {f"carried_{n}": c for n, c in enumerate(columns)}
    if limits:
        cells["born"] = table.whole("year_of_birth")
        reasons += (
            " WHEN p.born IS NULL THEN 'no-birth-year' "
            f"WHEN year(o.since) - p.born NOT BETWEEN {limits[0]} AND {limits[1]} THEN 'age'"
        )
    first, last = f"DATE '{request.first}'", f"DATE '{request.last}'"
    query = (
        f"SELECT p.*, CASE {reasons} END AS reason FROM ({table.select(cells)}) p LEFT JOIN ("
        f"SELECT person, min(greatest(first, {first})) FILTER (first <= {last} AND last >= {first})"
        " AS since FROM periods WHERE usable GROUP BY person) o ON o.person = p.person"
    )
    set_people(connection, query, table.where)
