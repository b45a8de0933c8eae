"""Events, people and codes → people × conditions, with an account of every event, in SQL.

The tables it works on are made by `silomix.ehr.long` and `silomix.ehr.omop`:

events : person, code, uncoded (a key of `REASONS` where the code is null), date, dated (whether
    the source says a date at all)
people : person, fate (a key of `REASONS`, or null to stay), carried_0, carried_1, ...

Names of columns are quoted; values reach the database as parameters, never as text.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING

import pandas as pd

from silomix.atomic import whole_file
from silomix.ehr.engine import load_duckdb, single_row
from silomix.ehr.record import OF_PEOPLE, REASONS, EhrTable
from silomix.ehr.sql import quote
from silomix.errors import DataError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from duckdb import DuckDBPyConnection

MOST_UNLISTED = 10
KEPT = "kept"
UNCODED = ("no-code", "bad-code", "no-vocabulary")

CLASSIFIED = """
SELECT e.person, e.code, e.date, CASE
    WHEN e.person IS NULL THEN 'no-person'
    WHEN p.person IS NULL THEN 'unknown-person'
    WHEN p.fate IS NOT NULL THEN p.fate
    WHEN e.code IS NULL THEN e.uncoded
    WHEN c.code IS NULL THEN 'unlisted'
    WHEN e.date IS NULL AND e.dated THEN 'bad-date'
    WHEN e.date IS NULL THEN 'no-date'
    WHEN e.date NOT BETWEEN bounds.first AND bounds.last THEN 'outside-window'
