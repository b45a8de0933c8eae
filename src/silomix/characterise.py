"""Posterior draws -> what sets each cluster apart, how many there are, and where they lie.

Pure functions on arrays of draws; reports and figures are made from what they return.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import eigh

from silomix.errors import SettingsError
from silomix.metrics import highest_density_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.types import Correspondence

MARGIN = 0.2
"""Smallest scaled difference worth a word: what Cohen (1988) calls small."""
PROBABILITY = 0.95
"""Posterior probability from which a difference is told."""
SMALL = 0.01
"""Share of all rows from which a cluster counts as more than a trace."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """How each cluster differs from the whole population, level by level.

    Attributes
    ----------
    whole : (level,), posterior mean of each level's probability over all rows.
    scaled : (cluster, level), posterior mean of the scaled difference.
    lower, upper : (cluster, level), its highest-density interval.
    above : (cluster, level), posterior probability that the difference is positive.
    high, low : (cluster, level), posterior probability that it is more than `margin`, and less
        than −`margin`.
    margin : smallest difference that counts.
    """

    whole: NDArray[np.float64]
    scaled: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    above: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    margin: float


@dataclass(frozen=True)
class Trait:
    """A level that is more, or less, probable in a cluster than in the whole population.

    Attributes
    ----------
    column : its place among the level columns.
    scaled : posterior mean of the scaled difference; negative where the level is rarer.
    probability : that the difference is more than the margin, on that side.
    """

    variable: str
    level: str
    column: int
    scaled: float
    probability: float


@dataclass(frozen=True, eq=False)
class ClusterMap:
    """Clusters in the plane of the first two axes of a multiple correspondence analysis.

    Attributes
    ----------
    centres : (cluster, axis), posterior means.
    draws : (draw, cluster, axis), each draw's clusters on the same axes.
    columns : (level, axis), standard coordinates: a row lies at the mean of its levels'.
    shares : (axis,), of the association between variables, by Benzécri's correction.
    """

    centres: NDArray[np.float64]
    draws: NDArray[np.float64]
    columns: NDArray[np.float64]
    shares: NDArray[np.float64]


def whole_population(
    weights: NDArray[np.floating], probabilities: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return each level's probability over all rows, Σ_c π_c p_c: (draw, level)."""
    return np.einsum("tc,tcl->tl", weights, probabilities, dtype=np.float64)


