"""Columns: which are numeric, their values in the units of the study, and what is suspicious."""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import DataError, DataWarning, cell, warn
from silomix.families import KINDS
from silomix.model.reading import COMMA_NUMBER, NUMBER, Cells, read_numbers, refused, spell
from silomix.model.schema import Variable
from silomix.model.sentences import listing, plural, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import narwhals as nw

    from silomix.kernels.arrays import Bools, Floats, Ints

# Larger whole numbers are identifiers or amounts, not counts.
LARGEST_COUNT = 1e9
# Cells outside the support of a kind, and how messages describe them.
SUPPORTS: dict[str, tuple[Callable[[Floats], Bools], str]] = {
    "all": (lambda x: np.zeros(x.shape, dtype=bool), ""),
    "positive": (lambda x: x <= 0, "is not above zero"),
    "counts": (
        lambda x: (x < 0) | (x > LARGEST_COUNT) | (x != np.floor(x)) & ~np.isnan(x),
        "is not a count: a whole number from zero to a billion",
    ),
}

# A column of whole numbers with at most this many distinct values is categorical.
MOST_WHOLE_LEVELS = 10
# A value with at least this share of the observed cells is modelled as a spike.
SPIKE_SHARE = 0.2
SPIKE_LEVELS = ("no", "yes")
# A column that counts 1, 2, 3, … over more rows than this is an identifier.
LONGEST_COUNTING = 50
# Digits of a location or an edge in the study file, which all silos read.
DIGITS = 3
# Largest distance from the location, in scales: beyond it a square would swamp all other terms.
# Other programs' codes for missing cells, such as 8.99e307, are refused by this.
FARTHEST = 1e12
# The interquartile range of a normal distribution, in standard deviations.
NORMAL_RANGE = 1.349

# A day, 2026-01-31 or 20260131 or 31.01.2026 or 1/31/26 or 31 Jan 2026, with or without a time.
DAY = re.compile(
    r"(?:\d{4}([./-])\d\d?\1\d\d?|\d\d?([./-])\d\d?\2(?:\d{4}|\d\d)"
    r"|(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
    r"|\d\d?[. -]*[A-Za-z]{3,9}[. -]*\d{4}|[A-Za-z]{3,9} \d\d?, \d{4})(?:[T ].*)?",
    re.ASCII,
)
# Number of distinct texts examined for dates.
FIRST_TEXTS = 1000

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


def declared_words() -> dict[str, tuple[str, str]]:
    """Words by which a column can be declared, each with its kind and transform."""
    words = {kind: (kind, "none") for kind in KINDS if kind != "parameter"}
    return words | {"log-gaussian": ("gaussian", "log")}


def guess_kind(column: nw.Series[Any], cells: Cells, label: str) -> str:
    """Kind of a column without declared levels, judged by its cells; counts are not guessed.

    Raises
    ------
    DataError
        When the column has dates or times, or numbers its rows.
    """
    advice = "leave it out with {exclude}"
    sample = cells.texts[:FIRST_TEXTS]
    days = [text for text in sample if DAY.fullmatch(text)]
    if column.dtype.is_temporal() or 2 * len(days) > len(sample):
        problem = f"{label} has dates or times" + (f", such as {days[0]!r}" if days else "")
        advice = f"{advice}, or turn it into a number, such as an age or the days since an event"
        text = f"{problem}; {advice}; if its dates are levels, declare them 'categorical' with "
        raise DataError(f"{text}{{kinds}}", exclude=..., kinds=None)
    is_number = column.dtype.is_numeric() or all(map(NUMBER.fullmatch, cells.texts))
    if not is_number or len(cells.texts) <= 2:
        return "categorical"
    values = np.array([float(text) for text in cells.texts])
    is_whole = bool((values == np.floor(values)).all()) and bool(np.isfinite(values).all())
    if is_whole and len(values) <= MOST_WHOLE_LEVELS:
        return "categorical"
    counts_rows = is_whole and np.ptp(values) + 1 == len(values) == len(cells.codes)
    if counts_rows and len(values) > LONGEST_COUNTING:
        problem = f"{label} numbers the rows, {values.min():.0f} to {values.max():.0f}, each once"
        text = f"{problem}: looks like an identifier; {advice}, or name it with {{id}} of fit, or "
        text += "declare what it is with {kinds}"
        raise DataError(text, exclude=..., id=..., kinds=None)
    return "gaussian"


def guess_told(variables: Sequence[Variable], declared: Collection[str], setting: str) -> str:
    """Sentence about the kinds that were guessed of numeric columns; empty if none was.

    A few whole numbers are taken as levels. The sentence names such columns if the numbers have
    gaps, as ages in a short table do: later rows with other ages would be refused.

    Parameters
    ----------
    declared : the columns whose kind was declared.
    setting : the name of the setting that declares kinds, for the reader.
    """
    guessed = [v.name for v in variables if not v.levels and v.name not in declared]
    spaced = [
        f"{v.name} ({listing(v.levels)})"
        for v in variables
        if v.name not in declared and not v.edges and _is_spaced(v.levels)
    ]
    if not guessed and not spaced:
        return ""
    verb = "is taken as a number" if len(guessed) == 1 else "are taken as numbers"
    split = [
        f"{variable.source} is split into whether it is {spell(variable.spike)} and its other "
        "values"
        for variable in variables
        if variable.source
    ]
    independence = ", independent within a cluster" if len(guessed) > 1 else ""
    parts = [f"{listing(guessed)} {verb} (gaussian{independence})"] if guessed else []
    parts += split + ([f"taken as levels: {listing(spaced)}"] if spaced else [])
    return "; ".join([*parts, f"declare {setting} to change that"])


