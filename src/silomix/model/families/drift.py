"""Drift: a cluster's parameters may differ between silos, variable by variable.

The silos share m_c, and each has its own parameters around it. κ_q says how alike they are in
variable q, and at κ_q = ∞ they are the same, which is the model of Fendler et al. (2026). Half of
the prior of κ_q is at ∞ and half is log-uniform on a grid; how many variables drift is learned too
(P(κ_q = ∞) ~ Beta(1, 1)). How parameters vary at κ is the family's matter; of categories,

    p_sc^q ~ Dirichlet(κ_q m_c^q),   m_c^q ~ Dirichlet(β, …, β),

which the last functions here are about.

Given what the silos' rows add up to by cluster, the coordinator draws κ, then m, with the silos'
own parameters integrated out, and only then those. In another order, with parameters left over from
before κ or m moved, the three steps would not leave the posterior as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import digamma, gammaln, zeta

from silomix.kernels.dirichlet_multinomial import GRID
from silomix.model.families.dirichlet import SMALLEST_GAMMA, level_totals

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Floats, Ints, Rng
    from silomix.model.families.product import Product

# finite points of the grid that one draw of κ_q compares
TRIED = 3


class Shared(NamedTuple):
    """What the silos share, in every chain.

    Attributes
    ----------
    mean : (chain, cluster, parameter), m.
    kappa : (chain, variable), points of `GRID`.
    numbers : (chain, cluster, posterior number), that m was drawn from; empty at the start.
    """

    mean: Floats
    kappa: Floats
    numbers: Floats = np.empty(0)


def draw_shared(statistics: Array, shared: Shared, family: Product, rng: Rng) -> Shared:
    """Draw κ given m, then m given κ, both with the silos' own parameters integrated out.

    Parameters
    ----------
    statistics : (silo, chain, cluster, statistic), of the silos' last labels.
    """
    kappa = draw_kappa(statistics, shared, family, rng)
    numbers = family.shared_posterior(statistics, shared.mean, kappa, rng)
    return Shared(family.draw(numbers, rng), kappa, numbers)


def draw_kappa(statistics: Array, shared: Shared, family: Product, rng: Rng) -> Floats:
    """Draw κ of every chain and variable on the grid: (chain, variable)."""
    same = np.isinf(shared.kappa).sum(axis=1)
    drifting = shared.kappa.shape[1] - same
    # the odds of drift are a ratio of two gammas: a Beta(1, 1) prior, updated
    log_odds = np.log(rng.standard_gamma(1.0 + drifting)) - np.log(rng.standard_gamma(1.0 + same))
    current = np.searchsorted(GRID, shared.kappa)
    return GRID[family.draw_kappa(statistics, shared.mean, current, log_odds, rng)]


def exchange_clusters(
    statistics: Array, weights: Floats, shared: Shared, family: Product, rng: Rng
) -> tuple[Array, Floats]:
    """Let every silo exchange the rows and weights of two clusters, in every chain.

    A Metropolis step on the labels with the silo's parameters integrated out: a silo whose clusters
    were matched crosswise can change over, which row by row it never could.

    Parameters
    ----------
    statistics : (silo, chain, cluster, statistic)
    weights : (silo, chain, cluster, …), and whatever else goes with a cluster's rows.
    """
    silos, chains, clusters, _ = statistics.shape
    if clusters < 2:
        return statistics, weights
    a = rng.integers(clusters, size=(silos, chains))
    b = (a + rng.integers(1, clusters, size=(silos, chains))) % clusters
    silo, chain = np.ogrid[:silos, :chains]
    of_a, of_b = statistics[silo, chain, a], statistics[silo, chain, b]
    mean_a, mean_b = shared.mean[chain, a], shared.mean[chain, b]
    gain = (
        family.log_marginal(of_b, mean_a, shared.kappa)
        + family.log_marginal(of_a, mean_b, shared.kappa)
        - family.log_marginal(of_a, mean_a, shared.kappa)
        - family.log_marginal(of_b, mean_b, shared.kappa)
    ).sum(axis=-1)
    moved = gain > np.log(rng.random(gain.shape))
    s, t = np.nonzero(moved)
    statistics, weights = statistics.copy(), weights.copy()
    one, other = a[s, t], b[s, t]
    for array in (statistics, weights):
        array[s, t, one], array[s, t, other] = array[s, t, other], array[s, t, one]
    return statistics, weights


def draw_silo_profiles(
    counts: Ints, mean: Floats, kappa: Floats, offsets: Ints, rng: Rng
) -> Floats:
    """Draw p_sc ~ Dirichlet(κ m_c + counts), m_c where κ = ∞: (silo, chain, cluster, level)."""
    kappa = np.repeat(kappa, np.diff(offsets), axis=1)[:, None, :]
    drifts = np.broadcast_to(np.isfinite(kappa), counts.shape)
    own = np.array(np.broadcast_to(mean, counts.shape))
    # most variables do not drift, and gamma variables are what takes the time
    shapes = np.broadcast_to(kappa * mean, counts.shape)[drifts] + counts[drifts]
    own[drifts] = np.maximum(rng.standard_gamma(shapes), SMALLEST_GAMMA)
    return np.where(drifts, own / level_totals(own, offsets), own)


def log_level_terms(counts: Array, mean: Floats, kappa: Floats) -> Floats:
    """Return what each level adds to ln p(counts | m, κ), (..., level).

    The term of a variable's total, ln Γ(κ) − ln Γ(κ + Σn), is left out. It does not depend on m.
    """
    terms = np.asarray(counts * np.log(mean))
    n, m, k = (np.broadcast_to(array, terms.shape) for array in (counts, mean, kappa))
    drifts = np.isfinite(k)
    shapes = k[drifts] * m[drifts]
    terms[drifts] = gammaln(shapes + n[drifts]) - gammaln(shapes)
    return terms


def discount(counts: Floats, kappa: Floats, offsets: Ints, beta: float = 0.5) -> Floats:
    """Return the counts that say of m, without drift, what these say of it under drift.

    A silo's counts n of one level and N of the others have the log-likelihood l(m) of a
    Beta–binomial. The counts n′, N′ whose binomial log-likelihood has the same slope and curvature
    at the posterior mean stand for them: about n (κ + 1)/(n + N + κ) in the middle, and more where
    a level is never, or always, there, which drift explains less well. Every level is compared
    with all others together.

    Parameters
    ----------
    counts : (..., level)
    kappa : (variable,)
    """
    if np.isinf(kappa).all():
        return counts
    sizes = np.diff(offsets)
    totals = level_totals(counts, offsets)
    rest = totals - counts
    m = (counts + beta) / (totals + beta * np.repeat(sizes, sizes))
    drifts = np.repeat(np.isfinite(kappa), sizes)
    k = np.where(drifts, np.repeat(kappa, sizes), 1.0)
    x, y = k * m, k * (1 - m)
    slope = k * (_digamma_rise(x, counts) - _digamma_rise(y, rest))
    curvature = k**2 * (_trigamma_fall(x, counts) + _trigamma_fall(y, rest))
    # n′/m − N′/(1 − m) = slope, n′/m² + N′/(1 − m)² = curvature; neither is negative
    others = (curvature - slope / m) * m * (1 - m) ** 2
    own = m * (slope + np.maximum(others, 0.0) / (1 - m))
    return np.where(drifts, np.clip(own, 0.0, counts), counts)


def _digamma_rise(x: Floats, n: Floats) -> Floats:
    return np.asarray(digamma(x + n) - digamma(x))


def _trigamma_fall(x: Floats, n: Floats) -> Floats:
    return np.asarray(zeta(2.0, x) - zeta(2.0, x + n))  # ψ′(x) = ζ(2, x)


def log_remainder(counts: Floats, kappa: Floats, offsets: Ints, beta: float = 0.5) -> Floats:
    """Return ln p(counts | m, κ) less Σ n′ ln m at the posterior mean, n′ discounted.

    Where counts of one silo are added up before they are discounted, this is what changes beside
    the evidence of the discounted counts: (..., variable).
    """
    sizes = np.diff(offsets)
    totals = np.add.reduceat(counts, offsets[:-1], axis=-1)
    m = (counts + beta) / np.repeat(totals + beta * sizes, sizes, axis=-1)
    terms = log_level_terms(counts, m, np.repeat(kappa, sizes))
    terms -= np.log(m) * discount(counts, kappa, offsets, beta)
    drifts = np.isfinite(kappa)
    k = np.where(drifts, kappa, 1.0)
    by_total = np.where(drifts, gammaln(k) - gammaln(k + totals), 0.0)
    return np.asarray(np.add.reduceat(terms, offsets[:-1], axis=-1) + by_total)
