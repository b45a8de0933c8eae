"""Maximise the relaxed ELBO over the aggregation weights, the default way.

`lbfgs` is a quasi-Newton method on log-weights through a softmax, each block of them on its own
scale: about ten evaluations from the silos' sizes, twenty from anywhere.

A solver is a function with the signature of `lbfgs`, registered in `silomix.study.SOLVERS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from silomix.coordinator.aggregation import simplex
from silomix.coordinator.aggregation.objective import determinant_factors, evaluate

if TYPE_CHECKING:
    from silomix.coordinator.aggregation.objective import Objective
    from silomix.kernels.arrays import Floats, Rng
    from silomix.study.settings import Lbfgs

# SciPy's status of a run that its callback ended
STOPPED = 99
# of an even share: `lbfgs` starts no weight lower, since in logs the way back is long
LEAST_SHARE = 0.3
# minimum distance of a weight from the floor in `lbfgs`, as a multiple of the floor
NEAR_FLOOR = 0.05
# logs start at most zero and matter up to a shift: this is room enough to move
HIGHEST_LOG = 3.0


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