def scaled_difference(
    probabilities: NDArray[np.floating], whole: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return (p − w)/√(w(1 − w)): a level's difference in standard deviations of having it.

    Fendler et al. (2026), section 6, show a scaled difference between the proportions in a cluster
    and in the full data, and do not print its formula. This reading makes rare and common levels
    comparable. A level that all rows have, or none, differs by 0.

    Parameters
    ----------
    probabilities : (…, level), p, in a cluster.
    whole : (…, level), w, in the whole population.
    """
    spread = np.sqrt(np.clip(whole * (1.0 - whole), 0.0, None))
    difference = np.asarray(probabilities, dtype=np.float64) - whole
    return np.divide(difference, spread, out=np.zeros_like(difference), where=spread > 0)


def contrast(
    weights: NDArray[np.floating],
    probabilities: NDArray[np.floating],
    *,
    margin: float = MARGIN,
    level: float = 0.95,
) -> Contrast:
    """Return how the clusters differ from the whole population, over the draws.

    Parameters
    ----------
    weights : (draw, cluster)
    probabilities : (draw, cluster, level)
    margin : smallest scaled difference that counts.
    level : share of the draws inside the intervals.
    """
    if not margin >= 0:
        raise SettingsError(f"margin is {margin}; give a scaled difference of 0 or more")
    whole = whole_population(weights, probabilities)
    shape = probabilities.shape[1:]
    scaled, lower, upper, above, high, low = (np.empty(shape) for _ in range(6))
    for cluster in range(shape[0]):  # one at a time: all draws of all clusters may be gigabytes
        differs = scaled_difference(probabilities[:, cluster], whole)
        scaled[cluster] = differs.mean(axis=0)
        lower[cluster], upper[cluster] = highest_density_interval(differs, level)
        above[cluster] = (differs > 0).mean(axis=0)
        high[cluster] = (differs > margin).mean(axis=0)
        low[cluster] = (differs < -margin).mean(axis=0)
    return Contrast(whole.mean(axis=0), scaled, lower, upper, above, high, low, margin)


def told_columns(offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which levels to tell of: all but the first of two, which mirrors the second.

    Parameters
    ----------
    offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    (level,)
    """
    told = np.ones(int(offsets[-1]), dtype=bool)
    told[offsets[:-1][np.diff(offsets) == 2]] = False
    return told


def traits(
    found: Contrast,
    levels: Sequence[tuple[str, str]],
    offsets: NDArray[np.int64],
    *,
    probability: float = PROBABILITY,
) -> list[tuple[list[Trait], list[Trait]]]:
    """Return for each cluster the levels that are high and those that are low, clearest first.

    Parameters
    ----------
    levels : (variable, level) of each level column.
    offsets : (variable + 1,), where each variable's levels start.
    probability : that the difference passes the margin, from which a level is told.
    """
    if not 0.5 < probability <= 1:
        raise SettingsError(
            f"probability is {probability}; give one above 0.5, such as 0.95, and at most 1"
        )
    told = told_columns(offsets)

    def side(cluster: int, sure: NDArray[np.float64]) -> list[Trait]:
        columns = np.flatnonzero(told & (sure[cluster] >= probability))
        order = columns[np.argsort(-np.abs(found.scaled[cluster, columns]), kind="stable")]
        return [
            Trait(
                variable=levels[c][0],
                level=levels[c][1],
                column=int(c),
                scaled=float(found.scaled[cluster, c]),
                probability=float(sure[cluster, c]),
            )
            for c in order
        ]

    return [(side(c, found.high), side(c, found.low)) for c in range(len(found.scaled))]


def number_of_clusters(
    weights: NDArray[np.floating], *, at_least: float = SMALL
) -> dict[int, float]:
    """Return the posterior probability of each number of clusters of some size.

    Given the clusters that were found: it says how many of them hold at least a share `at_least` of
    the rows, not whether there are others.

    Parameters
    ----------
    weights : (draw, cluster)
    """
    if not 0 <= at_least < 1:
        raise SettingsError(f"at_least is {at_least}; give a share of the rows from 0 to below 1")
    counts, draws = np.unique((weights >= at_least).sum(axis=1), return_counts=True)
    return {int(count): float(n / len(weights)) for count, n in zip(counts, draws, strict=True)}


def shared_confidence(correspondence: Correspondence) -> NDArray[np.float64] | None:
    """Return how often two local clusters share a group, the least sure or the most doubtful pair.

    On the diagonal, the least of the confidences inside a cluster: where it is low, the cluster may
    be two. Off it, the largest of those across two clusters: where it is high, the two may be one.

    Returns
    -------
    (cluster, cluster), nan on the diagonal where only one local cluster makes up a cluster; None
    where the confidence was not computed.
    """
    confidence = correspondence.confidence
    if confidence is None:
        return None
    groups = np.concatenate(correspondence.groups)
    members = [np.flatnonzero(groups == g) for g in range(correspondence.clusters)]
    shared = np.full((len(members), len(members)), np.nan)
    for a, here in enumerate(members):
        for b, there in enumerate(members[: a + 1]):
            block = confidence[np.ix_(here, there)]
            if a != b:
                shared[a, b] = shared[b, a] = block.max(initial=0.0)
            elif len(here) > 1:
                shared[a, a] = block[np.triu_indices(len(here), k=1)].min()
    return shared


def cluster_map(
    weights: NDArray[np.floating],
    probabilities: NDArray[np.floating],
    offsets: NDArray[np.int64],
) -> ClusterMap | None:
    """Return the clusters on the first two axes of a multiple correspondence analysis.

    The analysis is of the Burt table that the posterior means imply: the joint probability of two
    levels of different variables is Σ_c π_c p_c p_c', since variables are independent inside a
    cluster. So no row is needed, and none is shown. Axes with an eigenvalue above 1/Q, Q the number
    of variables, are associations; Benzécri's correction (Greenacre, 2017, chapter 19) compares
    them.

    Parameters
    ----------
    weights : (draw, cluster)
    probabilities : (draw, cluster, level)
    offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    None where there are fewer than two clusters or variables, or no axis of association. With one
    such axis, as of two clusters, the second has a share of 0 and shows nothing.
    """
    variables = len(offsets) - 1
    if probabilities.shape[1] < 2 or variables < 2:
        return None
    sizes = weights.mean(axis=0, dtype=np.float64)
    profiles = probabilities.mean(axis=0, dtype=np.float64)
    masses = sizes @ profiles / (variables * sizes.sum())
    roots = np.sqrt(np.maximum(masses, np.finfo(float).tiny))
    residuals = _burt(sizes / sizes.sum(), profiles, offsets) / np.outer(roots, roots)
    residuals -= np.outer(roots, roots)
    values, vectors = eigh(residuals)
    strength = np.where(values > 1 / variables + 1e-9, values - 1 / variables, 0.0) ** 2
    if strength[-1] <= 0:
        return None
    axes = vectors[:, :-3:-1]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    columns = axes / roots[:, None]
    draws = probabilities.astype(np.float64) @ columns / variables
    return ClusterMap(draws.mean(axis=0), draws, columns, strength[:-3:-1] / strength.sum())


def _burt(
    sizes: NDArray[np.float64], profiles: NDArray[np.float64], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the Burt table that a mixture implies, divided by Q² to sum to one: (level, level)."""
    table = profiles.T @ (sizes[:, None] * profiles)
    for start, stop in pairwise(offsets):
        table[start:stop, start:stop] = np.diag(sizes @ profiles[:, start:stop])
    return table / (len(offsets) - 1) ** 2
