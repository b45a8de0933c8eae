"""Numbers that are jointly normal within a cluster: one covariance matrix for each cluster.

    x | Σ ~ N(m, Σ),   m | Σ ~ N(0, Σ/λ₀),   Σ ~ inverse-Wishart(ν₀, Ψ₀)

in the units of the study, with λ₀ = 0.01, ν₀ = d + 2 and Ψ₀ = I/2: for d = 1 that of `gaussian`.
Under drift a silo's means are normal around the shared ones, N(m, Σ/(κ + 1)) with one κ for the
block, and Σ is shared.

A row with a missing cell says what its known cells say: its label is drawn by their density, and
then the missing cells given the label, for the sums.

Variable j has the parameters (mean, sd, correlations with the variables before it), the statistics
(n, Σx_j, Σx_j², Σx_j x_i of those before it), and the conjugate coordinates (ν, λ, λm_j, S_jj,
S_ji), S = Ψ + λ m mᵀ. What belongs to the block and to no single variable stands with the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from scipy.special import digamma, gammaincinv, gammaln, multigammaln

from silomix.families.family import MOST_ROWS, drifting, worth
from silomix.families.gaussian import LOG_2PI, PRIOR, SMALLEST_B, SMALLEST_GAMMA, Gaussian
from silomix.kernels.arrays import Array, Floats, Ints, Reals, Rng

# of a correlation: the matrix must stay positive definite in single precision
MOST_CORRELATED = 0.9999


class FullGaussian(Gaussian):
    """A block of jointly normal variables: see `silomix.families.family.Family`."""

    has_rules = False
    is_joint = True

    @property
    def size(self) -> int:
        """d, how many variables there are."""
        return len(self.variables)

    def _matrices(self, parameters: Reals) -> tuple[Floats, Floats, Floats, Floats]:
        """Means, sds, correlations and covariances."""
        m, correlations = unpack(parameters, 1, self.size)
        s = np.diagonal(correlations, axis1=-2, axis2=-1).copy()
        correlations = np.where(np.eye(self.size, dtype=bool), 1.0, correlations)
        return m, s, correlations, correlations * outer(s)

    def _parameters(self, m: Floats, covariances: Floats) -> Floats:
        """Parameters of normal distributions with these means and covariances."""
        variances = np.diagonal(covariances, axis1=-2, axis2=-1)
        s = np.sqrt(np.maximum(variances, SMALLEST_B))
        return pack(m, with_diagonal(covariances / outer(s), s))

    def _sums(self, statistics: Array) -> tuple[Floats, Floats, Floats]:
        """Number of rows, (...,), Σx and Σxxᵀ."""
        n, total, squares = unpack(statistics, 2, self.size)
        return n[..., 0], total, squares

    def _in_column(self, values: Floats) -> Floats:
        """Values of the whole block, in the column of the first variable."""
        columns = np.zeros((*values.shape, self.size))
        columns[..., 0] = values
        return columns

    def names(self) -> list[tuple[str, str]]:
        """Variable and what it is called of each parameter."""
        own, names = super().names(), []
        for place, variable in enumerate(self.variables):
            others = [f"correlation with {one.name}" for one in self.variables[:place]]
            names += [*own[2 * place : 2 * place + 2], *((variable.name, word) for word in others)]
        return names

    def describe(self, parameters: Reals) -> Floats:
        """Means and sds in the units of the table; correlations have none."""
        m, s, correlations, _ = self._matrices(parameters)
        means = m * self.scales + self.locations
        return pack(means, with_diagonal(correlations, s * self.scales))

    def whole(self, parameters: Reals, weights: Reals) -> Floats:
        """Means over all rows, and sds and correlations within clusters."""
        m, _, _, covariances = self._matrices(parameters)
        mean = np.einsum("tc,tcq->tq", weights, m)
        return self._parameters(mean, np.einsum("tc,tcqr->tqr", weights, covariances))

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Differences of means in sds, log ratios of sds, differences of correlations."""
        m, s, own, _ = self._matrices(parameters)
        mean, within, overall, _ = self._matrices(whole)
        return pack((m - mean) / within, with_diagonal(own - overall, np.log(s / within)))

    def features(self, cells: Floats) -> Floats:
        """T(x), (row, statistic); zeros of a row with a missing cell, which has none."""
        known = ~np.isnan(cells).any(axis=1, keepdims=True)
        x = np.where(known, cells, 0.0)
        return pack(np.broadcast_to(known, x.shape), x, outer(x))

    def _given_known(self, cells: Floats, parameters: Floats) -> tuple[Floats, ...]:
        """Law of rows' missing cells given the known ones, in every cluster.

        Returns
        -------
        log_density : (row, cluster), of the known cells.
        x : (row, cluster, variable), missing cells at their mean.
        left : (row, cluster, variable, variable), their covariance, 0 where a cell is known.
        """
        m, _, _, covariances = self._matrices(parameters)
        gaps, which = np.unique(np.isnan(cells), axis=0, return_inverse=True)
        which, known = which.ravel(), (~gaps).astype(np.float64)
        # by pattern of missing cells: with ones on the diagonal there, an inverse of the rest
        seen = covariances * outer(known)[:, None] + (np.eye(self.size) * gaps[:, None])[:, None]
        precision = inverse(seen) * outer(known)[:, None]
        slopes = (covariances * (gaps[:, :, None] * known[:, None])[:, None]) @ precision
        left = (covariances - slopes @ covariances) * outer(gaps)[:, None]
        apart = np.where(np.isnan(cells)[:, None], 0.0, cells[:, None] - m)
        square = np.einsum("rci,rcij,rcj->rc", apart, precision[which], apart)
        fixed = log_det(seen) + known.sum(axis=1)[:, None] * LOG_2PI
        x = m + apart + np.einsum("rcij,rcj->rci", slopes[which], apart)
        return -0.5 * (fixed[which] + square), x, left[which]

    def log_density(self, cells: Floats, parameters: Floats) -> Floats:
        """Log p of the known cells, in the units of the study: (row, cluster)."""
        return self._given_known(cells, parameters)[0]

    def complete(self, cells: Floats, parameters: Floats, labels: Ints, rng: Rng) -> Floats:
        """T(x) with the missing cells drawn: (row, statistic)."""
        own = np.arange(len(cells)), labels
        _, x, left = (part[own] for part in self._given_known(cells, parameters))
        gaps = np.isnan(cells)
        # a variance that nothing is left of must not come out below zero
        root = np.linalg.cholesky(left + np.eye(self.size) * (SMALLEST_B + ~gaps[:, None]))
        steps = gaps * rng.standard_normal(cells.shape)
        return self.features(x + np.einsum("rij,rj->ri", root, steps))

    def expected_features(self, cells: Floats, parameters: Floats) -> Floats:
        """E T(x) given the known cells: (row, cluster, statistic)."""
        _, x, left = self._given_known(cells, parameters)
        return pack(np.ones(x.shape), x, outer(x) + left)

    def natural(self, parameters: Reals) -> Floats:
        """η: (..., statistic) from (..., parameter)."""
        m, _, _, covariances = self._matrices(parameters)
        precision = inverse(covariances)
        square = self.size * LOG_2PI + quadratic(precision, m) + log_det(covariances)
        return self._natural(precision, m, square)

    def _natural(self, precision: Floats, m: Floats, square: Floats) -> Floats:
        linear = np.einsum("...ij,...j->...i", precision, m)
        halves = -precision * (1.0 - 0.5 * np.eye(self.size))
        return pack(self._in_column(-0.5 * square), linear, halves)

    def moments(self, parameters: Reals) -> Floats:
        """E T(x): (..., statistic)."""
        m, _, _, covariances = self._matrices(parameters)
        return pack(np.ones(m.shape), m, covariances + outer(m))

    def from_moments(self, moments: Floats) -> Floats:
        """Parameters with these moments: (..., parameter)."""
        _, mean, squares = self._sums(moments)
        return self._parameters(mean, positive(squares - outer(mean)))

    def prior(self) -> Floats:
        """χ₀ of the prior: (coordinate,)."""
        m0, l0, a0, b0 = (np.full(self.size, number) for number in PRIOR)
        return pack(2 * a0 + self.size - 1, l0, l0 * m0, 2 * np.diag(b0) + outer(m0) * l0)

    def conjugate(self, statistics: Array) -> Floats:
        """Contribution of rows with these sums to χ: n twice, Σx and Σxxᵀ."""
        n, total, squares = self._sums(statistics)
        return pack(n[..., None], n[..., None], total, squares)

    def _numbers(self, posterior: Reals) -> tuple[Floats, Floats, Floats, Floats]:
        """Mean m; λ and ν, each (...,); and Ψ."""
        v, size, total, squares = unpack(posterior, 3, self.size)
        mean = total / size
        return mean, size[..., 0], v[..., 0], squares - size[..., :1, None] * outer(mean)

    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw parameters: (..., parameter)."""
        m, size, v, scale = self._numbers(posterior)
        # Bartlett: Σ⁻¹ = C⁻ᵀ A Aᵀ C⁻¹ with C Cᵀ = Ψ, so Σ = B Bᵀ with B = C A⁻ᵀ
        below = np.tril(rng.standard_normal(scale.shape), -1)
        gammas = rng.standard_gamma(0.5 * (v[..., None] - np.arange(self.size)))
        diagonal = np.sqrt(2.0 * np.maximum(gammas, SMALLEST_GAMMA))
        bartlett = below + diagonal[..., None] * np.eye(self.size)
        root = np.linalg.cholesky(scale) @ np.swapaxes(inverse(bartlett), -1, -2)
        steps = np.einsum("...ij,...j->...i", root, rng.standard_normal(m.shape))
        covariances = root @ np.swapaxes(root, -1, -2)
        return self._parameters(m + steps / np.sqrt(size)[..., None], covariances)

    def log_normaliser(self, posterior: Floats) -> Floats:
        """Log of the integral over means and covariances, each given those before.

        The first j variables have a normal–inverse-Wishart law too, with ν − d + j.
        """
        _, size, v, scale = self._numbers(posterior)
        logs = 2.0 * np.log(np.diagonal(np.linalg.cholesky(scale), axis1=-2, axis2=-1))
        before = np.cumsum(logs, axis=-1) - logs
        degrees = v[..., None] - self.size + 1 + np.arange(self.size)
        value = gammaln(0.5 * degrees) - 0.5 * (degrees * (logs + np.log(np.pi)) + before)
        return np.asarray(value - 0.5 * np.log(size)[..., None])

    def expected_natural(self, statistics: Floats) -> Floats:
        """E η under the posterior: (..., statistic)."""
        m, size, v, scale = self._numbers(self.prior() + self.conjugate(statistics))
        precision = v[..., None, None] * inverse(scale)
        logs = digamma(0.5 * (v[..., None] - np.arange(self.size))).sum(axis=-1) - log_det(scale)
        square = quadratic(precision, m) + self.size * (LOG_2PI - np.log(2.0) + 1.0 / size) - logs
        return self._natural(precision, m, square)

    def valid(self, statistics: Floats) -> Floats:
        """Sums that rows can have: differences of such sums need not be."""
        n, total, squares = self._sums(statistics)
        some = (n > 0)[..., None]
        mean = np.where(some, total, 0.0) / np.where(some, n[..., None], 1.0)
        rows = np.where(some, n[..., None], 0.0)
        scatter = positive(squares - rows[..., None] * outer(mean))
        scatter = np.where(some[..., None], scatter, 0.0)
        return pack(rows, rows * mean, scatter + rows[..., None] * outer(mean))

    def fit(self, draws: Reals) -> Floats:
        """Sums implied by posterior draws, net of the prior; with certain labels Var m = E Σ/λ."""
        m, _, _, covariances = self._matrices(draws)
        _, l0, v0, scale0 = self._numbers(self.prior())
        mean, covariance = m.mean(axis=0), covariances.mean(axis=0)
        variances = np.diagonal(covariance, axis1=-2, axis2=-1)
        size = 1.0 / np.maximum((m.var(axis=0) / variances).mean(axis=-1), 1.0 / MOST_ROWS)
        n = np.maximum(size - l0, 1e-3)[..., None]
        scale = covariance * np.maximum(v0 + n - self.size - 1.0, 1.0)[..., None]
        x = mean * (l0 + n) / n
        scatter = scale - scale0 + (l0 + n)[..., None] * outer(mean) - n[..., None] * outer(x)
        return pack(n, n * x, positive(scatter) + n[..., None] * outer(x))

    def medians(self, posterior: Floats) -> Floats:
        """Medians of means and sds, and near those of correlations."""
        m, _, v, scale = self._numbers(posterior)
        variances = np.diagonal(scale, axis1=-2, axis2=-1)
        shapes = 0.5 * (v - self.size + 1.0)
        s = np.sqrt(0.5 * variances / gammaincinv(shapes, 0.5)[..., None])
        return pack(m, with_diagonal(scale / np.sqrt(outer(variances)), s))

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Gradient of the log-likelihood of rows with these sums: as `parameters`."""
        n, total, squares = self._sums(statistics)
        return self._slopes(parameters, n, n, total, squares)

    def _slopes(
        self, parameters: Floats, n: Floats, w: Floats, total: Floats, squares: Floats
    ) -> Floats:
        """Gradient of −(n ln |Σ| + tr Σ⁻¹ (squares − m totalᵀ − total mᵀ + w m mᵀ))/2."""
        m, s, _, covariances = self._matrices(parameters)
        precision, cross = inverse(covariances), total[..., :, None] * m[..., None, :]
        by_mean = np.einsum("...ij,...j->...i", precision, total - w[..., None] * m)
        scatter = squares - cross - np.swapaxes(cross, -1, -2) + w[..., None, None] * outer(m)
        slope = 0.5 * (precision @ scatter @ precision - n[..., None, None] * precision)
        by_sd = 2.0 * (slope * covariances).sum(axis=-1) / s
        return pack(by_mean, with_diagonal(2.0 * slope * outer(s), by_sd))

    def log_prior(self, parameters: Floats) -> tuple[float, Floats | float, Floats]:
        """Log density of the prior in means, sds and correlations, and its gradient."""
        m, s, _, covariances = self._matrices(parameters)
        m0, l0, v0, scale = self._numbers(self.prior())
        precision, d = inverse(covariances), self.size
        normal = d * (np.log(l0) - LOG_2PI) - l0 * quadratic(precision, m - m0)
        wishart = v0 * (log_det(scale) - d * np.log(2.0)) - 2.0 * multigammaln(0.5 * v0, d)
        traces = np.einsum("ij,...ji->...", scale, precision)
        logs = (v0 + d + 2.0) * log_det(covariances) + traces
        # dΣ = 2ᵈ Π sᵈ d(sds, correlations)
        jacobian = d * (np.log(2.0) + np.log(s).sum(axis=-1))
        value = float((0.5 * (normal + wishart - logs) + jacobian).sum())
        squares = scale + l0 * outer(m0)
        gradient = self._slopes(parameters, v0 + d + 2.0, l0, l0 * m0, squares)
        steps = pack(np.zeros(m.shape), with_diagonal(np.zeros(covariances.shape), d / s))
        return 0.0, value, gradient + steps

    def coordinates(self, parameters: Reals) -> Floats:
        """(mean, ln sd, atanh correlation): comparable between variables."""
        m, s, correlations, _ = self._matrices(parameters)
        free = np.arctanh(np.clip(correlations, -MOST_CORRELATED, MOST_CORRELATED))
        return pack(m, with_diagonal(free, np.log(s)))

    def back(self, coordinates: Floats) -> Floats:
        """Parameters at these coordinates, or near: correlations must fit together."""
        m, free = unpack(coordinates, 1, self.size)
        s = np.exp(np.diagonal(free, axis1=-2, axis2=-1))
        correlations = with_diagonal(np.tanh(free), np.ones(s.shape))
        return self._parameters(m, positive(correlations) * outer(s))

    def problems(self, parameters: Reals, *, together: bool = True) -> str:
        """What is wrong with parameters from elsewhere; or ""."""
        _, s, correlations, _ = self._matrices(parameters)
        if not (s > 0).all():
            return f"has {self.spreads} that are not positive"
        if not (np.abs(correlations) <= 1).all():
            return "has correlations beyond one"
        fits = not together or (np.linalg.eigvalsh(correlations) > 0).all()
        return "" if fits else "has correlations that no numbers have"

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Log of Bhattacharyya's coefficient of two clusters: (..., variable)."""
        (m, _, _, first), (k, _, _, second) = self._matrices(one), self._matrices(other)
        both = 0.5 * (first + second)
        apart = m - k
        distance = 0.125 * (apart * np.linalg.solve(both, apart[..., None])[..., 0]).sum(axis=-1)
        logs = log_det(both) - 0.5 * (log_det(first) + log_det(second))
        return self._in_column(-distance - 0.5 * logs)

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Log p(rows | m, Σ, κ), the silo's own means integrated out: (..., variable)."""
        n, total, squares = self._sums(statistics)
        m, _, _, covariances = self._matrices(parameters)
        mean = np.divide(total, n[..., None], out=np.zeros(total.shape), where=n[..., None] > 0)
        shrunk = worth(n[..., None], kappa[..., :1])[..., 0]
        precision = inverse(covariances)
        apart = squares - n[..., None, None] * outer(mean)
        inside = np.einsum("...ij,...ij->...", precision, apart)
        inside = np.maximum(inside, 0.0) + n * shrunk * quadratic(precision, mean - m)
        fixed = n * (self.size * LOG_2PI + log_det(covariances)) - self.size * np.log(shrunk)
        return self._in_column(-0.5 * (fixed + inside))

    def shared_posterior(
        self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """χ of (m, Σ), silos' own means integrated out, exactly."""
        n, total, squares = self._sums(statistics)
        rows = n[..., None]
        shrunk = worth(rows, kappa[:, None, :1])
        mean = np.divide(total, rows, out=np.zeros(total.shape), where=rows > 0)
        left = squares - ((1.0 - shrunk) * rows)[..., None] * outer(mean)
        parts = (rows, rows * shrunk, total * shrunk, left)
        return self.prior() + pack(*(part.sum(axis=0) for part in parts))

    def draw_own(self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own means around the shared ones, with the shared covariances."""
        n, total, _ = self._sums(statistics)
        m, s, correlations, covariances = self._matrices(parameters)
        drifts, k = drifting(kappa[:, None, :])
        size = k + n[..., None]
        steps = np.linalg.cholesky(covariances) @ rng.standard_normal((*total.shape, 1))
        own = (k * m + total) / size + steps[..., 0] / np.sqrt(size)
        matrix = np.broadcast_to(with_diagonal(correlations, s), (*total.shape, self.size))
        return pack(np.where(drifts, own, m), matrix)

    def near(self, statistics: Floats) -> Floats:
        """Means and covariances of rows, the covariances drawn towards the prior's."""
        n, total, squares = self._sums(statistics)
        rows = np.maximum(n, 1.0)[..., None]
        mean = total / rows
        scatter = positive(squares - rows[..., None] * outer(mean))
        scatter = scatter + 2 * PRIOR[3] * np.eye(self.size)
        return self._parameters(mean, scatter / (n[..., None, None] + 3.0))

    def spread(self, parameters: Floats) -> Floats:
        """Standard deviation of one variable, from its own parameters: (..., 1)."""
        return parameters[..., 1:2]

    def priors_near(self, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Priors around the clusters' average mean and covariance, and what speaks against each."""
        m, _, v, scale = self._numbers(self.prior() + self.conjugate(statistics))
        centre = m.mean(axis=0)
        typical = (scale / (v - self.size + 1.0)[:, None, None]).mean(axis=0)
        ones = np.ones(self.size)
        for size, shape, against in self.prior_sizes():
            degrees = 2.0 * shape + self.size - 1.0
            squares = 2.0 * shape * typical + size * outer(centre)
            yield pack(degrees * ones, size * ones, size * centre, squares), against


@lru_cache(maxsize=64)
def _places(heads: int, variables: int) -> tuple[Ints, Ints]:
    """Starts of the columns of each variable, and where each entry of a symmetric matrix is.

    A variable has `heads` columns, its entry of the diagonal, and those with the ones before it.
    """
    each = np.arange(variables)
    starts = np.cumsum([0, *(heads + 1 + each)])[:-1]
    row, column = np.maximum.outer(each, each), np.minimum.outer(each, each)
    return starts, starts[row] + heads + np.where(row == column, 0, 1 + column)


def unpack(columns: Array, heads: int, variables: int) -> tuple[Floats, ...]:
    """Each head, (..., variable), and the symmetric matrix: (..., variable, variable)."""
    starts, entries = _places(heads, variables)
    found = np.asarray(columns, dtype=np.float64)
    return *(found[..., starts + head] for head in range(heads)), found[..., entries]


def pack(*parts: Floats) -> Floats:
    """Columns of heads and a symmetric matrix."""
    *heads, matrix = parts
    variables = matrix.shape[-1]
    starts, entries = _places(len(heads), variables)
    shape = np.broadcast_shapes(matrix.shape[:-2], *(head.shape[:-1] for head in heads))
    columns = np.empty((*shape, int(entries.max()) + 1))
    for place, head in enumerate(heads):
        columns[..., starts + place] = head
    columns[..., entries] = matrix
    return columns


def outer(x: Floats) -> Floats:
    """Outer products x xᵀ: (..., variable, variable)."""
    return x[..., :, None] * x[..., None, :]


def log_det(matrix: Floats) -> Floats:
    """Log of the determinant: (...,)."""
    return np.asarray(np.linalg.slogdet(matrix)[1])


def inverse(matrix: Floats) -> Floats:
    """Inverse of matrices."""
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def quadratic(matrix: Floats, x: Floats) -> Floats:
    """Quadratic forms xᵀ M x: (...,)."""
    return np.asarray(np.einsum("...i,...ij,...j->...", x, matrix, x))


def with_diagonal(matrix: Floats, diagonal: Floats) -> Floats:
    """Matrix with another diagonal."""
    size = matrix.shape[-1]
    return np.where(np.eye(size, dtype=bool), diagonal[..., None], matrix)


def positive(matrix: Floats) -> Floats:
    """Nearest matrix that is positive definite, rounding being what it is."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + np.swapaxes(matrix, -1, -2)))
    least = SMALLEST_B + 1e-9 * np.abs(values).max(axis=-1, keepdims=True)
    if (values >= least).all():
        return matrix
    raised = np.maximum(values, least)
    return np.asarray((vectors * raised[..., None, :]) @ np.swapaxes(vectors, -1, -2))
