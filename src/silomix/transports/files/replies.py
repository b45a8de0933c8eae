"""A reply in its folder: written by a silo, believed by nobody."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from silomix.messages.checks import check_envelope
from silomix.messages.envelope import Envelope
from silomix.messages.files import read, write
from silomix.study import digest

if TYPE_CHECKING:
    from pathlib import Path

    from silomix.study import Study


def write_reply(folder: Path, reply: Any, study: Study, silo: str, number: int) -> None:
    """Write a reply, whole or not at all; one that is there makes room first.

    Raises
    ------
    MessageError
        When it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    envelope = Envelope(digest(study), silo, number, type(reply).__name__)
    write(folder, envelope, reply, study=study)


def read_reply(folder: Path, study: Study, silo: str, number: int) -> Any:
    """Return a reply.

    Raises
    ------
    MessageError
        When it is damaged, or of another study, silo or question.
    """
    envelope, reply = read(folder, study=study)
    check_envelope(envelope, study, silo, number)
    return reply
