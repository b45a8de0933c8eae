"""Rivals on numbers: our defaults against each of them on the Gaussian cells.

    python reproduction/number_rivals.py --datasets 20   # runs what is missing, prints
    python reproduction/number_rivals.py --datasets 2 --cells "nested poor" --methods default,snob
    python reproduction/number_rivals.py --datasets 8 --tables 10-correlated

Ten independent variables, as `silomix.simulate` draws them, and two or ten that are correlated
within a cluster. There every method that has a likelihood is given covariances, the kind
"gaussian-full"; `fed-kmeans` has none, and finds round clusters of one size. It alone is told the
number of clusters. `pooled` sees all rows, and no silos. `product` takes the draws of `snob`, whose
silos have the whole prior, and counts it once. Whatever samples does so for as long as its chains
need, 20,000 sweeps of 4,000 rows at most, or 5,000 with covariances (of 2,000 rows in two
dimensions); rivals, which no polish follows, until their traces have mixed. Times are CPU seconds
on one thread, as if each method had run alone: see `sharing.py`. A data set and method is a line in
results/number_rivals.csv; seeds start at 45000.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
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
from silomix.families.gaussian_full import outer, pack, with_diagonal
from silomix.model.metrics import adjusted_rand_index
from silomix.model.table import infer_schema
from silomix.simulate import CENTRE, NARROWEST, TYPICAL, WIDEST

FIRST_SEED = 45_000
ITERATIONS, ROWS = 20_000, 4000
STREAM = 0x636F72
# As `MEAN_SPREADS`, by dimensions: the true parameters reach an adjusted Rand index of .95 to .98,
# or of .65 to .80, on average.
SPREADS = {2: {"easy": 9.0, "poor": 3.0}, 10: {"easy": 1.0, "poor": 0.4}}


def correlated(dimensions, design, *, separability, rows, seed):
    """Draw a table of variables that are jointly normal within a cluster, and its truth.

    Silos, weights and labels are those of `silomix.simulate`. A cluster's correlations are those of
    a Wishart matrix with twice as many degrees of freedom as it has rows.
    """
    given = {"variables": "gaussian", "separability": separability}
    cells, truth = silomix.simulate(design, rows=rows, seed=seed, **given)
    rng = np.random.default_rng([seed, STREAM, dimensions])
    shape = len(truth.weights), dimensions
    spread = SPREADS[dimensions][separability]
    means = rng.normal(CENTRE, spread * TYPICAL, shape)
    sds = TYPICAL * rng.uniform(NARROWEST, WIDEST, shape)
    factors = rng.standard_normal((*shape, 2 * dimensions))
    factors *= (sds / np.linalg.norm(factors, axis=2))[:, :, None]
    covariances = factors @ factors.swapaxes(1, 2)
    roots = np.linalg.cholesky(covariances)[truth.labels]
    x = means[truth.labels] + np.einsum("ijk,ik->ij", roots, rng.standard_normal(roots.shape[:2]))
    table = pd.DataFrame(x, columns=[f"x{q + 1}" for q in range(dimensions)])
    table.insert(0, "silo", cells["silo"])
    shared = pack(means, with_diagonal(covariances / outer(sds), sds))
    by_silo = np.tile(shared, (len(truth.silos), 1, 1))
    kinds = dict.fromkeys(table.columns.drop("silo"), "gaussian-full")
    return table, replace(truth, probabilities=shared, probabilities_by_silo=by_silo, kinds=kinds)


TABLES = {
    "10-independent": partial(silomix.simulate, variables="gaussian"),
    "2-correlated": partial(correlated, 2),
    "10-correlated": partial(correlated, 10),
}
"""Dimensions, and how they vary within a cluster: a table and its truth, which says the kinds."""
PARTS = {"10-independent": (1, 1), "2-correlated": (4, 2), "10-correlated": (4, 1)}
"""What sweeps and rows are divided by: covariances take longer."""
blocks = partial(rival, rivals.block_gibbs, adaptive=True)
GROUPS = (
    {"default": ours},
    {"pooled": partial(rival, rivals.pooled_mcmc, adaptive=True)},
    {
        "snob": partial(blocks, odds="dirichlet-process"),
        "sign": partial(blocks, odds="pitman-yor"),
        "discgs": partial(blocks, odds="discgs"),
        "product": partial(rival, rivals.product, adaptive=True, fractionate=False),
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
    iterations, rows = iterations // PARTS[table][0], rows // PARTS[table][1]
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
        for table in chosen_words(chosen.tables, TABLES):
            for cell in chosen_cells(chosen.cells):
                for group in GROUPS:
                    data = (table, *cell, seed)
                    todo = [name for name in group if name in methods and (*data, name) not in done]
                    if todo:
                        cases.append((*data, tuple(todo), chosen.iterations, chosen.rows))
    return cases


def warm_up():
    """Compile every kernel, so that no time has it."""
    for table in TABLES:
        run_group(table, "nested", "easy", 0, METHODS, 200, 200)


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
    options = {"tables": "", "cells": "", "methods": "", "iterations": ITERATIONS, "rows": ROWS}
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
