"""Our figures beside the published ones: a line for each cell, method and quantity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from judging import BANDS, INNER_BANDS, mean_error, ratio, share
from running import CELL_KEYS, CELLS
from study import FIRST_SEED, METHODS

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
"""What the defaults' coverage is held to the pooled sampler's in."""
ROUNDING = 1e-9
"""What a difference of printed decimals may miss a limit by."""
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
    """
    published = pd.read_csv(PUBLISHED, dtype={"table": str})
    parts = dict(iter(lines.groupby([*CELL_KEYS, column])))
    rows = []
    for line in published[published["table"].isin(tables)].itertuples(index=False):
        part = parts.get((line.design, line.separability, names[line.method]), lines[:0])
        value, error = measure(part, line.quantity) if len(part) else (np.nan, np.nan)
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
                "difference se": difference_error(line, part, value, error),
            }
        )
    return pd.DataFrame(rows)


def less_full(lines, method, quantity):
    """Return a method's figure of table 3 less full MCMC's, the paper's and ours, by cell.

    Both run on the same data sets, here and in the paper, so what makes one set of a hundred harder
    than another falls out. The spread of our differences stands in for the paper's.
    """
    published = pd.read_csv(PUBLISHED, dtype={"table": str}).query("table == '3'")
    published = published.set_index([*CELL_KEYS, "quantity", "method"])["value"]
    rows = []
    for cell in CELLS:
        known = pair_up(in_cell(lines, *cell), STUDY_METHODS[method], STUDY_METHODS["Full MCMC"])
        value, error = mean_error(known[0][quantity] - known[1][quantity])
        theirs = published[(*cell, quantity, method)] - published[(*cell, quantity, "Full MCMC")]
        rows.append(
            {
                "cell": " ".join(cell),
                "quantity": quantity,
                "published": round(theirs, 3),
                "ours": value,
                "difference": value - theirs,
                "difference se": error * np.sqrt(1 + len(known[0]) / PUBLISHED_DATASETS),
            }
        )
    return pd.DataFrame(rows)


def difference_error(published, lines, value, error):
    """Return the standard error of our figure less the published one, were they of one kind.

    The spread between data sets is pooled over both sides: that of ours alone would be nothing
    where a few data sets happen to agree. Where the paper gives none, ours stands in for it.

    Parameters
    ----------
    published : a line of published.csv.
    lines : our data sets.
    value, error : our figure, and its own standard error.
    """
    sets, theirs = len(lines), PUBLISHED_DATASETS
    if sets == 0:
        return np.nan
    by_size = np.sqrt(1 / sets + 1 / theirs)
    name, _, part = published.quantity.partition("_")
    if published.quantity == "right" or part == "coverage":
        rate = (sets * value + theirs * published.value) / (sets + theirs)
        # values of one data set are not independent: at least the error that they show
        each = lines[f"{name}_total"].mean() if name in BANDS else 1.0
        chance = np.sqrt(rate * (1 - rate) / each)
        shown = error * np.sqrt(sets) if name in BANDS else 0.0
        return max(chance, shown) * by_size
    own = error * np.sqrt(sets)
    other = published.sd if np.isfinite(published.sd) else own
    return np.sqrt((sets * own**2 + theirs * other**2) / (sets + theirs)) * by_size


def first_hundred(lines):
    """Return the lines of the data sets that every method has, as many as in the paper."""
    return lines[lines["seed"] < FIRST_SEED + PUBLISHED_DATASETS]


def in_cell(lines, design, separability):
    """Return the lines of one cell."""
    return lines[(lines["design"] == design) & (lines["separability"] == separability)]


def agrees(line, errors=3.0):
    """Tell whether a difference is within three standard errors, or too small to matter.

    That is .03, but for relative biases: many are smaller than that themselves, so only the
    published figure's own rounding is forgiven.
    """
    margin = last_digit(line["published"]) / 2 if line["quantity"].endswith("_bias") else 0.03
    limit = max(errors * line["difference se"], margin)
    return abs(line["difference"]) <= limit + ROUNDING


def last_digit(published):
    """Return the worth of the last digit of a figure printed with three decimals, or as 2e7."""
    return 0.001 if abs(published) < 100 else 10.0 ** np.floor(np.log10(abs(published)))


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
            for what in ("pi", *BANDS):
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
    rivals = [(method, by_cell) for method, by_cell in gains(lines) if method not in NOT_RIVALS]
    rows = []
    for cell in map(" ".join, CELLS):
        found = {method: by_cell[cell] for method, by_cell in rivals if cell in by_cell}
        if found:
            best = min(found, key=lambda method: found[method][0])
            rows.append((cell, best, *found[best]))
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
