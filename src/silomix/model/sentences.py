"""Format counts, lists and numbers for messages; refuse invalid values."""

from __future__ import annotations

import difflib
import math
import os
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from silomix.errors import SettingsError

MOST_LISTED = 10
# Stands where there is no number.
ABSENT = "–"


def printable(text: str) -> str:
    r"""Untrusted text with invisible characters and line ends escaped, so that it steers no screen.

    Characters that reorder text, or have no width, are escaped; spaces of any kind are not.

    Examples
    --------
    >>> from silomix.model.sentences import printable
    >>> print(printable("a\u202eb"))
    a\u202eb
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or unicodedata.category(sign) == "Zs" else repr(sign)[1:-1]
        for sign in text
    )


def printable_lines(text: str) -> str:
    """Untrusted text of several lines, each of them `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def plural(count: int, noun: str) -> str:
    """Count and noun: "1 draw", "2,000 draws"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_of(count: int) -> str:
    """Placeholder for the first of `count` values that are not shown."""
    return "a value" if count == 1 else f"a value (the first of {count:,})"


def listing(names: Sequence[str], most: int = MOST_LISTED, last: str = ", ") -> str:
    """Join names for a sentence, with the first few of many: "a, b and 3 more".

    `last` joins the last two where none is left out: " and " in running text.
    """
    n_more = len(names) - most
    if n_more > 0:
        return ", ".join(names[:most]) + f" and {n_more} more"
    return last.join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def quoted(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Join names as `listing` does, each in quotes."""
    return listing([repr(name) for name in names], most)


def number(value: float, form: str = ".2f") -> str:
    """Format a number, with a true minus; ABSENT where it is not finite."""
    return format(value, form).replace("-", "−") if math.isfinite(value) else ABSENT


def percent(share: float) -> str:
    """Format a share as a percentage: "32.1%", "0.04%"."""
    return number(share, ".2%" if 0 < share < 0.001 else ".1%")


def span(lower: float, upper: float, form: str) -> str:
    """Format an interval; ABSENT where there is none."""
    return f"{lower:{form}} to {upper:{form}}" if math.isfinite(lower) else ABSENT


def amount(value: float) -> str:
    """Format a number of any size with about four digits; whole if it has more."""
    return number(value, ",.4g" if abs(value) < 1e4 else ",.0f")


def probability(share: float, draws: int) -> str:
    """Format a probability, bounded by what this number of draws can resolve."""
    edge = max(1 / draws, 0.001)
    if share > 1 - edge:
        return f"> {1 - edge:.3g}"
    return f"< {edge:.3g}" if share < edge else number(share, ".3f")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Hint at the most similar known name, whatever the capitals."""
    folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold()[:60], folded, n=1)
    return f" (did you mean {folded[near[0]]!r}?)" if near else ""


def spoken(silo: str) -> str:
    """A silo's name to begin a sentence with; "silo 3" where it is a number."""
    return f"silo {silo}" if silo.isdecimal() else silo


def one_of(name: str, word: str, choices: Collection[str], of: str = "") -> None:
    """Refuse a word that is not among the choices; `of` says of what, where there are several."""
    if word not in choices:
        listed = ", ".join(map(repr, choices))
        hint = did_you_mean(str(word), choices)
        text = f"{{{name}}}{of} is not known{hint}; choose one of {listed}"
        raise SettingsError(text, **{name: word})


def at_least(name: str, value: object, least: int) -> int:
    """`value`; refuse it unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        text = f"{{{name}}} is {value!r:.60}; it must be a whole number, at least {least}"
        raise SettingsError(text, **{name: None})
    return int(value)


def cores(threads: int | None) -> int:
    """Number of threads: those requested, or all cores that this process may use."""
    if threads is not None:
        return at_least("threads", threads, 1)
    if hasattr(os, "sched_getaffinity"):  # a container or a scheduler may allow fewer than exist
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_mapping(name: str, value: object, of: str) -> Mapping[Any, Any]:
    """Mapping from each `of`, empty for None; refuse anything else."""
    if value is not None and not isinstance(value, Mapping):
        text = f"{{{name}}} is of type {type(value).__name__}; give a mapping from each {of}"
        raise SettingsError(text, **{name: None})
    return value or {}
