"""Encoding of messages in bytes, and declarations of records: named axes, types, bounds.

The arrays of a record are in safetensors' form, with a head in JSON beside them: the tensor `HEAD`
has the envelope, the fields that are not arrays, and the digest of the record. Everything that is
read is checked, and nothing in it is executed. Records are declared with `Array`, `Text` and so on
in `silomix.messages`; the checks of types, bounds and lengths follow from that.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
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

SINGLES, FLOATS = ("float32",), ("float32", "float64")
CODES = ("uint8", "uint16", "uint32")
COUNTS = (*CODES, "uint64")
INTEGERS = ("int64",)
# Tolerance for sums to one: draws in single precision of a thousand levels are within it.
NORMALISED = 1e-4
# Most rows of a silo: a release of more would outweigh all others.
MOST_ROWS = 10**9
# Largest likelihood, gradient or cost; sums of smaller numbers stay finite.
LARGEST = 1e100
FORMAT, VERSION = "silomix message", 9
HEAD = "message.json"
# Metadata of a record's field that is not part of its message.
STAYS = {"stays": True}
# Most bytes of a message that is read.
LARGEST_MESSAGE = 1 << 30
# Most bytes, and values, of a head: enough for a question that shows a thousand releases.
LARGEST_HEAD, MOST_VALUES = 8_000_000, 200_000
# Most bytes of safetensors' index: enough for some thirty thousand arrays.
LARGEST_INDEX = 4_000_000
LONGEST_SHOWN = 40
# Index of an item of a list, in the path of an array.
PLACE_IN_LIST = re.compile(r"\.([0-9]+)")


@dataclass(frozen=True)
class Array:
    """Declaration of an array: `Annotated[Floats, Array("chain cluster")]`.

    Attributes
    ----------
    along : names of its axes; axes of one name have the same length in all arrays of a record.
    dtypes : names of the NumPy types that are allowed.
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
        """Names of its axes."""
        return tuple(self.along.split())

    def __get_pydantic_core_schema__(self, *_: Any) -> core_schema.CoreSchema:
        """Let pydantic check arrays with `check`."""
        return core_schema.no_info_plain_validator_function(self.check)

    def check(self, array: Any) -> NDArray[Any]:
        """Check an array: refuse one of another type, dimension or range."""
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
            error = np.abs(array.sum(axis=self.axes.index(self.sums), dtype=np.float64) - 1.0)
            if not (error <= NORMALISED).all():
                raise ValueError(f"does not sum to one along {self.sums}, by {error.max():.2g}")
        return array


def _printable(text: str) -> str:
    # control characters could make a terminal show something else
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
    """Declared arrays of a record, by field; also those in lists."""
    hints = get_type_hints(kind, include_extras=True)
    arrays = {name: _find_array(hint) for name, hint in hints.items()}
    return {name: array for name, array in arrays.items() if array is not None}


def _find_array(hint: Any) -> Array | None:
    if isinstance(hint, Array):
        return hint
    return next(filter(None, map(_find_array, get_args(hint))), None)


def axis_lengths(record: Any) -> dict[str, int]:
    """Length of each axis of a record; an axis with two lengths is refused.

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
    """Study, silo and question to which a message belongs.

    Attributes
    ----------
    study : digest of the study; empty on what a silo keeps for itself.
    silo : the silo that is asked, or that answers; empty where all are asked.
    number : number of the question in the study, from 1; an answer has that of its question.
    kind : name of the record inside; `seal` writes it.
    answers : digest of the question that is answered; empty on a question.
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
    """Encode a message as bytes; the same message always gives the same bytes.

    Raises
    ------
    MessageError
        When the record is not one that travels.
    """
    return _contain(*seal(envelope, record))


def decode(data: bytes) -> tuple[Envelope, Any]:
    """Decode and check the envelope and the record of an untrusted message in bytes.

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
    """Arrays of untrusted bytes in safetensors' form; errors include `ValueError`."""
    if int.from_bytes(data[:8], "little") > LARGEST_INDEX:
        raise ValueError(f"an index of more than {LARGEST_INDEX:,} bytes")
    return load(bytes(data))


def digest_record(record: Any) -> str:
    """SHA-256, in hexadecimal, of a record in bytes: equal for equal records."""
    return _digest(type(record).__name__, *pack(record))


def seal(envelope: Envelope, record: Any) -> tuple[dict[str, Any], Arrays]:
    """Head of a message, and its arrays by the path of their fields."""
    kind = type(record).__name__
    plain, arrays = pack(record)
    checked = asdict(validate(ENVELOPE, asdict(envelope) | {"kind": kind}))
    head = {"format": FORMAT, "version": VERSION} | checked
    return head | {"content": _digest(kind, plain, arrays), "fields": plain}, arrays


