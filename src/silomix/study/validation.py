"""Records of settings: frozen, strict, with errors in plain words."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from inspect import cleandoc
from itertools import groupby, islice, pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from silomix.errors import SettingsError
from silomix.model.sentences import did_you_mean

KeyPath = tuple[str | int, ...]
# One problem: its place, and the end of a sentence about it.
Problem = tuple[KeyPath, str]
R = TypeVar("R", bound="Record")

MOST_LISTED = 50
LONGEST_QUOTE = 60
# A setting in the docstring of its record, and its help text.
ATTRIBUTE = re.compile(r"^(\w+) : (.*(?:\n    .*)*)", re.MULTILINE)
# Names of all records' settings, for hints at misspelt ones.
NAMES: set[str] = set()

# What a setting must be, by pydantic's type of error, where pydantic's own words would not help
# somebody who writes a file.
ALLOWED = {
    "bool_type": "true or false",
    "float_type": "a number",
    "greater_than_equal": "at least {ge}",
    "int_type": "a whole number",
    "less_than_equal": "at most {le}",
    "model_attributes_type": "a table of settings",
    "model_type": "a table of settings",
    "string_type": "text in quotes",
    "tuple_type": "a list",
}
# Characters: at four bytes each, a file name with a suffix still fits everywhere.
LONGEST_SILO_NAME = 60
NOT_IN_FILE_NAMES = '/\\:*?"<>|'
# Unicode's categories of control characters, line ends and surrogates.
CONTROLS = {"Cc", "Cs", "Zl", "Zp"}


class Record(BaseModel):
    """Frozen settings. Wrong ones raise `SettingsError`, every problem listed at once."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    # The setting that a word sets where it is given instead of the record.
    main: ClassVar[str] = "method"

    def __init__(self, /, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise refusal(type(self).__name__, _problems(error, settings)) from None

    # a record inside another is made by the validator itself, which lists the problems of both
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **unused: Any) -> None:
        """Take each setting's help text from the docstring."""
        NAMES.update(cls.model_fields)
        for name, text in ATTRIBUTE.findall(cleandoc(cls.__doc__ or "")):
            if name in cls.model_fields:
                cls.model_fields[name].description = " ".join(text.split())

    @model_validator(mode="before")
    @classmethod
    def _take_plain_values(cls, data: object) -> object:
        """Convert NumPy's numbers to Python's, and lists to tuples."""
        if not isinstance(data, dict):
            return data
        return {name: _plain(value) for name, value in data.items()}


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(value) if isinstance(value, list) else value


def rule(text: str, *, key: str | None = None) -> PydanticCustomError:
    """Error for a validator to raise when one of our own rules is broken.

    Parameters
    ----------
    text : the end of a sentence that starts with the setting's name.
    key : the setting of the record that the sentence is about: "name", or "table.name".
    """
    return PydanticCustomError("rule", "{text}", {"text": text, "key": key})


def validate(
    record: type[R],
    data: Mapping[str, Any],
    *,
    source: str,
    complete: bool = False,
    keywords: Mapping[KeyPath, str] | None = None,
) -> R:
    """`data` as a record, or refuse it with all its problems.

    Parameters
    ----------
    source : how messages refer to `data`.
    complete : whether settings with a default must be stated too.
    keywords : the caller's names of places in `data`; others are named as in a file.
    """
    try:
        settings = record.model_validate(data)
    except ValidationError as error:
        raise refusal(source, _problems(error, data), keywords) from None
    unstated = list(_unstated(settings.model_dump(exclude_none=True), data)) if complete else []
    if unstated:
        raise refusal(source, unstated)
    return settings


def digest(record: Record, *, without: str = "title") -> str:
    """SHA-256, in hexadecimal, of every setting but the title."""
    settings = record.model_dump(exclude={without})
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def refusal(
    source: str, problems: Sequence[Problem], keywords: Mapping[KeyPath, str] | None = None
) -> SettingsError:
    """Error that lists the problems of `source`, one a line."""
    named: dict[str, Any] = {}
    lines = [f"{source} cannot be used:"]
    for path, text in problems[:MOST_LISTED]:
        keyword = (keywords or {}).get(path)
        if keyword:
            named[keyword] = None
        lines.append(f"{f'{{{keyword}}}' if keyword else file_place(path)} {text}")
    if len(problems) > MOST_LISTED:
        lines.append("(and more)")
    return SettingsError("\n  - ".join(lines), **named)


def _unstated(
    complete: Mapping[str, Any], data: Mapping[str, Any], path: KeyPath = ()
) -> Iterator[Problem]:
    """Yield the settings of a complete document that `data` left to their defaults."""
    for name, value in complete.items():
        place, is_table = (*path, name), isinstance(value, dict)
        if name not in data:
            default = f"the default is {name} = {quote(value)}"
            added = f"add the table [{'.'.join(map(str, place))}]"
            yield place, f"is missing; {added if is_table else default}"
        elif is_table:
            yield from _unstated(value, data[name], place)


