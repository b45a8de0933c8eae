"""A message in bytes: the arrays of a record in safetensors' form, and a head in JSON with them.

The head, the tensor `HEAD`, has the envelope, the fields that are no arrays, and the digest of the
record. Nothing that is read is believed, and nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from safetensors import SafetensorError
from safetensors.numpy import load, save

from silomix.errors import MessageError
from silomix.messages import KINDS
from silomix.messages.axes import Name, axis_lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

FORMAT, VERSION = "silomix message", 5
HEAD = "message.json"
# Bytes of a message, unless its reader allows another number.
LARGEST = 1 << 30
# Bytes: the head of a question that shows a thousand releases.
LARGEST_HEAD = 8_000_000
LONGEST_SHOWN = 40

Digest = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]


@dataclass(frozen=True)
class Envelope:
    """Where a message belongs.

    Attributes
    ----------
    study : digest of the study; empty on what a silo keeps for itself.
    silo : the silo that is asked, or that answers; empty where all are asked.
    number : place of the question in the study, from 1; an answer has that of its question.
    kind : name of the record inside.
    answers : digest of the question that it answers; empty on a question.
    """

    study: Digest
    silo: Name
    number: Annotated[int, Field(ge=1, lt=2**31)]
    kind: Name
    answers: Digest = ""


ENVELOPE = TypeAdapter(Envelope)
READERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in KINDS.items()}


def encode(envelope: Envelope, record: Any) -> bytes:
    """Return a message as bytes; the same message always gives the same bytes.

    Raises
    ------
    MessageError
        When the record is not one that travels, or not of the envelope's kind.
    """
    head, arrays = seal(envelope, record)
    return _contain(head, arrays)


def decode(data: bytes, *, largest: int = LARGEST) -> tuple[Envelope, Any]:
    """Return the envelope and the record of a message in bytes.

    Parameters
    ----------
    data : what came; nothing in it is believed.
    largest : bytes of the longest message that is read.

    Raises
    ------
    MessageError
        When the message is damaged, too large, of another version, or none at all.
    """
    try:
        arrays = load(bytes(data)) if len(data) <= largest else {}
        head = arrays.pop(HEAD).tobytes()
    except (SafetensorError, KeyError, ValueError):
        raise MessageError(
            f"this is no message of at most {largest:,} bytes, or it is damaged; have it sent again"
        ) from None
    return unseal(read_json(head), arrays)


def digest(record: Any) -> str:
    """Return the SHA-256, in hexadecimal, of a record in bytes: equal for equal records."""
    return _digest(type(record).__name__, *pack(record))


def seal(envelope: Envelope, record: Any) -> tuple[dict[str, Any], Arrays]:
    """Return the head of a message, and its arrays by the path of their fields."""
    kind = type(record).__name__
    if envelope.kind != kind:
        raise MessageError(f"a {kind} cannot be sent as a {shorten(envelope.kind)}")
    plain, arrays = pack(record)
    known = asdict(_validate(ENVELOPE, asdict(envelope)))
    content = _digest(kind, plain, arrays)
    head = {"format": FORMAT, "version": VERSION, **known, "content": content, "fields": plain}
    return head, arrays


def unseal(head: dict[str, Any], arrays: Arrays) -> tuple[Envelope, Any]:
    """Return the envelope and the record; undoes `seal`."""
    if (head.pop("format", None), head.get("version")) != (FORMAT, VERSION):
        raise MessageError(
            f"it is no {FORMAT} of version {VERSION}; use the same silomix on both sides"
        )
    del head["version"]
    plain, content = head.pop("fields", None), head.pop("content", None)
    envelope = _validate(ENVELOPE, head)
    record = unpack(envelope.kind, plain, arrays)
    # what is made of a message is what it says: nothing more is in it, and nothing was coerced
    again: Arrays = {}
    if asdict(envelope) != head or _split(record, "", again) != plain:
        raise MessageError(f"it has fields or values that a {envelope.kind} has not")
    if again.keys() != arrays.keys() or _digest(envelope.kind, plain, again) != content:
        raise MessageError("it does not have the digest of what is in it: it was changed")
    return envelope, record


def pack(record: Any) -> tuple[dict[str, Any], Arrays]:
    """Return a record's fields as plain values, None for arrays, and the arrays by path.

    Raises
    ------
    MessageError
        When the record, or something in it, is not declared to travel.
    """
    kind = type(record).__name__
    arrays: Arrays = {}
    plain = _split(record, "", arrays)
    try:
        unpack(kind, plain, arrays)
    except MessageError as error:
        raise MessageError(f"a {kind} cannot be sent: {error}") from None
    return plain, arrays


def unpack(kind: str, plain: Any, arrays: Arrays) -> Any:
    """Return the record of this kind; undoes `pack`.

    Raises
    ------
    MessageError
        When fields or arrays are not as declared.
    """
    if kind not in KINDS:
        raise MessageError(f"{shorten(kind)} is no record that travels; {', '.join(KINDS)} are")
    found = _validate(READERS[kind], _join(plain, "", arrays))
    for record in (found, *getattr(found, "releases", ())):
        axis_lengths(record)
    return found


def _validate(reader: TypeAdapter[Any], values: Any) -> Any:
    try:
        return reader.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MessageError(f"{shorten(place)}: {first['msg']:.300}") from None


def _split(value: Any, path: str, arrays: Arrays) -> Any:
    """Return a value as JSON holds it, its arrays set aside under their paths."""
    if isinstance(value, np.ndarray):
        # safetensors copies memory from the first number on: of a view, that of its neighbours
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        arrays[path[1:]] = array.reshape(value.shape)
        return None
    if is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _split(part, f"{path}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_split(part, f"{path}.{at}", arrays) for at, part in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    # JSON has no such numbers
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _join(value: Any, path: str, arrays: Arrays) -> Any:
    """Return plain values with the arrays where their paths lead; undoes `_split`."""
    if isinstance(value, dict):
        return {key: _join(part, f"{path}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [_join(part, f"{path}.{at}", arrays) for at, part in enumerate(value)]
    return arrays.get(path[1:]) if value is None else value


def _digest(kind: str, plain: Any, arrays: Arrays) -> str:
    return hashlib.sha256(_contain({"kind": kind, "fields": plain}, arrays)).hexdigest()


def _contain(head: dict[str, Any], arrays: Arrays) -> bytes:
    text = write_json(head)
    return save(arrays | {HEAD: np.frombuffer(text, np.uint8)})


def write_json(head: Any, indent: int | None = None) -> bytes:
    """Return the one JSON text of plain values."""
    text = json.dumps(head, indent=indent, ensure_ascii=False, allow_nan=False).encode()
    if len(text) > LARGEST_HEAD:
        raise MessageError(f"a head of {len(text):,} bytes cannot be sent; {LARGEST_HEAD:,} can")
    return text


def read_json(content: bytes) -> dict[str, Any]:
    """Return the table that a JSON text of strangers holds.

    Raises
    ------
    MessageError
        When it is too long or too deep, or no JSON.
    """
    try:
        found = from_json(content, allow_inf_nan=False) if len(content) <= LARGEST_HEAD else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise MessageError(f"its head is no table of JSON, or has over {LARGEST_HEAD:,} bytes")
    return found


def shorten(text: str) -> str:
    """Return a text of strangers as a sentence may quote it."""
    return repr(text[:LONGEST_SHOWN])
