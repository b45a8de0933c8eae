"""The silo's side of an exchange folder: open questions in, answers out, the rest stays.

An answer is a folder that is there whole or not at all, and a question asked twice gets the same
answer, so a run that was stopped is simply run again. What an answered question left in the silo's
store is made again where the store is new.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import MessageError, StudyMismatch
from silomix.ledger import knows
from silomix.messages import AssignRows, Refused, SampleLocally, ShareReleases
from silomix.messages.door import check_envelope
from silomix.messages.folder import read
from silomix.release import Release
from silomix.silo import answer_or_refuse, count_answered
from silomix.transports.files.asking import EVERYONE
from silomix.transports.files.layout import (
    ANSWERS,
    clear_scratch,
    find_questions,
    inner_folder,
    question_folder,
    silo_folder,
)
from silomix.transports.files.replies import read_reply, write_reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from silomix.messages import Query
    from silomix.messages.container import Envelope
    from silomix.silo import Silo
    from silomix.transports.files.layout import Posed


@dataclass(frozen=True)
class Answered:
    """A question that was answered just now.

    Attributes
    ----------
    number, question : its place, and what was asked, as the name of a record.
    reply : what was answered, as the name of a record.
    path, bytes : where that is, and how large.
    refused : the code of a refusal, None for a true answer.
    """

    number: int
    question: str
    reply: str
    path: Path
    bytes: int
    refused: str | None = None


def answer_questions(folder: Path, silo: Silo, *, again: bool = False) -> Iterator[Answered]:
    """Answer a silo's open questions, in order, each written before the next is read.

    Parameters
    ----------
    folder : of the exchange, of which `study.json` and `questions` are needed.
    again : answer those again that were refused, or whose answer cannot be read.

    Raises
    ------
    MessageError
        When a question is damaged, or of another study or silo, or links lead out of the folder.
    StudyMismatch
        When the silo's release in the folder is not the one that its store has.
    """
    place = silo_folder(silo.study.silos, silo.name)
    own = inner_folder(folder, ANSWERS, place)
    clear_scratch(own)
    left = _Left(silo)
    for posed in find_questions(folder):
        source, target = posed.to(place), own / posed.name
        if source is None:
            continue
        if target.exists() and not (again and _is_refused(posed, source, target, silo)):
            left.add(posed, source, target)
            continue
        query = read_question(posed, source, silo)
        left.restore()
        reply = answer_or_refuse(query, silo)
        write_reply(target, reply, silo.study, silo.name, posed.number, query)
        yield _answered(posed.number, query, reply, target)
    left.restore_labels()


def read_question(posed: Posed, source: Path, silo: Silo) -> Query:
    """Return a question to a silo.

    Raises
    ------
    MessageError
        When it is damaged, or not the question that its folder says.
    """
    try:
        envelope, query = read(source, study=silo.study)
        _check_address(posed, source, envelope, silo)
    except MessageError as error:
        raise MessageError(
            f"{source}, question {posed.number} for {silo.name!r}, cannot be used: {error}. Bring "
            "the folder questions from the coordinator again, unchanged"
        ) from None
    return query


def _check_address(posed: Posed, source: Path, envelope: Envelope, silo: Silo) -> None:
    if envelope.silo != (EVERYONE if source == posed.path else silo.name):
        raise MessageError(f"it is for {envelope.silo or 'all silos'}")
    check_envelope(replace(envelope, silo=silo.name), silo.study, silo.name, posed.number)
    if posed.name != question_folder(posed.number, envelope.kind):
        raise MessageError(f"it has a {envelope.kind} in it")


class _Left:
    """What answered questions left in the silo, made again where its store is new.

    They are counted again too: a lost store or ledger must not reset the limits of a policy.
    """

    def __init__(self, silo: Silo) -> None:
        self.silo = silo
        self.uncounted = not silo.store.ledger
        if silo.account is not None:
            self.uncounted |= not knows(silo.account)
        self.release: Release | None = None
        self.shown: tuple[Posed, Path] | None = None
        self.assigned: tuple[Posed, Path] | None = None

    def add(self, posed: Posed, source: Path, target: Path) -> None:
        if self.uncounted and not _is_refused(posed, source, target, self.silo):
            count_answered(read_question(posed, source, self.silo), self.silo)
        if _asks(posed, SampleLocally):
            number, query = posed.number, SampleLocally()
            reply = read_reply(target, self.silo.study, self.silo.name, number, query)
            self.release = reply if isinstance(reply, Release) else None
        elif _asks(posed, ShareReleases):
            self.shown = posed, source
        elif _asks(posed, AssignRows) and self.silo.store.membership is None:
            refused = _is_refused(posed, source, target, self.silo)
            self.assigned = None if refused else (posed, source)

    def restore(self) -> None:
        """Bring a new store to where the answers are, and refuse another table than theirs."""
        self.check_release()
        if self.shown is None:
            return
        query = read_question(*self.shown, self.silo)
        self.shown = None
        known = self.silo.store.shared
        if isinstance(query, ShareReleases) and (known is None or known.key != query.key):
            answer_or_refuse(query, self.silo)

    def restore_labels(self) -> None:
        """Find the rows' clusters for a store that lacks them; the answer stays as it is."""
        if self.assigned is not None:
            self.check_release()
            answer_or_refuse(read_question(*self.assigned, self.silo), self.silo)

    def check_release(self) -> None:
        """Refuse to go on from another release than the one that left the silo.

        A new store samples again: the same table under the same study gives the same release.
        """
        if self.release is None:
            return
        again = answer_or_refuse(SampleLocally(), self.silo)
        parts = ("sizes", "mean", "concentration")
        if isinstance(again, Refused) or not all(
            np.array_equal(getattr(self.release, part), getattr(again, part)) for part in parts
        ):
            raise StudyMismatch(
                f"{self.silo.name}: the release that it handed over came from another table, "
                "or was made under another tier, minimum count or rounding; answer with the table "
                "and the policy of then, or delete all its answers and ask the coordinator to "
                "begin again"
            )


def _answered(number: int, query: Query, reply: Any, target: Path) -> Answered:
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    refused = reply.code if isinstance(reply, Refused) else None
    return Answered(number, type(query).__name__, type(reply).__name__, target, size, refused)


def _asks(posed: Posed, kind: type) -> bool:
    return posed.name == question_folder(posed.number, kind.__name__)


def _is_refused(posed: Posed, source: Path, target: Path, silo: Silo) -> bool:
    """Tell whether an answer is a refusal; one that cannot be used is as good as one."""
    try:
        query = read_question(posed, source, silo)
        reply = read_reply(target, silo.study, silo.name, posed.number, query)
    except MessageError:
        return True
    return isinstance(reply, Refused)
