"""Counts that are Poisson within a cluster, each variable on its own.

    x ~ Poisson(r),   r ~ Gamma(a₀, a₀/r₀)

with a₀ = 0.5, half a row, and r₀ the variable's mean count, which stands in the study as its
location. A missing cell is left out, which sums it out exactly. Every silo takes the prior as it
is, as with normal variables.

Under drift a silo's rate is Gamma((κ + 1) r, κ + 1): its variance is r/(κ + 1), so a silo of n rows
says of r about what n(κ + 1)/(n + κ + 1) rows say without drift. With the silo's rate integrated
out a sum of counts is negative binomial, and table counts make it a Poisson of r again (Zhou and
Carin, 2015).

Per variable there is one parameter, the rate, two statistics, (n, Σx), and two numbers of the
posterior, shape and rate of the gamma distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import digamma, gammaincinv, gammaln

from silomix.kernels.dirichlet_multinomial import GRID, draw_all_tables
from silomix.model.families import sum_rules
from silomix.model.families.family import by_variable, draw_on_grid, fewer_rows, flat

if TYPE_CHECKING:
    from silomix.kernels.arrays import Bools, Floats, Ints, Reals, Rng
    from silomix.model.families.rounded import Rounded, Rules, Said
    from silomix.model.schema import Variable

SHAPE = 0.5
SMALLEST_MEAN = 0.01
SMALLEST_RATE = 1e-30
MOST_ROWS = 1e9
# counts leave as if none were more deviations of a Poisson variable above the location
BOUND = 8.0
# grid of the prior sizes of the rates of unrelated clusters, in rows, see `unrelated`
SIZES = np.geomspace(1e-2, 1e3, 11)
SIZE_SD = 3.0


@dataclass(frozen=True)
class Poisson:
    """A block of counts: see `silomix.model.families.family.Family`."""

    variables: tuple[Variable, ...]
    word: ClassVar[str] = "counts"

    @property
    def parameters(self) -> Ints:
        """How many each variable has: the rate."""
        return np.full(len(self.variables), 1)

    @property
    def statistics(self) -> Ints:
        """How many each variable has: n and Σx."""
        return np.full(len(self.variables), 2)

    @property
    def posterior_numbers(self) -> Ints:
        """How many each variable has: shape and rate."""
        return np.full(len(self.variables), 2)

    @property
    def free(self) -> int:
        """All parameters are free."""
        return len(self.variables)

    def names(self) -> list[tuple[str, str]]:
        """Return the variable and what it is called of each parameter."""
        return [(variable.name, "rate") for variable in self.variables]

    def describe(self, parameters: Reals) -> Reals:
        """Return the rates: counts are not standardised."""
        return parameters

    def whole(self, parameters: Reals, weights: Reals) -> Floats:
        """Return the mean counts of all rows: (draw, parameter)."""
        return np.einsum("tc,tcq->tq", weights, parameters, dtype=np.float64)

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Return the logs of the rate ratios: (..., parameter)."""
        rates, overall = (np.maximum(part, SMALLEST_RATE) for part in (parameters, whole))
        return np.asarray(np.log(rates / overall))

    def share(self, silos: int) -> Poisson:
        """Return the family with a silo's share of the prior: all of it."""
        return self

    def features(self, cells: Floats) -> Floats:
        """Return T(x), (row, statistic), of counts (row, variable); nan is a missing one."""
        known = ~np.isnan(cells)
        return flat(known, np.where(known, cells, 0.0))

    def log_base(self, cells: Floats) -> Floats:
        """Return −Σ ln x!: (row,)."""
        return -np.nansum(gammaln(cells + 1.0), axis=1)

    def natural(self, parameters: Reals) -> Floats:
        """Return η: (..., statistic) from (..., parameter)."""
        rate = np.maximum(parameters.astype(np.float64), SMALLEST_RATE)
        return flat(-rate, np.log(rate))

    def moments(self, parameters: Reals) -> Floats:
        """Return E T(x): (..., statistic)."""
        return flat(np.ones(parameters.shape), parameters)

    def from_moments(self, moments: Floats) -> Floats:
        """Return the parameters with these moments: (..., parameter)."""
        return np.array(by_variable(moments, 2)[1])

    def places(self, moments: Floats) -> Floats:
        """Return the roots of the rates."""
        return self.coordinates(self.from_moments(moments))

    def inside(self, parameters: Floats) -> Floats:
        """Return rates none of which is zero."""
        return np.maximum(parameters, SMALLEST_RATE)

    def prior(self) -> Floats:
        """Return the numbers of the prior: (posterior number,)."""
        means = np.array([variable.location for variable in self.variables])
        return flat(np.full(len(means), SHAPE), SHAPE / np.maximum(means, SMALLEST_MEAN))

    def posterior(self, statistics: Floats, prior: Floats | None = None) -> Floats:
        """Return the numbers of the posterior: (..., posterior number)."""
        n, total = by_variable(statistics, 2)
        shape, rate = by_variable(self.prior() if prior is None else prior, 2)
        return flat(shape + total, rate + n)

    def draw(self, posterior: Reals, rng: Rng, draws: int | None = None) -> Floats:
        """Draw rates: (draw, ..., parameter); one, and no axis for it, without `draws`."""
        shape, rate = by_variable(posterior, 2)
        size = None if draws is None else (draws, *shape.shape)
        return np.asarray(np.maximum(rng.standard_gamma(shape, size) / rate, SMALLEST_RATE))

    def log_evidence(self, statistics: Floats, prior: Floats | None = None) -> Floats:
        """Return log p(cells) without the factorials, rates integrated out: (..., variable)."""
        a0, b0 = by_variable(self.prior() if prior is None else prior, 2)
        a, b = by_variable(self.posterior(statistics, prior), 2)
        return np.asarray(gammaln(a) - gammaln(a0) + a0 * np.log(b0) - a * np.log(b))

    def expected_natural(self, statistics: Floats) -> Floats:
        """Return E η under the posterior: (..., statistic)."""
        a, b = by_variable(self.posterior(statistics), 2)
        return flat(-a / b, digamma(a) - np.log(b))

    def known(self, statistics: Floats) -> Floats:
        """Return how many rows have a cell: (..., variable)."""
        return np.asarray(by_variable(statistics, 2)[0])

    def cells(self, statistics: Floats) -> Floats:
        """Return how many cells there are in all: (...,)."""
        return np.asarray(self.known(statistics).sum(axis=-1))

    def valid(self, statistics: Floats) -> Floats:
        """Return sums that rows can have: differences of such sums need not be."""
        return np.maximum(statistics, 0.0)

    def fit(self, draws: Reals) -> Floats:
        """Return the sums of the rows that a posterior with such draws must have seen, by moments.

        A gamma's mean is a/b and its variance a/b². Draws are (draw, cluster, parameter).
        """
        rates = draws.astype(np.float64)
        a0, b0 = by_variable(self.prior(), 2)
        mean = rates.mean(axis=0)
        b = np.minimum(mean / np.maximum(rates.var(axis=0), 1e-300), MOST_ROWS)
        return flat(np.maximum(b - b0, 1e-3), np.maximum(mean * b - a0, 0.0))

    def means(self, statistics: Floats) -> tuple[Floats, Floats]:
        """Return the mean statistics of a row, those of the prior for none, and of how many."""
        n, total = by_variable(statistics, 2)
        a0, b0 = by_variable(self.prior(), 2)
        rate = np.where(n > 0, total / np.where(n > 0, n, 1.0), a0 / b0)
        return flat(np.ones_like(rate), rate), np.asarray(n, dtype=np.float64)

    def medians(self, posterior: Floats) -> Floats:
        """Return the medians of the rates: (..., parameter)."""
        a, b = by_variable(posterior, 2)
        return np.asarray(gammaincinv(a, 0.5) / b)

    def variances(self, mean: Floats, concentration: Floats) -> Floats:
        """Return the posterior variances of the roots of the rates: (..., parameter)."""
        return 0.25 / (1.0 + concentration)

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Return the gradient of the log-likelihood of rows with these sums: as `parameters`."""
        n, total = by_variable(statistics, 2)
        return np.asarray(total / np.maximum(parameters, SMALLEST_RATE) - n)

    def log_prior(self, parameters: Floats) -> tuple[float, float, Floats]:
        """Return the log density of the prior, and its gradient."""
        rate = np.maximum(parameters, SMALLEST_RATE)
        a, b = by_variable(self.prior(), 2)
        value = (a - 1) * np.log(rate) - b * rate + a * np.log(b) - gammaln(a)
        return 0.0, float(value.sum()), np.asarray((a - 1) / rate - b)

    def coordinates(self, parameters: Reals) -> Floats:
        """Return the roots of the rates, whose standard error hardly depends on them."""
        return np.sqrt(parameters.astype(np.float64))

    def free_coordinates(self, parameters: Reals) -> Floats:
        """Return the coordinates: all of them are free."""
        return self.coordinates(parameters)

    def back(self, coordinates: Floats) -> Floats:
        """Return the parameters at these coordinates."""
        return np.maximum(coordinates, 0.0) ** 2

    def problems(self, parameters: Reals, *, together: bool) -> str:
        """Say what is wrong with parameters from elsewhere; nothing where all is well."""
        return "" if (parameters >= 0).all() else "has rates below zero"

    def mean_problems(self, mean: Floats) -> str:
        """Say what is wrong with mean statistics from elsewhere; nothing where all is well."""
        one, rate = by_variable(mean, 2)
        return "" if (one == 1).all() and (rate >= 0).all() else "has means that no counts have"

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Return the log of Bhattacharyya's coefficient of two clusters: (..., variable)."""
        return -0.5 * (np.sqrt(one) - np.sqrt(other)) ** 2

    def overlap(self, one: Floats, other: Floats) -> Floats:
        """Return how many rows of two sums could be one: (..., variable), by Bhattacharyya."""
        rates = [by_variable(self.means(sums)[0], 2)[1] for sums in (one, other)]
        rows = np.minimum(self.known(one), self.known(other))
        return np.asarray(rows * np.exp(self.log_affinity(*rates)))

    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return the sums of the fewer rows that say as much of the shared rate."""
        return fewer_rows(statistics, self.known(statistics), kappa, 2)

    def log_remainder(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return log p(rows | r, κ) less that of the discounted rows, at their own rate."""
        a, b = by_variable(self.posterior(statistics), 2)
        kept = self.discount(statistics, kappa) * self.natural(a / b)
        return self.log_marginal(statistics, a / b, kappa) - sum(by_variable(kept, 2))

    def unrelated(self, statistics: Floats, worth: Floats) -> Floats:
        """Return the prior that clusters which differ seem to come from: (posterior number,).

        Its mean is that of their rates; how many rows it is worth, the most probable of a grid.
        """
        a, b = by_variable(self.posterior(statistics), 2)
        mean = np.maximum((a / b).mean(axis=0), SMALLEST_RATE)
        tried = np.array([flat(size * mean, np.full(len(mean), size)) for size in SIZES])
        values = np.array([worth @ self.log_evidence(statistics, prior) for prior in tried])
        usual = by_variable(self.prior(), 2)[1]
        values -= 0.5 * ((np.log(SIZES)[:, None] - np.log(usual)) / SIZE_SD) ** 2
        best = values.argmax(axis=0)
        return flat(SIZES[best] * mean, SIZES[best])

    def log_marginal(self, statistics: Floats, parameters: Floats, kappa: Floats) -> Floats:
        """Return log p(rows | r, κ) without factorials, the silo's own rate integrated out."""
        n, total = by_variable(statistics, 2)
        rate = np.maximum(parameters, SMALLEST_RATE)
        drifts = np.isfinite(kappa)
        k = np.where(drifts, kappa, 0.0) + 1.0
        shape = k * rate
        own = gammaln(total + shape) - gammaln(shape) - total * np.log(n + k)
        own -= shape * np.log1p(n / k)
        return np.asarray(np.where(drifts, own, total * np.log(rate) - n * rate))

    def draw_kappa(
        self, statistics: Floats, parameters: Floats, current: Ints, log_odds: Floats, rng: Rng
    ) -> Ints:
        """Draw where κ is on the grid: (chain, variable)."""
        values = [
            self.log_marginal(statistics, parameters, np.full(current.shape[1], kappa))
            for kappa in GRID
        ]
        return draw_on_grid(np.array(values).sum(axis=(1, 3)), log_odds, rng)

    def shared_posterior(
        self, statistics: Floats, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """Return the posterior numbers of the rates, silos' own integrated out by table counts."""
        n, total = by_variable(statistics, 2)
        drifts = np.isfinite(kappa)[:, None, :]
        k = np.where(drifts, kappa[:, None, :], 0.0) + 1.0
        shapes = np.broadcast_to(np.where(drifts, k * parameters, np.inf), total.shape)
        tables = draw_all_tables(np.ascontiguousarray(shapes), total.astype(np.int64), rng)
        exposure = np.where(drifts, k * np.log1p(n / k), n).sum(axis=0)
        shape, rate = by_variable(self.prior(), 2)
        return flat(shape + tables.sum(axis=0), rate + exposure)

    def draw_own(self, statistics: Floats, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own rates around the shared ones: (silo, chain, cluster, parameter)."""
        n, total = by_variable(statistics, 2)
        drifts = np.broadcast_to(np.isfinite(kappa)[:, None, :], n.shape)
        k = np.where(drifts, np.broadcast_to(kappa[:, None, :], n.shape), 0.0) + 1.0
        own = rng.standard_gamma(np.maximum(k * parameters + total, SMALLEST_RATE)) / (k + n)
        return np.where(drifts, np.maximum(own, SMALLEST_RATE), parameters)

    def _most(self) -> Floats:
        """Return the counts above which all leave as if they were these: (variable,)."""
        means = np.array([variable.location for variable in self.variables])
        return means + BOUND * np.sqrt(np.maximum(means, 1.0))

    def winsorise(self, cells: Floats) -> Floats:
        """Return the counts, (row, variable), none larger than `BOUND` deviations allow."""
        return np.minimum(cells, self._most())

    def reach(self) -> Floats:
        """Return how far one row can move Σx of winsorised counts: (variable, sum)."""
        return self._most()[:, None]

    def least_units(self, units: Floats, _: Floats) -> Floats:
        """Return Σx in steps, (..., variable, sum), as it is: a rate has no spread of its own."""
        return units

    def in_reach(self, units: Floats, per_step: Floats) -> Bools:
        """Tell which sums in steps winsorised counts can have: (..., variable, sum)."""
        return (units >= 0) & (units <= np.rint(self._most()[:, None] * per_step))

    def log_sums(self, means: Floats, rows: Floats) -> Floats:
        """Return the log probability of Σx over rows with this mean, but for T · η."""
        total = rows * means[..., 0]
        logs = total * np.log(np.maximum(rows, 1e-300)) - gammaln(np.maximum(total, 0.0) + 1.0)
        return np.where(total >= 0, logs, -np.inf)

    def disclose(
        self, cells: Floats, member: Floats, concentration: Floats, sizes: Ints, rules: Rules
    ) -> Rounded:
        """Return what may leave of the sums: see `silomix.model.families.sum_rules`."""
        return sum_rules.disclose(self, cells, member, concentration, sizes, rules)

    def basis(self, _: Ints, concentration: Floats, rules: Rules) -> Ints:
        """Say what each released mean is of: (cluster, variable)."""
        return sum_rules.basis_of(concentration, rules)

    def breach(self, mean: Floats, concentration: Floats, sizes: Ints, rules: Rules) -> str:
        """Say which released means no rule lets out; nothing where all is well."""
        return sum_rules.breach(self, mean, concentration, sizes, rules)

    def draw_behind(self, said: Said, draws: int, rng: Rng) -> Floats:
        """Draw parameters given what was released of them: (draw, parameter)."""
        return sum_rules.draw_behind(self, said, draws, rng)
