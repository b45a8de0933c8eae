"""What each kind of variable is, said by SciPy and NumPy alone: laws, draws and integrals.

Nothing here calls the package but for its records of variables and rows. Parameters are those of
the families: level probabilities; mean and standard deviation in the study's units; a rate. Cells
are as in a shard, nan where they are missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import betaln, expit, gammaln, log_expit, logsumexp

from silomix.model.schema import Schema, Shard, Variable


@dataclass(frozen=True)
class Category:
    """Levels, p ~ Dirichlet(β); a silo's own around them ~ Dirichlet(κ p)."""

    name: str
    size: int = 2
    beta: float = 0.5

    @property
    def variable(self):
        return Variable(self.name, tuple(f"level {k}" for k in range(self.size)))

    def log_cell(self, x, parameters):
        """ln p(x), in the units of the data: (...,)."""
        return np.log(parameters[..., int(x)])

    def log_evidence(self, cells):
        """ln p of cells in turn, each given those before it, the parameters integrated out."""
        counts, log = np.full(self.size, self.beta), 0.0
        for x in cells[~np.isnan(cells)].astype(int):
            log += np.log(counts[x] / counts.sum())
            counts[x] += 1
        return log

    def grid(self, _):
        """Points of two levels (point, parameter), and ln of the prior's mass around each."""
        return _logit_grid(self.beta, self.beta)

    def own_grid(self, shared, kappa):
        """The same for a silo's own parameters around shared ones, (parameter,)."""
        return _logit_grid(*(kappa * shared))

    def log_prior(self, parameters):
        """ln of the prior density: (...,)."""
        return stats.dirichlet(np.full(self.size, self.beta)).logpdf(parameters.T)

    def draw_prior(self, shape, rng):
        return np.maximum(rng.dirichlet(np.full(self.size, self.beta), shape), 1e-300)

    def draw_own(self, shared, kappa, rng):
        """Draw a silo's own parameters, (..., parameter), at finite κ, (...,)."""
        gammas = np.maximum(rng.standard_gamma(kappa[..., None] * shared), 1e-300)
        return gammas / gammas.sum(axis=-1, keepdims=True)

    def draw_cells(self, parameters, rng):
        """Draw one cell of each (..., parameter): (...,)."""
        reached = np.cumsum(parameters, axis=-1)
        thresholds = rng.random(parameters.shape[:-1])[..., None] * reached[..., -1:]
        return (reached <= thresholds).sum(axis=-1).astype(float)

    def summaries(self, shared, own, kappa, rows):
        """What is compared of draws, all of it with moments: (..., summary).

        Parameters are (..., parameter), κ (...,), and what rows add up to (..., statistic).
        """
        apart = (own - shared) ** 2
        told = (rows - rows.sum(axis=-1, keepdims=True) * shared) * (own - shared)
        return [shared, shared**2, own, own * shared, apart, apart * kappa[..., None], told]


