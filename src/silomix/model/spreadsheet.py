"""Text in CSV files that spreadsheets display and never evaluate: one guard for all files.

A spreadsheet takes a cell for a formula that begins with ``=``, ``@``, ``+`` or ``-``, blanks,
quotes and signs nobody sees aside; some take the wide forms of these characters too. A cell also
begins where a spreadsheet of another country, or a careless one, splits a text: after a semicolon,
a comma, a bar, a tab, the end of a line. An apostrophe in front of each such beginning makes it
text. `from_spreadsheet` takes it away again, so that every text comes back as it was.

Numbers are not text: whoever writes a table gives them as numbers. A text that is a number, such as
the level "-1", stays one where it does not begin a line.
"""

from __future__ import annotations

import csv
import re
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from silomix.model.files import whole_file, writing

if TYPE_CHECKING:
    from pathlib import Path

GUARD = "'"

LINE_ENDS = r"\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
# What a spreadsheet may split a text at, with the wide and the small forms.
SEPARATORS = rf"[;,|\uff1b\uff0c\uff5c\ufe54\ufe50\t{LINE_ENDS}]"

# What may stand before a formula: quotes, blanks, and characters that show nothing.
UNSEEN = (
    r"['\"\uff07\uff02\s\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\ufeff]"
)

ALWAYS = r"[=@\uff1d\uff20\ufe66\ufe6b]"
SIGN = r"[+\-\uff0b\uff0d\ufe62\ufe63\u2212]"
NUMBER = r"(?:[0-9]++(?:[.,][0-9]*+)?|[.,][0-9]++)(?:[eE][+-]?[0-9]++)?"

ANY = rf"(?:{ALWAYS}|{SIGN})"
# A sign alone, or before a number, is shown. Further on in a text it is not let pass: what follows
# the text in its line would go on with the number. The end of an interval, "(-10, -5]", can: no
# formula begins with a bracket that closes.
FORMULA = rf"(?:{ALWAYS}|{SIGN}(?!\s*\Z|{NUMBER}%?\s*\Z))"
FORMULA_INSIDE = rf"(?:{ALWAYS}|{SIGN}(?!{NUMBER}[)\]]\s*\Z))"

# Each place where a cell may begin. It takes up what is unseen there, so that a scan is linear.
BEGINNING = re.compile(
    rf"(?:\A|(?<={SEPARATORS}))(?P<unseen>{UNSEEN}*+)(?:(?={ANY})(?P<any>))?"
    rf"(?:(?={FORMULA})(?P<formula>))?(?:(?={FORMULA_INSIDE})(?P<inside>))?"
)

# Some spreadsheets pass over these, and look at what follows.
OPENING = re.compile("'*+[\t\r\n]")

# Most texts have nothing of it, and are done with.
SUSPECT = re.compile(rf"\A{UNSEEN}*+{ANY}|\A{OPENING.pattern}|{SEPARATORS}")
BETWEEN = re.compile(rf"{SEPARATORS}(?!\Z)")
GUARDED = re.compile(rf"({SEPARATORS}){GUARD}")


def for_spreadsheet(text: str, *, first: bool = False) -> str:
    """Text as a CSV file has it: an apostrophe before anything like a formula.

    Parameters
    ----------
    first : whether it begins a line: a spreadsheet that does not split at commas reads on from
        there, so that a number may become a formula too.

    Examples
    --------
    >>> from silomix.model.spreadsheet import for_spreadsheet
    >>> for_spreadsheet("=1+1"), for_spreadsheet("a;=1+1"), for_spreadsheet("-1")
    ("'=1+1", "a;'=1+1", '-1')
    """
    return BEGINNING.sub(partial(_guard, first=first), text) if SUSPECT.search(text) else text


def from_spreadsheet(cell: str) -> str:
    """Text that `for_spreadsheet` wrote.

    Examples
    --------
    >>> from silomix.model.spreadsheet import from_spreadsheet
    >>> from_spreadsheet("'=1+1"), from_spreadsheet("'tis")
    ('=1+1', "'tis")
    """
    return BEGINNING.sub(_bare, cell) if GUARD in cell else cell


def write_table(table: pd.DataFrame, path: Path, *, private: bool = False) -> None:
    """Write a table as CSV whose texts spreadsheets do not take for formulas.

    Parameters
    ----------
    private : whether only the owner may open it.
    """
    headings = [for_spreadsheet(str(name), first=i == 0) for i, name in enumerate(table.columns)]
    safe, returns = table.set_axis(headings, axis=1), any("\r" in head for head in headings)
    for place, kind in enumerate(safe.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            texts = [
                for_spreadsheet(cell, first=place == 0) if isinstance(cell, str) else cell
                for cell in safe.iloc[:, place]
            ]
            returns = returns or any(isinstance(text, str) and "\r" in text for text in texts)
            safe.isetitem(place, np.array(texts, dtype=object))
    # csv leaves a carriage return bare where lines end otherwise, and readers end the line
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    with writing(path), whole_file(path, private=private) as file:
        safe.to_csv(file, index=False, float_format="%.6g", lineterminator="\n", quoting=quoting)


def _guard(beginning: re.Match[str], *, first: bool) -> str:
    unseen = beginning["unseen"]
    guard = GUARD if _is_guarded(beginning, first=first) else ""
    # the place after the last of them has its own match
    return guard + (BETWEEN.sub(rf"\g<0>{GUARD}", unseen) if _is_inside(beginning) else unseen)


def _bare(beginning: re.Match[str]) -> str:
    unseen = beginning["unseen"]
    if _is_guarded(beginning):
        unseen = unseen.removeprefix(GUARD)
    return GUARDED.sub(r"\1", unseen) if _is_inside(beginning) else unseen


def _is_guarded(beginning: re.Match[str], *, first: bool = False) -> bool:
    """Whether a guard belongs at this place.

    One more apostrophe there does not change the answer, so that reader and writer agree.
    """
    if beginning.start() > 0:
        return _is_inside(beginning)
    strict = first or beginning["unseen"].startswith(GUARD)
    formula = beginning["any" if strict else "formula"]
    return formula is not None or bool(OPENING.match(beginning["unseen"]))


def _is_inside(beginning: re.Match[str]) -> bool:
    return beginning["inside"] is not None
