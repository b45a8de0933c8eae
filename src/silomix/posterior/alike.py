"""How alike silos are in each variable, and which clusters may be one.

Functions of arrays and of the `Correspondence`, so that whoever has these can ask.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.types import Correspondence

ONE_SILO = 0.9
"""Share of a cluster's rows from which it is said to live in one silo."""

DOUBTFUL = 0.1
"""Probability that two clusters are one from which they are named."""

OVERLAP = 0.9
"""Overlap of two clusters' profiles from which they are named, whatever their probability.

With overlap ρ and clusters of equal size, any rule that assigns rows errs in at least
(1 − √(1 − ρ²))/2 of them (Kailath, 1967): 28 % at 0.9. Such clusters hardly differ for any row.
"""


class KappaSummary(NamedTuple):
    """What the draws of κ say of each variable; all are (variable,).

    Attributes
    ----------
    median, lower, upper : of κ_q; may be infinite. The interval leaves out as many draws below as
        above, and is nan where κ is a point value.
    same : the posterior probability that the silos are alike, κ_q = ∞; nan for a point value.
    """

    median: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    same: NDArray[np.float64]


class SiloExtremes(NamedTuple):
    """The two silos that differ most in each level of each cluster; all are (cluster, level).

    Attributes
    ----------
    highest, lowest : the silos' places in the roster.
    top, bottom : their probabilities of the level.
    """

    highest: NDArray[np.int64]
    lowest: NDArray[np.int64]
    top: NDArray[np.float64]
    bottom: NDArray[np.float64]

    @property
    def difference(self) -> NDArray[np.float64]:
        """The difference between the two: (cluster, level)."""
        return self.top - self.bottom


class SingleSilo(NamedTuple):
    """A cluster that lives in one silo.

    Attributes
    ----------
    cluster : its number.
    silo : the silo's name.
    share : of the cluster's expected rows that are in this silo.
    apart : the probability that it is a cluster of its own: 1 less the largest probability that it
        is one with another cluster, as found elsewhere. nan where no groupings were sampled.
    """

    cluster: int
    silo: str
    share: float
    apart: float


class Pair(NamedTuple):
    """Two clusters that may be one, a < b.

    Attributes
    ----------
    a, b : their numbers.
    probability : that they are one, over sampled groupings; nan where none were sampled, or where
        one and the same silo found both, and so told them apart on its own rows.
    overlap : Σ √(p_a p_b) over all rows there can be, from 0 to 1.
    """

    a: int
    b: int
    probability: float
    overlap: float