@dataclass(frozen=True)
class Number:
    """x ~ N(m, σ²), m ~ N(0, σ²/0.01), σ² ~ inverse-gamma(1.5, 0.25), in units of `scale`.

    A silo's own mean is N(m, σ²/(κ + 1)).
    """

    name: str
    location: float = 0.0
    scale: float = 1.0
    size: int = 2

    @property
    def variable(self):
        return Variable(self.name, kind="gaussian", location=self.location, scale=self.scale)

    def log_cell(self, x, parameters):
        m, s = np.moveaxis(parameters, -1, 0)
        data = self.location + self.scale * x
        return stats.norm(self.location + self.scale * m, self.scale * s).logpdf(data)

    def log_evidence(self, cells):
        centre, size, a, b, log = 0.0, 0.01, 1.5, 0.25, 0.0
        for x in cells[~np.isnan(cells)]:
            spread = np.sqrt(b / a * (size + 1) / size)
            log += stats.t(2 * a, centre, spread).logpdf(x) - np.log(self.scale)
            b += 0.5 * size / (size + 1) * (x - centre) ** 2
            centre, size, a = (size * centre + x) / (size + 1), size + 1, a + 0.5
        return log

    def log_prior(self, parameters):
        m, s = np.moveaxis(parameters, -1, 0)
        spread = stats.invgamma(1.5, scale=0.25).logpdf(s**2) + np.log(2 * s)  # dσ² = 2σ dσ
        return stats.norm(0, 10 * s).logpdf(m) + spread

    def grid(self, cells):
        known = cells[~np.isnan(cells)]
        centre = known.mean() if len(known) else 0.0
        logs, u = np.linspace(-9, 9, 301), np.linspace(-9, 9, 401)
        s, apart = np.exp(logs)[:, None], np.sinh(u)
        m, s = np.broadcast_arrays(centre + s * apart, s)
        points = np.stack([m, s], axis=-1)
        # dσ = σ d ln σ, dm = σ cosh(u) du
        volume = s**2 * np.cosh(u) * (logs[1] - logs[0]) * (u[1] - u[0])
        return points.reshape(-1, 2), (self.log_prior(points) + np.log(volume)).ravel()

    def own_grid(self, shared, kappa):
        m, s = shared
        own, step = np.linspace(m - 9 * s, m + 9 * s, 20_001, retstep=True)
        log_mass = stats.norm(m, s / np.sqrt(kappa + 1)).logpdf(own) + np.log(step)
        return np.stack([own, np.full_like(own, s)], axis=-1), log_mass

    def draw_prior(self, shape, rng):
        s = np.sqrt(0.25 / rng.standard_gamma(1.5, shape))
        return np.stack([10 * s * rng.standard_normal(shape), s], axis=-1)

    def draw_own(self, shared, kappa, rng):
        m, s = np.moveaxis(shared, -1, 0)
        return np.stack([m + s / np.sqrt(kappa + 1) * rng.standard_normal(m.shape), s], axis=-1)

    def draw_cells(self, parameters, rng):
        m, s = np.moveaxis(parameters, -1, 0)
        return m + s * rng.standard_normal(m.shape)

    def summaries(self, shared, own, kappa, rows):
        m, s = np.moveaxis(shared, -1, 0)
        z = m / (10 * s)
        apart = (own[..., 0] - m) / s
        square = apart**2
        found = [z, z**2, z**3, np.log(s), np.log(s) ** 2, np.arctan(m), z * np.log(s)]
        found += [np.arctan(own[..., 0]), np.log(own[..., 1]) * np.log(s), apart, square]
        told = np.arctan((rows[..., 1] - rows[..., 0] * m) / s)
        found += [apart * z, square * (kappa + 1), told * apart]
        return [np.stack(found, axis=-1)]


@dataclass(frozen=True)
class Tailed(Number):
    """x ~ t₄(m, σ), with the prior and the drift of `Number`; the evidence is an integral."""

    @property
    def variable(self):
        return Variable(self.name, kind="student-t", location=self.location, scale=self.scale)

    def log_cell(self, x, parameters):
        m, s = np.moveaxis(parameters, -1, 0)
        data = self.location + self.scale * x
        return stats.t(4, self.location + self.scale * m, self.scale * s).logpdf(data)

    def log_evidence(self, cells):
        return log_integral(self, cells, self.grid(cells))

    def draw_cells(self, parameters, rng):
        m, s = np.moveaxis(parameters, -1, 0)
        return m + s * rng.standard_t(4, m.shape)

    def draw_weights(self, x, parameters, rng):
        """Draw the precisions of cells that have them: (...,)."""
        m, s = np.moveaxis(parameters, -1, 0)
        return rng.gamma(2.5, 2 / (4 + ((x - m) / s) ** 2))

    def summaries(self, shared, own, kappa, rows):
        # Σw and Σwx, in the same units
        return super().summaries(shared, own, kappa, rows[..., [2, 4]])


@dataclass(frozen=True)
class Joint:
    """One of several jointly normal variables; `test_gaussian_full` says what they are."""

    name: str

    @property
    def variable(self):
        return Variable(self.name, kind="gaussian-full")


