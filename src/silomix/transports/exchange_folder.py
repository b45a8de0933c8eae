"""A study by file: what is where in an exchange folder, and the coordinator's side of it.

::

    README.txt                          for the people
    study.json                          every setting of the study, and its digest
    questions/0001-sample-locally/      a question to all silos
    questions/0002-divergence-cost/for-02-south/    or to some, each its own
    answers/01-north/0001-sample-locally/           what left a silo, and nothing else did

A silo's folder has its number in the roster, which nobody else has, and of its name only letters
and digits that every computer can write.

The coordinator needs no memory of its own. It is deterministic, so run again it asks the same
questions in the same order: those that are answered on disk are answered from there, and the first
that is not is where it stops.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from silomix.errors import FileError, MessageError, OpenQuestion, SettingsError, StudyMismatch
from silomix.messages import REFUSALS, Query, Received, ShareReleases
from silomix.messages.container import LARGEST_HEAD, Envelope, digest_record, read_json, write_json
from silomix.messages.folder import message_files, read, write_folder
from silomix.model.files import read_file, replace_file, writing
from silomix.model.sentences import printable_lines
from silomix.study import Study, digest
from silomix.transports.encoded import EncodedSilos, NoAnswer

Message = tuple[Envelope, Any]

FORMAT = "silomix exchange 2"
README, STUDY = "README.txt", "study.json"
QUESTIONS, ANSWERS = "questions", "answers"
FOR = "for-"
LONGEST_SLUG = 30
QUESTION = re.compile(r"([0-9]{4,9})-([a-z]+(?:-[a-z]+)*)", re.ASCII)

# In the envelope of a question to all silos, where the silo's name would be.
EVERYONE = ""

# What to do about a refusal, whatever its code.
REFUSED = "ask its owner to fix what its log says, and to answer with --again; or ask for less"

README_TEXT = """\
A silomix study by file{title}

Silos that hold rows of their own answer questions; a coordinator asks them. All that passes between
them is in this folder, as CSV, JSON, TXT and PNG files that can be read before they go anywhere.

study.json    every setting of the study; its digest starts with {digest}
questions/    what the coordinator asks, 0001 first; for-... is for that silo alone
answers/      one folder for each silo, with what has left it: a folder for each question

This study asks of each silo, as far as the silo's own policy allows:
{asked}

The cluster of each row stays in the silo. A silo needs study.json and questions/ of this folder;
the silo's own folder in answers/ goes back to the coordinator.

The silos and their folders in answers/:
{silos}

A silo answers all its open questions, from its own table, by the study file that it agreed to and
its own policy; the coordinator then asks the next question, or writes the results:

    silomix answer FOLDER --silo NAME --data TABLE --study STUDY --policy POLICY
    silomix coordinate study.toml --exchange FOLDER --out RESULTS

Either can be stopped at any moment and run again. If a file was changed, it is refused and named:
bring it again, unchanged.
"""


def silo_folder(silos: Sequence[str], name: str) -> str:
    """Name of a silo's folders: "01-north"."""
    width = max(2, len(str(len(silos))))
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub("[^a-z0-9]+", "-", plain)[:LONGEST_SLUG].strip("-")
    return f"{silos.index(name) + 1:0{width}}" + (f"-{slug}" if slug else "")


def question_folder(number: int, kind: str) -> str:
    """Name of a question's folders: "0001-sample-locally" for `SampleLocally`."""
    return f"{number:04}-{spelled(kind).replace(' ', '-')}"


def spelled(kind: str) -> str:
    """Kind of message in words: "sample locally" for `SampleLocally`."""
    return " ".join(re.findall("[A-Z][a-z]*", kind)).lower()


def find_questions(folder: Path) -> list[tuple[int, Path]]:
    """Numbers and folders of the questions, in order; other files are passed over.

    Raises
    ------
    MessageError
        When one is a link.
    """
    named = [
        (int(name[1]), inner_folder(path.parent, path.name))
        for path in inner_folder(folder, QUESTIONS).glob("*")
        if (name := QUESTION.fullmatch(path.name))
    ]
    return sorted((number, path) for number, path in named if path.is_dir())


def question_to(silo_folder: str, question: Path) -> Path | None:
    """Folder of a question to one silo; None where it is not asked.

    Raises
    ------
    MessageError
        When it is a link.
    """
    if any(question.glob(f"{FOR}*")):
        inner = inner_folder(question, f"{FOR}{silo_folder}")
        return inner if inner.is_dir() else None
    return question


def inner_folder(exchange: Path, *names: str) -> Path:
    """Path of a folder of an exchange, there or not yet; a link is refused.

    Raises
    ------
    MessageError
        When a link leads to it: what is read, written or removed there would be somewhere else.
    """
    path = exchange
    for name in names:
        path /= name
        if path.is_symlink():
            raise MessageError(
                f"{path} is a link to another place, not allowed in an exchange; delete the link, "
                "and bring the folder itself, if there is one"
            )
    return path


