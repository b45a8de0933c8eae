"""Cells as SQL: ids, whole numbers and dates, and null wherever a cell says none."""

from __future__ import annotations

MISSING_TEXTS = ("", "NA", "NaN", "NULL")
"""What an empty cell looks like in text."""

WHITE = r"[\t-\r\x1c-\x1f\x{85}\pZ]+"
"""A pattern of what `str.strip` takes off the ends of a code in the list."""

YEAR_FIRST = r"^([1-9]\d{3}[-/]\d\d?[-/]\d\d?)"
DATED = YEAR_FIRST + r"($|Z$|[+-]\d\d:\d\d$|[T ]\d)"
ZONED = YEAR_FIRST + r"[T ]\d.*:.*(Z|[A-Z]{3,4}|[+-]\d\d?(:?\d\d)?|[A-Za-z]+/\w+)$"
FIRST_YEAR = 1000


def quote(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def is_text(kind: str) -> bool:
    """Say whether a type of DuckDB is one of text."""
    return kind == "VARCHAR" or kind.startswith("ENUM")


def identifier(column: str, kind: str) -> str:
    """Return the SQL of an id: text trimmed and null where missing, a whole float without .0."""
    if is_text(kind):
        text = f"regexp_replace(CAST({column} AS VARCHAR), '^{WHITE}|{WHITE}$', '', 'g')"
        missing = ", ".join(f"'{word}'" for word in MISSING_TEXTS)
        return f"CASE WHEN {text} NOT IN ({missing}) THEN {text} END"
    if kind in {"DOUBLE", "FLOAT"}:
        whole = f"CAST(TRY_CAST({column} AS BIGINT) AS VARCHAR)"
        return (
            f"CASE WHEN isnan({column}) THEN NULL WHEN {column} = floor({column}) THEN {whole} "
            f"ELSE CAST({column} AS VARCHAR) END"
        )
    return column


def whole_number(value: str) -> str:
    """Return the SQL of a value as a whole number; null where it is none: a cast would round."""
    number = f"TRY_CAST({value} AS DOUBLE)"
    return f"CASE WHEN {number} = floor({number}) THEN TRY_CAST({value} AS BIGINT) END"


def day(value: str, kind: str) -> str:
    """Return the SQL of an id, and the type of its column, as a date; null where it is none.

    Text must start with a year of four digits, since DuckDB takes 05-06-19 for a day of the year
    5. A time with a zone is on the day that it is in UTC; a day with a zone is itself.
    """
    if not is_text(kind):
        made = f"TRY_CAST({value} AS DATE)"
        return f"CASE WHEN isfinite({made}) THEN {made} END"
    instant = rf"TRY_CAST(regexp_replace({value}, '\s+([Z+-])', '\1') AS TIMESTAMPTZ)"
    return (
        f"CASE WHEN regexp_matches({value}, '{ZONED}') THEN CAST({instant} AS DATE) "
        f"ELSE TRY_CAST(regexp_extract({value}, '{DATED}', 1) AS DATE) END"
    )


def formatted_day(value: str, date_format: str) -> str:
    """Return the SQL of text as a date in a format, itself SQL; null where it is none.

    A year of two digits is none to %Y, though DuckDB takes it for one of the first century.
    """
    made = f"try_strptime(CAST({value} AS VARCHAR), {date_format})"
    return f"CASE WHEN year({made}) >= {FIRST_YEAR} THEN CAST({made} AS DATE) END"
