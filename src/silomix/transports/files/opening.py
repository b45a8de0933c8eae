"""An exchange folder and its study: made by the coordinator, checked by everyone."""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING, Any

from silomix.atomic import read_file, replace_file
from silomix.errors import FileError, MessageError, SettingsError, StudyMismatch
from silomix.messages.documents import LARGEST_DOCUMENT, read_document
from silomix.study import Study, digest
from silomix.study.validation import validate
from silomix.transports.files.layout import (
    ANSWERS,
    QUESTIONS,
    README,
    STUDY,
    silo_folder,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = "silomix exchange"
VERSION = 1

README_TEXT = """\
A silomix study by file{title}

Silos that hold rows of their own answer questions; a coordinator asks them. All that passes between
them is in this folder, as CSV, JSON, TXT and PNG files that can be read before they go anywhere.

study.json    every setting of the study; its digest starts with {digest}
questions/    what the coordinator asks, 0001 first; for-... is for that silo alone
answers/      one folder for each silo, with what left it: a folder for each question

This study asks of each silo, as far as the silo's own policy allows:
{asked}

The cluster of each row stays in the silo. A silo needs study.json and questions/ of this folder;
back to the coordinator goes the silo's own folder in answers/.

The silos and their folders in answers/:
{silos}

A silo answers all its open questions with

    silomix answer FOLDER --silo NAME --data TABLE --study STUDY --policy POLICY

where FOLDER is this folder, TABLE the silo's own table, STUDY the study file that the silo agreed
to, and POLICY its own rules of what may leave.
The coordinator then runs

    silomix coordinate study.toml --exchange FOLDER --out RESULTS

which asks the next question, or writes the results if there is none. Either can be stopped at any
moment and run again. A file that was changed is refused by name: bring it again, unchanged.
"""


def open_exchange(folder: Path, study: Study) -> None:
    """Make the folder of a study's exchange, or check that it is one.

    Raises
    ------
    StudyMismatch
        When the folder is of another study.
    FileError
        When it has other things in it, is damaged, or cannot be written.
    """
    if (folder / STUDY).exists():
        if digest(read_exchange(folder)) != digest(study):
            raise StudyMismatch(
                f"{folder} is the exchange of another study; give the study file it was made "
                "with, or another --exchange folder for this one"
            )
    elif folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise FileError(
            f"{folder} is not empty and has no {STUDY}, so it is no exchange; give an empty or a "
            "new folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # the study first: it is what makes the folder an exchange, and the rest is made again
        write_whole(folder / STUDY, _study_text(study))
        write_whole(folder / README, readme(study))
        for part in (QUESTIONS, ANSWERS):
            (folder / part).mkdir(exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be written: {error.strerror}; choose another place, with enough space"
        ) from None


def read_exchange(folder: Path) -> Study:
    """Return the study of an exchange folder.

    Raises
    ------
    FileError
        When there is none, or it was changed.
    """
    path = folder / STUDY
    try:
        content = _read_file(path)
    except OSError as error:
        raise FileError(
            f"{path} cannot be read: {error.strerror}; give the folder that the coordinator made"
        ) from None
    try:
        document = read_document(content)
        settings = _settings(document)
        study = validate(Study, settings, source=str(path), complete=True)
    except (MessageError, SettingsError) as error:
        raise FileError(f"{path} is damaged: {error}\n{_bring(STUDY)}") from None
    if digest(study) != document["digest"]:
        raise FileError(f"{path} was changed: its digest does not fit; {_bring(STUDY)}")
    return study


def readme(study: Study) -> str:
    """Return what the folder says of itself to people."""
    silos = "\n".join(f"    {silo_folder(study.silos, name)}    {name}" for name in study.silos)
    title = f": {' '.join(study.title.split())}" if study.title else ""
    asked = "\n".join(f"    - {line}" for line in asked_for(study))
    return README_TEXT.format(title=title, digest=digest(study)[:12], asked=asked, silos=silos)


def asked_for(study: Study) -> list[str]:
    """Return what a study asks of a silo, in words."""
    counts = "counts of each level in each cluster, of labels drawn at random, once a round:"
    if study.strategy == "exact":
        return [f"{counts} {study.sampling.iterations} rounds", "the sizes of the final clusters"]
    found = [RELEASES[study.tier]]
    if study.matching.method == "divergence":
        found.append("how well the clusters of others fit its rows")
    if study.aggregation.method == "vcmc":
        found.append(ORACLES[study.aggregation.oracle == "federated"])
    rounds = study.polish.rounds
    if rounds != 0:
        most = f"at most {study.polish.most}" if rounds == "until" else rounds
        found.append(f"{counts} {most} rounds")
    return [*found, "the sizes of the final clusters"]


RELEASES = {
    "summary": "a release: the size and the profile of each of its clusters",
    "draws": "a release: posterior draws of the sizes and profiles of its clusters",
}
ORACLES = {
    True: "sums over its rows: a log-likelihood and its gradient; all silos see its release",
    False: "its distinct rows and how often each occurs: its table, but for the order of the rows",
}


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all; what is there already is left alone."""
    content = text.encode()
    if path.is_file() and _read_file(path) == content:
        return
    replace_file(path, content, alone=True)


def _read_file(path: Path) -> bytes:
    """Return what is in a file, and of one that is too long one byte too many."""
    return read_file(path, LARGEST_DOCUMENT + 1)


def _study_text(study: Study) -> str:
    document = {
        "format": FORMAT,
        "version": VERSION,
        "silomix": metadata.version("silomix"),
        "digest": digest(study),
        "study": study.model_dump(mode="json", exclude_none=True),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _settings(document: Mapping[str, Any]) -> dict[str, Any]:
    if document.get("format") != FORMAT:
        raise MessageError(f"it does not say {FORMAT!r}")
    if document.get("version") != VERSION:
        raise MessageError(
            f"this silomix reads version {VERSION} of it; use the same silomix on both sides"
        )
    settings = document.get("study")
    if not isinstance(settings, dict) or "digest" not in document:
        raise MessageError("it lacks the study, or its digest")
    return settings


def _bring(name: str) -> str:
    return f"bring {name} from the coordinator again, unchanged"
