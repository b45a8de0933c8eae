"""Files that are there whole or not at all, whatever stops the writer."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def whole_file(path: Path, *, alone: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write; it takes its place, and the old one's, once all is on the disk.

    Parameters
    ----------
    alone : nobody else writes this file: what a killed writer leaves is then used up by the
        next, and never piles up.

    Raises
    ------
    OSError
        When it cannot be written; what was there is as before.
    """
    ending = "partial" if alone else secrets.token_hex(8)
    scratch = path.with_name(f".{path.name}.{ending}")
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        with suppress(OSError):
            scratch.unlink()


def replace_file(path: Path, content: bytes, *, alone: bool = False) -> None:
    """Write a file whole or not at all; `alone` and errors as in `whole_file`."""
    with whole_file(path, alone=alone) as file:
        file.write(content)
