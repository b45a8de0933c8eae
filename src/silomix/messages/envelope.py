"""What every message says of itself: which study, which silo, which question, which record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from silomix.errors import MessageError
from silomix.messages.documents import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "silomix message"
VERSION = 4
LARGEST = 1 << 30
"""Bytes of a message, unless its reader allows another number."""

LONGEST_NAME = 60
LARGEST_NUMBER = 2**31 - 1
DIGEST = re.compile(r"[0-9a-f]{64}|", re.ASCII)


@dataclass(frozen=True)
class Envelope:
    """Where a message belongs.

    Attributes
    ----------
    study : digest of the study; empty on what a silo keeps for itself.
    silo : the silo that is asked, or that answers.
    number : place of the question in the study, from 1; an answer has that of its question.
    kind : name of the record inside.
    answers : digest of the question that it answers; empty on what is no answer.
    """

    study: str
    silo: str
    number: int
    kind: str
    answers: str = ""


ENVELOPE_KEYS = ("study", "silo", "number", "kind", "answers")


def read_envelope(document: Mapping[str, Any]) -> Envelope:
    """Return the envelope in the head of a message of this version.

    Raises
    ------
    MessageError
        When the head is of something else, or of another version.
    """
    if document.get("format") != FORMAT:
        raise MessageError(f"it says {shorten(document.get('format'))} instead of {FORMAT!r}")
    check_version(document.get("version"))
    for key in ENVELOPE_KEYS:
        if key not in document:
            raise MessageError(f"it does not say its {key}")
    _check(document)
    return Envelope(*(document[key] for key in ENVELOPE_KEYS))


def check_version(version: object) -> None:
    """Refuse a message of another version."""
    if type(version) is not int or version != VERSION:
        raise MessageError(
            f"it is of version {shorten(version)} and this silomix reads version {VERSION}; use "
            "the same silomix on both sides"
        )


def envelope_head(envelope: Envelope) -> dict[str, Any]:
    """Return the head of a message as plain values; refuse one that no study could have."""
    head = {key: getattr(envelope, key) for key in ENVELOPE_KEYS}
    _check(head)
    return {"format": FORMAT, "version": VERSION} | head


def _check(head: Mapping[str, Any]) -> None:
    study, silo, number, kind, answers = (head[key] for key in ENVELOPE_KEYS)
    for word, digest in (("study", study), ("question", answers)):
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise MessageError(f"its {word} is {shorten(digest)}, which is no digest")
    if not isinstance(silo, str) or len(silo) > LONGEST_NAME or not silo.isprintable():
        raise MessageError(f"its silo is {shorten(silo)}, which is no name of a silo")
    if type(number) is not int or not 1 <= number <= LARGEST_NUMBER:
        raise MessageError(f"its number is {shorten(number)}; questions are numbered from 1")
    if not isinstance(kind, str):
        raise MessageError(f"its kind is {shorten(kind)}, which is no name of a record")
