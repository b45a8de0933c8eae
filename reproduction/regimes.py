"""Regimes away from the paper's cells: small silos, many clusters, noise, ties, drift, nothing.

    python reproduction/regimes.py --datasets 6          # runs what is missing, appends, prints
    python reproduction/regimes.py --datasets 2 --regimes "null,weak pair" --methods default

Profiles are as easy to tell apart as in the paper's easy cells, and variables are the paper's (four
of two levels, six of three), unless a regime says otherwise. Each data set is one line for each
method in results/regimes.csv; seeds start at 21000. A fit is wrong if its number of clusters is, or
if its adjusted Rand index is more than .05 below the best possible: the last table says how many
right and how many wrong fits are trusted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from drift import FIT_COLUMNS, ITERATIONS, METHODS, fit_and_judge, print_summary
from judging import best_labels, coded, level_counts, relevel
from running import arguments, chosen_words, done_cases, keep_apart, read_lines, run_cases
from shares import rare_cluster
from study import warm_up

import silomix
from silomix.model.schema import Schema, Variable
from silomix.simulate import SEPARABILITIES, draw_drift, draw_silos

FIRST_SEED = 21_000
PAPER = (2,) * 4 + (3,) * 6
TWENTY = (2,) * 8 + (3,) * 12
NINETEEN = (2,) * 7 + (3,) * 12
FOUR_SILOS = (1000,) * 4
COPIED = 0.5
"""How often the second variable of a dependent pair copies the first."""
KEYS = ["regime", "seed", "method"]
COLUMNS = [*KEYS, *FIT_COLUMNS]


def plant(seed, sizes, weights, levels=PAPER, *, noise=(), kappa=np.inf, profiles=None):
    """Draw a table of silos with known clusters.

    Parameters
    ----------
    sizes : (silo,), rows of each.
    weights : (silo, cluster), or (cluster,) where they are the same in every silo.
    levels : how many each variable has; noise : of further variables that all clusters share.
    kappa : of every variable.
    profiles : (cluster, level), None to draw them.

    Returns
    -------
    table, truth : as `silomix.simulate` does.
    """
    rng = np.random.default_rng(seed)
    sizes = np.array(sizes)
    weights = np.broadcast_to(weights, (len(sizes), np.shape(weights)[-1]))
    clusters = weights.shape[1]
    if profiles is None:
        profiles = draw_profiles(rng, levels, clusters)
    same = np.tile(draw_profiles(rng, noise, 1, SEPARABILITIES["poor"]), (clusters, 1))
    shared = np.concatenate([profiles, same], axis=1)
    schema = schema_of((*levels, *noise))
    own = draw_drift(rng, schema, shared, np.full(len(schema.variables), kappa), len(sizes))
    return draw_silos(rng, schema, sizes, weights, shared, own)


def draw_profiles(rng, levels, clusters, concentration=SEPARABILITIES["easy"]):
    """Draw level probabilities from symmetric Dirichlets: (cluster, level)."""
    drawn = [rng.dirichlet(np.full(size, concentration), clusters) for size in levels]
    return np.concatenate(drawn, axis=1) if drawn else np.zeros((clusters, 0))


def schema_of(levels):
    """Return variables x1, x2, … with so many levels each."""
    return Schema(
        tuple(
            Variable(f"x{q}", tuple(map(str, range(1, size + 1))))
            for q, size in enumerate(levels, start=1)
        )
    )


def equal(clusters):
    """Return equal weights: (cluster,)."""
    return np.full(clusters, 1 / clusters)


def among(present, clusters):
    """Return equal weights of the clusters that each silo has: (silo, cluster)."""
    weights = np.zeros((len(present), clusters))
    for silo, some in enumerate(present):
        weights[silo, list(some)] = 1 / len(some)
    return weights


def paper_like(seed, *, rows, silos, separability="easy"):
    """The paper's five clusters, equally likely in each of more silos."""
    return silomix.simulate(
        "homogeneous", separability=separability, rows=rows, silos=silos, seed=seed
    )