def unseal(head: dict[str, Any], arrays: Arrays) -> tuple[Envelope, Any]:
    """Check head and arrays, and return the envelope and the record; inverse of `seal`."""
    if (head.pop("format", None), head.pop("version", None)) != (FORMAT, VERSION):
        raise MessageError(
            f"it is not a {FORMAT} of version {VERSION}; use the same silomix on both sides"
        )
    plain, content = head.pop("fields", None), head.pop("content", None)
    envelope = validate(ENVELOPE, head)
    record = unpack(envelope.kind, plain, arrays)
    # packed again, the record must give the same message: nothing was ignored or coerced
    repacked: Arrays = {}
    if asdict(envelope) != head or split(record, "", repacked) != plain:
        raise MessageError(f"it has fields or values that a {envelope.kind} does not have")
    if repacked.keys() != arrays.keys() or _digest(envelope.kind, plain, repacked) != content:
        raise MessageError("its digest does not fit its content: it was changed")
    return envelope, record


def pack(record: Any) -> tuple[dict[str, Any], Arrays]:
    """Fields of a record as plain values, None for arrays, and the arrays by path.

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
    """Make and check a record of this kind; inverse of `pack`.

    Raises
    ------
    MessageError
        When fields or arrays are not as declared.
    """
    message = validate(_reader(kind), join(plain, "", arrays))
    for record in (message, *getattr(message, "releases", ())):
        axis_lengths(record)
    return message


def validate(reader: TypeAdapter[Any], values: Any) -> Any:
    """Validate plain values; errors become one sentence."""
    try:
        return reader.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MessageError(f"{shorten(place)}: {first['msg']:.300}") from None


def split(value: Any, path: str, arrays: Arrays) -> Any:
    """A value as JSON has it; its arrays are added to `arrays` by path."""
    if isinstance(value, np.ndarray):
        # safetensors copies memory from the first number on: of a view, that of its neighbours
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        arrays[path[1:]] = array.reshape(value.shape)
        return None
    if is_dataclass(value):
        travel = [item.name for item in fields(value) if item.metadata != STAYS]
        value = {name: getattr(value, name) for name in travel}
    if isinstance(value, Mapping):
        return {key: split(part, f"{path}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [split(part, f"{path}.{place}", arrays) for place, part in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    # JSON has no such numbers
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def join(value: Any, path: str, arrays: Arrays) -> Any:
    """Insert the arrays into plain values by their paths; inverse of `split`."""
    if isinstance(value, dict):
        return {key: join(part, f"{path}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [join(part, f"{path}.{place}", arrays) for place, part in enumerate(value)]
    return arrays.get(path[1:]) if value is None else value


def _digest(kind: str, plain: Any, arrays: Arrays) -> str:
    return hashlib.sha256(_contain({"kind": kind, "fields": plain}, arrays)).hexdigest()


def _contain(head: dict[str, Any], arrays: Arrays) -> bytes:
    return save(arrays | {HEAD: np.frombuffer(write_json(head), np.uint8)})


def write_json(head: Any, indent: int | None = None) -> bytes:
    """Canonical JSON text of plain values."""
    text = json.dumps(head, indent=indent, ensure_ascii=False, allow_nan=False).encode()
    if not _fits(text):
        size = f"{len(text):,} bytes and {text.count(b','):,} values"
        raise MessageError(
            f"a head of {size} cannot be sent; {LARGEST_HEAD:,} and {MOST_VALUES:,} can"
        )
    return text


def read_json(content: bytes) -> dict[str, Any]:
    """Table in an untrusted JSON text.

    Raises
    ------
    MessageError
        When it is too long or too deep, or not JSON.
    """
    try:
        table = from_json(content, allow_inf_nan=False) if _fits(content) else None
    except ValueError:
        table = None
    if not isinstance(table, dict):
        most = f"{LARGEST_HEAD:,} bytes or {MOST_VALUES:,} values"
        raise MessageError(f"its head is not a JSON table, or has over {most}")
    return table


def _fits(text: bytes) -> bool:
    return len(text) <= LARGEST_HEAD and text.count(b",") <= MOST_VALUES


def shorten(text: str) -> str:
    """Quote an untrusted text, shortened."""
    return repr(text[:LONGEST_SHOWN])


def count_bytes(value: Any) -> int:
    """Return the bytes of what a record says: arrays as they are, numbers in 8, text in UTF-8."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str):
        return len(value.encode())
    if is_dataclass(value):
        parts: Iterable[Any] = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, Mapping):
        parts = [*value, *value.values()]
    elif isinstance(value, tuple | list):
        parts = value
    else:
        return 0 if value is None else 8
    return sum(map(count_bytes, parts))
