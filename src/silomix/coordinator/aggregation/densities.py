"""A product of densities that are fitted to the silos' draws.

Near 0 and 1 the mean of S draws has the wrong shape, whatever its weights; the product of densities
has not. Each silo's draws of a cluster's parameters become a conjugate density, fitted by moments,
and the densities are multiplied: what the silos' rows said, beyond their share of the prior, adds
up. Of categories, with Dirichlets a^s and β_s,

    a = β + Σ_{s ∈ S_c} (a^s − β_s),

which under the prior to the power 1/S is Σ (a^s − 1) + 1 + (1 − |S_c|/S)(β − 1): the silos without
the cluster give their share of the prior.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.families.categorical import fit_dirichlet
from silomix.families.disclosure import draw_behind
from silomix.families.family import SMALLEST
from silomix.messages.released_draws import MATCHED_STREAM, has_rules, read_said

if TYPE_CHECKING:
    from silomix.coordinator.aggregation import Aggregated, AggregationProblem
    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.draws import MatchedDraws
    from silomix.model.schema import PooledModel
    from silomix.study import DensityProduct

# branch of the random stream
PRODUCT = 3


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
    """Return the share of each cluster in a silo, and how many rows its draws are worth.

    One cluster has no doubt about its weight; otherwise at most the rows there are.
    """
    clusters = weights.shape[1]
    if clusters == 1:
        return np.ones(1), float(rows)
    mean, concentration = fit_dirichlet(weights[:, None, :], np.array([0, clusters]))
    counts = np.maximum(mean[0] * concentration[0] - alpha, 0.0)
    total = counts.sum()
    return (counts / total if total > 0 else mean[0]), float(min(total, rows))
