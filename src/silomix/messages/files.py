"""A message as a folder of JSON and CSV, for people and airlocks.

`message.json` has the envelope, the fields of the record that are no arrays, type and shape of
those that are, each other file's SHA-256 and rows, the digest of the record, and a SHA-256 of all
this. Arrays are CSV tables, see `silomix.messages.tables`. A `Release` is a folder `release`, as
`silomix.airlock` writes it for a data officer, beside `message.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.airlock import read_release, write_release
from silomix.errors import FileError, MessageError, StudyMismatch
from silomix.messages.binary import digest, pack_for_travel
from silomix.messages.documents import LARGEST_DOCUMENT, canonical, read_document, shorten
from silomix.messages.envelope import ENVELOPE_KEYS, LARGEST, Envelope, read_envelope
from silomix.messages.fields import check_keys
from silomix.messages.schema import unpack
from silomix.messages.tables import (
    LARGEST_FILE,
    MOST_ROWS,
    find_parts,
    make_tables,
    read_table,
    write_table,
)
from silomix.release import Release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from silomix.messages.fields import Arrays, Slot
    from silomix.study import Study

MESSAGE = "message.json"
RELEASE = "release"
MOST_FILES = 2_000
KEYS = {"format", "version", "fields", "files", "content", "sha256", *ENVELOPE_KEYS}
NAME = re.compile(r"[A-Za-z0-9_.]{1,100}", re.ASCII)


def write(folder: str | Path, envelope: Envelope, record: Any, *, study: Study) -> Path:
    """Write a message as a folder, whole or not at all, and return its path.

    Parameters
    ----------
    folder : must not exist: a message is never overwritten.
    study : names the variables and levels in a release.

    Raises
    ------
    MessageError
        When the record is not one that travels, or the folder cannot be written.
    """
    target = Path(folder)
    document, arrays = pack_for_travel(envelope, record)
    document["content"] = digest(record)
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        _check_free(target)
        scratch.mkdir()
        if isinstance(record, Release):
            document |= {"fields": {}, "files": {}}
            write_release(record, scratch / RELEASE, study.table_schema)
        else:
            document["files"] = _write_tables(scratch, arrays)
        # last, so that a folder without it is no message
        (scratch / MESSAGE).write_bytes(_seal(document))
        scratch.rename(target)
    except (OSError, FileError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MessageError(f"{target} cannot be written: {reason}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _check_free(target: Path) -> None:
    if target.exists():
        raise MessageError(
            f"{target} exists already, and a message is never overwritten; remove it if it is not "
            "the one that is wanted"
        )


def _write_tables(folder: Path, arrays: Arrays) -> dict[str, dict[str, Any]]:
    """Write the tables; return SHA-256 and rows of each file by name."""
    by_path = {slot.path: (slot, array) for slot, array in arrays}
    files = {}
    for table in make_tables(slot for slot, _ in arrays):
        for name, content, rows in write_table(table, [by_path[s.path] for s in table.slots]):
            (folder / name).write_bytes(content)
            files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "rows": rows}
    return files


def _seal(document: dict[str, Any]) -> bytes:
    sealed = document | {"sha256": hashlib.sha256(canonical(document)).hexdigest()}
    text = json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    if len(text) > LARGEST_DOCUMENT:
        raise MessageError(
            f"a {document['kind']} cannot be sent: its {MESSAGE} would have {len(text):,} bytes, "
            f"and at most {LARGEST_DOCUMENT:,} are read"
        )
    return text


def read(folder: str | Path, *, study: Study, largest: int = LARGEST) -> tuple[Envelope, Any]:
    """Return the envelope and the record of a message in a folder.

    Parameters
    ----------
    folder : nothing in it is believed.
    study : what a release in it must be for.
    largest : bytes of all its files together, the most that are read.

    Raises
    ------
    MessageError
        When a file is changed, missing, foreign, too large or damaged, naming the file.
    """
    source = Path(folder)
    try:
        return _read(source, study, largest)
    except (MessageError, FileError, StudyMismatch) as error:
        raise MessageError(
            f"{source} cannot be read: {error}; put that right, or get the whole folder again"
        ) from None
    except OSError as error:
        raise MessageError(f"{source} cannot be read: {error.strerror}; check the path") from None


def _read(source: Path, study: Study, largest: int) -> tuple[Envelope, Any]:
    sizes, folders = _list(source)
    if sum(sizes.values()) > largest:
        raise MessageError(f"it has {sum(sizes.values()):,} bytes; at most {largest:,} are read")
    if MESSAGE not in sizes:
        raise MessageError(f"{MESSAGE} is missing, without which it is no message")
    document = _open(source / MESSAGE)
    envelope = read_envelope(document)
    is_release = envelope.kind == Release.__name__
    _check_listing(document, sizes.keys(), folders, is_release=is_release)
    if is_release:
        left = largest - sum(sizes.values())
        record = read_release(source / RELEASE, study, envelope.silo, largest=left)
    else:
        record = _read_record(source, envelope, document)
    if digest(record) != document["content"]:
        raise MessageError(f"{MESSAGE} does not have the digest of what is in the folder")
    return envelope, record


def _list(source: Path) -> tuple[dict[str, int], set[str]]:
    """Return the sizes of the files in a folder by name, and the names of folders in it."""
    if "\0" in str(source):
        raise MessageError("no path has a null in it")
    if source.name.startswith("."):
        raise MessageError("it was left by a writer that did not finish")
    sizes, folders = {}, set()
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.add(entry.name)
            elif entry.is_file(follow_symlinks=False):
                sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
            else:
                raise MessageError(f"{shorten(entry.name)} is no file")
            if len(sizes) + len(folders) > MOST_FILES:
                raise MessageError(f"it has more than {MOST_FILES:,} files; it is no message")
    return sizes, folders


def _open(path: Path) -> dict[str, Any]:
    """Return what `message.json` says, as far as its own checksum goes."""
    try:
        document = read_document(_read_file(path, LARGEST_DOCUMENT))
        read_envelope(document)
        check_keys(document, KEYS, "it")
    except MessageError as error:
        raise MessageError(f"{MESSAGE}: {error}") from None
    stated = document.pop("sha256")
    if hashlib.sha256(canonical(document)).hexdigest() != stated:
        raise MessageError(f"{MESSAGE} was changed after it was written")
    return document


def _check_listing(
    document: Mapping[str, Any], files: Any, folders: set[str], *, is_release: bool
) -> None:
    """Refuse files that are listed and not there, or there and not listed."""
    listed = document["files"]
    if not isinstance(listed, dict) or not all(map(NAME.fullmatch, listed)):
        raise MessageError(f"{MESSAGE} does not list the files of a message")
    for name in sorted({MESSAGE, *listed} - files):
        raise MessageError(f"{name} is missing")
    for name in sorted(files - {MESSAGE, *listed}):
        raise MessageError(f"{shorten(name)} is no part of this message")
    expected = {RELEASE} if is_release else set()
    for name in sorted(expected - folders):
        raise MessageError(f"the folder {name} is missing")
    for name in sorted(folders - expected):
        raise MessageError(f"the folder {shorten(name)} is no part of this message")
    if is_release and (listed or document["fields"]):
        raise MessageError(f"{MESSAGE} has fields or files that belong in the folder {RELEASE}")


def _read_record(source: Path, envelope: Envelope, document: Mapping[str, Any]) -> Any:
    """Read what the tables hold, once it is known which arrays there must be."""
    slots: list[Slot] = []

    def note(slot: Slot) -> NDArray[Any]:
        slots.append(slot)
        return np.empty(0)

    unpack(envelope.kind, document["fields"], note)
    left = dict(document["files"])
    arrays: dict[tuple[str | int, ...], NDArray[Any]] = {}
    for table in make_tables(slots):
        files = {
            name: _read_part(source / name, left.pop(name)) for name in find_parts(table, left)
        }
        found = read_table(table, files)
        arrays |= dict(zip((slot.path for slot in table.slots), found, strict=True))
    for name in sorted(left):
        raise MessageError(f"{name} is no part of a {envelope.kind}")
    return unpack(envelope.kind, document["fields"], lambda slot: arrays[slot.path])


def _read_part(path: Path, entry: Any) -> bytes:
    """Return the content of a file that is as `message.json` says."""
    content = _read_file(path, LARGEST_FILE)
    if not isinstance(entry, dict) or entry.keys() != {"sha256", "rows"}:
        raise MessageError(f"{MESSAGE} does not say the checksum and rows of {path.name}")
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise MessageError(f"{path.name} was changed after it was written")
    rows = content.count(b"\n") - 1
    if rows != entry["rows"] or rows > MOST_ROWS:
        raise MessageError(
            f"{path.name} has {rows:,} rows; {MESSAGE} says {shorten(entry['rows'])}, and "
            f"{MOST_ROWS:,} are the most"
        )
    return content


def _read_file(path: Path, largest: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise MessageError(f"{path.name} has more than {largest:,} bytes")
    return content
