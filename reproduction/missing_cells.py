"""What missing cells do to intervals, with the default policy and without.

    python reproduction/missing_cells.py --datasets 20      # runs what is missing, appends

One trip by file, as in `strategies.py`, of the same simulated tables complete and with three cells
in ten missing, each with the same probability. Seeds start at 12000: nothing was tuned on them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from judging import (
    COVERAGE_COLUMNS,
    INNER_BANDS,
    PARTITION_COLUMNS,
    WIDTH_COLUMNS,
    Found,
    judge,
    judge_widths,
    mean_error,
    share,
    timed,
)
from running import CELL_KEYS, RESULTS, arguments, done_cases, read_lines, run_cases
from strategies import BAND_HEADINGS, STRATEGIES, TABLES, overall
from study import warm_up
from writing import as_markdown, with_error

import silomix

FIRST_SEED = 12_000
CELLS = (("nested", "easy"), ("nested", "poor"))
MISSING = (0.0, 0.3)
POLICIES = {name: f"one trip: product, {name}" for name in ("default policy", "open")}
"""By policy, the strategy."""
HEADINGS = {"pi": "π", "p": "all p"} | BAND_HEADINGS
KEYS = [*CELL_KEYS, "missing", "policy", "seed"]
COLUMNS = [*KEYS, *PARTITION_COLUMNS, *COVERAGE_COLUMNS, *WIDTH_COLUMNS, "seconds"]


def without_some(table, part, seed):
    """Return the table with such a part of its cells missing."""
    gone = np.random.default_rng(seed).random(table.shape) < part
    gone[:, table.columns.get_loc("silo")] = False
    return table.mask(gone)


def run_one(design, separability, part, policy, seed):
    """Run one policy on one data set: a line of the results."""
    table, truth = silomix.simulate(design, separability=separability, seed=seed)
    table = without_some(table, part, seed)
    settings = {"seed": seed, "threads": 1, "progress": False} | STRATEGIES[POLICIES[policy]]
    result, seconds = timed(partial(silomix.fit, table, silo="silo", **settings))
    found = Found.of(result)
    case = dict(zip(KEYS, (design, separability, part, policy, seed), strict=True))
    line = judge(found, table, truth) | judge_widths(found, truth)
    return [case | line | {"seconds": round(seconds, 2)}]


def page_of(lines, value):
    """A table of a value of π, p and p by band, (lines, what) -> value and standard error."""
    rows = []
    for (*cell, part, policy), some in lines.groupby([*CELL_KEYS, "missing", "policy"], sort=False):
        row = {"cell": " ".join(cell), "missing": f"{part:.0%}", "policy": policy}
        for what, heading in HEADINGS.items():
            row[heading] = with_error(*value(some, what))
        rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def coverage(lines, what):
    """Return the coverage of π, of p or of a band of p, and its standard error."""
    return overall(lines) if what == "p" else share(lines, what)


def width(lines, what):
    """Return the mean width of the intervals, and its standard error over data sets."""
    bands = INNER_BANDS if what == "p" else [what]
    widths, totals = (
        np.stack([lines[f"{band}_{word}"].to_numpy(dtype=np.float64) for band in bands])
        for word in ("width", "total")
    )
    return mean_error(pd.Series(np.nansum(widths * totals, axis=0) / totals.sum(axis=0)))


def main(words=None):
    chosen = arguments(__doc__, datasets=20).parse_args(words)
    path = chosen.results / "missing_cells.csv"
    done = done_cases(path, COLUMNS, KEYS)
    seeds = range(FIRST_SEED, FIRST_SEED + chosen.datasets)
    cases = [
        (*cell, part, policy, seed)
        for seed in seeds
        for cell in CELLS
        for part in MISSING
        for policy in POLICIES
    ]
    missing = [case for case in cases if case not in done]
    run_cases(path, COLUMNS, run_one, missing, chosen.jobs, prepare=warm_up)
    lines = read_lines(path, COLUMNS)
    pages = {"missing-coverage": page_of(lines, coverage), "missing-widths": page_of(lines, width)}
    for name, page in pages.items():
        print(page)
        if chosen.results == RESULTS:
            (TABLES / f"{name}.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