def open_exchange(folder: Path, study: Study) -> None:
    """Make the folder of a study's exchange, or check that it is one.

    Raises
    ------
    StudyMismatch
        When the folder is of another study.
    FileError
        When it has other things in it, is damaged, or cannot be written.
    """
    is_new = not (folder / STUDY).exists()
    if not is_new and digest(read_exchange(folder)) != digest(study):
        raise StudyMismatch(
            f"{folder} is the exchange of another study; give the study file it was made "
            "with, or another --exchange folder for this one"
        )
    if is_new and folder.is_dir() and any(path.name[0] != "." for path in folder.iterdir()):
        raise FileError(
            f"{folder} is not empty and has no {STUDY}, so it is not an exchange; give an empty or "
            "a new folder"
        )
    with writing(folder, FileError):
        folder.mkdir(parents=True, exist_ok=True)
        # the study first: it is what makes the folder an exchange, and the rest is made again
        if is_new:
            stated = study.model_dump(mode="json", exclude_none=True)
            head: dict[str, Any] = {"format": FORMAT, "silomix": metadata.version("silomix")}
            head |= {"digest": digest(study), "study": stated}
            replace_file(folder / STUDY, write_json(head, indent=1), alone=True)
        if not (folder / README).exists():
            replace_file(folder / README, readme(study).encode(), alone=True)
        for part in (QUESTIONS, ANSWERS):
            (folder / part).mkdir(exist_ok=True)


def read_exchange(folder: Path) -> Study:
    """Read the study of an exchange folder.

    Raises
    ------
    FileError
        When there is none, or it was changed.
    """
    path = folder / STUDY
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder; give the folder that the coordinator made")
    try:
        document = read_json(read_file(inner_folder(folder, STUDY), LARGEST_HEAD + 1))
        study = Study(**document["study"])
        if (document["format"], document["digest"]) == (FORMAT, digest(study)):
            return study
        problem = f"its digest does not fit, or it is not a {FORMAT}"
    except (OSError, MessageError, SettingsError, KeyError, TypeError) as error:
        problem = f"{error}"
    raise FileError(
        f"{path} cannot be read, is damaged, or was changed: {problem}\ngive the folder that the "
        f"coordinator made, bring its {STUDY} again, unchanged, and use the same silomix on both "
        "sides"
    )


def readme(study: Study) -> str:
    """Text for people about the folder and the study."""
    silos = "\n".join(f"    {silo_folder(study.silos, name)}    {name}" for name in study.silos)
    title = f": {' '.join(study.title.split())}" if study.title else ""
    asked = "\n".join(f"    - {line}" for line in asked_for(study))
    text = README_TEXT.format(title=title, digest=digest(study)[:12], asked=asked, silos=silos)
    return printable_lines(text)


def asked_for(study: Study) -> list[str]:
    """What a study asks of a silo, in words."""
    return [words for words, _ in _questions(study)]


def expected_questions(study: Study) -> int | None:
    """Most questions that a study asks; None where nobody can say."""
    numbers = [number for _, number in _questions(study)]
    return None if None in numbers else sum(filter(None, numbers))


def _questions(study: Study) -> Iterator[tuple[str, int | None]]:
    """Yield what a study asks of a silo, and in how many questions."""
    exact, passes = study.strategy == "exact", 1 + study.matching.refine
    if not exact:
        drawn = "posterior draws of the sizes and profiles"
        held = drawn if study.tier == "draws" else "the size and the profile"
        yield f"a release: {held} of each of its clusters", 1
    for asked in study.asked:
        yield asked.words, None if asked.times is None else passes * asked.times
    if study.most_rounds:
        most = "at most " if not exact and study.polish.rounds == "until" else ""
        words = "counts or sums in each cluster, of labels drawn at random, once a round"
        yield f"{words}: {most}{study.most_rounds} rounds", study.most_rounds
    yield "nothing more: it finds the final clusters of its rows, and keeps them", 1


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
        todo = [f"{name} {state}; {do}" for name, state, do in self.todo()]
        command = f"silomix answer {self.folder} --silo NAME --data TABLE --study STUDY"
        lines = [f"{self.heading} is open. In each silo below: {command} --policy POLICY", *todo]
        return "\n  - ".join(lines)

    @property
    def heading(self) -> str:
        """Which question it is, of about how many."""
        of = f" of about {self.about}" if self.about else ""
        return f"question {self.number}{of}: {spelled(self.kind)}"

    def todo(self) -> list[tuple[str, str, str]]:
        """Silos that must do something: their names, how they stand, and what to do."""
        carried = f"carry {self.folder / QUESTIONS} and study.json to it; bring back {ANSWERS}/"
        open_in = [(name, "has not answered", carried + to) for name, to in self.missing.items()]
        refused = [
            (name, f"refused: {REFUSALS[code]}", REFUSED) for name, code in self.refused.items()
        ]
        return open_in + refused


class FileExchange:
    """Silos that answer by file; satisfies `silomix.messages.Silos`.

    Parameters
    ----------
    folder : of the exchange; made where there is none.
    study : whose questions these are.
    """

    def __init__(self, folder: str | Path, study: Study) -> None:
        self.folder, self.study, self.names = Path(folder), study, study.silos
        inner_folder(self.folder, QUESTIONS)
        open_exchange(self.folder, study)
        self.encoded = EncodedSilos(
            study,
            self._carry,
            pack=lambda *message: message,
            unpack=self._unpack,
            refuse=self._refuse,
        )
        self._refused: dict[str, str] = {}

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
        kind = type(query).__name__
        name = question_folder(envelope.number, kind)
        self._pose(name, questions)
        waiting = Unanswered(envelope.number, kind, expected_questions(self.study), self.folder)
        self._refused = waiting.refused
        for silo, (sent, asked) in questions.items():
            place = silo_folder(self.names, silo)
            path = inner_folder(self.folder, ANSWERS, place, name)
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
        known = dict(find_questions(self.folder)).get(number)
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
            part = f"{FOR}{silo_folder(self.names, silo)}/" if silo else ""
            for file, content in message_files(*message, self.study.table_schema).items():
                yield f"{part}{file}", content


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_file(path, len(content) + 1) == content
    except OSError:
        return False
