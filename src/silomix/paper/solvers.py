"""The solvers of Fendler et al. (2026), section 4.4, for the weights of the aggregation.

`psgd` is the projected stochastic gradient, and `few_rounds` the strategy for silos that answer
only a few times. The paper gives no step size. Both use
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
from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.aggregation import simplex
from silomix.coordinator.aggregation.objective import Evaluation, evaluate
from silomix.coordinator.aggregation.solvers import Solution

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.coordinator.aggregation.objective import Objective
    from silomix.kernels.arrays import Bools, Floats, Rng
    from silomix.paper import FewRounds, Psgd

    Way = Callable[[Floats], Floats] | None

# parts of the draws, fixed once, of which `psgd` takes one at random at each step
BATCHES = 4
GROW, SHRINK = 1.5, 0.5
# a start whose blocks all move by less is at rest
SHORTEST = 1e-5


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


def few_rounds(
    objective: Objective, starts: Floats, settings: FewRounds, floor: float, _: Rng | None = None
) -> Solution:
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
