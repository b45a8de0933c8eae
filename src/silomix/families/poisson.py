"""Counts that are Poisson within a cluster, each variable on its own.

    x ~ Poisson(r),   r ~ Gamma(a₀, a₀/r₀)

with a₀ = 0.5, half a row, and r₀ the variable's mean count, which stands in the study as its
location. A missing cell is left out, which sums it out exactly. Every silo takes the prior as it
is, as with normal variables.

Under drift a silo's rate is Gamma((κ + 1) r, κ + 1): its variance is r/(κ + 1), so a silo of n rows
says of r about what n(κ + 1)/(n + κ + 1) rows say without drift. With the silo's rate integrated
out a sum of counts is negative binomial, and table counts make it a Poisson of r again (Zhou and
Carin, 2015).

Per variable there is one parameter, the rate, and two statistics, (n, Σx). A gamma distribution
of the rate has its rate with n, and its shape with Σx.
"""

from __future__ import annotations

import numpy as np
from scipy.special import bdtr, bdtrc, gammaincinv, gammaln, pdtrc

from silomix.families.family import MOST_ROWS, SMALLEST, Family, by_variable, drifting, flat
from silomix.families.release_rounding import log_between
from silomix.kernels.arrays import Floats, Ints, Reals, Rng
from silomix.kernels.dirichlet_multinomial import draw_all_tables

SHAPE = 0.5
SMALLEST_MEAN = 0.01
# counts leave as if none were more deviations of a Poisson variable above the location
BOUND = 8.0


