"""JSON that strangers wrote: bounded in length and depth, no key twice, nothing but JSON."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

import numpy as np

from silomix.errors import MessageError

LARGEST_DOCUMENT = 8_000_000
"""Bytes: the head of a question that shows a thousand releases."""

DEEPEST = 20
"""Lists and tables inside each other."""

LONGEST_WHOLE_NUMBER = 20
LONGEST_SHOWN = 40

STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string; an open one runs on, so that a scan is linear."""

NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def read_document(content: bytes, *, largest: int = LARGEST_DOCUMENT) -> dict[str, Any]:
    """Return the table that a JSON text holds.

    Raises
    ------
    MessageError
        When the text is too long or too deep, no JSON, or says the same key twice.
    """
    if len(content) > largest:
        raise MessageError(f"its head has {len(content):,} bytes; at most {largest:,} are read")
    if _depth(content) > DEEPEST:
        raise MessageError(f"its head nests more than {DEEPEST} lists or tables")
    try:
        document = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_table,
            parse_int=_whole_number,
            parse_float=_number,
            parse_constant=_refuse_constant,
        )
    except ValueError:  # JSON's and UTF-8's errors both are
        raise MessageError("its head is no JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise MessageError("its head is no table of JSON")
    return document


def canonical(document: Any) -> bytes:
    """Return the one JSON text of plain values: the same values give the same bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def shorten(value: object) -> str:
    """Return a found value as a message may show it."""
    if isinstance(value, int) and value.bit_length() > 3 * LONGEST_SHOWN:
        return "a number of very many digits"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    if isinstance(value, str):
        # half characters cannot be printed
        value = value[:LONGEST_SHOWN].encode("utf-8", "replace").decode()
    return f"{value!r:.{LONGEST_SHOWN}}"


def _depth(content: bytes) -> int:
    marks = np.frombuffer(STRING.sub(b"", content).translate(None, NO_BRACKETS), dtype=np.uint8)
    steps = np.where((marks == ord("[")) | (marks == ord("{")), 1, -1)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise MessageError(f"its head says {shorten(twice)} twice")
    return table


def _whole_number(text: str) -> int:
    if len(text) > LONGEST_WHOLE_NUMBER:
        raise MessageError("its head has a number of very many digits")
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise MessageError(f"its head has {shorten(text)}, which no number can hold")
    return number


def _refuse_constant(word: str) -> float:
    raise MessageError(f"its head has {word}, which is no JSON")
