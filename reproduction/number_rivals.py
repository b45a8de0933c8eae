"""Rivals on numbers: our defaults against each of them on the Gaussian cells.

    python reproduction/number_rivals.py --datasets 20   # runs what is missing, prints
    python reproduction/number_rivals.py --datasets 2 --cells "nested poor" --methods default,snob

`fed-kmeans` is told the number of clusters; the others find it. Whatever samples does so for as
long as its chains need, 20,000 sweeps at most; rivals, which no polish follows, until their traces
have mixed. Times are CPU seconds on one thread, as if each method had run alone: see `sharing.py`.
A table's line in `TABLES` says how it is simulated, so other dimensions and covariances are another
line. A data set and method is a line in results/number_rivals.csv; seeds start at 45000.
"""

from __future__ import annotations

from functools import partial

import pandas as pd
from judging import Found, judge_partition, mean_error, quietly
from number_cells import best_labels
from running import (
    CELL_KEYS,
    arguments,
    chosen_cells,
    chosen_words,
    done_cases,
    in_cell_order,
    keep_apart,
    read_lines,
    run_cases,
)
from sharing import shared_sampling
from study import ours, rival, unsampled

import silomix
from silomix import rivals
from silomix.model.metrics import adjusted_rand_index
from silomix.model.table import infer_schema

FIRST_SEED = 45_000
ITERATIONS, ROWS = 20_000, 4000
TABLES = {"ten, alone": partial(silomix.simulate, variables="gaussian")}
"""Dimensions, and how they vary within a cluster: a table and its truth, which says the kinds."""
blocks = partial(rival, rivals.block_gibbs, adaptive=True)
GROUPS = (
    {"default": ours},
    {"pooled": partial(rival, rivals.pooled_mcmc, adaptive=True)},
    {
        "snob": partial(blocks, odds="dirichlet-process"),
        "sign": partial(blocks, odds="pitman-yor"),
        "discgs": partial(blocks, odds="discgs"),
    },
    {"fed-kmeans": partial(unsampled, rivals.fed_kmeans, known=True)},
)
"""Methods that sample the silos alike are in one group, and are run together."""
METHODS = {name: run for group in GROUPS for name, run in group.items()}
RIVALS = [name for name in METHODS if name != "default"]
DATA_KEYS = ["table", *CELL_KEYS, "seed"]
KEYS = [*DATA_KEYS, "method"]
COLUMNS = [*KEYS, "planted", "clusters", "ari", "vi", "best_ari", "seconds", "bytes"]


def run_group(table, design, separability, seed, methods, iterations=ITERATIONS, rows=ROWS):
    """Run methods of one group on one data set: a line for each."""
    cells, truth = TABLES[table](design, separability=separability, rows=rows, seed=seed)
    case = dict(zip(DATA_KEYS, (table, design, separability, seed), strict=True))
    schema = infer_schema(cells, silo="silo", kinds=truth.kinds)
    best = best_labels(cells, silomix.make_study(schema, truth.silos), truth)
    case["best_ari"] = round(adjusted_rand_index(truth.labels, best), 5)
    common = {"iterations": iterations, "seed": seed, "threads": 1, "kinds": truth.kinds}
    lines = []
    with shared_sampling() as sampled:
        for name in methods:
            sampled.start()
            method = partial(METHODS[name], cells, len(truth.weights), common)
            found, seconds, sent, _ = quietly(method)
            line = judge_partition(
                Found(found.labels, found.weights, None, found.n_clusters), truth
            )
            line["seconds"] = round(sum(seconds.values()) + sampled.saved, 2)
            line["bytes"] = max(sum(kinds.values()) for kinds in sent.values())
            lines.append(case | {"method": name} | line)
    return lines


def missing_cases(path, chosen):
    """Return a case for each data set and group of which methods have no line yet."""
    done = done_cases(path, COLUMNS, KEYS)
    methods = chosen_words(chosen.methods, METHODS)
    cases = []
    for seed in range(FIRST_SEED, FIRST_SEED + chosen.datasets):
        for table in TABLES:
            for cell in chosen_cells(chosen.cells):
                for group in GROUPS:
                    data = (table, *cell, seed)
                    todo = [name for name in group if name in methods and (*data, name) not in done]
                    if todo:
                        cases.append((*data, tuple(todo), chosen.iterations, chosen.rows))
    return cases


def warm_up():
    """Compile every kernel, so that no time has it."""
    run_group(next(iter(TABLES)), "nested", "easy", 0, METHODS, 200, 200)


def summarise(lines):
    """One line for each cell and method: the defaults' index less its own, paired."""
    rows = []
    for (table, *cell, method), part in lines.groupby(["table", *CELL_KEYS, "method"]):
        ours = lines[lines["method"] == "default"].set_index(DATA_KEYS)["ari"]
        gain, error = mean_error((ours - part.set_index(DATA_KEYS)["ari"]).dropna())
        means = part[["ari", "best_ari", "clusters", "seconds"]].mean()
        row = {"table": table, "cell": " ".join(cell), "method": method, "sets": len(part)}
        row |= {**means, "right K": (part["clusters"] == part["planted"]).mean()}
        if method != "default":
            # without an error, from a single data set, nothing is said
            met = "yes" if gain >= -2 * error else "no" if error >= 0 else ""
            row |= {"ours less its": gain, "se": error, "met": met}
        rows.append(row)
    return in_cell_order(pd.DataFrame(rows))


def main(words=None):
    options = {"cells": "", "methods": "", "iterations": ITERATIONS, "rows": ROWS}
    chosen = arguments(__doc__, datasets=20, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS, rows=ROWS)
    path = chosen.results / "number_rivals.csv"
    cases = missing_cases(path, chosen)
    run_cases(path, COLUMNS, run_group, cases, chosen.jobs, prepare=warm_up)
    lines = read_lines(path, COLUMNS)
    if len(lines):
        with pd.option_context("display.width", 250, "display.max_columns", 40):
            print(summarise(lines).round(3).to_string(index=False, na_rep=""))
        print("target: our defaults not below any rival by two paired errors in any cell")


if __name__ == "__main__":
    main()