def with_gaps(seed, share):
    """The paper's homogeneous cell with cells missing completely at random."""
    table, truth = silomix.simulate("homogeneous", seed=seed)
    rng = np.random.default_rng([seed, 1])
    for name in table.columns.drop("silo"):
        table[name] = table[name].where(rng.random(len(table)) >= share)
    return table, truth


def dependent_pairs(seed):
    """The paper's homogeneous cell in which every second variable may copy the one before.

    The truth's probabilities are those of each variable alone.
    """
    table, truth = silomix.simulate("homogeneous", seed=seed)
    rng = np.random.default_rng([seed, 1])
    margins, first = truth.probabilities.copy(), 0
    names = list(table.columns.drop("silo"))
    for one, other, size in zip(names[::2], names[1::2], PAPER[::2], strict=True):
        copied = rng.random(len(table)) < COPIED
        table[other] = table[other].where(~copied, table[one])
        second = slice(first + size, first + 2 * size)
        margins[:, second] *= 1 - COPIED
        margins[:, second] += COPIED * margins[:, first : first + size]
        first += 2 * size
    own = np.tile(margins, (len(truth.silos), 1, 1))
    return table, replace(truth, probabilities=margins, probabilities_by_silo=own)


def best_of_pairs(table, truth):
    """Return the labels that the true parameters give where variables copy in pairs: (row,)."""
    codes, places = coded(table, truth)
    with np.errstate(divide="ignore"):
        total = np.log(truth.weights_by_silo)[places]
        first = 0
        for q, size in enumerate(level_counts(truth)[::2]):
            one, other = codes[:, 2 * q], codes[:, 2 * q + 1]
            before = truth.probabilities[:, first + one].T
            # the margin of the second is half the first's: what is left is its own
            own = truth.probabilities[:, first + size + other].T
            own = np.maximum(own - COPIED * truth.probabilities[:, first + other].T, 0.0)
            total = total + np.log(before * (COPIED * (one == other)[:, None] + own))
            first += 2 * size
    return total.argmax(axis=1)


def pair(seed, low):
    """Two clusters that differ little in each of ten binary variables, and alike in all."""
    profiles = np.tile([[1 - low, low], [low, 1 - low]], (1, 10))
    return plant(seed, FOUR_SILOS, equal(2), (2,) * 10, profiles=profiles)


def six_variables(seed, sizes):
    """Four clusters of patients in six variables, none of which tells two of them apart for sure.

    Sex, four conditions, and smoking: never, former, current.
    """
    conditions = [[0.04, 0.62, 0.30, 0.10], [0.10, 0.85, 0.60, 0.30]]
    conditions += [[0.02, 0.08, 0.10, 0.85], [0.01, 0.12, 0.75, 0.06]]
    smoking = [[0.6, 0.2, 0.2], [0.4, 0.4, 0.2], [0.6, 0.35, 0.05], [0.05, 0.35, 0.6]]
    binary = np.array([[0.5] * 4, *conditions])
    profiles = np.column_stack(
        [*np.ravel(np.stack([1 - binary, binary], 1)).reshape(10, 4), smoking]
    )
    return plant(seed, sizes, [0.35, 0.3, 0.23, 0.12], (2,) * 5 + (3,), profiles=profiles)


def nothing(seed, kappa=np.inf):
    """No clusters, in variables whose levels are not rare."""
    profiles = draw_profiles(np.random.default_rng([seed, 1]), PAPER, 1, SEPARABILITIES["poor"])
    return plant(seed, FOUR_SILOS, equal(1), profiles=profiles, kappa=kappa)


def trial(seed):
    """36 silos of 40 to 2000 rows, shares of clusters and profiles of their own."""
    sizes = np.geomspace(40, 2000, 36).round().astype(np.int64)
    weights = np.random.default_rng([seed, 1]).dirichlet(np.full(5, 3.0), len(sizes))
    return plant(seed, sizes, weights, NINETEEN, kappa=80)


