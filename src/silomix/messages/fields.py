"""How values travel: to plain values, which JSON holds, and arrays; and back.

An array leaves its type and shape in its place. `silomix.messages.schema` says which records are
made of which of these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from silomix.errors import MessageError
from silomix.messages.documents import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Arrays = list[tuple["Slot", NDArray[Any]]]
    Take = Callable[["Slot"], NDArray[Any]]

LONGEST_TEXT = 10_000
LARGEST_WHOLE_NUMBER = 2**63 - 1
LONGEST_AXIS = 2**31 - 1
MOST_NUMBERS = 2**40
"""Of one array, counted as if no axis were empty: more is a lie in any message."""
MOST_ENTRIES = 1000
"""Of a small table of named values."""

FLOAT64 = ("<f8",)
FLOATS = ("<f4", "<f8")
INT64 = ("<i8",)
CODES = ("|u1", "<u2", "<u4")
COUNTS = (*CODES, "<u8")

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""JSON has no such numbers: they travel as text where they mean something."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What could make a terminal or a reader see something else than what is there."""


@dataclass(frozen=True)
class Slot:
    """The place of one array in a message.

    Attributes
    ----------
    path : names of fields and places in lists that lead to it.
    over : what the places in lists count.
    axes : names of the array's axes.
    dtype : NumPy's name of its type, little-endian.
    shape : its length along each axis.
    """

    path: tuple[str | int, ...]
    over: tuple[str, ...]
    axes: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How many bytes its numbers take."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        """Return how an error calls it."""
        return _spell(self.path)


@dataclass(frozen=True)
class Place:
    """Where in a record the work is.

    Attributes
    ----------
    path, over : as in `Slot`.
    lengths : of the axes of this record that were met so far.
    """

    path: tuple[str | int, ...] = ()
    over: tuple[str, ...] = ()
    lengths: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return how an error calls it."""
        return _spell(self.path)


class Field(Protocol):
    """How the values of a field travel."""

    def pack(self, value: Any, place: Place, arrays: Arrays) -> Any:
        """Return the value as JSON holds it; its arrays are added to `arrays`."""
        ...

    def unpack(self, plain: Any, place: Place, take: Take) -> Any:
        """Return the value; its arrays are those that `take` gives."""
        ...


@dataclass(frozen=True)
class Array:
    """An array of finite numbers; an axis has one length in all of a record's arrays."""

    axes: tuple[str, ...]
    dtypes: tuple[str, ...] = FLOAT64

    def pack(self, value: Any, place: Place, arrays: Arrays) -> Any:
        """Set the array aside, little-endian and in C order; leave its type and shape."""
        if not isinstance(value, np.ndarray):
            raise MessageError(f"{place} is {shorten(value)} instead of an array")
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
        slot = self._slot(place, array.dtype.str, array.shape)
        check_finite(slot, array)
        arrays.append((slot, array))
        return {"dtype": slot.dtype, "shape": list(slot.shape)}

    def unpack(self, plain: Any, place: Place, take: Take) -> Any:
        """Take the array that stands here."""
        expect(plain, dict, "the type and shape of an array", place)
        check_keys(plain, {"dtype", "shape"}, place)
        expect(plain["shape"], list, "a shape", place)
        return take(self._slot(place, plain["dtype"], plain["shape"]))

    def _slot(self, place: Place, dtype: object, shape: Any) -> Slot:
        if dtype not in self.dtypes:
            words = " or ".join(np.dtype(name).name for name in self.dtypes)
            raise MessageError(f"{place} is of type {shorten(dtype)} instead of {words}")
        if len(shape) != len(self.axes):
            raise MessageError(
                f"{place} has {len(shape)} axes instead of {len(self.axes)}: {listing(self.axes)}"
            )
        for axis, length in zip(self.axes, shape, strict=True):
            if type(length) is not int or not 0 <= length <= LONGEST_AXIS:
                raise MessageError(f"{place} has {shorten(length)} as the length of an axis")
            known = place.lengths.setdefault(axis, length)
            if known != length:
                raise MessageError(
                    f"{place} has {length:,} entries along {axis!r} where others have {known:,}"
                )
        if math.prod(max(length, 1) for length in shape) > MOST_NUMBERS:
            raise MessageError(f"{place} claims more than {MOST_NUMBERS:,} numbers")
        return Slot(place.path, place.over, self.axes, str(dtype), tuple(shape))


