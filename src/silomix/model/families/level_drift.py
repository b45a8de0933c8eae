"""Drift of categories: a silo's own probabilities are p_sc^q ~ Dirichlet(κ_q m_c^q), m shared.

The functions are methods of `Categorical`, which is their `block`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import digamma, gammaln, zeta

from silomix.model.families.dirichlet import SMALLEST_GAMMA, level_totals

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Floats, Ints, Rng


def draw_own(block: Any, statistics: Ints, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
    """Draw p_sc ~ Dirichlet(κ m_c + counts), m_c where κ = ∞: (silo, chain, cluster, level)."""
    kappa = np.repeat(kappa, block.statistics, axis=1)[:, None, :]
    drifts = np.broadcast_to(np.isfinite(kappa), statistics.shape)
    own = np.array(np.broadcast_to(parameters, statistics.shape))
    # most variables do not drift, and gamma variables are what takes the time
    shapes = np.broadcast_to(kappa * parameters, own.shape)[drifts] + statistics[drifts]
    own[drifts] = np.maximum(rng.standard_gamma(shapes), SMALLEST_GAMMA)
    return np.where(drifts, own / level_totals(own, block.offsets), own)


def log_marginal(block: Any, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
    """Return ln p(counts | m, κ), (..., variable), without ln Γ(κ) − ln Γ(κ + Σn).

    That term is a function of the counts' total, and does not depend on m.
    """
    by_level = np.repeat(kappa, block.statistics, axis=-1)
    return np.asarray(block.known(_level_terms(statistics, parameters, by_level)))


def _level_terms(counts: Array, mean: Floats, kappa: Floats) -> Floats:
    """Return what each level adds to ln p(counts | m, κ): all (..., level)."""
    terms = np.asarray(counts * np.log(mean))
    n, m, k = (np.broadcast_to(array, terms.shape) for array in (counts, mean, kappa))
    drifts = np.isfinite(k)
    shapes = k[drifts] * m[drifts]
    terms[drifts] = gammaln(shapes + n[drifts]) - gammaln(shapes)
    return terms


def discount(block: Any, statistics: Floats, kappa: Floats) -> Floats:
    """Return the counts that say of m, without drift, what these say of it under drift.

    A silo's counts n of one level and N of the others have the log-likelihood l(m) of a
    Beta–binomial. The counts n′, N′ whose binomial log-likelihood has the same slope and curvature
    at the posterior mean stand for them: about n (κ + 1)/(n + N + κ) in the middle, and more where
    a level is never, or always, there, which drift explains less well. Every level is compared
    with all others together.

    Parameters
    ----------
    statistics : (..., level); kappa : (variable,)
    """
    if np.isinf(kappa).all():
        return statistics
    rest = level_totals(statistics, block.offsets) - statistics
    by_level = np.repeat(kappa, block.statistics)
    # an only level has all the probability, and cannot drift
    drifts = np.isfinite(by_level) & (np.repeat(block.statistics, block.statistics) > 1)
    m = np.where(drifts, block.near(statistics), 0.5)
    k = np.where(drifts, by_level, 1.0)
    x, y = k * m, k * (1 - m)
    slope = k * (_digamma_rise(x, statistics) - _digamma_rise(y, rest))
    curvature = k**2 * (_trigamma_fall(x, statistics) + _trigamma_fall(y, rest))
    # n′/m − N′/(1 − m) = slope, n′/m² + N′/(1 − m)² = curvature; neither is negative
    others = (curvature - slope / m) * m * (1 - m) ** 2
    own = m * (slope + np.maximum(others, 0.0) / (1 - m))
    return np.where(drifts, np.clip(own, 0.0, statistics), statistics)


def _digamma_rise(x: Floats, n: Floats) -> Floats:
    return np.asarray(digamma(x + n) - digamma(x))


def _trigamma_fall(x: Floats, n: Floats) -> Floats:
    return np.asarray(zeta(2.0, x) - zeta(2.0, x + n))  # ψ′(x) = ζ(2, x)


def log_remainder(block: Any, statistics: Floats, kappa: Floats) -> Floats:
    """Return ln p(counts | m, κ) less Σ n′ ln m at the posterior mean, n′ discounted.

    Where counts of one silo are added up before they are discounted, this is what changes beside
    the evidence of the discounted counts: (..., variable).
    """
    m = block.near(statistics)
    terms = _level_terms(statistics, m, np.repeat(kappa, block.statistics))
    terms -= np.log(m) * block.discount(statistics, kappa)
    drifts = np.isfinite(kappa)
    k = np.where(drifts, kappa, 1.0)
    by_total = np.where(drifts, gammaln(k) - gammaln(k + block.known(statistics)), 0.0)
    return np.asarray(block.known(terms) + by_total)
