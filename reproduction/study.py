"""The paper's simulation study: six cells, all methods, a line for each data set and method.

    python reproduction/study.py --datasets 100          # runs what is missing, appends
    python reproduction/study.py --datasets 10 --cells "nested poor" --methods default,paper

50,000 iterations for every method that samples, half of them burn-in. Times are CPU seconds on one
thread, as if each method had run alone: see `sharing.py`. Seeds start at 5000, so nothing here was
tuned on these data sets; one seed gives the same line again, but for the times.
"""

from __future__ import annotations

import time
from functools import partial

from judging import PARAMETER_COLUMNS, PARTITION_COLUMNS, Found, judge, quietly, rightly_matched
from running import (
    CELL_KEYS,
    arguments,
    chosen_cells,
    chosen_words,
    done_cases,
    keep_apart,
    run_cases,
)
from sharing import shared_sampling

import silomix
from silomix import rivals
from silomix.messages.progress import StageClock

FIRST_SEED = 5000
ITERATIONS = 50_000
ROWS = 4000
STAGES = {
    "sample": ("sample", "compiling", "sampling", "local", "rounds"),
    "match": ("match", "matching", "merge", "group"),
    "combine": ("combine", "aggregating"),
    "polish": ("polishing",),
    "assign": ("assign", "assigning"),
}
"""Columns of CPU seconds, and what the methods call these stages."""
KEYS = [*CELL_KEYS, "seed", "method"]
COLUMNS = [
    *KEYS, "iterations", *PARTITION_COLUMNS, *PARAMETER_COLUMNS,
    "seconds", *[f"seconds_{stage}" for stage in STAGES], "bytes", "matched_right", "local_right",
]  # fmt: skip


def ours(table, planted, common, **settings):
    """Run `silomix.fit`; return what it found, seconds by stage, bytes, and groups by silo."""
    del planted
    clock = StageClock(time.process_time)
    found = silomix.fit(table, silo="silo", progress=clock, **common, **settings)
    return found, clock.stop(), found.provenance.sent, found.correspondence.groups


def rival(function, table, planted, common, *, known=False, **settings):
    """Run a rival, which is told the number of clusters if it must know it."""
    if known:
        settings["clusters"] = planted
    found = function(table, silo="silo", **common, **settings)
    return found, found.seconds, found.bytes_sent, None


def unsampled(function, table, planted, common, **settings):
    """Run a rival that has no sampler, and so no iterations."""
    common = {name: value for name, value in common.items() if name != "iterations"}
    return rival(function, table, planted, common, **settings)


paper = partial(ours, preset="paper")
GROUPS = {
    "ours": {
        "default": ours,
        "no-polish": partial(ours, polish=0),
        "cmc-covariance": partial(rival, rivals.cmc, weights="covariance"),
        "cmc-independent": partial(rival, rivals.cmc, weights="independent"),
        "product": partial(rival, rivals.product),
        "block-gibbs": partial(rival, rivals.block_gibbs),
    },
    "paper": {
        "paper": paper,
        "paper-divergence": partial(paper, matching="divergence"),
        "paper-hungarian": partial(paper, matching="hungarian"),
    },
    "pooled": {
        "pooled": partial(rival, rivals.pooled_mcmc),
        "pooled-paper": partial(rival, rivals.pooled_mcmc, preset="paper"),
    },
    "counts": {
        "fedmerdel": partial(unsampled, rivals.fedmerdel),
        "fedmerdel-random": partial(
            unsampled, rivals.fedmerdel, merging=rivals.Merging(search="random")
        ),
        "fedmerdel-sparse": partial(unsampled, rivals.fedmerdel, search=rivals.Search(alpha=0.01)),
        "fed-kmodes": partial(unsampled, rivals.fed_kmodes, known=True),
    },
    "rabinovich": {"rabinovich": partial(rival, rivals.rabinovich, known=True)},
}
"""Methods that sample the silos alike are in one group, and are run together."""
METHODS = {name: run for group in GROUPS.values() for name, run in group.items()}


def run_group(design, separability, seed, methods, iterations=ITERATIONS, rows=None):
    """Run methods of one group on one data set: a line for each."""
    table, truth = silomix.simulate(design, separability=separability, rows=rows, seed=seed)
    case = {"design": design, "separability": separability, "seed": seed}
    with shared_sampling() as sampled:
        return [
            case | {"method": name} | run_one(name, table, truth, seed, iterations, sampled)
            for name in methods
        ]


def run_one(name, table, truth, seed, iterations, sampled):
    """Run one method on one data set: a line, without what says which."""
    common = {"iterations": iterations, "seed": seed, "threads": 1}
    sampled.start()
    method = partial(METHODS[name], table, len(truth.weights), common)
    found, seconds, sent, groups = quietly(method)
    line = judge(Found.of(found), table, truth)
    by_stage = {
        f"seconds_{stage}": sum(seconds.get(word, 0.0) for word in words)
        for stage, words in STAGES.items()
    }
    by_stage["seconds_sample"] += sampled.saved
    line |= {stage: round(spent, 3) for stage, spent in by_stage.items()}
    line["seconds"] = round(sum(by_stage.values()), 3)
    line["bytes"] = max(sum(kinds.values()) for kinds in sent.values())
    line["iterations"] = iterations
    if groups is not None:
        local = [sampled.used[place].partition.labels for place in range(len(groups))]
        right = rightly_matched(local, groups, labels_by_silo(table, truth))
        line["matched_right"], line["local_right"] = map(int, right)
    return line


def labels_by_silo(table, truth):
    """Return the true labels of each silo's rows."""
    silo = table["silo"].to_numpy()
    return [truth.labels[silo == name] for name in truth.silos]


def missing_cases(path, datasets, cells, methods):
    """Return a case for each data set and group of which methods have no line yet.

    Data set by data set over all cells, so that a run that is stopped early is balanced.
    """
    done = done_cases(path, COLUMNS, KEYS)
    cases = []
    for seed in range(FIRST_SEED, FIRST_SEED + datasets):
        for design, separability in cells:
            for group in GROUPS.values():
                todo = [
                    name
                    for name in group
                    if name in methods and (design, separability, seed, name) not in done
                ]
                if todo:
                    cases.append((design, separability, seed, tuple(todo)))
    return cases


def warm_up():
    """Compile every kernel, so that no method's time has it."""
    table, _ = silomix.simulate("nested", rows=200, seed=0)
    for name, method in METHODS.items():
        if name in ("default", "paper", "paper-divergence"):
            common = {"iterations": 200, "seed": 0, "threads": 1}
            quietly(partial(method, table, 6, common))


def main(words=None):
    options = {"cells": "", "methods": "", "iterations": ITERATIONS, "rows": ROWS}
    chosen = arguments(__doc__, datasets=100, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS, rows=ROWS)
    path = chosen.results / "study.csv"
    methods = chosen_words(chosen.methods, METHODS)
    missing = missing_cases(path, chosen.datasets, chosen_cells(chosen.cells), methods)
    cases = [(*case, chosen.iterations, chosen.rows) for case in missing]
    run_cases(path, COLUMNS, run_group, cases, chosen.jobs, prepare=warm_up)


if __name__ == "__main__":
    main()
