"""The averages and solvers of Fendler et al. (2026) that are not the default.

`psgd` is the projected stochastic gradient of Fendler et al. (2026), section 4.4, and `few_rounds`
the strategy for silos that answer only a few times. The paper gives no step size. Both use one
rule, which needs no tuning (`_step`, `_factors`): each block of weights moves along its own
gradient by its own length, at first half a mean weight of the block; a step is taken when the
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

from silomix.coordinator.aggregation import Aggregated, AggregationProblem, Solution
from silomix.coordinator.aggregation import objective as elbo

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.coordinator.aggregation.objective import Objective
    from silomix.families.product import Product
    from silomix.kernels.arrays import Bools, Floats, Ints, Rng
    from silomix.model.draws import MatchedDraws
    from silomix.paper import Cmc, FewRounds, Psgd, Uniform

    Way = Callable[[Floats], Floats] | None

# draws that do not move have this variance, so that silos which all stand still count equally
SMALLEST_VARIANCE = 1e-30
# parts of the draws, fixed once, of which `psgd` takes one at random at each step
BATCHES = 4
GROW, SHRINK = 1.5, 0.5
# a start whose blocks all move by less is at rest
SHORTEST = 1e-5


def alike(problem: AggregationProblem, _: Uniform) -> Aggregated:
    """Average with λ_s = 1/S, and μ_{s,c} = 1/|S_c| over the silos that hold c."""
    held = problem.matched.held
    return problem.average(np.full(len(held), 1.0 / len(held)), held / held.sum(axis=0))


def by_inverse_variance(problem: AggregationProblem, _: Cmc) -> Aggregated:
    """Average elementwise with weights by inverse variance; μ is their mean over parameters."""
    matched, family = problem.matched, problem.model.family
    by_silo, elements = inverse_variances(matched, problem.rows, family)
    weights = np.tensordot(by_silo, matched.weights, axes=1)
    parameters = average_elementwise(matched, elements, family)
    return problem.result(weights, parameters, by_silo, elements.mean(axis=2))


def inverse_variances(matched: MatchedDraws, rows: Ints, family: Product) -> tuple[Floats, Floats]:
    """Weights λ, and elementwise weights of the profiles, by inverse variance.

    Scott et al. (2016), with independent weights. The reading for a mixture:

    - a silo has one weight for all of π, as in the linear family of Fendler et al. (2026), or
      π̂ would not sum to one: λ_s ∝ 1 / mean_c var(π_c^s). A cluster that the silo lacks, or a
      silo with one cluster, has draws without variance and would take all the weight, so no
      variance is below m_c (1 − m_c) / (n_s + 1), m the mean weights over all rows: what the
      silo's rows would tell if their clusters were known;
    - the profiles have a weight for each coordinate, of categories each p_{c,k}: ∝ 1 / var over
      the silos that hold c.

    Parameters
    ----------
    rows : (silo,), n_s.

    Returns
    -------
    weights : (silo,), λ; elements : (silo, cluster, coordinate), sums to one over the silos.
    """
    means = matched.weights.mean(axis=1)
    overall = rows @ means / rows.sum()
    known = overall * (1 - overall) / (rows[:, None] + 1.0)
    variance = np.maximum(matched.weights.var(axis=1), known).mean(axis=1)
    precision = 1.0 / np.maximum(variance, SMALLEST_VARIANCE)
    spread = np.maximum(places(matched, family).var(axis=1), SMALLEST_VARIANCE)
    elements = matched.held[:, :, None] / spread
    return precision / precision.sum(), elements / elements.sum(axis=0)


def places(matched: MatchedDraws, family: Product) -> Floats:
    """Draws' coordinates, zeros where a silo lacks a cluster: as its parameters."""
    found = np.zeros(matched.parameters.shape)
    for own, parameters, held in zip(found, matched.parameters, matched.held, strict=True):
        own[:, held] = family.coordinates(parameters[:, held])
    return found


def average_elementwise(matched: MatchedDraws, elements: Floats, family: Product) -> Floats:
    """Average Σ_s w_{s,c,k} x_{c,k}^s, x the coordinates, as parameters.

    Parameters
    ----------
    elements : (silo, cluster, coordinate), w.

    Returns
    -------
    (draw, cluster, parameter)
    """
    mixed = np.zeros(matched.parameters.shape[1:])
    for share, coordinates in zip(elements, places(matched, family), strict=True):
        mixed += share * coordinates
    return family.back(mixed)


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
        return elbo.evaluate(parts[rng.integers(len(parts))], points).gradient

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
    points = elbo.project(starts, held, floor)
    here = elbo.evaluate(objective, points)
    lengths = np.tile(0.5 / held.sum(axis=0), (len(points), 1))
    traces = [[float(value)] for value in here.value]
    moving = np.arange(len(points))
    for _ in range(steps):
        at = elbo.Evaluation(here.value[moving], here.gradient[moving])
        ways = way(points[moving]) if way else at.gradient
        tried = elbo.project(points[moving] + _step(ways, lengths[moving], held), held, floor)
        there = elbo.evaluate(objective, tried)
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
    return Solution(*elbo.split(points[best]), value, np.array(traces[best]), made, rests)


def _along(gradient: Floats, held: Bools) -> Floats:
    """Part of a gradient that stays on the simplices: less its mean in each block."""
    mean = np.sum(gradient * held, axis=-2, keepdims=True) / held.sum(axis=0)
    return np.where(held, gradient - mean, 0.0)


def _step(ways: Floats, lengths: Floats, held: Bools) -> Floats:
    """Steps (start, silo, block) along the gradients, of these lengths (start, block)."""
    along = _along(ways, held)
    norms = np.linalg.norm(along, axis=-2, keepdims=True)
    return lengths[:, None, :] * along / np.maximum(norms, elbo.TINY)


def _factors(before: Floats, after: Floats, held: Bools, better: Bools) -> Floats:
    """Factors of the lengths after a step: (start, block).

    A block whose gradient turned went too far. Where the objective fell and no block's
    gradient turned, all of them did.
    """
    turned = np.sum(_along(before, held) * _along(after, held), axis=-2) < 0
    all_back = ~better[:, None] & ~turned.any(axis=1, keepdims=True)
    kept = np.where(better[:, None], GROW, 1.0)
    return np.where(turned | all_back, SHRINK, kept)
