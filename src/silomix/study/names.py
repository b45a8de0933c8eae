"""Which names a study may give to silos, variables and levels."""

from __future__ import annotations

import unicodedata
from collections import Counter
from itertools import pairwise

from silomix.study.validation import quote, rule

# Characters: at four bytes each, a file name with a suffix still fits everywhere.
LONGEST_SILO_NAME = 60

NOT_IN_FILE_NAMES = '/\\:*?"<>|'
# What Windows does not take as a file name, whatever the suffix.
DEVICES = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(10)}

# Unicode's categories of characters that do something, or stand for half of one.
CONTROLS = {"Cc", "Cs", "Zl", "Zp"}


def spoken(silo: str) -> str:
    """Return a silo's name to begin a sentence with: a bare number would look like a list's."""
    return f"silo {silo}" if silo.isdecimal() else silo


def check_writable(text: str) -> str:
    """Return text of any number of lines; refuse what no file can hold, or a screen obeys."""
    if has_controls(" ".join(text.split())):
        raise rule(f"is {quote(text)}; it must not contain control characters")
    return text


def check_text(text: str) -> str:
    """Return the name of a variable or a level; refuse one that is not one line to read."""
    if not text.strip():
        raise rule(f"is {quote(text)}; it must not be blank")
    if has_controls(text):
        raise rule(f"is {quote(text)}; it must not contain control characters")
    return text


def has_controls(text: str) -> bool:
    """Tell whether there are control characters in a text: escapes, tabs, ends of lines."""
    return any(unicodedata.category(character) in CONTROLS for character in text)


def check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a list of names; refuse an empty one, and one that says the same twice."""
    if not names:
        raise rule("is empty; it must list at least one")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise rule(f"lists {quote(twice[0])} more than once; each may appear once")
    return names


def check_silo(name: str) -> str:
    """Return the name of a silo; refuse one that some computer cannot use as a file name."""
    broken = {
        "not contain any of " + " ".join(NOT_IN_FILE_NAMES): set(NOT_IN_FILE_NAMES) & set(name),
        "not contain control or invisible characters": not name.isprintable(),
        "not begin or end with a full stop": name.strip(".") != name,
        "not be blank, or begin or end with a space": not name or name.strip() != name,
        f"have at most {LONGEST_SILO_NAME} characters": len(name) > LONGEST_SILO_NAME,
        "not be a name that Windows keeps for itself": name.split(".")[0].lower() in DEVICES,
    }
    for what, is_broken in broken.items():
        if is_broken:
            reason = "a silo's name becomes a file name"
            raise rule(f"is {quote(name)}; it must {what}, because {reason}")
    return name


def check_roster(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the silos; refuse two that one file name could stand for."""
    check_distinct(names)
    spelled = sorted((unicodedata.normalize("NFC", name).casefold(), name) for name in names)
    for (folded, name), (next_folded, next_name) in pairwise(spelled):
        if folded == next_folded:
            both = f"{quote(name)} and {quote(next_name)}"
            raise rule(f"lists {both}, one file name on some computers; rename one of them")
    return names
