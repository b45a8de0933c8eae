"""Warnings about suspicious columns of a table; nothing is changed."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import DataWarning, cell, warn
from silomix.model.numbers import MOST_WHOLE_LEVELS
from silomix.model.reading import COMMA_NUMBER, NUMBER, Cells
from silomix.model.sentences import listing, plural, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from silomix.kernels.arrays import Ints

# Common texts for a missing cell, in small letters.
LIKE_MISSING = re.compile(
    r"[.?/-]+|#?n[./]?[ak]\.?|<na>|nan|#value!|\W?(?:null|missing)\W?|unk|un(?:known|specified)"
    r"|blank|empty|no (?:data|answer)|not (?:known|available|recorded|specified|stated)"
)
# Numbers that stand for a missing cell where the other numbers are far from them.
MISSING_CODES = {-7, -8, -9, -77, -88, -99, -999, -9999, -99999, 9, 77, 88, 99, 99.9}
MISSING_CODES |= {888, 999, 999.9, 9999, 99999, 999999}
# A code is "far" beyond this many times the widest gap between the other numbers.
GAPS = 5
# A code among the other numbers is suspicious if it has at least `SPIKE_ROWS` rows, and
# `SPIKE_TIMES` those of each of its nearest neighbours: people round to tens, not to 88 or 99.
SPIKE_ROWS, SPIKE_TIMES, NEAREST = 10, 5, 3

# A column of text with more levels is rarely meant to be categorical.
MOST_LEVELS = 50
# In fewer rows, two columns may be equal, or one constant, by chance.
FEWEST_ROWS = 20

NAMES_ROWS = re.compile(r"(?i:(?:^|[\W_])(?:id|ids|pid|mrn|nhs|nr|no|number))$|[a-z]I[dD]$")

# The advice on each problem, after a list of the columns that have it.
PROBLEMS = {
    "spelling": "they differ only in capitals or spaces; if they are one level, spell them alike",
    "missing": "taken as they stand; if they mean a missing cell, give {na_values}",
    "words": "taken as levels; for numbers, name other cells in {na_values}, or use decimal points",
    "many": "taken as levels; leave out identifiers and free text with {exclude}",
    "identifier": "taken as numbers; if they name rows, give {id} of fit, or {exclude}",
    "alike": "they say the same in every row, so this counts twice; leave one out with {exclude}",
    "ticks": "empty cells are left out, so it tells nothing; if empty means no, give {missing}",
}


def folded(text: str) -> str:
    """Text in small letters, with single blanks between words."""
    return " ".join(text.casefold().split())


def alike(texts: list[str]) -> list[list[str]]:
    """Groups of texts that differ only in capitals or blanks."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(folded(text), []).append(text)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def numbers_and_words(texts: list[str]) -> tuple[list[str], list[str]]:
    """The texts that are numbers, those with a decimal comma last, and the rest."""
    numbers = [text for text in texts if NUMBER.fullmatch(text)]
    numbers += [text for text in texts if COMMA_NUMBER.fullmatch(text)]
    return numbers, sorted(set(texts).difference(numbers))


def like_missing(name: str, cells: Cells, *, is_number: bool) -> str:
    """Clause about the cells of a column that look like codes for missing ones."""
    return _counted(name, codes_of_missing(cells, is_number=is_number))


def _counted(name: str, codes: dict[str, int]) -> str:
    counted = [f"{text!r} in {plural(rows, 'row')}" for text, rows in codes.items()]
    rows = f"numbers like codes for missing cells in {plural(sum(codes.values()), 'row')}"
    return f"{name!r} has {cell(listing(counted), rows)}" if codes else ""


def codes_of_missing(cells: Cells, *, is_number: bool) -> dict[str, int]:
    """Texts in a column that look like codes for missing cells, with their rows."""
    texts, counts = cells.texts, np.bincount(cells.codes + 1, minlength=len(cells.texts) + 1)
    rows = dict(zip(texts, counts[1:].tolist(), strict=True))
    codes = _missing_codes(rows, is_number=is_number)
    # a 9 may be one of many numbers, and is a code of scores and grades
    odd = [code for code in codes if code != "9"] if is_number else _missing_words(texts) + codes
    return {text: rows[text] for text in odd}


def suspect(name: str, cells: Cells, *, is_number: bool, is_guess: bool) -> dict[str, str]:
    """Problems of a column, by name of the problem.

    Under "alike" is a digest of the column's content, under "codes" those for missing cells.

    Parameters
    ----------
    is_number : whether it is taken as a number, and not as levels.
    is_guess : whether that was guessed, not declared.
    """
    texts = cells.texts
    rows = np.bincount(cells.codes[~cells.missing], minlength=len(texts))
    problems = {}
    if codes := codes_of_missing(cells, is_number=is_number):
        problems["missing"] = _counted(name, codes)
        # to be pasted: nothing that could steer a terminal
        if "".join([name, *codes]).isprintable():
            problems["codes"] = "\n".join(codes)
    if not is_number:
        if twins := alike(texts):
            problems["spelling"] = f"{name!r} has {' and '.join(quoted(group) for group in twins)}"
        if is_guess:
            problems |= _suspect_levels(name, texts)
    elif is_guess and _looks_like_identifier(name, cells):
        problems["identifier"] = f"{name!r}, such as {texts[0]}"
    return problems | _suspect_rows(name, cells, rows)