@dataclass(frozen=True)
class Count:
    """x ~ Poisson(r), r ~ Gamma(½, ½/mean); a silo's own rate ~ Gamma((κ + 1) r, κ + 1)."""

    name: str
    mean: float = 2.0
    size: int = 1

    @property
    def variable(self):
        return Variable(self.name, kind="poisson", location=self.mean)

    def log_cell(self, x, parameters):
        return stats.poisson(parameters[..., 0]).logpmf(x)

    def log_evidence(self, cells):
        a, b, log = 0.5, 0.5 / self.mean, 0.0
        for x in cells[~np.isnan(cells)]:
            log += stats.nbinom(a, b / (b + 1)).logpmf(x)
            a, b = a + x, b + 1
        return log

    def log_prior(self, parameters):
        return stats.gamma(0.5, scale=2 * self.mean).logpdf(parameters[..., 0])

    def grid(self, _):
        return self._log_grid(0.5, 0.5 / self.mean)

    def own_grid(self, shared, kappa):
        return self._log_grid((kappa + 1) * shared[0], kappa + 1)

    def _log_grid(self, shape, rate):
        below, above = 45 / min(shape, np.sqrt(shape)), min(45 / np.sqrt(shape), 8)
        centre = np.log(shape / rate)
        t, step = np.linspace(centre - below, centre + above, 20_001, retstep=True)
        log_mass = stats.gamma(shape, scale=1 / rate).logpdf(np.exp(t)) + t + np.log(step)
        return np.exp(t)[:, None], log_mass

    def draw_prior(self, shape, rng):
        return np.maximum(2 * self.mean * rng.standard_gamma(0.5, (*shape, 1)), 1e-30)

    def draw_own(self, shared, kappa, rng):
        k = kappa[..., None] + 1
        return np.maximum(rng.standard_gamma(k * shared) / k, 1e-30)

    def draw_cells(self, parameters, rng):
        return rng.poisson(parameters[..., 0]).astype(float)

    def summaries(self, shared, own, kappa, rows):
        roots = np.sqrt(shared), np.sqrt(own)
        apart = roots[1] - roots[0]
        told = np.arctan(rows[..., 1:] - rows[..., :1] * shared) * apart
        found = [*roots, shared, shared**2, own, roots[0] * roots[1]]
        return [*found, apart**2, apart**2 * kappa[..., None], told]


