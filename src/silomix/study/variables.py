"""`[[variables]]` of a study: what every silo calls a column, and how its cells are to be read."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from silomix.model.families import KINDS, all_kinds
from silomix.model.numbers import SPIKE_LEVELS
from silomix.model.schema import MISSING_LEVEL
from silomix.model.sentences import did_you_mean
from silomix.study.validation import (
    Record,
    check_distinct,
    check_text,
    check_writable,
    quote,
    rule,
)

if TYPE_CHECKING:
    from silomix.model.schema import Variable

Text = Annotated[str, AfterValidator(check_text)]
Writable = Annotated[str, AfterValidator(check_writable)]

OF_CATEGORIES, OF_NUMBERS = ("levels", "source", "edges"), ("location", "scale", "transform")


def _check_kind(kind: str) -> str:
    # a study file comes from elsewhere: it can name a class, and never have one imported
    if kind not in all_kinds():
        words = ", ".join(map(repr, all_kinds()))
        raise rule(f"is {quote(kind)}; it must be one of {words}{did_you_mean(kind, all_kinds())}")
    return kind


class VariableSettings(Record):
    """One variable that every silo has: `[[variables]]`, with the keys that its kind needs.

    The keys are those of `Variable`; None where the kind has no such key.
    """

    name: Text
    kind: Annotated[str, AfterValidator(_check_kind)] = "categorical"
    levels: Annotated[tuple[Text, ...], AfterValidator(check_distinct)] | None = None
    location: float | None = None
    scale: Annotated[float, Field(gt=0)] | None = None
    transform: Literal["none", "log", "logit"] | None = None
    spike: float | None = None
    source: Text | None = None
    edges: tuple[float, ...] | None = None
    prior: tuple[float, Annotated[float, Field(gt=0)]] | None = None
    na_values: Annotated[tuple[Writable, ...], AfterValidator(check_distinct)] | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        is_category, is_parameter = self.kind == "categorical", self.kind == "parameter"
        for key in ("levels",) if is_category else OF_NUMBERS:
            if getattr(self, key) is None:
                raise rule("is missing", key=key)
        foreign = OF_NUMBERS if is_category else OF_CATEGORIES
        for key in foreign if is_parameter else (*foreign, "prior"):
            if getattr(self, key) is not None:
                raise rule(f"is not a setting of a {self.kind} variable", key=key)
        if self.transform == "logit" and not is_parameter:
            raise rule("is 'logit'; it must be 'none' or 'log'", key="transform")
        if is_category:
            self._check_levels()
        elif KINDS[self.kind].units == "raw":
            self._check_raw(KINDS[self.kind].word, KINDS[self.kind].support)
        return self

    def _check_levels(self) -> None:
        """Refuse levels that do not fit the numbers that they are made of."""
        levels = tuple(level for level in self.levels or () if level != MISSING_LEVEL)
        if (self.source is None) != (self.spike is None):
            raise rule("and spike need each other; give both or none", key="source")
        if self.spike is not None and levels != SPIKE_LEVELS:
            raise rule(f"must be {list(SPIKE_LEVELS)}, since there is a spike", key="levels")
        if self.edges is not None:
            is_rising = all(low < high for low, high in pairwise(self.edges))
            if not self.edges or not is_rising or len(levels) != len(self.edges) + 1:
                text = "must be one number fewer than there are levels, each above the one before"
                raise rule(text, key="edges")

    def _check_raw(self, word: str, support: str) -> None:
        if support != "all" and not (self.location or 0) > 0:
            raise rule(f"is {self.location}; the mean of {word} must be above 0", key="location")
        if (self.scale, self.transform) != (1, "none"):
            key = "scale" if self.scale != 1 else "transform"
            raise rule(f"changes {word}; it must be 1.0, and transform 'none'", key=key)

    @model_serializer(mode="wrap")
    def _own_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what the kind does not have; a category has no kind to state either."""
        left_out = {"kind": "categorical"}
        return {k: v for k, v in dump(self).items() if v is not None and left_out.get(k) != v}


def describe(variable: Variable) -> dict[str, Any]:
    """Return the keys of a variable, as a study file has them."""
    foreign = OF_NUMBERS if variable.kind == "categorical" else OF_CATEGORIES
    stated = {key: value for key, value in asdict(variable).items() if key not in foreign}
    return {key: value for key, value in stated.items() if value not in (None, "", ())}


def check_variables(variables: tuple[VariableSettings, ...]) -> tuple[VariableSettings, ...]:
    """Return the variables of a study; refuse two of one name, and kinds that are mixed up."""
    check_distinct(tuple(variable.name for variable in variables))
    places = [all_kinds().index(variable.kind) for variable in variables]
    if places != sorted(places):
        raise rule(f"must stand in the order of their kinds: {', '.join(all_kinds())}")
    return variables