END AS fate
FROM events e CROSS JOIN bounds
LEFT JOIN people p ON p.person = e.person
LEFT JOIN (SELECT DISTINCT code FROM codes) c ON c.code = e.code
"""

# two steps, since a grouping can go to disk and a count of distinct people cannot
FATES = """
SELECT coalesce(fate, 'kept'), sum(events), count(person) FROM (
    SELECT fate, person, sum(times) AS events FROM {table} GROUP BY fate, person
) GROUP BY fate
"""


@dataclass(frozen=True)
class Request:
    """What is asked of the records, whatever form they have.

    Attributes
    ----------
    conditions : names, in the order of the columns.
    person : the name of the column of ids.
    carried : the names of the columns that go along, in the order of carried_0, carried_1, ...
    at_least : conditions a person must have.
    out : the Parquet file to write, or None for a frame.
    """

    conditions: tuple[str, ...]
    person: str
    carried: tuple[str, ...]
    at_least: int
    out: Path | None


def set_bounds(
    connection: DuckDBPyConnection, between: tuple[str | date | None, str | date | None]
) -> None:
    """Make the table of one row `bounds`: the first and the last day that count."""
    first, last = (_as_day(end, word) for end, word in zip(between, ("first", "last"), strict=True))
    if first and last and first > last:
        raise SettingsError(
            f"the first date {first} is after the last date {last}; exchange or correct them"
        )
    connection.execute(
        "CREATE TEMP TABLE bounds AS SELECT "
        "coalesce($1::DATE, DATE '-infinity') AS first, "
        "coalesce($2::DATE, DATE 'infinity') AS last",
        [first, last],
    )


def set_codes(
    connection: DuckDBPyConnection, kind: str, pairs: Sequence[tuple[int, str | int]]
) -> None:
    """Make the table `codes` from pairs of a condition's place and a code.

    Parameters
    ----------
    kind : the SQL type of the codes: VARCHAR or BIGINT.
    """
    connection.execute(
        "CREATE TEMP TABLE codes AS "
        f"SELECT DISTINCT unnest($1::INTEGER[]) AS condition, unnest($2::{kind}[]) AS code",
        [[place for place, _ in pairs], [code for _, code in pairs]],
    )


def check_ids(connection: DuckDBPyConnection, table: str, where: str) -> None:
    """Refuse a table of people in which somebody has no id, or two rows."""
    rows, nameless = single_row(
        connection, f"SELECT count(*), count(*) FILTER (person IS NULL) FROM {table}"
    )
    if rows == 0:
        raise DataError(f"{where}: has no row; give a table with the people to keep")
    if nameless:
        raise DataError(
            f"{where}: {nameless:,} of {rows:,} rows have no person id that can be read; fill it "
            "in, or drop them"
        )
    again = connection.execute(
        f"SELECT person, count(*) FROM {table} GROUP BY person HAVING count(*) > 1 "
        "ORDER BY person LIMIT 1"
    ).fetchone()
    if again:
        raise DataError(
            f"{where}: the person {again[0]!r} has {again[1]} rows; keep one row for each person"
        )


def count(
    connection: DuckDBPyConnection,
    request: Request,
    where: str,
    *,
    late: Mapping[str, str] | None = None,
    noticed: Mapping[str, tuple[int, int]] | None = None,
) -> EhrTable:
    """Count every event once, and give each person a row.

    Parameters
    ----------
    where : what messages call the events.
    late : SQL of further reasons to drop an event `e` that has passed all others, by key.
    noticed : events and people of reasons that were counted before, by key.
    """
    connection.execute(f"CREATE TEMP VIEW classified AS {CLASSIFIED}")
    connection.execute(
        "CREATE TEMP TABLE tally AS "
        "SELECT fate, person, count(*) AS times FROM classified GROUP BY fate, person"
    )
    dropped = _fates(connection, "tally")
    events_read = sum(events for events, _ in dropped.values())
    passed, _ = dropped.pop(KEPT, (0, 0))
    unlisted = _unlisted(connection)
    _check_meeting(dropped, passed, events_read, unlisted, where)
    _judge(connection, late or {})
    dropped |= dict(noticed or {})
    dropped |= _fates(connection, "judged")
    dropped["duplicate"] = single_row(
        connection,
        "SELECT coalesce(sum(again), 0), count(person) FROM ("
        "SELECT person, sum(times - 1) AS again FROM judged "
        "WHERE fate IS NULL AND times > 1 GROUP BY person)",
    )
    _leave_out(connection, request.at_least)
    dropped |= _fates_of_people(connection, dropped)
    people, zeros, events_kept = single_row(
        connection,
        "SELECT count(*), count(*) FILTER (conditions = 0), coalesce(sum(events), 0) "
        "FROM fates WHERE fate IS NULL",
    )
    return EhrTable(
        table=_finish(connection, request),
        file=request.out,
        people=people,
        zeros=zeros,
        events_read=events_read,
        events_kept=int(events_kept),
        conditions=_conditions(connection, request.conditions, people),
        dropped=_dropped_frame(dropped),
        unlisted=unlisted,
    )


def _as_day(value: str | date | None, word: str) -> date | None:
    if isinstance(value, datetime):
        return value.date()
    if value is None or isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise SettingsError(
            f"the {word} date is {value!r}; write it as YYYY-MM-DD, such as 2020-12-31"
        ) from None


def _fates(connection: DuckDBPyConnection, table: str) -> dict[str, tuple[int, int]]:
    """Return events and people by fate; `KEPT` is for what goes on."""
    rows = connection.execute(FATES.format(table=table)).fetchall()
    return {fate: (int(events), people) for fate, events, people in rows}


def _unlisted(connection: DuckDBPyConnection) -> pd.DataFrame:
    rows = connection.execute(
        "SELECT CAST(code AS VARCHAR), count(*) AS events FROM classified "
        "WHERE fate = 'unlisted' GROUP BY code ORDER BY events DESC, code LIMIT $1",
        [MOST_UNLISTED],
    ).fetchall()
    return pd.DataFrame(rows, columns=["code", "events"])


def _check_meeting(
    dropped: dict[str, tuple[int, int]],
    passed: int,
    events: int,
    unlisted: pd.DataFrame,
    where: str,
) -> None:
    """Refuse records that share no person, no code or no date with what was asked for.

    One spelling or type is then wrong throughout, and a table of zeros would hide it.
    """
    lost = Counter({key: count for key, (count, _) in dropped.items()})
    if not events:
        raise DataError(f"{where}: has no event; check that it is the right table")
    if lost["no-person"] == events:
        raise DataError(f"{where}: no event has a person id; check the column of person ids")
    if lost["no-person"] + lost["unknown-person"] == events:
        raise DataError(
            f"{where}: no event is of a person in the table of people; check that both have the "
            "same kind of person id"
        )
    coded = passed + lost["no-date"] + lost["bad-date"] + lost["outside-window"]
    if not coded:
        _check_codes(lost, unlisted, where)
    elif not passed:
        _refuse_dates(lost, coded, where)


def _check_codes(lost: Counter[str], unlisted: pd.DataFrame, where: str) -> None:
    """Refuse events none of which has a code of the list, unless their people are left out."""
    if lost["unlisted"]:
        frequent = ", ".join(map(repr, unlisted["code"]))
        raise DataError(
            f"{where}: no event has a code of the list; check the column of codes and how they are "
            f"spelled: the most frequent ones are {frequent}"
        )
    if any(lost[key] for key in UNCODED):
        raise DataError(
            f"{where}: no event has a code that can be used; check the column of codes, and that "
            "of vocabularies if there is one"
        )


def _refuse_dates(lost: Counter[str], coded: int, where: str) -> None:
    if lost["bad-date"] == coded:
        raise DataError(
            f"{where}: none of the {coded:,} dates of listed events can be read; write dates as "
            "YYYY-MM-DD, or say their format, such as {date_format}",
            date_format="%d/%m/%Y",
        )
    raise DataError(
        f"{where}: none of the {coded:,} listed events counts: {lost['no-date']:,} without a date, "
        f"{lost['bad-date']:,} with one that cannot be read, {lost['outside-window']:,} before the "
        "first or after the last date; check the column of dates, and the first and the last date"
    )


def _judge(connection: DuckDBPyConnection, late: Mapping[str, str]) -> None:
    """Make the table `judged`: each distinct event, how often it stands there, and its fate."""
    connection.execute(
        "CREATE TEMP TABLE candidates AS SELECT person, code, date, count(*) AS times "
        "FROM classified WHERE fate IS NULL GROUP BY person, code, date"
    )
    whens = " ".join(f"WHEN {test} THEN '{key}'" for key, test in late.items())
    fate = f"CASE {whens} END" if late else "NULL::VARCHAR"
    connection.execute(f"CREATE TEMP TABLE judged AS SELECT *, {fate} AS fate FROM candidates e")
    connection.execute("DROP TABLE candidates")


def _leave_out(connection: DuckDBPyConnection, at_least: int) -> None:
    """Make the tables `flags`, of people and their conditions, and `fates`, of all people."""
    connection.execute(
        "CREATE TEMP TABLE flags AS SELECT person, condition, count(*) AS events "
        "FROM judged JOIN codes USING (code) WHERE fate IS NULL GROUP BY person, condition"
    )
    connection.execute(
        """
        CREATE TEMP TABLE fates AS
        SELECT person, coalesce(f.conditions, 0) AS conditions, coalesce(j.events, 0) AS events,
            CASE WHEN p.fate IS NOT NULL THEN p.fate
                 WHEN coalesce(f.conditions, 0) < $1 THEN 'too-few' END AS fate
        FROM people p
        LEFT JOIN (SELECT person, count(*) AS conditions FROM flags GROUP BY person) f
            USING (person)
        LEFT JOIN (SELECT person, count(*) AS events FROM judged WHERE fate IS NULL
                   GROUP BY person) j USING (person)
        """,
        [at_least],
    )


def _fates_of_people(
    connection: DuckDBPyConnection, dropped: dict[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Count people left out also where they have no event."""
    rows = connection.execute(
        "SELECT fate, count(*), sum(events) FROM fates WHERE fate IS NOT NULL GROUP BY fate"
    ).fetchall()
    return {
        fate: (int(events) if fate == "too-few" else dropped.get(fate, (0, 0))[0], people)
        for fate, people, events in rows
        if fate in OF_PEOPLE
    }


