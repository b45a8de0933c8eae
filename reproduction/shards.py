"""Clusters found against the number of shards: a question that the paper leaves open.

    python reproduction/shards.py --datasets 4           # runs what is missing, appends

One table of five equally likely clusters, split at random into more and more shards: our defaults,
the paper's preset, and the paper's preset without fractionation. The paper's weights are found by
L-BFGS: the objective is the same, and up to 3000 steps for dozens of spare clusters take too long.
"""

from __future__ import annotations

from functools import partial

from judging import Found, judge_partition, timed
from running import arguments, cases_against, keep_apart, run_missing

import silomix

FIRST_SEED = 8000
ROWS = 8000
SHARDS = (1, 2, 4, 8, 16, 32, 64)
ITERATIONS = 20_000
PAPER = {"preset": "paper", "solver": "lbfgs"}
METHODS = {
    "default": {},
    "paper": PAPER,
    "paper, whole prior": PAPER | {"fractionate": False},
}
KEYS = ["separability", "seed", "shards", "method"]
COLUMNS = [*KEYS, "rows", "iterations", "planted", "clusters", "ari", "vi", "seconds"]


def run_one(separability, seed, shards, method, iterations=ITERATIONS, rows=ROWS):
    """Run one method on one split of one data set: a line."""
    table, truth = silomix.simulate(
        "homogeneous", separability=separability, rows=rows, silos=shards, seed=seed
    )
    settings = {"iterations": iterations, "seed": seed, "threads": 1, "progress": False}
    fit = partial(silomix.fit, table, silo="silo", **settings, **METHODS[method])
    found, seconds = timed(fit)
    case = {"separability": separability, "seed": seed, "shards": shards, "method": method}
    size = {"rows": rows, "iterations": iterations, "seconds": round(seconds, 2)}
    return [case | size | judge_partition(Found.of(found), truth)]


def main(words=None):
    options = {"iterations": ITERATIONS, "rows": ROWS, "shards": SHARDS}
    chosen = arguments(__doc__, datasets=4, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS, rows=ROWS)
    seeds = range(FIRST_SEED, FIRST_SEED + chosen.datasets)
    cases = cases_against(chosen.shards, METHODS, seeds)
    run_missing(chosen.results / "shards.csv", COLUMNS, KEYS, run_one, cases, chosen)


if __name__ == "__main__":
    main()
