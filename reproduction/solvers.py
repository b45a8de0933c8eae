"""The solvers of the aggregation on the paper's easy heterogeneous data.

    python reproduction/solvers.py --datasets 28       # runs what is missing, appends, prints

1. `few-rounds` (10 exchanges, 300 starts) against `psgd` (3 starts, up to 1000 steps), the paper's
   comparison: which reaches the higher relaxed ELBO; a difference under 0.1 is a tie.
2. `lbfgs` against `psgd` from the same start, which `lbfgs` lifts off the simplex's edges: how
   far below it ends, and in how many evaluations.

Both of the paper's solvers use the step rule of `silomix.paper.aggregations`.
"""

from __future__ import annotations

import numpy as np
from judging import quietly, timed
from running import arguments, done_cases, read_lines, run_cases

import silomix
from silomix.coordinator.aggregation import lbfgs
from silomix.coordinator.aggregation.objective import Objective, contingency, hypercube
from silomix.coordinator.matching import match
from silomix.messages import SampleLocally
from silomix.messages.released_draws import effective_counts, matched_draws
from silomix.paper import FewRounds, Psgd
from silomix.paper.aggregations import few_rounds, psgd
from silomix.rivals.federation import open_silos
from silomix.study import Lbfgs

FIRST_SEED = 2000
DESIGNS = ("nested", "non-nested")
SAME_STARTS = 3
KEYS = ["design", "seed"]
COLUMNS = [
    *KEYS, "few_rounds", "psgd", "difference", "few_rounds_seconds", "psgd_seconds",
    "psgd_evaluations", "lbfgs_shortfall", "lbfgs_evaluations", "lbfgs_seconds",
]  # fmt: skip


def objective_of(design, seed):
    """Sample and match one data set with our defaults; return the aggregation's objective."""
    table, _ = silomix.simulate(design, separability="easy", seed=seed)
    federation = open_silos(table, "silo", seed=seed, threads=1)
    study, silos = federation.study, federation.silos
    releases, model = federation.ask(SampleLocally()), study.pooled_model
    counts = [effective_counts(release, model, len(releases)) for release in releases]
    found, _ = match(releases, counts, study.matching, silos, model, drift=False)
    matched = matched_draws(releases, found.groups, 1000, model)
    settings = study.aggregation
    return Objective(
        matched=matched.some(0, settings.draws),
        oracle=contingency(silos, model.family),
        alpha=study.prior.alpha,
        family=model.family,
        log_determinant=settings.log_determinant,
    ), settings.floor


def run_one(design, seed):
    """Compare the solvers on one data set: a line of the results."""
    objective, floor = quietly(lambda: objective_of(design, seed))
    rng = np.random.default_rng(seed)
    starts = hypercube(300, objective.held, rng)
    few, few_seconds = timed(lambda: few_rounds(objective, starts, FewRounds(), floor))
    long, long_seconds = timed(lambda: psgd(objective, starts[:3], Psgd(), floor, rng))
    shortfalls, evaluations, seconds = [], [], 0.0
    for start in starts[:SAME_STARTS]:
        one = psgd(objective, start[None], Psgd(), floor, np.random.default_rng(seed))
        quick, taken = timed(lambda start=start: lbfgs(objective, start[None], Lbfgs(), floor))
        shortfalls.append(one.elbo - quick.elbo)
        evaluations.append(quick.evaluations)
        seconds += taken
    line = {
        "design": design,
        "seed": seed,
        "few_rounds": round(few.elbo, 3),
        "psgd": round(long.elbo, 3),
        "difference": round(few.elbo - long.elbo, 3),
        "few_rounds_seconds": round(few_seconds, 2),
        "psgd_seconds": round(long_seconds, 2),
        "psgd_evaluations": long.evaluations,
        "lbfgs_shortfall": round(max(shortfalls), 4),
        "lbfgs_evaluations": max(evaluations),
        "lbfgs_seconds": round(seconds, 2),
    }
    return [line]


def main(words=None):
    chosen = arguments(__doc__, datasets=28).parse_args(words)
    path = chosen.results / "solvers.csv"
    done = done_cases(path, COLUMNS, KEYS)
    cases = [(d, FIRST_SEED + n) for n in range(chosen.datasets) for d in DESIGNS]
    todo = [case for case in cases if case not in done]
    run_cases(path, COLUMNS, run_one, todo, chosen.jobs)
    lines = read_lines(path, COLUMNS)
    won, lost = (lines["difference"] >= 0.1).mean(), (lines["difference"] <= -0.1).mean()
    print(
        f"{len(lines)} data sets. few-rounds (10 exchanges x 300 starts) against psgd (3 starts x "
        f"1000 steps): won {won:.0%}, tied {1 - won - lost:.0%}, lost {lost:.0%}; CPU seconds "
        f"{lines['few_rounds_seconds'].mean():.1f} against {lines['psgd_seconds'].mean():.1f}."
    )
    print(
        f"lbfgs against psgd from the same start: at worst {lines['lbfgs_shortfall'].max():.3f} "
        f"below it, in at most {lines['lbfgs_evaluations'].max()} evaluations."
    )


if __name__ == "__main__":
    main()
