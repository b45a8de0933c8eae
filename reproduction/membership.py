"""Whether a person's row was in a silo's table, guessed from its release.

    python reproduction/membership.py --datasets 40      # runs what is missing, appends, prints

A silo of three clusters of people with binary conditions releases its summary under each preset of
policies. The attacker knows all conditions of a person, the true shares and profiles of the
population, and the rules. The score is the ratio of the likelihoods of the release with the person
in the table and without, summed over the cluster that the person may be in. The area under the
curve (AUC) is of scores of all the people in the table against as many of the same population who
are not: .5 is a guess, 1 is certainty. "Naive" is an attacker who takes the numbers for exact
counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from judging import quietly
from running import arguments, done_cases, read_lines, run_cases
from scipy.special import logsumexp
from scipy.stats import binom, rankdata
from writing import as_markdown, with_error

import silomix
from silomix.families.release_rounding import CLUSTER, profile_basis, round_profile
from silomix.silo.release import make_release
from silomix.study.policy import PRESETS, Policy

DOCS = Path(__file__).parents[1] / "docs" / "tables"
FIRST_SEED = 11_000
SIZES = ((60, 40), (200, 40), (200, 150))
"""Rows and variables."""
SHARES = np.array([0.5, 0.3, 0.2])
TINY = 1e-9
POLICIES = ("open", "default", "opensafely", "ukllc", "omop", "pcornet")
KEYS = ["rows", "variables", "seed"]
COLUMNS = [*KEYS, "policy", "clusters", "auc", "naive"]


def draw_people(rng, rows, profiles):
    """Return people of the population: (row, condition)."""
    cluster = rng.choice(len(SHARES), rows, p=SHARES)
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


def scores(people, release, profiles, policy):
    """Return the log-likelihood ratio of each person being in the table: (person,)."""
    yes = release.mean[:, 1::2]
    basis = np.log(SHARES) + np.stack(
        [np.where(people, np.log(p), np.log1p(-p)).sum(axis=1) for p in profiles], axis=1
    )
    belongs = basis - logsumexp(basis, axis=1, keepdims=True)
    own = profile_basis(release.sizes, np.full(people.shape[1], 2), Policy(**release.policy))
    total = []
    for cluster, size in enumerate(release.sizes):
        counts = np.rint(yes[cluster] * size)
        # the population's cluster that it is, by the nearest profile
        true = int(np.abs(profiles - yes[cluster]).sum(axis=1).argmin())
        ratios = log_ratios(int(size), counts, profiles[true], policy)
        ratios[own[cluster] != CLUSTER] = 0.0
        told = np.where(people, ratios[:, 1], ratios[:, 0]).sum(axis=1)
        total.append(belongs[:, true] + told)
    return logsumexp(np.stack(total, axis=1), axis=1)


def area(inside, outside):
    """Return how often a score from inside is above one from outside, ties counted half."""
    ranks = rankdata(np.concatenate([inside, outside]))
    low = len(inside) * (len(inside) + 1) / 2
    return float((ranks[: len(inside)].sum() - low) / (len(inside) * len(outside)))


def run_one(rows, variables, seed):
    """Attack one silo's release under every policy: a line each."""
    rng = np.random.default_rng([seed, rows, variables])
    profiles = rng.uniform(0.05, 0.95, (len(SHARES), variables))
    inside, outside = (draw_people(rng, rows, profiles) for _ in range(2))
    names = [f"condition {q}" for q in range(variables)]
    schema = silomix.Schema(tuple(silomix.Variable(name, ("0", "1")) for name in names))
    table = pd.DataFrame(inside, columns=names).astype(str)
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
            told[word] = round(
                area(*(scores(people, release, profiles, rules) for people in (inside, outside))), 5
            )
        case = {"rows": rows, "variables": variables, "seed": seed, "policy": name}
        lines.append(case | {"clusters": release.clusters} | told)
    return lines


def membership_page(lines):
    """The table as the documentation shows it."""
    rows = []
    for (count, variables), part in lines.groupby(["rows", "variables"], sort=False):
        row = {"rows × variables": f"{count} × {variables}", "tables": part["seed"].nunique()}
        for name in POLICIES:
            found = part.loc[part["policy"] == name, "auc"]
            row[f"`{name}`"] = with_error(found.mean(), found.sem(), 2)
        rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def main(words=None):
    chosen = arguments(__doc__, datasets=40).parse_args(words)
    path = chosen.results / "membership.csv"
    done = done_cases(path, COLUMNS, KEYS, lines=len(POLICIES))
    cases = [(*size, FIRST_SEED + number) for number in range(chosen.datasets) for size in SIZES]
    run_cases(path, COLUMNS, run_one, [case for case in cases if case not in done], chosen.jobs)
    lines = read_lines(path, COLUMNS)
    found = lines.groupby(["rows", "variables", "policy"], sort=False)[["clusters", "auc", "naive"]]
    print(found.agg(["mean", "sem"]).round(3).to_string())
    if chosen.results == Path(__file__).parent / "results":
        (DOCS / "membership.md").write_text(membership_page(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
