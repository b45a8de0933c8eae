"""What every rival returns, and how its time is taken."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RivalResult:
    """One clustering of all silos' rows by a method that silomix is compared with.

    Attributes
    ----------
    name : of the function that made it.
    labels : (row,), the cluster of each row, from 0, in the order of the table: the place of its
        cluster in `weights` and `probabilities`.
    weights : (draw, cluster), None if the method has none. A point estimate is one draw.
    probabilities : (draw, cluster, level), columns as in `levels`, or None.
    levels : what each level column stands for: (variable, level).
    seconds : by stage, CPU seconds of this process on all its threads.
    bytes_sent : by silo, and by kind of reply, what left it.
    notes : plain sentences that a reader of the result should see.

    Examples
    --------
    >>> result = silomix.rivals.fed_kmodes(table, "silo", clusters=5, seed=1)
    >>> result.name, result.labels.shape, result.total_bytes > 0
    ('fed_kmodes', (400,), True)
    """

    name: str
    labels: NDArray[np.int64]
    weights: NDArray[np.floating] | None
    probabilities: NDArray[np.floating] | None
    levels: list[tuple[str, str]]
    seconds: Mapping[str, float]
    bytes_sent: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...] = ()

    @property
    def n_clusters(self) -> int:
        """Number of clusters that hold rows; the arrays may know of more."""
        return len(np.unique(self.labels))

    @property
    def total_seconds(self) -> float:
        """CPU seconds of all stages."""
        return sum(self.seconds.values())

    @property
    def total_bytes(self) -> int:
        """Bytes that left all silos."""
        return sum(sum(kinds.values()) for kinds in self.bytes_sent.values())


class Stopwatch:
    """CPU seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = time.process_time()
        try:
            yield
        finally:
            spent = time.process_time() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
