"""What is wrong with a set of settings, in the words of the person who wrote them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

KeyPath = tuple[str | int, ...]

MOST_LISTED = 50
LONGEST_QUOTE = 60

ALLOWED = {
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "at least {ge}",
    "int_type": "a whole number",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "model_attributes_type": "a table of settings",
    "model_type": "a table of settings",
    "string_type": "text in quotes",
    "tuple_type": "a list",
    "union_tag_invalid": "{expected_tags}",
}
"""What a setting must be, by the validator's name for the complaint."""

ABOUT_KEYS = {"missing", "extra_forbidden", "union_tag_not_found"}
"""Complaints about keys rather than values: `key_problems` says them better."""

ABSENT = object()


@dataclass(frozen=True)
class Problem:
    """One thing to put right: where it is, and what is wrong, as the end of a sentence."""

    path: KeyPath
    text: str


def rule(text: str, *, key: str | None = None) -> PydanticCustomError:
    """Return the error a validator raises when one of our own rules is broken.

    Parameters
    ----------
    text : the end of a sentence that starts with the setting's name.
    key : the setting, inside the record being validated, that the sentence is about.
    """
    return PydanticCustomError("rule", "{text}", {"text": text, "key": key})


def refusal(source: str, problems: list[Problem], place: Callable[[KeyPath], str]) -> str:
    """Return the message that lists the problems of `source`, one a line."""
    lines = [f"{place(problem.path)} {problem.text}" for problem in problems[:MOST_LISTED]]
    if len(problems) > MOST_LISTED:
        lines.append("(and more)")
    return "\n  - ".join([f"{source} cannot be used:", *lines])


def find_problems(
    record: type[BaseModel],
    data: Mapping[str, object],
    error: ValidationError | None,
    *,
    complete: bool = False,
) -> list[Problem]:
    """Return what keeps `data` from being a `record`, in the order of the record's settings.

    Parameters
    ----------
    error : what the validator said, None if it was content.
    complete : whether a setting that has a default must be stated all the same.
    """
    found = chain(
        value_problems(error, data) if error else (),
        key_problems(record, data, (), complete=complete),
    )
    order = {name: position for position, name in enumerate(record.model_fields)}
    return sorted(
        islice(found, MOST_LISTED + 1),
        key=lambda problem: order.get(str(problem.path[0]) if problem.path else "", len(order)),
    )


def key_problems(
    record: type[BaseModel], data: Mapping[str, object], path: KeyPath, *, complete: bool
) -> Iterator[Problem]:
    """Yield the unknown and the missing keys of a table, and of the tables inside it."""
    for key in data:
        if key not in record.model_fields:
            yield Problem((*path, key), _unknown(key, record))
    for name, field in record.model_fields.items():
        here = (*path, name)
        if name in data:
            yield from _inner_key_problems(field, data[name], here, complete=complete)
        elif field.is_required():
            yield Problem(here, "is missing")
        elif complete and _tables(field):
            yield Problem(here, f"is missing; add the table [{'.'.join(map(str, here))}]")
        elif complete and field.default is not None:
            advice = f"is missing; the default is {name} = {quote(field.default)}"
            yield Problem(here, advice)


def _inner_key_problems(
    field: FieldInfo, value: object, path: KeyPath, *, complete: bool
) -> Iterator[Problem]:
    """Yield the key problems of the table, or the list of tables, that a setting holds."""
    tables = _tables(field)
    if get_origin(field.annotation) is tuple:
        for position, entry in enumerate(value if isinstance(value, list | tuple) else ()):
            if tables and isinstance(entry, dict):
                yield from key_problems(tables[0], entry, (*path, position), complete=complete)
    elif tables and isinstance(value, dict):
        if field.discriminator and "method" not in value:
            words = _either([repr(_method(table)) for table in tables])
            yield Problem((*path, "method"), f"is missing; it must be {words}")
        for table in tables:
            if not field.discriminator or _method(table) == value.get("method"):
                yield from key_problems(table, value, path, complete=complete)


