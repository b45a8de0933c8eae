"""The solvers of the aggregation on the paper's easy heterogeneous data.

    python reproduction/solvers.py --datasets 10       # runs what is missing, appends, prints

1. `few-rounds` (10 exchanges, 300 starts) against `psgd` (3 starts, up to 1000 steps), the paper's
   comparison: which reaches the higher relaxed ELBO; a difference under 0.1 is a tie.
2. `lbfgs` against `psgd` from the same start, which `lbfgs` lifts off the simplex's edges: how
   far below it ends, and in how many evaluations.

Both of the paper's solvers use the step rule of `silomix.aggregation.solvers`.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pandas as pd

import silomix
from silomix.aggregation.matched import first_draws, matched_draws
from silomix.aggregation.objective import Objective
from silomix.aggregation.simplex import hypercube
from silomix.aggregation.solvers import few_rounds, lbfgs, psgd
from silomix.aggregation.vcmc import Model, choose_oracle
from silomix.data import load
from silomix.errors import SamplingWarning
from silomix.matching import match
from silomix.messages import SampleLocally
from silomix.silo import Silo
from silomix.study import FewRounds, Lbfgs, Psgd, make_study
from silomix.transports.in_process import InProcess
from silomix.types import Shard

RESULTS = Path(os.environ.get("SILOMIX_SOLVERS", Path(__file__).parent / "results" / "solvers.csv"))
FIRST_SEED = 2000
DESIGNS = ("nested", "non-nested")
SAME_STARTS = 3
COLUMNS = [
    "design", "seed", "few_rounds", "psgd", "difference", "few_rounds_seconds", "psgd_seconds",
    "psgd_evaluations", "lbfgs_shortfall", "lbfgs_evaluations", "lbfgs_seconds",
]  # fmt: skip


def objective_of(design, seed):
    """Sample and match one data set with our defaults; return the aggregation's objective."""
    table, truth = silomix.simulate(design, separability="easy", seed=seed)
    shard = load(table.drop(columns="silo"))
    study = make_study(shard.schema, truth.silos, seed=seed)
    silos = InProcess(
        [
            Silo(
                name,
                place,
                Shard(shard.schema, shard.codes[(table["silo"] == name).to_numpy()]),
                study,
            )
            for place, name in enumerate(truth.silos)
        ]
    )
    replies = silos.ask(SampleLocally())
    releases = [replies[name] for name in silos.names]
    offsets = shard.schema.offsets
    found, _ = match(releases, study.matching, silos, prior=study.prior, offsets=offsets, seed=seed)
    matched = matched_draws(releases, found, 1000, study.prior, offsets, seed)
    model = Model(study.prior, shard.schema.sizes, seed, 1)
    settings = study.aggregation
    return Objective(
        matched=first_draws(matched, settings.draws),
        oracle=choose_oracle(settings, silos, model),
        prior=study.prior,
        sizes=shard.schema.sizes,
        log_determinant=settings.log_determinant,
    ), settings.floor


def timed(call):
    began = time.process_time()
    result = call()
    return result, round(time.process_time() - began, 2)


def run_one(design, seed):
    """Compare the solvers on one data set: a line of the results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        objective, floor = objective_of(design, seed)
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
    return {
        "design": design,
        "seed": seed,
        "few_rounds": round(few.elbo, 3),
        "psgd": round(long.elbo, 3),
        "difference": round(few.elbo - long.elbo, 3),
        "few_rounds_seconds": few_seconds,
        "psgd_seconds": long_seconds,
        "psgd_evaluations": long.evaluations,
        "lbfgs_shortfall": round(max(shortfalls), 4),
        "lbfgs_evaluations": max(evaluations),
        "lbfgs_seconds": round(seconds, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=10, help="of each design")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    lines = pd.read_csv(RESULTS) if RESULTS.exists() else pd.DataFrame(columns=COLUMNS)
    done = set(lines[["design", "seed"]].itertuples(index=False, name=None))
    cases = [(d, FIRST_SEED + n) for n in range(chosen.datasets) for d in DESIGNS]
    todo = [case for case in cases if case not in done]
    RESULTS.parent.mkdir(exist_ok=True)
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file, ProcessPoolExecutor(chosen.jobs) as pool:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        for finished in as_completed([pool.submit(run_one, *case) for case in todo]):
            writer.writerow(finished.result())
            file.flush()
    lines = pd.read_csv(RESULTS)
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
