"""What a silo keeps between questions: in memory, or also in a folder of its own.

Nothing in a store leaves the silo, and everything in it can be made again. What was answered is
counted in the ledger (`silomix.silo.ledger`); only a silo that has none, inside one process, counts
here. A folder belongs to one silo, one study, one table and one policy, and is refused for any
other. Only its owner may open it, and one process at a time makes what is in it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load, save

from silomix.errors import CheckpointError
from silomix.messages.container import Envelope, decode, encode
from silomix.model.files import private_file, private_folder, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from silomix.kernels.arrays import Array, Floats, Ints, Singles
    from silomix.kernels.layout import Layout
    from silomix.messages import Release, ShareReleases
    from silomix.model.draws import MatchedDraws

IDENTITY_FILE = "silo.json"
SHARED_FILE = "shared.safetensors"
RELEASE_FILE = "release.safetensors"
KEPT_FILE = "kept.safetensors"
MEMBERSHIP_FILE = "membership.safetensors"
LOCK_FILE = "lock"


@dataclass(frozen=True, eq=False)
class Kept:
    """What a silo keeps of its sampling, enough for every later question; it stays there.

    Attributes
    ----------
    release : what it handed over, or would.
    weights : (draw, cluster); parameters : (draw, cluster, parameter)
    labels : (row,), each row's local cluster.
    """

    release: Release
    weights: Singles
    parameters: Singles
    labels: Ints


class Store:
    """A silo's memory; with a `folder`, one that outlives the process.

    Attributes
    ----------
    lock : guards what is made once, across threads and, with a folder, processes.
    kept, shared, membership : see the methods that set them.
    prepared : the silo's rows in the form that the kernels need, where it was made elsewhere.
    verdict : on the run of this process, for the silo's own user.
    asked : for each kind of question that a policy limits, the digests of those asked, and how
        often each counts; of a silo without a ledger.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._threads = threading.RLock()
        self._is_held = False
        self.kept: Kept | None = None
        self.shared: ShareReleases | None = None
        self.matched: MatchedDraws | None = None
        self.membership: Singles | None = None
        self.prepared: Layout | Floats | None = None
        self.asked: dict[str, dict[str, int]] = {}
        self.verdict = ""

    @property
    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by one thread of one process; whoever holds it may take it again."""
        with self._threads:
            if self.folder is None or self._is_held:
                yield
                return
            with locked(self.folder / LOCK_FILE):
                self._is_held = True
                try:
                    yield
                finally:
                    self._is_held = False

    def keep(self, kept: Kept) -> None:
        """Keep what the sampling gave."""
        with self.lock:
            self.kept = kept
            self._write(RELEASE_FILE, lambda: encode(Envelope("", "", 1), kept.release))
            arrays = {word: value for word, value in vars(kept).items() if word != "release"}
            self._write(KEPT_FILE, lambda: _contain(**arrays))

    def share(self, query: ShareReleases) -> None:
        """Remember what was shown, for the questions that refer to it."""
        with self.lock:
            self.shared, self.matched = query, None
            self._write(SHARED_FILE, lambda: encode(Envelope("", "", 1), query))

    def assign(self, membership: Singles) -> None:
        """Keep the rows' probabilities of the global clusters: (row, cluster)."""
        with self.lock:
            self.membership = membership
            self._write(MEMBERSHIP_FILE, lambda: _contain(membership=membership))

    @contextmanager
    def counting(self, kind: str) -> Iterator[dict[str, int]]:
        """Questions of a kind so far, and how often each counts; one thread may add to them."""
        with self._threads:
            yield self.asked.setdefault(kind, {})

    def _write(self, name: str, content: Callable[[], bytes]) -> None:
        """Write into the folder, where there is one."""
        if self.folder is not None:
            replace_file(self.folder / name, content(), alone=True, private=True)


def _contain(**arrays: Array) -> bytes:
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def open_store(folder: Path, identity: Mapping[str, str]) -> Store:
    """Open the store in `folder`, or make it; refuse one of another silo, study, table or policy.

    Parameters
    ----------
    identity : what the store is of, by word: names and digests.

    Raises
    ------
    CheckpointError
        When the folder is of something else, damaged, or cannot be written.
    """
    store = Store(folder)
    try:
        private_folder(folder)
        if not (folder / IDENTITY_FILE).exists():
            store._write(IDENTITY_FILE, json.dumps(dict(identity), indent=1).encode)
        known = json.loads((folder / IDENTITY_FILE).read_text(encoding="utf-8"))
        others = [word for word, value in identity.items() if known.get(word) != value]
        files = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
        if KEPT_FILE in files:
            store.kept = Kept(decode(files[RELEASE_FILE])[1], **load(files[KEPT_FILE]))
        if SHARED_FILE in files:
            store.shared = decode(files[SHARED_FILE])[1]
        if MEMBERSHIP_FILE in files:
            store.membership = load(files[MEMBERSHIP_FILE])["membership"]
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise CheckpointError(
            f"{folder} cannot be used as the silo's store ({reason}); give another folder that can "
            "be written. If this one is damaged, delete it: its contents are made again"
        ) from error
    if others:
        raise CheckpointError(
            f"{folder} was made for another {others[0]}; give this one a folder of its own, or "
            "delete that one if nothing in it is needed"
        )
    return store


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out, until the end of this one at the latest; not on Windows."""
    private_file(path)
    with path.open("rb") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest_arrays(arrays: Iterable[Array]) -> str:
    """Digest of arrays, such as a shard's cells."""
    named = {f"cells {place}": part for place, part in enumerate(arrays)}
    return hashlib.sha256(_contain(**named)).hexdigest()