def _is_spaced(levels: Sequence[str]) -> bool:
    """Whether levels are three numbers or more, with gaps between them."""
    if len(levels) < 3 or not all(map(NUMBER.fullmatch, levels)):
        return False
    values = sorted(map(float, levels))
    return values[-1] - values[0] >= len(values)


def in_units(values: Floats, variable: Variable, label: str) -> Floats:
    """Numbers in the study's units, as in `Shard.numbers`: (row,). The spike is missing."""
    if variable.spike is not None:
        values = np.where(values == variable.spike, np.nan, values)
    values = _transformed(values, variable, label)
    if KINDS[variable.kind].units == "raw":
        return values
    # a huge number may be beyond all numbers in these units
    with np.errstate(over="ignore"):
        cells = (values - variable.location) / variable.scale
    is_far = np.abs(cells) > FARTHEST
    if is_far.any():
        problem = f"is too far from the other numbers: more than {FARTHEST:.0e} times their spread"
        raise refused(label, spell(values[np.argmax(is_far)]), is_far, problem)
    return cells


def number_variable(values: Floats, name: str, word: str, label: str) -> Variable:
    """Variable of a numeric column, with units estimated from the column.

    The location is the median of the observed numbers, and the scale their interquartile range,
    over a standard normal's; of counts and other raw numbers, the location is their mean.

    Parameters
    ----------
    values : (row,), nan where a cell is missing.
    word : one of `declared_words`.
    """
    kind, transform = declared_words()[word]
    variable = Variable(name, kind=kind, transform=transform)
    values = _transformed(values, variable, label)
    observed = values[~np.isnan(values)]
    if not len(observed):
        problem = f"{label} is declared as {word!r} and is missing in every row"
        raise DataError(f"{problem}; give a table that has some of its numbers, or leave it out")
    if KINDS[kind].units == "raw":
        # counts that are all zero still need a mean to be compared with
        mean = _rounded(float(observed.mean()), math.inf) if observed.any() else 1.0
        return Variable(name, kind=kind, location=mean)
    scale = _spread(observed)
    location = _rounded(float(np.median(observed)), scale)
    return Variable(name, (), kind, location, _rounded(scale, math.inf), transform)


def find_spike(values: Floats) -> float | None:
    """The value of at least `SPIKE_SHARE` of the observed numbers, or None."""
    distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    most = counts.max(initial=0)
    if len(distinct) < 2 or most < 2 or most < SPIKE_SHARE * counts.sum():
        return None
    return float(distinct[counts.argmax()])


def cut_variable(values: Floats, name: str, bins: int, label: str) -> Variable:
    """Categorical variable of numbers cut at their quantiles.

    A level begins with its lower edge. Levels are fewer than `bins` where quantiles are equal.
    """
    observed = values[~np.isnan(values)]
    edges, scale = [], _spread(observed)
    if len(observed):
        quantiles = np.quantile(observed, np.arange(1, bins) / bins)
        edges = sorted({_rounded(float(edge), scale) for edge in quantiles})
        # no level may be empty from the start
        edges = [edge for edge in edges if observed.min() < edge <= observed.max()]
    if not edges:
        problem = f"{label} cannot be cut into {bins} levels: its quantiles are not distinct"
        raise DataError(f"{problem}; leave it out of {{bins}}, or ask for more levels", bins=None)
    names = [spell(edge) for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(names)]
    levels = (f"below {names[0]}", *between, f"{names[-1]} or more")
    return Variable(name, levels, edges=tuple(edges))


def level_cells(cells: Cells, variable: Variable, label: str) -> Cells:
    """Cells of a categorical variable: levels, if the variable is made of numbers."""
    if not variable.edges and variable.spike is None:
        return cells
    values = read_numbers(cells, label)
    if variable.edges:
        codes = np.searchsorted(variable.edges, values, side="right")
    else:
        codes = (values == variable.spike).astype(np.int64)
    levels = variable.levels[: max(len(variable.edges) + 1, len(SPIKE_LEVELS))]
    return Cells(list(levels), np.where(cells.missing, -1, codes))


def _transformed(values: Floats, variable: Variable, label: str) -> Floats:
    """Numbers after the variable's transform; numbers outside its support are refused."""
    find_wrong, problem = SUPPORTS[KINDS[variable.kind].support]
    bad = find_wrong(values)
    if bad.any():
        raise refused(label, spell(values[np.argmax(bad)]), bad, problem)
    if variable.transform != "log":
        return values
    bad = values <= 0
    if bad.any():
        value = cell(f"{spell(values[np.argmax(bad)])} ") + f"in data row {np.argmax(bad) + 1}"
        words = f"{label} has {plural(int(bad.sum()), 'value')} not above zero, the first {value}"
        advice = "give {na_values}, or declare it as 'gaussian' with {kinds}"
        text = f"{words}, and zero or less has no logarithm; {advice}"
        raise DataError(text, na_values=..., kinds=None)
    return np.log(values)


def _spread(observed: Floats) -> float:
    """Robust scale: interquartile range, else standard deviation; 1 if all are equal."""
    if not len(observed) or observed.min() == observed.max():
        return 1.0
    low, high = np.quantile(observed, [0.25, 0.75])
    return float((high - low) / NORMAL_RANGE or observed.std())


def _rounded(value: float, scale: float) -> float:
    """A number rounded to `DIGITS` digits, or to more if the scale needs them."""
    decimals = [] if math.isinf(scale) else [-math.floor(math.log10(scale))]
    if value:
        decimals.append(DIGITS - 1 - math.floor(math.log10(abs(value))))
    return round(value, max(decimals, default=0))


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
    """Clause about the cells of a column that look like codes for missing ones, or ""."""
    codes = codes_of_missing(cells, is_number=is_number)
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
        problems["missing"] = like_missing(name, cells, is_number=is_number)
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
