"""Linear combinations of the silos' draws, and the log-likelihood of rows along them.

Fendler et al. (2026), section 4.4: π̂ = Σ_s λ_s π^s and p̂_c = Σ_s μ_{s,c} p_c^s, which is the
paper's V^s = λ^s I and W^s = diag(μ^s).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.kernels.likelihood import expected_counts
from silomix.model.draws import MatchedDraws

if TYPE_CHECKING:
    from silomix.kernels.arrays import Floats
    from silomix.kernels.likelihood import RowTable

    Arrays = tuple[Floats, Floats]

# no global weight or probability is smaller: draws kept in float32 may be exactly zero
SMALLEST = 1e-30


def some_draws(matched: MatchedDraws, first: int, last: int) -> MatchedDraws:
    """Return the draws from `first` up to and without `last`: random ones, as their order is."""
    some = slice(first, last)
    return MatchedDraws(matched.weights[:, some], matched.probabilities[:, some], matched.held)


def mix(matched: MatchedDraws, weights: Floats, profiles: Floats) -> Arrays:
    """Return the global draws at λ (silo,) and μ (silo, cluster).

    Returns
    -------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    """
    mixed_weights = np.tensordot(weights, matched.weights, axes=1)
    mixed = np.zeros(matched.probabilities.shape[1:])
    for share, probabilities in zip(profiles, matched.probabilities, strict=True):
        mixed += share[:, None] * probabilities
    return np.maximum(mixed_weights, SMALLEST), np.maximum(mixed, SMALLEST)


def mix_gradient(matched: MatchedDraws, by_weight: Floats, by_probability: Floats) -> Arrays:
    """Carry a gradient in (π̂_t, p̂_t) over to one in (λ, μ), averaged over the draws.

    Parameters
    ----------
    by_weight : (draw, cluster); by_probability : (draw, cluster, level)

    Returns
    -------
    weights : (silo,); profiles : (silo, cluster)
    """
    draws = len(by_weight)
    weights = np.tensordot(matched.weights, by_weight, axes=2)
    profiles = [np.einsum("tcd,tcd->c", p, by_probability) for p in matched.probabilities]
    return weights / draws, np.array(profiles) / draws


def mean_log_likelihood(
    matched: MatchedDraws, weights: Floats, profiles: Floats, rows: RowTable, threads: int = 1
) -> tuple[Floats, Floats, Floats]:
    """Return the mean over draws of log p(rows | θ̂_t), and its gradient in (λ, μ).

    With N̂_{t,c} and n̂_{t,c,k} the expected rows and cells at θ̂_t, ∂/∂λ_s is the mean over
    draws of Σ_c N̂_c π_c^s / π̂_c, and ∂/∂μ_{s,c} that of Σ_k n̂_{c,k} p_{c,k}^s / p̂_{c,k}.

    Parameters
    ----------
    weights : (start, silo), λ; profiles : (start, silo, cluster), μ.

    Returns
    -------
    (start,), and as `weights` and `profiles`.
    """
    values, by_weights, by_profiles = [], [], []
    # point by point: the global draws of all of them would fill the memory
    for point in zip(weights, profiles, strict=True):
        shares, probabilities = mix(matched, *point)
        expected = expected_counts(shares, probabilities, rows, threads)
        gradient = mix_gradient(matched, expected.members / shares, expected.cells / probabilities)
        values.append(expected.log_likelihood.mean())
        by_weights.append(gradient[0])
        by_profiles.append(gradient[1])
    return np.array(values), np.array(by_weights), np.array(by_profiles)
