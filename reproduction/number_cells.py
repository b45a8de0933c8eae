"""Numbers and counts: the paper's six cells with normal variables, and with mixed ones.

    python reproduction/number_cells.py --datasets 20  # runs what is missing, prints
    python reproduction/number_cells.py --datasets 2 --variables gaussian --kappas inf

Tables of `silomix.simulate` with variables "gaussian" or "mixed", without drift and at κ = 50. The
best possible adjusted Rand index is that of labels by the true silo parameters and silo weights.
Intervals are of highest density: of π; of means, spreads and rates; and of level probabilities
where the true one is in one of the inner bands. Beside our intervals of π stand those of a sampler
that is told the silos' true parameters: what these miss is the luck of the data sets. A data set is
a line in results/number_cells.csv; seeds start at 40000.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from judging import (
    Found,
    covers,
    inner,
    judge_partition,
    mean_error,
    share,
    short,
    timed,
    verdict,
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

import silomix
from silomix.families import make_family
from silomix.model.metrics import adjusted_rand_index, pair_clusters
from silomix.model.schema import Schema
from silomix.model.table import encode

FIRST_SEED = 40_000
ITERATIONS, ROWS = 20_000, 4000
VARIABLES = ("gaussian", "mixed")
KAPPAS = {"inf": np.inf, "50": 50.0}
PARAMETERS = ("mean", "sd", "rate", "p")
JUDGED = ("pi", *PARAMETERS, "own", "told")
# Sweeps of the sampler that is told the parameters, those left out, and its part of the seed.
TOLD_SWEEPS, TOLD_BURN_IN, TOLD_STREAM = 1050, 50, 0x746F6C
KEYS = [*CELL_KEYS, "variables", "kappa", "seed"]
COLUMNS = [
    *KEYS, "planted", "clusters", "ari", "vi", "best_ari", "right", "local", "matched",
    *[f"{what}_{part}" for what in JUDGED for part in ("covered", "total")],
    "drifting", "level", "confidence", "agreement", "rounds", "still_moving", "bytes", "seconds",
]  # fmt: skip
# least share of data sets with the right K, and the most that the index may be below the best
TARGETS = {"easy": (0.95, 0.01), "poor": (0.85, 0.03)}
COVERAGE = (0.92, 0.97)


def kinds_of_columns(truth):
    """Return what each column of the parameters is, one of `PARAMETERS`: (parameter,)."""
    return np.array([word if word in PARAMETERS else "p" for _, word in truth.levels])


def true_densities(table, study, truth):
    """Return log densities of rows under their silo's true parameters, and each row's silo.

    Returns
    -------
    densities : (row, cluster), without what does not depend on the cluster; silos : (row,)
    """
    # true parameters are in the units of the table
    variables = study.table_schema.variables
    schema = Schema(tuple(replace(v, location=0.0, scale=1.0) for v in variables))
    family = make_family(schema, study.prior)
    features = family.features(encode(table, schema))
    places = table["silo"].map({name: s for s, name in enumerate(truth.silos)}).to_numpy()
    with np.errstate(divide="ignore"):
        # no level of probability zero was drawn
        natural = np.maximum(family.natural(truth.probabilities_by_silo), -1e300)
    densities = np.empty((len(places), natural.shape[1]))
    for silo, own in enumerate(natural):
        densities[places == silo] = features[places == silo] @ own.T
    return densities, places


def best_labels(table, study, truth):
    """Return the labels that the silos' true parameters and weights give: (row,)."""
    densities, places = true_densities(table, study, truth)
    with np.errstate(divide="ignore"):
        return (densities + np.log(truth.weights_by_silo)[places]).argmax(axis=1)


def told_weights(table, study, truth, seed):
    """Draw π given the silos' true parameters, by Gibbs: (draw, cluster).

    As in the polish, every silo has weights of its own, and π is their mean over all rows.
    """
    densities, places = true_densities(table, study, truth)
    rng = np.random.default_rng([seed, TOLD_STREAM])
    silos, clusters = truth.weights_by_silo.shape
    alpha = study.prior.alpha / silos
    drawn = np.zeros((TOLD_SWEEPS, clusters))
    for silo in range(silos):
        own = densities[places == silo]
        likelihood = np.exp(own - own.max(axis=1, keepdims=True))
        weights = np.full(clusters, 1.0 / clusters)
        for sweep in range(TOLD_SWEEPS):
            shares = (likelihood * weights).cumsum(axis=1)
            # at a share that is never zero, so that no row falls to a cluster that cannot have it
            at = (1.0 - rng.random(len(shares))) * shares[:, -1]
            labels = (shares < at[:, None]).sum(axis=1)
            weights = rng.dirichlet(alpha + np.bincount(labels, minlength=clusters))
            drawn[sweep] += weights * len(own) / len(places)
    return drawn[TOLD_BURN_IN:]


