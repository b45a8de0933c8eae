"""What reading health records gives back, and the reasons for which events are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

REASONS = {
    "no-person": ("no person id", "fill in whose events they are"),
    "unknown-person": (
        "the person is not in the table of people",
        "nothing, if the table of people is your cohort; otherwise add them to it",
    ),
    "bad-period": (
        "an observation period without readable dates, or that ends before it starts",
        "repair its dates; the person's other periods are used",
    ),
    "no-observation": (
        "the person has no observation period",
        "fill in when the person was observed, or leave the person out",
    ),
    "unobserved": (
        "the person was not observed between the first and the last date",
        "nothing, or choose other dates",
    ),
    "no-silo": (
        "the person has no silo",
        "fill in the person's care site or location, or read without a silo column",
    ),
    "no-birth-year": (
        "the person has no year of birth, and there is an age limit",
        "fill in the year of birth, or leave the age limits out",
    ),
    "age": ("the person's age is outside the limits", "nothing, or choose other ages"),
    "no-code": (
        "no code, or concept 0",
        "map the source codes, if some are of a condition in the list",
    ),
    "bad-code": (
        "the concept is not a whole number",
        "correct it: concept ids are whole numbers",
    ),
    "no-vocabulary": ("no vocabulary", "fill in of which code system the code is"),
    "unlisted": (
        "the code is not in the code list",
        "look at the most frequent ones; add those of a condition to the list",
    ),
    "no-date": ("no date", "fill in when it happened"),
    "bad-date": (
        "the date cannot be read",
        "write dates as YYYY-MM-DD, or say their format, such as %d/%m/%Y",
    ),
    "outside-window": (
        "before the first or after the last date",
        "nothing, or choose other dates",
    ),
    "outside-observation": (
        "outside the person's observation periods",
        "nothing, or correct the periods",
    ),
    "after-death": ("after the person's death", "nothing, or correct the date of death"),
    "duplicate": (
        "the same person, code and date again",
        "nothing: each is counted once",
    ),
    "too-few": (
        "the person has fewer conditions than asked for",
        "nothing, or ask for fewer",
    ),
}
"""By key, in the order in which they are tried: what is wrong, and what to do."""

OF_PEOPLE = ("no-observation", "unobserved", "no-silo", "no-birth-year", "age", "too-few")
"""Reasons that leave a person out, with all of the person's events."""


@dataclass(frozen=True, eq=False)
class EhrTable:
    """People × conditions, and an account of every event that was read.

    Each event counts once: in `events_kept`, or in one row of `dropped`, for the first reason
    that applies.

    Attributes
    ----------
    table : a row per person in the order of their ids: the id, the columns carried along, and a
        0/1 column per condition; None if it was written to a file instead.
    file : the Parquet file it was written to, or None.
    people : rows of the table.
    zeros : those of them who have no condition.
    events_read : events in the source.
    events_kept : distinct events behind the ones of the table.
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
