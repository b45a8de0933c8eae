"""Readable twins of the kernels of drift, with random numbers in the same order; exact laws."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from scipy.special import gammaln, logsumexp

from silomix.kernels.dirichlet_multinomial import DENSE, NEVER


def log_rising(x, n):
    return gammaln(x + n) - gammaln(x)


def log_probability(counts, mean, first, last, kappa):
    """ln p of one variable's cells, silos' own profiles integrated out; mean : (cluster, level)."""
    n, m = counts[..., first:last], mean[:, first:last]
    if np.isinf(kappa):
        return float((n * np.log(m)).sum())
    by_level = log_rising(kappa * m, n).sum()
    return float(by_level - log_rising(kappa, n.sum(axis=-1)).sum())


def draw_tables(shape, n, rng):
    """Customer i opens a table with probability a/(a + i): the same skips, the same numbers."""
    tables = min(n, 1)
    i = 1
    while i < n:
        bound = shape / (shape + i)
        if bound > DENSE:
            tables += int(rng.random() < bound)
            i += 1
        elif bound < NEVER:
            return tables
        else:
            end, at = min(n, 2 * i), i
            while (at := at + draw_skip(bound, rng)) < end:
                tables += int(rng.random() < (shape + i) / (shape + at))
                at += 1
            i = end
    return tables


def draw_skip(probability, rng):
    """Failures before the first success."""
    return math.floor(math.log(1.0 - rng.random()) / math.log1p(-probability))


def sum_tables(counts, mean, kappa, offsets, rng):
    tables = np.zeros(mean.shape, dtype=np.int64)
    for chain, row in enumerate(kappa):
        for size, (first, last) in zip(row, pairwise(offsets), strict=True):
            for own in counts[:, chain, :, first:last]:
                for (cluster, level), n in np.ndenumerate(own):
                    m = mean[chain, cluster, first + level]
                    opened = n if np.isinf(size) else draw_tables(size * m, n, rng)
                    tables[chain, cluster, first + level] += opened
    return tables


def draw_from_grid(counts, mean, current, grid, log_odds, offsets, tried, rng):
    """The current point in front, a random sample of the others behind it, infinity last."""
    points = len(grid) - 1
    drawn = np.empty_like(current)
    order = list(range(points))

    def swap(one, other):
        order[one], order[other] = order[other], order[one]

    for (chain, variable), now in np.ndenumerate(current):
        finite = now < points
        if finite:
            swap(0, order.index(now))
        for place in range(int(finite), tried):
            swap(place, place + int(rng.random() * (points - place)))
        candidates = [*order[:tried], points]
        levels = offsets[variable], offsets[variable + 1]
        logs = np.array(
            [
                log_probability(counts[:, chain], mean[chain], *levels, grid[point])
                for point in candidates
            ]
        )
        logs[:-1] += log_odds[chain] - math.log(tried)
        masses = np.exp(logs - logs.max()).cumsum()
        drawn[chain, variable] = candidates[int((masses <= rng.random() * masses[-1]).sum())]
    return drawn


def grid_masses(counts, mean, grid, log_odds):
    """The law of κ of one variable on the whole grid: (point,); mean : (cluster, level)."""
    levels = 0, mean.shape[1]
    logs = np.array([log_probability(counts, mean, *levels, kappa) for kappa in grid])
    logs[:-1] += log_odds - math.log(len(grid) - 1)
    return np.exp(logs - logsumexp(logs))


def table_masses(shape, n):
    """P(tables = k), k = 0 … n, for n customers (Antoniak, 1974).

    These are |s(n, k)| a^k / a(a + 1)…(a + n − 1), s the Stirling numbers of the first kind.
    """
    stirling = [1]
    for i in range(n):
        stirling = [i * a + b for a, b in zip([*stirling, 0], [0, *stirling], strict=True)]
    logs = [math.log(s) + k * math.log(shape) if s else -np.inf for k, s in enumerate(stirling)]
    return np.exp(np.array(logs) - log_rising(shape, n))


class TwoLevels:
    """∫ Beta(m; ½, ½) f(m) dm by the midpoint rule: even in θ, where m = sin² θ."""

    def __init__(self, points=20_000):
        angle = (np.arange(points) + 0.5) / points * np.pi / 2
        self.m, self.rest = np.sin(angle) ** 2, np.cos(angle) ** 2

    def log_likelihood(self, counts, kappa):
        """ln p(counts | m, κ) at every point; counts : (level,)."""
        n, others = counts
        if np.isinf(kappa):
            return n * np.log(self.m) + others * np.log(self.rest)
        return (
            log_rising(kappa * self.m, n)
            + log_rising(kappa * self.rest, others)
            - log_rising(kappa, n + others)
        )

    def log_integral(self, *logs):
        total = sum(logs)
        return float(logsumexp(total) - np.log(len(total)))
