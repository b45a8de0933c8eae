"""A textbook Gibbs sampler of a mixture of mixed rows, sharing no code with the package.

Loops over components and columns, in the units of the data; the parameters of a column are drawn as
books on conjugate priors say (Gelman et al., 2013, sections 2.6, 3.3 and 3.4).
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import betaln, gammaln


def draw_category(x, size, rng):
    """Log probabilities of the levels, given the cells of a component."""
    counts = np.array([(x == level).sum() for level in range(size)])
    return np.log(np.maximum(rng.dirichlet(0.5 + counts), 1e-300))


def draw_normal(x, location, scale, rng):
    """Mean and standard deviation, given the cells of a component, by way of the precision."""
    n, prior_rows, centre = len(x), 0.01, location
    mean = x.mean() if n else centre
    squares = ((x - mean) ** 2).sum() + prior_rows * n / (prior_rows + n) * (mean - centre) ** 2
    precision = rng.gamma(1.5 + n / 2, 1 / (0.25 * scale**2 + squares / 2))
    middle = (prior_rows * centre + n * mean) / (prior_rows + n)
    sd = precision**-0.5
    return rng.normal(middle, sd / np.sqrt(prior_rows + n)), sd


def draw_spread_count(x, mean, start, rng):
    """Mean and dispersion, the dispersion given the mean and then the mean given the dispersion.

    NB(r, q) with mean r p/(1 − p), p = 1 − q ~ Beta(½, r/(2 mean) + 1), and 1/r on a grid that
    begins at 0; near 0 stands for 0 here.
    """
    grid = np.append(1e-7, 2 ** np.linspace(-6, 4, 17))
    r = 1 / grid
    b = 0.5 * r / mean + 1
    p = start / (start + r)
    # density of the mean: that of p times dp/dm = r/(m + r)²
    logs = -0.5 * np.log(p) + (b - 1) * np.log1p(-p) - betaln(0.5, b) + np.log(r / (start + r) ** 2)
    rising = [gammaln(cell + r) - gammaln(r) for cell in x]
    logs = logs + np.sum(rising, axis=0) + x.sum() * np.log(p) + len(x) * r * np.log1p(-p)
    place = np.argmax(logs + rng.gumbel(size=len(grid)))
    odds = rng.gamma(0.5 + x.sum()) / rng.gamma(b[place] + len(x) * r[place])
    return max(r[place] * odds, 1e-30), r[place]


def draw_tailed(x, variances, location, scale, rng):
    """Mean and scale, given the cells of a component and the variance of each, scale apart.

    A regression on a constant with known ratios of variances (Gelman et al., 2013, section 14.7).
    """
    ratios = np.append(variances, 100.0)  # the prior is one more observation, at the location
    cells = np.append(x, location)
    middle = (cells / ratios).sum() / (1 / ratios).sum()
    squares = ((cells - middle) ** 2 / ratios).sum()
    sd = np.sqrt((0.5 * scale**2 + squares) / rng.chisquare(3 + len(x)))
    return rng.normal(middle, sd / np.sqrt((1 / ratios).sum())), sd


def draw_variances(x, m, sd, rng):
    """Variances of cells in units of their squared scale, a scaled inverse χ² each: (row,).

    Four observations of variance one beforehand, and the cell's own; nan cells say nothing.
    """
    return (4 + np.nan_to_num((x - m) / sd) ** 2) / rng.chisquare(5, len(x))


def plain_gibbs(columns, labels, components, alpha, sweeps, rng):
    """Run sweeps; return labels (sweep, row), largest weight and log-likelihood (sweep,).

    Parameters
    ----------
    columns : (kind, facts, cells) of each: ("category", levels), ("normal", (location, scale)),
        ("tailed", (location, scale)), ("count", mean), ("spread count", mean); cells are nan where
        they are missing.
    """
    rows, kept, state = len(labels), [], {}
    for _ in range(sweeps):
        weights = rng.dirichlet([alpha + (labels == c).sum() for c in range(components)])
        scores = np.tile(np.log(np.maximum(weights, 1e-300)), (rows, 1))
        for c in range(components):
            for place, (kind, facts, x) in enumerate(columns):
                known = ~np.isnan(x)
                of_own = state.get(place, np.ones(rows))[known & (labels == c)]
                own, law = x[known & (labels == c)], state.get((place, c))
                state[place, c] = law = draw_law(kind, facts, own, of_own, law, rng)
                scores[known, c] += log_density(kind, x[known], law)
        log_likelihood = np.logaddexp.reduce(scores, axis=1).sum()
        labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
        for place, (kind, _, x) in enumerate(columns):
            if kind == "tailed":
                of_row = np.array([state[place, c] for c in labels])
                state[place] = draw_variances(x, *of_row.T, rng)
        kept.append((labels, weights.max(), log_likelihood))
    return [np.array(part) for part in zip(*kept, strict=True)]


def draw_law(kind, facts, own, variances, law, rng):
    """Parameters of one column in one component, given its cells there; law : those before."""
    if kind == "category":
        return draw_category(own, facts, rng)
    if kind == "normal":
        return draw_normal(own, *facts, rng)
    if kind == "tailed":
        return draw_tailed(own, variances, *facts, rng)
    if kind == "spread count":
        return draw_spread_count(own, facts, facts if law is None else law[0], rng)
    return rng.gamma(0.5 + own.sum(), 1 / (0.5 / facts + len(own)))


def log_density(kind, cells, law):
    """Log density of cells, none of them missing: (cell,)."""
    if kind == "category":
        return law[cells.astype(int)]
    if kind == "normal":
        return stats.norm.logpdf(cells, *law)
    if kind == "tailed":
        return stats.t.logpdf(cells, 4, *law)
    if kind == "spread count":
        m, r = law
        return stats.nbinom.logpmf(cells, r, r / (r + m))
    return stats.poisson.logpmf(cells, law)
