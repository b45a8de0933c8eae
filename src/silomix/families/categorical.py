"""Categories: variables whose cells are levels. `Categorical` is the paper's family.

`Levels` is what kinds of categories share: statistics are level counts and parameters level
probabilities, each with a column for each level. Missing cells are left out of the likelihood,
which sums them out exactly. Under drift a silo's own probabilities are p_sc^q ~
Dirichlet(κ_q m_c^q), m shared. A kind adds the prior of the probabilities.

`Categorical` (Fendler et al., 2026, section 3): within a cluster the variables are independent,
variable q with probabilities p^q ~ Dirichlet(β, …, β). Its conjugate coordinates are the shapes of
the Dirichlets, a column for each level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.special import betaincinv, digamma, gammaln, zeta

from silomix.families.family import GRID, SMALLEST, Family
from silomix.kernels.arrays import Array, Codes, Floats, Ints, Reals, Rng
from silomix.kernels.dirichlet_multinomial import draw_from_grid, sum_tables

# stands for zero under a logarithm
SMALLEST_PROBABILITY = 1e-300
SMALLEST_SHAPE = 1e-6
# draws that hardly move say no more than this many observations
LARGEST_CONCENTRATION = 1e9
# a gamma variable of tiny shape may come out as zero; no probability does
SMALLEST_GAMMA = 1e-300
# how far probabilities of a variable may be from a sum of one: draws are kept in single precision
NORMALISED = 1e-4
# values of τ_q that are compared, see `priors_near`
SPREADS = np.array([0.6, 1.0, 2.0, 4.0, 8.0, 20.0, 60.0, 200.0, 1e3, 5e3, 3e4])
# finite points of the grid that one draw of κ_q compares
TRIED = 3
# the prior of ln τ_q is normal around that of Dirichlet(β), as wide as this
SPREAD_SD = 3.0


@dataclass(frozen=True)
class Levels(Family):
    """A block of categories: see `silomix.families.family.Family`.

    Attributes
    ----------
    beta : concentration of each level, from the study's prior.
    """

    beta: float = 0.5
    has_levels: ClassVar[bool] = True
    word: ClassVar[str] = "categories"

    @cached_property
    def statistics(self) -> Ints:
        """Number of levels of each variable: (variable,)."""
        return np.array([len(variable.levels) for variable in self.variables], dtype=np.int64)

    @cached_property
    def offsets(self) -> Ints:
        """Where each variable's levels start: (variable + 1,)."""
        return np.concatenate([[0], np.cumsum(self.statistics)]).astype(np.int64)

    def names(self) -> list[tuple[str, str]]:
        """Variable and the level of each parameter."""
        return [(variable.name, level) for variable in self.variables for level in variable.levels]

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """(p − w)/√(w(1 − w)): a difference in standard deviations of having the level.

        Fendler et al. (2026), section 6, show a scaled difference between the proportions in a
        cluster and in the full data, and do not print its formula. This reading makes rare and
        common levels comparable. A level that all rows have, or none, differs by 0.
        """
        spread = np.sqrt(np.clip(whole * (1.0 - whole), 0.0, None))
        difference = np.asarray(parameters, dtype=np.float64) - whole
        return np.divide(difference, spread, out=np.zeros_like(difference), where=spread > 0)

    def features(self, cells: Codes) -> Floats:
        """(row, level), one where the row has the level; a missing cell has none."""
        return one_hot(cells, self.offsets)

    def natural(self, parameters: Reals) -> Floats:
        """Ln p: (..., level)."""
        # a float32 has no number so small, and a level that nobody has must not be −inf × 0
        return np.log(np.maximum(parameters.astype(np.float64), SMALLEST_PROBABILITY))

    def moments(self, parameters: Reals) -> Reals:
        """Probabilities: they are the expected counts of a row."""
        return parameters

    def from_moments(self, moments: Floats) -> Floats:
        """Probabilities."""
        return moments

    def places(self, moments: Floats) -> Floats:
        """Roots of the shares: their distance is Hellinger's."""
        return np.sqrt(moments)

    def known(self, statistics: Array) -> Floats:
        """Number of rows that have a cell, the levels of a variable added up: (..., variable)."""
        return np.add.reduceat(statistics, self.offsets[:-1], axis=-1)

    def means(self, statistics: Floats) -> tuple[Floats, Floats]:
        """Each level's share, equal ones of none, and of how many cells."""
        return shares_of(statistics, self.offsets), self.known(statistics)

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """n/p: (..., level)."""
        return statistics / parameters

    def coordinates(self, parameters: Reals) -> Reals:
        """Probabilities, as in the paper."""
        return parameters

    def back(self, coordinates: Floats) -> Floats:
        """Probabilities that sum to one within each variable."""
        positive = np.maximum(coordinates, SMALLEST)
        return positive / level_totals(positive, self.offsets)

    def mean_problems(self, mean: Floats) -> str:
        """What is wrong with shares from elsewhere; or ""."""
        return self.problems(mean)

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Ln Σ_k √(p_a[k] p_b[k]), Bhattacharyya's: (..., variable)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.known(np.sqrt(one) * np.sqrt(other))))

    def overlap(self, one: Array, other: Array) -> Floats:
        """Σ min(counts): (..., variable)."""
        return self.known(np.minimum(one, other))

    def problems(self, parameters: Reals, *, together: bool = True) -> str:
        """What is wrong with probabilities from elsewhere; or ""."""
        low, high = parameters.min(initial=0.0), parameters.max(initial=0.0)
        if not (low >= 0.0 and high <= 1.0 + NORMALISED):
            return f"has probabilities from {low:g} to {high:g}"
        sums = self.known(parameters)
        odd = together & (np.abs(sums - 1.0) > NORMALISED)
        return "has probabilities of a variable that do not sum to one" if odd.any() else ""

    def draw_own(self, statistics: Ints, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw p_sc ~ Dirichlet(κ m_c + counts), m_c where κ = ∞: (silo, chain, cluster, level)."""
        kappa = np.repeat(kappa, self.statistics, axis=1)[:, None, :]
        drifts = np.broadcast_to(np.isfinite(kappa), statistics.shape)
        own = np.array(np.broadcast_to(parameters, statistics.shape))
        # most variables do not drift, and gamma variables are what takes the time
        shapes = np.broadcast_to(kappa * parameters, own.shape)[drifts] + statistics[drifts]
        own[drifts] = np.maximum(rng.standard_gamma(shapes), SMALLEST_GAMMA)
        return np.where(drifts, own / level_totals(own, self.offsets), own)

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Ln p(counts | m, κ), (..., variable), without ln Γ(κ) − ln Γ(κ + Σn).

        That term is a function of the counts' total, and does not depend on m.
        """
        by_level = np.repeat(kappa, self.statistics, axis=-1)
        return np.asarray(self.known(_level_terms(statistics, parameters, by_level)))

    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Counts that say of m, without drift, what these say of it under drift.

        A silo's counts n of one level and N of the others have the log-likelihood l(m) of a
        Beta–binomial. The counts n′, N′ whose binomial log-likelihood has the same slope and
        curvature at the posterior mean stand for them: about n (κ + 1)/(n + N + κ) in the middle,
        and more where a level is never, or always, there, which drift explains less well. Every
        level is compared with all others together.

        Parameters
        ----------
        statistics : (..., level); kappa : (variable,)
        """
        if np.isinf(kappa).all():
            return statistics
        rest = level_totals(statistics, self.offsets) - statistics
        by_level = np.repeat(kappa, self.statistics)
        # an only level has all the probability, and cannot drift
        drifts = np.isfinite(by_level) & (np.repeat(self.statistics, self.statistics) > 1)
        m = np.where(drifts, self.near(statistics), 0.5)
        k = np.where(drifts, by_level, 1.0)
        x, y = k * m, k * (1 - m)
        slope = k * ((digamma(x + statistics) - digamma(x)) - (digamma(y + rest) - digamma(y)))
        # ψ′(x) = ζ(2, x)
        fall = (zeta(2.0, x) - zeta(2.0, x + statistics)) + (zeta(2.0, y) - zeta(2.0, y + rest))
        curvature = k**2 * fall
        # n′/m − N′/(1 − m) = slope, n′/m² + N′/(1 − m)² = curvature; neither is negative
        others = (curvature - slope / m) * m * (1 - m) ** 2
        own = m * (slope + np.maximum(others, 0.0) / (1 - m))
        return np.where(drifts, np.clip(own, 0.0, statistics), statistics)

    def log_remainder(self, statistics: Floats, kappa: Floats) -> Floats:
        """Ln p(counts | m, κ) less Σ n′ ln m at the posterior mean, n′ discounted.

        Where counts of one silo are added up before they are discounted, this is what changes
        beside the evidence of the discounted counts: (..., variable).
        """
        m = self.near(statistics)
        terms = _level_terms(statistics, m, np.repeat(kappa, self.statistics))
        terms -= np.log(m) * self.discount(statistics, kappa)
        drifts = np.isfinite(kappa)
        k = np.where(drifts, kappa, 1.0)
        by_total = np.where(drifts, gammaln(k) - gammaln(k + self.known(statistics)), 0.0)
        return np.asarray(self.known(terms) + by_total)

    def near(self, statistics: Floats) -> Floats:
        """Posterior means of the probabilities: (..., level)."""
        totals = level_totals(statistics, self.offsets)
        sizes = np.repeat(self.statistics, self.statistics)
        return np.asarray((statistics + self.beta) / (totals + self.beta * sizes))

    def draw_kappa(
        self, statistics: Ints, parameters: Floats, current: Ints, log_odds: Floats, rng: Rng
    ) -> Ints:
        """Draw where κ is on the grid: (chain, variable)."""
        args = statistics, parameters, current, log_odds, self.offsets
        return draw_from_grid(GRID, *args, TRIED, rng)

    def shared_posterior(
        self, statistics: Ints, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """χ of the shared profiles: (chain, cluster, coordinate).

        Table counts turn the Dirichlet–multinomial into a multinomial of m (Teh et al., 2006).
        """
        tables = sum_tables(statistics, parameters, kappa, self.offsets, rng)
        return np.asarray(self.prior() + self.conjugate(tables))


@dataclass(frozen=True)
class Categorical(Levels):
    """A block of categories with Dirichlet priors: see `silomix.families.family.Family`."""

    has_rules: ClassVar[bool] = True

    def prior(self) -> Floats:
        """Shapes of the prior: (level,)."""
        return np.full(int(self.offsets[-1]), self.beta)

    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw probabilities: (..., level)."""
        return draw_levels(posterior, self.offsets, rng)

    def log_normaliser(self, posterior: Floats) -> Floats:
        """Σ ln Γ(shape) − ln Γ(Σ shape): (..., variable)."""
        return np.asarray(self.known(gammaln(posterior)) - gammaln(self.known(posterior)))

    def expected_natural(self, statistics: Floats) -> Floats:
        """E ln p under the posterior: (..., level)."""
        shapes = self.prior() + statistics
        totals = level_totals(shapes, self.offsets)
        return np.asarray(digamma(shapes) - digamma(totals))

    def fit(self, draws: Reals) -> Floats:
        """Counts that Dirichlets with the draws' moments have beyond the prior."""
        mean, concentration = fit_dirichlet(draws, self.offsets)
        return mean * np.repeat(concentration, self.statistics, axis=1) - self.beta

    def medians(self, posterior: Floats) -> Floats:
        """Medians of the Beta distributions that are the Dirichlets' margins."""
        own = np.maximum(posterior, SMALLEST_SHAPE)
        totals = np.repeat(self.known(own), self.statistics, axis=-1)
        return np.asarray(betaincinv(own, np.maximum(totals - own, SMALLEST_SHAPE), 0.5))

    def log_prior(self, parameters: Floats) -> tuple[float, Floats | float, Floats]:
        """Log density of the prior, and its gradient: (..., level)."""
        sizes, beta = self.statistics, self.beta
        constant = np.sum(gammaln(sizes * beta) - sizes * gammaln(beta))
        return constant, (beta - 1) * np.log(parameters).sum(), (beta - 1) / parameters

    def priors_near(self, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Shapes τ ḡ, ḡ the mean of the clusters' profiles, and what speaks against τ."""
        centre, usual = self.near(statistics).mean(axis=0), np.log(self.beta * self.statistics)
        for tau in SPREADS:
            yield tau * centre, 0.5 * ((np.log(tau) - usual) / SPREAD_SD) ** 2


def one_hot(codes: Codes, offsets: Ints) -> Floats:
    """(row, level), one where the row has the level; a missing cell has none."""
    sizes = np.diff(offsets)
    present = np.zeros((len(codes), int(offsets[-1])))
    row, variable = np.nonzero(codes < sizes)
    present[row, offsets[variable] + codes[row, variable]] = 1.0
    return present


def _level_terms(counts: Array, mean: Floats, kappa: Floats) -> Floats:
    """Contribution of each level to ln p(counts | m, κ): all (..., level)."""
    terms = np.asarray(counts * np.log(mean))
    n, m, k = (np.broadcast_to(array, terms.shape) for array in (counts, mean, kappa))
    drifts = np.isfinite(k)
    shapes = k[drifts] * m[drifts]
    terms[drifts] = gammaln(shapes + n[drifts]) - gammaln(shapes)
    return terms


def fractional(concentration: float, silos: int) -> float:
    """Concentration of a Dirichlet prior to the power 1/S, S silos: (a − 1)/S + 1.

    Fendler et al. (2026), section 4.2 "The apply step".
    """
    return (concentration - 1) / silos + 1


def level_totals(by_level: Array, offsets: Ints) -> Array:
    """Add up the levels of each variable, for each of its levels: (..., level)."""
    totals = np.add.reduceat(by_level, offsets[:-1], axis=-1)
    return np.repeat(totals, np.diff(offsets), axis=-1)


def draw_levels(shapes: Reals, offsets: Ints, rng: Rng, draws: int | None = None) -> Floats:
    """Draw the level probabilities of every variable from its Dirichlet.

    Parameters
    ----------
    shapes : (..., level)
    offsets : (variable + 1,), where each variable's levels start.
    draws : how many of each; one, and no axis for it, when left out.

    Returns
    -------
    (draw, ..., level)
    """
    size = None if draws is None else (draws, *shapes.shape)
    gammas = np.maximum(rng.standard_gamma(shapes, size=size), SMALLEST_GAMMA)
    return np.asarray(gammas / level_totals(gammas, offsets))


def fit_dirichlet(probabilities: Reals, offsets: Ints) -> tuple[Floats, Floats]:
    """Fit a Dirichlet to draws of each cluster's and variable's probabilities, by moments.

    The concentration is the geometric mean over the levels of m(1 − m)/v − 1 (Minka, 2000,
    equation 23).

    Parameters
    ----------
    probabilities : (draw, cluster, level)
    offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    mean : (cluster, level)
    concentration : (cluster, variable)
    """
    draws = probabilities.astype(np.float64)
    mean = draws.mean(axis=0)
    variance = np.maximum(draws.var(axis=0), 1e-300)
    each = np.clip(mean * (1 - mean) / variance - 1, 1e-3, LARGEST_CONCENTRATION)
    logs = np.add.reduceat(np.log(each), offsets[:-1], axis=-1)
    return mean, np.exp(logs / np.diff(offsets))


def shares_of(counts: Floats, offsets: Ints) -> Floats:
    """Each level's share of its variable's counts; equal shares of none."""
    totals = level_totals(counts, offsets)
    equal = 1.0 / level_totals(np.ones_like(counts), offsets)
    return np.divide(counts, totals, out=equal, where=totals > 0)
