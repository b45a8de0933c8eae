"""The base of all settings: frozen, strict, and plain-spoken about what is wrong."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from silomix.errors import SettingsError
from silomix.study.problems import file_place, find_problems, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from silomix.study.problems import KeyPath

R = TypeVar("R", bound="Record")

_inside_another: ContextVar[bool] = ContextVar("inside_another", default=False)


class Record(BaseModel):
    """Frozen settings. Wrong ones raise `SettingsError`, every problem listed at once."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, /, **settings: object) -> None:
        settings = {name: _plain(value) for name, value in settings.items()}
        if _inside_another.get():
            super().__init__(**settings)
            return
        try:
            with outermost():
                super().__init__(**settings)
        except ValidationError as error:
            problems = find_problems(type(self), settings, error)
            place = partial(file_place, settings)
            raise SettingsError(refusal(type(self).__name__, problems, place)) from None


@contextmanager
def outermost() -> Iterator[None]:
    """Let the records made inside leave their problems to the caller, who lists them all."""
    token = _inside_another.set(True)
    try:
        yield
    finally:
        _inside_another.reset(token)


def _plain(value: object) -> object:
    """Return NumPy's numbers as Python's, and lists as the tuples that records hold."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(value) if isinstance(value, list) else value


def validate(
    record: type[R],
    data: Mapping[str, Any],
    *,
    source: str,
    place: Callable[[KeyPath], str],
    complete: bool = False,
) -> R:
    """Return `data` as a record, or refuse it with all its problems.

    Parameters
    ----------
    source : what the message calls `data`.
    place : how the message names a place in it.
    complete : whether a setting that has a default must be stated all the same.
    """
    try:
        with outermost():
            made = record(**data)
    except ValidationError as error:
        problems = find_problems(record, data, error, complete=complete)
    else:
        problems = find_problems(record, data, None, complete=complete)
        if not problems:
            return made
    raise SettingsError(refusal(source, problems, place))
