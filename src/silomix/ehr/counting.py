"""Count events by person and condition, with an account of every event, in SQL.

Its input tables are made by `silomix.ehr.long_and_omop`:

events : person, code, uncoded (a key of `REASONS` where the code is null), date, dated (whether
    the source has a date at all)
people : person, reason (a key of `REASONS`, or null to stay), carried_0, carried_1, ...
codes : condition (its position in the list), code
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pandas as pd

from silomix.ehr.database import load_duckdb, quote
from silomix.errors import DataError, SettingsError
from silomix.model.files import whole_file
from silomix.model.sentences import at_least as whole_at_least

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duckdb import DuckDBPyConnection as Connection

    from silomix.ehr.code_list import CodeList

Between: TypeAlias = tuple[str | date | None, str | date | None]
MOST_UNLISTED = 10

# Why events and people are left out, by key, in the order of the tests; and what to do.
REASONS = {
    "no-person": ("no person id", "fill in the person id"),
    "unknown-person": ("the person is not in the table of people", "nothing, or add them to it"),
    "bad-period": ("an observation period with unreadable or reversed dates", "repair its dates"),
    "no-observation": ("the person has no observation period", "nothing, or fill in the period"),
    "unobserved": ("the person was not observed between the dates", "nothing, or change the dates"),
    "no-silo": ("the person has no silo", "fill in the care site or location, or set no silo"),
    "no-birth-year": ("the person has no year of birth", "fill it in, or set no age limit"),
    "age": ("the person's age is outside the limits", "nothing, or choose other ages"),
    "no-code": ("no code, or concept 0", "map the source codes, if some mean a listed condition"),
    "bad-code": ("the concept is not a whole number", "correct it: concept ids are whole numbers"),
    "no-vocabulary": ("no vocabulary", "fill in the code system"),
    "unlisted": ("the code is not in the code list", "add frequent codes of your conditions to it"),
    "no-date": ("no date", "fill in when it happened"),
    "bad-date": ("the date cannot be read", "write YYYY-MM-DD, or say the format, as %d/%m/%Y"),
    "outside-window": ("before the first or after the last date", "nothing, or change the dates"),
    "outside-observation": ("outside the person's observation periods", "nothing, or correct them"),
    "after-death": ("after the person's death", "nothing, or correct the date of death"),
    "duplicate": ("the same person, code and date again", "nothing: each is counted once"),
    "too-few": ("the person has fewer conditions than asked for", "nothing, or ask for fewer"),
}

CLASSIFIED = """
CREATE TEMP VIEW classified AS SELECT e.person, e.code, e.date, CASE
    WHEN e.person IS NULL THEN 'no-person'
    WHEN p.person IS NULL THEN 'unknown-person'
    WHEN p.reason IS NOT NULL THEN p.reason
    WHEN e.code IS NULL THEN e.uncoded
    WHEN c.code IS NULL THEN 'unlisted'
    WHEN e.date IS NULL AND e.dated THEN 'bad-date'
    WHEN e.date IS NULL THEN 'no-date'
    WHEN e.date NOT BETWEEN DATE '{first}' AND DATE '{last}' THEN 'outside-window'
