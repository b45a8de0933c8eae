"""The consensus average: global draws as linear combinations of the silos', and their likelihood.

Fendler et al. (2026), section 4.4: π̂ = Σ_s λ_s π^s and θ̂_c = Σ_s μ_{s,c} θ_c^s, which is the
paper's V^s = λ^s I and W^s = diag(μ^s). Every family's parameters form a convex set, so that an
average of them is one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.model.draws import MatchedDraws
from silomix.model.families.family import SMALLEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.kernels.arrays import Floats
    from silomix.model.families.product import Product

    # weights and parameters -> log-likelihood, members and statistics of rows, as `Rows.expected`
    Expected = Callable[[Floats, Floats], tuple[Floats, Floats, Floats]]


def some_draws(matched: MatchedDraws, first: int, last: int) -> MatchedDraws:
    """Return the draws from `first` up to and without `last`: random ones, as their order is."""
    some = slice(first, last)
    return MatchedDraws(matched.weights[:, some], matched.probabilities[:, some], matched.held)


def mix(
    matched: MatchedDraws, weights: Floats, profiles: Floats, family: Product
) -> tuple[Floats, Floats]:
    """Return the global draws at λ (silo,) and μ (silo, cluster).

    Returns
    -------
    weights : (draw, cluster); parameters : (draw, cluster, parameter)
    """
    mixed_weights = np.tensordot(weights, matched.weights, axes=1)
    mixed = np.zeros(matched.probabilities.shape[1:])
    for share, probabilities in zip(profiles, matched.probabilities, strict=True):
        mixed += share[:, None] * probabilities
    return np.maximum(mixed_weights, SMALLEST), family.inside(mixed)


def mix_gradient(
    matched: MatchedDraws, by_weight: Floats, by_parameter: Floats
) -> tuple[Floats, Floats]:
    """Carry a gradient in (π̂_t, θ̂_t) over to one in (λ, μ), averaged over the draws.

    Parameters
    ----------
    by_weight : (draw, cluster); by_parameter : (draw, cluster, parameter)

    Returns
    -------
    weights : (silo,); profiles : (silo, cluster)
    """
    draws = len(by_weight)
    weights = np.tensordot(matched.weights, by_weight, axes=2)
    profiles = [np.einsum("tcd,tcd->c", p, by_parameter) for p in matched.probabilities]
    return weights / draws, np.array(profiles) / draws


def mean_log_likelihood(
    matched: MatchedDraws, weights: Floats, profiles: Floats, family: Product, expected: Expected
) -> tuple[Floats, Floats, Floats]:
    """Return the mean over draws of log p(rows | θ̂_t), and its gradient in (λ, μ).

    By Fisher's identity the gradient in θ̂_t is the score of the rows' expected statistics, and that
    in π̂_t their expected number over π̂_t; `mix_gradient` carries both over.

    Parameters
    ----------
    weights : (start, silo), λ; profiles : (start, silo, cluster), μ.
    expected : what the rows add up to, draw by draw.

    Returns
    -------
    (start,), and as `weights` and `profiles`.
    """
    values, by_weights, by_profiles = [], [], []
    # point by point: the global draws of all of them would fill the memory
    for point in zip(weights, profiles, strict=True):
        shares, parameters = mix(matched, *point, family)
        value, members, statistics = expected(shares, parameters)
        slopes = members / shares, family.score(parameters, statistics)
        gradient = mix_gradient(matched, *slopes)
        values.append(value.mean())
        by_weights.append(gradient[0])
        by_profiles.append(gradient[1])
    return np.array(values), np.array(by_weights), np.array(by_profiles)