REGIMES = {
    "10 x 100 easy": partial(paper_like, rows=1000, silos=10),
    "10 x 100 poor": partial(paper_like, rows=1000, silos=10, separability="poor"),
    "30 x 300": partial(paper_like, rows=9000, silos=30),
    "5000 500 100 40": partial(plant, sizes=(5000, 500, 100, 40), weights=equal(5)),
    "15 clusters": partial(plant, sizes=FOUR_SILOS, weights=equal(15), levels=TWENTY),
    "4 of 15 clusters": partial(
        plant,
        sizes=(1000,) * 8,
        weights=among([[(4 * silo + k) % 15 for k in range(4)] for silo in range(8)], 15),
        levels=TWENTY,
    ),
    "one shared of four": partial(
        plant, sizes=(1000, 1000), weights=among([range(4), range(3, 7)], 7)
    ),
    "none shared of four": partial(
        plant, sizes=(1000, 1000), weights=among([range(4), range(4, 8)], 8)
    ),
    "40 noise variables": partial(
        plant, sizes=FOUR_SILOS, weights=equal(5), noise=(2,) * 20 + (3,) * 20
    ),
    "two variables of 40 levels": partial(
        plant, sizes=FOUR_SILOS, weights=equal(5), levels=(*PAPER, 40, 40)
    ),
    "30 % missing": partial(with_gaps, share=0.3),
    "dependent pairs": dependent_pairs,
    "null": nothing,
    "null with drift": partial(nothing, kappa=50),
    "weak pair": partial(pair, low=0.4),
    "middling pair": partial(pair, low=0.35),
    "six variables": partial(six_variables, sizes=(1100,)),
    "six variables, three silos": partial(six_variables, sizes=(367,) * 3),
    "rare in every silo": partial(plant, sizes=FOUR_SILOS, weights=np.array([0.2475] * 4 + [0.01])),
    "rare in 30 x 300": partial(plant, sizes=(300,) * 30, weights=np.array([0.245] * 4 + [0.02])),
    "40 rows in one silo": partial(rare_cluster, "easy", 0.04, 1000),
    "ties of 4": partial(plant, sizes=FOUR_SILOS, weights=equal(2), levels=(2,) * 4),
    "ties of 6": partial(plant, sizes=FOUR_SILOS, weights=equal(3), levels=(2,) * 6),
    "36 unequal with drift": trial,
}
"""By word, a function of a seed that draws the table and its truth."""
KAPPAS = {"null with drift": 50.0, "36 unequal with drift": 80.0}
"""Regimes with drift, and their κ."""


def regime(name, seed):
    """Draw a data set of a regime.

    Returns
    -------
    table, truth : as `silomix.simulate` does.
    best : (row,), the best possible labels.
    """
    table, truth = REGIMES[name](seed)
    best = best_of_pairs if name == "dependent pairs" else best_labels
    return table, truth, best(table, truth)


def run_one(name, seed, method, iterations=ITERATIONS):
    """Run one method on one data set: a line of the results."""
    table, truth, best = regime(name, seed)
    kappa = np.full(table.shape[1] - 1, KAPPAS.get(name, np.inf))
    line = fit_and_judge(method, table, truth, best, seed=seed, iterations=iterations, kappa=kappa)
    return [{"regime": name, "seed": seed, "method": method} | line]


def missing_cases(path, datasets, regimes, methods):
    """Return every case that has no line yet, data set by data set."""
    done = done_cases(path, COLUMNS, KEYS)
    cases = [
        (name, seed, method)
        for seed in range(FIRST_SEED, FIRST_SEED + datasets)
        for name in regimes
        for method in methods
    ]
    return [case for case in cases if case not in done]


def main(words=None):
    options = {"regimes": "", "methods": "", "iterations": ITERATIONS}
    chosen = arguments(__doc__, datasets=6, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS)
    path = chosen.results / "regimes.csv"
    regimes = chosen_words(chosen.regimes, REGIMES)
    missing = missing_cases(path, chosen.datasets, regimes, chosen_words(chosen.methods, METHODS))
    cases = [(*case, chosen.iterations) for case in missing]
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs, prepare=warm_up)
    lines = read_lines(path, COLUMNS)
    if len(lines):
        lines = relevel(lines)
        print_summary(lines, {"regime": list(REGIMES), "method": list(METHODS)})


if __name__ == "__main__":
    main()
