"""Named axes: what a message declares of an array, and the checks that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import numpy as np
from pydantic import AfterValidator, Field
from pydantic_core import core_schema

from silomix.errors import MessageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from silomix.kernels.arrays import Ints

FLOATS = ("float32", "float64")
CODES = ("uint8", "uint16", "uint32")
COUNTS = (*CODES, "uint64")
INTEGERS = ("int64",)
# Draws in single precision of a variable with a thousand levels sum to one this closely.
NORMALISED = 1e-4
# Rows, as a float counts them.
MOST_ROWS = 2**53
# No likelihood, slope or cost is larger; sums of what is smaller stay finite.
LARGEST = 1e100


@dataclass(frozen=True)
class Array:
    """What is declared of an array: `Annotated[Floats, Array("chain cluster")]`.

    Attributes
    ----------
    along : names of its axes; an axis has one length in all arrays of a record.
    dtypes : names of NumPy's types that it may have.
    least, most : bounds of its values, which are finite.
    sums : the axis along which its values sum to one; along "level", those of each variable do.
    """

    along: str
    dtypes: tuple[str, ...] = FLOATS[1:]
    least: float = -LARGEST
    most: float = LARGEST
    sums: str | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of its axes."""
        return tuple(self.along.split())

    def __get_pydantic_core_schema__(self, *_: Any) -> core_schema.CoreSchema:
        """Have pydantic check arrays with `check`."""
        return core_schema.no_info_plain_validator_function(self.check)

    def check(self, array: Any) -> NDArray[Any]:
        """Return the array; refuse one of another type, dimension or range."""
        if not isinstance(array, np.ndarray) or array.dtype.name not in self.dtypes:
            raise ValueError(f"should be an array of {' or '.join(self.dtypes)}")
        if array.ndim != len(self.axes):
            raise ValueError(f"has {array.ndim} axes instead of {', '.join(self.axes)}")
        least, most = (0.0, 1.0 + NORMALISED) if self.sums else (self.least, self.most)
        # not-a-number is in no range
        if array.size and not (array.min() >= least and array.max() <= most):
            raise ValueError(
                f"has values from {array.min():g} to {array.max():g}, outside of {least:g} to "
                f"{most:g}"
            )
        return array


def _printable(text: str) -> str:
    # what could make a terminal or a reader see something else than what is there
    if not text.isprintable():
        raise ValueError("has characters that do not print")
    return text


Whole = Annotated[int, Field(ge=0, le=2**63 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(max_length=10_000), AfterValidator(_printable)]
Name = Annotated[str, Field(max_length=60), AfterValidator(_printable)]


@cache
def declared_arrays(kind: type) -> dict[str, Array]:
    """Return what a record declares of its arrays, by field; lists of arrays are among them."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: _find_array(hint) for name, hint in hints.items()}
    return {name: array for name, array in found.items() if array is not None}


def _find_array(hint: Any) -> Array | None:
    if isinstance(hint, Array):
        return hint
    return next(filter(None, map(_find_array, get_args(hint))), None)


def axis_lengths(record: Any) -> dict[str, int]:
    """Return the length of each axis of a record; refuse one that has two.

    Raises
    ------
    MessageError
        Naming the array that does not fit the others.
    """
    lengths: dict[str, int] = {}
    for name, array in declared_arrays(record.__class__).items():
        shape = getattr(getattr(record, name), "shape", ())  # an absent array has none
        for axis, length in zip(array.axes, shape, strict=False):
            if lengths.setdefault(axis, length) != length:
                raise MessageError(
                    f"{name} has {length:,} entries along {axis!r} where others have "
                    f"{lengths[axis]:,}"
                )
    return lengths


def odd_sums(record: Any, offsets: Ints) -> Iterator[str]:
    """Yield which arrays do not sum to one where they are declared to.

    Parameters
    ----------
    offsets : (variable + 1,), where each variable's levels start.
    """
    for name, declared in declared_arrays(record.__class__).items():
        array = getattr(record, name)
        if declared.sums is None or array is None:
            continue
        axis = declared.axes.index(declared.sums)
        starts = offsets[:-1] if declared.sums == "level" else [0]
        far = np.abs(np.add.reduceat(array, starts, axis=axis, dtype=np.float64) - 1.0)
        if not (far <= NORMALISED).all():
            yield f"has {name} that do not sum to one, by {far.max():.2g}"
