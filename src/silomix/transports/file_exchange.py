"""The coordinator's side of an exchange folder: questions out, answers in.

It needs no memory of its own. The coordinator is deterministic, so run again it asks the same
questions in the same order: those that are answered on disk are answered from there, and the first
that is not is where it stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.errors import MessageError, OpenQuestion
from silomix.messages import REFUSALS, Query, Received, ShareReleases
from silomix.messages.container import Envelope, digest_record
from silomix.messages.folder import message_files, read, write_folder
from silomix.model.files import read_file
from silomix.transports import exchange_folder
from silomix.transports.encoded import EncodedSilos, NoAnswer
from silomix.transports.exchange_folder import ANSWERS, FOR, QUESTIONS

if TYPE_CHECKING:
    from silomix.study import Study

Message = tuple[Envelope, Any]

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
        self.folder, self.study = Path(folder), study
        exchange_folder.inner_folder(self.folder, QUESTIONS)
        exchange_folder.open_exchange(self.folder, study)
        forms: dict[str, Any] = {"pack": _pair, "unpack": self._unpack}
        self.encoded = EncodedSilos(study, self._carry, refuse=self._refuse, **forms)
        self._refused: dict[str, str] = {}

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
        return self.encoded.ask(query)

    def _carry(self, questions: Mapping[str, Message]) -> Iterator[tuple[str, Path | Message]]:
        """Write the question, and yield the folders of the answers that are there."""
        envelope, query = next(iter(questions.values()))
        kind, about = type(query).__name__, exchange_folder.expected_questions(self.study)
        name = exchange_folder.question_folder(envelope.number, kind)
        self._pose(name, questions)
        waiting = Unanswered(envelope.number, kind, about, self.folder)
        self._refused = waiting.refused
        for silo, (sent, asked) in questions.items():
            place = exchange_folder.silo_folder(self.names, silo)
            path = exchange_folder.inner_folder(self.folder, ANSWERS, place, name)
            if path.exists():
                yield silo, path
            elif isinstance(asked, ShareReleases):
                # a receipt says nothing that the next answer does not: it is not worth a trip
                yield silo, (replace(sent, answers=digest_record(asked)), Received())
            else:
                waiting.missing[silo] = place
        if waiting.missing or waiting.refused:
            raise waiting

    def _refuse(self, error: NoAnswer) -> None:
        self._refused[error.silo] = error.code

    def _unpack(self, answer: Path | Message) -> Message:
        return read(answer, study=self.study) if isinstance(answer, Path) else answer

    def _pose(self, name: str, questions: Mapping[str, Message]) -> None:
        """Write the question, or check that it is there already, to the last byte."""
        number = self.encoded.asked
        known = dict(exchange_folder.find_questions(self.folder)).get(number)
        if known is None:
            # a question to some silos becomes visible to all of them at once
            write_folder(self.folder / QUESTIONS / name, self._files(questions))
            return
        for file, content in self._files(questions):
            if known.name != name or not _holds(known / file, content):
                raise MessageError(
                    f"{known} is not question {number} of this study as it stands: {file} was "
                    "changed or is damaged, or an earlier answer was replaced, or another version "
                    "of silomix made it. If it is damaged, delete it: it is written again. To go "
                    f"on from the answers as they are now, delete the folders {number:04}-... "
                    f"and later of {QUESTIONS}, and of every silo in {ANSWERS}, and let the silos "
                    "answer again"
                )

    def _files(self, questions: Mapping[str, Message]) -> Iterator[tuple[str, bytes]]:
        """Yield the files of a question, paths and contents; the same question's are the same."""
        envelope, query = next(iter(questions.values()))
        same = all(asked is query for _, asked in questions.values())
        if same and len(questions) == len(self.names):
            questions = {EVERYONE: (replace(envelope, silo=EVERYONE), query)}
        for silo, message in questions.items():
            part = f"{FOR}{exchange_folder.silo_folder(self.names, silo)}/" if silo else ""
            for file, content in message_files(*message, self.study.table_schema).items():
                yield f"{part}{file}", content


def _pair(envelope: Envelope, record: Any) -> Message:
    return envelope, record


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_file(path, len(content) + 1) == content
    except OSError:
        return False
