"""Maximise the relaxed ELBO over the aggregation weights.

`lbfgs` is a quasi-Newton method on log-weights through a softmax, each block of them on its own
scale: about ten evaluations from the silos' sizes, twenty from anywhere.

`psgd` is the projected stochastic gradient of Fendler et al. (2026), section 4.4, and `few_rounds`
the paper's strategy for silos that answer only a few times. The paper gives no step size. Both use
one rule, which needs no tuning (`_step`, `_factors`): each block of weights moves along its
own gradient by its own length, at first half a mean weight of the block; a step is taken when the
objective rises and taken back when it does not; a block's length then grows by half where its
gradient kept its direction and is halved where it turned, as in Rprop (Riedmiller and Braun, 1993)
but with the direction of the gradient, not its signs. One question serves as judge of the last step
and as direction of the next, so `few_rounds` spends one exchange on a step.

The two differ in the direction only. In `psgd` it is stochastic in the draws: the gradient on one
quarter of them, chosen at random at each step; the objective that judges the step, and that the
stopping rule looks at, is always on all of them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from silomix.coordinator.aggregation import simplex
from silomix.coordinator.aggregation.objective import Evaluation, determinant_factors, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.coordinator.aggregation.objective import Objective
    from silomix.kernels.arrays import Bools, Floats, Rng
    from silomix.study.settings import FewRounds, Lbfgs, Psgd

    Way = Callable[[Floats], Floats] | None

# parts of the draws, fixed once, of which `psgd` takes one at random at each step
BATCHES = 4
# SciPy's status of a run that its callback ended
STOPPED = 99
GROW, SHRINK = 1.5, 0.5
# a start whose blocks all move by less is at rest
SHORTEST = 1e-5
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


def lbfgs(objective: Objective, starts: Floats, settings: Lbfgs, floor: float) -> Solution:
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


def psgd(objective: Objective, starts: Floats, settings: Psgd, floor: float, rng: Rng) -> Solution:
    """Climb from each start along stochastic gradients, projected; the best ELBO wins.

    A run stops when a step that is taken raises the objective by less than
    `settings.tolerance`, or after `settings.steps` steps.

    Parameters
    ----------
    starts, floor : as in `lbfgs`.
    rng : chooses the draws of each step's direction.
    """
    draws = objective.matched.weights.shape[1]
    edges = np.linspace(0, draws, min(BATCHES, draws) + 1).astype(int)
    parts = [
        replace(objective, matched=objective.matched.some(first, last), first=int(first))
        for first, last in pairwise(edges)
    ]

    def direction(points: Floats) -> Floats:
        return evaluate(parts[rng.integers(len(parts))], points).gradient

    return _ascend(objective, starts, floor, settings.steps, settings.tolerance, direction)


def few_rounds(objective: Objective, starts: Floats, settings: FewRounds, floor: float) -> Solution:
    """Climb from all starts together, one exchange a step, `settings.rounds` in all.

    The best ELBO met by any start wins. Parameters as in `lbfgs`.
    """
    return _ascend(objective, starts, floor, settings.rounds - 1, 0.0, None)


def _ascend(
    objective: Objective, starts: Floats, floor: float, steps: int, tolerance: float, way: Way
) -> Solution:
    """Climb at most `steps` steps; a start rests after one that gains less than `tolerance`.

    `way` gives the direction up from points; the gradient there where there is none.
    """
    held = objective.held
    points = simplex.project(starts, held, floor)
    here = evaluate(objective, points)
    lengths = np.tile(0.5 / held.sum(axis=0), (len(points), 1))
    traces = [[float(value)] for value in here.value]
    moving = np.arange(len(points))
    for _ in range(steps):
        at = Evaluation(here.value[moving], here.gradient[moving])
        ways = way(points[moving]) if way else at.gradient
        tried = simplex.project(points[moving] + _step(ways, lengths[moving], held), held, floor)
        there = evaluate(objective, tried)
        better = there.value > at.value
        lengths[moving] *= _factors(at.gradient, there.gradient, held, better)
        gains = np.where(better, there.value - at.value, np.inf)
        taken = moving[better]
        points[taken], here.value[taken] = tried[better], there.value[better]
        here.gradient[taken] = there.gradient[better]
        for start, value in zip(moving, there.value, strict=True):
            traces[start].append(float(value))
        at_rest = (gains < tolerance) | (lengths[moving].max(axis=1) < SHORTEST)
        moving = moving[~at_rest]
        if not len(moving):
            break
    best = int(here.value.argmax())
    value, made, rests = float(here.value[best]), sum(map(len, traces)), best not in moving
    return Solution(*simplex.split(points[best]), value, np.array(traces[best]), made, rests)


def _along(gradient: Floats, held: Bools) -> Floats:
    """Return the part of a gradient that stays on the simplices: less its mean in each block."""
    mean = np.sum(gradient * held, axis=-2, keepdims=True) / held.sum(axis=0)
    return np.where(held, gradient - mean, 0.0)


def _step(ways: Floats, lengths: Floats, held: Bools) -> Floats:
    """Return steps (start, silo, block) along the gradients, of these lengths (start, block)."""
    along = _along(ways, held)
    norms = np.linalg.norm(along, axis=-2, keepdims=True)
    return lengths[:, None, :] * along / np.maximum(norms, simplex.TINY)


def _factors(before: Floats, after: Floats, held: Bools, better: Bools) -> Floats:
    """Return what multiplies the lengths after a step: (start, block).

    A block whose gradient turned went too far. Where the objective fell and no block's
    gradient turned, all of them did.
    """
    turned = np.sum(_along(before, held) * _along(after, held), axis=-2) < 0
    all_back = ~better[:, None] & ~turned.any(axis=1, keepdims=True)
    kept = np.where(better[:, None], GROW, 1.0)
    return np.where(turned | all_back, SHRINK, kept)