def judge_parameters(posterior, truth, told):
    """Count the true values inside 95 % intervals, by what they are.

    Parameters
    ----------
    told : (draw, cluster), π of a sampler that is told the parameters.
    """
    clusters = {"true_clusters": len(truth.weights), "clusters": posterior.n_clusters}
    pairs = pair_clusters(truth.labels, posterior.labels, **clusters)
    shared, by_silo = truth.probabilities, truth.probabilities_by_silo
    kinds = kinds_of_columns(truth)
    inside = covers(shared, posterior.parameters, pairs)
    counted = np.where(kinds == "p", inner(shared), True)
    judged = {what: (inside[:, kinds == what], counted[:, kinds == what]) for what in PARAMETERS}
    judged["pi"] = covers(truth.weights, posterior.weights, pairs), np.ones(len(pairs), bool)
    judged["told"] = covers(truth.weights, told, np.arange(len(pairs))), np.ones(len(pairs), bool)
    own = posterior.silo_profiles
    if own is not None:
        described = posterior.family.describe(own.parameters)
        drawn = [described[:, posterior.silos.index(name)] for name in truth.silos]
        parts = zip(by_silo, drawn, strict=True)
        inside = np.stack([covers(true, draws, pairs) for true, draws in parts])
        counted = (truth.weights_by_silo > 0)[:, :, None] & (kinds != "sd")
        judged["own"] = inside, counted & np.where(kinds == "p", inner(by_silo), True)
    line = {}
    for what, (covered, held) in judged.items():
        line[f"{what}_covered"] = int(covered[held].sum())
        line[f"{what}_total"] = int(held.sum())
    return line


def run_one(design, separability, variables, kappa, seed, iterations=ITERATIONS, rows=ROWS):
    """Fit one data set: a line of the results."""
    table, truth = silomix.simulate(
        design,
        separability=separability,
        variables=variables,
        rows=rows,
        seed=seed,
        drift=KAPPAS[kappa],
    )
    common = {"kinds": truth.kinds, "seed": seed, "threads": 1, "iterations": iterations}
    posterior, seconds = timed(partial(silomix.fit, table, silo="silo", **common))
    best = best_labels(table, posterior.study, truth)
    drawn = posterior.weights, posterior.parameters
    found = Found(posterior.labels, *drawn, posterior.n_clusters)
    line = judge_partition(found, truth) | verdict(posterior)
    own = posterior.silo_profiles
    matched = posterior.correspondence
    return [
        dict(zip(KEYS, (design, separability, variables, kappa, seed), strict=True))
        | line
        | judge_parameters(posterior, truth, told_weights(table, posterior.study, truth, seed))
        | {
            "right": int(line["clusters"] == line["planted"]),
            "best_ari": round(adjusted_rand_index(truth.labels, best), 5),
            "local": " ".join(str(len(groups)) for groups in matched.groups),
            "matched": matched.clusters,
            "drifting": "" if own is None else short(np.isfinite(own.kappa).mean()),
            "bytes": sum(sum(sent.values()) for sent in posterior.provenance.sent.values()),
            "seconds": round(seconds, 2),
        }
    ]


def warm_up():
    """Compile every kernel, so that no time has it."""
    for variables in VARIABLES:
        run_one("nested", "easy", variables, "50", 0, rows=400)


def summarise(lines):
    """One line for each cell, kind of variables and κ, with standard errors."""
    by = {"design": DESIGNS, "separability": SEPARABILITIES}
    by |= {"variables": VARIABLES, "kappa": list(KAPPAS)}
    lines = lines.assign(**{name: pd.Categorical(lines[name], by[name]) for name in by})
    rows = []
    for group, part in lines.groupby(list(by), observed=True):
        least, most = TARGETS[group[1]]
        right, right_error = mean_error(part["right"])
        gap, gap_error = mean_error(part["best_ari"] - part["ari"])
        row = dict(zip(by, group, strict=True)) | {
            "sets": len(part),
            "right K": right,
            "K se": right_error,
            "best": part["best_ari"].mean(),
            "below": gap,
            "gap se": gap_error,
            "met": "yes" if right >= least and gap <= most else "no",
        }
        for what in JUDGED:
            row[what], row[f"{what} se"] = share(part, what)
        row["less told"], row["less se"] = mean_error(
            (part["pi_covered"] - part["told_covered"]) / part["pi_total"]
        )
        for what in ("pi", "mean"):
            row[f"{what} right"], row[f"{what} right se"] = share(part[part["right"] == 1], what)
        usual = {"CPU s": part["seconds"].mean(), "MB": part["bytes"].mean() / 1e6}
        rows.append(row | usual)
    return pd.DataFrame(rows)


def main(words=None):
    options = {"cells": "", "variables": "", "kappas": "", "iterations": ITERATIONS, "rows": ROWS}
    chosen = arguments(__doc__, datasets=20, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS, rows=ROWS)
    path = chosen.results / "number_cells.csv"
    done = {(*case[:3], f"{float(case[3]):g}", case[4]) for case in done_cases(path, COLUMNS, KEYS)}
    cases = [
        (*cell, variables, kappa, seed)
        for seed in range(FIRST_SEED, FIRST_SEED + chosen.datasets)
        for cell in chosen_cells(chosen.cells)
        for variables in chosen_words(chosen.variables, VARIABLES)
        for kappa in chosen_words(chosen.kappas, KAPPAS)
    ]
    missing = [(*case, chosen.iterations, chosen.rows) for case in cases if case not in done]
    run_cases(path, COLUMNS, run_one, missing, chosen.jobs, prepare=warm_up)
    lines = read_lines(path, COLUMNS)
    if len(lines):
        lines["kappa"] = lines["kappa"].map(lambda kappa: f"{float(kappa):g}")
        with pd.option_context("display.width", 250, "display.max_columns", 40):
            print(summarise(lines).round(3).to_string(index=False))
        print(
            f"targets: right K at least {TARGETS['easy'][0]} (easy), {TARGETS['poor'][0]} (poor);"
        )
        print(f"at most {TARGETS['easy'][1]}, {TARGETS['poor'][1]} below the best index;", end=" ")
        print(f"coverage {COVERAGE[0]} to {COVERAGE[1]}")


if __name__ == "__main__":
    main()
