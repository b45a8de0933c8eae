"""What the matchings share: all silos' local clusters in one list, and what they report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import SettingsError, StudyMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.release import Release

LocalCluster = tuple[str, int]
"""Name of the silo, and number of the cluster within it, from 0 on."""


@dataclass(frozen=True, eq=False)
class LocalClusters:
    """All silos' local clusters, one after the other in the order of the roster.

    Attributes
    ----------
    names : of the silos.
    silo : (local,), place in `names` of the silo each cluster is of.
    number : (local,), its number within that silo.
    sizes : (local,), its rows.
    counts : (local, level), its effective counts.
    """

    names: tuple[str, ...]
    silo: NDArray[np.int64]
    number: NDArray[np.int64]
    sizes: NDArray[np.int64]
    counts: NDArray[np.float64]

    def name(self, local: int) -> LocalCluster:
        """Return the silo and the number of a local cluster."""
        return self.names[self.silo[local]], int(self.number[local])

    def canonical_order(self) -> NDArray[np.int64]:
        """Return the clusters sorted by silo name, then by what is in them: (local,).

        An algorithm that goes through them in this order, and breaks ties by it, gives the
        same answer however the silos are listed and their clusters numbered.
        """
        alphabetical = np.argsort(np.argsort(np.array(self.names)))
        keys = [*self.counts.T[::-1], self.sizes, alphabetical[self.silo]]
        return np.lexsort(keys)


@dataclass(frozen=True)
class Absorption:
    """A small group that was folded into one of its own silo.

    Attributes
    ----------
    clusters : the local clusters of the small group.
    into : those of the group that took it.
    gain : rise of the log evidence, with the odds that the group had to beat.
    """

    clusters: tuple[LocalCluster, ...]
    into: tuple[LocalCluster, ...]
    gain: float


@dataclass(frozen=True)
class MatchingInfo:
    """What a person may want to know of a matching; what does not apply is empty or None.

    Attributes
    ----------
    gains : evidence: rise of the log evidence by each merge, in order.
    reference : hungarian: the silo the others were matched to.
    order : divergence: the silos in the order of the run that was kept.
    divergence : divergence: summed cost of that run's assignments.
    runs : divergence: that sum for each run.
    kappa : (variable,), how alike the silos' profiles are; None without drift.
    absorbed : groups that were folded afterwards.
    sweeps : block Gibbs sweeps the confidence is a frequency over; 0 if it was not computed.
    """

    gains: tuple[float, ...] = ()
    reference: str | None = None
    order: tuple[str, ...] = ()
    divergence: float | None = None
    runs: tuple[float, ...] = ()
    kappa: NDArray[np.float64] | None = None
    absorbed: tuple[Absorption, ...] = ()
    sweeps: int = 0


def local_clusters(releases: Sequence[Release]) -> LocalClusters:
    """List the local clusters of all releases."""
    return LocalClusters(
        names=tuple(release.silo for release in releases),
        silo=np.repeat(np.arange(len(releases)), [release.clusters for release in releases]),
        number=np.concatenate([np.arange(release.clusters) for release in releases]),
        sizes=np.concatenate([release.sizes for release in releases]),
        counts=np.concatenate([release.effective_counts for release in releases]),
    )


def by_appearance(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ids numbered anew, 0, 1, …, in the order in which they first appear."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def check_releases(releases: Sequence[Release], offsets: NDArray[np.int64]) -> None:
    """Refuse releases that do not belong together.

    Raises
    ------
    SettingsError
        When there is none, or they are not in the order of the roster.
    StudyMismatch
        When they are of different studies, or not of this schema.
    """
    if not releases:
        raise SettingsError("there is no release to match; give one from each silo")
    first = releases[0]
    for before, release in zip([first, *releases], releases, strict=False):
        if release is not first and release.place <= before.place:
            raise SettingsError(
                f"the release of {release.silo!r} (place {release.place} in the roster) comes "
                f"after that of {before.silo!r} (place {before.place}); give one release from "
                "each silo, in the order of the roster"
            )
        if release.study != first.study:
            raise StudyMismatch(
                f"{release.silo!r} made its release for study {release.study}, {first.silo!r} "
                f"for study {first.study}; let every silo answer the same study file"
            )
        columns = release.effective_counts.shape[1]
        if columns != offsets[-1]:
            raise StudyMismatch(
                f"the release of {release.silo!r} has {columns} level columns, the study's "
                f"schema has {offsets[-1]}; let the silo answer the same study file"
            )