END AS reason
FROM events e LEFT JOIN people p ON p.person = e.person
LEFT JOIN (SELECT DISTINCT code FROM codes) c ON c.code = e.code
"""
# Of dropped events, which are most, only the person is kept: the table must not be large.
JUDGED = """
CREATE TEMP TABLE judged AS
SELECT * REPLACE (CASE WHEN reason IS NOT NULL THEN reason {tests} END AS reason) FROM (
    SELECT reason, person, CASE WHEN reason IS NULL THEN code END AS code,
        CASE WHEN reason IS NULL THEN date END AS date, count(*) AS times
    FROM classified GROUP BY ALL
) e
"""
FLAGS = """
CREATE TEMP TABLE flags AS SELECT person, condition, count(*) AS events
FROM judged JOIN codes USING (code) WHERE reason IS NULL GROUP BY person, condition
"""
OUTCOMES = """
CREATE TEMP TABLE outcomes AS SELECT p.* REPLACE (
    coalesce(reason, CASE WHEN coalesce(conditions, 0) < $1 THEN 'too-few' END) AS reason
), conditions
FROM people p LEFT JOIN (SELECT person, count(*) AS conditions FROM flags GROUP BY person)
USING (person)
"""
CONDITIONS = """
SELECT condition, count(*) AS people, sum(events)::BIGINT AS events FROM flags
JOIN outcomes USING (person) WHERE reason IS NULL GROUP BY condition
"""
# Two groupings, since one can go to disk and a count of distinct people cannot.
ACCOUNT = """
SELECT reason, sum(events)::BIGINT, count(person) FROM (
    SELECT reason, person, sum(times) AS events FROM (
        SELECT reason, person, times FROM judged WHERE reason IS NOT NULL
        UNION ALL SELECT 'duplicate', person, times - 1 FROM judged
            WHERE reason IS NULL AND times > 1
        UNION ALL SELECT coalesce(o.reason, 'kept'), person, 1
            FROM judged e JOIN outcomes o USING (person) WHERE e.reason IS NULL
        UNION ALL SELECT coalesce(reason, 'kept'), person, 0 FROM outcomes
        UNION ALL SELECT 'zeros', person, 0 FROM outcomes
            WHERE reason IS NULL AND conditions IS NULL
        {more}
    ) GROUP BY reason, person
) GROUP BY reason
"""


@dataclass(frozen=True, eq=False)
class EhrTable:
    """Table of people × conditions, with an account of every event that was read.

    Each event counts once: in `events_kept`, or in one row of `dropped`, for the first reason
    that applies.

    Attributes
    ----------
    table : a row per person in the order of their ids: the id, the carried columns, and a 0/1
        column per condition; None if it was written to a file instead.
    file : the Parquet file it was written to, or None.
    people : rows of the table.
    zeros : those of them who have no condition.
    events_read : events in the source.
    events_kept : distinct events counted in the table.
    conditions : condition, people, prevalence (their share), events; in the order of the list.
    dropped : reason, events, people, what_to_do; in the order in which reasons are tried.
    unlisted : code, events: the most frequent codes that the list does not have.

    Examples
    --------
    >>> import pandas as pd
    >>> from silomix import ehr
    >>> events = pd.DataFrame(
    ...     {"person": [1, 1, 2], "code": ["I10", "J45", "Z00"], "date": ["2020-01-31"] * 3}
    ... )
    >>> found = ehr.read_long(events, {"hypertension": ["I10"], "asthma": ["J45"]})
    >>> found.people, found.zeros, found.events_read, found.events_kept
    (2, 1, 3, 2)
    >>> found.dropped["reason"].tolist()
    ['the code is not in the code list']
    >>> found.unlisted["code"].tolist()
    ['Z00']
    """

    table: pd.DataFrame | None
    file: Path | None
    people: int
    zeros: int
    events_read: int
    events_kept: int
    conditions: pd.DataFrame
    dropped: pd.DataFrame
    unlisted: pd.DataFrame


@dataclass
class Request:
    """Requested output, for either form of records; invalid requests are refused.

    Attributes
    ----------
    codes : the conditions.
    columns : the person's id and the carried columns, in the order of carried_0, carried_1, ...
    between : the first and the last day that count, or None; read as `first` and `last`.
    at_least : conditions a person must have.
    out : the Parquet file to write, or None for a frame; read as `file`.
    """

    codes: CodeList
    columns: Sequence[str]
    between: Between
    at_least: int
    out: str | Path | None

    def __post_init__(self) -> None:
        """Check the request."""
        conditions = self.codes.conditions
        names = [name.casefold() for name in (*self.columns, *conditions)]
        twice = [position for position, name in enumerate(names) if name in names[:position]]
        if twice:
            error = SettingsError if twice[0] < len(self.columns) else DataError
            raise error(
                f"the column {names[twice[0]]!r} would be in the result twice (case is "
                "ignored); carry it along once, or rename the condition"
            )
        self.first = _as_day(self.between[0], "first", date.min)
        self.last = _as_day(self.between[1], "last", date.max)
        if self.first > self.last:
            raise SettingsError(f"the first date {self.first} is after the last date {self.last}")
        if whole_at_least("at_least", self.at_least, 0) > len(conditions):
            raise SettingsError(
                f"at_least is {self.at_least}; there are {len(conditions)} conditions"
            )
        self.file = None if self.out is None else Path(self.out)
        if self.file and not (self.file.suffix == ".parquet" and self.file.parent.is_dir()):
            raise SettingsError(f"out is {self.out}; name a .parquet file in a folder that exists")


def set_codes(
    connection: Connection, codes: CodeList, kind: str, spelled: list[str], more: str = ""
) -> None:
    """Make the table `codes`.

    Parameters
    ----------
    kind : the SQL type of the codes.
    spelled : the codes as the events have them, in the order of the list.
    more : SQL that adds to `given`, the table of condition, code and below (its descendants too).
    """
    positions = {name: n for n, name in enumerate(codes.conditions)}
    conditions = [positions[code.condition] for code in codes.codes]
    connection.execute(
        "CREATE TEMP TABLE codes AS WITH given AS (SELECT unnest($1::INTEGER[]) AS condition, "
        f"unnest($2::{kind}[]) AS code, unnest($3::BOOLEAN[]) AS below) "
        f"SELECT DISTINCT condition, code FROM given {more}",
        [conditions, spelled, [code.include_descendants for code in codes.codes]],
    )


def set_people(connection: Connection, query: str, where: str) -> None:
    """Make the table `people`; refuse missing and repeated ids."""
    connection.execute(f"CREATE TEMP TABLE people AS {query}")
    bad = connection.execute(
        "SELECT person, count(*) FROM people GROUP BY person HAVING person IS NULL OR count(*) > 1 "
        "ORDER BY person NULLS FIRST LIMIT 1"
    ).fetchone()
    if bad:
        who = "no person id that can be read" if bad[0] is None else f"the person id {bad[0]!r}"
        raise DataError(f"{where}: {bad[1]:,} of its rows have {who}; each person needs one row")


def count(
    connection: Connection, request: Request, where: str, tests: Mapping[str, str], more: str = ""
) -> EhrTable:
    """Count every event once, and give each person a row.

    Parameters
    ----------
    where : how messages refer to the events.
    tests : SQL of further reasons to drop an event `e` that has passed all others, by key.
    more : SQL that adds reason, person and events to the account.
    """
    whens = " ".join(f"WHEN {test} THEN '{reason}'" for reason, test in tests.items())
    connection.execute(CLASSIFIED.format(first=request.first, last=request.last))
    connection.execute(JUDGED.format(tests=whens))
    unlisted = connection.execute(
        "SELECT code::VARCHAR, count(*) AS events FROM classified "
        f"WHERE reason = 'unlisted' GROUP BY code ORDER BY events DESC, code LIMIT {MOST_UNLISTED}"
    ).fetchall()
    connection.execute(FLAGS)
    connection.execute(OUTCOMES, [request.at_least])
    rows = connection.execute(ACCOUNT.format(more=more)).fetchall()
    events, people = (Counter({row[0]: row[column] for row in rows}) for column in (1, 2))
    if not any(events[reason] for reason in ("kept", "too-few", "duplicate", *tests)):
        _check_meeting(events, [code for code, _ in unlisted], where)
    dropped = [
        (words, events[reason], people[reason], advice)
        for reason, (words, advice) in REASONS.items()
        if events[reason] or people[reason]
    ]
    counted = connection.execute(CONDITIONS).df().set_index("condition")
    counts = counted.reindex(range(len(request.codes.conditions)), fill_value=0)
    counts.insert(1, "prevalence", counts["people"] / people["kept"])
    counts.insert(0, "condition", request.codes.conditions)
    return EhrTable(
        table=_finish(connection, request),
        file=request.file,
        people=people["kept"],
        zeros=people["zeros"],
        events_read=events.total(),
        events_kept=events["kept"],
        conditions=counts.reset_index(drop=True),
        dropped=pd.DataFrame(dropped, columns=["reason", "events", "people", "what_to_do"]),
        unlisted=pd.DataFrame(unlisted, columns=["code", "events"]),
    )


def _as_day(value: str | date | None, word: str, default: date) -> date:
    if value is None:
        return default
    try:
        return date.fromisoformat(value if isinstance(value, str) else value.isoformat()[:10])
    except (AttributeError, ValueError):
        raise SettingsError(f"the {word} date is {value!r}; write it as YYYY-MM-DD") from None


def _check_meeting(lost: Counter[str], unlisted: Sequence[str], where: str) -> None:
    """Refuse events that share no person, no code or no date with the request.

    One spelling or type is then wrong throughout, and a table of zeros would hide it.
    """
    events, nobody = lost.total(), lost["no-person"]
    undated = lost["no-date"] + lost["bad-date"] + lost["outside-window"]
    problems = {
        "has no event; check that it is the right table": not events,
        "no event has a person id; check the column of person ids": nobody == events,
        "no event belongs to a person in the table of people; check that both have the same kind "
        "of person id": nobody + lost["unknown-person"] == events,
        f"none of the {undated:,} listed events counts: {lost['no-date']:,} without a date, "
        f"{lost['bad-date']:,} with one that cannot be read, {lost['outside-window']:,} before the "
        "first or after the last date; check the column of dates and these two, and write dates "
        "as YYYY-MM-DD, or say their format, such as {date_format}": undated,
        "no event has a code from the list; check the column of codes and how they are spelled: "
        f"the most frequent ones are {', '.join(map(repr, unlisted))}": unlisted,
        "no event has a code that can be used; check the column of codes, and that of "
        "vocabularies if there is one": lost["no-code"] + lost["bad-code"] + lost["no-vocabulary"],
    }
    if applying := [problem for problem, applies in problems.items() if applies]:
        raise DataError(f"{where}: {applying[0]}", date_format="%d/%m/%Y")


def _finish(connection: Connection, request: Request) -> pd.DataFrame | None:
    """Write the table, or return it."""
    person, *carried = map(quote, request.columns)
    flags = [
        f"CAST(coalesce(c{n}, FALSE) AS UTINYINT) AS {quote(name)}"
        for n, name in enumerate(request.codes.conditions)
    ]
    columns = [f"person AS {person}", *(f"carried_{n} AS {c}" for n, c in enumerate(carried))]
    wide = ", ".join(f"bool_or(condition = {n}) AS c{n}" for n in range(len(flags)))
    query = (
        f"SELECT {', '.join([*columns, *flags])} FROM outcomes o "
        f"LEFT JOIN (SELECT person, {wide} FROM flags GROUP BY person) USING (person) "
        "WHERE reason IS NULL ORDER BY o.person"
    )
    if request.file is None:
        return connection.execute(query).df()
    try:
        with whole_file(request.file) as file:
            options = "(FORMAT parquet, USE_TMP_FILE false)"
            connection.execute(f"COPY ({query}) TO $1 {options}", [str(file.name)])
    except (OSError, load_duckdb().IOException) as error:
        why = f"{getattr(error, 'strerror', None) or 'DuckDB failed'}; choose another file"
        raise SettingsError(f"{request.file} cannot be written: {why}") from None
    return None
