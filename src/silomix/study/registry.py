"""Registries of methods: a record of options, and the function that carries the method out.

    MATCHINGS.register(Nearest, nearest_groups)

is all that makes `matching="nearest"` a choice, in every program that reads the study. A function
may be named instead, "package.module:function": it is imported when it is first called, so a silo
that only reads the study file never imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple

from silomix.model.sentences import did_you_mean
from silomix.study.validation import Record, quote, rule


class Asked(NamedTuple):
    """What a method asks of the silos.

    Attributes
    ----------
    questions : class names of the messages.
    words : what they ask for, for people.
    times : how many questions each silo gets, at most; None where nobody can say.
    points : at how many points one of them may be.
    """

    questions: tuple[str, ...]
    words: str
    times: int | None
    points: int = 1


class Registered(NamedTuple):
    """A method: the class of its options, and its function or the name of it."""

    record: type[Any]
    function: Callable[..., Any] | str


class Registry(dict[str, Registered]):
    """The methods of one kind, by word."""

    def register(self, record: type[Method], function: Callable[..., Any] | str) -> None:
        """Add a method; its word is the default of the record's `method`."""
        self[record.model_fields["method"].default] = Registered(record, function)

    def function(self, settings: Method) -> Callable[..., Any]:
        """Return the function that carries out the method with these options."""
        function = self[settings.method].function
        return resolve_name(function) if isinstance(function, str) else function

    def parse(self, value: object) -> object:
        """Turn a table of options into the record of the method that it names."""
        if not isinstance(value, dict | Method):
            return value
        word = value.get("method") if isinstance(value, dict) else value.method
        if word is None:
            raise rule("is missing", key="method")
        if not isinstance(word, str) or word not in self:
            hint = did_you_mean(word, self) if isinstance(word, str) else ""
            words = ", ".join(map(repr, self))
            raise rule(f"is {quote(word)}; it must be one of {words}{hint}", key="method")
        return self[word].record.model_validate(value)


class Method(Record):
    """Options of a method, which is chosen by a word.

    Attributes
    ----------
    method : the word.
    methods : the registry of its kind.
    """

    methods: ClassVar[Registry]

    method: str

    def asks(self, silos: int) -> Asked | None:
        """Return what the method asks of each of so many silos; None for nothing."""
