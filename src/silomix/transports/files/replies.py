"""A reply in its folder: written by a silo, believed by nobody."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from silomix.errors import MessageError
from silomix.messages.container import digest as digest_question
from silomix.messages.door import check_envelope
from silomix.messages.container import Envelope
from silomix.messages.folder import read, write
from silomix.study import digest

if TYPE_CHECKING:
    from pathlib import Path

    from silomix.messages import Query
    from silomix.study import Study


def write_reply(
    folder: Path, reply: Any, study: Study, silo: str, number: int, query: Query
) -> None:
    """Write a reply, whole or not at all; one that is there makes room first.

    Raises
    ------
    MessageError
        When it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MessageError(
            f"{folder.parent} cannot be made ({error.strerror}); free the place, or let it be "
            "written"
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    kind, asked = type(reply).__name__, digest_question(query)
    envelope = Envelope(digest(study), silo, number, kind, asked)
    write(folder, envelope, reply, study=study)


def read_reply(folder: Path, study: Study, silo: str, number: int, query: Query) -> Any:
    """Return a reply to a question.

    Raises
    ------
    MessageError
        When it is damaged, or of another study, silo or question.
    """
    envelope, reply = read(folder, study=study)
    check_envelope(envelope, study, silo, number, query)
    return reply
