"""Numbers that are normal within a cluster, each variable on its own.

    x | σ² ~ N(m, σ²),   m | σ² ~ N(m₀, σ²/λ₀),   σ² ~ inverse-gamma(a₀, b₀)

in the units of the study: x less the variable's location, over its scale. The prior says that a
cluster's mean is somewhere in the data and its spread some part of theirs: m₀ = 0, λ₀ = 0.01 (a
hundredth of a row, as in Fraley and Raftery, 2007), a₀ = 1.5 and b₀ = 0.25, three rows with half of
the scale as their standard deviation. No cluster's spread can be zero, whatever its rows. A
missing cell is left out, which sums it out exactly.

A power 1/S of this prior is improper from two silos on, so every silo takes the prior as it is: it
is worth three rows, and is taken out again where silos' draws are multiplied.

Under drift a silo's mean is normal around the shared one, N(m, σ²/(κ + 1)), and σ² is shared: so a
silo of n rows says of m what n(κ + 1)/(n + κ + 1) rows say without drift.

Per variable there are two parameters, mean and standard deviation, three statistics, (n, Σx, Σx²),
and four conjugate coordinates, (2a, λ, λm, 2b + λm²), to which rows add (n, n, Σx, Σx²).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import ClassVar

import numpy as np
from scipy.special import digamma, gammaincinv, gammaln, logsumexp, ndtr, ndtri

from silomix.families.derived import SIZE_SD
from silomix.families.family import MOST_ROWS, Family, by_variable, drifting, flat, worth
from silomix.families.release_rounding import SAME, log_between
from silomix.kernels.arrays import Floats, Ints, Reals, Rng

PRIOR = (0.0, 0.01, 1.5, 0.25)
# of a posterior: sums of squares are differences, and may come out below zero
SMALLEST_B = 1e-12
# gamma variables of empty components may be as good as zero
SMALLEST_GAMMA = 1e-12
LOG_2PI = float(np.log(2 * np.pi))
# values leave as if none were farther from the location, and no spread as if it were smaller
BOUND, SMALLEST_SPREAD = 4.0, 0.05
# samples that show what top-coding does, and the most rows of each
CODED_SAMPLES, CODED_ROWS = 2000, 1000
# shares of the probability of a mean at which that of the variance is taken: (node, 1, 1)
NODES = (np.arange(8)[:, None, None] + 0.5) / 8
# grid of the prior sizes of mean and spread of unrelated clusters, see `priors_near`
MEAN_SIZES = np.geomspace(1e-3, 1e3, 13)
SPREAD_SIZES = np.array([1.5, 5.0, 20.0, 100.0])


class Gaussian(Family):
    """A block of normal variables: see `silomix.families.family.Family`."""

    units = "scaled"
    support = "all"
    parameter_words = ("mean", "sd")
    statistic_words: ClassVar[tuple[str, ...]] = ("n", "Σx", "Σx²")
    has_rules = True

    # what messages call the second parameter
    spreads: ClassVar[str] = "standard deviations"
    # rows that a spread is worth, of each that the mean is
    spread_worth: ClassVar[float] = 1.0

    def sums(self, statistics: Reals) -> tuple[Floats, Floats, Floats, Floats]:
        """Rows, what they weigh, which is as many, Σx and Σx²: each (..., variable)."""
        n, total, square = by_variable(statistics, 3)
        return n, n, total, square

    def conjugate(self, statistics: Floats) -> Floats:
        """Contribution of rows with these sums to χ: n twice, Σx and Σx²."""
        return self.from_parts(*self.sums(statistics))

    def parts(self, posterior: Reals) -> tuple[Floats, ...]:
        """χ in parts, rows for the spread and for the mean, Σx and Σx²."""
        return by_variable(posterior, 4)

    def from_parts(self, n: Floats, w: Floats, total: Floats, square: Floats) -> Floats:
        """χ with these parts: (..., coordinate)."""
        return flat(n, w, total, square)

    def numbers(self, posterior: Reals) -> tuple[Floats, Floats, Floats, Floats]:
        """Mean m, λ, a and b of the normal–inverse-gamma law χ: each (..., variable)."""
        n, w, total, square = self.parts(posterior)
        mean = total / w
        return mean, w, 0.5 * n, np.maximum(0.5 * (square - total * mean), SMALLEST_B)

    def from_numbers(self, m: Floats, size: Floats, a: Floats, b: Floats) -> Floats:
        """χ of the normal–inverse-gamma law with these m, λ, a and b: (..., coordinate)."""
        return self.from_parts(2 * a, size, size * m, 2 * b + size * m * m)

    def left_out(self, statistics: Floats) -> Floats | float:
        """Sums of log p(x) beside those of a normal density: nothing."""
        return 0.0

    def from_sums(self, n: Floats, w: Floats, total: Floats, square: Floats) -> Floats:
        """Statistics with these sums: (..., statistic)."""
        return flat(n, total, square)

    def describe(self, parameters: Reals) -> Floats:
        """Mean and sd in the units of the table, or of its logarithms."""
        m, s = by_variable(parameters, 2)
        return flat(m * self.scales + self.locations, s * self.scales)

    def whole(self, parameters: Reals, weights: Reals) -> Floats:
        """Means over all rows, and the sd within clusters: (draw, parameter)."""
        m, s = by_variable(parameters.astype(np.float64), 2)
        mean, variance = (np.einsum("tc,tcq->tq", weights, part) for part in (m, s * s))
        return flat(mean, np.sqrt(variance))

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Difference of means in sds within clusters, and the log ratio of sds."""
        (m, s), (mean, within) = by_variable(parameters, 2), by_variable(whole, 2)
        return flat((m - mean) / within, np.log(s / within))

    def log_base(self, cells: Floats) -> Floats:
        """Log Jacobian of the change of units, and of logarithms: (row,)."""
        logs = np.array([variable.transform == "log" for variable in self.variables])
        # p(x) = p(ln x) / x, and ln x is the cell in the table's units
        jacobian = np.where(logs, cells * self.scales + self.locations, 0.0)
        jacobian = jacobian + np.log(self.scales)
        return -np.where(np.isnan(cells), 0.0, jacobian).sum(axis=1)

    def natural(self, parameters: Reals) -> Floats:
        """η: (..., statistic) from (..., parameter)."""
        # terms of the order of (m/s)² cancel, which single precision would not survive
        m, s = by_variable(parameters.astype(np.float64), 2)
        precision = s**-2.0
        constant = -0.5 * (LOG_2PI + m * m * precision) - np.log(s)
        return flat(constant, m * precision, -0.5 * precision)

    def moments(self, parameters: Reals) -> Floats:
        """E T(x): (..., statistic)."""
        m, s = by_variable(parameters, 2)
        return flat(np.ones_like(m), m, m * m + s * s)

    def from_moments(self, moments: Floats) -> Floats:
        """Parameters with these moments: (..., parameter)."""
        n, w, total, square = self.sums(moments)
        mean = total / w
        return flat(mean, np.sqrt(np.maximum((square - total * mean) / n, SMALLEST_B)))

    def prior(self) -> Floats:
        """χ₀: three rows for the spread, a hundredth of one for the mean."""
        return self.from_numbers(*(np.full(len(self.variables), number) for number in PRIOR))

    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw parameters: (..., parameter)."""
        m, size, a, b = self.numbers(posterior)
        s = np.sqrt(b / np.maximum(rng.standard_gamma(a), SMALLEST_GAMMA))
        return flat(m + s / np.sqrt(size) * rng.standard_normal(m.shape), s)

    def log_normaliser(self, posterior: Floats) -> Floats:
        """Log of the integral over mean and variance: (..., variable)."""
        _, size, a, b = self.numbers(posterior)
        return np.asarray(gammaln(a) - a * (np.log(b) + LOG_2PI) - 0.5 * np.log(size))

    def expected_natural(self, statistics: Floats) -> Floats:
        """E η under the posterior: (..., statistic)."""
        m, size, a, b = self.numbers(self.prior() + self.conjugate(statistics))
        precision, log_precision = a / b, digamma(a) - np.log(b)
        constant = 0.5 * (log_precision - LOG_2PI - precision * m * m - 1.0 / size)
        return flat(constant, precision * m, -0.5 * precision)

    def valid(self, statistics: Floats) -> Floats:
        """Sums that rows can have: differences of such sums need not be."""
        n, w, total, square = self.sums(statistics)
        some = (n > 0) & (w > 0)
        least = total * total / np.where(some, w, 1.0)
        parts = n, w, total, np.maximum(square, least)
        return self.from_sums(*(np.where(some, part, 0.0) for part in parts))

    def fit(self, draws: Reals) -> Floats:
        """Sums of the rows that a posterior with such draws must have seen, by moments.

        With members that are certain, Var m = E σ²/λ. Draws are (draw, cluster, parameter).
        """
        m, s = by_variable(draws.astype(np.float64), 2)
        _, l0, a0, b0 = self.numbers(self.prior())
        variance, mean = (s * s).mean(axis=0), m.mean(axis=0)
        size = np.minimum(variance / np.maximum(m.var(axis=0), 1e-300), MOST_ROWS)
        w = np.maximum(size - l0, 1e-3)
        n = w * self.spread_worth
        b = variance * np.maximum(a0 + 0.5 * n - 1.0, 0.5)
        x = mean * (l0 + w) / w
        square = (2.0 * (b - b0) + (l0 + w) * mean * mean) / w
        return self.from_sums(n, w, w * x, w * np.maximum(square, x * x + SMALLEST_B))

    def medians(self, posterior: Floats) -> Floats:
        """Medians of the parameters: (..., parameter)."""
        m, _, a, b = self.numbers(posterior)
        return flat(m, np.sqrt(b / gammaincinv(a, 0.5)))

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Gradient of the log-likelihood of rows with these sums: as `parameters`."""
        m, s = by_variable(parameters, 2)
        n, w, total, square = self.sums(statistics)
        precision = s**-2.0
        squares = square - 2.0 * m * total + w * m * m
        return flat((total - w * m) * precision, squares * precision / s - n / s)

    def log_prior(self, parameters: Floats) -> tuple[float, Floats | float, Floats]:
        """Log density of the prior in (mean, sd), and its gradient."""
        m, s = by_variable(parameters, 2)
        m0, l0, a0, b0 = self.numbers(self.prior())
        precision, apart = s**-2.0, m - m0
        normal = 0.5 * (np.log(l0) - LOG_2PI - l0 * apart * apart * precision) - np.log(s)
        # dσ² = 2σ dσ
        spread = a0 * np.log(b0) - gammaln(a0) - (2 * a0 + 1) * np.log(s) - b0 * precision
        slopes = -(2 * a0 + 2) / s + (2 * b0 + l0 * apart * apart) * precision / s
        value = normal + spread + np.log(2.0)
        return 0.0, value, flat(-l0 * apart * precision, slopes)

    def coordinates(self, parameters: Reals) -> Floats:
        """(mean, ln sd): free, and comparable between variables."""
        m, s = by_variable(parameters, 2)
        return flat(m, np.log(s))

    def back(self, coordinates: Floats) -> Floats:
        """Parameters at these coordinates."""
        m, log_s = by_variable(coordinates, 2)
        return flat(m, np.exp(log_s))

    def problems(self, parameters: Reals, *, together: bool = True) -> str:
        """What is wrong with parameters from elsewhere; or ""."""
        _, s = by_variable(parameters, 2)
        return "" if (s > 0).all() else f"has {self.spreads} that are not positive"

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Log of Bhattacharyya's coefficient of two clusters: (..., variable)."""
        (m, s), (k, t) = by_variable(one, 2), by_variable(other, 2)
        both = s * s + t * t
        return np.asarray(0.5 * np.log(2.0 * s * t / both) - 0.25 * (m - k) ** 2 / both)

    def log_marginal(self, statistics: Floats, parameters: Floats, kappa: Floats) -> Floats:
        """Log p(rows | m, σ, κ), the silo's own mean integrated out: (..., variable)."""
        n, w, total, square = self.sums(statistics)
        m, s = by_variable(parameters, 2)
        mean = _mean(w, total)
        shrunk = worth(w, kappa)
        squares = np.maximum(square - total * mean, 0.0) + w * shrunk * (mean - m) ** 2
        fixed = -n * (0.5 * LOG_2PI + np.log(s)) + 0.5 * np.log(shrunk)
        return np.asarray(fixed - 0.5 * squares / (s * s) + self.left_out(statistics))

    def shared_posterior(
        self, statistics: Floats, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """χ of (m, σ), silos' own means integrated out, exactly."""
        n, w, total, square = self.sums(statistics)
        shrunk = worth(w, kappa[:, None, :])
        mean = _mean(w, total)
        weight, weighted = (w * shrunk).sum(axis=0), (total * shrunk).sum(axis=0)
        squares = (square - (1.0 - shrunk) * total * mean).sum(axis=0)
        return self.prior() + self.from_parts(n.sum(axis=0), weight, weighted, squares)

    def draw_own(self, statistics: Floats, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own means around the shared ones, with the shared spreads."""
        _, w, total, _ = self.sums(statistics)
        m, s = (np.broadcast_to(part, w.shape) for part in by_variable(parameters, 2))
        drifts, k = drifting(kappa[:, None, :])
        centre = (k * m + total) / (k + w)
        own = centre + s / np.sqrt(k + w) * rng.standard_normal(w.shape)
        return flat(np.where(drifts, own, m), s)

    def near(self, statistics: Floats) -> Floats:
        """Mean and spread of rows, the spread drawn towards the prior's."""
        n, w, total, square = self.sums(statistics)
        weight = np.maximum(w, 1.0)
        mean = total / weight
        squares = np.maximum(square - weight * mean * mean, 0.0)
        return flat(mean, np.sqrt((squares + 2 * PRIOR[3]) / (n + 3.0)))

    def spread(self, parameters: Floats) -> Floats:
        """Standard deviations: (..., variable)."""
        return by_variable(parameters, 2)[1]

    def priors_near(self, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Priors that clusters may come from, and what speaks against each.

        Their centre is the mean of the clusters' means, their typical variance the mean of theirs
        on the scale of logarithms.
        """
        m, _, a, b = self.numbers(self.prior() + self.conjugate(statistics))
        centre, variance = m.mean(axis=0), np.exp(np.log(b / a).mean(axis=0))
        for size, shape, against in self.prior_sizes():
            numbers = np.broadcast_arrays(centre, size, shape, shape * variance)
            yield self.from_numbers(*numbers), against

    def prior_sizes(self) -> Iterator[tuple[float, float, Floats]]:
        """λ and a of the priors of `priors_near`, and what speaks against each."""
        for size, shape in product(MEAN_SIZES, SPREAD_SIZES):
            apart = np.log(size / PRIOR[1]), np.log(shape / PRIOR[2])
            yield size, shape, 0.5 * (np.square(apart) / SIZE_SD**2).sum()

    def bounds(self) -> tuple[Floats, Floats]:
        """`BOUND` on both sides of the location: each (variable,)."""
        return np.full(len(self.variables), -BOUND), np.full(len(self.variables), BOUND)

    def least_sums(self, units: Floats, per_step: Floats) -> Floats:
        """Σx and Σx² in steps, (..., variable, sum), Σx² raised to the smallest spread."""
        x = units[..., 0] / per_step[..., 0]
        least = np.ceil((x * x + SMALLEST_SPREAD**2) * per_step[..., 1] - SAME)
        return np.stack([units[..., 0], np.maximum(units[..., 1], least)], axis=-1)

    def log_rounded(
        self, parameters: Floats, low: Floats, high: Floats, rows: Floats, known: Ints, least: int
    ) -> Floats:
        """Log probability that top-coded rows leave such means of x and x².

        Their mean is about normal, and their variance independent of it and about gamma, the cubic
        root of which is normal (Wilson and Hilferty, 1931).
        """
        m, s = by_variable(parameters, 2)
        coded = np.array([coded_normals(int(n), int(least)) for n in known])
        # doubt about who belongs makes the sample smaller than its cells
        spread, error, shape = coded.T * [np.ones(len(known)), np.sqrt(known / rows), rows / known]
        a, b = (ndtr((end[:, 0] - m) / (s * error)) for end in (low, high))
        value = log_between(*((end[:, 0] - m) / (s * error) for end in (low, high)))
        node = ndtri(np.clip(a + (b - a) * NODES, 1e-300, 1 - 1e-16))
        x = np.clip(m + s * error * node, low[:, 0], high[:, 0])
        ratios = (np.maximum(end[:, 1] - x * x, 0.0) / (s * s * spread) for end in (low, high))
        roots = map(np.cbrt, ratios)
        logs = log_between(*((root - 1 + 1 / (9 * shape)) * 3 * np.sqrt(shape) for root in roots))
        return np.asarray(value + logsumexp(logs, axis=0) - np.log(len(NODES)))


@lru_cache(maxsize=1000)
def coded_normals(rows: int, least: int) -> tuple[float, float, float]:
    """Effect of top-coding on samples of a standard normal, by simulation.

    The mean of the variance, the standard error of the mean, and the shape of the gamma
    distribution that the variance has. Fewer rows with the same share coded stand for many.
    """
    size = min(rows, CODED_ROWS)
    rank = max(round(least * size / rows), 1)
    if 2 * rank > size:
        return 1.0, rows**-0.5, max(rows - 1, 1) / 2
    rng = np.random.default_rng([size, rank])
    sample = np.sort(rng.normal(size=(CODED_SAMPLES, size)), axis=1)
    coded = np.clip(sample, sample[:, [rank - 1]], sample[:, [size - rank]])
    variance = coded.var(axis=1)
    shape = variance.mean() ** 2 / max(variance.var(), SMALLEST_B)
    error = np.sqrt((coded.mean(axis=1) ** 2).mean())
    return float(variance.mean()), float(error * np.sqrt(size / rows)), float(shape * rows / size)


def _mean(n: Floats, total: Floats) -> Floats:
    """Mean of rows, 0 of none: sums that were sent in few digits are not quite zero."""
    return np.divide(total, n, out=np.zeros(n.shape), where=n > 0)
