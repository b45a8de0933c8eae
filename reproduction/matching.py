"""Matchings compared, with estimated and with true local partitions: the paper's tables 2 and 9.

    python reproduction/matching.py --datasets 100       # runs what is missing, appends

The data sets of `study.py`, sampled with the paper's settings, every sweep after the burn-in kept,
as the paper does here. A matching is right when local clusters share a group exactly when most of
their rows share a true cluster; the partition that is judged is that of the matched local clusters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from judging import quietly, rightly_matched
from running import CELL_KEYS, CELLS, arguments, chosen_cells, done_cases, keep_apart, run_cases
from study import FIRST_SEED, ITERATIONS, ROWS, labels_by_silo

import silomix
from silomix.coordinator.matching import match
from silomix.messages.released_draws import effective_counts
from silomix.model.metrics import adjusted_rand_index
from silomix.rivals.federation import open_silos
from silomix.silo.local import sample_locally
from silomix.silo.relabel import local_posterior
from silomix.silo.release import make_release
from silomix.silo.store import Kept, Store
from silomix.study import digest
from silomix.study.methods import MATCHINGS
from silomix.transports.in_process import InProcess

PARTITIONS = ("estimated", "true")
KEYS = [*CELL_KEYS, "seed", "partition", "matching"]
COLUMNS = [
    *KEYS, "iterations", "planted", "clusters", "ari", "matched_right", "local_right",
]  # fmt: skip


def run_one(design, separability, seed, iterations=ITERATIONS, rows=None):
    """Match one data set in every way: a line for each partition and matching."""
    table, truth = silomix.simulate(design, separability=separability, rows=rows, seed=seed)
    study_settings = {"preset": "paper", "iterations": iterations, "kept": iterations // 2}
    federation = open_silos(table, "silo", seed=seed, threads=1, **study_settings)
    true_labels = labels_by_silo(table, truth)
    silos = {partition: [] for partition in PARTITIONS}
    for silo, labels in zip(federation.silos.silos, true_labels, strict=True):
        local = quietly(partial(sample_locally, silo))
        given = local_posterior(local.draws, labels, federation.study.local.relabel)
        silos["estimated"].append(keep(silo, local))
        silos["true"].append(keep(silo, given))
    lines = [
        {"partition": partition, "matching": word}
        | judge_matching(federation.study, silos[partition], word, true_labels)
        for partition in PARTITIONS
        for word in MATCHINGS
    ]
    case = {"design": design, "separability": separability, "seed": seed, "iterations": iterations}
    return [case | {"planted": len(truth.weights)} | line for line in lines]


def keep(silo, local):
    """Return the silo as if this local posterior were what it had sampled."""
    release = make_release(
        local, silo=silo.name, place=silo.place, study=digest(silo.study), tier="draws"
    )
    store = Store()
    store.keep(Kept(release, local.weights, local.probabilities, local.partition.labels))
    return replace(silo, store=store)


def match_kept(study, silos, settings):
    """Match the silos' clusters in one way: their correspondence."""
    releases, model = [silo.store.kept.release for silo in silos], study.pooled_model
    counts = [effective_counts(release, model, len(releases)) for release in releases]
    return match(releases, counts, settings, InProcess(silos), model, drift=False)[0]


def matched_labels(silos, correspondence):
    """Return the global cluster of every row, silo after silo: (row,)."""
    return np.concatenate(
        [
            group[silo.store.kept.labels]
            for group, silo in zip(correspondence.groups, silos, strict=True)
        ]
    )


def judge_matching(study, silos, word, true_labels):
    """Match in one way and judge it; only ours folds small groups."""
    settings = MATCHINGS[word].record(**({} if word == "evidence" else {"absorb": 0}))
    correspondence = match_kept(study, silos, settings)
    local_labels = [silo.store.kept.labels for silo in silos]
    right, local = rightly_matched(local_labels, correspondence.groups, true_labels)
    found = matched_labels(silos, correspondence)
    return {
        "clusters": correspondence.clusters,
        "ari": round(adjusted_rand_index(np.concatenate(true_labels), found), 5),
        "matched_right": int(right),
        "local_right": int(local),
    }


def main(words=None):
    options = {"cells": "", "iterations": ITERATIONS, "rows": ROWS}
    chosen = arguments(__doc__, datasets=100, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS, rows=ROWS)
    path = chosen.results / "matching.csv"
    done = done_cases(path, COLUMNS, [*CELL_KEYS, "seed"], len(PARTITIONS) * len(MATCHINGS))
    cells = [cell for cell in CELLS if cell in chosen_cells(chosen.cells)]
    cases = [
        (*cell, seed, chosen.iterations, chosen.rows)
        for seed in range(FIRST_SEED, FIRST_SEED + chosen.datasets)
        for cell in cells
        if (*cell, seed) not in done
    ]
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs)


if __name__ == "__main__":
    main()