def _problems(error: ValidationError, data: Mapping[str, object]) -> list[Problem]:
    """Problems of the settings, one for each, at most one more than are listed."""
    by_path = groupby(error.errors(include_url=False), key=lambda detail: _path(detail, data))
    # hints at misspelt names take time, and a hostile file may have many
    return [(path, _predicate(list(group))) for path, group in islice(by_path, MOST_LISTED + 1)]


def _path(detail: ErrorDetails, data: object) -> KeyPath:
    """Place of a complaint in `data`, without the steps that pydantic adds."""
    path: KeyPath = ()
    for step in detail["loc"]:
        try:
            data = data[step]  # type: ignore[index]
        except (LookupError, TypeError):
            continue
        path = (*path, step)
    if detail["type"] == "missing":
        return (*path, detail["loc"][-1])
    key = detail.get("ctx", {}).get("key")
    return (*path, *key.split(".")) if key else path


def _predicate(details: list[ErrorDetails]) -> str:
    """End of the sentence about one setting."""
    first = details[0]
    context = first.get("ctx", {})
    match first["type"]:
        case "rule":
            return str(context["text"])
        case "missing":
            return "is missing"
        case "extra_forbidden":
            key = str(first["loc"][-1])
            return f"is not a setting{' here' if key in NAMES else did_you_mean(key, NAMES)}"
    value = first["input"]
    allowed = " or ".join(_allowed(detail) for detail in details)
    hint = did_you_mean(value, re.findall("'([^']*)'", allowed)) if isinstance(value, str) else ""
    return f"is {quote(value)}; it must be {allowed}{hint}"


def _allowed(detail: ErrorDetails) -> str:
    words = ALLOWED.get(detail["type"])
    own_words = detail["msg"].removeprefix("Input should be ")
    return words.format(**detail.get("ctx", {})) if words else own_words


def quote(value: object) -> str:
    """A value as a study file shows it, short enough for one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | dict):
        text = "" if isinstance(value, dict) else f"[{', '.join(map(quote, value))}]"
        long = len(text) > LONGEST_QUOTE
        return "a table" if isinstance(value, dict) else "a list" if long else text
    if isinstance(value, str) and len(value) > LONGEST_QUOTE:
        return repr(value[:LONGEST_QUOTE] + "...")
    return repr(value) if isinstance(value, str) else str(value)[:LONGEST_QUOTE]


def file_place(path: KeyPath) -> str:
    """Place in TOML, "schedule.burn_in"; "variables.2" is the second item of a list."""
    keys = (str(step + 1) if isinstance(step, int) else step for step in path)
    return ".".join(key if re.fullmatch(r"[\w-]{1,60}", key) else quote(key) for key in keys)


def check_writable(text: str, *, one_line: bool = False) -> str:
    """Check text: refuse control characters, and line ends if it must be one line."""
    visible = text if one_line else " ".join(text.split())
    if any(unicodedata.category(character) in CONTROLS for character in visible):
        raise rule(f"is {quote(text)}; it must not contain control characters")
    return text


def check_text(text: str) -> str:
    """Check the name of a variable or a level: refuse one that is blank or several lines."""
    if not text.strip():
        raise rule(f"is {quote(text)}; it must not be blank")
    return check_writable(text, one_line=True)


def check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check a list of names: refuse an empty one, or one with duplicates."""
    if not names:
        raise rule("is empty; it must list at least one")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise rule(f"lists {quote(twice[0])} more than once; each may appear once")
    return names


def check_silo(name: str) -> str:
    """Check the name of a silo: refuse one that cannot be a file name on some systems."""
    fits = 0 < len(name) <= LONGEST_SILO_NAME and name.isprintable() and name.strip() == name
    if not fits or name.strip(".") != name or set(NOT_IN_FILE_NAMES) & set(name):
        raise rule(
            f"is {quote(name)}; a silo's name becomes a file name: it must have 1 to "
            f"{LONGEST_SILO_NAME} visible characters, none of {NOT_IN_FILE_NAMES}, and no "
            "space or full stop at either end"
        )
    return name


def check_roster(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check the names of the silos: refuse two that would be the same file name."""
    check_distinct(names)
    spelled = sorted((unicodedata.normalize("NFC", name).casefold(), name) for name in names)
    for (folded, name), (next_folded, next_name) in pairwise(spelled):
        if folded == next_folded:
            pair = f"{quote(name)} and {quote(next_name)}"
            raise rule(f"lists {pair}, the same file name on some computers; rename one of them")
    return names
