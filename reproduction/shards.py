"""Clusters found against the number of shards: a question that the paper leaves open.

    python reproduction/shards.py --datasets 10          # runs what is missing, appends

One table of five equally likely clusters, split at random into more and more shards: our defaults,
the paper's preset, and the paper's preset without fractionation.
"""

from __future__ import annotations

from functools import partial

from judging import Found, judge_partition, timed
from running import SEPARABILITIES, arguments, done_cases, run_cases

import silomix

FIRST_SEED = 8000
ROWS = 8000
SHARDS = (1, 2, 4, 8, 16, 32, 64)
ITERATIONS = 20_000
METHODS = {
    "default": {},
    "paper": {"preset": "paper"},
    "paper, whole prior": {"preset": "paper", "fractionate": False},
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
    options = {"iterations": ITERATIONS, "rows": ROWS, "shards": ",".join(map(str, SHARDS))}
    chosen = arguments(__doc__, datasets=10, **options).parse_args(words)
    path = chosen.results / "shards.csv"
    done = done_cases(path, COLUMNS, KEYS)
    cases = [
        (separability, seed, shards, method, chosen.iterations, chosen.rows)
        for seed in range(FIRST_SEED, FIRST_SEED + chosen.datasets)
        for separability in SEPARABILITIES
        for shards in map(int, chosen.shards.split(","))
        for method in METHODS
        if (separability, seed, shards, method) not in done
    ]
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs)


if __name__ == "__main__":
    main()