def _finish(connection: DuckDBPyConnection, request: Request) -> pd.DataFrame | None:
    """Write the table, or return it."""
    flags = [
        f"CAST(coalesce(w.c{place}, FALSE) AS UTINYINT) AS {quote(name)}"
        for place, name in enumerate(request.conditions)
    ]
    carried = [f"p.carried_{place} AS {quote(name)}" for place, name in enumerate(request.carried)]
    wide = ", ".join(
        f"bool_or(condition = {place}) AS c{place}" for place in range(len(request.conditions))
    )
    query = (
        f"SELECT {', '.join([f'p.person AS {quote(request.person)}', *carried, *flags])} "
        "FROM people p JOIN fates f ON f.person = p.person AND f.fate IS NULL "
        f"LEFT JOIN (SELECT person, {wide} FROM flags GROUP BY person) w ON w.person = p.person "
        "ORDER BY p.person"
    )
    if request.out is None:
        return connection.execute(query).df()
    duckdb = load_duckdb()
    try:
        with whole_file(request.out) as file:
            connection.execute(
                f"COPY ({query}) TO $1 (FORMAT parquet, USE_TMP_FILE false)", [str(file.name)]
            )
    except (OSError, duckdb.IOException) as error:
        why = getattr(error, "strerror", None) or "DuckDB does not succeed"
        raise SettingsError(
            f"{request.out} cannot be written: {why}; choose another place, with enough space"
        ) from None
    return None


def _conditions(
    connection: DuckDBPyConnection, conditions: Sequence[str], people: int
) -> pd.DataFrame:
    rows = connection.execute(
        "SELECT condition, count(*), sum(g.events) FROM flags g "
        "JOIN fates f ON f.person = g.person AND f.fate IS NULL GROUP BY condition"
    ).fetchall()
    found = {place: (have, int(events)) for place, have, events in rows}
    have = [found.get(place, (0, 0))[0] for place in range(len(conditions))]
    return pd.DataFrame(
        {
            "condition": list(conditions),
            "people": have,
            "prevalence": [count / people if people else float("nan") for count in have],
            "events": [found.get(place, (0, 0))[1] for place in range(len(conditions))],
        }
    )


def _dropped_frame(dropped: dict[str, tuple[int, int]]) -> pd.DataFrame:
    rows = [
        (REASONS[key][0], int(dropped[key][0]), dropped[key][1], REASONS[key][1])
        for key in REASONS
        if any(dropped.get(key, (0, 0)))
    ]
    return pd.DataFrame(rows, columns=["reason", "events", "people", "what_to_do"])
