"""Compare silomix with other programs on the same tables: `make verify`.

    python verify/verify.py                 # run the programs that are installed, check, print
    python verify/verify.py --installed no  # check against the numbers in numbers.csv alone
    python verify/verify.py --write         # keep in numbers.csv what the programs now give

Further words: --tables carcinoma,iris and --programs poLCA,JAGS choose some of the checks. Tables
that are not here are read from the folder SILOMIX_DATA. The exit status is 1 if a check fails.

Where a program finds a maximum of the likelihood, there are these checks:

- *density*: silomix's density of the table at the program's estimate is what the program says.
  Rounded to twelve digits, estimates give it to about 1e-6.
- *maximum*: EM from silomix's best draw reaches the program's log-likelihood, and no draw exceeds
  the larger of the two. Both stop at steps under 1e-9, which leaves less than 1e-3 if steps shrink
  by a millionth each.
- *clusters*, where the program's maximum is the largest: silomix reports as many.
- *sizes and profiles*, *memberships*, *labels*: the program's clusters are as near to silomix's
  posterior means and labels as draws of that posterior are, 99 in 100 of which are nearer than the
  tolerance. Sizes and profiles are those that silomix's prior gives clusters with the program's
  memberships: a maximum of the likelihood has no prior, which matters in narrow clusters (setosa).

The variational posterior of scikit-learn, under silomix's prior, is no maximum: only the last
two points are checked.

Where a program samples the posterior of the same model under the same prior, what does not depend
on how clusters are numbered has the same mean: both have Monte Carlo standard errors, from means
over batches of each chain, and the difference over its standard error follows Student's t. The
tolerance is the quantile that all such comparisons of a run exceed once in a thousand runs.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pandas as pd
import programs
import tables
from scipy import stats
from scipy.optimize import linear_sum_assignment

import silomix
from silomix.model.table import infer_schema


class Case(NamedTuple):
    """A table, the kind of its variables, how many clusters, and the programs that know it."""

    table: str
    kind: str
    classes: int
    programs: tuple[str, ...]


LATENT_CLASSES = ("poLCA", "StepMix")
NORMAL = ("mclust", "scikit-learn")
FULL = (*NORMAL, "variational")
ESTIMATES = [
    Case("carcinoma", "categorical", 2, LATENT_CLASSES),
    Case("carcinoma", "categorical", 3, LATENT_CLASSES),
    Case("values", "categorical", 2, LATENT_CLASSES),
    Case("cheating", "categorical", 2, LATENT_CLASSES),
    Case("gss82", "categorical", 2, LATENT_CLASSES),
    Case("gaps", "categorical", 2, LATENT_CLASSES),
    Case("house_votes84", "categorical", 2, LATENT_CLASSES),
    Case("numbers", "gaussian", 3, NORMAL),
    Case("numbers", "gaussian-full", 3, FULL),
    Case("faithful", "gaussian", 2, NORMAL),
    Case("faithful", "gaussian-full", 2, FULL),
    Case("iris", "gaussian", 3, NORMAL),
    Case("iris", "gaussian-full", 2, FULL),
    Case("wine", "gaussian", 3, NORMAL),
    Case("penguins", "gaussian-full", 3, FULL),
    Case("galaxies", "gaussian", 3, NORMAL),
    Case("counts", "poisson", 3, ("flexmix",)),
    Case("quine", "poisson", 3, ("flexmix",)),
]
POSTERIORS = [
    Case("carcinoma", "categorical", 3, ("BayesLCA", "telescope", "JAGS")),
    Case("carcinoma", "categorical", 6, ("telescope",)),
    Case("cheating", "categorical", 2, ("BayesLCA",)),
    Case("gaps", "categorical", 3, ("JAGS",)),
    Case("numbers", "gaussian", 4, ("JAGS",)),
    Case("numbers", "gaussian-full", 3, ("JAGS",)),
    Case("numbers", "student-t", 3, ("JAGS",)),
    Case("counts", "poisson", 4, ("JAGS",)),
    Case("counts", "negative-binomial", 3, ("JAGS",)),
]
STEP, LEFT, DIGITS = 1e-9, 1e-3, 1e-6
MOST_DRAWS = 400
CHAINS, BATCHES, ITERATIONS = 4, 20, 22_000
FALSE_ALARMS = 1e-3
"""Share of runs in which two samplers of one posterior fail a comparison."""
SURE = 1e-3
"""Rows that are, or are not, together with this probability of the contrary are not compared."""


class Check(NamedTuple):
    """What was compared, the number, and what it may be at most."""

    name: str
    value: float
    most: float


def settings(case, table):
    kinds = dict.fromkeys(table, case.kind)
    return {"components": case.classes, "kinds": kinds, "seed": 1, "progress": False}


def log_joint(family, shard, weights, parameters):
    """Return log π_c p(row | c): (row, cluster)."""
    parameters = np.asarray(parameters, dtype=np.float64)
    densities = family.log_density(shard, parameters) + family.log_base(shard)[:, None]
    return densities + np.log(weights)


def shares_of(logs):
    totals = np.logaddexp.reduce(logs, axis=1)
    return np.exp(logs - totals[:, None]), totals.sum()


def estimate(lines, case, schema):
    """Return a program's weights and parameters, in the units of the study."""
    of = {
        quantity: part.sort_values("cluster")["value"].to_numpy()
        for quantity, part in lines.dropna(subset="cluster").groupby("quantity")
    }
    columns = []
    for place, variable in enumerate(schema.variables):
        name, scale = variable.name, variable.scale
        if case.kind == "categorical":
            columns += [of[f"{name}={level}"] for level in variable.levels]
        elif case.kind == "poisson":
            columns.append(of[f"rate {name}"])
        else:
            sd = np.sqrt(of[f"covariance {name} {name}"])
            columns += [(of[f"mean {name}"] - variable.location) / scale, sd / scale]
            for other in schema.variables[: place if case.kind == "gaussian-full" else 0]:
                variance = of[f"covariance {other.name} {other.name}"]
                columns.append(of[f"covariance {name} {other.name}"] / sd / np.sqrt(variance))
    return of["weight"], np.column_stack(columns)


