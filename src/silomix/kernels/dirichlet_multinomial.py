"""Dirichlet–multinomial evidence of level counts, for matching and for draws under drift.

A group of counts n, summed over its members, has the evidence

    g(n) = Σ_q [ln Γ(Σa) − ln Γ(Σa + Σn) + Σ_k ln Γ(a_k + n_k) − ln Γ(a_k)],

with the parameters a of the prior. Under drift a silo's level counts n around a shared profile m
are Dirichlet–multinomial(κ m): each silo has a profile of its own, which is integrated out.
Randomness comes from a NumPy generator, in a stated order, on one thread.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from silomix.kernels.arrays import Floats, Ints, Rng
from silomix.kernels.reproducible import kernel

# above this, the error of the terms of Stirling's series in use is below 1e-9
STIRLING = 8.0
# tables with a smaller probability are found by geometric skips
DENSE = 0.2
# tables with a smaller probability are neglected
NEVER = 1e-13
# if both the customers and the shape exceed this, as for sums of large counts, their tables are
# drawn from a normal approximation; for levels the shape is at most the largest κ
MANY = 50_000
# variance above which a sum of Bernoulli variables is taken as normal
NORMAL = 300.0
# relative rounding error of a bound on a gain
ROUNDING = 1e-9


@njit(cache=True, inline="always")
def _stirling(z: float) -> float:
    """Compute ln Γ(z) without its constant, for z of at least `STIRLING`."""
    r = 1.0 / z
    return (z - 0.5) * math.log(z) - z + r * (1 / 12 - r * r * (1 / 360 - r * r / 1260))


@njit(cache=True)
def log_rising(x: float, n: int) -> float:
    """Rising factorial, ln Γ(x + n) − ln Γ(x), for x > 0 and a whole n."""
    if n <= STIRLING:
        return _short_rising(x, n)
    return _stirling(x + n) - _log_gamma(x)


@njit(cache=True, inline="always")
def _short_rising(x: float, n: int) -> float:
    product = 1.0
    for i in range(n):
        product *= x + i
    return math.log(product)


@njit(cache=True)
def _log_gamma(x: float) -> float:
    """Compute ln Γ(x) without the constant of Stirling's series."""
    if x >= STIRLING:
        return _stirling(x)
    product = 1.0
    while x < STIRLING:
        product *= x
        x += 1.0
    return _stirling(x) - math.log(product)


@njit(cache=True, nogil=True)
def log_probability(counts: Ints, mean: Floats, first: int, last: int, kappa: float) -> float:
    """Log likelihood of one variable's counts given mean and κ, over silos and clusters.

    The counts are those of a sequence of cells, so there is no multinomial coefficient; at κ = ∞
    every silo's profile is the mean.

    Parameters
    ----------
    counts : (silo, cluster, level); mean : (cluster, level)
    first, last : the variable's levels, `first` to before `last`.
    """
    total = 0.0
    silos, clusters, _ = counts.shape
    drifts = not np.isinf(kappa)
    for cluster in range(clusters):
        for level in range(first, last):
            cells = 0
            shape = kappa * mean[cluster, level]
            # ln Γ(κm) is the same for all silos: added once, times their number
            long = 0
            for silo in range(silos):
                n = counts[silo, cluster, level]
                cells += n
                if drifts and n > STIRLING:
                    long += 1
                    total += _stirling(shape + n)
                elif drifts and n > 0:
                    total += _short_rising(shape, n)
            if long > 0:
                total -= long * _log_gamma(shape)
            if cells > 0 and not drifts:
                total += cells * math.log(mean[cluster, level])
        if drifts:
            for silo in range(silos):
                rows = 0
                for level in range(first, last):
                    rows += counts[silo, cluster, level]
                if rows > 0:
                    total -= log_rising(kappa, rows)
    return total


@njit(cache=True)
def _draw_many(shape: float, n: int, rng: Rng) -> int:
    """Draw Σ_{0<i<n} Bernoulli(a / (a + i)) for a large n from a normal approximation.

    Where the variance is small nearly all open a table, and the number that do not is Poisson.
    """
    first, last = shape + 0.5, shape + n - 0.5
    mean = shape * math.log1p((n - 1) / first)
    variance = mean - shape * shape * (n - 1) / (first * last)
    if variance < NORMAL:
        return n - 1 - min(rng.poisson(max(n - 1 - mean, 0.0)), n - 1)
    tables = round(mean + math.sqrt(variance) * rng.standard_normal())
    return min(max(tables, 0), n - 1)


@njit(cache=True)
def draw_tables(shape: float, n: int, rng: Rng) -> int:
    """Draw Σ_{i<n} Bernoulli(a / (a + i)): the tables that n customers open (Antoniak, 1974).

    Where tables are rare the next one is found by a geometric skip under a bound on their
    probability, and accepted with the ratio of the two: exact, in time proportional to the tables.
    """
    if n == 0:
        return 0
    if min(shape, n) > MANY:
        return 1 + _draw_many(shape, n, rng)
    tables, i = 1, 1
    while i < n:
        bound = shape / (shape + i)
        if bound > DENSE:
            tables += rng.random() < bound
            i += 1
            continue
        if bound < NEVER:
            break
        end, rate, j = min(n, 2 * i), math.log1p(-bound), float(i)
        while True:
            j += math.floor(math.log(1.0 - rng.random()) / rate)
            if j >= end:
                break
            tables += rng.random() * (shape + j) < shape + i
            j += 1.0
        i = end
    return tables


