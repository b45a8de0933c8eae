"""What a silo keeps between questions: in memory, or also in a folder of its own.

Nothing in a store leaves the silo, and everything in it can be made again, but for the ledger of
what was answered: that is what a policy's limits are counted in. A folder belongs to one silo, one
study, one table and one policy, and is refused for any other. Only its owner may open it, and one
process at a time counts in it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.atomic import (
    OWNERS_FOLDER,
    private_file,
    private_folder,
    replace_file,
    whole_file,
)
from silomix.errors import CheckpointError
from silomix.messages import ShareReleases
from silomix.messages.container import decode, encode
from silomix.messages.container import Envelope
from silomix.release import Release

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from silomix.kernels.layout import Layout
    from silomix.kernels.likelihood import RowTable
    from silomix.messages import DistinctRows
    from silomix.types import MatchedDraws

IDENTITY_FILE = "silo.json"
LEDGER_FILE = "answered.json"
SHARED_FILE = "shared.bin"
RELEASE_FILE = "release.bin"
KEPT_FILE = "kept.npz"
MEMBERSHIP_FILE = "membership.npy"
CHECKPOINT_FOLDER = "checkpoint"
LOCK_FILE = "lock"


@dataclass(frozen=True, eq=False)
class Kept:
    """What a silo keeps of its sampling, enough for every later question; it stays there.

    Attributes
    ----------
    release : what it handed over, or would.
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    labels : (row,), each row's local cluster.
    """

    release: Release
    weights: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    labels: NDArray[np.int64]


class Store:
    """A silo's memory; with a `folder`, one that outlives the process.

    Attributes
    ----------
    lock : held while something is made or counted that is so once; by one process, where several
        have the folder open. The ledger is then as it is on disk.
    kept, shared, membership : see the methods that set them.
    layout, rows, row_table : the silo's rows as the sampler wants them, as distinct rows with
        counts, and those as the likelihood wants them.
    ledger : for each kind of question that a policy limits, the digests of those answered, and
        how often each counts.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._threads = threading.RLock()
        self._is_held = False
        self.kept: Kept | None = None
        self.shared: ShareReleases | None = None
        self.matched: MatchedDraws | None = None
        self.membership: NDArray[np.float32] | None = None
        self.layout: Layout | None = None
        self.rows: DistinctRows | None = None
        self.row_table: RowTable | None = None
        self.ledger: dict[str, dict[str, int]] = {}

    @property
    def lock(self) -> AbstractContextManager[None]:
        """Held by one thread of one process; whoever holds it may take it again."""
        return self._hold()

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with self._threads:
            if self.folder is None or self._is_held:
                yield
                return
            with locked(self.folder / LOCK_FILE):
                self._is_held = True
                try:
                    _fill_ledger(self, self.folder)
                    yield
                finally:
                    self._is_held = False

    @property
    def checkpoint(self) -> Path | None:
        """Where the sampler may keep its own."""
        return self.folder / CHECKPOINT_FOLDER if self.folder else None

    def keep(self, kept: Kept) -> None:
        """Keep what the sampling gave."""
        with self.lock:
            self.kept = kept
            if self.folder:
                _keep_file(self.folder / RELEASE_FILE, _as_bytes(kept.release))
                with _kept_file(self.folder / KEPT_FILE) as file:
                    np.savez(
                        file,
                        weights=kept.weights,
                        probabilities=kept.probabilities,
                        labels=kept.labels,
                    )

    def share(self, query: ShareReleases) -> None:
        """Remember what was shown, for the questions that refer to it."""
        with self.lock:
            self.shared, self.matched = query, query.matched
            if self.folder:
                _keep_file(self.folder / SHARED_FILE, _as_bytes(query))

    def assign(self, membership: NDArray[np.float32]) -> None:
        """Keep the rows' probabilities of the global clusters: (row, cluster)."""
        with self.lock:
            self.membership = membership
            if self.folder:
                with _kept_file(self.folder / MEMBERSHIP_FILE) as file:
                    np.save(file, membership)

    def note(self, kind: str, question: str, points: int = 1) -> None:
        """Write a question into the ledger, before it is answered: a crash must not reset it."""
        with self.lock:
            self.ledger.setdefault(kind, {})[question] = points
            if self.folder:
                _keep_file(self.folder / LEDGER_FILE, json.dumps(self.ledger, indent=1).encode())


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
    _claim(folder, identity)
    store = Store(folder)
    try:
        _check_identity(folder / IDENTITY_FILE, identity)
        _fill(store, folder)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{folder} is damaged ({type(error).__name__}); bring it back from a copy, or delete "
            "it: what was in it is made again, and so is the count of answered questions, from "
            "the answers that are still in the exchange"
        ) from error
    return store


