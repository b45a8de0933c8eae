"""Atomic writes and owner-only permissions.

Several files that belong together cannot appear at once: while they are written, a marker beside
the first lists them (`finishing`), and those that a stopped command left may be written again.

Files about rows can be read by their owner only, whatever the umask: `private_folder`,
`private_file`, and `private` where a file is written whole. On Windows, rights are inherited from
the folder above. `read_file` refuses pipes and devices, so that it cannot block.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from silomix.errors import SettingsError, SilomixError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

OWNERS_FOLDER, OWNERS_FILE, UMASKS_FILE = 0o700, 0o600, 0o666
NO_FILE = "it is not a file but a pipe or a device"
UNFINISHED = ".unfinished"
STOPPED = "silomix was stopped while it wrote these files; run the same command again:"


@contextmanager
def whole_file(path: Path, *, alone: bool = False, private: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write; it replaces the old one once everything is on the disk.

    Parameters
    ----------
    alone : nobody else writes this file: the remains of a killed writer are then replaced by
        the next, and never pile up.
    private : whether only the owner may open it.

    Raises
    ------
    OSError
        When it cannot be written; the old file is unchanged.
    """
    ending = "partial" if alone else secrets.token_hex(8)
    scratch = path.with_name(f".{path.name}.{ending}")
    if alone:
        scratch.unlink(missing_ok=True)
    mode = OWNERS_FILE if private else UMASKS_FILE
    try:
        # a new file, always: a link that somebody laid in its place is not followed
        with open(scratch, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        with suppress(OSError):
            scratch.unlink()


def replace_file(path: Path, content: bytes, *, alone: bool = False, private: bool = False) -> None:
    """Write a file atomically; `alone`, `private` and errors as in `whole_file`."""
    with whole_file(path, alone=alone, private=private) as file:
        file.write(content)


@contextmanager
def finishing(files: Sequence[Path]) -> Iterator[None]:
    """Mark the files that a command is about to write, until all of them are written.

    Parameters
    ----------
    files : of one folder, made where there is none; or one folder that is written as a whole.
    """
    marker = _marker(files)
    with writing(files[0]):
        private_folder(marker.parent)
        if marker.exists():  # of a stopped command, parts of files are left as well
            for file in files:
                for part in file.parent.glob(f".{glob.escape(file.name)}.*"):
                    if not part.is_dir():
                        part.unlink()
        lines = [STOPPED, *(file.name for file in files)]
        replace_file(marker, "\n".join(lines).encode(), alone=True)
    yield
    with writing(marker):
        marker.unlink()


def unfinished(files: Sequence[Path]) -> list[Path]:
    """Files that a command was writing when it was stopped."""
    try:
        names = _marker(files).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [file for file in files if file.name in names]


def _marker(files: Sequence[Path]) -> Path:
    return files[0].with_name(files[0].name + UNFINISHED)


@contextmanager
def writing(path: Path, kind: type[SilomixError] = SettingsError) -> Iterator[None]:
    """Turn an `OSError` into an error of this kind that says why a file cannot be written."""
    try:
        yield
    except OSError as error:
        why = f"{error.strerror or error}; choose another place, with enough space"
        raise kind(f"{path} cannot be written: {why}") from error


def read_file(path: Path, most: int) -> bytes:
    """Read a file, at most `most` bytes.

    Raises
    ------
    OSError
        When it cannot be read, or is a pipe or a device, for which one could wait for ever.
    """
    with open(path, "rb", opener=_open_file) as file:
        return file.read(most)


def _open_file(path: str, flags: int) -> int:
    # a pipe opens at once, and what was opened is what is looked at
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # of a folder, open complains itself
        os.close(descriptor)
        raise OSError(errno.EINVAL, NO_FILE)
    return descriptor


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may open; one that exists keeps its rights."""
    path.mkdir(mode=OWNERS_FOLDER, parents=True, exist_ok=True)


def log_file(path: Path) -> logging.Handler:
    """Handler that writes to a file which only its owner may open, made with its folder."""
    private_folder(path.parent)
    private_file(path)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    return handler


def private_file(path: Path) -> None:
    """Make a file that only its owner may open, to be written in place; its content is kept."""
    path.touch(mode=OWNERS_FILE)
    with suppress(PermissionError):  # somebody else's file is theirs to close
        path.chmod(OWNERS_FILE)
