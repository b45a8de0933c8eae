"""Prior fractionation over 10 to 500 shards, local and after matching: the paper's appendix B.

    python reproduction/fractionation.py --datasets 1    # runs what is missing, appends

50,000 rows of twenty clusters, split at random. A line has the local clusters and adjusted Rand
index, averaged over the shards, and those of all rows after matching by evidence, with small groups
folded as by default. The true clusters of a shard are those with at least one row in it.

Two things are open in the paper. It does not say how many components it had; here there are twice
as many as clusters. And it speaks of a "BL" post-processing, which is read as the partition of
least Binder loss: here, the draw of least loss ("binder"). The other is our default ("linkage").
"""

from __future__ import annotations

import numpy as np
from judging import timed
from matching import keep, match_kept, matched_labels
from running import arguments, done_cases, keep_apart, run_cases
from study import labels_by_silo

import silomix
from silomix.kernels.similarity import co_clustering
from silomix.model.metrics import adjusted_rand_index
from silomix.rivals.federation import open_silos
from silomix.silo.local import sample_locally
from silomix.silo.relabel import local_posterior

FIRST_SEED = 7000
ROWS = 50_000
SHARDS = (10, 50, 100, 250, 500)
COMPONENTS = 40
ITERATIONS = 20_000
CANDIDATES = 50
"""Draws among which the one of least Binder loss is looked for."""
PARTITIONS = ("linkage", "binder")
KEYS = ["seed", "shards", "fractionate", "partition"]
COLUMNS = [
    *KEYS, "rows", "iterations", "components", "planted",
    "local_excess", "local_excess_sd", "local_ari", "local_ari_sd", "clusters", "ari",
    "seconds_sample", "seconds_match",
]  # fmt: skip


def run_one(seed, shards, fractionate, iterations=ITERATIONS, rows=None):
    """Sample and match one split of one data set: a line for each partition."""
    table, truth = silomix.simulate("appendix-b", silos=shards, rows=rows, seed=seed)
    federation = open_silos(
        table,
        "silo",
        seed=seed,
        threads=1,
        components=COMPONENTS,
        iterations=iterations,
        chains=1,
        kept=1000,
        fractionate=bool(fractionate),
    )
    case = {
        "seed": seed,
        "shards": shards,
        "fractionate": fractionate,
        "rows": len(table),
        "iterations": iterations,
        "components": COMPONENTS,
        "planted": len(np.unique(truth.labels)),
    }
    silos, seconds = timed(lambda: sample_silos(federation.silos.silos))
    true = labels_by_silo(table, truth)
    case["seconds_sample"] = round(seconds, 2)
    return [
        case | {"partition": word} | judge_split(federation.study, silos[word], true)
        for word in PARTITIONS
    ]


def sample_silos(silos):
    """Sample every silo, and return the silos by partition of their draws."""
    found = {word: [] for word in PARTITIONS}
    for silo in silos:
        local = sample_locally(silo)
        labels = least_binder_loss(local.draws.labels, COMPONENTS)
        found["linkage"].append(keep(silo, local))
        found["binder"].append(keep(silo, local_posterior(local.draws, labels)))
    return found


def least_binder_loss(labels, components):
    """Return the draw of least Binder loss, of some evenly spaced ones: (row,).

    Up to a constant the loss of a partition is Σ (1 − 2 P_ij) over the pairs it puts together, P
    being how often they are.

    Parameters
    ----------
    labels : (draw, row)
    """
    draws, rows = labels.shape
    cost = 1 - 2 * co_clustering(labels).astype(np.float32) / draws
    losses = {}
    for draw in np.linspace(0, draws - 1, min(draws, CANDIDATES)).astype(int):
        members = np.zeros((rows, components), dtype=np.float32)
        members[np.arange(rows), labels[draw]] = 1.0
        losses[draw] = float(np.vdot(cost @ members, members))
    return labels[min(losses, key=losses.get)]


def judge_split(study, silos, true):
    """Judge the silos' own partitions, and that of all rows after matching."""
    correspondence, seconds = timed(lambda: match_kept(study, silos, study.matching))
    local = [silo.store.kept.labels for silo in silos]
    excess = [len(np.unique(a)) - len(np.unique(b)) for a, b in zip(local, true, strict=True)]
    agreement = [adjusted_rand_index(a, b) for a, b in zip(true, local, strict=True)]
    matched = adjusted_rand_index(np.concatenate(true), matched_labels(silos, correspondence))
    line = {
        "local_excess": np.mean(excess),
        "local_excess_sd": np.std(excess),
        "local_ari": np.mean(agreement),
        "local_ari_sd": np.std(agreement),
        "clusters": correspondence.clusters,
        "ari": matched,
        "seconds_match": seconds,
    }
    return {name: round(float(value), 4) for name, value in line.items()}


def main(words=None):
    options = {"iterations": ITERATIONS, "rows": ROWS, "shards": ",".join(map(str, SHARDS))}
    chosen = arguments(__doc__, datasets=1, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS, rows=ROWS)
    path = chosen.results / "fractionation.csv"
    done = done_cases(path, COLUMNS, ["seed", "shards", "fractionate"], len(PARTITIONS))
    cases = [
        (seed, shards, fractionate, chosen.iterations, chosen.rows)
        for seed in range(FIRST_SEED, FIRST_SEED + chosen.datasets)
        for shards in map(int, chosen.shards.split(","))
        for fractionate in (1, 0)
        if (seed, shards, fractionate) not in done
    ]
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs)


if __name__ == "__main__":
    main()
