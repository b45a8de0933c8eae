"""Match each silo's clusters one to one with those of a reference silo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from silomix.matching.records import MatchingInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.release import Release


def hungarian_groups(
    releases: Sequence[Release], reference: int | None = None
) -> tuple[NDArray[np.int64], MatchingInfo]:
    """Assign clusters to the reference's so that the medians' summed distance is least.

    Fendler et al. (2026), section "Cluster matching", after Rabinovich, Angelino and Jordan
    (2015): Euclidean distance over all ΣK_q coordinates. As many clusters as possible are
    matched, however far apart: where no silo holds every cluster it cannot be right.

    Parameters
    ----------
    releases : one from each silo, in the order of the roster.
    reference : place of the reference silo in `releases`; by default the one with most
        clusters, then most rows, then first in the roster. Clusters of another silo beyond
        the number of the reference's open new groups.

    Returns
    -------
    groups : (local,)
    info : which silo was the reference.
    """
    if reference is None:
        reference = fullest(releases)
    medians = releases[reference].medians
    opened = len(medians)
    groups = []
    for release in releases:
        of_silo = nearest(release.medians, medians)
        left = of_silo < 0
        of_silo[left] = opened + np.arange(left.sum())
        opened += int(left.sum())
        groups.append(of_silo)
    return np.concatenate(groups), MatchingInfo(reference=releases[reference].silo)


def fullest(releases: Sequence[Release]) -> int:
    """Return the place of the release with most clusters; of those, with most rows."""
    return max(range(len(releases)), key=lambda s: (releases[s].clusters, releases[s].rows, -s))


def nearest(medians: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the reference cluster of each cluster, one to one; −1 where there are too few.

    Parameters
    ----------
    medians : (cluster, level)
    reference : (reference cluster, level)

    Returns
    -------
    (cluster,)
    """
    matched = np.full(len(medians), -1, dtype=np.int64)
    rows, columns = linear_sum_assignment(cdist(medians, reference))
    matched[rows] = columns
    return matched
