"""A message in bytes, for live runs: a JSON head, raw arrays, a checksum. Nothing is executed.

In order: `silomix` and a line feed (8 bytes), the version (2), nothing (2), the length of the head
(4), the length of the whole message (8); the head; the arrays in the order of the head, each
little-endian and in C order; the SHA-256 of all that came before (32).
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import MessageError
from silomix.messages.documents import LARGEST_DOCUMENT, read_document, shorten
from silomix.messages.envelope import (
    ENVELOPE_KEYS,
    LARGEST,
    VERSION,
    Envelope,
    check_version,
    envelope_head,
    read_envelope,
)
from silomix.messages.fields import check_finite, check_keys
from silomix.messages.schema import content_bytes, pack, unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.messages.fields import Arrays, Slot

MAGIC = b"silomix\n"
PREFIX = struct.Struct("<8sHxxIQ")
CHECKSUM = hashlib.sha256().digest_size
HEAD_KEYS = {"format", "version", "fields", *ENVELOPE_KEYS}


def encode(envelope: Envelope, record: Any) -> bytes:
    """Return a message as bytes; the same message always gives the same bytes.

    Raises
    ------
    MessageError
        When the record is not one that travels, or not of the envelope's kind.
    """
    document, arrays = pack_for_travel(envelope, record)
    head = json.dumps(document, allow_nan=False).encode()
    if len(head) > LARGEST_DOCUMENT:
        raise MessageError(
            f"a {envelope.kind} cannot be sent: its head would have {len(head):,} bytes, and at "
            f"most {LARGEST_DOCUMENT:,} are read"
        )
    length = PREFIX.size + len(head) + sum(slot.bytes for slot, _ in arrays) + CHECKSUM
    parts = [PREFIX.pack(MAGIC, VERSION, len(head), length), head]
    parts += [array.tobytes() for _, array in arrays]
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return b"".join([*parts, checksum.digest()])


def pack_for_travel(envelope: Envelope, record: Any) -> tuple[dict[str, Any], Arrays]:
    """Return head and arrays of a message: the plain values, with `fields`, and the arrays."""
    kind = type(record).__name__
    if envelope.kind != kind:
        raise MessageError(f"a {kind} cannot be sent as a {shorten(envelope.kind)}")
    try:
        fields, arrays = pack(record)
        return envelope_head(envelope) | {"fields": fields}, arrays
    except MessageError as error:
        raise MessageError(f"a {kind} cannot be sent: {error}") from None


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
    view = memoryview(data).cast("B")
    try:
        head_length = _open(view, largest)
        start = PREFIX.size + head_length
        document = read_document(bytes(view[PREFIX.size : start]))
        envelope = read_envelope(document)
        check_keys(document, HEAD_KEYS, "its head")
        reader = _Reader(view[start:-CHECKSUM])
        record = unpack(envelope.kind, document["fields"], reader.take)
        reader.finish()
    except MessageError as error:
        raise MessageError(f"the message cannot be read: {error}; have it sent again") from None
    return envelope, record


def digest(record: Any) -> str:
    """Return the SHA-256, in hexadecimal, of a record's content: equal for equal records."""
    fields, arrays = pack(record)
    content = hashlib.sha256()
    for part in content_bytes(type(record).__name__, fields, arrays):
        content.update(part)
    return content.hexdigest()


def _open(view: memoryview, largest: int) -> int:
    """Check all that can be checked without reading what is inside; return the head's length."""
    if len(view) > largest:
        raise MessageError(f"it has {len(view):,} bytes, and at most {largest:,} are read here")
    if len(view) < PREFIX.size + CHECKSUM or bytes(view[: len(MAGIC)]) != MAGIC:
        raise MessageError("it is no silomix message")
    _, version, head_length, length = PREFIX.unpack(view[: PREFIX.size])
    check_version(version)
    if length != len(view):
        raise MessageError(f"it has {len(view):,} of {length:,} bytes")
    if hashlib.sha256(view[:-CHECKSUM]).digest() != bytes(view[-CHECKSUM:]):
        raise MessageError("its checksum does not fit: it was damaged on the way")
    if PREFIX.size + head_length + CHECKSUM > length:
        raise MessageError(f"its head claims {head_length:,} bytes, more than there are")
    return int(head_length)


class _Reader:
    """Takes arrays off the body of a message, one after the other."""

    def __init__(self, body: memoryview) -> None:
        self.body = body

    def take(self, slot: Slot) -> NDArray[Any]:
        if slot.bytes > len(self.body):
            raise MessageError(
                f"{slot} of shape {slot.shape} takes {slot.bytes:,} bytes and {len(self.body):,} "
                "are left"
            )
        content, self.body = self.body[: slot.bytes], self.body[slot.bytes :]
        stored = np.frombuffer(content, slot.dtype).reshape(slot.shape)
        array = stored.astype(stored.dtype.newbyteorder("="))
        check_finite(slot, array)
        return array

    def finish(self) -> None:
        if len(self.body):
            raise MessageError(f"{len(self.body):,} bytes are left over after its arrays")
