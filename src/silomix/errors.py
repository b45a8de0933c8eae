"""Errors and warnings: every error that silomix raises on purpose is a `SilomixError`."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_hides_cells: ContextVar[bool] = ContextVar("hides_cells", default=False)


@contextmanager
def hiding_cells(*, unless: bool = False) -> Iterator[None]:
    """Keep cells of a table out of messages: a silo's user may pass messages on."""
    token = _hides_cells.set(_hides_cells.get() or not unless)
    try:
        yield
    finally:
        _hides_cells.reset(token)


def cell(text: str, instead: str = "") -> str:
    """Text that quotes cells, or `instead` where cells are hidden."""
    return instead if _hides_cells.get() else text


def as_logged(error: BaseException) -> str:
    """Traceback of an error, and its text if it is ours: another's may quote a cell."""
    text = str(error) if isinstance(error, SilomixError) else getattr(error, "strerror", "")
    where = "".join(traceback.format_tb(error.__traceback__))
    return f"{where}{type(error).__name__}: {text}".rstrip(": ")


def as_keyword(name: str, value: object) -> str:
    """A setting as Python writes it: its name, or `silo='ward'` where a value is meant."""
    shown = "..." if value is ... else repr(value)
    return name if value is None else f"{name}={shown}"


class _Worded(Exception):
    """A message that names settings as "{silo}", which each interface words in its own way.

    Attributes
    ----------
    settings : the settings that the message names, with their values, if any.
    """

    def __init__(self, message: str = "", **settings: object) -> None:
        super().__init__(message)
        self.settings = settings

    def worded(self, name_setting: Callable[[str, object], str]) -> str:
        """The message with each setting as the interface calls it."""
        text = str(self.args[0])
        for name, value in self.settings.items():
            text = text.replace(f"{{{name}}}", name_setting(name, value))
        return text

    def __str__(self) -> str:
        return self.worded(as_keyword)


class SilomixError(_Worded):
    """Base of every error that silomix raises on purpose.

    Attributes
    ----------
    code : reported to the coordinator instead of the text, one of `silomix.messages.REFUSALS`.

    Examples
    --------
    >>> try:
    ...     silomix.fit(table, silo="Silo")
    ... except silomix.SilomixError as error:
    ...     print(str(error).partition(";")[0])
    the table has no column 'Silo' to tell the silos apart (did you mean 'silo'?)
    """

    code = "failed"


class DataError(SilomixError, ValueError):
    """The table is unusable as it is: the message says where, and what to change."""

    code = "data"


class SettingsError(SilomixError, ValueError):
    """A setting of a call or of a file is wrong, unknown or missing."""

    code = "study"


class StudyMismatch(SilomixError):
    """Something was made for another study, another table or another schema."""

    code = "study"


class CheckpointError(SilomixError):
    """A checkpoint cannot be resumed: damaged, truncated, or of another run."""


class FileError(SilomixError):
    """A saved result cannot be read or written: damaged, foreign, or of another version."""


class MessageError(SilomixError):
    """A message is damaged, too large, of another version, or not what was asked for."""

    code = "question"


class PolicyRefusal(SilomixError):
    """The silo's own policy does not allow this; only its owner can change that."""

    def __init__(self, message: str, code: str = "policy") -> None:
        super().__init__(message)
        self.code = code


class SiloError(SilomixError):
    """A silo answered with an error code, or not at all; what went wrong is in its own log."""


class OpenQuestion(SilomixError):
    """The silos still have to answer: the message says who must do what."""


class MissingDependency(SilomixError, ImportError):
    """A required optional package is not installed.

    Parameters
    ----------
    message : what needs which package.
    extra : of silomix, that brings the package: the message says how to install it.
    """

    def __init__(self, message: str, extra: str = "", **settings: object) -> None:
        hint = f": pip install 'silomix[{extra}]', or in its source folder pip install '.[{extra}]'"
        super().__init__(message + hint if extra else message, **settings)

    code = "dependency"


class DataWarning(_Worded, UserWarning):
    """The table is usable, but something in it deserves a look."""


class SamplingWarning(_Worded, UserWarning):
    """The draws are usable, but something in them deserves a look."""


def as_note(warning: Warning | str) -> str:
    """Format a warning as a sentence; it may already end in "..."."""
    return str(warning).removesuffix(".") + "."


def warn(warning: Warning | str) -> None:
    """Issue a warning at the caller's line: the first that is not in this package."""
    frame, level = inspect.currentframe(), 1
    # code that runs without a name of its own has none, or None
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] == "silomix":
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