def climb(family, shard, weights, parameters):
    """Return the log-likelihood where EM comes to rest that starts here."""
    features = family.features(shard)
    last = -np.inf
    for _ in range(20_000):
        shares, reached = shares_of(log_joint(family, shard, weights, parameters))
        if reached - last < STEP:
            break
        last = reached
        weights = shares.mean(axis=0)
        sums = shares.T @ features
        rows = family.repeat(family.known(sums))
        parameters = family.from_moments(sums / rows)
    return reached


def check_estimate(case, table, draws, top, lines):
    """Yield what is compared of one program's estimate."""
    family, shard = draws.family, draws.shard
    weights, parameters = estimate(lines, case, shard.schema)
    theirs, density = shares_of(log_joint(family, shard, weights, parameters))
    for reached in lines.loc[lines["quantity"] == "log likelihood", "value"]:
        yield Check("density", abs(density - reached), DIGITS)
        yield Check("maximum", reached - top, LEFT)
        yield Check("best draw", draws.log_likelihood.max() - max(reached, top), LEFT)
        if top - reached > LEFT:
            return
    found = silomix.fit(table, **settings(case, table))
    yield Check("clusters", abs(found.n_clusters - case.classes), 0)
    if found.n_clusters != case.classes:
        return
    some = np.linspace(0, found.n_draws - 1, MOST_DRAWS).astype(int)
    each = [
        shares_of(log_joint(family, shard, found.weights[t], found.profile_draws[t]))[0]
        for t in some
    ]
    mean = np.mean(each, axis=0)
    order = linear_sum_assignment(-(mean.T @ theirs))[1]
    theirs = theirs[:, order]
    sums = theirs.T @ family.features(shard)
    parameters = family.medians(family.prior() + family.conjugate(sums))
    rows = theirs.sum(axis=0) + draws.prior.alpha
    weights = rows / rows.sum()

    def unlike(shares):
        return 1 - silomix.metrics.adjusted_rand_index(found.labels, shares.argmax(axis=1))

    drawn = np.column_stack([found.weights, found.profile_draws.reshape(found.n_draws, -1)])
    ours, spread = drawn.mean(axis=0), drawn.std(axis=0)
    varies = spread > 0
    far = np.abs(np.append(weights, parameters) - ours)[varies] / spread[varies]
    drawn_far = np.abs(drawn - ours)[:, varies] / spread[varies]
    for name, value, of_draws in (
        ("sizes and profiles", far.max(), drawn_far.max(axis=1)),
        ("memberships", np.abs(theirs - mean).mean(), [np.abs(s - mean).mean() for s in each]),
        ("labels", unlike(theirs), [unlike(shares) for shares in each]),
    ):
        yield Check(name, value, float(np.quantile(of_draws, 0.99)))


def invariants(draws):
    """Return what does not depend on how components are numbered, by name: (draw,) each."""
    shard, family = draws.shard, draws.family
    rows = np.round(np.linspace(1, draws.labels.shape[1], 5)).astype(int) - 1
    weights = draws.weights.astype(float)
    shares = np.array(
        [
            shares_of(log_joint(family, shard.some(rows), *one))[0]
            for one in zip(weights, draws.probabilities, strict=True)
        ]
    )
    values = {
        "mean log likelihood": draws.log_likelihood,
        "largest weight": weights.max(axis=1),
        "sum of squared weights": (weights**2).sum(axis=1),
        "occupied": np.array([len(np.unique(labels)) for labels in draws.labels]),
    }
    for i, j in zip(*np.triu_indices(5, 1), strict=True):
        together = (shares[:, i] * shares[:, j]).sum(axis=1)
        values[f"rows {rows[i] + 1} and {rows[j] + 1} together"] = together
    return values


