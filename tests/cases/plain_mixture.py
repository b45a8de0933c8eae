"""A textbook Gibbs sampler of a mixture of mixed rows, sharing no code with the package.

Loops over components and columns, in the units of the data; the parameters of a column are drawn as
books on conjugate priors say (Gelman et al., 2013, sections 2.6, 3.3 and 3.4).
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaln, gammaln
from scipy.stats import nbinom


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


def plain_gibbs(columns, labels, components, alpha, sweeps, rng):
    """Run sweeps; return labels (sweep, row), largest weight and log-likelihood (sweep,).

    Parameters
    ----------
    columns : (kind, facts, cells) of each: ("category", levels), ("normal", (location, scale)),
        ("count", mean), ("spread count", mean); cells are nan where they are missing.
    """
    rows, kept, means = len(labels), [], {}
    for _ in range(sweeps):
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
                elif kind == "spread count":
                    m, r = draw_spread_count(own, facts, means.get((c, place), facts), rng)
                    means[c, place] = m
                    scores[known, c] += nbinom.logpmf(cells, r, r / (r + m))
                else:
                    rate = rng.gamma(0.5 + own.sum(), 1 / (0.5 / facts + len(own)))
                    scores[known, c] += cells * np.log(rate) - rate - gammaln(cells + 1)
        log_likelihood = np.logaddexp.reduce(scores, axis=1).sum()
        labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
        kept.append((labels, weights.max(), log_likelihood))
    return [np.array(part) for part in zip(*kept, strict=True)]
