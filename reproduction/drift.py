"""Silos that differ: the paper's six cells with profiles that drift from silo to silo.

    python reproduction/drift.py --datasets 20           # runs what is missing, appends, prints
    python reproduction/drift.py --datasets 5 --kappas 50,20 --methods default,none

A silo's profile of a cluster is Dirichlet(κ m) around the one that the silos share: κ = ∞ (no
drift), 200, 50 and 20 in every variable, or "third", 20 in every third variable and ∞ in the
others. Data sets of one seed have the same clusters and labels whatever κ. The best possible
adjusted Rand index is that of labels by the true silo profiles and silo weights. Each data set is
one line for each method in results/drift.csv; seeds start at 20000.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
from judging import (
    KAPPA_COLUMNS,
    PARTITION_COLUMNS,
    PROFILE_COLUMNS,
    VERDICT_COLUMNS,
    best_labels,
    judge_fit,
    mean_error,
    relevel,
    share,
    timed,
)
from running import (
    CELL_KEYS,
    DESIGNS,
    SEPARABILITIES,
    arguments,
    chosen_cells,
    chosen_words,
    done_cases,
    keep_apart,
    read_lines,
    run_cases,
)
from scipy.stats import beta
from study import warm_up

import silomix
from silomix import rivals
from silomix.coordinator.polish import Start, polish
from silomix.families.chains import Rows
from silomix.model.table import load
from silomix.silo.local import Silo
from silomix.study import Polish, make_study
from silomix.transports.in_process import InProcess

FIRST_SEED = 20_000
ITERATIONS = 20_000
ROWS = 4000
VARIABLES = 10
KAPPAS = {
    "inf": np.full(VARIABLES, np.inf),
    "200": np.full(VARIABLES, 200.0),
    "50": np.full(VARIABLES, 50.0),
    "20": np.full(VARIABLES, 20.0),
    "third": np.where(np.arange(VARIABLES) % 3 == 0, 20.0, np.inf),
}
"""By word, κ of each variable."""


def without_sampler(function, table, *, iterations, **common):
    """Run a rival that has no sampler, and so no iterations."""
    del iterations
    return function(table, **common)


def from_truth(table, *, truth, seed, threads, **others):
    """Polish from the true parameters: what the sampler finds if nothing went wrong before it."""
    del others
    shard = load(table, variables=[name for name in table if name != "silo"])
    study = make_study(shard.schema, truth.silos, seed=seed)
    place = table["silo"].map({name: s for s, name in enumerate(truth.silos)}).to_numpy()
    shards = [shard.some(place == s) for s in range(len(truth.silos))]
    silos = InProcess(
        [Silo(name, s, shards[s], study) for s, name in enumerate(truth.silos)], threads=threads
    )
    weights = np.maximum(truth.weights_by_silo, 1e-3)
    start = Start(
        weights=in_every_chain(weights / weights.sum(axis=1, keepdims=True), 1),
        parameters=in_every_chain(np.maximum(truth.probabilities, 1e-9), 0),
        own=in_every_chain(np.maximum(truth.probabilities_by_silo, 1e-9), 1),
        kappa=np.full(len(study.variables), 100.0),
    )
    model = study.pooled_model._replace(seed=seed)
    found = polish(start, silos, Polish(rounds=TRUTH_ROUNDS), model, kept_draws=study.kept_draws)
    labels = np.empty(len(table), dtype=np.int64)
    for s, own in enumerate(np.moveaxis(found.silo_profiles.parameters, 1, 0)):
        rows = Rows(shards[s], model.family)
        shares = rows.membership(found.weights_by_silo[-len(own) :, s], own, threads)
        labels[place == s] = shares.membership.argmax(axis=1)
    return SimpleNamespace(
        labels=labels,
        weights=np.einsum("tsc,s->tc", found.weights_by_silo, np.bincount(place) / len(place)),
        probabilities=found.parameters,
        silo_profiles=found.silo_profiles,
        n_clusters=found.parameters.shape[1],
        silos=truth.silos,
    )


def in_every_chain(values, axis):
    """Repeat values along a new axis of chains."""
    return np.repeat(np.expand_dims(values, axis), Polish().chains, axis)


METHODS = {
    "default": partial(silomix.fit, progress=False),
    "none": partial(silomix.fit, progress=False, drift="none"),
    "fedmerdel": partial(without_sampler, rivals.fedmerdel),
    "pooled": rivals.pooled_mcmc,
    "truth": from_truth,
}
WITHOUT_SAMPLER = ("fedmerdel", "truth")
"""Methods that take no iterations."""
TRUTH_ROUNDS = 50
"""Rounds of the sampler that starts at the truth, as many as the defaults make at most."""
CLEARLY_BELOW = 0.05
"""A fit whose adjusted Rand index is further below the best possible is wrong."""
FIT_COLUMNS = [
    "iterations", *PARTITION_COLUMNS, "right", *PROFILE_COLUMNS, *KAPPA_COLUMNS, *VERDICT_COLUMNS,
    "seconds",
]  # fmt: skip
KEYS = [*CELL_KEYS, "kappa", "seed", "method"]
COLUMNS = [*KEYS, *FIT_COLUMNS]


def fit_and_judge(method, table, truth, best, *, seed, iterations, kappa=None):
    """Run one method on one data set: a line, without what says which.

    Parameters
    ----------
    best : (row,), the best possible labels; kappa : (variable,), the true κ, None without drift.
    """
    common = {"silo": "silo", "iterations": iterations, "seed": seed, "threads": 1}
    if method == "truth":
        common["truth"] = truth
    found, seconds = timed(partial(METHODS[method], table, **common))
    line = judge_fit(found, truth, best, kappa)
    sampled = "" if method in WITHOUT_SAMPLER else iterations
    return line | {"iterations": sampled, "seconds": round(seconds, 2)}


def run_one(design, separability, kappa, seed, method, iterations=ITERATIONS, rows=ROWS):
    """Run one method on one data set: a line of the results."""
    table, truth = silomix.simulate(
        design, separability=separability, rows=rows, seed=seed, drift=KAPPAS[kappa]
    )
    best = best_labels(table, truth)
    line = fit_and_judge(
        method, table, truth, best, seed=seed, iterations=iterations, kappa=KAPPAS[kappa]
    )
    case = {"design": design, "separability": separability, "kappa": kappa, "seed": seed}
    return [case | {"method": method} | line]


def kappa_word(value):
    """Return the word of a κ that pandas may have read as a number."""
    return value if isinstance(value, str) else f"{value:g}"


def missing_cases(path, datasets, cells, kappas, methods):
    """Return every case that has no line yet, data set by data set."""
    done = {
        (design, separability, kappa_word(kappa), seed, method)
        for design, separability, kappa, seed, method in done_cases(path, COLUMNS, KEYS)
    }
    cases = [
        (*cell, kappa, seed, method)
        for seed in range(FIRST_SEED, FIRST_SEED + datasets)
        for cell in cells
        for kappa in kappas
        for method in methods
    ]
    return [case for case in cases if case not in done]


def is_right(lines):
    """Tell which fits have the right number of clusters and nearly the best possible index."""
    return (lines["right"] == 1) & (lines["ari"] >= lines["best_ari"] - CLEARLY_BELOW)


def trust_by_quality(lines, method="default"):
    """Return how many right and how many wrong fits of a method are trusted: a table.

    Intervals are Jeffreys' of 95 %.
    """
    ours = lines[lines["method"] == method]
    right = is_right(ours)
    rows = []
    for words, part in (("right", ours[right]), ("wrong", ours[~right])):
        fits, trusted = len(part), int((part["trusted"] == 1).sum())
        lower, upper = beta.ppf([0.025, 0.975], trusted + 0.5, fits - trusted + 0.5)
        share_trusted = trusted / fits if fits else np.nan
        row = {"fits": words, "number": fits, "trusted": trusted, "share": share_trusted}
        rows.append(row | {"from": lower, "to": upper})
    return pd.DataFrame(rows)


def summarise_fits(lines, by):
    """One line for each group of fits: means over data sets, with standard errors.

    Parameters
    ----------
    by : the columns that tell groups apart, each with its words in the order wanted.
    """
    rows = []
    ordered = lines.assign(**{name: pd.Categorical(lines[name], by[name]) for name in by})
    for group, part in ordered.groupby(list(by), observed=True):
        gap, gap_error = mean_error(part["best_ari"] - part["ari"])
        row = dict(zip(by, group, strict=True)) | {
            "data sets": len(part),
            "right K": part["right"].mean(),
            "ARI": part["ari"].mean(),
            "below best": gap,
            "gap se": gap_error,
            "right": is_right(part).mean(),
            "trusted": mean_error(part["trusted"])[0],
        }
        for what in ("m", "p", "pi"):
            row[what], row[f"{what} se"] = share(part, what)
        for what in ("kappa_hat", "kappa_drifting"):
            row[what] = part[what].quantile(0.5, interpolation="lower")
        rows.append(row | {"CPU s": part["seconds"].mean()})
    return pd.DataFrame(rows)


def print_summary(lines, by):
    """Print one line for each group of fits, and how trust follows quality."""
    with pd.option_context("display.width", 250, "display.max_columns", 30):
        print(summarise_fits(lines, by).round(3).to_string(index=False))
        print(trust_by_quality(lines).round(3).to_string(index=False))


def main(words=None):
    options = {"cells": "", "kappas": "", "methods": "", "iterations": ITERATIONS, "rows": ROWS}
    chosen = arguments(__doc__, datasets=20, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS, rows=ROWS)
    path = chosen.results / "drift.csv"
    missing = missing_cases(
        path,
        chosen.datasets,
        chosen_cells(chosen.cells),
        chosen_words(chosen.kappas, KAPPAS),
        chosen_words(chosen.methods, METHODS),
    )
    cases = [(*case, chosen.iterations, chosen.rows) for case in missing]
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs, prepare=warm_up)
    lines = read_lines(path, COLUMNS)
    if len(lines):
        lines = relevel(lines)
        lines["kappa"] = lines["kappa"].map(kappa_word)
        by = {"design": DESIGNS, "separability": SEPARABILITIES}
        print_summary(lines, by | {"kappa": list(KAPPAS), "method": list(METHODS)})


if __name__ == "__main__":
    main()
