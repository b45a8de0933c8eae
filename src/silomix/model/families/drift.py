"""Drift: a cluster's parameters may differ between silos, variable by variable.

The silos share m_c, and each has its own parameters around it. κ_q says how alike they are in
variable q, and at κ_q = ∞ they are the same, which is the model of Fendler et al. (2026). Half of
the prior of κ_q is at ∞ and half is log-uniform on a grid; how many variables drift is learned too
(P(κ_q = ∞) ~ Beta(1, 1)). How parameters vary at κ is the family's matter.

Given what the silos' rows add up to by cluster, the coordinator draws κ, then m, with the silos'
own parameters integrated out, and only then those. In another order, with parameters left over from
before κ or m moved, the three steps would not leave the posterior as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.kernels.dirichlet_multinomial import GRID

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Floats, Rng
    from silomix.model.families.product import Product


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
    same = np.isinf(shared.kappa[:, family.leads]).sum(axis=1)
    drifting = int(family.leads.sum()) - same
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
