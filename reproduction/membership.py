"""Whether a person's row was in a silo's table, guessed from its release.

    python reproduction/membership.py --datasets 40      # runs what is missing, appends, prints

A silo of three clusters of people, with binary conditions or with counts, releases its summary
under each preset of policies. The attacker knows all values of a person, the true shares and
profiles of the population, and the rules. The score is the ratio of the likelihoods of the release
with the person in the table and without, summed over the cluster that the person may be in. The
area under the curve (AUC) is of scores of all the people in the table against as many of the same
population who are not: .5 is a guess, 1 is certainty. "Naive" is an attacker who takes the numbers
for exact. Conditions are binary, counts are Poisson; sums of counts are reckoned with as normal.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from judging import quietly
from running import arguments, done_cases, read_lines, run_cases
from scipy.special import logsumexp
from scipy.stats import binom, poisson, rankdata
from writing import as_markdown, with_error

import silomix
from silomix.families.disclosure import MARGIN
from silomix.families.poisson import BOUND, mean_of_coded
from silomix.families.release_rounding import (
    CLUSTER,
    least_units,
    log_between,
    profile_basis,
    round_profile,
)
from silomix.silo.release import make_release
from silomix.study.policy import PRESETS, Policy

DOCS = Path(__file__).parents[1] / "docs" / "tables"
FIRST_SEED = 11_000
CASES = (
    ("conditions", 60, 10),
    ("conditions", 200, 10),
    ("conditions", 60, 40),
    ("conditions", 200, 40),
    ("conditions", 200, 150),
    ("counts", 200, 40),
)
"""Kind, rows and variables."""
RANGES = {"conditions": (0.05, 0.95), "counts": (0.5, 6.0)}
"""Of prevalences, and of rates."""
SHARES = np.array([0.5, 0.3, 0.2])
TINY = 1e-9
POLICIES = ("open", "default", "opensafely", "ukllc", "omop", "pcornet")
KEYS = ["kind", "rows", "variables", "seed"]
COLUMNS = [*KEYS, "policy", "clusters", "auc", "naive"]


def draw_people(rng, rows, profiles, kind):
    """Return people of the population: (row, variable)."""
    cluster = rng.choice(len(SHARES), rows, p=SHARES)
    if kind == "counts":
        return rng.poisson(profiles[cluster])
    return (rng.random((rows, profiles.shape[1])) < profiles[cluster]).astype(np.uint8)


def released_as(size, policy):
    """Return what each count of a condition is released as, of a cluster of so many: (count,)."""
    counts = np.arange(size + 1)
    if not policy.has_rules:
        return counts
    both = np.stack([size - counts, counts], axis=1) / size
    return np.array([np.rint(size * round_profile(m, size, size, policy)[1]) for m in both])


def log_ratios(size, released, prevalences, policy):
    """Return log P(released | one more person) / P(released | none), (condition, has it or not).

    Parameters
    ----------
    size : rows of the cluster, as released.
    released : (condition,), the released count; prevalences : (condition,), of the population.
    policy : the rules that the attacker reckons with.
    """
    counts = np.arange(size + 1)
    alike = released_as(size, policy)[None] == released[:, None]
    others = binom.pmf(counts, size - 1, prevalences[:, None])
    without = (alike * binom.pmf(counts, size, prevalences[:, None])).sum(axis=1)
    lacking = (alike * others).sum(axis=1)
    having = (alike[:, 1:] * others[:, :-1]).sum(axis=1)
    # what the population makes all but impossible says no more than so much
    ends = np.maximum(np.stack([lacking, having], axis=1), TINY), np.maximum(without, TINY)
    return np.log(ends[0]) - np.log(ends[1])[:, None]


def told_by_conditions(people, size, released, prevalences, policy):
    """Return the log ratios of a cluster's released prevalences for each person: (row, variable).

    Parameters
    ----------
    released : (condition,), shares of the rows; prevalences : (condition,), of the population.
    """
    ratios = log_ratios(size, np.rint(released * size), prevalences, policy)
    return np.where(people, ratios[:, 1], ratios[:, 0])


def told_by_counts(people, size, released, rates, policy, concentration, means):
    """Return the log ratios of a cluster's released mean counts for each person: (row, variable).

    The expected sum of top-coded counts is exact and its variance near, as in the Poisson family;
    the count of the person is coded at the quantiles where the ranks are expected to be.

    Parameters
    ----------
    released : (count,), means; rates : (count,), of the population.
    concentration : (count,), as released; means : (count,), over the population.
    """
    least = least_units(policy) * policy.round_to
    step = np.ones(len(rates)) / size
    if policy.has_rules:
        reach = means + BOUND * np.sqrt(np.maximum(means, 1))
        step = max(MARGIN, policy.round_to) * reach / np.maximum(concentration, 1)
    ends = released - step / 2, released + step / 2
    mean, more = (mean_of_coded(rate, size, least) for rate in (rates, 1.01 * rates))
    slope = (more - mean) / (0.01 * rates)
    variance = (slope**2 * rates + 2 * np.abs(rates - mean)) / size
    rank = min(least / size, 0.5)
    coded = np.clip(people, *poisson.ppf([[rank], [1 - rank]], rates)) if least > 1 else people
    moved = mean + (coded - mean) / size
    without = [(end - mean) / np.sqrt(variance) for end in ends]
    within = [(end - moved) / np.sqrt(variance * max(size - 1, TINY) / size) for end in ends]
    logs = [np.maximum(log_between(*both), np.log(TINY)) for both in (within, without)]
    return logs[0] - logs[1]


def scores(people, release, profiles, kind, policy):
    """Return the log-likelihood ratio of each person being in the table: (person,)."""
    # of a condition the share of those who have it, of a count the mean
    means = release.mean[:, 1::2]
    if kind == "counts":
        logs = [poisson.logpmf(people, rates) for rates in profiles]
        shown = release.concentration > 0
    else:
        logs = [np.where(people, np.log(p), np.log1p(-p)) for p in profiles]
        levels = np.full(people.shape[1], 2)
        shown = profile_basis(release.known, levels, Policy(**release.policy)) == CLUSTER
    basis = np.log(SHARES) + np.stack(logs, axis=1).sum(axis=2)
    belongs = basis - logsumexp(basis, axis=1, keepdims=True)
    total = []
    for cluster, size in enumerate(release.sizes):
        # the population's cluster that it is, by the nearest profile
        true = int(np.abs(profiles - means[cluster]).sum(axis=1).argmin())
        given = people, int(size), means[cluster], profiles[true], policy
        if kind == "counts":
            told = told_by_counts(*given, release.concentration[cluster], SHARES @ profiles)
        else:
            told = told_by_conditions(*given)
        total.append(belongs[:, true] + np.where(shown[cluster], told, 0.0).sum(axis=1))
    return logsumexp(np.stack(total, axis=1), axis=1)


def area(inside, outside):
    """Return how often a score from inside is above one from outside, ties counted half."""
    ranks = rankdata(np.concatenate([inside, outside]))
    low = len(inside) * (len(inside) + 1) / 2
    return float((ranks[: len(inside)].sum() - low) / (len(inside) * len(outside)))


def table_of(people, profiles, kind):
    """Return people as a table, and its schema."""
    names = [f"{kind} {q}" for q in range(people.shape[1])]
    if kind == "counts":
        variables = [
            silomix.Variable(name, kind="poisson", location=float(mean))
            for name, mean in zip(names, SHARES @ profiles, strict=True)
        ]
        return pd.DataFrame(people, columns=names), silomix.Schema(tuple(variables))
    variables = [silomix.Variable(name, ("0", "1")) for name in names]
    return pd.DataFrame(people, columns=names).astype(str), silomix.Schema(tuple(variables))


def run_one(kind, rows, variables, seed):
    """Attack one silo's release under every policy: a line each."""
    rng = np.random.default_rng([seed, rows, variables])
    profiles = rng.uniform(*RANGES[kind], (len(SHARES), variables))
    inside, outside = (draw_people(rng, rows, profiles, kind) for _ in range(2))
    table, schema = table_of(inside, profiles, kind)
    settings = {"components": 10, "silos": 4, "iterations": 4000, "threads": 1, "progress": False}
    local = quietly(
        lambda: silomix.local_posterior(silomix.sample(table, seed=seed, schema=schema, **settings))
    )
    lines = []
    for name in POLICIES:
        policy = PRESETS[name]
        release = make_release(local, silo="here", place=0, study="", tier="summary", policy=policy)
        told = {}
        for word, rules in (("auc", policy), ("naive", PRESETS["open"])):
            both = (scores(some, release, profiles, kind, rules) for some in (inside, outside))
            told[word] = round(area(*both), 5)
        case = {"kind": kind, "rows": rows, "variables": variables, "seed": seed, "policy": name}
        lines.append(case | {"clusters": release.clusters} | told)
    return lines


