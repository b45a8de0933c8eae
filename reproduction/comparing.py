"""Our figures beside the published ones: a line for each cell, method and quantity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from judging import BANDS, INNER_BANDS, mean_error, ratio, share
from running import CELL_KEYS, CELLS
from study import METHODS

PUBLISHED = Path(__file__).with_name("published.csv")
PUBLISHED_DATASETS = 100
STUDY_METHODS = {
    "Fed K-modes": "fed-kmodes",
    "FedMerDel": "fedmerdel",
    "VCMC": "paper",
    "Full MCMC": "pooled-paper",
}
"""The paper's names in tables 3 to 5, and ours."""
MATCHINGS = {"Hungarian": "hungarian", "Minimum divergence": "divergence", "Ball": "ball"}
"""The paper's names in tables 2 and 9, and ours."""
PARAMETERS = ("pi", *INNER_BANDS)
NOT_RIVALS = ("default", "no-polish", "pooled", "pooled-paper")
"""What the defaults are not compared with as a federated rival."""


def measure(lines, quantity):
    """Return the mean of a quantity over data sets, and its standard error.

    `quantity` is a column, or as in published.csv: pi1_bias, p0_coverage and so on, intervals being
    equal-tailed there.
    """
    name, _, part = quantity.partition("_")
    if name in BANDS:
        over, under = ("bias", "biased") if part == "bias" else ("tails", "total")
        known = lines[[f"{name}_{over}", f"{name}_{under}"]].dropna().to_numpy(dtype=np.float64)
        return ratio(known[:, 0], known[:, 1])
    column = {"right": "matched_right"}.get(quantity, quantity.replace("_coverage", "_tails"))
    return mean_error(lines[column])


def compare(lines, tables, names, column="method"):
    """Return the published lines of some tables with our figures beside them.

    Parameters
    ----------
    lines : results, a line for each data set.
    tables : numbers, as words.
    names : from the paper's names to ours, which are in `column` of the lines.

    Notes
    -----
    Where the paper gives no standard deviation, ours stands in for it: its error is that of a
    hundred data sets.
    """
    published = pd.read_csv(PUBLISHED, dtype={"table": str})
    parts = dict(iter(lines.groupby([*CELL_KEYS, column])))
    rows = []
    for line in published[published["table"].isin(tables)].itertuples(index=False):
        part = parts.get((line.design, line.separability, names[line.method]), lines[:0])
        value, error = measure(part, line.quantity) if len(part) else (np.nan, np.nan)
        spread = line.sd if np.isfinite(line.sd) else error * np.sqrt(len(part))
        their_error = spread / np.sqrt(PUBLISHED_DATASETS)
        rows.append(
            {
                "table": line.table,
                "cell": f"{line.design} {line.separability}",
                "method": line.method,
                "quantity": line.quantity,
                "data sets": len(part),
                "published": line.value,
                "ours": value,
                "ours se": error,
                "difference": value - line.value,
                "difference se": np.hypot(error, their_error),
            }
        )
    return pd.DataFrame(rows)


def in_cell(lines, design, separability):
    """Return the lines of one cell."""
    return lines[(lines["design"] == design) & (lines["separability"] == separability)]


def agrees(line, errors=3.0, margin=0.03):
    """Tell whether a difference is within three standard errors, or small."""
    return abs(line["difference"]) <= max(errors * line["difference se"], margin)


def summarise(lines):
    """Return a line for each cell and method: clusters, agreement, coverage, cost."""
    rows = []
    for cell in CELLS:
        for method, part in by_method(in_cell(lines, *cell)):
            right = (part["clusters"] == part["planted"]).astype(float)
            row = {"cell": " ".join(cell), "method": method, "data sets": len(part)}
            gap = part["best_ari"] - part["ari"]
            values = {"right K": right, "K": part["clusters"], "ARI": part["ari"]}
            values |= {"below best": gap, "VI": part["vi"], "CPU s": part["seconds"]}
            for name, value in values.items():
                row[name], row[f"{name} se"] = mean_error(value)
            row["kB"] = part["bytes"].mean() / 1000
            for what in PARAMETERS:
                row[what], row[f"{what} se"] = share(part, what)
            rows.append(row)
    return pd.DataFrame(rows)


def by_method(lines):
    """Yield each method that has lines, in the order of the study, and its lines."""
    for method in METHODS:
        part = lines[lines["method"] == method]
        if len(part):
            yield method, part


def pair_up(lines, one, other):
    """Return the lines of two methods on the data sets that both have, in the same order."""
    keys = [*CELL_KEYS, "seed"]
    a, b = (lines[lines["method"] == name].set_index(keys).sort_index() for name in (one, other))
    both = a.index.intersection(b.index)
    return a.loc[both], b.loc[both]


def paired_coverage(lines, one, other, what):
    """Return the difference of two methods' coverage on the same data sets, and its error."""
    a, b = pair_up(lines, one, other)
    column = f"{what}_covered"
    return ratio((a[column] - b[column]).to_numpy(float), a[f"{what}_total"].to_numpy(float))


def against_rivals(lines):
    """Return, by cell, the best federated rival, and the defaults' ARI less its, paired."""
    rows = []
    for cell in CELLS:
        part = in_cell(lines, *cell)
        means = part[~part["method"].isin(NOT_RIVALS)].groupby("method")["ari"].mean()
        if not len(means) or "default" not in set(part["method"]):
            continue
        best = means.idxmax()
        ours, theirs = pair_up(part, "default", best)
        rows.append((" ".join(cell), best, *mean_error(ours["ari"] - theirs["ari"])))
    return rows


def gains(lines):
    """Return the defaults' ARI less each other method's, on the same data sets, by cell.

    A line for each method: (method, {cell: (difference, standard error)}).
    """
    found = []
    for method, _ in by_method(lines):
        if method != "default":
            by_cell = {}
            for cell in CELLS:
                ours, theirs = pair_up(in_cell(lines, *cell), "default", method)
                if len(ours):
                    by_cell[" ".join(cell)] = mean_error(ours["ari"] - theirs["ari"])
            found.append((method, by_cell))
    return found