@dataclass(frozen=True)
class Overdispersed:
    """Negative binomial x with mean m and variance m + α m², α one of 18 values, all as probable.

    m is (1/α) p/(1 − p) with p ~ Beta(½, ½/(α mean) + 1), or Gamma(½, ½/mean) at α = 0. A silo's
    own m has the same law with (κ + 1) m for ½ and κ + 1 for ½/mean.
    """

    name: str
    mean: float = 2.0
    size: int = 2
    dispersions = np.append(0, 2 ** np.linspace(-6, 4, 17))

    @property
    def variable(self):
        return Variable(self.name, kind="negative-binomial", location=self.mean)

    def features(self, x):
        """n, x and Σ_{j<x} ln(1 + αj) at every α above 0, nan if missing: (..., statistic)."""
        known, r = ~np.isnan(x), 1 / self.dispersions[1:]
        value = np.where(known, x, 0)[..., None]
        rising = gammaln(value + r) - gammaln(r) - value * np.log(r)
        return np.concatenate([known[..., None], value, rising], axis=-1)

    def log_cell(self, x, parameters):
        m, alpha = np.broadcast_arrays(*np.moveaxis(parameters, -1, 0))
        r = 1 / np.where(alpha > 0, alpha, 1)
        logs = stats.nbinom(r, r / (r + m)).logpmf(x)
        return np.where(alpha > 0, logs, stats.poisson(m).logpmf(x))

    def log_evidence(self, cells):
        logs = []
        for alpha in self.dispersions:
            a, b, log = 0.5, 0.5 / self.mean, 0.0
            for x in cells[~np.isnan(cells)]:
                if alpha:
                    r = 1 / alpha
                    choose = gammaln(x + r) - gammaln(r) - gammaln(x + 1)
                    log += choose + betaln(a + x, r * (b + 1) + 1) - betaln(a, r * b + 1)
                else:
                    log += stats.nbinom(a, b / (b + 1)).logpmf(x)
                a, b = a + x, b + 1
            logs.append(log)
        return logsumexp(logs) - np.log(len(logs))

    def law(self, alpha, shape, rate):
        """Of the mean, at one α."""
        if alpha:
            return stats.betaprime(shape, rate / alpha + 1, scale=1 / alpha)
        return stats.gamma(shape, scale=1 / rate)

    def log_prior(self, parameters):
        m, alpha = np.moveaxis(parameters, -1, 0)
        laws = [self.law(one, 0.5, 0.5 / self.mean).logpdf(m) for one in self.dispersions]
        at = np.abs(alpha[..., None] - self.dispersions).argmin(axis=-1)
        return np.choose(at, laws) - np.log(len(laws))

    def grid(self, _):
        parts = [self._log_grid(alpha, 0.5, 0.5 / self.mean) for alpha in self.dispersions]
        points, log_mass = (np.concatenate(part) for part in zip(*parts, strict=True))
        return points, log_mass - np.log(len(self.dispersions))

    def own_grid(self, shared, kappa):
        return self._log_grid(shared[1], (kappa + 1) * shared[0], kappa + 1, 12_001)

    def _log_grid(self, alpha, shape, rate, points=3_001):
        below = 45 / min(shape, np.sqrt(shape))
        t, step = np.linspace(-below, 30, points, retstep=True)
        t = t + np.log(shape / rate)
        log_mass = self.law(alpha, shape, rate).logpdf(np.exp(t)) + t + np.log(step)
        return np.stack([np.exp(t), np.full_like(t, alpha)], axis=-1), log_mass

    def draw_prior(self, shape, rng):
        alpha = rng.choice(self.dispersions, shape)
        half = np.full(shape, 0.5)
        return np.stack([self._draw_mean(alpha, half, half / self.mean, rng), alpha], axis=-1)

    def _draw_mean(self, alpha, shape, rate, rng):
        some = np.where(alpha > 0, alpha, 1)
        p = rng.beta(np.maximum(shape, 1e-300), rate / some + 1)
        curved = p / np.maximum(1 - p, 1e-300) / some
        return np.maximum(np.where(alpha > 0, curved, rng.gamma(shape) / rate), 1e-30)

    def draw_own(self, shared, kappa, rng):
        m, alpha = np.moveaxis(shared, -1, 0)
        own = self._draw_mean(alpha, (kappa + 1) * m, kappa + 1, rng)
        return np.stack([own, alpha], axis=-1)

    def draw_cells(self, parameters, rng):
        m, alpha = np.moveaxis(parameters, -1, 0)
        some = np.where(alpha > 0, alpha, 1)
        rates = np.where(alpha > 0, m * some * rng.standard_gamma(1 / some), m)
        return rng.poisson(np.minimum(rates, 1e9)).astype(float)

    def summaries(self, shared, own, kappa, rows):
        m, alpha = np.moveaxis(shared, -1, 0)
        logs, own_logs = np.log1p(m), np.log1p(own[..., 0])
        apart, place = np.arctan(own_logs - logs), np.arctan(alpha)
        told = np.arctan(rows[..., 1] - rows[..., 0] * m) * apart
        found = [logs, own_logs, logs * own_logs, place, place**2, alpha > 0, place * logs]
        found += [np.arctan(own[..., 1]) * place, apart, apart**2, apart**2 * kappa, told]
        return [np.stack([*found, place * apart**2 * kappa], axis=-1)]


def _logit_grid(a, b):
    """Points of two levels, evenly spaced in logits, and ln of the mass of Beta(a, b) at each."""
    t, step = np.linspace(-90, 90, 6001, retstep=True)
    log_mass = a * log_expit(t) + b * log_expit(-t) - betaln(a, b) + np.log(step)
    return np.stack([expit(t), expit(-t)], axis=-1), log_mass


def make_shard(kinds, cells):
    """Put cells (row, variable) of such kinds, categories first, into a shard."""
    schema = Schema(tuple(kind.variable for kind in kinds))
    sizes = schema.sizes
    first = cells[:, : len(sizes)]
    codes = np.where(np.isnan(first), sizes, first).astype(np.uint8)
    numbers = cells[:, len(sizes) :] if schema.numbers else None
    return Shard(schema, codes, numbers)


def log_evidence(kinds, cells):
    """ln p(cells) of a cluster whose parameters are integrated out; cells : (row, variable)."""
    return sum(kind.log_evidence(column) for kind, column in zip(kinds, cells.T, strict=True))


def log_integral(kind, cells, grid):
    """ln ∫ p(cells | parameters) over the masses of a grid; cells : (row,), of one variable."""
    points, log_mass = grid
    rows = [kind.log_cell(x, points) for x in cells[~np.isnan(cells)]]
    return logsumexp(np.sum([log_mass, *rows], axis=0))
