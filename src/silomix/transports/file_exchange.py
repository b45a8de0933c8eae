"""The coordinator's side of an exchange folder: questions out, answers in.

It needs no memory of its own. The coordinator is deterministic, so run again it asks the same
questions in the same order: those that are answered on disk are answered from there, and the first
that is not is where it stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from silomix.errors import MessageError, OpenQuestion
from silomix.messages import REFUSALS, Query, Received, Refused, ShareReleases, by_silo
from silomix.messages.container import Envelope
from silomix.messages.folder import message_files, read, write_folder
from silomix.messages.message_checks import check_envelope, check_reply
from silomix.model.files import read_file
from silomix.study import Study, digest
from silomix.transports import exchange_folder
from silomix.transports.exchange_folder import ANSWERS, FOR, QUESTIONS

# In the envelope of a question to all silos, where the silo's name would be.
EVERYONE = ""

# What to do about a refusal, whatever its code.
REFUSED = "ask its owner to fix what its log says, and to answer with --again; or ask for less"


class Unanswered(OpenQuestion):
    """A question that is not yet answered by everyone.

    Attributes
    ----------
    number, kind : of the question.
    about : how many questions the study asks in all, if that can be said.
    folder : of the exchange.
    missing : for each silo that has not answered, its folder in `answers`.
    refused : for each silo that refused, the code.
    """

    def __init__(self, number: int, kind: str, about: int | None, folder: Path) -> None:
        super().__init__()
        self.number, self.kind, self.about, self.folder = number, kind, about, folder
        self.missing: dict[str, str] = {}
        self.refused: dict[str, str] = {}

    def __str__(self) -> str:
        todo = [f"{name} {state}; {do}" for name, (state, do) in self.todo().items()]
        command = f"silomix answer {self.folder} --silo NAME --data TABLE --study STUDY"
        lines = [f"{self.heading} is open. In each silo below: {command} --policy POLICY", *todo]
        return "\n  - ".join(lines)

    @property
    def heading(self) -> str:
        """Which question it is, of about how many."""
        of = f" of about {self.about}" if self.about else ""
        return f"question {self.number}{of}: {exchange_folder.spelled(self.kind)}"

    def todo(self) -> dict[str, tuple[str, str]]:
        """Return for each silo that must do something how it stands, and what to do."""
        carried = f"carry {self.folder / QUESTIONS} and study.json to it"
        found = {
            name: ("has not answered", f"{carried}; bring back {ANSWERS}/{place}")
            for name, place in self.missing.items()
        }
        for name, code in self.refused.items():
            found[name] = (f"refused: {REFUSALS[code]}", REFUSED)
        return found


class FileExchange:
    """Silos that answer by file; satisfies `silomix.messages.Silos`.

    Parameters
    ----------
    folder : of the exchange; made where there is none.
    study : whose questions these are.
    """

    def __init__(self, folder: str | Path, study: Study) -> None:
        self.folder = Path(folder)
        self.study = study
        self.asked = 0
        exchange_folder.inner_folder(self.folder, QUESTIONS)
        exchange_folder.open_exchange(self.folder, study)

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, in order."""
        return self.study.silos

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own.

        Raises
        ------
        OpenQuestion
            When a silo has yet to answer, or refused to.
        MessageError
            When a question or an answer in the folder is not what it should be.
        """
        self.asked += 1
        asked = by_silo(query, self.names)
        kind = type(next(iter(asked.values()))).__name__
        name = exchange_folder.question_folder(self.asked, kind)
        self._pose(name, query)
        replies: dict[str, Any] = {}
        about = exchange_folder.expected_questions(self.study)
        found = Unanswered(self.asked, kind, about, self.folder)
        for silo, own in asked.items():
            place = exchange_folder.silo_folder(self.names, silo)
            path = exchange_folder.inner_folder(self.folder, ANSWERS, place, name)
            if path.exists():
                replies[silo] = self._answer(path, silo, own)
            elif isinstance(own, ShareReleases):
                # a receipt says nothing that the next answer does not: it is not worth a trip
                replies[silo] = Received()
            else:
                found.missing[silo] = place
            if isinstance(replies.get(silo), Refused):
                found.refused[silo] = replies[silo].code
        if found.missing or found.refused:
            raise found
        return replies

    def _pose(self, name: str, query: Query | Mapping[str, Query]) -> None:
        """Write the question, or check that it is there already, to the last byte."""
        known = dict(exchange_folder.find_questions(self.folder)).get(self.asked)
        if known is None:
            # a question to some silos becomes visible to all of them at once
            write_folder(self.folder / QUESTIONS / name, self._files(query))
            return
        for file, content in self._files(query):
            if known.name != name or not _holds(known / file, content):
                raise MessageError(
                    f"{known} is not question {self.asked} of this study as it stands: {file} was "
                    "changed or is damaged, or an earlier answer was replaced, or another version "
                    "of silomix made it. If it is damaged, delete it: it is written again. To go "
                    f"on from the answers as they are now, delete the folders {self.asked:04}-... "
                    f"and later of {QUESTIONS}, and of every silo in {ANSWERS}, and let the silos "
                    "answer again"
                )

    def _files(self, query: Query | Mapping[str, Query]) -> Iterator[tuple[str, bytes]]:
        """Yield the files of a question, paths and contents; the same question's are the same."""
        for silo, own in (query if isinstance(query, Mapping) else {EVERYONE: query}).items():
            part = f"{FOR}{exchange_folder.silo_folder(self.names, silo)}/" if silo else ""
            envelope = Envelope(digest(self.study), silo, self.asked)
            for file, content in message_files(envelope, own, self.study.table_schema).items():
                yield f"{part}{file}", content

    def _answer(self, path: Path, silo: str, query: Query) -> Any:
        try:
            reply = read_reply(path, self.study, silo, self.asked, query)
            check_reply(reply, query, self.study, silo)
        except MessageError as error:
            raise MessageError(
                f"{path}, the answer of {silo!r} to question {self.asked}, cannot be used: {error}."
                f" Bring the folder from {silo!r} again, unchanged; or delete it, and let "
                f"{silo!r} answer again"
            ) from None
        return reply


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_file(path, len(content) + 1) == content
    except OSError:
        return False


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