@dataclass(frozen=True)
class Whole:
    """A whole number, at least `least`."""

    least: int = 0

    def pack(self, value: Any, place: Place, _: Arrays) -> Any:
        """Return it as Python's own."""
        plain = value.item() if isinstance(value, np.integer) else value
        if type(plain) is not int or not self.least <= plain <= LARGEST_WHOLE_NUMBER:
            raise MessageError(
                f"{place} is {shorten(value)} instead of a whole number from {self.least} on"
            )
        return plain

    def unpack(self, plain: Any, place: Place, _: Take) -> Any:
        """Return it."""
        return self.pack(plain, place, [])


@dataclass(frozen=True)
class Number:
    """A number; `finite` unless nan and the infinities mean something."""

    finite: bool = True

    def pack(self, value: Any, place: Place, _: Arrays) -> Any:
        """Return it as JSON holds it."""
        if isinstance(value, bool | np.bool) or not isinstance(
            value, int | float | np.floating | np.integer
        ):
            raise MessageError(f"{place} is {shorten(value)} instead of a number")
        number = float(value)
        if math.isfinite(number):
            return number
        if self.finite:
            raise MessageError(f"{place} is {number} instead of a finite number")
        return str(number)

    def unpack(self, plain: Any, place: Place, _: Take) -> Any:
        """Return it as a float."""
        if isinstance(plain, str) and not self.finite and plain in NOT_FINITE:
            return NOT_FINITE[plain]
        if not isinstance(plain, float) or not math.isfinite(plain):
            raise MessageError(f"{place} is {shorten(plain)} instead of a number")
        return plain


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def pack(self, value: Any, place: Place, _: Arrays) -> Any:
        """Return it as Python's own."""
        if not isinstance(value, bool | np.bool):
            raise MessageError(f"{place} is {shorten(value)} instead of true or false")
        return bool(value)

    def unpack(self, plain: Any, place: Place, _: Take) -> Any:
        """Return it."""
        return self.pack(plain, place, [])


@dataclass(frozen=True)
class Text:
    """Text without control characters."""

    longest: int = LONGEST_TEXT

    def pack(self, value: Any, place: Place, _: Arrays) -> Any:
        """Return it."""
        expect(value, str, "text", place)
        if len(value) > self.longest:
            raise MessageError(f"{place} has {len(value):,} characters; at most {self.longest:,}")
        if CONTROL.search(value):
            raise MessageError(f"{place} has control characters, which no text here may have")
        return value

    def unpack(self, plain: Any, place: Place, _: Take) -> Any:
        """Return it."""
        return self.pack(plain, place, [])


@dataclass(frozen=True)
class Named:
    """A small table: values of one sort by name."""

    inner: Field

    def pack(self, value: Any, place: Place, arrays: Arrays) -> Any:
        """Return it as a plain table."""
        return self._each(value, place, lambda item, at: self.inner.pack(item, at, arrays))

    def unpack(self, plain: Any, place: Place, take: Take) -> Any:
        """Return it as a table."""
        return self._each(plain, place, lambda item, at: self.inner.unpack(item, at, take))

    def _each(self, value: Any, place: Place, move: Callable[[Any, Place], Any]) -> Any:
        expect(value, Mapping, "a table", place)
        _check_length(value, MOST_ENTRIES, place)
        for name in value:
            Text(LONGEST_TEXT).pack(name, place, [])
        return {name: move(item, _inside(place, name)) for name, item in value.items()}


