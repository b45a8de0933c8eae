"""Numbers with outliers: Student's t around a cluster's mean, each variable on its own.

    x | m, σ ~ t_ν(m, σ), ν = 4, or   x | w ~ N(m, σ²/w),   w ~ Gamma(ν/2, ν/2),

with the prior of `gaussian` for m and σ², in the units of the study. A t density is no T · η: no
sums of x say what rows say of m and σ. So every row hides its weights w, one for each cell. Labels
are drawn with w summed out, then w given the labels; given w, everything is as for `gaussian`, each
row weighing w (Lange, Little and Taylor, 1989; Geweke, 1993). A far cell has a small w, so it
hardly moves a mean. A missing cell is left out.

Under drift a silo's mean is N(m, σ²/(κ + 1)) and σ is shared.

Per variable there are two parameters, mean and scale, and six statistics of a row with weight w:

    n           1
    v           1, in units of ν/(ν + 3)
    w, wx, wx²  as 1, x and x² of `gaussian`, in units of (ν + 1)/(ν + 3)
    h           1 + what T · η lacks of log p(x), at the parameters that w was drawn or expected at

With E w for w, T · η is the bound of EM, so the evidence of such sums is a lower bound of that of
the rows.

What matching and releases know of a silo are its draws. Their evidence is that of normal rows whose
posterior is as wide (`fit`): Fisher's information on the mean is (ν + 1)/(ν + 3) of a normal row's,
that on ln σ is ν/(ν + 3). In the units above, n such rows have n for v, w and h too.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, stdtrit

from silomix.families.derived import slopes_of_evidence
from silomix.families.family import Family, by_variable, flat, split, worth
from silomix.families.gaussian import LOG_2PI, PRIOR, Gaussian
from silomix.kernels.arrays import Floats, Ints, Reals, Rng

# ν: tails heavy enough for outliers, and a variance
FREEDOM = 4.0
# log of the t density at its centre, less that of the normal density
LOG_PEAK = float(gammaln((FREEDOM + 1) / 2) - gammaln(FREEDOM / 2) - 0.5 * np.log(FREEDOM / 2))
# what a row says of the mean and of the logarithm of the scale, in normal rows
OF_MEAN, OF_SCALE = (FREEDOM + 1) / (FREEDOM + 3), FREEDOM / (FREEDOM + 3)
# factors of this many variables are multiplied before a logarithm is taken: no product overflows
AT_ONCE = 8
# places with equal shares of a cluster's rows, where two clusters' densities are compared
PLACES = stdtrit(FREEDOM, (np.arange(32) + 0.5) / 32)


class StudentT(Gaussian):
    """A block of Student-t variables: see `silomix.families.family.Family`."""

    parameter_words = ("mean", "scale")
    statistic_words = ("n", "Σv", "Σw", "Σh", "Σwx", "Σwx²")
    always_hides = True
    has_rules = False
    spreads = "scales"
    spread_worth = OF_SCALE / OF_MEAN
    conjugate = Family.conjugate
    expected_natural = slopes_of_evidence

    def sums(self, statistics: Reals) -> tuple[Floats, Floats, Floats, Floats]:
        """Σv, Σw, Σwx and Σwx², in normal rows: each (..., variable)."""
        _, v, w, _, total, square = by_variable(statistics, 6)
        return v * OF_SCALE, w * OF_MEAN, total * OF_MEAN, square * OF_MEAN

    def from_sums(self, n: Floats, w: Floats, total: Floats, square: Floats) -> Floats:
        """Statistics of rows that stand in for draws, with these sums but for n."""
        rows = w / OF_MEAN
        return flat(rows, rows, rows, rows, total / OF_MEAN, square / OF_MEAN)

    def parts(self, posterior: Reals) -> tuple[Floats, ...]:
        """χ in parts: Σv, Σw, Σwx and Σwx², in normal rows."""
        return self.sums(posterior)

    def from_parts(self, n: Floats, w: Floats, total: Floats, square: Floats) -> Floats:
        """χ with these parts: (..., coordinate)."""
        none = np.zeros(np.shape(n))
        scaled = w / OF_MEAN, none, total / OF_MEAN, square / OF_MEAN
        return flat(none, n / OF_SCALE, *scaled)

    def log_normaliser(self, posterior: Floats) -> Floats:
        """That of normal rows, and what T · η lacks: (..., variable)."""
        return np.asarray(super().log_normaliser(posterior) + self.left_out(posterior))

    def left_out(self, statistics: Floats) -> Floats:
        """Σh less what it has beside log p(x): (..., variable)."""
        n, _, _, h, _, _ = by_variable(statistics, 6)
        return np.asarray(h - n)

    def nothing(self) -> Floats:
        """Mean statistics that the prior has: (statistic,)."""
        none = np.zeros(len(self.variables))
        square = OF_SCALE * PRIOR[3] / PRIOR[2]
        return self.from_sums(none, none + OF_MEAN, none, none + square)

    def _from_weights(self, cells: Floats, z: Floats, w: Floats) -> Floats:
        """T(x) of cells z scales from the mean with weights w: (..., statistic)."""
        left = LOG_PEAK - 0.5 * (FREEDOM + 1) * np.log1p(z * z / FREEDOM) + 0.5 * w * z * z
        ones, known, w = np.ones(w.shape), ~np.isnan(cells), w / OF_MEAN
        parts = ones, ones / OF_SCALE, w, 1.0 + left, w * cells, w * cells * cells
        return flat(*(np.where(known, part, 0.0) for part in parts))

    def features(self, cells: Floats) -> Floats:
        """T(x) of rows that all weigh one, for chains to begin with: (row, statistic)."""
        return self._from_weights(cells, np.zeros(cells.shape), np.ones(cells.shape))

    def log_density(self, cells: Floats, parameters: Floats) -> Floats:
        """Log p of the known cells, in the units of the study: (row, cluster)."""
        m, s = by_variable(parameters.astype(np.float64), 2)
        logs = (~np.isnan(cells)).astype(np.float64) @ (LOG_PEAK - 0.5 * LOG_2PI - np.log(s)).T
        factors = np.ones(logs.shape)
        # variable by variable: arrays that stay in the cache
        for place, (x, centre, scale) in enumerate(zip(cells.T, m.T, s.T, strict=True), start=1):
            z = np.subtract.outer(x, centre)
            z *= 1.0 / (scale * np.sqrt(FREEDOM))
            z *= z
            z += 1.0
            factors *= np.fmax(z, 1.0, out=z)  # one for a missing cell
            if place % AT_ONCE == 0 or place == len(m.T):
                logs -= 0.5 * (FREEDOM + 1) * np.log(factors)
                factors[:] = 1.0
        return logs

    def complete(self, cells: Floats, parameters: Floats, labels: Ints, rng: Rng) -> Floats:
        """T(x) with weights drawn: (row, statistic)."""
        m, s = by_variable(parameters[labels], 2)
        z = (cells - m) / s
        w = rng.standard_gamma(0.5 * (FREEDOM + 1), z.shape) / (0.5 * (FREEDOM + z * z))
        return self._from_weights(cells, z, w)

    def expected_features(self, cells: Floats, parameters: Floats) -> Floats:
        """T(x) with expected weights: (row, cluster, statistic)."""
        m, s = by_variable(parameters, 2)
        z = (cells[:, None] - m) / s
        return self._from_weights(cells[:, None], z, (FREEDOM + 1) / (FREEDOM + z * z))

    def natural(self, parameters: Reals) -> Floats:
        """η: (..., statistic) from (..., parameter)."""
        m, s = by_variable(parameters.astype(np.float64), 2)
        precision = OF_MEAN * s**-2.0
        ones, peak = np.ones(s.shape), OF_SCALE * (-0.5 * LOG_2PI - np.log(s))
        return flat(-ones, peak, -0.5 * m * m * precision, ones, m * precision, -0.5 * precision)

    def moments(self, parameters: Reals) -> Floats:
        """E T(x), 1 for h, which says nothing of parameters: (..., statistic)."""
        m, s = by_variable(parameters, 2)
        ones = np.ones_like(m)
        normal = (m / OF_MEAN, (m * m + s * s) / OF_MEAN)
        return flat(ones, ones / OF_SCALE, ones / OF_MEAN, ones, *normal)

    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Sums of the fewer rows that say as much of the shared parameters."""
        part = worth(self.sums(statistics)[1], kappa)
        return np.asarray(statistics * np.repeat(part, self.statistics, axis=-1))

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Log of Bhattacharyya's coefficient of two clusters: (..., variable).

        √(pq) is averaged over the mixture of p and q, at places with equal shares of each.
        """
        pair = np.broadcast_arrays(one, other)
        both = [np.split(split(parameters, 2), 2, axis=-1) for parameters in pair]
        x = np.concatenate([m + s * PLACES for m, s in both], axis=-1)
        logs = [
            -np.log(s) - 0.5 * (FREEDOM + 1) * np.log1p(((x - m) / s) ** 2 / FREEDOM)
            for m, s in both
        ]
        return np.asarray(np.log((1.0 / np.cosh(0.5 * (logs[0] - logs[1]))).mean(axis=-1)))

    def spread(self, parameters: Floats) -> Floats:
        """Standard deviations, larger than the scales: (..., variable)."""
        return np.asarray(by_variable(parameters, 2)[1] * np.sqrt(FREEDOM / (FREEDOM - 2)))
