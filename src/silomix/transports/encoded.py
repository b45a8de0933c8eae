"""Questions and answers as messages: what is checked at both ends, whatever carries them between.

A transport is a function `carry`. `EncodedSilos` at the coordinator and `respond` in the silo do
the rest: number, encode, check, keep and find answers again, refuse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.errors import CheckpointError, MessageError, SiloError, StudyMismatch
from silomix.messages import REFUSALS, Query, Refused, by_silo
from silomix.messages.container import Envelope, decode, digest_record, encode
from silomix.messages.message_checks import check_envelope, check_reply
from silomix.model.files import private_folder, replace_file, writing
from silomix.silo.answer import answer_or_refuse
from silomix.study import Study, digest

if TYPE_CHECKING:
    from silomix.silo.local import Silo

DEADLINE, AWAY, STOPPED = "deadline", "away", "stopped"
# Why a silo has no answer: its own codes, and those of a transport.
REASONS = REFUSALS | {
    DEADLINE: "it did not answer before the deadline",
    AWAY: "it is not connected",
    STOPPED: "the run was stopped from outside",
}

# Questions by silo, to answers: the bytes that `respond` made, or a code of `REASONS`.
Carry = Callable[[Mapping[str, Any]], Iterable[tuple[str, Any]]]


class NoAnswer(SiloError):
    """A silo did not answer, or refused to.

    Attributes
    ----------
    silo : which.
    code : why: one of `REASONS`.
    """

    def __init__(self, silo: str, code: str, question: str) -> None:
        self.silo, self.code = silo, code if code in REASONS else "failed"
        super().__init__(
            f"{silo} has no answer to question {question}: {REASONS[self.code]}; its own log says "
            "more. What was answered is kept: run the study again to continue from there, or "
            f"leave the silo out with --without {silo}"
        )


def _raise(error: Exception) -> None:
    raise error


@dataclass
class EncodedSilos:
    """The silos of a study, behind whatever carries messages; satisfies `silomix.messages.Silos`.

    Attributes
    ----------
    carry : takes a question for each silo, by name, and yields the silos' names with their answers,
        in any order. In place of an answer it may yield a code of `REASONS`.
    journal : a folder that keeps the answers, so that a coordinator that was stopped asks nobody
        twice: it is deterministic, and started again asks the same questions in the same order. In
        it, ``000007-2.reply`` is what the silo at place 2 of the roster answered to question 7.
    log : gets an entry for each question, as in `silomix.transports.flare.session.Outcome.asked`.
    pack, unpack : what turns an envelope and a record into what is carried, and back.
    refuse : called with a `NoAnswer`; if it returns, the other silos' answers are still read.
    asked : how many questions there were so far.
    """

    study: Study
    carry: Carry
    journal: Path | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    pack: Callable[[Envelope, Any], Any] = encode
    unpack: Callable[[Any], tuple[Envelope, Any]] = decode
    refuse: Callable[[NoAnswer], None] = _raise
    asked: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, in order."""
        return self.study.silos

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own.

        Raises
        ------
        NoAnswer
            When a silo does not answer, or refuses to.
        MessageError
            When an answer is damaged, or does not fit the question or the study.
        """
        start, queries, replies = time.monotonic(), by_silo(query, self.names), dict[str, Any]()
        self.asked += 1
        questions = {}
        for name, each in queries.items():
            if (kept := self.find(self.asked, name, each)) is not None:
                replies[name] = kept
            else:
                questions[name] = self.pack(Envelope(digest(self.study), name, self.asked), each)
        received = 0
        for name, answer in self.carry(questions) if questions else ():
            replies[name] = self._accept(name, queries[name], answer)
            received += len(answer) if isinstance(answer, bytes) else 0
        for name in queries.keys() - replies.keys():
            self._refuse(name, AWAY, queries[name])
        self.log.append(
            {
                "number": self.asked,
                "kind": type(next(iter(queries.values()))).__name__,
                "seconds": round(time.monotonic() - start, 4),
                "sent": sum(map(len, questions.values())),
                "received": received,
                "replayed": len(queries) - len(questions),
            }
        )
        return {name: replies[name] for name in queries}

    def find(self, number: int, silo: str, query: Query) -> Any:
        """A silo's answer to a question; None where the journal has none.

        Raises
        ------
        CheckpointError
            When the question is not the one that was answered, or the file is damaged.
        """
        path = self._path(number, silo)
        if path is None or not path.exists():
            return None
        try:
            envelope, record = decode(path.read_bytes())
            check_envelope(envelope, self.study, silo, number, query)
        except MessageError as error:
            raise CheckpointError(
                f"{path} does not answer question {number} to {silo}, perhaps because another "
                f"version of silomix or of a package asked it ({error}); go on with that version, "
                f"or delete {self.journal} to ask everything again"
            ) from None
        return record

    def keep(self, number: int, silo: str, content: bytes) -> None:
        """Write a silo's answer into the journal, whole or not at all."""
        path = self._path(number, silo)
        if path is not None:
            with writing(path.parent, CheckpointError):
                private_folder(path.parent)
                replace_file(path, content, alone=True, private=True)

    def _path(self, number: int, silo: str) -> Path | None:
        return self.journal and self.journal / f"{number:06}-{self.names.index(silo)}.reply"

    def _accept(self, name: str, query: Query, answer: Any) -> Any:
        """Check and keep one answer, and return the reply in it."""
        if isinstance(answer, str):
            return self._refuse(name, answer, query)
        try:
            envelope, reply = self.unpack(answer)
            check_envelope(envelope, self.study, name, self.asked, query)
            check_reply(reply, query, self.study, name)
        except MessageError as error:
            where = f"{answer}, " if isinstance(answer, Path) else ""
            raise MessageError(
                f"{where}the answer of {name!r} to question {self.asked}, cannot be used: {error}. "
                f"Bring it from {name!r} again, unchanged; or delete it, and let {name!r} answer "
                "again"
            ) from None
        if isinstance(reply, Refused):
            return self._refuse(name, reply.code, query)
        self.keep(self.asked, name, answer)
        return reply

    def _refuse(self, name: str, code: str, query: Query) -> None:
        self.refuse(NoAnswer(name, code, f"{self.asked} ({type(query).__name__})"))


def respond(question: bytes, silo: Silo) -> bytes:
    """Answer a question in the silo, both as bytes; a refusal is an answer.

    Raises
    ------
    SilomixError
        When the question cannot be read, or is not of this study to this silo. Of the error,
        nothing may leave but its `code`.
    """
    envelope, query = decode(question)
    if (envelope.study, envelope.silo) != (digest(silo.study), silo.name):
        raise StudyMismatch(f"it was asked as {envelope.silo!r} about the study {envelope.study}")
    return encode(replace(envelope, answers=digest_record(query)), answer_or_refuse(query, silo))