def _tables(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the records a setting may hold; none for a plain value."""
    annotation = field.annotation
    kinds = get_args(annotation) if get_origin(annotation) else (annotation,)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _method(table: type[BaseModel]) -> object:
    """Return the word that stands for a record in a study file."""
    return table.model_fields["method"].default


def _unknown(key: str, record: type[BaseModel]) -> str:
    near = nearest(key, record.model_fields)
    if near:
        return f"is not a setting; did you mean {near!r}?"
    return f"is not a setting; the settings here are {', '.join(record.model_fields)}"


def value_problems(error: ValidationError, data: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what the validator said about values, one problem for each setting."""
    details = [d for d in error.errors(include_url=False) if d["type"] not in ABOUT_KEYS]
    for path, about in groupby(details, key=lambda detail: _path(detail, data)):
        yield Problem(path, _predicate(list(about)))


def _path(detail: ErrorDetails, data: object) -> KeyPath:
    """Return where the complaint is in `data`, without the validator's own signposts."""
    path: KeyPath = ()
    for step in detail["loc"]:
        inside = _child(data, step)
        if inside is not ABSENT:
            path, data = (*path, step), inside
    if detail["type"] == "union_tag_invalid":
        return (*path, "method")
    key = detail.get("ctx", {}).get("key")
    return (*path, key) if key else path


def _child(data: object, step: str | int) -> object:
    """Return what a table holds under a key, or a list at a position; ABSENT if nothing."""
    if isinstance(data, dict):
        return data.get(step, ABSENT)
    if isinstance(data, list | tuple) and isinstance(step, int):
        return data[step]
    return ABSENT


def _predicate(details: list[ErrorDetails]) -> str:
    """Return the end of the sentence about one setting."""
    first = details[0]
    context = first.get("ctx", {})
    if first["type"] == "rule":
        return str(context["text"])
    value = context.get("tag", first["input"])
    allowed = _either([_allowed(detail) for detail in details])
    near = nearest(value, re.findall("'([^']*)'", allowed)) if isinstance(value, str) else None
    question = f"; did you mean {near!r}?" if near else ""
    return f"is {quote(value)}; it must be {allowed}{question}"


def _allowed(detail: ErrorDetails) -> str:
    """Return what one complaint asks for."""
    wording = ALLOWED.get(detail["type"])
    if wording is None:
        return f"something else ({detail['msg']})"
    text = wording.format(**detail.get("ctx", {}))
    return _either(text.split(", ")) if detail["type"] == "union_tag_invalid" else text


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, if any."""
    near = difflib.get_close_matches(word[:LONGEST_QUOTE], list(known), n=1)
    return near[0] if near else None


def quote(value: object) -> str:
    """Return a found value as a study file shows it, short enough for one line."""
    match value:
        case bool():
            text = "true" if value else "false"
        case list() | tuple():
            text = "a list"
        case dict():
            text = "a table"
        case str() if len(value) > LONGEST_QUOTE:
            text = repr(value[:LONGEST_QUOTE] + "...")
        case int() if value.bit_length() > 3 * LONGEST_QUOTE:
            text = "a number of very many digits"
        case str() | int() | float():
            text = repr(value)
        case _:
            text = str(value)[:LONGEST_QUOTE]
    return text


def file_place(data: Mapping[str, object], path: KeyPath) -> str:
    """Return how a study file's reader would name a place in it: "[schedule] burn_in"."""
    words = []
    match path:
        case ("variables", int(position), *rest):
            words, path = [_variable(data, position)], tuple(rest)
    keys = [_key(step) for step in path if isinstance(step, str)]
    if keys[1:]:
        words.append(f"[{'.'.join(keys[:-1])}]")
    words += keys[-1:]
    if path and isinstance(path[-1], int):
        words.append(f"entry {path[-1] + 1}")
    return " ".join(words)


def _variable(data: Mapping[str, object], position: int) -> str:
    """Name one entry of `variables` by its number and, where it has one, its name."""
    name = _child(_child(_child(data, "variables"), position), "name")
    number = f"[[variables]] {position + 1}"
    return f"{number} ({quote(name)})" if isinstance(name, str) else number


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]{1,60}", key) else quote(key)
