"""Ask the silos over a post that may lose letters: number, check, remember, ask again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from silomix.errors import SiloError
from silomix.messages import REFUSALS, Refused
from silomix.messages.container import Envelope, decode, encode
from silomix.messages.door import check_envelope, check_reply
from silomix.study import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from silomix.messages import Query
    from silomix.study import Study
    from silomix.transports.journal import Journal

DEADLINE, AWAY, DIED = "deadline", "away", "died"
SILENCES = {
    DEADLINE: "it did not answer before the deadline",
    AWAY: "its site is not connected any more",
}
PASSING = {DIED, DEADLINE}
"""Worth asking again at once: the site starts a new worker, or has the answer by then."""


@dataclass(frozen=True)
class Silence:
    """No answer came.

    Attributes
    ----------
    code : why: one of `SILENCES`, or a code that the site sent in place of an answer.
    """

    code: str


class NoAnswer(SiloError):
    """A silo did not answer, or refused to.

    Attributes
    ----------
    silo : which.
    code : why: one of `SILENCES` or of `silomix.messages.REFUSALS`.
    """

    def __init__(self, message: str, silo: str, code: str) -> None:
        super().__init__(message)
        self.silo, self.code = silo, code


class Post(Protocol):
    """Carries letters to the silos and back."""

    def exchange(
        self, letters: Mapping[str, bytes], deadline: float
    ) -> Iterator[tuple[str, bytes | Silence]]:
        """Send each silo its letter; yield what comes back, once for each, as it comes."""
        ...


@dataclass(frozen=True)
class Asked:
    """One question, for the record.

    Attributes
    ----------
    number, kind : of the question.
    seconds : until the last answer.
    sent, received : bytes of all letters, once each; those found in the journal do not count.
    replayed : answers that the journal had.
    """

    number: int
    kind: str
    seconds: float
    sent: int
    received: int
    replayed: int


class RemoteSilos:
    """The silos of a study behind a post; satisfies `silomix.messages.Silos`."""

    def __init__(
        self,
        study: Study,
        post: Post,
        journal: Journal,
        *,
        deadline: float,
        retries: int,
        note: Callable[[Asked], None],
    ) -> None:
        self._study, self._digest = study, digest(study)
        self._post, self._journal, self._note = post, journal, note
        self._deadline, self._retries = deadline, retries
        self._number = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, in order."""
        return self._study.silos

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own.

        Raises
        ------
        NoAnswer
            When a silo does not answer, after as many retries as there are.
        """
        self._number += 1
        start = time.monotonic()
        queries: Mapping[str, Query]
        queries = query if isinstance(query, Mapping) else dict.fromkeys(self.names, query)
        replies: dict[str, Any] = {}
        for name, question in queries.items():
            known = self._journal.find(self._number, name, question)
            if known is not None:
                replies[name] = known
        replayed = len(replies)
        letters = {
            name: encode(
                Envelope(self._digest, name, self._number, type(question).__name__), question
            )
            for name, question in queries.items()
            if name not in replies
        }
        received = self._collect(letters, queries, replies)
        self._note(
            Asked(
                number=self._number,
                kind=type(next(iter(queries.values()))).__name__,
                seconds=round(time.monotonic() - start, 4),
                sent=sum(map(len, letters.values())),
                received=received,
                replayed=replayed,
            )
        )
        return {name: replies[name] for name in queries}

    def _collect(
        self, letters: dict[str, bytes], queries: Mapping[str, Query], replies: dict[str, Any]
    ) -> int:
        """Send until every letter is answered or the retries are used up; return bytes received."""
        open_letters, received = letters, 0
        for attempt in range(self._retries + 1):
            failed: dict[str, bytes] = {}
            for name, answer in self._post.exchange(open_letters, self._deadline):
                code = self._take(name, queries[name], answer, replies)
                if code is None:
                    received += len(answer) if isinstance(answer, bytes) else 0
                elif code in PASSING and attempt < self._retries:
                    failed[name] = letters[name]
                else:
                    raise self._no_answer(name, queries[name], code)
            open_letters = failed
            if not open_letters:
                break
        return received

    def _take(
        self, name: str, query: Query, answer: bytes | Silence, replies: dict[str, Any]
    ) -> str | None:
        """Check, remember and file one answer; return why there is none."""
        if isinstance(answer, Silence):
            return answer.code
        envelope, reply = decode(answer)
        check_envelope(envelope, self._study, name, self._number, query)
        check_reply(reply, query, self._study, name)
        if isinstance(reply, Refused):
            return reply.code
        self._journal.keep(self._number, name, query, answer)
        replies[name] = reply
        return None

    def _no_answer(self, name: str, query: Query, code: str) -> NoAnswer:
        why = SILENCES.get(code) or REFUSALS.get(code) or REFUSALS["failed"]
        return NoAnswer(
            f"{name} has no answer to question {self._number} ({type(query).__name__}): {why}; "
            f"its own log says more. What was answered is kept: the same command goes on from "
            f"there, and --without {name} goes on without it",
            name,
            code if code in SILENCES or code in REFUSALS else "failed",
        )
