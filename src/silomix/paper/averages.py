"""Averages of the silos' draws without an objective: equal weights, and inverse variances.

Near 0 and 1 the mean of S draws has the wrong shape, whatever its weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from silomix.coordinator.aggregation import Aggregated, AggregationProblem
    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.draws import MatchedDraws
    from silomix.model.families.product import Product
    from silomix.paper import Cmc, Uniform

# draws that do not move have this variance, so that silos which all stand still count equally
SMALLEST_VARIANCE = 1e-30


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
