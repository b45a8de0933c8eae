"""Format counts and lists for messages, and guess misspelt words."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_LISTED = 10


def plural(count: int, noun: str) -> str:
    """Return a count and its noun: "1 draw", "2,000 draws"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listing(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return names for a sentence, the first few of many: "a, b and 3 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def quoted(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return names as `listing` does, each in quotes."""
    return listing([repr(name) for name in names], most)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, if any."""
    near = difflib.get_close_matches(word[:60], list(known), n=1)
    return near[0] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the name that was probably meant, however it is capitalised."""
    folded = {name.casefold(): name for name in known}
    near = nearest(word.casefold(), folded)
    return f" (did you mean {folded[near]!r}?)" if near else ""