@njit(cache=True, nogil=True)
def draw_all_tables(shapes: Floats, counts: Ints, rng: Rng) -> Ints:
    """Draw the tables of each count; every customer opens one where the shape is infinite.

    Parameters
    ----------
    shapes, counts : arrays of the same shape, which the result has too.
    """
    tables = np.empty_like(counts)
    for place in range(counts.size):
        shape, n = shapes.flat[place], counts.flat[place]
        tables.flat[place] = n if np.isinf(shape) else draw_tables(shape, int(n), rng)
    return tables


@njit(cache=True, nogil=True)
def sum_tables(counts: Ints, mean: Floats, kappa: Floats, offsets: Ints, rng: Rng) -> Ints:
    """Sum the silos' table counts; at κ = ∞ every cell counts: (chain, cluster, level).

    Parameters
    ----------
    counts : (silo, chain, cluster, level)
    mean : (chain, cluster, level); kappa : (chain, variable)
    """
    silos, chains, clusters, _ = counts.shape
    tables = np.zeros(mean.shape, dtype=np.int64)
    for chain in range(chains):
        for variable in range(len(offsets) - 1):
            size = kappa[chain, variable]
            for silo in range(silos):
                for cluster in range(clusters):
                    for level in range(offsets[variable], offsets[variable + 1]):
                        n = counts[silo, chain, cluster, level]
                        if np.isinf(size):
                            tables[chain, cluster, level] += n
                        else:
                            shape = size * mean[chain, cluster, level]
                            tables[chain, cluster, level] += draw_tables(shape, n, rng)
    return tables


@njit(cache=True, nogil=True)
def draw_from_grid(
    grid: Floats,
    counts: Ints,
    mean: Floats,
    current: Ints,
    log_odds: Floats,
    offsets: Ints,
    tried: int,
    rng: Rng,
) -> Ints:
    """Draw the index of κ on the grid, for each chain and variable.

    The finite part of the grid is represented by `tried` of its points, drawn at random with the
    current one among them. A set that contains y is drawn with equal probability from every finite
    y, and (points / tried) times less often from infinity: with that factor the draw within the
    set leaves the distribution on the whole grid invariant.

    Parameters
    ----------
    grid : (point,), rising; the last is infinity.
    counts : (silo, chain, cluster, level); mean : (chain, cluster, level)
    current : (chain, variable), indices on the grid.
    log_odds : (chain,), prior log odds of all finite points together against infinity.
    """
    points = len(grid) - 1
    drawn = np.empty_like(current)
    order = np.arange(points)
    values = np.empty(tried + 1)
    for chain in range(current.shape[0]):
        for variable in range(current.shape[1]):
            index = current[chain, variable]
            start = 0
            if index < points:  # bring the current point to the front
                order[order == index], order[0] = order[0], index
                start = 1
            for place in range(start, tried):  # a random sample of the others behind it
                swap = place + int(rng.random() * (points - place))
                order[place], order[swap] = order[swap], order[place]
            first, last = offsets[variable], offsets[variable + 1]
            largest = -np.inf
            for place in range(tried + 1):
                kappa = grid[order[place]] if place < tried else grid[points]
                value = log_probability(counts[:, chain], mean[chain], first, last, kappa)
                if place < tried:
                    value += log_odds[chain] - math.log(tried)
                values[place] = value
                largest = max(largest, value)
            total = 0.0
            for place in range(tried + 1):
                total += math.exp(values[place] - largest)
                values[place] = total
            threshold = rng.random() * total
            chosen = 0
            while chosen < tried and values[chosen] <= threshold:
                chosen += 1
            drawn[chain, variable] = order[chosen] if chosen < tried else points
    return drawn


@kernel
def log_marginal(counts: Floats, more: Floats, prior: Floats, first: int, last: int) -> float:
    """One variable's part of g(counts + more), up to a constant of the prior.

    Parameters
    ----------
    counts, more, prior : (level,)
    first, last : the variable's levels, `first` to before `last`.
    """
    total, value = 0.0, 0.0
    for level in range(first, last):
        parameter = prior[level] + counts[level] + more[level]
        total += parameter
        value += math.lgamma(parameter)
    return value - math.lgamma(total)


@kernel
def gains_above(
    groups: tuple[Floats, Floats, Floats],
    model: tuple[Floats, Ints],
    a: int,
    others: Ints,
    start: Floats,
    floor: Floats,
    best_only: bool,
) -> Floats:
    """Gains of merging one group with others, start + g(n_a + n_b) − g(n_a) − g(n_b).

    A pair is abandoned as soon as the remaining variables cannot lift its gain to its floor.

    Parameters
    ----------
    groups : counts, (group, level); their evidence, (group, variable); and from each variable on,
        an upper bound of a group's contribution to a gain, (group, variable + 1).
    model : parameters of the prior, (level,), and where each variable's levels start.
    others, start, floor : (other,), groups, and offset and smallest useful gain of each.
    best_only : whether only the largest is needed: then each gain is a floor for the next.

    Returns
    -------
    (other,), −inf where it is below the floor.
    """
    (counts, evidence, room), (prior, offsets) = groups, model
    variables = len(offsets) - 1
    empty = np.empty(variables)
    nothing = np.zeros(counts.shape[1])
    for q in range(variables):
        empty[q] = log_marginal(nothing, nothing, prior, offsets[q], offsets[q + 1])
    gains = start.copy()
    best = -np.inf
    for place, b in enumerate(others):
        least = max(best, floor[place])
        for q in range(variables):
            gain, remaining = gains[place], room[a, q] + room[b, q]
            if gain + remaining < least - ROUNDING * (1.0 + remaining + abs(gain)):
                gains[place] = -np.inf
                break
            first, last = offsets[q], offsets[q + 1]
            joint = log_marginal(counts[a], counts[b], prior, first, last)
            gains[place] += joint - empty[q] - evidence[a, q] - evidence[b, q]
        if best_only:
            best = max(best, gains[place])
    return gains
