"""Releases + Correspondence -> global draws: learn how to weigh the silos, and combine them.

"vcmc", variational consensus Monte Carlo, chooses the weights by the relaxed ELBO (`objective`,
`solvers`); the other methods need none (`closed_form`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.aggregation import closed_form
from silomix.coordinator.aggregation.objective import Objective, contingency, federated
from silomix.coordinator.aggregation.simplex import hypercube, join
from silomix.coordinator.aggregation.solvers import Solution, few_rounds, lbfgs, psgd
from silomix.families.columns import SMALLEST
from silomix.messages import Release, ShareReleases, Silos
from silomix.messages.released_draws import MATCHED_STREAM, has_rules, mix, read_said, shared_draws
from silomix.model.draws import Correspondence, MatchedDraws, SiloWeights
from silomix.study.settings import Lbfgs, Psgd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.prior import PooledModel
    from silomix.study import Aggregation

__all__ = ["Aggregated", "aggregate"]

# branches of the random stream: where to start, which draws a stochastic step looks at, and the
# fresh draws of a product
STARTS, STEPS, PRODUCT = 1, 2, 3
# rows times draws that the objective looks at: beyond, the solvers would take hours
MOST_ROW_DRAWS = 10_000_000
LEAST_DRAWS = 48
# a weight below this many floors is at the floor
AT_FLOOR = 1.1


@dataclass(frozen=True, eq=False)
class Aggregated:
    """Global draws, and how the silos were weighed.

    Attributes
    ----------
    weights : (draw, cluster); parameters : (draw, cluster, parameter)
    silo_weights : λ and μ. Under "cmc", μ is the mean over parameters of the elementwise weights;
        under "product", which has none, the silos' shares of the effective rows and cells.
    matched : the silos' draws, in the order in which they were combined.
    elbo_trace : (evaluation,), the objective along the way of the best start; None where nothing
        was maximised.
    notes : plain sentences that a reader of the result should see.
    """

    weights: Floats
    parameters: Floats
    silo_weights: SiloWeights
    matched: MatchedDraws
    elbo_trace: Floats | None = None
    notes: tuple[str, ...] = ()


def aggregate(
    releases: list[Release],
    correspondence: Correspondence,
    settings: Aggregation,
    silos: Silos,
    model: PooledModel,
    *,
    count: int,
    threads: int = 1,
) -> Aggregated:
    """Combine the silos' draws into `count` global ones.

    Parameters
    ----------
    releases : one of each silo, in the order of `correspondence.silos`.
    silos : asked for the data term of the objective, under "vcmc" only.
    threads : the result does not depend on it.
    """
    names = correspondence.silos
    share = ShareReleases(tuple(releases), correspondence.groups, count)
    matched = shared_draws(share, model)
    rows = np.array([release.rows for release in releases], dtype=np.int64)
    trace: Floats | None = None
    notes: tuple[str, ...] = ()
    if settings.method == "product":
        local = np.concatenate(correspondence.groups)
        product = closed_form.multiply(matched, rows, model)
        weights, profiles = _draw_product(product, releases, local, model, count)
        cells = np.maximum(product.cells, SMALLEST * matched.held)
        # densities that are worth no rows, as where every release is coarse, count as their silos
        worth = product.rows if product.rows.any() else rows
        by_silo, by_cluster = worth / worth.sum(), cells / cells.sum(axis=0)
    elif settings.method == "cmc":
        by_silo, elements = closed_form.inverse_variances(matched, rows, model.family)
        weights = np.tensordot(by_silo, matched.weights, axes=1)
        profiles = closed_form.average_elementwise(matched, elements, model.family)
        by_cluster = elements.mean(axis=2)
    else:
        # λ_s = 1/S, and μ_{s,c} = 1/|S_c| over the silos that hold c
        by_silo = np.full(len(rows), 1.0 / len(rows))
        by_cluster = matched.held / matched.held.sum(axis=0)
        if settings.method == "vcmc" and len(releases) > 1:
            used = objective_draws(settings.draws, int(rows.sum()))
            family = model.family
            here = settings.oracle == "contingency"
            oracle = contingency(silos, family, threads) if here else federated(silos, share)
            some, reading = matched.some(0, used), settings.log_determinant
            objective = Objective(some, oracle, model.prior.alpha, family, reading)
            start = size_weights(rows, correspondence)
            found = maximise(objective, start, settings, model.seed)
            by_silo, by_cluster, trace = found.weights, found.profiles, found.trace
            notes = tuple(describe(found, settings, names, int(rows.sum())))
        weights, profiles = mix(matched, by_silo, by_cluster, model.family)
    silo_weights = SiloWeights(names, by_silo, by_cluster)
    return Aggregated(weights, profiles, silo_weights, matched, trace, notes)


def _draw_product(
    product: closed_form.Multiplied,
    given: list[Release],
    groups: Ints,
    model: PooledModel,
    count: int,
) -> tuple[Floats, Floats]:
    """Draw from the product's densities; where releases are rounded, given what they stand for."""
    rng = np.random.default_rng([model.seed, MATCHED_STREAM, PRODUCT])
    weights = rng.dirichlet(product.weights, size=count)
    profiles = model.family.draw(product.profiles, rng, count)
    if any(has_rules(release) for release in given):
        said = read_said(*given)
        behind = [
            model.family.draw_behind(said.of(np.flatnonzero(groups == c)), count, rng)
            for c in range(len(product.profiles))
        ]
        profiles = np.stack(behind, axis=1)
    return weights, profiles


def objective_draws(draws: int, rows: int) -> int:
    """Return how many draws the objective takes: fewer than asked for where rows are many."""
    return min(draws, max(LEAST_DRAWS, MOST_ROW_DRAWS // max(rows, 1)))


def size_weights(rows: Ints, correspondence: Correspondence) -> Floats:
    """Return the point λ_s ∝ n_s, μ_{s,c} ∝ rows of cluster c in silo s: (silo, block)."""
    return join(rows / rows.sum(), correspondence.rows / correspondence.rows.sum(axis=0))


def maximise(objective: Objective, by_size: Floats, settings: Aggregation, seed: int) -> Solution:
    """Maximise the relaxed ELBO by the solver that the settings name.

    "lbfgs" and "few-rounds" start at the silos' sizes and then from a Latin hypercube: with
    three exchanges a good start is worth more than a hundred random ones. The paper starts from
    the hypercube alone, and so does "psgd".

    Parameters
    ----------
    by_size : (silo, block), from `size_weights`.
    """
    solver, floor = settings.solver, settings.floor
    rng = np.random.default_rng([seed, MATCHED_STREAM, STARTS])
    if isinstance(solver, Psgd):
        steps = np.random.default_rng([seed, MATCHED_STREAM, STEPS])
        return psgd(objective, hypercube(solver.starts, objective.held, rng), solver, floor, steps)
    others = hypercube(solver.starts - 1, objective.held, rng)
    starts = np.concatenate([by_size[None], others])
    if isinstance(solver, Lbfgs):
        return lbfgs(objective, starts, solver, floor)
    return few_rounds(objective, starts, solver, floor)


def describe(
    found: Solution, settings: Aggregation, silos: tuple[str, ...], rows: int
) -> Iterator[str]:
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
    if not found.converged and settings.solver.method != "few-rounds":
        tried = f"after {len(found.trace)} evaluations"
        yield f"The aggregation weights were still moving {tried}; allow more steps."
