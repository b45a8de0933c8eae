"""The page's sections on how large the clusters are, and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.model.metrics import INTERVAL
from silomix.model.sentences import listing, number, percent, plural
from silomix.posterior.characterise import SMALL, nearest_pairs, nearly_same
from silomix.report.display import Cell, Table, bar, make_table
from silomix.report.run_sections import rows_by_silo

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from silomix.kernels.arrays import Floats
    from silomix.posterior import Posterior
    from silomix.posterior.global_posterior import Assignment

# Probability from which a row's cluster is called sure.
SURE = 0.9
# Probability from which nobody doubts that a cluster is one.
SETTLED = 0.995
# Pairs of clusters that are listed: those nearest to being one.
MOST_PAIRS = 5


def sizes_frame(posterior: Posterior) -> pd.DataFrame:
    """Return one line per cluster: its share of all rows, and how many rows are labelled so."""
    sizes: pd.DataFrame = posterior.cluster_sizes(INTERVAL, frame_like="pandas")
    if posterior.assignment is not None:
        rows = np.bincount(posterior.labels, minlength=len(sizes))
        sizes.insert(list(sizes).index("mean"), "rows", rows)
    return sizes


def sure_rows(rows: Assignment) -> tuple[float, Floats]:
    """Return the share of rows whose cluster has a probability of `SURE` or more, of all and by it.

    Of clusters, (cluster,), it is among the rows that are labelled so; nan where there are none.
    """
    clusters = rows.membership.shape[1]
    # kept in single precision, to four decimals
    sure = rows.membership.max(axis=1) > SURE - 1e-5
    counts = np.bincount(rows.labels, minlength=clusters)
    with np.errstate(invalid="ignore"):
        return float(sure.mean()), np.bincount(rows.labels, sure, clusters) / counts


def sizes_table(posterior: Posterior) -> Table:
    """Return the clusters' shares of all rows, with intervals and, where known, rows."""
    sizes, silo_rows = sizes_frame(posterior), rows_by_silo(posterior)
    match, names = posterior.correspondence, posterior.cluster_names
    near: list[list[str]] = [[] for _ in names]
    for a, b, *_ in nearly_same(match, posterior.profile_draws, posterior.family):
        near[a].append(names[b])
        near[b].append(names[a])
    scaled = sizes[["mean", "lower", "upper"]] / sizes["upper"].max()
    intervals = sizes["lower"].map(percent) + " to " + sizes["upper"].map(percent)
    notes = [f"nearly {listing(others, 3)}" if others else "" for others in near]
    columns: dict[str, Any] = {"cluster": [*map(Cell, names, [""] * len(names), notes)]}
    if posterior.assignment is not None:
        columns["rows labelled"] = sizes["rows"].map("{:,}".format)
        columns["of them sure"] = [percent(share) for share in sure_rows(posterior.assignment)[1]]
    columns["share"] = sizes["mean"].map(percent)
    columns[f"{INTERVAL:.0%} interval"] = intervals
    if silo_rows is not None:
        columns["expected rows"] = (sizes["mean"] * sum(silo_rows)).map("{:,.0f}".format)
    columns[""] = [bar(*line) for line in scaled.to_numpy()]
    return make_table("Each cluster's share of the rows of all silos", columns)


def number_sentences(posterior: Posterior) -> Iterator[str]:
    """Yield what speaks for this number of clusters, and for one fewer and one more."""
    match, names = posterior.correspondence, posterior.cluster_names
    small = int((posterior.weights.mean(axis=0, dtype=np.float64) < SMALL).sum())
    many = plural(len(names), "cluster")
    yield f"{many}, {small or 'none'} of them with less than {SMALL:.0%} of all rows."
    pairs = nearest_pairs(match, posterior.profile_draws, posterior.family)
    for a, b, one, overlap in pairs[:1]:
        sure = "" if np.isnan(one) else f"the probability that they are one is {one:.2f}, "
        yield (
            f"One fewer: clusters {names[a]} and {names[b]} are the closest to being one; {sure}"
            f"their profiles overlap by {overlap:.2f}."
        )
    if match is None or match.confidence is None:
        yield "One more: the probability that a cluster is really two was not computed."
        return
    # a cluster that was found in one piece cannot be two
    pieces = np.array([[(group == c).sum() for c in range(len(names))] for group in match.groups])
    together = np.where(pieces.sum(axis=0) > 1, match.cluster_confidence(), 1.0)
    least = int(together.argmin())
    if together[least] >= SETTLED:
        yield "One more: the silos' parts of each cluster clearly belong together."
    else:
        split = plural(int((pieces[:, least] > 1).sum()), "silo")
        yield (
            f"One more: cluster {names[least]} is the most likely to be two; the probability that "
            f"the silos' parts of it belong together is {together[least]:.2f}, and {split} found "
            "it in pieces."
        )


def pairs_table(posterior: Posterior) -> Table:
    """Return the pairs of clusters that are nearest to being one."""
    match, names = posterior.correspondence, posterior.cluster_names
    pairs = nearest_pairs(match, posterior.profile_draws, posterior.family)[:MOST_PAIRS]
    columns: dict[str, Any] = {
        "clusters": [f"{names[a]} and {names[b]}" for a, b, *_ in pairs],
        "probability that they are one": [number(one) for _, _, one, _ in pairs],
        "overlap of their profiles": [f"{overlap:.2f}" for *_, overlap in pairs],
    }
    if match is not None:  # silos that told the two apart on their own rows
        both = [int(match.held[:, [a, b]].all(axis=1).sum()) for a, b, *_ in pairs]
        columns["silos that found both"] = both
    return make_table("The pairs of clusters that are closest to being one", columns)
