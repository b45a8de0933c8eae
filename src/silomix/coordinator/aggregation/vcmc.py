"""Variational consensus Monte Carlo: weighted means, by the weights of the largest relaxed ELBO."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.aggregation.objective import Objective, contingency, federated
from silomix.coordinator.aggregation.simplex import hypercube, join
from silomix.messages.released_draws import MATCHED_STREAM
from silomix.study.settings import SOLVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.coordinator.aggregation import Aggregated, AggregationProblem
    from silomix.coordinator.aggregation.solvers import Solution
    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.draws import Correspondence
    from silomix.study import Vcmc

# branches of the random stream: where to start, and which draws a stochastic step looks at
STARTS, STEPS = 1, 2
# rows times draws that the objective looks at: beyond, the solvers would take hours
MOST_ROW_DRAWS = 10_000_000
LEAST_DRAWS = 48
# a weight below this many floors is at the floor
AT_FLOOR = 1.1


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
    return problem.average(found.weights, found.profiles, found.trace, notes)


def objective_draws(draws: int, rows: int) -> int:
    """Return how many draws the objective takes: fewer than asked for where rows are many."""
    return min(draws, max(LEAST_DRAWS, MOST_ROW_DRAWS // max(rows, 1)))


def size_weights(rows: Ints, correspondence: Correspondence) -> Floats:
    """Return the point λ_s ∝ n_s, μ_{s,c} ∝ rows of cluster c in silo s: (silo, block)."""
    return join(rows / rows.sum(), correspondence.rows / correspondence.rows.sum(axis=0))


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
    others = hypercube(solver.starts - len(sized), objective.held, rng)
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
