"""The paper's six cells: our defaults, the paper's preset and the pooled sampler, side by side.

    python reproduction/cells.py --datasets 40          # runs what is missing, appends, prints

Each data set is one line per method in results/cells.csv, written as it is done: stop it at any
time and start it again. Same data set, same numbers. Coverage counts a true cluster that no found
cluster was paired with as missed.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from judging import COVERAGE_COLUMNS, PARTITION_COLUMNS, Found, judge, ratio, share, timed
from running import (
    CELL_KEYS,
    arguments,
    chosen_cells,
    chosen_words,
    done_cases,
    read_lines,
    run_cases,
)
from study import warm_up

import silomix

METHODS = ("default", "paper", "pooled")
FIRST_SEED = 1000
KEYS = [*CELL_KEYS, "seed", "method"]
COLUMNS = [
    *KEYS, *PARTITION_COLUMNS, *COVERAGE_COLUMNS, "seconds", "rounds", "still_moving", "trusted",
]  # fmt: skip


def estimate(method, table, seed):
    """Return what was found, and what the run says of itself."""
    if method == "pooled":
        draws = silomix.sample(table.drop(columns="silo"), seed=seed, threads=1, progress=False)
        local = silomix.local_posterior(draws)
        notes = {"rounds": 0, "still_moving": False, "trusted": draws.diagnostics.trusted}
        clusters = local.partition.clusters
        return Found(local.partition.labels, local.weights, local.probabilities, clusters), notes
    preset = "paper" if method == "paper" else None
    found = silomix.fit(table, silo="silo", preset=preset, seed=seed, threads=1, progress=False)
    diagnostics = found.diagnostics
    notes = {
        "rounds": diagnostics.rounds,
        "still_moving": diagnostics.still_moving,
        "trusted": diagnostics.trusted,
    }
    return Found.of(found), notes


def run_one(design, separability, seed, method):
    """Run one method on one data set: a line of the results."""
    table, truth = silomix.simulate(design, separability=separability, seed=seed)
    (found, notes), seconds = timed(partial(estimate, method, table, seed))
    case = {"design": design, "separability": separability, "seed": seed, "method": method}
    return [case | judge(found, table, truth) | {"seconds": round(seconds, 2)} | notes]


def missing_cases(path, datasets, methods, cells):
    """Return every data set and method that has no line yet, data set by data set."""
    done = done_cases(path, COLUMNS, KEYS)
    cases = [
        (*cell, FIRST_SEED + number, method)
        for number in range(datasets)
        for cell in cells
        for method in methods
    ]
    return [case for case in cases if case not in done]


def summarise(lines):
    """One line per cell and method, with standard errors."""
    rows = []
    for (design, separability, method), part in lines.groupby(
        ["design", "separability", "method"], sort=False
    ):
        gap = part["best_ari"] - part["ari"]
        row = {
            "cell": f"{design} {separability}",
            "method": method,
            "data sets": len(part),
            "right K": (part["clusters"] == part["planted"]).mean(),
            "ARI": part["ari"].mean(),
            "ARI se": part["ari"].std() / np.sqrt(len(part)),
            "below best": gap.mean(),
            "gap se": gap.std() / np.sqrt(len(part)),
            "VI": part["vi"].mean(),
            "CPU s": part["seconds"].mean(),
        }
        for what in ("pi", "p0", "p1", "p2", "p3"):
            row[what], row[f"{what} se"] = share(part, what)
        rows.append(row)
    return pd.DataFrame(rows)


def against_pooled(lines):
    """Coverage of the defaults less the pooled sampler's on the same data sets, cell by cell.

    Standard errors are of the paired difference, clustered by data set.
    """
    keys = ["design", "separability", "seed"]
    ours, pooled = (
        lines[lines["method"] == method].set_index(keys).sort_index()
        for method in ("default", "pooled")
    )
    both = ours.index.intersection(pooled.index)
    rows = []
    for cell, part in ours.loc[both].groupby(["design", "separability"], sort=False):
        other = pooled.loc[part.index]
        row = {"cell": " ".join(cell), "data sets": len(part)}
        for what in ("pi", "p0", "p1", "p2", "p3"):
            more = part[f"{what}_covered"] - other[f"{what}_covered"]
            row[what], row[f"{what} se"] = ratio(more, part[f"{what}_total"])
        rows.append(row)
    return pd.DataFrame(rows)


def main(words=None):
    options = {"methods": "", "cells": ""}
    chosen = arguments(__doc__, datasets=40, **options).parse_args(words)
    path = chosen.results / "cells.csv"
    methods, cells = chosen_words(chosen.methods, METHODS), chosen_cells(chosen.cells)
    cases = missing_cases(path, chosen.datasets, methods, cells)
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs, prepare=warm_up)
    lines = read_lines(path, COLUMNS)
    tables = {
        "cells_summary.csv": summarise(lines),
        "cells_against_pooled.csv": against_pooled(lines),
    }
    for name, table in tables.items():
        with pd.option_context("display.width", 250, "display.max_columns", 30):
            print(f"\n{name}\n{table.round(3).to_string(index=False)}")
        table.round(4).to_csv(path.with_name(name), index=False)


if __name__ == "__main__":
    main()
