"""The process that works on a silo's rows: questions come through a pipe, answers go back.

It is apart from FLARE's own process, whose death would end the whole run: this one's is one failed
answer. What goes wrong is logged here, and leaves as a code.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.errors import MessageError
from silomix.messages import AssignReply, Refused
from silomix.messages.container import decode, encode
from silomix.messages.container import digest as digest_question
from silomix.model.files import private_file
from silomix.silo.answer import answer_or_refuse, refusal_code
from silomix.silo.ledger import open_account
from silomix.silo.local import load_rows, open_silo
from silomix.study import digest, read_study
from silomix.study.policy import find_policy
from silomix.study.validation import cores
from silomix.transports.flare.job import without
from silomix.transports.flare.startup_kit import SETTINGS_FILE, SiteSettings, read_json

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from silomix.kernels.arrays import Ints
    from silomix.silo.local import Silo

    Site = tuple[Silo, Ints]

WORKER_LOG = "silomix-worker.log"

log = logging.getLogger("silomix.worker")


def work(pipe: Connection, kit: Path, name: str) -> None:
    """Answer questions for as long as somebody asks; the body of the worker's process."""
    private_file(kit / WORKER_LOG)  # what went wrong may quote a row
    logging.basicConfig(
        filename=kit / WORKER_LOG, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    threading.Thread(target=_end_with_parent, daemon=True).start()
    site: Site | str
    try:
        site = open_site(SiteSettings(**read_json(kit / "local" / SETTINGS_FILE)), name)
    except Exception as error:
        log.exception("%s cannot answer questions", name)
        site = refusal_code(error)
    while True:
        pipe.send_bytes(respond(pipe.recv_bytes(), name, site))


def open_site(settings: SiteSettings, name: str) -> Site:
    """Read what the site decided, and open its store: a folder for each study.

    Returns the silo, and the number that each of its rows has in its table.

    Raises
    ------
    SilomixError
        When something does not fit; the text stays here.
    """
    study = without(read_study(settings.study), settings.without)
    policy, column = find_policy(settings.policy), settings.silo_column
    loaded = load_rows(settings.data, study, name, column=column, frequency=settings.frequency)
    account = open_account(
        loaded,
        study,
        name,
        policy=policy,
        data=Path(settings.data),
        column=column,
        table=settings.table,
        ledger=Path(settings.ledger) if settings.ledger else None,
    )
    store = Path(settings.store) / digest(study)[:16]
    silo = open_silo(loaded.shard, study, name, policy=policy, store=store, account=account)
    return replace(silo, threads=cores(settings.threads)), loaded.rows


def respond(question: bytes, name: str, site: Site | str) -> bytes:
    """Return the message that answers a question; nothing where the question cannot be read.

    Parameters
    ----------
    site : of `open_site`, or the code of why there is none.
    """
    try:
        envelope, query = decode(question)
    except MessageError:
        log.exception("%s: a question cannot be read", name)
        return b""
    reply: Any
    if isinstance(site, str):
        reply = Refused(site)
    elif (envelope.study, envelope.silo) != (digest(site[0].study), name):
        log.error("%s: asked as %r about the study %s", name, envelope.silo, envelope.study)
        reply = Refused("study")
    else:
        reply = answer_or_refuse(query, site[0])
        if isinstance(reply, AssignReply):
            site[0].store.write_labels(site[1])
    kind, answers = type(reply).__name__, digest_question(query)
    return encode(replace(envelope, kind=kind, answers=answers), reply)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)  # nobody waits for an answer any more, however long the work still takes
