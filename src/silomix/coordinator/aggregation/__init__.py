"""Releases + Correspondence -> global draws: learn how to weigh the silos, and combine them.

An aggregation is a function that returns the `Aggregated` of an `AggregationProblem`; it is
registered in `silomix.study.AGGREGATIONS`.

The default is variational consensus Monte Carlo: weighted means, by the weights of the largest
relaxed ELBO. A solver is a function with the signature of `lbfgs`, registered in
`silomix.study.SOLVERS`; the paper's projected stochastic gradient is in
`silomix.paper.aggregations`, the ELBO and the simplex in `objective`. `lbfgs` is a quasi-Newton
method on log-weights through a softmax, each block of them on its own scale: about ten evaluations
from the silos' sizes, twenty from anywhere.

Another is a product of densities that are fitted to the silos' draws. Near 0 and 1 the mean of S
draws has the wrong shape, whatever its weights; the product of densities has not. Each silo's draws
of a cluster's parameters become a conjugate density, fitted by moments, and the densities are
multiplied: what the silos' rows said, beyond their share of the prior, adds up. Of categories, with
Dirichlets a^s and β_s,

    a = β + Σ_{s ∈ S_c} (a^s − β_s),

which under the prior to the power 1/S is Σ (a^s − 1) + 1 + (1 − |S_c|/S)(β − 1): the silos without
the cluster give their share of the prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from silomix.coordinator.aggregation import objective as elbo
from silomix.families.categorical import fit_dirichlet
from silomix.families.disclosure import draw_behind
from silomix.families.family import SMALLEST
from silomix.messages import Release, ShareReleases, Silos
from silomix.messages.released_draws import MATCHED_STREAM, has_rules, mix, read_said, shared_draws
from silomix.model.draws import Correspondence, MatchedDraws, SiloWeights
from silomix.study.methods import AGGREGATIONS, SOLVERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from silomix.kernels.arrays import Floats, Ints, Rng
    from silomix.model.schema import PooledModel
    from silomix.study import Aggregation, DensityProduct, Lbfgs, Vcmc

__all__ = ["Aggregated", "AggregationProblem", "aggregate"]

# branches of the random stream: where to start, which draws a stochastic step looks at, and draws
# of a product
STARTS, STEPS, PRODUCT = 1, 2, 3
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


@dataclass(frozen=True, eq=False)
class AggregationProblem:
    """Input of an aggregation, and the silos that it may ask.

    Attributes
    ----------
    share : the releases, one of each silo in the order of the roster, and their groups.
    correspondence : which of their clusters are the same.
    matched : the silos' draws, under the numbers of the global clusters; as many global draws are
        to be made.
    silos : for questions.
    model : of all rows together.
    threads : the result may not depend on it.
    """

    share: ShareReleases
    correspondence: Correspondence
    matched: MatchedDraws
    silos: Silos
    model: PooledModel
    threads: int = 1

    @property
    def releases(self) -> Sequence[Release]:
        """One of each silo, in the order of the roster."""
        return self.share.releases

    @property
    def rows(self) -> Ints:
        """Of each silo: (silo,)."""
        return np.array([release.rows for release in self.releases], dtype=np.int64)

    def average(self, by_silo: Floats, by_cluster: Floats) -> Aggregated:
        """Means of the silos' draws, weighted by λ, (silo,), and μ, (silo, cluster)."""
        draws = mix(self.matched, by_silo, by_cluster, self.model.family)
        return self.result(*draws, by_silo, by_cluster)

    def result(
        self, weights: Floats, parameters: Floats, by_silo: Floats, by_cluster: Floats
    ) -> Aggregated:
        """Global draws, and how much each silo counted: (silo,) and (silo, cluster)."""
        silo_weights = SiloWeights(self.correspondence.silos, by_silo, by_cluster)
        return Aggregated(weights, parameters, silo_weights, self.matched)


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
    silos : asked by aggregations that have questions.
    threads : the result does not depend on it.
    """
    share = ShareReleases(tuple(releases), correspondence.groups, count)
    matched = shared_draws(share, model)
    problem = AggregationProblem(share, correspondence, matched, silos, model, threads)
    found: Aggregated = AGGREGATIONS.function(settings)(problem, settings)
    return found


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
    oracle = elbo.contingency(silos, family, threads) if here else elbo.federated(silos, share)
    some, reading = matched.some(0, used), settings.log_determinant
    objective = elbo.Objective(some, oracle, model.prior.alpha, family, reading)
    by_size = size_weights(rows, problem.correspondence)
    found = maximise(objective, by_size, settings, model.seed)
    notes = tuple(describe(found, settings, silos.names, int(rows.sum())))
    averaged = problem.average(found.weights, found.profiles)
    return replace(averaged, elbo_trace=found.trace, notes=notes)


def objective_draws(draws: int, rows: int) -> int:
    """Number of draws in the objective: fewer than asked for where rows are many."""
    return min(draws, max(LEAST_DRAWS, MOST_ROW_DRAWS // max(rows, 1)))


def size_weights(rows: Ints, correspondence: Correspondence) -> Floats:
    """Point λ_s ∝ n_s, μ_{s,c} ∝ rows of cluster c in silo s: (silo, block)."""
    return elbo.join(rows / rows.sum(), correspondence.rows / correspondence.rows.sum(axis=0))


def maximise(objective: elbo.Objective, by_size: Floats, settings: Vcmc, seed: int) -> Solution:
    """Maximise the relaxed ELBO by the solver that the settings name.

    Most solvers start at the silos' sizes and then from a Latin hypercube: with three exchanges a
    good start is worth more than a hundred random ones. The paper starts from the hypercube alone.

    Parameters
    ----------
    by_size : (silo, block), from `size_weights`.
    """
    solver = settings.solver
    rng = np.random.default_rng([seed, MATCHED_STREAM, STARTS])
    steps = np.random.default_rng([seed, MATCHED_STREAM, STEPS])
    sized = by_size[None][: int(solver.from_sizes)]
    others = elbo.hypercube(solver.starts - len(sized), objective.held, rng)
    starts = np.concatenate([sized, others])
    solution: Solution = SOLVERS.function(solver)(objective, starts, solver, settings.floor, steps)
    return solution


def describe(found: Solution, settings: Vcmc, silos: tuple[str, ...], rows: int) -> Iterator[str]:
    """Notes on the solution for readers of the result."""
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
    objective: elbo.Objective, starts: Floats, settings: Lbfgs, floor: float, _: Rng | None = None
) -> Solution:
    """Climb from each start by L-BFGS on the logs of a softmax; the best ELBO wins.

    A run stops when a step raises the objective by less than `settings.tolerance`. Starts are
    first lifted off the edges: no weight begins below `LEAST_SHARE` of an even one.

    Parameters
    ----------
    starts : (start, silo, block), see `silomix.coordinator.aggregation.objective`.
    floor : the smallest entry of a point.
    """
    runs = [_lbfgs_from(objective, start, settings, floor) for start in starts]
    made = sum(run.evaluations for run in runs)
    return max(runs, key=lambda run: run.elbo)._replace(evaluations=made)


def _lbfgs_from(
    objective: elbo.Objective, start: Floats, settings: Lbfgs, floor: float
) -> Solution:
    held = objective.held
    logs = elbo.softmax_inverse(elbo.project(start, held, floor), held, floor)
    logs = np.maximum(logs, np.log(LEAST_SHARE / held.sum(axis=0)))
    trace: list[float] = []
    accepted: list[float] = []

    def evaluate_here() -> Floats:
        point = elbo.softmax(logs, held, floor)
        found = elbo.evaluate(objective, point[None])
        trace.append(float(found.value[0]))
        return elbo.softmax_gradient(found.gradient[0], point, held, floor)

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
    point = elbo.split(elbo.softmax(logs, held, floor))
    return Solution(*point, -float(run.fun), np.array(trace), len(trace), at_rest)


def _scales(objective: elbo.Objective, slopes: Floats) -> Floats:
    """Scale factors of each block's logs that equalise curvature: (silo, block).

    Guessed from the start: a block is some units of log-weight away from its maximum, so it
    bends about as much as it slopes, and no less than its log-determinant.
    """
    bends = np.maximum(np.linalg.norm(slopes, axis=0), elbo.determinant_factors(objective))
    return np.broadcast_to(np.sqrt(np.maximum(bends, 1.0)), slopes.shape)


def draw_product(problem: AggregationProblem, _: DensityProduct) -> Aggregated:
    """Draw from the product's densities; where releases are rounded, given what they stand for."""
    releases, matched, model, rows = problem.releases, problem.matched, problem.model, problem.rows
    product = multiply(matched, rows, model)
    rng, count = np.random.default_rng([model.seed, MATCHED_STREAM, PRODUCT]), problem.share.draws
    weights = rng.dirichlet(product.weights, size=count)
    parameters = model.family.draw(product.profiles, rng, count)
    if any(map(has_rules, releases)):
        said, groups = read_said(*releases), np.concatenate(problem.share.groups)
        behind = [
            draw_behind(model.family, said.of(np.flatnonzero(groups == c)), count, rng)
            for c in range(len(product.profiles))
        ]
        parameters = np.stack(behind, axis=1)
    cells = np.maximum(product.cells, SMALLEST * matched.held)
    # densities that are worth no rows, as where every release is coarse, count as their silos
    worth = product.rows if product.rows.any() else rows
    return problem.result(weights, parameters, worth / worth.sum(), cells / cells.sum(axis=0))