def spread(kappa: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much silos differ under κ: the sd between them of a probability of one half.

    The variance of a Dirichlet(κm) coordinate is m(1 − m)/(κ + 1), which is largest at m = ½.
    """
    return np.sqrt(0.25 / (kappa + 1))


def summarise_kappa(kappa: NDArray[np.float64], level: float = 0.95) -> KappaSummary:
    """Return medians, intervals, and the probability that the silos are alike.

    Parameters
    ----------
    kappa : (draw, variable); one draw is a point value.
    level : share of the draws inside the intervals.
    """
    at = [0.5, (1 - level) / 2, (1 + level) / 2]
    # quantiles that are draws: between a finite one and infinity there is nothing to interpolate
    median, lower, upper = np.quantile(kappa, at, axis=0, method="inverted_cdf")
    if len(kappa) > 1:
        return KappaSummary(median, lower, upper, np.isinf(kappa).mean(axis=0))
    unknown = np.full(len(median), np.nan)
    return KappaSummary(median, unknown, unknown, unknown)


def silo_extremes(probabilities: NDArray[np.floating], offsets: NDArray[np.int64]) -> SiloExtremes:
    """Return where each level is most and least common, by the silos' mean probabilities.

    The first level of a variable with two is left out, with a difference of 0: it mirrors the
    second. A silo without rows in a cluster needs no exception: its profile is then the shared one.

    Parameters
    ----------
    probabilities : (draw, silo, cluster, level), each silo's own profiles.
    offsets : (variable + 1,), where each variable's levels start.
    """
    means = probabilities.mean(axis=0, dtype=np.float64)
    highest, lowest = means.argmax(axis=0), means.argmin(axis=0)
    mirrored = offsets[:-1][np.diff(offsets) == 2]
    lowest[:, mirrored] = highest[:, mirrored]
    top, bottom = (np.take_along_axis(means, s[None], axis=0)[0] for s in (highest, lowest))
    return SiloExtremes(highest, lowest, top, bottom)


def single_silo_clusters(
    weights_by_silo: NDArray[np.floating],
    rows: Sequence[int] | None,
    silos: Sequence[str],
    correspondence: Correspondence | None = None,
    *,
    share: float = ONE_SILO,
) -> list[SingleSilo]:
    """Return the clusters that live in one silo, the smallest number first.

    Where one silo has most rows of all, it has most of every cluster too: so the other silos must
    also have less than half of what their rows would make one expect.

    Parameters
    ----------
    weights_by_silo : (draw, silo, cluster)
    rows : of each silo; None, where nobody knows, gives an empty list.
    silos : their names.
    correspondence : what the silos found, to say how sure it is that such a cluster is no other.
    share : of a cluster's expected rows that must be in the silo.
    """
    if rows is None or len(silos) < 2:
        return []
    counts = np.asarray(rows, dtype=np.float64)
    expected = weights_by_silo.mean(axis=0, dtype=np.float64) * counts[:, None]
    shares = expected / np.maximum(expected.sum(axis=0), np.finfo(np.float64).tiny)
    least = np.maximum(share, 1 - (1 - counts / counts.sum()) / 2)
    joined = joint_probabilities(correspondence)
    found = []
    for cluster, place in enumerate(shares.argmax(axis=0)):
        if shares[place, cluster] >= least[place]:
            others = None if joined is None else np.delete(joined[cluster], cluster)
            apart = np.nan if others is None else 1 - np.nanmax([*others, 0.0])
            of_silo = float(shares[place, cluster])
            found.append(SingleSilo(cluster, silos[place], of_silo, float(apart)))
    return found


def nearly_same(
    correspondence: Correspondence | None,
    probabilities: NDArray[np.floating],
    offsets: NDArray[np.int64],
    *,
    doubtful: float = DOUBTFUL,
    overlap: float = OVERLAP,
) -> list[Pair]:
    """Return the pairs of clusters that may be one, the most probable first.

    A pair is named for the probability that it is one, or for profiles that nearly coincide. The
    overlap is that of whole rows, not a mean over variables: of a hundred rare conditions each
    differs little between any two clusters, and all of them together tell the clusters apart.

    Parameters
    ----------
    correspondence : what the silos found; None leaves the overlap.
    probabilities : (draw, cluster, level), the shared profiles.
    offsets : (variable + 1,), where each variable's levels start.
    doubtful : probability from which a pair is named.
    overlap : overlap from which a pair is named.
    """
    joined = joint_probabilities(correspondence)
    overlaps = profile_overlap(probabilities.mean(axis=0, dtype=np.float64), offsets)
    pairs = [
        Pair(a, b, float("nan") if joined is None else float(joined[a, b]), float(overlaps[a, b]))
        for a, b in combinations(range(len(overlaps)), 2)
    ]
    named = [pair for pair in pairs if pair.probability >= doubtful or pair.overlap >= overlap]
    return sorted(named, key=lambda pair: (-np.nan_to_num(pair.probability), -pair.overlap))


def joint_probabilities(correspondence: Correspondence | None) -> NDArray[np.float64] | None:
    """Return the probability that two clusters are one: (cluster, cluster).

    The confidence that two local clusters share a group, averaged over the pairs of local clusters
    of *different* silos, one from each of the two clusters, with the product of their rows for
    weights. Two local clusters of one silo say nothing: the silo has told them apart.

    Returns
    -------
    nan on the diagonal, and where no two silos hold the two clusters; None where the confidence was
    not computed.
    """
    if correspondence is None or correspondence.confidence is None:
        return None
    groups = np.concatenate(correspondence.groups)
    silo = np.repeat(
        np.arange(len(correspondence.silos)), [len(group) for group in correspondence.groups]
    )
    # (local cluster, cluster): the rows of each local cluster, in the column of its cluster
    rows = np.zeros((len(groups), correspondence.clusters))
    rows[np.arange(len(groups)), groups] = np.concatenate(correspondence.sizes)
    apart = silo[:, None] != silo
    weight = rows.T @ apart @ rows
    joined = rows.T @ (apart * correspondence.confidence) @ rows
    np.fill_diagonal(weight, 0.0)
    return np.divide(joined, weight, out=np.full_like(joined, np.nan), where=weight > 0)


def profile_overlap(
    profiles: NDArray[np.float64], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the Bhattacharyya coefficient of the clusters' distributions of rows.

    Variables are independent within a cluster, so it is the product over variables of
    Σ_k √(p_a[k] p_b[k]).

    Parameters
    ----------
    profiles : (cluster, level); offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    (cluster, cluster), one on the diagonal.
    """
    roots = np.sqrt(profiles)
    logs = np.zeros((len(profiles), len(profiles)))
    with np.errstate(divide="ignore"):
        for start, stop in pairwise(offsets):
            logs += np.log(roots[:, start:stop] @ roots[:, start:stop].T)
    return np.minimum(np.exp(logs), 1.0)  # means of float32 draws do not quite sum to one