def warn_of(columns: Mapping[str, dict[str, str]], where: str) -> None:
    """Warn once of each problem that `suspect` detected in the columns."""
    groups: dict[str, list[str]] = {}
    for name, odd in columns.items():
        if "alike" in odd:
            groups.setdefault(odd["alike"], []).append(repr(name))
    codes = {name: odd["codes"].splitlines() for name, odd in columns.items() if "codes" in odd}
    pairs = [" and ".join(names) for names in groups.values() if len(names) > 1]
    for problem, advice in PROBLEMS.items():
        clauses = [odd[problem] for odd in columns.values() if problem in odd]
        clauses = pairs if problem == "alike" else clauses
        if clauses:
            text = f"{where}: {listing(clauses)}: {advice}"
            named: dict[str, object] = {"exclude": ..., "id": ..., "na_values": codes or ...}
            named["missing"] = "level"
            warn(DataWarning(text, **named))


def _missing_words(texts: list[str]) -> list[str]:
    words = [text for text in texts if LIKE_MISSING.fullmatch(folded(text))]
    return [text for text in words if not (text == "-" and "+" in texts)]


def _missing_codes(rows: Mapping[str, int], *, is_number: bool) -> list[str]:
    """Codes far from all other numbers, alone among words, or with too many rows.

    A code is far if it is beyond the range of the others by more than that range, or by more than
    five times their widest gap: 99 is far from ages of 28 to 77, all of which occur.
    """
    numbers = {text: float(text) for text in rows if NUMBER.fullmatch(text)}
    codes = [text for text, value in numbers.items() if value in MISSING_CODES]
    counted = sorted((v, rows[text]) for text, v in numbers.items() if v not in MISSING_CODES)
    plain = [value for value, _ in counted]
    if len(plain) < 2:
        return codes if len(codes) == len(numbers) < len(rows) - 1 else []
    low, high = plain[0], plain[-1]
    near = (max(0.0, 2 * low - high) if low >= 0 else 2 * low - high, 2 * high - low)
    reach = GAPS * float(np.diff(plain).max()) if len(plain) > MOST_WHOLE_LEVELS else np.inf
    near = max(near[0], low - reach), min(near[1], high + reach)
    return [
        text
        for text in codes
        if not near[0] < numbers[text] < near[1]
        or (is_number and _is_spike(numbers[text], rows[text], counted))
    ]


def _is_spike(code: float, count: int, neighbours: list[tuple[float, int]]) -> bool:
    """Whether a code is far more frequent than the numbers next to it."""
    place = bisect_left(neighbours, (code, 0))
    near = [rows for _, rows in neighbours[max(place - NEAREST, 0) : place + NEAREST]]
    enough = max(SPIKE_ROWS, SPIKE_TIMES * max(near))
    return len(near) == 2 * NEAREST and count >= enough


def _suspect_levels(name: str, texts: list[str]) -> dict[str, str]:
    numbers, words = numbers_and_words(texts)
    odd = [text for text in (*numbers, *words) if not NUMBER.fullmatch(text)]
    if len(numbers) > MOST_WHOLE_LEVELS and odd:
        return {"words": f"{name!r} has {len(numbers)} numbers and {quoted(odd[-3:])}"}
    if len(texts) > MOST_LEVELS:
        return {"many": f"{name!r} has {len(texts)} different texts such as {texts[0]!r}"}
    return {}


def _looks_like_identifier(name: str, cells: Cells) -> bool:
    """Whether whole numbers name rows: by the column's name, or long and all different."""
    lengths = {len(text) if text.isdecimal() else 0 for text in cells.texts}
    is_long = len(lengths) == 1 and min(lengths) > 4 and len(cells.texts) == len(cells.codes)
    return is_long or (0 not in lengths and NAMES_ROWS.search(name) is not None)


def _suspect_rows(name: str, cells: Cells, rows: Ints) -> dict[str, str]:
    n = len(cells.codes)
    if n < FEWEST_ROWS or not len(rows):
        return {}
    if len(rows) == 1:
        text = f"{name!r} has only one value in {plural(rows[0], 'row')}, {cells.texts[0]!r}"
        return {"ticks": text} if cells.missing.any() else {}
    if n - rows.max() < FEWEST_ROWS / 2:
        return {}  # rare levels fall together by chance
    # spellings are numbered as they first occur: equal codes are the same split of the rows, which
    # tells nothing where nearly all cells differ
    content = cells.codes.tobytes()
    if n - len(rows) < FEWEST_ROWS / 2:
        content += repr(cells.texts).encode()
    return {"alike": hashlib.sha256(content).hexdigest()}
