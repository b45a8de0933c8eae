"""What is where in an exchange folder, and how its names are made.

::

    README.txt                          for the people
    study.json                          every setting of the study, and its digest
    questions/0001-sample-locally/      a question to all silos
    questions/0002-divergence-cost/for-02-south/    or to some, each its own
    answers/01-north/0001-sample-locally/           what left a silo, and nothing else did

A silo's folder has its number in the roster, which nobody else has, and of its name only letters
and digits that every computer can write.
"""

from __future__ import annotations

import re
import shutil
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from silomix.errors import MessageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

README, STUDY = "README.txt", "study.json"
QUESTIONS, ANSWERS = "questions", "answers"
FOR = "for-"
LONGEST_SLUG = 30
QUESTION = re.compile(r"([0-9]{4,9})-([a-z]+(?:-[a-z]+)*)", re.ASCII)
SCRATCH = re.compile(rf"\.{{1,2}}{QUESTION.pattern}(?:\.[0-9a-f]{{16}})?", re.ASCII)
"""What is written under a name that begins with a dot, until it is whole."""


@dataclass(frozen=True)
class Posed:
    """A question's folder.

    Attributes
    ----------
    number : 1 for the first question.
    path : `questions/0001-sample-locally`.
    """

    number: int
    path: Path

    @property
    def name(self) -> str:
        """The name that its answers have too."""
        return self.path.name

    def to(self, silo_folder: str) -> Path | None:
        """Return where the question to a silo is, None where the silo is not asked."""
        if any(self.path.glob(f"{FOR}*")):
            own = self.path / f"{FOR}{silo_folder}"
            return own if own.is_dir() else None
        return self.path


def silo_folder(silos: Sequence[str], name: str) -> str:
    """Return the name of a silo's folders: "01-north"."""
    width = max(2, len(str(len(silos))))
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub("[^a-z0-9]+", "-", plain)[:LONGEST_SLUG].strip("-")
    return f"{silos.index(name) + 1:0{width}}" + (f"-{slug}" if slug else "")


def question_folder(number: int, kind: str) -> str:
    """Return the name of a question's folders: "0001-sample-locally" for `SampleLocally`."""
    return f"{number:04}-{spelled(kind).replace(' ', '-')}"


def spelled(kind: str) -> str:
    """Return a kind of message in words: "sample locally" for `SampleLocally`."""
    return " ".join(re.findall("[A-Z][a-z]*", kind)).lower()


def find_questions(folder: Path) -> list[Posed]:
    """Return the questions of an exchange, in order; files and folders of others are passed over.

    Raises
    ------
    MessageError
        When two folders claim to be the same question.
    """
    found: dict[int, Posed] = {}
    questions = folder / QUESTIONS
    for path in sorted(questions.iterdir()) if questions.is_dir() else ():
        name = QUESTION.fullmatch(path.name)
        if name is None or not path.is_dir():
            continue
        number = int(name[1])
        if number in found:
            raise MessageError(
                f"{found[number].path} and {path} are both question {number}; delete both, and "
                "bring the folder questions from the coordinator again"
            )
        found[number] = Posed(number, path)
    return [found[number] for number in sorted(found)]


def inner_folder(exchange: Path, *names: str) -> Path:
    """Return a folder of an exchange, there or not yet.

    Raises
    ------
    MessageError
        When a link leads to it: what is written or removed there would be somewhere else.
    """
    path = exchange
    for name in names:
        path /= name
        if path.is_symlink() or not lies_in(path, exchange):
            raise MessageError(
                f"{path} is a link to another place, and an exchange has none; delete the link, "
                "and bring the folder itself, if there is one"
            )
    return path


def clear_scratch(folder: Path) -> None:
    """Remove messages that a run that was killed left half written, and nothing else."""
    for path in folder.glob(".*"):
        if SCRATCH.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def lies_in(path: Path, folder: Path) -> bool:
    """Tell whether a path is a folder or anything in it, links followed."""
    return path.resolve().is_relative_to(folder.resolve())
