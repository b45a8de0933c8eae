"""The process that works on a silo's rows: questions in on standard input, answers out.

It is apart from FLARE's own process, whose death would end the whole run: this one's is one failed
answer. It ends when its input does. What goes wrong is logged here, and leaves as a code.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.messages import AssignReply, Refused
from silomix.messages.container import decode, encode
from silomix.messages.container import digest as digest_question
from silomix.silo import answer_or_refuse, refusal_code
from silomix.site import write_labels
from silomix.study import digest
from silomix.transports.flare.frames import LETTER, REFUSED, read_frame, write_frame
from silomix.transports.flare.kit import read_site_settings
from silomix.transports.flare.site import open_site

if TYPE_CHECKING:
    from typing import BinaryIO

    import numpy as np
    from numpy.typing import NDArray

    from silomix.messages.container import Envelope
    from silomix.silo import Silo

    Opened = tuple[Silo, NDArray[np.int64]]

log = logging.getLogger("silomix.worker")


def main(local: str, name: str) -> None:
    """Answer questions until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what any package prints must not end up among the answers
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    letters: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, letters), daemon=True).start()
    opened = _open(Path(local), name)
    while True:
        write_frame(answers, *respond(letters.get(), name, opened))


def _listen(stream: BinaryIO, letters: queue.SimpleQueue[bytes]) -> None:
    while (frame := read_frame(stream)) is not None:
        letters.put(frame[1])
    os._exit(0)  # nobody waits for an answer any more, however long the work still takes


def _open(local: Path, name: str) -> Opened | str:
    """Return the silo and its rows' numbers, or the code of why there is none."""
    try:
        silo, rows = open_site(read_site_settings(local), name)
    except Exception as error:
        log.exception("%s cannot answer questions", name)
        return refusal_code(error)
    log.info("%s: %d rows, study %s", name, silo.shard.rows, digest(silo.study))
    return silo, rows


def respond(letter: bytes, name: str, opened: Opened | str) -> tuple[bytes, bytes]:
    """Return the frame that answers a letter."""
    try:
        envelope, query = decode(letter)
    except Exception:
        log.exception("%s: a letter cannot be read", name)
        return REFUSED, b"question"
    if isinstance(opened, str):
        return _seal(Refused(opened), envelope, query)
    silo, rows = opened
    if envelope.study != digest(silo.study):
        log.error("%s: asked about the study %s, in which it takes no part", name, envelope.study)
        reply: object = Refused("study")
    elif envelope.silo != name:
        log.error("%s: a letter to %r came here", name, envelope.silo)
        reply = Refused("question")
    else:
        reply = answer_or_refuse(query, silo)
        if isinstance(reply, AssignReply):
            write_labels(silo, rows)
    return _seal(reply, envelope, query)


def _seal(reply: object, asked: Envelope, query: object) -> tuple[bytes, bytes]:
    kind = type(reply).__name__
    try:
        return LETTER, encode(replace(asked, kind=kind, answers=digest_question(query)), reply)
    except Exception:
        log.exception("%s: a %s cannot be sent", asked.silo, kind)
        return REFUSED, b"failed"


if __name__ == "__main__":
    main(*sys.argv[1:])
