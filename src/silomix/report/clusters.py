"""The clusters: how large, what is typical of each, how many, and where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.metrics import highest_density_interval
from silomix.posterior.characterise import (
    SMALL,
    cluster_map,
    least_confidence,
    nearly_same,
    number_of_clusters,
)
from silomix.report.drawing import bar, map_chart
from silomix.report.records import (
    INTERVAL,
    Cell,
    Picture,
    Table,
    cells,
    decimal,
    interval,
    percent,
    probability,
    signed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.posterior import Posterior
    from silomix.posterior.characterise import ClusterMap, Trait

SHOWN_TRAITS = 5
"""Levels shown on each side of a cluster; the others are folded away."""
MOST_TRAITS = 50
"""Levels told on each side, folded or not; the others are counted."""
MOST_DOUBTS = 20
DOUBTFUL = 0.05
"""Probability from which it is told that a cluster may be two."""


def sizes_table(posterior: Posterior, rows: int | None) -> Table:
    """Return the clusters' shares of all rows, with intervals and, where known, rows."""
    lower, upper = highest_density_interval(posterior.weights, INTERVAL)
    means = posterior.weights.mean(axis=0, dtype=np.float64)
    top = max(float(upper.max()), 1e-9)
    labelled = (
        None
        if posterior.assignment is None
        else np.bincount(posterior.labels, minlength=posterior.n_clusters)
    )
    heads = ["cluster", "share", f"{INTERVAL:.0%} interval", "expected rows", "rows labelled", ""]
    lines = [
        cells(
            str(cluster),
            percent(mean),
            interval(low, high),
            "" if rows is None else f"{mean * rows:,.0f}",
            "" if labelled is None else f"{labelled[cluster]:,}",
            bar(mean / top, low / top, high / top),
        )
        for cluster, (mean, low, high) in enumerate(zip(means, lower, upper, strict=True))
    ]
    keep = [True, True, True, rows is not None, labelled is not None, True]
    return Table(
        "Each cluster's share of the rows of all silos",
        tuple(head for head, kept in zip(heads, keep, strict=True) if kept),
        tuple(tuple(cell for cell, kept in zip(line, keep, strict=True) if kept) for line in lines),
    )


def traits_table(
    found: Sequence[tuple[list[Trait], list[Trait]]], means: NDArray[np.float64], draws: int
) -> Table:
    """Return which levels are high and low in each cluster.

    Parameters
    ----------
    found : for each cluster, high and low.
    means : (cluster, level), posterior mean probabilities.
    draws : that the probabilities of a difference rest on.
    """
    rows = tuple(
        cells(
            str(cluster),
            _listing(high, means[cluster]),
            _listing(low, means[cluster]),
            _least(high + low, draws),
        )
        for cluster, (high, low) in enumerate(found)
    )
    heads = (
        "cluster",
        "higher than in the whole",
        "lower than in the whole",
        "least sure of these",
    )
    return Table("What sets each cluster apart", heads, rows, frozenset({0, 1, 2}))


def _listing(side: Sequence[Trait], means: NDArray[np.float64]) -> Cell:
    told = [
        f"{trait.variable} = {trait.level} ({percent(means[trait.column])}, {signed(trait.scaled)})"
        for trait in side[:MOST_TRAITS]
    ]
    untold = len(side) - MOST_TRAITS
    folded = [*told[SHOWN_TRAITS:], *([f"and {untold} others"] if untold > 0 else [])]
    return Cell(
        "\n".join(told[:SHOWN_TRAITS]) or "nothing specific",
        folded=tuple(folded),
        more=f"{len(side) - SHOWN_TRAITS} more",
    )


def _least(both: Sequence[Trait], draws: int) -> str:
    return probability(min(t.probability for t in both), draws) if both else ""


def number_table(posterior: Posterior) -> Table:
    """Return the posterior of the number of clusters of some size, among those found."""
    found = number_of_clusters(posterior.weights)
    return Table(
        f"How many of the clusters found hold at least {SMALL:.0%} of all rows",
        ("clusters", "probability", ""),
        tuple(
            cells(str(count), probability(share, posterior.n_draws), bar(share))
            for count, share in found.items()
        ),
    )


