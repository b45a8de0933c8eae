"""The smallest share of a silo at which a cluster is found: a question that the paper leaves open.

    python reproduction/shares.py --datasets 6           # runs what is missing, appends

Four silos of equal size. Four clusters are equally likely in all of them; a fifth is in the first
silo alone, with a share of its rows from 0.5 % to 20 %. It counts as found when a found cluster has
at least half in common with it: rows in both over rows in either. Labels from the true parameters
say how often that is possible at all; pooled rows show the cluster at a quarter of the share.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from judging import best_labels, quietly
from running import arguments, cases_against, keep_apart, run_missing

import silomix
from silomix import rivals

FIRST_SEED = 9000
ROWS = 1000
SILOS = 4
SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2)
RARE = 4
FOUND = 0.5
"""What a cluster must have in common with the rare one, rows in both over rows in either."""
ITERATIONS = 20_000
METHODS = {
    "default": partial(silomix.fit, progress=False),
    "paper": partial(silomix.fit, progress=False, preset="paper"),
    "pooled": rivals.pooled_mcmc,
}
KEYS = ["separability", "seed", "share", "method"]
COLUMNS = [*KEYS, "rows", "iterations", "clusters", "overlap", "best_overlap"]


def rare_cluster(separability, share, rows, seed):
    """Return a table whose last cluster has a share of the first silo's rows, and no other's.

    Rows are picked by their true label from a longer table, so the counts are exact.
    """
    pool, truth = silomix.simulate(
        "homogeneous", separability=separability, rows=SILOS * rows * (RARE + 1), seed=seed
    )
    rare = np.array([round(share * rows), *[0] * (SILOS - 1)])
    weights = np.zeros((SILOS, RARE + 1))
    weights[:, RARE] = rare / rows
    weights[:, :RARE] = (1 - weights[:, RARE:]) / RARE
    left = {cluster: list(np.flatnonzero(truth.labels == cluster)) for cluster in range(RARE + 1)}
    chosen = []
    for silo in range(SILOS):
        common = np.arange(rows - rare[silo]) % RARE
        wanted = np.concatenate([common, np.full(rare[silo], RARE)])
        chosen.append([left[int(cluster)].pop() for cluster in wanted])
    places = np.concatenate(chosen)
    table = pool.iloc[places].reset_index(drop=True)
    table["silo"] = np.repeat(truth.silos, rows)
    labels = truth.labels[places]
    by_silo = replace(truth, labels=labels, weights=weights.mean(axis=0), weights_by_silo=weights)
    return table, by_silo


def overlap(labels, rare):
    """Return the most that a cluster has in common with the rare one: rows in both over either.

    Parameters
    ----------
    labels : (row,); rare : (row,), whether the row is in the rare cluster.
    """
    both = np.bincount(labels[rare], minlength=labels.max() + 1)
    either = np.bincount(labels) + rare.sum() - both
    return float((both / either).max())


def run_one(separability, seed, share, method, iterations=ITERATIONS, rows=ROWS):
    """Run one method on one data set: a line."""
    table, truth = rare_cluster(separability, share, rows, seed)
    fit = partial(METHODS[method], table, silo="silo", iterations=iterations, seed=seed, threads=1)
    found = quietly(fit)
    rare = truth.labels == RARE
    case = {"separability": separability, "seed": seed, "share": share, "method": method}
    return [
        case
        | {
            "rows": rows,
            "iterations": iterations,
            "clusters": found.n_clusters,
            "overlap": round(overlap(np.asarray(found.labels), rare), 4),
            "best_overlap": round(overlap(best_labels(table, truth), rare), 4),
        }
    ]


def main(words=None):
    options = {"iterations": ITERATIONS, "rows": ROWS, "shares": SHARES}
    chosen = arguments(__doc__, datasets=6, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS, rows=ROWS)
    seeds = range(FIRST_SEED, FIRST_SEED + chosen.datasets)
    cases = cases_against(chosen.shares, METHODS, seeds)
    run_missing(chosen.results / "shares.csv", COLUMNS, KEYS, run_one, cases, chosen)


if __name__ == "__main__":
    main()
