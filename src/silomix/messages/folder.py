"""Messages as folders of JSON and CSV, for people and release checks.

`message.json` has the head of the message (`silomix.messages.container`), type and shape of its
arrays, and the SHA-256 of every other file. Arrays are CSV tables (`silomix.messages.csv_tables`).
The folder of a `Release` is what a data officer reads: it also has `README.txt`, `not_included.txt`
and, where matplotlib is installed, `profile.png`.
"""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from silomix.errors import FileError, MessageError, SettingsError
from silomix.families import make_family
from silomix.messages import Release, SampleLocally, container, csv_tables
from silomix.messages.container import HEAD, LARGEST_MESSAGE, Arrays, Envelope, shorten
from silomix.messages.csv_tables import LARGEST_FILE
from silomix.messages.message_checks import release_problems
from silomix.messages.release_explained import NOT_INCLUDED_TEXT, draw_profiles, readme
from silomix.model.files import finishing, read_file, replace_file, unfinished, writing
from silomix.model.schema import Prior

if TYPE_CHECKING:
    from collections.abc import Iterable

    from silomix.model.schema import Schema
    from silomix.study import Study

README, NOT_INCLUDED, PICTURE = "README.txt", "not_included.txt", "profile.png"
# Attributes of a variable that the tables of a release contain.
SHOWN = attrgetter("name", "levels", "kind", "location", "scale", "transform")
MOST_FILES = 2_000
FILES = TypeAdapter(dict[str, str])
Kind = Literal["float32", "float64", "int64", "uint8", "uint16", "uint32", "uint64"]
SHAPES = TypeAdapter(dict[str, tuple[Kind, tuple[Annotated[int, Field(ge=0, lt=2**31)], ...]]])


def write_release(
    release: Release, folder: str | Path, schema: Schema, *, force: bool = False
) -> list[Path]:
    """Write a release folder atomically, and return its files.

    Parameters
    ----------
    folder : must not exist, or be empty.
    schema : the study's, for the names of variables and levels.
    force : whether to replace an existing release folder.
    """
    target = Path(folder)
    check_target(target, force=force)
    files = release_files(release, schema)
    with writing(target, FileError):
        target.parent.mkdir(parents=True, exist_ok=True)
    with finishing([target]):
        write_folder(target, files.items())
    return [target / name for name in files]


def release_files(release: Release, schema: Schema) -> dict[str, bytes]:
    """Files of a release folder, which is the answer to the first question."""
    question = container.digest_record(SampleLocally())
    envelope = Envelope(release.study, release.silo, 1, answers=question)
    return message_files(envelope, release, schema)


def message_files(envelope: Envelope, record: Any, schema: Schema) -> dict[str, bytes]:
    """Files of a message: content by name; the same message gives the same bytes."""
    head, arrays = container.seal(envelope, record)
    files = _tables(record, arrays, schema)
    if isinstance(record, Release):
        picture = draw_profiles(record.mean, record.sizes, schema)
        files |= {PICTURE: picture} if picture is not None else {}
        files[NOT_INCLUDED] = NOT_INCLUDED_TEXT.encode()
        files[README] = readme(record, schema, files).encode()
        arrays = {}
    head["arrays"] = {path: (array.dtype.name, array.shape) for path, array in arrays.items()}
    head["files"] = {name: _sha256(content) for name, content in sorted(files.items())}
    return files | {HEAD: container.write_json(head, indent=1) + b"\n"}


def _tables(record: Any, arrays: Arrays, schema: Schema | None) -> dict[str, bytes]:
    if isinstance(record, Release) and schema is not None:
        return csv_tables.release_tables(record, schema)
    return csv_tables.array_tables(type(record), arrays)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_target(target: Path, *, force: bool = False) -> None:
    """Refuse a folder with content, unless it is an unfinished message, or one to replace.

    Raises
    ------
    SettingsError
        When it has other content.
    FileError
        When it cannot be read.
    """
    with writing(target, FileError):
        occupied = target.exists() and (not target.is_dir() or any(target.iterdir()))
        replaceable = occupied and (target / HEAD).is_file()
    if occupied and not (force and replaceable) and not unfinished([target]):
        advice = "give another folder" + (", or --force to replace it" if replaceable else "")
        raise SettingsError(f"{target} exists already; {advice}")


