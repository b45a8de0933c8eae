"""A silo's part in a run: open what its owner decided, answer questions from its rows.

It needs no FLARE: `executor` does, which calls this in the process of the run. What goes wrong is
logged here, and leaves as a code.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.errors import MessageError
from silomix.messages import AssignReply, Refused
from silomix.messages.container import decode, encode
from silomix.messages.container import digest as digest_question
from silomix.model.files import private_file
from silomix.silo.answer import answer_or_refuse, refusal_code
from silomix.silo.local import open_site
from silomix.study import digest, read_study
from silomix.study.policy import find_policy
from silomix.study.validation import cores
from silomix.transports.flare.session import without
from silomix.transports.flare.startup_kit import SETTINGS_FILE, SiteSettings, read_json

if TYPE_CHECKING:
    from silomix.kernels.arrays import Ints
    from silomix.silo.local import Silo

    Site = tuple[Silo, Ints]

WORKER_LOG = "silomix-worker.log"

log = logging.getLogger("silomix.worker")


def open_or_refuse(kit: Path, name: str) -> Site | str:
    """Open the silo of a kit, or return the code of why it cannot be; log to a file of the kit."""
    private_file(kit / WORKER_LOG)
    handler = logging.FileHandler(kit / WORKER_LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logger = logging.getLogger("silomix")
    logger.addHandler(handler)
    logger.propagate = False  # what went wrong may quote a row: it is not for FLARE's own logs
    try:
        return open_own_silo(SiteSettings(**read_json(kit / "local" / SETTINGS_FILE)), name)
    except Exception as error:
        log.exception("%s cannot answer questions", name)
        return refusal_code(error)


def open_own_silo(settings: SiteSettings, name: str) -> Site:
    """Read what the site decided, and open its silo, with a store for each study.

    Returns the silo, and the number that each of its rows has in its table.

    Raises
    ------
    SilomixError
        When something does not fit; the text stays here.
    """
    study = without(read_study(settings.study), settings.without)
    silo, rows = open_site(
        Path(settings.data),
        study,
        name,
        policy=find_policy(settings.policy),
        store=Path(settings.store) / digest(study)[:16],
        silo_column=settings.silo_column,
        frequency=settings.frequency,
        ledger=Path(settings.ledger) if settings.ledger else None,
        table_name=settings.table_name,
    )
    return replace(silo, threads=cores(settings.threads)), rows


def respond(question: bytes, name: str, site: Site | str) -> bytes:
    """Return the message that answers a question; nothing where the question cannot be read.

    Parameters
    ----------
    site : of `open_own_silo`, or the code of why there is none.
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
