"""Aggregations without an objective: averages of the silos' draws, and a product of densities.

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

from silomix.families.dirichlet import fit_dirichlet

if TYPE_CHECKING:
    from silomix.families.product import Product
    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.draws import MatchedDraws
    from silomix.model.prior import PooledModel

# draws that do not move have this variance, so that silos which all stand still count equally
SMALLEST_VARIANCE = 1e-30


def inverse_variances(matched: MatchedDraws, rows: Ints, family: Product) -> tuple[Floats, Floats]:
    """Return λ, and the elementwise weights of the profiles, by inverse variance.

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
    """Return the draws' coordinates, zeros where a silo lacks a cluster: as its parameters."""
    found = np.zeros(matched.parameters.shape)
    for own, parameters, held in zip(found, matched.parameters, matched.held, strict=True):
        own[:, held] = family.coordinates(parameters[:, held])
    return found


def average_elementwise(matched: MatchedDraws, elements: Floats, family: Product) -> Floats:
    """Return Σ_s w_{s,c,k} x_{c,k}^s, x the coordinates, as parameters.

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
