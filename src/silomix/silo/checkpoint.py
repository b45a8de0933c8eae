"""Draws on disk while they are made, so that a killed run goes on where it was.

A checkpoint is a folder:

- ``run.json``: what the run is (settings, digest of the rows); a checkpoint of another run is
  refused. It is written last, so a folder without it holds nothing yet.
- ``labels.npy``, ``weights.npy``, …: the kept draws of all chains, (chain, draw, …), written in
  place as they come.
- ``chain-0.npz``, …: each chain's labels and the sweep they belong to, replaced in one step.

The files are their owner's alone. Randomness is keyed by sweep, so the labels are the whole state:
draws written after the last replacement are simply made again, identical.
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from silomix.errors import CheckpointError
from silomix.model.files import private_file, private_folder, whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

FORMAT = 1
RUN_FILE = "run.json"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An open checkpoint folder.

    Attributes
    ----------
    folder : where it is.
    arrays : memory maps of the kept draws by name, (chain, draw, …).
    """

    folder: Path
    arrays: Mapping[str, NDArray[Any]]


def open_checkpoint(
    folder: str | Path,
    identity: Mapping[str, Any],
    shapes: Mapping[str, tuple[tuple[int, ...], type]],
) -> Checkpoint:
    """Open the checkpoint in `folder`, or make it; refuse one of another run or damaged.

    Parameters
    ----------
    identity : what the run is, as JSON; must match the one on disk.
    shapes : (shape, dtype) of each array by name.
    """
    folder = Path(folder)
    expected = json.loads(json.dumps({"format": FORMAT, **identity}))
    try:
        if not (folder / RUN_FILE).exists():
            return _make(folder, expected, shapes)
    except OSError as error:
        raise _unwritable(folder, error) from None
    _check_identity(folder, expected)
    return Checkpoint(folder, {name: _map(folder, name, *shapes[name]) for name in shapes})


def save_chain(checkpoint: Checkpoint, chain: int, sweep: int, labels: NDArray[np.uint8]) -> None:
    """Record that `chain` has finished `sweep` with these labels, its draws on disk first."""
    for array in checkpoint.arrays.values():
        if isinstance(array, np.memmap):
            array.flush()
    _replace(
        checkpoint.folder / f"chain-{chain}.npz",
        lambda file: np.savez(file, sweep=np.int64(sweep), labels=labels),
    )


def load_chain(
    checkpoint: Checkpoint, chain: int, rows: int
) -> tuple[int, NDArray[np.uint8]] | None:
    """Return (sweep, labels) last recorded for `chain`, or None where there is none."""
    path = checkpoint.folder / f"chain-{chain}.npz"
    if not path.exists():
        return None
    try:
        # opened here: np.load leaves a file that is no archive open
        with path.open("rb") as file, np.load(file, allow_pickle=False) as state:
            sweep, labels = int(state["sweep"]), state["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise _damaged(path) from None
    if labels.shape != (rows,) or labels.dtype != np.uint8:
        raise _damaged(path)
    return sweep, labels


def _make(
    folder: Path,
    identity: Mapping[str, Any],
    shapes: Mapping[str, tuple[tuple[int, ...], type]],
) -> Checkpoint:
    private_folder(folder)
    for name in shapes:
        private_file(folder / f"{name}.npy")
    arrays = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
        for name, (shape, dtype) in shapes.items()
    }
    for name in arrays:
        _reserve(folder / f"{name}.npy")
    for stale in folder.glob("chain-*.npz"):
        stale.unlink()
    content = json.dumps(identity, indent=1).encode()
    _replace(folder / RUN_FILE, lambda file: file.write(content))
    return Checkpoint(folder, arrays)


def _reserve(path: Path) -> None:
    """Take the file's space now: a disk that is too small refuses here, not in mid-run."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _check_identity(folder: Path, identity: dict[str, Any]) -> None:
    path = folder / RUN_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise _damaged(path) from None
    if not isinstance(found, dict):
        raise _damaged(path)
    if found == identity:
        return
    differing = [key for key in identity | found if found.get(key) != identity.get(key)]
    shown = "; ".join(
        f"{key} is {found.get(key)!r} there and {identity.get(key)!r} here" for key in differing
    )
    raise CheckpointError(
        f"the checkpoint in {folder} belongs to another run: {shown}. Use the settings and "
        "table it was made with, or give another folder"
    )


def _map(folder: Path, name: str, shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        np.lib.format.open_memmap(path, mode="r")  # r+ alone fills a truncated file with zeros
        array = np.lib.format.open_memmap(path, mode="r+")
    except (OSError, ValueError, EOFError):
        raise _damaged(path) from None
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise _damaged(path)
    return array


def _replace(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file in one step: whatever happens, there is the old content or the new."""
    try:
        with whole_file(target, alone=True, private=True) as file:
            write(file)
    except OSError as error:
        raise _unwritable(target.parent, error) from None


def _unwritable(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot write a checkpoint to {folder}: {error.strerror}; choose a folder that "
        "exists or can be made, with enough space"
    )


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint file {path} is missing, damaged or truncated; delete the folder "
        f"{path.parent} to start the run again from the beginning"
    )