class Multiplied(NamedTuple):
    """The parameters of the product.

    Attributes
    ----------
    weights : (cluster,), of the Dirichlet of π.
    profiles : (cluster, coordinate), χ of the clusters' parameters.
    rows : (silo,), effective rows that each silo brings to π.
    cells : (silo, cluster), effective cells that it brings to a cluster's profile.
    """

    weights: Floats
    profiles: Floats
    rows: Floats
    cells: Floats


def multiply(matched: MatchedDraws, rows: Ints, model: PooledModel) -> Multiplied:
    """Fit each silo's draws and multiply.

    The Dirichlet of π is α + E m. Its mean m is that of the silos' shares weighted by their
    rows, so that it is the make-up of all rows even where the silos' differ; E is the sum of
    their effective rows, which doubt about who belongs makes fewer than n.

    Parameters
    ----------
    rows : (silo,), n_s.
    """
    (prior, family, _), (silos, clusters) = model, matched.held.shape
    (alpha, _), shared = prior.share(silos), model.shared_family(silos)
    excess = np.zeros((silos, clusters, int(family.statistics.sum())))
    shares = np.zeros((silos, clusters))
    effective = np.zeros(silos)
    for s, held in enumerate(matched.held):
        excess[s, held] = shared.fit(matched.parameters[s][:, held])
        shares[s, held], effective[s] = _members(matched.weights[s][:, held], rows[s], alpha)
    return Multiplied(
        weights=prior.alpha + effective.sum() * (rows @ shares) / rows.sum(),
        # the moments of draws near zero are rough: never less than the prior
        profiles=family.prior() + family.conjugate(family.valid(excess.sum(axis=0))),
        rows=effective,
        cells=family.known(family.valid(excess)).sum(axis=-1),
    )


def _members(weights: Floats, rows: int, alpha: float) -> tuple[Floats, float]:
    """Share of each cluster in a silo, and how many rows its draws are worth.

    One cluster has no doubt about its weight; otherwise at most the rows there are.
    """
    clusters = weights.shape[1]
    if clusters == 1:
        return np.ones(1), float(rows)
    mean, concentration = fit_dirichlet(weights[:, None, :], np.array([0, clusters]))
    counts = np.maximum(mean[0] * concentration[0] - alpha, 0.0)
    total = counts.sum()
    return (counts / total if total > 0 else mean[0]), float(min(total, rows))
