"""The OMOP common data model, version 5 → people × conditions.

Tables and columns are those of https://ohdsi.github.io/CommonDataModel/cdm54.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.ehr.asked import make_request
from silomix.ehr.codes import check_whole, read_codes
from silomix.ehr.counting import check_ids, count, set_bounds, set_codes
from silomix.ehr.engine import (
    DEFAULT_ENGINE,
    Engine,
    InDatabase,
    attach,
    file_kind,
    find_column,
    opened,
    relation_of,
    single_row,
)
from silomix.ehr.sql import day, identifier, is_text, whole_number
from silomix.errors import DataError, SettingsError
from silomix.sampler import at_least as whole_at_least

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from silomix.ehr.codes import CodeList, Codes
    from silomix.ehr.record import EhrTable

PERSON = "person_id"
SILOS = {"care_site": "care_site_id", "location": "location_id"}
"""The column of the result by which silos are told apart, and that of the table person."""

NEEDED = ("person", "observation_period", "condition_occurrence")
DEATH, ANCESTORS = "death", "concept_ancestor"
CLINICAL = (*NEEDED, DEATH)
ALL = (*CLINICAL, ANCESTORS)
ANY_AGE = 10_000

UNOBSERVED = (
    "NOT EXISTS (SELECT 1 FROM periods o "
    "WHERE o.person = e.person AND e.date BETWEEN o.first AND o.last)"
)
DEAD = "EXISTS (SELECT 1 FROM deaths d WHERE d.person = e.person AND e.date > d.date)"


def read_omop(
    cdm: str | Path | InDatabase,
    codes: Codes,
    *,
    silo: str | None = None,
    carry: Sequence[str] = (),
    between: tuple[str | date | None, str | date | None] = (None, None),
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
    check_whole(listed)
    limits = _age_limits(ages)
    if silo is not None and silo not in SILOS:
        raise SettingsError(f"silo is {silo!r}; for OMOP it must be one of {', '.join(SILOS)}")
    request = make_request(listed, PERSON, [*([silo] if silo else []), *carry], at_least, out)
    where = f"{cdm.file}, schema {cdm.name}" if isinstance(cdm, InDatabase) else str(cdm)
    below = any(code.include_descendants for code in listed.codes)
    with opened(engine, where) as connection:
        tables = _open_tables(connection, cdm, where, below=below)
        set_bounds(connection, between)
        _read_codes(connection, listed, tables, where)
        damaged = _read_periods(connection, tables["observation_period"])
        _read_people(connection, tables["person"], silo, carry, limits)
        late = {"outside-observation": UNOBSERVED}
        if DEATH in tables:
            _read_deaths(connection, tables[DEATH])
            late["after-death"] = DEAD
        events = tables["condition_occurrence"]
        _read_events(connection, events)
        noticed = {"bad-period": (0, damaged)}
        return count(connection, request, events.where, late=late, noticed=noticed)


@dataclass(frozen=True)
class _Table:
    """One OMOP table: as a relation, as a view in SQL, and as messages call it."""

    relation: DuckDBPyRelation
    view: str
    where: str

    def text(self, column: str) -> str:
        """Return the SQL of a column, with text trimmed and null where it is missing."""
        return identifier(*find_column(self.relation, column, self.where))

    def whole(self, column: str) -> str:
        """Return the SQL of a column of whole numbers; null where it has none."""
        return whole_number(self.text(column))

    def label(self, column: str) -> str:
        """Return the SQL of a column of ids that may be words; 7.0 in text is 7."""
        _, kind = find_column(self.relation, column, self.where)
        text = self.text(column)
        return f"coalesce(CAST({self.whole(column)} AS VARCHAR), {text})" if is_text(kind) else text

    def day(self, column: str) -> str:
        """Return the SQL of a column of dates; null where it has none."""
        _, kind = find_column(self.relation, column, self.where)
        return day(self.text(column), kind)


def _age_limits(ages: tuple[int | None, int | None]) -> tuple[int, int] | None:
    """Return the youngest and the oldest age; None for no limit at all."""
    if ages == (None, None):
        return None
    youngest, oldest = ages
    youngest = 0 if youngest is None else whole_at_least("the youngest age", youngest, 0)
    oldest = ANY_AGE if oldest is None else whole_at_least("the oldest age", oldest, youngest)
    return youngest, oldest


def _open_tables(
    connection: DuckDBPyConnection, cdm: str | Path | InDatabase, where: str, *, below: bool
) -> dict[str, _Table]:
    """Return the tables that are there; refuse if one is missing that is needed."""
    if isinstance(cdm, InDatabase):
        found = _in_database(connection, cdm.file, cdm.name, below=below)
    elif Path(cdm).is_dir():
        found = _in_folder(connection, Path(cdm))
    else:
        found = _in_database(connection, cdm, None, below=below)
    for name in NEEDED:
        if name not in found:
            raise DataError(
                f"{where}: has no table {name!r}, which is needed; found "
                f"{', '.join(sorted(found)) or 'none'} of {', '.join(ALL)}"
            )
    tables = {}
    for name, relation in found.items():
        relation.create_view(f"cdm_{name}")
        tables[name] = _Table(relation, f"cdm_{name}", f"{where}, table {name}")
    return tables


def _in_database(
    connection: DuckDBPyConnection, file: str | Path, schema: str | None, *, below: bool
) -> dict[str, DuckDBPyRelation]:
    """Return the tables of one schema; with `below`, those of the vocabulary from any schema."""
    schemas: dict[str, dict[str, str]] = {}
    for (place, name), sql in attach(connection, file).items():
        schemas.setdefault(place.casefold(), {})[name.casefold()] = sql
    home = _home(schemas, file) if schema is None else schema.casefold()
    if schema is not None and home not in schemas:
        raise DataError(
            f"{file}: has no schema {schema!r} with tables; its schemas are "
            f"{', '.join(sorted(schemas)) or 'none'}"
        )
    own = schemas.get(home, {})
    found = {name: own[name] for name in CLINICAL if name in own}
    if below:
        found |= _ancestors(schemas, home, file)
    return {name: connection.sql(f"SELECT * FROM {sql}") for name, sql in found.items()}


def _home(schemas: Mapping[str, Mapping[str, str]], file: str | Path) -> str:
    """Return the one schema that has clinical tables: those of two are not of the same people."""
    having = sorted(place for place, tables in schemas.items() if tables.keys() & set(CLINICAL))
    if len(having) > 1:
        raise DataError(
            f"{file}: tables of patients are in the schemas {', '.join(having)}; say in which one "
            "to look (InDatabase, or --schema)"
        )
    return having[0] if having else ""


def _ancestors(
    schemas: Mapping[str, Mapping[str, str]], home: str, file: str | Path
) -> dict[str, str]:
    """Return the table of ancestors: vocabularies often have a schema of their own."""
    named = {place: tables[ANCESTORS] for place, tables in schemas.items() if ANCESTORS in tables}
    if home not in named and len(named) > 1:
        raise DataError(
            f"{file}: the table {ANCESTORS!r} is in the schemas {', '.join(sorted(named))}; make a "
            f"view of one of them in the schema {home!r}"
        )
    chosen = named.get(home) or next(iter(named.values()), None)
    return {ANCESTORS: chosen} if chosen else {}


def _in_folder(connection: DuckDBPyConnection, folder: Path) -> dict[str, DuckDBPyRelation]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        kind = file_kind(path)
        name = path.name.lower().removesuffix(kind) if kind else ""
        if name in found:
            raise DataError(f"{folder}: {found[name].name} and {path.name} are one table; keep one")
        if name in ALL:
            found[name] = path
    return {name: relation_of(connection, path, name) for name, path in found.items()}


def _read_codes(
    connection: DuckDBPyConnection, codes: CodeList, tables: Mapping[str, _Table], where: str
) -> None:
    """Make the table `codes`, with the descendants that are asked for."""
    places = {name: place for place, name in enumerate(codes.conditions)}
    set_codes(
        connection, "BIGINT", [(places[code.condition], int(code.code)) for code in codes.codes]
    )
    above = [code for code in codes.codes if code.include_descendants]
    if not above:
        return
    if ANCESTORS not in tables:
        raise DataError(
            f"{where}: has no table {ANCESTORS!r}, and {codes.source} asks for descendants "
            f"({above[0].place}); add the table, or list the descendants"
        )
    table = tables[ANCESTORS]
    connection.execute(
        "INSERT INTO codes SELECT DISTINCT a.condition, d.below FROM "
        "(SELECT unnest($1::INTEGER[]) AS condition, unnest($2::BIGINT[]) AS above) a JOIN "
        f"(SELECT {table.whole('ancestor_concept_id')} AS above, "
        f"{table.whole('descendant_concept_id')} AS below FROM {table.view}) d USING (above) "
        "WHERE d.below IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM codes c WHERE c.condition = a.condition AND c.code = d.below)",
        [[places[code.condition] for code in above], [int(code.code) for code in above]],
    )


def _read_periods(connection: DuckDBPyConnection, table: _Table) -> int:
    """Make the table `periods`; return how many people have one that cannot be used."""
    connection.execute(
        f"CREATE TEMP TABLE all_periods AS SELECT {table.whole(PERSON)} AS person, "
        f"{table.day('observation_period_start_date')} AS first, "
        f"{table.day('observation_period_end_date')} AS last FROM {table.view}"
    )
    usable = "first IS NOT NULL AND last IS NOT NULL AND first <= last"
    connection.execute(f"CREATE TEMP TABLE periods AS SELECT * FROM all_periods WHERE {usable}")
    (damaged,) = single_row(
        connection,
        "SELECT count(*) FROM (SELECT DISTINCT person FROM all_periods "
        f"WHERE ({usable}) IS NOT TRUE)",
    )
    connection.execute("DROP TABLE all_periods")
    return int(damaged)


def _read_people(
    connection: DuckDBPyConnection,
    table: _Table,
    silo: str | None,
    carry: Sequence[str],
    limits: tuple[int, int] | None,
) -> None:
    """Make the table `people`, with the reason for which a person is left out."""
    columns = [*([table.label(SILOS[silo])] if silo else []), *map(table.text, carry)]
    carried = [f"{column} AS carried_{place}" for place, column in enumerate(columns)]
    born = table.whole("year_of_birth") if limits else "NULL::BIGINT"
    made = ", ".join([f"{table.whole(PERSON)} AS person", f"{born} AS born", *carried])
    connection.execute(f"CREATE TEMP TABLE persons AS SELECT {made} FROM {table.view}")
    check_ids(connection, "persons", table.where)
    fates = [
        "WHEN o.person IS NULL THEN 'no-observation'",
        "WHEN o.since IS NULL THEN 'unobserved'",
    ]
    if silo:
        fates.append("WHEN p.carried_0 IS NULL THEN 'no-silo'")
    if limits:
        fates += [
            "WHEN p.born IS NULL THEN 'no-birth-year'",
            "WHEN year(o.since) - p.born NOT BETWEEN $1 AND $2 THEN 'age'",
        ]
    connection.execute(
        f"""
        CREATE TEMP TABLE people AS
        SELECT p.*, CASE {" ".join(fates)} END AS fate
        FROM persons p LEFT JOIN (
            SELECT q.person, min(greatest(q.first, b.first))
                FILTER (q.first <= b.last AND q.last >= b.first) AS since
            FROM periods q CROSS JOIN bounds b GROUP BY q.person
        ) o ON o.person = p.person
        """,
        list(limits or ()),
    )
    connection.execute("DROP TABLE persons")


def _read_deaths(connection: DuckDBPyConnection, table: _Table) -> None:
    connection.execute(
        f"CREATE TEMP TABLE deaths AS SELECT {table.whole(PERSON)} AS person, "
        f"min({table.day('death_date')}) AS date FROM {table.view} GROUP BY ALL"
    )


def _read_events(connection: DuckDBPyConnection, table: _Table) -> None:
    """Make the view `events` that `silomix.ehr.counting` reads."""
    concept = table.whole("condition_concept_id")
    bad = f"{table.text('condition_concept_id')} IS NOT NULL AND {concept} IS NULL"
    when = "condition_start_date"
    connection.execute(
        f"CREATE TEMP VIEW events AS SELECT {table.whole(PERSON)} AS person, "
        f"nullif({concept}, 0) AS code, "
        f"CASE WHEN {bad} THEN 'bad-code' ELSE 'no-code' END AS uncoded, "
        f"{table.day(when)} AS date, ({table.text(when)}) IS NOT NULL AS dated FROM {table.view}"
    )
