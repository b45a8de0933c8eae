"""Variational consensus Monte Carlo: weighted means, by the weights of the largest relaxed ELBO.

A solver is a function with the signature of `lbfgs`, registered in `silomix.study.SOLVERS`. That is
a quasi-Newton method on log-weights through a softmax, each block of them on its own scale: about
ten evaluations from the silos' sizes, twenty from anywhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from silomix.coordinator.aggregation import simplex
from silomix.coordinator.aggregation.objective import (
    Objective,
    contingency,
    determinant_factors,
    evaluate,
    federated,
)
from silomix.messages.released_draws import MATCHED_STREAM
from silomix.study.methods import SOLVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.coordinator.aggregation import Aggregated, AggregationProblem
    from silomix.kernels.arrays import Floats, Ints, Rng
    from silomix.model.draws import Correspondence
    from silomix.study import Lbfgs, Vcmc

# branches of the random stream: where to start, and which draws a stochastic step looks at
STARTS, STEPS = 1, 2
# rows times draws that the objective looks at: beyond, the solvers would take hours
MOST_ROW_DRAWS = 10_000_000
LEAST_DRAWS = 48
# a weight below this many floors is at the floor
AT_FLOOR = 1.1
# SciPy's status of a run that its callback ended
STOPPED = 99
# of an even share: `lbfgs` starts no weight lower, since in logs the way back is long
LEAST_SHARE = 0.3
# minimum distance of a weight from the floor in `lbfgs`, as a multiple of the floor
NEAR_FLOOR = 0.05
# logs start at most zero and matter up to a shift: this is room enough to move
HIGHEST_LOG = 3.0


def maximise_elbo(problem: AggregationProblem, settings: Vcmc) -> Aggregated:
    """Average the silos' draws, by the weights that maximise the relaxed ELBO.

    Fendler et al. (2026), section 4.4. One silo has nothing to weigh, and is asked nothing.
    """
    matched, silos, rows = problem.matched, problem.silos, problem.rows
    if len(rows) == 1:
        return problem.average(np.ones(1), matched.held.astype(np.float64))
    model, family = problem.model, problem.model.family
    used = objective_draws(settings.draws, int(rows.sum()))
    here = settings.oracle == "contingency"
    threads, share = problem.threads, problem.share
    oracle = contingency(silos, family, threads) if here else federated(silos, share)
    some, reading = matched.some(0, used), settings.log_determinant
    objective = Objective(some, oracle, model.prior.alpha, family, reading)
    by_size = size_weights(rows, problem.correspondence)
    found = maximise(objective, by_size, settings, model.seed)
    notes = tuple(describe(found, settings, silos.names, int(rows.sum())))
    averaged = problem.average(found.weights, found.profiles)
    return replace(averaged, elbo_trace=found.trace, notes=notes)


def objective_draws(draws: int, rows: int) -> int:
    """Return how many draws the objective takes: fewer than asked for where rows are many."""
    return min(draws, max(LEAST_DRAWS, MOST_ROW_DRAWS // max(rows, 1)))


def size_weights(rows: Ints, correspondence: Correspondence) -> Floats:
    """Return the point λ_s ∝ n_s, μ_{s,c} ∝ rows of cluster c in silo s: (silo, block)."""
    return simplex.join(rows / rows.sum(), correspondence.rows / correspondence.rows.sum(axis=0))


def maximise(objective: Objective, by_size: Floats, settings: Vcmc, seed: int) -> Solution:
    """Maximise the relaxed ELBO by the solver that the settings name.

    Most solvers start at the silos' sizes and then from a Latin hypercube: with three exchanges a
    good start is worth more than a hundred random ones. The paper starts from the hypercube alone.

    Parameters
    ----------
    by_size : (silo, block), from `size_weights`.
    """
    solver = settings.solver
    rng, steps = (
        np.random.default_rng([seed, MATCHED_STREAM, branch]) for branch in (STARTS, STEPS)
    )
    sized = by_size[None][: int(solver.from_sizes)]
    others = simplex.hypercube(solver.starts - len(sized), objective.held, rng)
    starts = np.concatenate([sized, others])
    solution: Solution = SOLVERS.function(solver)(objective, starts, solver, settings.floor, steps)
    return solution


def describe(found: Solution, settings: Vcmc, silos: tuple[str, ...], rows: int) -> Iterator[str]:
    """Say in plain sentences what a reader of the result should see."""
    used = objective_draws(settings.draws, rows)
    if used < settings.draws:
        yield (
            f"The aggregation weights were learned on {used} draws instead of "
            f"{settings.draws}, since there are {rows:,} rows."
        )
    at_floor = found.weights < AT_FLOOR * settings.floor
    low = [name for name, binds in zip(silos, at_floor, strict=True) if binds]
    if low:
        yield (
            f"The weight of {', '.join(low)} fell to the floor, {settings.floor:g}: with "
            "alpha below one the objective can grow as the weight of a silo with clusters of its "
            "own vanishes, and has no maximum without the floor. Check whether those clusters "
            "are real."
        )
    if not found.converged and settings.solver.exchanges is None:
        tried = f"after {len(found.trace)} evaluations"
        yield f"The aggregation weights were still moving {tried}; allow more steps."


class Solution(NamedTuple):
    """The best point found.

    Attributes
    ----------
    weights : (silo,), λ; profiles : (silo, cluster), μ.
    elbo : the objective there.
    trace : (evaluation,), the objective at every point tried from the winning start.
    evaluations : points at which the whole objective was asked for, over all starts.
    converged : whether the winning start met the stopping rule.
    """

    weights: Floats
    profiles: Floats
    elbo: float
    trace: Floats
    evaluations: int
    converged: bool


def lbfgs(
    objective: Objective, starts: Floats, settings: Lbfgs, floor: float, _: Rng | None = None
) -> Solution:
    """Climb from each start by L-BFGS on the logs of a softmax; the best ELBO wins.

    A run stops when a step raises the objective by less than `settings.tolerance`. Starts are
    first lifted off the edges: no weight begins below `LEAST_SHARE` of an even one.

    Parameters
    ----------
    starts : (start, silo, block), see `silomix.coordinator.aggregation.simplex`.
    floor : the smallest entry of a point.
    """
    runs = [_lbfgs_from(objective, start, settings, floor) for start in starts]
    made = sum(run.evaluations for run in runs)
    return max(runs, key=lambda run: run.elbo)._replace(evaluations=made)


def _lbfgs_from(objective: Objective, start: Floats, settings: Lbfgs, floor: float) -> Solution:
    held = objective.held
    logs = simplex.softmax_inverse(simplex.project(start, held, floor), held, floor)
    logs = np.maximum(logs, np.log(LEAST_SHARE / held.sum(axis=0)))
    trace: list[float] = []
    accepted: list[float] = []

    def evaluate_here() -> Floats:
        point = simplex.softmax(logs, held, floor)
        found = evaluate(objective, point[None])
        trace.append(float(found.value[0]))
        return simplex.softmax_gradient(found.gradient[0], point, held, floor)

    slopes = [evaluate_here()]
    scales = _scales(objective, slopes[0])[held]

    def downhill(scaled: Floats) -> tuple[float, Floats]:
        logs[held] = scaled / scales
        slope = slopes.pop() if slopes else evaluate_here()
        return -trace[-1], -slope[held] / scales

    def stop(intermediate_result: OptimizeResult) -> None:
        # SciPy's own tolerance is relative to the objective, which grows with the rows
        if accepted and -intermediate_result.fun - accepted[-1] < settings.tolerance:
            raise StopIteration
        accepted.append(-intermediate_result.fun)

    # below these logs a weight is the floor to all intents, and has no slope to come back on
    lowest = np.log(min(NEAR_FLOOR * floor, LEAST_SHARE / len(held)))
    run = minimize(
        downhill,
        logs[held] * scales,
        jac=True,
        method="L-BFGS-B",
        bounds=[(lowest * scale, HIGHEST_LOG * scale) for scale in scales],
        callback=stop,
        options={"maxiter": settings.steps, "ftol": 0.0},
    )
    logs[held] = run.x / scales
    at_rest = run.success or run.status == STOPPED
    point = simplex.split(simplex.softmax(logs, held, floor))
    return Solution(*point, -float(run.fun), np.array(trace), len(trace), at_rest)


def _scales(objective: Objective, slopes: Floats) -> Floats:
    """Return what multiplies the logs of each block so that all bend alike: (silo, block).

    Guessed from the start: a block is some units of log-weight away from its maximum, so it
    bends about as much as it slopes, and no less than its log-determinant.
    """
    bends = np.maximum(np.linalg.norm(slopes, axis=0), determinant_factors(objective))
    return np.broadcast_to(np.sqrt(np.maximum(bends, 1.0)), slopes.shape)