@dataclass(frozen=True)
class Maybe:
    """A value that may be absent."""

    inner: Field

    def pack(self, value: Any, place: Place, arrays: Arrays) -> Any:
        """Return the value, or null."""
        return None if value is None else self.inner.pack(value, place, arrays)

    def unpack(self, plain: Any, place: Place, take: Take) -> Any:
        """Return the value, or None."""
        return None if plain is None else self.inner.unpack(plain, place, take)


@dataclass(frozen=True)
class Many:
    """A list of values of one sort.

    Attributes
    ----------
    over : what the places in the list count.
    most : the longest list.
    """

    inner: Field
    over: str
    most: int = MOST_ENTRIES

    def pack(self, value: Any, place: Place, arrays: Arrays) -> Any:
        """Return it as a list."""
        expect(value, tuple | list, "a list", place)
        _check_length(value, self.most, place)
        return [
            self.inner.pack(item, self._at(place, number), arrays)
            for number, item in enumerate(value)
        ]

    def unpack(self, plain: Any, place: Place, take: Take) -> Any:
        """Return it as a tuple."""
        expect(plain, list, "a list", place)
        _check_length(plain, self.most, place)
        return tuple(
            self.inner.unpack(item, self._at(place, number), take)
            for number, item in enumerate(plain)
        )

    def _at(self, place: Place, number: int) -> Place:
        return Place((*place.path, number), (*place.over, self.over))


@dataclass(frozen=True)
class Inner:
    """A record inside another; its axes are its own."""

    kind: type
    fields: Mapping[str, Field]

    def pack(self, value: Any, place: Place, arrays: Arrays) -> Any:
        """Return its fields as a plain table."""
        if type(value) is not self.kind:
            name = self.kind.__name__
            raise MessageError(f"{place} is a {type(value).__name__} instead of a {name}")
        apart = replace(place, lengths={})
        return {
            name: spec.pack(getattr(value, name), _inside(apart, name), arrays)
            for name, spec in self.fields.items()
        }

    def unpack(self, plain: Any, place: Place, take: Take) -> Any:
        """Return the record."""
        expect(plain, dict, "a table", place)
        check_keys(plain, self.fields.keys(), place)
        apart = replace(place, lengths={})
        return self.kind(
            **{
                name: spec.unpack(plain[name], _inside(apart, name), take)
                for name, spec in self.fields.items()
            }
        )


def check_finite(slot: Slot, array: NDArray[Any]) -> None:
    """Refuse an array with nan or an infinity in it."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0]
        where = ", ".join(f"{axis} {at}" for axis, at in zip(slot.axes, place, strict=True))
        raise MessageError(f"{slot} is {array[tuple(place)]} at {where}; it must be finite")


def check_keys(plain: Mapping[str, Any], expected: Set[str], where: object) -> None:
    """Refuse a table that lacks a key, or has one more."""
    for name in sorted(expected - plain.keys()):
        raise MessageError(f"{where} lacks {name!r}")
    for name in sorted(plain.keys() - expected):
        raise MessageError(f"{where} has {shorten(name)}, which does not belong there")


def _inside(place: Place, name: str) -> Place:
    return replace(place, path=(*place.path, name))


def _spell(path: tuple[str | int, ...]) -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step:.40}" for step in path]
    return "".join(steps).removeprefix(".") or "the record"


def listing(names: Iterable[str]) -> str:
    """Return names as a sentence holds them."""
    return ", ".join(names)


def expect(value: Any, kind: Any, what: str, place: Place) -> None:
    """Refuse a value of another kind than what should stand here."""
    if not isinstance(value, kind):
        raise MessageError(f"{place} is {shorten(value)} instead of {what}")


def _check_length(value: Any, most: int, place: Place) -> None:
    if len(value) > most:
        raise MessageError(f"{place} has {len(value):,} entries; at most {most:,} are read")
