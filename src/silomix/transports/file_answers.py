"""The silo's side of an exchange folder: open questions in, answers out, the rest stays.

An answer is a folder that is there whole or not at all, and a question asked twice gets the same
answer, so a run that was stopped is simply run again. What an answered question left in the silo's
store is made again where the store is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from silomix.errors import MessageError, StudyMismatch
from silomix.messages import AssignRows, Query, Refused, Release, SampleLocally, ShareReleases
from silomix.messages.container import Envelope, digest_record
from silomix.messages.folder import message_files, read, write_folder
from silomix.messages.message_checks import check_envelope
from silomix.messages.released_draws import same_draws
from silomix.silo.answer import answer_or_refuse, count_answered
from silomix.silo.ledger import knows
from silomix.study import digest
from silomix.transports import exchange_folder
from silomix.transports.exchange_folder import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from silomix.silo.local import Silo


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
    place = exchange_folder.silo_folder(silo.study.silos, silo.name)
    own = exchange_folder.inner_folder(folder, exchange_folder.ANSWERS, place)
    is_new = silo.account is None or not knows(silo.account)
    earlier: list[_Question] = []
    for number, posed in exchange_folder.find_questions(folder):
        source = exchange_folder.question_to(place, posed)
        target = exchange_folder.inner_folder(own, posed.name)
        if source is None:
            continue
        question = _Question(number, source, target, silo)
        # an answer that cannot be used is as good as a refusal
        if target.exists() and not (again and isinstance(question.find_answer(), Refused | None)):
            earlier.append(question)
            reply = question.find_answer() if is_new else None
            if reply is not None:
                # a lost ledger must not reset the limits of a policy
                count_answered(question.read(), reply, silo)
            continue
        query = question.read()
        _restore(earlier, silo)
        yield question.write(query, answer_or_refuse(query, silo))
    if silo.store.membership is None and any(question.asks(AssignRows) for question in earlier):
        _restore(earlier, silo)


@dataclass(frozen=True)
class _Question:
    """A question to a silo in its folder, and where the answer is, or goes."""

    number: int
    source: Path
    target: Path
    silo: Silo

    def asks(self, kind: type) -> bool:
        return self.target.name == exchange_folder.question_folder(self.number, kind.__name__)

    def read(self) -> Query:
        """Return the question; refuse one that is not what its folder says."""
        silo, is_own = self.silo, self.source.name.startswith(exchange_folder.FOR)
        try:
            envelope, query = read(self.source, study=silo.study)
            check_envelope(envelope, silo.study, silo.name if is_own else EVERYONE, self.number)
            if self.asks(type(query)):
                return query
            problem = f"it has a {envelope.kind} in it"
        except MessageError as error:
            problem = f"{error}"
        raise MessageError(
            f"{self.source}, question {self.number} for {silo.name!r}, cannot be used: {problem}. "
            "Bring the folder questions from the coordinator again, unchanged"
        )

    def read_answer(self) -> Any:
        envelope, reply = read(self.target, study=self.silo.study)
        check_envelope(envelope, self.silo.study, self.silo.name, self.number, self.read())
        return reply

    def find_answer(self) -> Any:
        """Return the answer; None where it cannot be used."""
        try:
            return self.read_answer()
        except MessageError:
            return None

    def write(self, query: Query, reply: Any) -> Answered:
        """Write an answer, whole or not at all; one that is there makes room first."""
        study, kind, asked = self.silo.study, type(reply).__name__, digest_record(query)
        envelope = Envelope(digest(study), self.silo.name, self.number, answers=asked)
        write_folder(self.target, message_files(envelope, reply, study.table_schema).items())
        size = sum(path.stat().st_size for path in self.target.iterdir())
        refused = reply.code if isinstance(reply, Refused) else None
        return Answered(self.number, type(query).__name__, kind, self.target, size, refused)


def _restore(earlier: list[_Question], silo: Silo) -> None:
    """Bring a new store to where the answers are, and refuse another table than theirs."""
    sampled, shown, assigned = (
        [question for question in earlier if question.asks(kind)][-1:]
        for kind in (SampleLocally, ShareReleases, AssignRows)
    )
    for left in (question.read_answer() for question in sampled):
        # a new store samples again: the same table under the same study gives the same release
        made = answer_or_refuse(SampleLocally(), silo) if isinstance(left, Release) else None
        if made and (isinstance(made, Refused) or not same_draws(left, made)):
            raise StudyMismatch(
                f"{silo.name}: the release that it handed over came from another table, or was "
                "made under another tier, minimum count or rounding; answer with the earlier table "
                "and policy, or delete all its answers and ask the coordinator to begin again"
            )
    for question in shown:
        query, known = question.read(), silo.store.shared
        if isinstance(query, ShareReleases) and (known is None or known.key != query.key):
            answer_or_refuse(query, silo)
    for question in assigned:
        if silo.store.membership is None and not isinstance(question.find_answer(), Refused | None):
            answer_or_refuse(question.read(), silo)
    earlier.clear()