def write_folder(target: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a folder under a temporary name, then rename it, replacing an old one.

    Nobody else writes this folder: the next writer replaces the remains of a killed one.

    Parameters
    ----------
    files : paths inside the folder and contents; each item is requested once the last is written.

    Raises
    ------
    FileError
        When it cannot be written.
    """
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with writing(target, FileError):
            scratch.mkdir(parents=True)  # a link in its place is not followed
            for name, content in files:
                (scratch / name).parent.mkdir(exist_ok=True)
                replace_file(scratch / name, content)
            shutil.rmtree(target, ignore_errors=True)
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read(folder: str | Path, *, study: Study) -> tuple[Envelope, Any]:
    """Read and check the envelope and the record of a message in a folder.

    Parameters
    ----------
    folder : its content is untrusted.
    study : the study whose variables and levels a release must have.

    Raises
    ------
    MessageError
        When a file is changed, missing, foreign, too large or damaged, naming the file.
    """
    envelope, record, schema = _read(Path(folder))
    tables = [[*map(SHOWN, s.variables)] for s in (schema, study.table_schema) if s]
    if tables[0] != tables[-1]:
        raise MessageError(
            f"{folder} is a release with different variables or levels from the study's; release "
            "again with this study file"
        )
    return envelope, record


def read_release(folder: str | Path) -> tuple[Release, Schema]:
    """Read and check the release in a folder, and its variables and levels, without its study.

    Raises
    ------
    MessageError
        When a file is missing, damaged or too large, or has impossible values.
    """
    _, release, schema = _read(Path(folder))
    if schema is None:
        raise MessageError(f"{folder} is a message, not a release")
    for problem in release_problems(release, make_family(schema, Prior())):
        raise MessageError(f"{folder}: it {problem}; have the silo release again")
    return release, schema


def _read(source: Path) -> tuple[Envelope, Any, Schema | None]:
    try:
        return _read_message(_read_folder(source))
    except OSError as error:
        problem = f"{error.strerror}; check the path"
    except MessageError as error:
        problem = f"{error}; put that right, or get the whole folder again"
    except (csv.Error, IndexError, KeyError, OverflowError, ValueError) as error:
        problem = f"a table is damaged ({type(error).__name__}); get the whole folder again"
    raise MessageError(f"{source} cannot be read: {problem}")


def _read_folder(source: Path) -> dict[str, bytes]:
    """Contents of the files of a folder, by name."""
    remaining = LARGEST_MESSAGE
    if source.name.startswith("."):
        raise MessageError("it was left by a writer that did not finish")
    if not (source / HEAD).exists() and (inner := sorted(source.glob(f"*/{HEAD}"))):
        name = shorten(inner[0].parent.name)
        raise MessageError(f"it is not a message but holds some, such as {name}; give one")
    files: dict[str, bytes] = {}
    with os.scandir(source) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise MessageError(f"{shorten(entry.name)} is not a file")
            files[entry.name] = read_file(Path(entry.path), LARGEST_FILE + 1)
            size = len(files[entry.name])
            remaining -= size
            if remaining < 0 or size > LARGEST_FILE or len(files) > MOST_FILES:
                raise MessageError("it has more files or bytes than silomix reads")
    if HEAD not in files:
        raise MessageError(f"{HEAD} is missing, so this is not a message")
    return files


def _read_message(files: dict[str, bytes]) -> tuple[Envelope, Any, Schema | None]:
    head = container.read_json(files.pop(HEAD))
    try:
        listed = FILES.validate_python(head.pop("files", None))
        shapes = SHAPES.validate_python(head.pop("arrays", None))
    except ValidationError:
        raise MessageError(f"{HEAD} does not list the files of a message") from None
    for name in sorted(listed.keys() | files.keys()):
        if name not in files or name not in listed:
            state = "is missing" if name in listed else "is not part of this message"
            raise MessageError(f"{shorten(name)} {state}")
        if _sha256(files[name]) != listed[name]:
            raise MessageError(f"{shorten(name)} was changed after it was written")
    if head.get("kind") == Release.__name__:
        arrays, schema = csv_tables.read_release_arrays(files)
    else:
        arrays, schema = csv_tables.read_arrays(files, shapes), None
    envelope, record = container.unseal(head, arrays)
    # the tables have exactly this content
    tables = _tables(record, arrays, schema)
    for_people = {README, NOT_INCLUDED, PICTURE} if schema is not None else set()
    for name in sorted(tables.keys() | files.keys() - for_people):
        if tables.get(name) != files.get(name):
            raise MessageError(
                f"{shorten(name)} does not have the expected numbers and names, in order"
            )
    return envelope, record, schema
