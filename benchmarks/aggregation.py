"""What one evaluation of the aggregation's objective costs, and a whole solve.

The cost of value and gradient together should grow no faster than draws × distinct rows ×
clusters × variables: each factor is doubled in turn, and the slope of log time on log factor is
fitted. One process, one thread, CPU time, the fastest of repeats. Quality stands next to time: the
objective that the solve reaches is compared with that of ten other starts.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from silomix.coordinator.aggregation import lbfgs
from silomix.coordinator.aggregation.objective import (
    Objective,
    blocks_held,
    evaluate,
    hypercube,
    join,
    of_rows,
)
from silomix.families import make_family
from silomix.kernels.arrays import RowCounts, distinct_rows
from silomix.kernels.layout import row_table
from silomix.kernels.likelihood import expected_counts
from silomix.model.draws import MatchedDraws
from silomix.model.schema import Prior, Schema, Variable
from silomix.study.methods import Lbfgs

RESULTS = Path(__file__).parent / "results" / "aggregation.json"
REPEATS = 5
SILOS = 4
FLOOR = 1e-6
STEEPEST = 1.15
"""A slope above this is more than linear; the rest is noise and what caches do."""
PAPER_VARIABLES = (2,) * 4 + (3,) * 6


@dataclass(frozen=True)
class Size:
    draws: int = 200
    rows: int = 3000
    clusters: int = 6
    variables: int = 10

    @property
    def levels(self) -> np.ndarray:
        return np.array([2 if q % 5 < 2 else 3 for q in range(self.variables)])


DOUBLED = {
    "draws": [100, 200, 400, 800],
    "rows": [1500, 3000, 6000, 12_000],
    "clusters": [6, 12, 24, 48],
    "variables": [10, 20, 40, 80],
}


def dirichlets(rng: np.random.Generator, shapes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Draws of level probabilities of the shapes (…, level), variable by variable."""
    gammas = rng.standard_gamma(shapes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    totals = np.add.reduceat(gammas, offsets[:-1], axis=-1)
    return gammas / np.repeat(totals, sizes, axis=-1)


def objective_on(matched: MatchedDraws, rows: RowCounts, sizes: np.ndarray) -> Objective:
    variables = [Variable(f"x{q}", tuple(map(str, range(k)))) for q, k in enumerate(sizes)]
    family = make_family(Schema(tuple(variables)), Prior())
    table = row_table(rows.codes, rows.counts, sizes)
    oracle = of_rows(family, partial(expected_counts, rows=table))
    return Objective(matched, oracle, Prior().alpha, family)


def random_objective(size: Size) -> Objective:
    """Draws and rows without structure: the cost does not depend on it."""
    rng = np.random.default_rng(0)
    sizes = size.levels
    weights = rng.dirichlet(np.ones(size.clusters), (SILOS, size.draws))
    shapes = np.ones((SILOS, size.draws, size.clusters, sizes.sum()))
    held = np.ones((SILOS, size.clusters), dtype=bool)
    matched = MatchedDraws(weights, dirichlets(rng, shapes, sizes), held)
    codes = np.stack([rng.integers(0, k, size.rows) for k in sizes], axis=1).astype(np.uint8)
    return objective_on(matched, RowCounts(codes, np.ones(size.rows, np.int64)), sizes)


def seconds(objective: Objective) -> float:
    """CPU seconds of one evaluation, the fastest of some."""
    held = blocks_held(objective.matched.held)
    point = (held / held.sum(axis=0))[None]
    evaluate(objective, point)
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        evaluate(objective, point)
        taken.append(time.process_time() - began)
    return min(taken)


def growth() -> list[dict[str, object]]:
    rows = []
    for factor, values in DOUBLED.items():
        times = [seconds(random_objective(replace(Size(), **{factor: value}))) for value in values]
        slope = np.polyfit(np.log(values), np.log(times), 1)[0]
        rows.append(
            {
                "factor": factor,
                "values": values,
                "milliseconds": [round(1000 * each, 2) for each in times],
                "slope": round(float(slope), 3),
                "last_doubling": round(times[-1] / times[-2], 2),
                "bar": STEEPEST,
            }
        )
    return rows


def planted(draws: int, seed: int = 0) -> tuple[Objective, np.ndarray]:
    """Four silos of the paper's size, six clusters of which each silo has four or five.

    Their draws are conjugate, given the rows' true clusters. Returns the point of the silos'
    sizes too.
    """
    rng = np.random.default_rng(seed)
    sizes, prior = np.array(PAPER_VARIABLES), Prior()
    holds = np.ones((SILOS, 6), dtype=bool)
    holds[[0, 1, 1, 2, 3], [5, 4, 5, 1, 2]] = False
    profiles = [rng.dirichlet(np.ones(k), 6) for k in sizes]
    alpha, beta = prior.share(SILOS)
    weights = np.zeros((SILOS, draws, 6))
    probabilities = np.zeros((SILOS, draws, 6, sizes.sum()))
    members = np.zeros((SILOS, 6))
    tables = []
    for s, held in enumerate(holds):
        labels = rng.choice(np.flatnonzero(held), 1000)
        cells = [
            (rng.random((1000, 1)) > p[labels].cumsum(axis=1)[:, :-1]).sum(axis=1) for p in profiles
        ]
        tables.append(np.stack(cells, axis=1).astype(np.uint8))
        members[s] = np.bincount(labels, minlength=6)
        weights[s][:, held] = rng.dirichlet(members[s][held] + alpha, draws)
        for c in np.flatnonzero(held):
            mine = tables[s][labels == c]
            counts = [np.bincount(mine[:, q], minlength=k) for q, k in enumerate(sizes)]
            shapes = np.tile(np.concatenate(counts) + beta, (draws, 1))
            probabilities[s, :, c] = dirichlets(rng, shapes, sizes)
    matched = MatchedDraws(weights, probabilities, holds)
    start = join(np.full(SILOS, 1 / SILOS), members / members.sum(axis=0))
    return objective_on(matched, distinct_rows(np.concatenate(tables)), sizes), start


def whole_solve() -> dict[str, object]:
    objective, start = planted(200)
    others = hypercube(10, objective.held, np.random.default_rng(1))
    began = time.process_time()
    found = lbfgs(objective, np.concatenate([start[None], others[:2]]), Lbfgs(), FLOOR)
    taken = time.process_time() - began
    best = lbfgs(objective, others, Lbfgs(), FLOOR)
    return {
        "workload": "4 silos of 1,000 rows, 6 clusters, 10 variables, 200 draws, 3 starts",
        "seconds": round(taken, 3),
        "evaluations": found.evaluations,
        "elbo": round(found.elbo, 3),
        "elbo_of_ten_other_starts": round(best.elbo, 3),
    }


def commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def main() -> None:
    one = seconds(random_objective(Size()))
    print(f"one evaluation at {Size()}: {1000 * one:.1f} ms")
    rows = growth()
    for row in rows:
        times = "  ".join(
            f"{value:>6}: {taken:7.1f}"
            for value, taken in zip(row["values"], row["milliseconds"], strict=True)
        )
        print(
            f"{row['factor']:>10}  ms at {times}   slope {row['slope']:.2f}, "
            f"last doubling x {row['last_doubling']}"
        )
    solve = whole_solve()
    print(
        f"whole solve ({solve['workload']}): {solve['seconds']} s, {solve['evaluations']} "
        f"evaluations, ELBO {solve['elbo']} (ten other starts: {solve['elbo_of_ten_other_starts']})"
    )
    record = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "repeats": REPEATS,
        "one_evaluation_milliseconds": round(1000 * one, 2),
        "growth": rows,
        "solve": solve,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {RESULTS}")
    steep = [row["factor"] for row in rows if row["slope"] > STEEPEST]
    if steep or solve["elbo"] < solve["elbo_of_ten_other_starts"] - 0.1:
        raise SystemExit(f"a bar was missed: {steep or 'the solve'}")


if __name__ == "__main__":
    main()
