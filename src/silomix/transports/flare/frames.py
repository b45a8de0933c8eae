"""Messages between a site's FLARE process and its worker: a kind, a length, the bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import IO

HEAD = struct.Struct("<cQ")
LETTER, REFUSED = b"L", b"R"
"""A message of `silomix.messages.container`; the code of a refusal where none could be read."""


def write_frame(stream: IO[bytes], kind: bytes, content: bytes) -> None:
    """Write one message."""
    stream.write(HEAD.pack(kind, len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Return the kind and content of the next message, or None when the other side is gone."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, length = HEAD.unpack(head)
    content = stream.read(length)
    return (kind, content) if len(content) == length else None
