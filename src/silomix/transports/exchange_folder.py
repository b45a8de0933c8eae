"""An exchange folder: what is where in it, how its names are made, and whose study it is.

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

import json
import re
import unicodedata
from importlib import metadata
from typing import TYPE_CHECKING

from silomix.errors import FileError, MessageError, SettingsError, StudyMismatch
from silomix.messages.container import LARGEST_HEAD, read_json
from silomix.model.files import read_file, replace_file, writing
from silomix.model.sentences import printable_lines
from silomix.study import Study, digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FORMAT = "silomix exchange 2"
README, STUDY = "README.txt", "study.json"
QUESTIONS, ANSWERS = "questions", "answers"
FOR = "for-"
LONGEST_SLUG = 30
QUESTION = re.compile(r"([0-9]{4,9})-([a-z]+(?:-[a-z]+)*)", re.ASCII)

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

A silo answers all its open questions with

    silomix answer FOLDER --silo NAME --data TABLE --study STUDY --policy POLICY

where FOLDER is this folder, TABLE the silo's own table, STUDY the study file that the silo agreed
to, and POLICY its own rules about what may leave.
The coordinator then runs

    silomix coordinate study.toml --exchange FOLDER --out RESULTS

which asks the next question, or writes the results if there is none. Either can be stopped at any
moment and run again. If a file was changed, it is refused and named: bring it again, unchanged.
"""


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


def find_questions(folder: Path) -> list[tuple[int, Path]]:
    """Return the questions' numbers and folders, in order; what is none of them is passed over.

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
    """Return where in a question's folder the one to a silo is, None where it is not asked.

    Raises
    ------
    MessageError
        When it is a link.
    """
    if any(question.glob(f"{FOR}*")):
        own = inner_folder(question, f"{FOR}{silo_folder}")
        return own if own.is_dir() else None
    return question


def inner_folder(exchange: Path, *names: str) -> Path:
    """Return a folder of an exchange, there or not yet.

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


def lies_in(path: Path, folder: Path) -> bool:
    """Tell whether a path is a folder or anything in it, links followed."""
    return path.resolve().is_relative_to(folder.resolve())


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
            replace_file(folder / STUDY, _study_text(study), alone=True)
        if not (folder / README).exists():
            replace_file(folder / README, readme(study).encode(), alone=True)
        for part in (QUESTIONS, ANSWERS):
            (folder / part).mkdir(exist_ok=True)


def _study_text(study: Study) -> bytes:
    settings = study.model_dump(mode="json", exclude_none=True)
    head = {"format": FORMAT, "silomix": metadata.version("silomix"), "digest": digest(study)}
    return json.dumps(head | {"study": settings}, indent=1, ensure_ascii=False).encode()


def read_exchange(folder: Path) -> Study:
    """Return the study of an exchange folder.

    Raises
    ------
    FileError
        When there is none, or it was changed.
    """
    path = folder / STUDY
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
    """Return what the folder says of itself to people."""
    silos = "\n".join(f"    {silo_folder(study.silos, name)}    {name}" for name in study.silos)
    title = f": {' '.join(study.title.split())}" if study.title else ""
    asked = "\n".join(f"    - {line}" for line in asked_for(study))
    text = README_TEXT.format(title=title, digest=digest(study)[:12], asked=asked, silos=silos)
    return printable_lines(text)


def asked_for(study: Study) -> list[str]:
    """Return what a study asks of a silo, in words."""
    return [words for words, _ in _questions(study)]


def expected_questions(study: Study) -> int | None:
    """Return how many questions a study asks, at most; None where nobody can say."""
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
