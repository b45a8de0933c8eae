"""A message in bytes, and what its record declares: named axes, types, bounds.

The arrays of a record are in safetensors' form, with a head in JSON beside them: the tensor `HEAD`
has the envelope, the fields that are no arrays, and the digest of the record. Nothing that is read
is believed, and nothing in it is executed. Records are declared with `Array`, `Text` and so on in
`silomix.messages`; the checks of types, bounds and lengths follow from that.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import core_schema, from_json
from safetensors import SafetensorError
from safetensors.numpy import load, save

from silomix.errors import MessageError

Arrays = dict[str, NDArray[Any]]

FLOATS = ("float32", "float64")
CODES = ("uint8", "uint16", "uint32")
COUNTS = (*CODES, "uint64")
INTEGERS = ("int64",)
# Draws in single precision of a variable with a thousand levels sum to one this closely.
NORMALISED = 1e-4
# Rows of a silo: nobody has more, and a release of more would outweigh all others.
MOST_ROWS = 10**9
# No likelihood, slope or cost is larger; sums of what is smaller stay finite.
LARGEST = 1e100
FORMAT, VERSION = "silomix message", 8
HEAD = "message.json"
# Metadata of a record's field that is no part of its message.
STAYS = {"stays": True}
# Bytes of a message that is read.
LARGEST_MESSAGE = 1 << 30
# Bytes, and values: the head of a question that shows a thousand releases.
LARGEST_HEAD, MOST_VALUES = 8_000_000, 200_000
# Bytes: what safetensors notes of some thirty thousand arrays.
LARGEST_INDEX = 4_000_000
LONGEST_SHOWN = 40
# In the path of an array.
PLACE_IN_LIST = re.compile(r"\.([0-9]+)")


@dataclass(frozen=True)
class Array:
    """What is declared of an array: `Annotated[Floats, Array("chain cluster")]`.

    Attributes
    ----------
    along : names of its axes; an axis has one length in all arrays of a record.
    dtypes : names of NumPy's types that it may have.
    least, most : bounds of its values, which are finite.
    sums : the axis along which its values sum to one.
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
        # not-a-number is in no range; float: no bound is rounded to infinity in single precision
        if array.size and not (float(array.min()) >= least and float(array.max()) <= most):
            raise ValueError(
                f"has values from {array.min():g} to {array.max():g}, outside of {least:g} to "
                f"{most:g}"
            )
        if self.sums:
            far = np.abs(array.sum(axis=self.axes.index(self.sums), dtype=np.float64) - 1.0)
            if not (far <= NORMALISED).all():
                raise ValueError(f"does not sum to one along {self.sums}, by {far.max():.2g}")
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
Digest = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]


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


@dataclass(frozen=True)
class Envelope:
    """Where a message belongs.

    Attributes
    ----------
    study : digest of the study; empty on what a silo keeps for itself.
    silo : the silo that is asked, or that answers; empty where all are asked.
    number : place of the question in the study, from 1; an answer has that of its question.
    kind : name of the record inside; `seal` writes it.
    answers : digest of the question that it answers; empty on a question.
    """

    study: Digest
    silo: Name
    number: Annotated[int, Field(ge=1, lt=2**31)]
    kind: Name = ""
    answers: Digest = ""


ENVELOPE = TypeAdapter(Envelope)


@cache
def _reader(kind: str) -> TypeAdapter[Any]:
    from silomix.messages import KINDS  # which are declared with what is in this module

    if kind not in KINDS:
        raise MessageError(f"{shorten(kind)} is not a message; {', '.join(KINDS)} are")
    return TypeAdapter(KINDS[kind])


def encode(envelope: Envelope, record: Any) -> bytes:
    """Return a message as bytes; the same message always gives the same bytes.

    Raises
    ------
    MessageError
        When the record is not one that travels.
    """
    return _contain(*seal(envelope, record))


def decode(data: bytes) -> tuple[Envelope, Any]:
    """Return the envelope and the record of a message in bytes, of which nothing is believed.

    Raises
    ------
    MessageError
        When the message is damaged, too large, of another version, or none at all.
    """
    try:
        arrays = load_arrays(data) if len(data) <= LARGEST_MESSAGE else {}
        head = arrays.pop(HEAD).tobytes()
    except (SafetensorError, KeyError, ValueError):
        raise MessageError(
            f"this is not a message of at most {LARGEST_MESSAGE:,} bytes, or it is damaged; have "
            "it sent again"
        ) from None
    return unseal(read_json(head), arrays)


def load_arrays(data: bytes) -> Arrays:
    """Return the arrays of strangers' bytes in safetensors' form; it raises `ValueError` too."""
    if int.from_bytes(data[:8], "little") > LARGEST_INDEX:
        raise ValueError(f"an index of more than {LARGEST_INDEX:,} bytes")
    return load(bytes(data))


def digest_record(record: Any) -> str:
    """Return the SHA-256, in hexadecimal, of a record in bytes: equal for equal records."""
    return _digest(type(record).__name__, *pack(record))


