"""A textbook Gibbs sampler of a mixture of mixed rows, sharing no code with the package.

Loops over components and columns, in the units of the data; the parameters of a column are drawn as
books on conjugate priors say (Gelman et al., 2013, sections 2.6, 3.3 and 3.4).
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import gammaln


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
        ("tailed", (location, scale)), ("count", mean); cells are nan where they are missing.
    """
    rows, kept = len(labels), []
    variances = [np.ones(rows) for _ in columns]
    for _ in range(sweeps):
        laws = {}
        weights = rng.dirichlet([alpha + (labels == c).sum() for c in range(components)])
        scores = np.tile(np.log(np.maximum(weights, 1e-300)), (rows, 1))
        for c in range(components):
            for place, (kind, facts, x) in enumerate(columns):
                known = ~np.isnan(x)
                own, cells = x[known & (labels == c)], x[known]
                if kind == "category":
                    scores[known, c] += draw_category(own, facts, rng)[cells.astype(int)]
                elif kind == "normal":
                    m, sd = draw_normal(own, *facts, rng)
                    scores[known, c] += -0.5 * ((cells - m) / sd) ** 2 - np.log(
                        sd * np.sqrt(2 * np.pi)
                    )
                elif kind == "tailed":
                    of_own = variances[place][known & (labels == c)]
                    m, sd = laws[place, c] = draw_tailed(own, of_own, *facts, rng)
                    scores[known, c] += stats.t.logpdf(cells, 4, m, sd)
                else:
                    rate = rng.gamma(0.5 + own.sum(), 1 / (0.5 / facts + len(own)))
                    scores[known, c] += cells * np.log(rate) - rate - gammaln(cells + 1)
        log_likelihood = np.logaddexp.reduce(scores, axis=1).sum()
        labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
        for place in {place for place, _ in laws}:
            of_row = np.array([laws[place, c] for c in labels])
            variances[place] = draw_variances(columns[place][2], *of_row.T, rng)
        kept.append((labels, weights.max(), log_likelihood))
    return [np.array(part) for part in zip(*kept, strict=True)]