def membership_page(lines):
    """The table as the documentation shows it."""
    rows = []
    for kind, count, variables in CASES:
        keys = (lines["kind"], lines["rows"], lines["variables"])
        part = lines[(keys[0] == kind) & (keys[1] == count) & (keys[2] == variables)]
        row = {
            "rows × variables": f"{count} × {variables} {kind}",
            "tables": part["seed"].nunique(),
        }
        for name in POLICIES:
            found = part.loc[part["policy"] == name, "auc"]
            row[f"`{name}`"] = with_error(found.mean(), found.sem())
        rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def main(words=None):
    chosen = arguments(__doc__, datasets=40).parse_args(words)
    path = chosen.results / "membership.csv"
    done = done_cases(path, COLUMNS, KEYS, lines=len(POLICIES))
    cases = [(*case, FIRST_SEED + number) for number in range(chosen.datasets) for case in CASES]
    run_cases(path, COLUMNS, run_one, [case for case in cases if case not in done], chosen.jobs)
    lines = read_lines(path, COLUMNS)
    found = lines.groupby([*KEYS[:3], "policy"], sort=False)[["clusters", "auc", "naive"]]
    print(found.agg(["mean", "sem"]).round(3).to_string())
    if chosen.results == Path(__file__).parent / "results":
        (DOCS / "membership.md").write_text(membership_page(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
