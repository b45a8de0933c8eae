"""Variational consensus Monte Carlo: choose the aggregation weights by the relaxed ELBO."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import numpy as np

from silomix.coordinator.aggregation.simplex import hypercube, join
from silomix.coordinator.aggregation.solvers import few_rounds, lbfgs, psgd
from silomix.messages.released_draws import MATCHED_STREAM
from silomix.study.settings import FewRounds, Lbfgs, Psgd

if TYPE_CHECKING:
    from silomix.coordinator.aggregation.objective import Objective
    from silomix.coordinator.aggregation.solvers import Solution
    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.draws import Correspondence
    from silomix.study import Aggregation

# branches of the random stream: where to start, and which draws a stochastic step looks at
STARTS, STEPS = 1, 2
# rows times draws that the objective looks at: beyond, the solvers would take hours
MOST_ROW_DRAWS = 10_000_000
LEAST_DRAWS = 48
# a weight below this many floors is at the floor
AT_FLOOR = 1.1


def objective_draws(draws: int, rows: int) -> int:
    """Return how many draws the objective takes: fewer than asked for where rows are many."""
    return min(draws, max(LEAST_DRAWS, MOST_ROW_DRAWS // max(rows, 1)))


def size_weights(rows: Ints, correspondence: Correspondence) -> Floats:
    """Return the point λ_s ∝ n_s, μ_{s,c} ∝ rows of cluster c in silo s: (silo, block)."""
    members = np.zeros(correspondence.held.shape)
    for own, group, sizes in zip(members, correspondence.groups, correspondence.sizes, strict=True):
        np.add.at(own, group, np.maximum(sizes, 1))
    return join(rows / rows.sum(), members / members.sum(axis=0))


def maximise(
    objective: Objective, size_point: Floats, settings: Aggregation, seed: int
) -> Solution:
    """Maximise the relaxed ELBO by the solver that the settings name.

    "lbfgs" and "few-rounds" start at the silos' sizes and then from a Latin hypercube: with
    three exchanges a good start is worth more than a hundred random ones. The paper starts from
    the hypercube alone, and so does "psgd".

    Parameters
    ----------
    size_point : (silo, block), from `size_weights`.
    """
    solver, floor = settings.solver, settings.floor
    rng = np.random.default_rng([seed, MATCHED_STREAM, STARTS])
    if isinstance(solver, Psgd):
        steps = np.random.default_rng([seed, MATCHED_STREAM, STEPS])
        return psgd(objective, hypercube(solver.starts, objective.held, rng), solver, floor, steps)
    others = hypercube(solver.starts - 1, objective.held, rng)
    starts = np.concatenate([size_point[None], others])
    if isinstance(solver, Lbfgs):
        return lbfgs(objective, starts, solver, floor)
    if isinstance(solver, FewRounds):
        return few_rounds(objective, starts, solver, floor)
    assert_never(solver)


def describe(
    found: Solution, settings: Aggregation, silos: tuple[str, ...], rows: int
) -> tuple[str, ...]:
    """Return plain sentences that a reader of the result should see."""
    notes = []
    used = objective_draws(settings.draws, rows)
    if used < settings.draws:
        notes.append(
            f"The aggregation weights were learned on {used} draws instead of "
            f"{settings.draws}, since there are {rows:,} rows."
        )
    at_floor = found.weights < AT_FLOOR * settings.floor
    low = [name for name, binds in zip(silos, at_floor, strict=True) if binds]
    if low:
        notes.append(
            f"The weight of {', '.join(low)} fell to the floor, {settings.floor:g}: with "
            "alpha below one the objective rewards a silo for vanishing when clusters are its "
            "own, and without the floor it has no maximum. See whether those clusters are real."
        )
    if not found.converged and settings.solver.method != "few-rounds":
        notes.append(
            f"The aggregation weights were still moving after {len(found.trace)} evaluations; "
            "allow more steps."
        )
    return tuple(notes)