def _claim(folder: Path, identity: Mapping[str, str]) -> None:
    """Make the folder where there is none, and write down what a new one is of."""
    try:
        private_folder(folder)
        with suppress(PermissionError):  # one that somebody shared stays as its owner made it
            folder.chmod(OWNERS_FOLDER)
        path = folder / IDENTITY_FILE
        if not path.exists():
            replace_file(path, json.dumps(dict(identity), indent=1).encode(), private=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be used as the silo's store ({error.strerror}); give another folder "
            "that can be written"
        ) from error


def _check_identity(path: Path, identity: Mapping[str, str]) -> None:
    """Refuse a store of something else."""
    known = _read_json(path)
    for word, value in identity.items():
        if known.get(word) != value:
            raise CheckpointError(
                f"{path.parent} was made for another {word}; give this one a folder of its own, or "
                "delete that one if nothing in it is needed"
            )


def _fill(store: Store, folder: Path) -> None:
    _fill_ledger(store, folder)
    if (folder / KEPT_FILE).exists():
        release = decode((folder / RELEASE_FILE).read_bytes())[1]
        if not isinstance(release, Release):
            raise TypeError(RELEASE_FILE)
        with np.load(folder / KEPT_FILE, allow_pickle=False) as arrays:
            store.kept = Kept(release, arrays["weights"], arrays["probabilities"], arrays["labels"])
    if (folder / SHARED_FILE).exists():
        shared = decode((folder / SHARED_FILE).read_bytes())[1]
        if not isinstance(shared, ShareReleases):
            raise TypeError(SHARED_FILE)
        store.shared = shared
    if (folder / MEMBERSHIP_FILE).exists():
        store.membership = np.load(folder / MEMBERSHIP_FILE, allow_pickle=False)


def _fill_ledger(store: Store, folder: Path) -> None:
    if (folder / LEDGER_FILE).exists():
        ledger = _read_json(folder / LEDGER_FILE)
        store.ledger = {
            str(kind): {str(item): int(points) for item, points in items.items()}
            for kind, items in ledger.items()
        }


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out, until the end of this one at the latest; not on Windows."""
    private_file(path)
    with path.open("rb") as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise CheckpointError(
                    f"{path} cannot be locked: {error.strerror}; without a lock nobody can count "
                    "what was answered: keep it on a disk that has locks"
                ) from None
        yield


_kept_file = partial(whole_file, alone=True, private=True)
_keep_file = partial(replace_file, alone=True, private=True)


def digest_rows(codes: NDArray[np.unsignedinteger]) -> str:
    """Return a digest of a silo's coded rows, (row, variable): the store of others is refused."""
    shape = f"{codes.shape} {codes.dtype.str} "
    return hashlib.sha256(shape.encode() + np.ascontiguousarray(codes).tobytes()).hexdigest()


def _as_bytes(record: Release | ShareReleases) -> bytes:
    return encode(Envelope(study="", silo="", number=1, kind=type(record).__name__), record)


def _read_json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise TypeError(path.name)
    return found