class Poisson(Family):
    """A block of counts: see `silomix.families.family.Family`."""

    word = "counts"
    support = "counts"
    parameter_words = ("rate",)
    has_rules = True

    def log_base(self, cells: Floats) -> Floats:
        """−Σ ln x!: (row,)."""
        return -np.nansum(gammaln(cells + 1.0), axis=1)

    def natural(self, parameters: Reals) -> Floats:
        """η: (..., statistic) from (..., parameter)."""
        rate = np.maximum(parameters.astype(np.float64), SMALLEST)
        return flat(-rate, np.log(rate))

    def prior(self) -> Floats:
        """Rate and shape of the prior: (coordinate,)."""
        means = self.locations
        return flat(SHAPE / np.maximum(means, SMALLEST_MEAN), np.full(len(means), SHAPE))

    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw rates: (..., parameter)."""
        rate, shape = by_variable(posterior, 2)
        return np.asarray(np.maximum(rng.standard_gamma(shape) / rate, SMALLEST))

    def log_normaliser(self, posterior: Floats) -> Floats:
        """Log of ∫ r^(a − 1) exp(−b r) dr: (..., variable)."""
        b, a = by_variable(posterior, 2)
        return np.asarray(gammaln(a) - a * np.log(b))

    def fit(self, draws: Reals) -> Floats:
        """Sums of the rows that a posterior with such draws must have seen, by moments.

        A gamma's mean is a/b and its variance a/b². Draws are (draw, cluster, parameter).
        """
        rates = draws.astype(np.float64)
        b0, a0 = by_variable(self.prior(), 2)
        mean = rates.mean(axis=0)
        b = np.minimum(mean / np.maximum(rates.var(axis=0), 1e-300), MOST_ROWS)
        return flat(np.maximum(b - b0, 1e-3), np.maximum(mean * b - a0, 0.0))

    def medians(self, posterior: Floats) -> Floats:
        """Medians of the rates: (..., parameter)."""
        b, a = by_variable(posterior, 2)
        return np.asarray(gammaincinv(a, 0.5) / b)

    def coordinates(self, parameters: Reals) -> Floats:
        """Roots of the rates, whose standard error hardly depends on them."""
        return np.sqrt(parameters.astype(np.float64))

    def back(self, coordinates: Floats) -> Floats:
        """Parameters at these coordinates."""
        return np.maximum(coordinates, 0.0) ** 2

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Log of Bhattacharyya's coefficient of two clusters: (..., variable)."""
        return -0.5 * (np.sqrt(one) - np.sqrt(other)) ** 2

    def log_marginal(self, statistics: Floats, parameters: Floats, kappa: Floats) -> Floats:
        """Log p(rows | r, κ) without factorials, the silo's own rate integrated out."""
        n, total = by_variable(statistics, 2)
        rate = np.maximum(parameters, SMALLEST)
        drifts, k = drifting(kappa)
        shape = k * rate
        own = gammaln(total + shape) - gammaln(shape) - total * np.log(n + k)
        own -= shape * np.log1p(n / k)
        return np.asarray(np.where(drifts, own, total * np.log(rate) - n * rate))

    def shared_posterior(
        self, statistics: Floats, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """χ of the rates, silos' own integrated out by table counts."""
        n, total = by_variable(statistics, 2)
        drifts, k = drifting(kappa[:, None, :])
        shapes = np.broadcast_to(np.where(drifts, k * parameters, np.inf), total.shape)
        tables = draw_all_tables(np.ascontiguousarray(shapes), total.astype(np.int64), rng)
        exposure = np.where(drifts, k * np.log1p(n / k), n).sum(axis=0)
        return self.prior() + flat(exposure, tables.sum(axis=0))

    def draw_own(self, statistics: Floats, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own rates around the shared ones: (silo, chain, cluster, parameter)."""
        n, total = by_variable(statistics, 2)
        drifts, k = drifting(kappa[:, None, :])
        own = rng.standard_gamma(np.maximum(k * parameters + total, SMALLEST)) / (k + n)
        return np.where(drifts, np.maximum(own, SMALLEST), parameters)

    def near(self, statistics: Floats) -> Floats:
        """Posterior means of the rates: (..., parameter)."""
        b, a = by_variable(self.prior() + statistics, 2)
        return np.asarray(a / b)

    def spread(self, parameters: Floats) -> Floats:
        """Standard deviation of the counts: (..., variable)."""
        return np.sqrt(parameters)

    def bounds(self) -> tuple[Floats, Floats]:
        """Zero, and `BOUND` deviations above the mean count: each (variable,)."""
        means = self.locations
        return np.zeros(len(means)), means + BOUND * np.sqrt(np.maximum(means, 1.0))

    def log_rounded(
        self, parameters: Floats, low: Floats, high: Floats, rows: Floats, known: Ints, least: int
    ) -> Floats:
        """Log probability that top-coded rows leave such a mean: normal.

        What was taken away adds to its variance. The excess over a rank near the end is about
        geometric with mean one, so that the variance of what was taken in all is about twice that.
        """
        rate = np.maximum(parameters, SMALLEST)
        mean, more = (mean_of_coded(r, known, least) for r in (rate, 1.01 * rate))
        slope = (more - mean) / (0.01 * rate)
        error = np.sqrt((slope**2 * rate + 2 * np.abs(rate - mean)) / rows)
        return log_between(*((end[:, 0] - mean) / error for end in (low, high)))


def mean_of_coded(rate: Floats, rows: Ints, least: int) -> Floats:
    """Expected mean of top-coded Poisson counts: (draw, variable), as the rates.

    A sum of counts is Σ_k N_k, where N_k is the number of rows above k, binomial. Of top-coded
    counts N_k counts as 0 below the rank, and as all rows if fewer than the rank are not above k.
    """
    if least <= 1:
        return rate
    n = np.maximum(rows, 2 * least)
    mean, most = np.zeros_like(rate), float(rate.max())
    for k in range(int(most + 10 * np.sqrt(most)) + 10):
        above = pdtrc(k, rate)
        below_top = bdtr(n - least - 1, n - 1, above) - bdtr(least - 2, n - 1, above)
        mean += above * np.maximum(below_top, 0.0) + bdtrc(n - least, n, above)
    return mean
