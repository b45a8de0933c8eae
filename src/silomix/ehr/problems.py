"""What DuckDB's errors mean, in words of our own, since DuckDB's own quote the records."""

from __future__ import annotations

import re
from pathlib import Path

UNKNOWN = "DuckDB gives up on it ({name}); repair or replace it"
BY_WORDS = {
    "unterminated quote": (
        'a quote is opened and not closed, or not at the end of its cell; close it, or write "" '
        "for a quote inside a quoted cell"
    ),
    "Expected Number of Columns": (
        "it has more or fewer cells than the first line names columns; correct it, or put quotes "
        "around a cell that has a separator in it"
    ),
    "Maximum line size": "it is longer than 2 MB; look for a quote that is not closed",
    "Invalid unicode": "it is not in UTF-8; save the file as UTF-8",
    "CSV Parser": "it is not as CSV has to be; look for odd quotes and line ends, and correct them",
    "Could not set lock": "another program has it open; close it there",
    "not a valid DuckDB database": "it is no DuckDB database; repair or replace it",
    "database file with version": "another version of DuckDB wrote it; update DuckDB here or there",
    "magic bytes": "it is no Parquet file, or not all of one; repair or replace it",
}
"""What is wrong and what to do, by words that DuckDB uses; the first that fits counts."""

BY_CLASS = {
    "BinderException": "a column has a type that cannot be used here; convert it",
    "CatalogException": "a view in it needs a table that is not there; repair the view",
    "ConversionException": (
        "a value cannot be converted to the type of its column; correct it, or the view that "
        "converts it"
    ),
    "IOException": "it cannot be opened; check that it is whole, and that you may read it",
}
"""The same for errors in other words, by the name of their class."""


def explain(error: Exception, source: str) -> str:
    """Return the message for an error of DuckDB, with no text of the records in it.

    Only a line number and the name of a file that is there are taken from the error.

    Parameters
    ----------
    source : what the message calls the records, unless the error names a file.
    """
    said = str(error)
    line = re.match(r"[\w ]+: CSV Error on Line: (\d+)\n", said)
    files = re.findall(r"^  file = (.+)$", said, re.MULTILINE)
    where = files[-1] if files and Path(files[-1]).is_file() else source
    name = type(error).__name__
    meant = next((words for key, words in BY_WORDS.items() if key in said), None)
    meant = meant or BY_CLASS.get(name) or UNKNOWN.format(name=name)
    return f"{where}: cannot be read: {f'line {line[1]}: ' if line else ''}{meant}"
