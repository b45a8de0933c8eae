"""Counts that vary more than Poisson ones within a cluster, each variable on its own.

    x ~ NB(m, α) with mean m and variance m + α m²,   r = 1/α,   p = αm/(1 + αm),
    log p(x) = L_α(x) − ln x! + x ln(m/(1 + αm)) − r ln(1 + αm),   L_α(x) = Σ_{j<x} ln(1 + αj)

The dispersion α is one of `DISPERSIONS`, all equally probable beforehand; at α = 0 counts are
Poisson. Given α, p ~ Beta(a, rb + 1) with a = 0.5 and b = a/m₀, where m₀ is the variable's mean
count, which stands in the study as its location: so E m = m₀, and at α = 0 the prior is that of
`poisson`. With the sums of L at every α as statistics, this is an exponential family and its
conjugate prior, and evidence and draws are exact. Where a cluster's α is between two of the
dispersions, as that of an average is, its log density is between theirs.

Under drift a silo's own m has the law of the prior with a = (κ + 1) m and b = κ + 1, so that its
mean is m and its variance about that of a row over κ + 1, and α is shared. Silos' own m are
integrated out: α is drawn given m, by closed marginals, and m given α by table counts (Zhou and
Carin, 2015), a beta variable for each silo (Escobar and West, 1995) and a gamma variable for the
prior, which make it gamma distributed.

Per variable there are two parameters, mean and dispersion, and the statistics n, Σx and ΣL at each
α but 0. Their conjugate coordinates are rate, shape and the log weight of each α, over that of 0
and times the `log_integral` of m given it; and, last, whether m is gamma distributed with rate
and shape at any α, as under drift.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
from scipy.special import (
    betaincinv,
    betaln,
    gammaincinv,
    gammaln,
    log_softmax,
    logsumexp,
    softmax,
)

from silomix.families.derived import SIZE_SD, SIZES
from silomix.families.family import (
    MOST_ROWS,
    SMALLEST,
    Family,
    by_variable,
    draw_places,
    drifting,
    flat,
    join,
    split,
)
from silomix.families.poisson import SHAPE, SMALLEST_MEAN, Poisson
from silomix.kernels.arrays import Array, Floats, Reals, Rng
from silomix.kernels.dirichlet_multinomial import draw_all_tables

# Steps this small lose little at any α between: a cluster is not cut in two to make up for it.
DISPERSIONS = np.append(0.0, 2.0 ** np.linspace(-6.0, 4.0, 17))
POINTS = len(DISPERSIONS)
# log odds of a dispersion that was drawn
CERTAIN = 1e30
# of the dispersion's coordinate: one row tells as much of it as of the root of a mean
ROOT_8 = np.sqrt(8.0)


class NegativeBinomial(Family):
    """A block of counts: see `silomix.families.family.Family`."""

    word = "counts"
    support = "counts"
    parameter_words = ("mean", "dispersion")
    statistic_words = ("n", "Σx", *(f"ΣL at {alpha:.3g}" for alpha in DISPERSIONS[1:]))
    log_base = Poisson.log_base

    def _sums(self, statistics: Array) -> tuple[Floats, Floats, Floats]:
        """Rows n, Σx, (..., variable), and ΣL: (..., variable, point), 0 at α = 0."""
        sums = split(statistics, POINTS + 1)
        return sums[..., 0], sums[..., 1], sums[..., 1:] * (DISPERSIONS > 0)

    def _numbers(self, posterior: Reals) -> tuple[Floats, Floats, Floats, Floats]:
        """Shape, rate, whether gamma, and log probabilities: (..., variable, point)."""
        rate, shape, logs, gamma = self._weights(posterior)
        return shape, rate, gamma, log_softmax(logs, axis=-1)

    def _weights(self, posterior: Reals) -> tuple[Floats, Floats, Floats, Floats]:
        """Rate, shape, log weights of the dispersions, and whether gamma."""
        numbers = split(posterior, POINTS + 2)
        rate, shape = numbers[..., 0], numbers[..., 1]
        logs = log_integral(shape[..., None], rate[..., None])
        logs[..., 1:] += numbers[..., 2:-1]
        return rate, shape, logs, numbers[..., -1]

    def _from_numbers(self, shape: Floats, rate: Floats, logs: Floats) -> Floats:
        """χ with these log probabilities of the dispersions: (..., coordinate)."""
        weights = logs - log_integral(shape[..., None], rate[..., None])
        ratios = weights[..., 1:] - weights[..., :1]
        return join([rate, shape], np.concatenate([ratios, 0.0 * ratios[..., :1]], axis=-1))

    def _parameters(self, parameters: Reals) -> tuple[Floats, Floats]:
        m, alpha = by_variable(parameters.astype(np.float64), 2)
        return np.maximum(m, SMALLEST), np.clip(alpha, 0.0, DISPERSIONS[-1])

    def _between(self, alpha: Floats) -> tuple[Floats, Floats]:
        """Interpolation weights of α on the grid, and their slopes: (..., variable, point)."""
        steps = np.diff(DISPERSIONS)
        ways = (alpha[..., None] - DISPERSIONS[:-1]) / steps
        # at a point, the mean of those on both sides
        sides = 1.0 * ((ways >= 0) & (ways < 1)) + ((ways > 0) & (ways <= 1))
        parts = -np.diff(np.clip(ways, 0.0, 1.0), prepend=1.0, append=0.0)
        return parts, -np.diff(0.5 * sides / steps, prepend=0.0, append=0.0)

    def features(self, cells: Floats) -> Floats:
        """T(x), (row, statistic), of cells (row, variable), nan if missing."""
        x = np.nan_to_num(cells)
        return join([~np.isnan(cells), x], log_rising(x))

    def natural(self, parameters: Reals) -> Floats:
        """η: (..., statistic) from (..., parameter)."""
        m, alpha = self._parameters(parameters)
        parts, _ = self._between(alpha)
        softer = log1p_over(m[..., None])
        constant, odds = -(parts * softer).sum(-1), -(parts * softer * DISPERSIONS).sum(-1)
        return join([constant, np.log(m) + odds], parts[..., 1:])

    def _log_masses(self, parameters: Reals) -> Floats:
        """Log probabilities of what `some_counts` stand for: (..., variable, place)."""
        worth, features = some_counts()
        return split(self.natural(parameters), POINTS + 1) @ features.T + worth

    def moments(self, parameters: Reals) -> Floats:
        """E T(x), that of L by a sum over some counts: (..., statistic)."""
        if parameters.ndim > 2:  # draw by draw: places of all of them would fill the memory
            return np.array([self.moments(own) for own in parameters])
        masses, (_, features) = softmax(self._log_masses(parameters), axis=-1), some_counts()
        m, _ = self._parameters(parameters)
        # the mean is known, and L rises by about ln(1 + αm) with x
        missed = m[..., None] - masses @ features[:, 1:2]
        rising = masses @ features[:, 2:] + missed * np.log1p(DISPERSIONS[1:] * m[..., None])
        return join([np.ones(m.shape), m], rising)

    def from_moments(self, moments: Floats) -> Floats:
        """Most likely parameters of rows with these moments: (..., parameter)."""
        one, mean, rising = self._sums(moments)
        logs = self._log_likelihoods(one, mean, rising, np.maximum(mean, SMALLEST))
        return flat(mean, DISPERSIONS[logs.argmax(axis=-1)])

    def _log_likelihoods(self, n: Floats, total: Floats, rising: Floats, m: Floats) -> Floats:
        """Log p of rows at each dispersion: (..., variable, point)."""
        times = n[..., None] + total[..., None] * DISPERSIONS
        return rising + (total * np.log(m))[..., None] - times * log1p_over(m[..., None])

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Log ratios of means, and of variances of rows with a typical mean."""
        (m, alpha), (mean, overall) = self._parameters(parameters), self._parameters(whole)
        logs = (np.log1p(part * (1.0 + self.locations)) for part in (alpha, overall))
        return flat(np.log(m / mean), next(logs) - next(logs))

    def prior(self) -> Floats:
        """χ₀ of the prior: (coordinate,)."""
        means = np.maximum(self.locations, SMALLEST_MEAN)
        same = np.full((len(means), POINTS), -np.log(POINTS))
        return self._from_numbers(np.full(len(means), SHAPE), SHAPE / means, same)

    def conjugate(self, statistics: Array) -> Floats:
        """Contribution of rows with these sums to χ: the sums, and none to whether gamma."""
        sums = split(statistics, POINTS + 1)
        rising = np.concatenate([sums[..., 2:], np.zeros((*sums.shape[:-1], 1))], axis=-1)
        return join([sums[..., 0], sums[..., 1]], rising)

    def log_normaliser(self, posterior: Floats) -> Floats:
        """Log of the integral over m, added up over α: (..., variable)."""
        return np.asarray(logsumexp(self._weights(posterior)[2], axis=-1))

    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw parameters: (..., parameter)."""
        shape, rate, gamma, logs = self._numbers(posterior)
        alpha = DISPERSIONS[draw_places(logs, rng)]
        return flat(draw_means(shape, rate, np.where(gamma > 0, 0.0, alpha), rng), alpha)

    def valid(self, statistics: Floats) -> Floats:
        """Sums that rows can have: those of L are least where all counts are equal."""
        n, total, rising = self._sums(np.maximum(statistics, 0.0))
        least = n[..., None] * log_rising(total / np.where(n > 0, n, 1.0))
        return join([n, total], np.maximum(rising[..., 1:], least))

    def fit(self, draws: Reals) -> Floats:
        """Sums of the rows that a posterior with such draws must have seen, by moments.

        The law of m has the mean shape/rate at every α, and the variance (m + αm²)/(rate − α). L
        is as expected at the dispersions drawn. Draws are (draw, cluster, parameter).
        """
        m, alpha = self._parameters(draws)
        a0, b0, _, _ = self._numbers(self.prior())
        rate = (m + alpha * m * m).mean(axis=0) / np.maximum(m.var(axis=0), 1e-300)
        rate = np.minimum(rate + alpha.mean(axis=0), MOST_ROWS)
        n, total = np.maximum(rate - b0, 1e-3), np.maximum(m.mean(axis=0) * rate - a0, 0.0)
        parts = self._between(alpha)[0].mean(axis=0)
        sums = np.zeros((*n.shape[:-1], self.statistics.sum()))
        for point, part in zip(DISPERSIONS, np.moveaxis(parts, -1, 0), strict=True):
            rows = np.repeat(n * part, POINTS + 1, axis=-1)
            sums += rows * self.moments(flat(total / n, np.full(n.shape, point)))
        return sums

    def medians(self, posterior: Floats) -> Floats:
        """Medians of the dispersions, and near those of the means: averaged over α."""
        shape, rate, _, logs = self._numbers(posterior)
        masses, r = np.exp(logs), 1.0 / DISPERSIONS[1:]
        p = betaincinv(shape[..., None], r * rate[..., None] + 1.0, 0.5)
        means = np.concatenate([(gammaincinv(shape, 0.5) / rate)[..., None], r * p / (1.0 - p)], -1)
        below = (np.cumsum(masses, axis=-1) < 0.5).sum(axis=-1)
        return flat((masses * means).sum(axis=-1), DISPERSIONS[below])

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Gradient of the log-likelihood of rows with these sums: as `parameters`."""
        m, alpha = self._parameters(parameters)
        n, total, rising = self._sums(statistics)
        parts, slopes = self._between(alpha)
        by_mean = (parts / (1.0 + DISPERSIONS * m[..., None])).sum(axis=-1) * (total / m - n)
        logs = self._log_likelihoods(n, total, rising, m)
        return flat(by_mean, (slopes * logs).sum(axis=-1))

    def _log_means(self, m: Floats) -> Floats:
        """Log p(α) p(m | α) of the prior: (..., variable, point)."""
        a, b, _, logs = self._numbers(self.prior())
        a, b, m = a[..., None], b[..., None], m[..., None]
        softer = log1p_over(m)
        law = (a - 1.0) * np.log(m) - ((a + 1.0) * DISPERSIONS + b) * softer
        return logs + law - log_integral(a, b)

    def log_prior(self, parameters: Floats) -> tuple[float, Floats | float, Floats]:
        """Log density of the prior, and its gradient."""
        m, alpha = self._parameters(parameters)
        a, b, _, _ = self._numbers(self.prior())
        (parts, slopes), values = self._between(alpha), self._log_means(m)
        down = (a[..., None] + 1.0) * DISPERSIONS + b[..., None]
        by_mean = (a - 1.0) / m - (parts * down / (1.0 + DISPERSIONS * m[..., None])).sum(axis=-1)
        return 0.0, float((parts * values).sum()), flat(by_mean, (slopes * values).sum(axis=-1))

    def coordinates(self, parameters: Reals) -> Floats:
        """Roots of the means, and logs of the variance over Poisson's: free."""
        m, alpha = self._parameters(parameters)
        return flat(np.sqrt(m), np.log1p(alpha * (1.0 + self.locations)) / ROOT_8)

    def back(self, coordinates: Floats) -> Floats:
        """Parameters at these coordinates."""
        root, log = by_variable(coordinates, 2)
        alpha = np.expm1(ROOT_8 * log) / (1.0 + self.locations)
        return flat(np.maximum(root, 0.0) ** 2, np.clip(alpha, 0.0, DISPERSIONS[-1]))

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Log of Bhattacharyya's coefficient of two clusters: (..., variable)."""
        logs = 0.5 * (self._log_masses(one) + self._log_masses(other))
        return np.asarray(np.minimum(logsumexp(logs, axis=-1), 0.0))

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Log p(rows | m, α, κ) without factorials, the silo's own m integrated out."""
        n, total, rising = self._sums(statistics)
        m, alpha = self._parameters(parameters)
        drifts, k = drifting(kappa)
        own = log_integral(k * m + total, k + n, alpha) - log_integral(k * m, k, alpha)
        same = total * np.log(m) - (n + alpha * total) * log1p_over(m, alpha)
        parts, _ = self._between(alpha)
        return np.asarray(np.where(drifts, own, same) + (parts * rising).sum(axis=-1))

    def shared_posterior(
        self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """χ of m with α drawn, silos' own m integrated out.

        Where silos do not differ, those of both. Of p(silo | m, α), Γ(km + Σx)/Γ(km) is made a
        power of m by table counts, k = κ + 1, and Γ(km + kr + 1)/Γ(km + kr + 1 + Σx + nr) an
        exponential by a beta variable q. A gamma variable does so for (1 + αm) in the prior.
        """
        n, total, rising = self._sums(statistics)
        m, _ = self._parameters(parameters)
        a, b, _, _ = self._numbers(self.prior())
        drifts, k = drifting(kappa[:, None, :])
        logs = self._log_means(m) + rising.sum(axis=0)
        for place, point in enumerate(DISPERSIONS):
            after = log_integral(k * m + total, k + n, point)
            logs[..., place] += (after - log_integral(k * m, k, point)).sum(axis=0)
        alpha = DISPERSIONS[draw_places(logs, rng)]
        some, curved = np.where(alpha > 0, alpha, 1.0), alpha > 0
        shapes = np.broadcast_to(k * m, total.shape)
        tables = draw_all_tables(np.ascontiguousarray(shapes), total.astype(np.int64), rng)
        odds = rng.standard_gamma(total + n / some) / rng.standard_gamma(shapes + k / some + 1.0)
        exposure = k * np.log1p(np.where(curved, odds, n / k)).sum(axis=0)
        pull = some * rng.standard_gamma(a + b / some + 1.0) / (1.0 + some * m)
        rate = exposure + np.where(curved, pull, b)
        drawn = np.where(alpha[..., None] == DISPERSIONS[1:], CERTAIN, -CERTAIN)
        gamma = np.ones((*m.shape, 1))
        shape = a + tables.sum(axis=0)
        numbers = join([rate, shape], np.concatenate([drawn, gamma], axis=-1))
        alike = self.prior() + self.conjugate(statistics.sum(axis=0))
        return np.where(np.repeat(drifts, POINTS + 2, axis=-1), numbers, alike)

    def draw_own(self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own means around the shared ones, with the shared dispersions."""
        n, total, _ = self._sums(statistics)
        m, alpha = (np.broadcast_to(part, n.shape) for part in self._parameters(parameters))
        drifts, k = drifting(kappa[:, None, :])
        own = draw_means(k * m + total, k + n, alpha, rng)
        return flat(np.where(drifts, own, m), alpha)

    def spread(self, parameters: Floats) -> Floats:
        """Standard deviation of the counts: (..., variable)."""
        m, alpha = self._parameters(parameters)
        return np.sqrt(m + alpha * m * m)

    def priors_near(self, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Priors around the mean of the clusters' means, and what speaks against each.

        Their dispersions are those of the prior, or such as the clusters have.
        """
        shape, rate, _, logs = self._numbers(self.prior() + self.conjugate(statistics))
        mean = (shape / rate).mean(axis=0)
        _, usual, _, same = self._numbers(self.prior())
        alike = logsumexp(np.concatenate([logs, same[None]]), axis=0) - np.log(len(logs) + 1.0)
        for size, known in product(SIZES, (same, alike)):
            against = 0.5 * ((np.log(size) - np.log(usual)) / SIZE_SD) ** 2
            shapes, rates = np.broadcast_arrays(size * mean, size)
            yield self._from_numbers(shapes, rates, known), against


def log_rising(x: Floats) -> Floats:
    """L_α(x) at every α but 0: (..., point)."""
    r = 1.0 / DISPERSIONS[1:]
    return gammaln(x[..., None] + r) - gammaln(r) - x[..., None] * np.log(r)


def log1p_over(m: Floats, alpha: Floats = DISPERSIONS) -> Floats:
    """Log ratio ln(1 + αm)/α, m at α = 0."""
    some = np.where(alpha > 0, alpha, 1.0)
    return np.where(alpha > 0, np.log1p(some * m) / some, m)


def log_integral(shape: Floats, rate: Floats, alpha: Floats = DISPERSIONS) -> Floats:
    """Log of ∫ m^(shape − 1) (1 + αm)^(−shape − 1 − rate/α) dm, a gamma's at α = 0."""
    r = 1.0 / np.where(alpha > 0, alpha, 1.0)
    curved = shape * np.log(r) + betaln(shape, r * rate + 1.0)
    return np.where(alpha > 0, curved, gammaln(shape) - shape * np.log(rate))


def draw_means(shape: Floats, rate: Floats, alpha: Floats, rng: Rng) -> Floats:
    """Draw m from the law that `log_integral` is of: r times a ratio of gammas."""
    some = np.where(alpha > 0, alpha, 1.0)
    below = np.where(alpha > 0, some * rng.standard_gamma(rate / some + 1.0), rate)
    return np.asarray(np.maximum(rng.standard_gamma(shape) / below, SMALLEST))


@cache
def some_counts() -> tuple[Floats, Floats]:
    """Counts that stand for all, few of the large ones.

    Returns
    -------
    worth : (place,), log of how many counts each is over x!; features : (place, statistic), T(x).
    """
    # each of the first; then steps that grow as a Poisson variable widens, and then with x
    t = np.arange(241.0)
    edges = 31.5 + t + t * t / 8.0 + 1e-3 * np.expm1(t / 10.0)
    x = np.concatenate([np.arange(32.0), 0.5 * (edges[1:] + edges[:-1])])
    worth = np.log(np.concatenate([np.ones(32), np.diff(edges)])) - gammaln(x + 1.0)
    return worth, np.column_stack([np.ones(len(x)), x, log_rising(x)])
