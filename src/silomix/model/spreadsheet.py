"""Text in CSV files that spreadsheets display and never evaluate: one guard for all files.

A spreadsheet takes a cell for a formula that begins with ``=``, ``@``, ``+`` or ``-``, also after
blanks and quotes, or with a tab or a carriage return (OWASP, "CSV injection"). An apostrophe in
front makes it text; `from_spreadsheet` takes it away again, so that every text comes back as it
was. Numbers stay as they are: the level "-1" is shown as it is.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from silomix.model.files import whole_file, writing

if TYPE_CHECKING:
    from pathlib import Path

GUARD = "'"
# A text with guards, too, so that those of its own are told from ours.
FORMULA = re.compile(r"'*+(?:[\t\r]|[\s\"']*+[=@+\-])")
NUMBER = re.compile(r"[+-](?:(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?%?)?\s*")


def for_spreadsheet(text: str) -> str:
    """Text as a CSV file has it: an apostrophe before anything like a formula.

    Examples
    --------
    >>> from silomix.model.spreadsheet import for_spreadsheet
    >>> for_spreadsheet("=1+1"), for_spreadsheet("-1"), for_spreadsheet("a=b")
    ("'=1+1", '-1', 'a=b')
    """
    return GUARD + text if _is_formula(text) else text


def from_spreadsheet(cell: str) -> str:
    """Text that `for_spreadsheet` wrote.

    Examples
    --------
    >>> from silomix.model.spreadsheet import from_spreadsheet
    >>> from_spreadsheet("'=1+1"), from_spreadsheet("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if cell.startswith(GUARD) and _is_formula(cell[1:]) else cell


def _is_formula(text: str) -> bool:
    return FORMULA.match(text) is not None and NUMBER.fullmatch(text) is None


def write_table(table: pd.DataFrame, path: Path, *, private: bool = False) -> None:
    """Write a table as CSV whose texts spreadsheets do not take for formulas.

    Parameters
    ----------
    private : whether only the owner may open it.
    """
    headings = [for_spreadsheet(str(name)) for name in table.columns]
    safe, returns = table.set_axis(headings, axis=1), any("\r" in head for head in headings)
    for place, kind in enumerate(safe.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            texts = [
                for_spreadsheet(cell) if isinstance(cell, str) else cell
                for cell in safe.iloc[:, place]
            ]
            returns = returns or any(isinstance(text, str) and "\r" in text for text in texts)
            safe.isetitem(place, np.array(texts, dtype=object))
    # csv leaves a carriage return bare where lines end otherwise, and readers end the line
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    with writing(path), whole_file(path, private=private) as file:
        safe.to_csv(file, index=False, float_format="%.6g", lineterminator="\n", quoting=quoting)