def check_posterior(draws, lines, comparisons):
    """Yield what is compared of one program's sample of the posterior."""
    theirs = lines.set_index("quantity")
    degrees = CHAINS * BATCHES - 1
    most = stats.t.isf(FALSE_ALARMS / 2 / comparisons, degrees)
    for name, values in invariants(draws).items():
        if name not in theirs.index:
            continue
        other, other_error = theirs.loc[name, ["value", "error"]]
        batches = values.reshape(CHAINS * BATCHES, -1).mean(axis=1)
        error = np.hypot(batches.std(ddof=1) / np.sqrt(len(batches)), other_error)
        if "together" in name and not SURE < other < 1 - SURE:
            yield Check(f"{name}: sure", abs(values.mean() - other), SURE)
        else:
            apart = abs(values.mean() - other)
            yield Check(name, apart / error if error else apart, most if error else 0)


def lines_of(case, program, table, known, *, rerun):
    """Return a program's numbers: new ones where it can be run, or those that are kept."""
    keys = dict(zip(programs.KEYS, (case.table, case.kind, case.classes, program), strict=True))
    if not rerun or not programs.installed(program):
        return known[np.all([known[key] == value for key, value in keys.items()], axis=0)]
    schema = infer_schema(table, kinds=dict.fromkeys(table, case.kind))
    units = [(variable.location, variable.scale) for variable in schema.numbers]
    return programs.run(program, table, case.kind, case.classes, units).assign(**keys)


def checks_of(case, table, numbers, comparisons):
    """Yield the checks of one table, with the program that each is about."""
    if case in POSTERIORS:
        schedule = {"chains": CHAINS, "iterations": ITERATIONS, "burn_in": 2_000, "thin": 4}
        draws = silomix.sample(table, **settings(case, table), **schedule)
        for program, lines in numbers.items():
            yield from ((program, check) for check in check_posterior(draws, lines, comparisons))
        return
    draws = silomix.sample(table, **settings(case, table))
    best = draws.log_likelihood.argmax()
    start = [part[best].astype(np.float64) for part in (draws.weights, draws.probabilities)]
    top = climb(draws.family, draws.shard, *start)
    for program, lines in numbers.items():
        yield from ((program, check) for check in check_estimate(case, table, draws, top, lines))


def gather(cases, names, known, *, rerun):
    """Return, for each case, its table and the lines of each program; say what is left out."""
    tasks, found = {}, {}
    with ThreadPoolExecutor(2) as pool:
        for case in cases:
            table = tables.read(case.table)
            if table is None:
                print(f"left out: {case.table}, which is not here: set SILOMIX_DATA to its folder")
                continue
            found[case] = table, {}
            for program in set(case.programs) & names:
                tasks[case, program] = pool.submit(
                    lines_of, case, program, table, known, rerun=rerun
                )
    for (case, program), task in sorted(tasks.items()):
        if len(task.result()):
            found[case][1][program] = task.result()
        else:
            print(f"left out: {program} for {case.table}: not installed, and no numbers kept")
    return {case: (table, numbers) for case, (table, numbers) in found.items() if numbers}


def main(words=None):
    every = [*ESTIMATES, *POSTERIORS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default=",".join(case.table for case in every))
    parser.add_argument("--programs", default=",".join(p for case in every for p in case.programs))
    parser.add_argument("--installed", choices=["yes", "no"], default="yes")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(words)
    known = pd.read_csv(programs.NUMBERS)
    names = set(chosen.programs.split(","))
    cases = [case for case in every if case.table in chosen.tables.split(",")]
    found = gather(cases, names, known, rerun=chosen.installed == "yes")
    if chosen.write:
        lines = pd.concat([part for _, numbers in found.values() for part in numbers.values()])
        is_old = known.set_index(programs.KEYS).index.isin(lines.set_index(programs.KEYS).index)
        lines = pd.concat([lines, known[~is_old]])[programs.COLUMNS]
        lines = lines.sort_values(programs.KEYS, kind="stable").astype({"cluster": "Int64"})
        lines.to_csv(programs.NUMBERS, index=False)
    comparisons = sum(
        len(part) for case, (_, numbers) in found.items() if case in POSTERIORS
        for part in numbers.values()
    )  # fmt: skip
    failed = 0
    for case, (table, numbers) in found.items():
        for program, check in checks_of(case, table, numbers, comparisons):
            good = check.value <= check.most
            failed += not good
            what = f"{case.table}, {case.classes} {case.kind}, {program}: {check.name}"
            compared = f"{check.value:.3g}, at most {check.most:.3g}"
            print(f"{'agrees' if good else 'DIFFERS'}  {what}: {compared}", flush=True)
    print(f"{failed} checks failed" if failed else "all agree")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
