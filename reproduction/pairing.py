"""How true and found clusters are paired, and what that does to the paper's tables 4 and 5.

    python reproduction/pairing.py --datasets 100        # runs what is missing, appends

The paper does not say how. Here "one to one" is what all our tables have; "largest overlap" gives
each true cluster the found one that shares the most rows with it, so one may serve two. The methods
that need no sampling, on the data sets of `study.py`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from judging import PARAMETER_COLUMNS, Found, judge_draws, quietly
from running import CELL_KEYS, arguments, chosen_cells, done_cases, keep_apart, run_cases
from study import FIRST_SEED, METHODS, ROWS

import silomix
from silomix.model.metrics import pair_clusters

CHEAP = ("fedmerdel", "fed-kmodes")
KEYS = [*CELL_KEYS, "seed", "method", "pairing"]
COLUMNS = [*KEYS, *PARAMETER_COLUMNS]


def largest_overlap(true_labels, labels, *, true_clusters, clusters):
    """Return for each true cluster the found one that shares the most rows with it."""
    shared = np.zeros((true_clusters, clusters), dtype=np.int64)
    np.add.at(shared, (true_labels, labels), 1)
    return shared.argmax(axis=1)


PAIRINGS = {"one to one": pair_clusters, "largest overlap": largest_overlap}


def run_one(design, separability, seed, method, rows=None):
    """Run one method on one data set: a line for each pairing."""
    table, truth = silomix.simulate(design, separability=separability, rows=rows, seed=seed)
    common = {"seed": seed, "threads": 1}
    result = quietly(partial(METHODS[method], table, len(truth.weights), common))[0]
    case = {"design": design, "separability": separability, "seed": seed, "method": method}
    return [
        case | {"pairing": pairing} | judge_draws(Found.of(result), truth, pair)
        for pairing, pair in PAIRINGS.items()
    ]


def main(words=None):
    chosen = arguments(__doc__, datasets=100, cells="", rows=ROWS).parse_args(words)
    keep_apart(chosen, rows=ROWS)
    path = chosen.results / "pairing.csv"
    done = done_cases(path, COLUMNS, [*CELL_KEYS, "seed", "method"], len(PAIRINGS))
    cases = [
        (*cell, seed, method, chosen.rows)
        for seed in range(FIRST_SEED, FIRST_SEED + chosen.datasets)
        for cell in chosen_cells(chosen.cells)
        for method in CHEAP
        if (*cell, seed, method) not in done
    ]
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs)


if __name__ == "__main__":
    main()
