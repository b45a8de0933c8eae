"""Draws on disk while they are made, so that a killed run goes on where it was.

A checkpoint is a folder:

- ``run.json``: what the run is (settings, digest of the rows); a checkpoint of another run is
  refused. It is written last, so a folder without it holds nothing yet.
- ``labels.npy``, ``weights.npy``, …: the kept draws of all chains, (chain, draw, …), written in
  place as they come.
- ``chain-0.npz``, …: each chain's state and the sweep it belongs to, replaced in one step.

The files are their owner's alone. Randomness is keyed by sweep, so a chain needs nothing but its
state: draws written after the last replacement are simply made again, identical.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import CheckpointError
from silomix.model.files import private_file, private_folder, replace_file, whole_file, writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from silomix.kernels.arrays import Array, Bytes

# (shape, dtype) of each array by name
Shapes = dict[str, tuple[tuple[int, ...], type]]
FORMAT = 2
RUN_FILE = "run.json"


def open_checkpoint(folder: Path, identity: Mapping[str, Any], shapes: Shapes) -> dict[str, Array]:
    """Open the checkpoint in `folder`, or make it; refuse one of another run or damaged.

    Parameters
    ----------
    identity : what the run is, as JSON; must match the one on disk.
    shapes : of the kept draws.

    Returns
    -------
    Memory maps of the kept draws by name, (chain, draw, …).
    """
    expected = json.loads(json.dumps({"format": FORMAT, **identity}))
    with writing(folder, CheckpointError):
        if not (folder / RUN_FILE).exists():
            return _make(folder, expected, shapes)
    with _reading(folder, RUN_FILE) as path:
        found = json.loads(path.read_text(encoding="utf-8"))
        differing = [key for key in expected | found if found.get(key) != expected.get(key)]
    if differing:
        shown = "; ".join(
            f"{key} is {found.get(key)!r} there and {expected.get(key)!r} here" for key in differing
        )
        raise CheckpointError(
            f"the checkpoint in {folder} belongs to another run: {shown}. Use the settings and "
            "table it was made with, or give another folder"
        )
    arrays = {}
    for name in shapes:
        with _reading(folder, f"{name}.npy") as path:
            np.load(path, mmap_mode="r")  # r+ alone fills a truncated file with zeros
            arrays[name] = np.load(path, mmap_mode="r+")
    return arrays


def save_chain(
    folder: Path, arrays: Mapping[str, Array], chain: int, sweep: int, state: Bytes
) -> None:
    """Record that `chain` has finished `sweep` in this state, its draws on disk first."""
    for array in arrays.values():
        if isinstance(array, np.memmap):
            array.flush()
    path = folder / f"chain-{chain}.npz"
    with writing(path, CheckpointError), whole_file(path, alone=True, private=True) as file:
        np.savez(file, sweep=np.int64(sweep), state=state)


def load_chain(folder: Path, chain: int) -> tuple[int, Bytes] | None:
    """Return (sweep, state) last recorded for `chain`, or None where there is none."""
    name = f"chain-{chain}.npz"
    if not (folder / name).exists():
        return None
    # opened here: np.load leaves a file that is no archive open
    with _reading(folder, name) as path, path.open("rb") as file, np.load(file) as saved:
        return int(saved["sweep"]), saved["state"]


def _make(folder: Path, identity: Mapping[str, Any], shapes: Shapes) -> dict[str, Array]:
    private_folder(folder)
    arrays: dict[str, Array] = {}
    for name, (shape, dtype) in shapes.items():
        path = folder / f"{name}.npy"
        private_file(path)
        arrays[name] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            # take the space now: a disk that is too small refuses here, not in mid-run
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    for stale in folder.glob("chain-*.npz"):
        stale.unlink()
    content = json.dumps(identity, indent=1).encode()
    replace_file(folder / RUN_FILE, content, alone=True, private=True)
    return arrays


@contextmanager
def _reading(folder: Path, name: str) -> Iterator[Path]:
    """Say what to do where a file of a checkpoint cannot be read."""
    try:
        yield folder / name
    except Exception:
        raise CheckpointError(
            f"the checkpoint file {folder / name} is missing, damaged or truncated; delete the "
            f"folder {folder} to start the run again from the beginning"
        ) from None