def local_numbers_table(posterior: Posterior) -> Table | None:
    """Return how many clusters the silos found on their own; None if they did not look."""
    match = posterior.correspondence
    if match is None:
        return None
    counts, silos = np.unique([len(group) for group in match.groups], return_counts=True)
    return Table(
        "How many clusters the silos found on their own rows",
        ("clusters found", "silos", ""),
        tuple(
            cells(str(count), str(n), bar(n / len(match.silos)))
            for count, n in zip(counts, silos, strict=True)
        ),
    )


def pairs_table(posterior: Posterior) -> Table | None:
    """Return the pairs of clusters that may be one; None if there are none."""
    pairs = nearly_same(
        posterior.correspondence, posterior.probabilities, posterior.study.table_schema.offsets
    )
    if not pairs:
        return None
    return Table(
        "Clusters that may be one",
        ("clusters", "probability that they are one", "overlap of their profiles"),
        tuple(
            cells(f"{pair.a} and {pair.b}", decimal(pair.probability), decimal(pair.overlap))
            for pair in pairs[:MOST_DOUBTS]
        ),
    )


def splits_table(posterior: Posterior) -> Table | None:
    """Return the clusters that may be two, by the matching's confidence; None if unknown."""
    match = posterior.correspondence
    least = None if match is None else least_confidence(match)
    if least is None:
        return None
    doubt = 1 - least  # nan where only one local cluster makes up a cluster
    doubted = [c for c in np.argsort(-doubt, kind="stable") if doubt[c] >= DOUBTFUL]
    return Table(
        "Clusters that may be two",
        ("cluster", "how often its least sure pair was apart"),
        tuple(cells(str(cluster), decimal(doubt[cluster])) for cluster in doubted[:MOST_DOUBTS]),
    )


def map_picture(posterior: Posterior) -> tuple[Picture, Table] | None:
    """Return the clusters in the plane, and the levels at the axes' ends; None if there is none."""
    offsets = posterior.study.table_schema.offsets
    found = cluster_map(posterior.weights, posterior.probabilities, offsets)
    if found is None:
        return None
    shares = posterior.weights.mean(axis=0, dtype=np.float64)
    caption = (
        f"Clusters by multiple correspondence analysis. Axis 1 carries {percent(found.shares[0])} "
        f"of the association between variables, axis 2 {percent(found.shares[1])}. A disc grows "
        "with its cluster's share of the rows; the ellipse around its middle holds about 95% of "
        "the draws."
    )
    table = Table(
        "Where the clusters lie",
        ("cluster", "axis 1", "axis 2"),
        tuple(
            cells(str(cluster), signed(x), signed(y))
            for cluster, (x, y) in enumerate(found.centres)
        ),
    )
    return Picture(map_chart(found, shares, caption), caption, table), _ends(posterior, found)


def _ends(posterior: Posterior, found: ClusterMap) -> Table:
    """Return the levels that make each axis: mass times squared coordinate, at either end."""
    sizes = posterior.weights.mean(axis=0, dtype=np.float64)
    masses = sizes @ posterior.probabilities.mean(axis=0, dtype=np.float64)
    rows = []
    for axis in range(2):
        pull = masses * found.columns[:, axis] ** 2 * np.sign(found.columns[:, axis])
        order = np.argsort(pull)
        low = [place for place in order[:3] if pull[place] < 0]
        high = [place for place in order[::-1][:3] if pull[place] > 0]
        rows.append(cells(f"axis {axis + 1}", *(_names(posterior, end) for end in (low, high))))
    heads = ("axis", "its negative end", "its positive end")
    return Table(
        "Levels that contribute most to each axis", heads, tuple(rows), frozenset({0, 1, 2})
    )


def _names(posterior: Posterior, places: Sequence[int]) -> str:
    return "; ".join(f"{posterior.levels[p][0]} = {posterior.levels[p][1]}" for p in places)