def seal(envelope: Envelope, record: Any) -> tuple[dict[str, Any], Arrays]:
    """Return the head of a message, and its arrays by the path of their fields."""
    kind = type(record).__name__
    plain, arrays = pack(record)
    said = asdict(validate(ENVELOPE, asdict(envelope) | {"kind": kind}))
    head = {"format": FORMAT, "version": VERSION} | said
    return head | {"content": _digest(kind, plain, arrays), "fields": plain}, arrays


def unseal(head: dict[str, Any], arrays: Arrays) -> tuple[Envelope, Any]:
    """Return the envelope and the record; undoes `seal`."""
    if (head.pop("format", None), head.pop("version", None)) != (FORMAT, VERSION):
        raise MessageError(
            f"it is not a {FORMAT} of version {VERSION}; use the same silomix on both sides"
        )
    plain, content = head.pop("fields", None), head.pop("content", None)
    envelope = validate(ENVELOPE, head)
    record = unpack(envelope.kind, plain, arrays)
    # what is made of a message is what it says: nothing more is in it, and nothing was coerced
    again: Arrays = {}
    if asdict(envelope) != head or split(record, "", again) != plain:
        raise MessageError(f"it has fields or values that a {envelope.kind} does not have")
    if again.keys() != arrays.keys() or _digest(envelope.kind, plain, again) != content:
        raise MessageError("its digest does not fit its content: it was changed")
    return envelope, record


def pack(record: Any) -> tuple[dict[str, Any], Arrays]:
    """Return a record's fields as plain values, None for arrays, and the arrays by path.

    Raises
    ------
    MessageError
        When the record, or something in it, is not declared to travel.
    """
    arrays: Arrays = {}
    plain = split(record, "", arrays)
    unpack(type(record).__name__, plain, arrays)
    return plain, arrays


def unpack(kind: str, plain: Any, arrays: Arrays) -> Any:
    """Return the record of this kind; undoes `pack`.

    Raises
    ------
    MessageError
        When fields or arrays are not as declared.
    """
    found = validate(_reader(kind), join(plain, "", arrays))
    for record in (found, *getattr(found, "releases", ())):
        axis_lengths(record)
    return found


def validate(reader: TypeAdapter[Any], values: Any) -> Any:
    """Return what the reader makes of plain values; refuse them in a sentence."""
    try:
        return reader.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MessageError(f"{shorten(place)}: {first['msg']:.300}") from None


def split(value: Any, path: str, arrays: Arrays) -> Any:
    """Return a value as JSON holds it, its arrays set aside under their paths."""
    if isinstance(value, np.ndarray):
        # safetensors copies memory from the first number on: of a view, that of its neighbours
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        arrays[path[1:]] = array.reshape(value.shape)
        return None
    if is_dataclass(value):
        travel = [each.name for each in fields(value) if each.metadata != STAYS]
        value = {name: getattr(value, name) for name in travel}
    if isinstance(value, Mapping):
        return {key: split(part, f"{path}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [split(part, f"{path}.{at}", arrays) for at, part in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    # JSON has no such numbers
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def join(value: Any, path: str, arrays: Arrays) -> Any:
    """Return plain values with the arrays where their paths lead; undoes `split`."""
    if isinstance(value, dict):
        return {key: join(part, f"{path}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [join(part, f"{path}.{at}", arrays) for at, part in enumerate(value)]
    return arrays.get(path[1:]) if value is None else value


def _digest(kind: str, plain: Any, arrays: Arrays) -> str:
    return hashlib.sha256(_contain({"kind": kind, "fields": plain}, arrays)).hexdigest()


def _contain(head: dict[str, Any], arrays: Arrays) -> bytes:
    return save(arrays | {HEAD: np.frombuffer(write_json(head), np.uint8)})


def write_json(head: Any, indent: int | None = None) -> bytes:
    """Return the one JSON text of plain values."""
    text = json.dumps(head, indent=indent, ensure_ascii=False, allow_nan=False).encode()
    if not _fits(text):
        found = f"{len(text):,} bytes and {text.count(b','):,} values"
        raise MessageError(
            f"a head of {found} cannot be sent; {LARGEST_HEAD:,} and {MOST_VALUES:,} can"
        )
    return text


def read_json(content: bytes) -> dict[str, Any]:
    """Return the table that a JSON text of strangers holds.

    Raises
    ------
    MessageError
        When it is too long or too deep, or no JSON.
    """
    try:
        found = from_json(content, allow_inf_nan=False) if _fits(content) else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        most = f"{LARGEST_HEAD:,} bytes or {MOST_VALUES:,} values"
        raise MessageError(f"its head is not a JSON table, or has over {most}")
    return found


def _fits(text: bytes) -> bool:
    return len(text) <= LARGEST_HEAD and text.count(b",") <= MOST_VALUES


def shorten(text: str) -> str:
    """Return a text of strangers as a sentence may quote it."""
    return repr(text[:LONGEST_SHOWN])
