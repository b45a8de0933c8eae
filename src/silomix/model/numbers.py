"""Numeric columns: which columns are numeric, their units, their values in these units."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import DataError, cell
from silomix.families import KINDS
from silomix.model.reading import NUMBER, Cells, spell
from silomix.model.schema import Variable
from silomix.model.sentences import first_of, listing, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import narwhals as nw

    from silomix.kernels.arrays import Bools, Floats

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

# What counts as a number in a column that is declared numeric.
DECIMAL = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)


def declared_words() -> dict[str, tuple[str, str]]:
    """Words by which a column can be declared, each with its kind and transform."""
    words = {kind: (kind, "none") for kind in KINDS if kind != "parameter"}
    return words | {"log-gaussian": ("gaussian", "log")}


def is_level(word: str) -> bool:
    """Whether columns declared by this word have levels."""
    return KINDS[declared_words()[word][0]].has_levels


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


def read_numbers(cells: Cells, label: str) -> Floats:
    """Number in each cell, nan where it is missing: (row,)."""
    numbers = [float(text) if DECIMAL.fullmatch(text) else np.nan for text in cells.texts]
    values = np.array([*numbers, np.nan])[cells.codes]
    is_wrong = ~np.isfinite(values) & ~cells.missing
    if is_wrong.any():
        example = repr(cells.texts[cells.codes[np.argmax(is_wrong)]])
        raise _refused(label, example, is_wrong, "is not a finite number")
    return values


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
        raise _refused(label, spell(values[np.argmax(is_far)]), is_far, problem)
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
        raise _refused(label, spell(values[np.argmax(bad)]), bad, problem)
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


def _refused(label: str, example: str, cells: Bools, problem: str) -> DataError:
    example = cell(example, first_of(int(cells.sum())))
    where = f"{label} has {example} in data row {np.argmax(cells) + 1}, which {problem}"
    advice = "correct it or leave it empty; where the study is made, give {na_values} or {kinds}"
    return DataError(f"{where}; {advice}", na_values=..., kinds=None)
