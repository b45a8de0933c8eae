"""The files of a release folder: listed, vouched for by the manifest, not too large."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from typing import TYPE_CHECKING

from pydantic import ValidationError

from silomix.airlock.format import (
    CHECKS,
    FORMAT,
    KIND,
    LARGEST_FILE,
    LARGEST_MANIFEST,
    MANIFEST,
    MOST_LINES,
    NOT_INCLUDED,
    PART,
    PICTURE,
    PROFILE,
    README,
    SIZES,
    Manifest,
    part_name,
)
from silomix.errors import FileError
from silomix.spreadsheet import from_spreadsheet

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG\r\n\x1a\n"
FOR_PEOPLE = {README, NOT_INCLUDED, PICTURE}
ALWAYS = {README, NOT_INCLUDED, SIZES, CHECKS, part_name(PROFILE, 1)}


def read_manifest(folder: Path) -> Manifest:
    """Read `manifest.json`, of a known format and within its limits."""
    path = folder / MANIFEST
    content = _read_file(path, LARGEST_MANIFEST)
    try:
        document = json.loads(content.decode())
        json.dumps(document, ensure_ascii=False).encode()  # escapes may hide half characters
    except RecursionError:
        raise FileError(f"{path} is nested too deeply for a manifest") from None
    except ValueError:
        raise FileError(f"{path} is damaged: it is not JSON text; get the folder again") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise FileError(f"{path} does not say {KIND!r}; is this really a release folder?")
    version = document.get("format")
    if version != FORMAT:
        raise FileError(
            f"{path} is of format {version!r:.20}, and this silomix reads format {FORMAT}; use "
            "the version of silomix that it was made with"
        )
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise FileError(f"{path} is damaged: {place!r:.80}: {first['msg']}") from None


def check_files(folder: Path, manifest: Manifest, largest: int) -> None:
    """Check which files there are, at most `largest` bytes, and those that are for people."""
    _check_names(folder, manifest)
    _check_listing(folder, manifest, largest)
    for name in FOR_PEOPLE & manifest.files.keys():
        _check_other(folder, name, manifest)


def _check_names(folder: Path, manifest: Manifest) -> None:
    """Refuse a name that no release has."""
    for name in manifest.files:
        part = PART.fullmatch(name)
        if part and part[1] != PROFILE and manifest.tier == "summary":
            raise FileError(f"{folder / name} has draws, which a release of tier summary has not")
        if not part and name not in {SIZES, CHECKS, *FOR_PEOPLE}:
            raise FileError(f"{folder / MANIFEST} lists {name!r:.80}, which no release has")


def _check_listing(folder: Path, manifest: Manifest, largest: int) -> None:
    """Refuse files that should not be there, are not there, or are not files."""
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    except OSError as error:
        raise FileError(f"{folder} cannot be read: {error.strerror}; check the path") from None
    expected = {MANIFEST, *manifest.files}
    for name in sorted(expected | ALWAYS):
        if not found.get(name):
            raise FileError(f"{folder / name} is missing, or no file; get the folder again")
    for name in sorted(found.keys() - expected):
        raise FileError(f"{folder} has {name!r:.80}, which is not in its manifest; remove it")
    total = sum(entry.bytes for entry in manifest.files.values())
    if total > largest:
        raise FileError(f"{folder} has {total:,} bytes, and {largest:,} are the most")


def _check_other(folder: Path, name: str, manifest: Manifest) -> None:
    """Check a file for people: its checksum, and that it is text, or a picture."""
    content = _read_checked(folder, name, manifest)
    if name == PICTURE:
        if not content.startswith(PNG):
            raise FileError(f"{folder / name} is no PNG picture; get the folder again")
    else:
        _decode(folder / name, content)


def read_table(folder: Path, name: str, manifest: Manifest, heading: list[str]) -> list[list[str]]:
    """Return the rows of a table's file, without the heading, which must be this one.

    Texts are as they were before they were written for spreadsheets.
    """
    path = folder / name
    text = _decode(path, _read_checked(folder, name, manifest))
    if text.count("\n") > MOST_LINES:
        raise FileError(f"{path} has more than {MOST_LINES:,} lines")
    if "\r" in text:  # it ends lines too, and is not counted
        raise FileError(f"{path} is damaged: it has a carriage return, which no release has")
    rows = []
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = ([from_spreadsheet(cell) for cell in row] for row in reader)
        if next(lines, None) != heading:
            raise FileError(f"{path} must have the columns {', '.join(heading)[:200]}")
        for row in lines:
            if len(row) != len(heading):
                raise FileError(f"{path} is damaged: a row does not have {len(heading)} values")
            rows.append(row)
    except csv.Error as error:
        raise FileError(f"{path} is damaged: {error}") from None
    if len(rows) != manifest.files[name].rows:
        raise FileError(
            f"{path} has {len(rows)} rows, and {MANIFEST} says {manifest.files[name].rows}"
        )
    return rows


def _read_checked(folder: Path, name: str, manifest: Manifest) -> bytes:
    entry, path = manifest.files[name], folder / name
    content = _read_file(path, LARGEST_FILE)
    if len(content) != entry.bytes or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise FileError(
            f"{path} was changed or damaged: it does not fit its checksum in {MANIFEST}"
        )
    return content


def _read_file(path: Path, largest: int) -> bytes:
    try:
        if path.is_symlink() or not path.is_file():
            raise FileError(f"{path} is missing, or no file; is this really a release folder?")
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}; check the path") from None
    if len(content) > largest:
        raise FileError(f"{path} is larger than {largest:,} bytes, the most a release may have")
    return content


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise FileError(f"{path} is damaged: it is not UTF-8 text") from None
