"""What a silo keeps between questions: in memory, or also in a folder of its own.

Nothing in a store leaves the silo, and everything in it can be made again, but for the ledger of
what was answered: that is what a policy's limits are counted in. A folder belongs to one silo, one
study, one table and one policy, and is refused for any other.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.atomic import replace_file, whole_file
from silomix.errors import CheckpointError
from silomix.messages import ShareReleases
from silomix.messages.binary import decode, encode
from silomix.messages.envelope import Envelope
from silomix.release import Release

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    lock : held while something is made that is made once.
    kept, shared, membership : see the methods that set them.
    layout, rows, row_table : the silo's rows as the sampler wants them, as distinct rows with
        counts, and those as the likelihood wants them.
    ledger : for each kind of question that a policy limits, the digests of those answered.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.lock = threading.RLock()
        self.folder = folder
        self.kept: Kept | None = None
        self.shared: ShareReleases | None = None
        self.matched: MatchedDraws | None = None
        self.membership: NDArray[np.float32] | None = None
        self.layout: Layout | None = None
        self.rows: DistinctRows | None = None
        self.row_table: RowTable | None = None
        self.ledger: dict[str, list[str]] = {}

    @property
    def checkpoint(self) -> Path | None:
        """Where the sampler may keep its own."""
        return self.folder / CHECKPOINT_FOLDER if self.folder else None

    def keep(self, kept: Kept) -> None:
        """Keep what the sampling gave."""
        self.kept = kept
        if self.folder:
            replace_file(self.folder / RELEASE_FILE, _as_bytes(kept.release), alone=True)
            with whole_file(self.folder / KEPT_FILE, alone=True) as file:
                np.savez(
                    file,
                    weights=kept.weights,
                    probabilities=kept.probabilities,
                    labels=kept.labels,
                )

    def share(self, query: ShareReleases) -> None:
        """Remember what was shown, for the questions that refer to it."""
        self.shared, self.matched = query, query.matched
        if self.folder:
            replace_file(self.folder / SHARED_FILE, _as_bytes(query), alone=True)

    def assign(self, membership: NDArray[np.float32]) -> None:
        """Keep the rows' probabilities of the global clusters: (row, cluster)."""
        self.membership = membership
        if self.folder:
            with whole_file(self.folder / MEMBERSHIP_FILE, alone=True) as file:
                np.save(file, membership)

    def note(self, kind: str, question: str) -> None:
        """Write a question into the ledger, before it is answered: a crash must not reset it."""
        self.ledger.setdefault(kind, []).append(question)
        if self.folder:
            replace_file(
                self.folder / LEDGER_FILE, json.dumps(self.ledger, indent=1).encode(), alone=True
            )


def open_store(folder: Path, identity: Mapping[str, str]) -> Store:
    """Open the store in `folder`, or make it; refuse one of another silo, study, table or policy.

    Parameters
    ----------
    identity : what the store is of, by word: names and digests.

    Raises
    ------
    CheckpointError
        When the folder is of something else, or damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / IDENTITY_FILE
    if path.exists():
        known = _read_json(path)
        for word, value in identity.items():
            if known.get(word) != value:
                raise CheckpointError(
                    f"{folder} was made for another {word}; give this one a folder of its own, or "
                    "delete that one if nothing in it is needed"
                )
    else:
        replace_file(path, json.dumps(dict(identity), indent=1).encode(), alone=True)
    store = Store(folder)
    try:
        _fill(store, folder)
    except Exception as error:
        raise CheckpointError(
            f"{folder} is damaged ({type(error).__name__}); delete it: what was in it is made again"
        ) from error
    return store


def _fill(store: Store, folder: Path) -> None:
    if (folder / LEDGER_FILE).exists():
        ledger = _read_json(folder / LEDGER_FILE)
        store.ledger = {str(kind): [str(item) for item in items] for kind, items in ledger.items()}
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
