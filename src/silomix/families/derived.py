"""What follows from a family: evidence, medians, gradients, distances, the effect of drift.

Each is a function with a default. A family that has a method of the same name is asked instead: a
closed form is faster, or exact. The defaults that need a particular kind are those of one positive
parameter, the mean of x, with (n, Σx) as statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from silomix.families.family import GRID, SMALLEST, Family, by_variable, draw_places, flat, worth
from silomix.kernels.arrays import Array, Bools, Floats, Ints, Reals, Rng

# grid of the prior sizes of unrelated clusters, in rows, see `priors_near`
SIZES = np.geomspace(1e-2, 1e3, 11)
# the logs of the sizes of priors of unrelated clusters are normal around the usual, as wide as this
SIZE_SD = 3.0
# of which a median is taken where a family has no formula
MEDIAN_DRAWS = 1001
# of χ: half of what is between the sides of a numerical difference
STEP = 1e-5

P = ParamSpec("P")
R = TypeVar("R")


def derived(default: Callable[P, R]) -> Callable[P, R]:
    """A function of a family, which calls the family's method of that name where it has one."""

    @wraps(default)
    def call(*args: P.args, **named: P.kwargs) -> R:
        family, *rest = args
        closed: Any = getattr(family, default.__name__, None)
        return default(*args, **named) if closed is None else closed(*rest, **named)

    return call


def parameter_counts(family: Family) -> Ints:
    """Number of parameters of each variable: (variable,)."""
    counts = Counter(name for name, _ in family.names())
    return np.array([counts[variable.name] for variable in family.variables], dtype=np.int64)


def coordinate_counts(family: Family) -> Ints:
    """Number of conjugate coordinates of each variable: (variable,)."""
    if family.is_joint:
        few = [family.variables[: place + 1] for place in range(len(family.variables))]
        return np.diff([0, *(len(replace(family, variables=some).prior()) for some in few)])
    sizes = [len(replace(family, variables=(one,)).prior()) for one in family.variables]
    return np.array(sizes, dtype=np.int64)


def leads(family: Family) -> Bools:
    """Which variables have a κ of their own: (variable,), all, or the first of a joint family.

    One without a κ differs between silos together with the last before it that has one.
    """
    return (np.arange(len(family.variables)) == 0) | (not family.is_joint)


def hides(family: Family, cells: Array) -> Bools:
    """Which rows are incomplete, so that their density is no T · η: (row,).

    Of such rows `features` is what a chain begins with, or zero, and `log_density`, `complete` and
    `expected_features` are asked instead.
    """
    gaps = np.isnan(cells).any(axis=1) if family.is_joint else np.zeros(len(cells), np.bool_)
    return np.asarray(gaps | family.always_hides)


def together(family: Family, values: Floats) -> Floats:
    """Log probabilities summed over the variables that share a κ: (..., variable)."""
    first = leads(family)
    sums = np.add.reduceat(values, np.flatnonzero(first), axis=-1)
    return sums[..., np.cumsum(first) - 1]


@derived
def known(family: Family, statistics: Array) -> Floats:
    """Number of rows that have a cell: (..., variable)."""
    return statistics[..., np.cumsum(family.statistics) - family.statistics]


@derived
def moments(_: Family, parameters: Reals) -> Reals:
    """E T(x): (..., statistic)."""
    return flat(np.ones(parameters.shape), parameters)


@derived
def from_moments(_: Family, moments: Floats) -> Floats:
    """Parameters with these moments: (..., parameter)."""
    return np.array(by_variable(moments, 2)[1])


@derived
def valid(_: Family, statistics: Floats) -> Floats:
    """Sums that rows can have, near those that moments gave: none is below zero."""
    return np.maximum(statistics, 0.0)


@derived
def nothing(family: Family) -> Floats:
    """Mean statistics that the prior has: (statistic,)."""
    return np.asarray(moments(family, near(family, np.zeros(family.statistics.sum()))))


@derived
def means(family: Family, statistics: Floats) -> tuple[Floats, Floats]:
    """Mean statistics of a row, those of the prior for none; and of how many: (..., variable)."""
    rows = np.asarray(known(family, statistics), dtype=np.float64)
    n = np.repeat(rows, family.statistics, axis=-1)
    return np.where(n > 0, statistics / np.where(n > 0, n, 1.0), nothing(family)), rows


def log_evidence(family: Any, statistics: Array, prior: Floats | None = None) -> Floats:
    """Log p(cells) up to log_base, the parameters integrated out: (..., variable)."""
    base = family.prior() if prior is None else prior
    updated = family.log_normaliser(base + family.conjugate(statistics))
    return np.asarray(updated - family.log_normaliser(base))


def slopes_of_evidence(family: Family, statistics: Floats) -> Floats:
    """E η under the posterior given these sums, by central differences: (..., statistic)."""
    slopes, prior = np.empty(statistics.shape), family.prior()
    same = len(prior) == statistics.shape[-1]
    sizes = np.abs(prior + statistics if same else statistics)
    for column, size in enumerate(np.moveaxis(sizes, -1, 0)):
        step = STEP * np.where(size > 0, size, 1.0)
        sides = np.array([statistics, statistics], dtype=np.float64)
        sides[..., column] += [-step, step]
        low, high = log_evidence(family, sides).sum(axis=-1)
        slopes[..., column] = (high - low) / (2.0 * step)
    return slopes


@derived
def expected_natural(family: Family, statistics: Floats) -> Floats:
    """E η under the posterior given these sums, the slope of the evidence: (..., statistic)."""
    return slopes_of_evidence(family, statistics)


@derived
def medians(family: Family, posterior: Floats) -> Floats:
    """Medians of the parameters given χ, of draws that are always the same: (..., parameter)."""
    many = np.broadcast_to(posterior, (MEDIAN_DRAWS, *posterior.shape))
    return np.asarray(np.median(family.draw(many, np.random.default_rng(0)), axis=0))


@derived
def near(family: Family, statistics: Floats) -> Floats:
    """Parameters of rows with these sums, sensible ones for few rows or none."""
    return medians(family, family.prior() + family.conjugate(statistics))


@derived
def spread(family: Family, parameters: Floats) -> Floats:
    """Standard deviation of x, in the units of the cells: (..., variable).

    Its square is the slope of the mean in the natural parameter that goes with Σx.
    """
    step = 1e-4 * np.maximum(parameters, SMALLEST)
    low, high = (family.natural(parameters + side)[..., 1::2] for side in (-step, step))
    return np.sqrt(2.0 * step / (high - low))


@derived
def score(family: Family, parameters: Floats, statistics: Floats) -> Floats:
    """Gradient of the log-likelihood of rows with these sums: as `parameters`."""
    n, total = by_variable(statistics, 2)
    return np.asarray((total - n * parameters) / spread(family, parameters) ** 2)


@derived
def log_prior(family: Family, parameters: Floats) -> tuple[float, Floats | float, Floats]:
    """Log density of the prior, and its gradient; by default with h(θ) = 1/θ.

    Returns
    -------
    constant : for each cluster; value : the rest, to be added up over all axes; by variable,
        (..., variable), where numbers can leave rounded.
    gradient : (..., parameter)
    """
    at, prior = np.maximum(parameters, SMALLEST), family.prior()
    value = sum(by_variable(family.natural(at) * prior, 2)) - np.log(at)
    return 0.0, value - family.log_normaliser(prior), score(family, at, prior) - 1.0 / at


@derived
def priors_near(family: Family, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Priors χ that clusters (cluster, statistic) may come from, and what speaks against each.

    Their centre is the mean of the clusters' means.
    """
    centre, prior = near(family, statistics).mean(axis=0), family.prior()
    usual = np.log(known(family, prior)) if len(prior) == statistics.shape[-1] else np.zeros(())
    for size in SIZES:
        chi = family.conjugate(size * moments(family, centre))
        yield chi, 0.5 * ((np.log(size) - usual) / SIZE_SD) ** 2


def unrelated(family: Family, statistics: Floats, counts: Floats) -> Floats:
    """χ of the prior that clusters which differ seem to come from: (coordinate,).

    It is, for each variable, the most probable of `priors_near`.

    Parameters
    ----------
    statistics : (cluster, statistic); counts : (cluster,), how much each counts.
    """
    best, chosen = np.full(len(family.variables), -np.inf), family.prior()
    sizes = coordinate_counts(family)
    for tried, against in priors_near(family, statistics):
        value = together(family, counts @ log_evidence(family, statistics, tried)) - against
        better = value > best
        best = np.where(better, value, best)
        chosen = np.where(np.repeat(better, sizes), tried, chosen)
    return chosen


@derived
def draw_kappa(
    family: Family,
    statistics: Array,
    parameters: Floats,
    current: Ints,
    log_odds: Floats,
    rng: Rng,
) -> Ints:
    """Draw where κ is on `GRID`, silos' own parameters integrated out: (chain, variable).

    Parameters
    ----------
    statistics : (silo, chain, cluster, statistic); parameters : (chain, cluster, parameter)
    current : (chain, variable); log_odds : (chain,), of finite κ against ∞ beforehand.
    """
    grid = np.repeat(GRID[:, None], current.shape[1], axis=1)
    by_silo = [family.log_marginal(statistics, parameters, kappa) for kappa in grid]
    values = together(family, np.array(by_silo).sum(axis=(1, 3)))
    # the last point, ∞, stands apart
    values[:-1] += log_odds[:, None] - np.log(len(values) - 1)
    drawn, first = draw_places(np.moveaxis(values, 0, -1), rng), leads(family)
    return np.asarray(drawn[:, first][:, np.cumsum(first) - 1])


@derived
def discount(family: Family, statistics: Floats, kappa: Floats) -> Floats:
    """Sums that say of the shared parameters, without drift, what these say at κ."""
    part = worth(known(family, statistics), kappa)
    return np.asarray(statistics * np.repeat(part, family.statistics, axis=-1))


@derived
def log_remainder(family: Family, statistics: Floats, kappa: Floats) -> Floats:
    """Log p(rows | θ, κ) less that of the discounted rows, at their own θ: (..., variable)."""
    at = near(family, statistics)
    kept = discount(family, statistics, kappa) * family.natural(at)
    starts = np.cumsum(family.statistics) - family.statistics
    marginal = family.log_marginal(statistics, at, kappa)
    return np.asarray(marginal - np.add.reduceat(kept, starts, axis=-1))


@derived
def whole(_: Family, parameters: Reals, weights: Reals) -> Floats:
    """Population average of the parameters, with which clusters are compared: (draw, parameter).

    Parameters
    ----------
    parameters : (draw, cluster, parameter); weights : (draw, cluster)
    """
    return np.einsum("tc,tcp->tp", weights, parameters, dtype=np.float64)


@derived
def scaled_difference(_: Family, parameters: Reals, population: Floats) -> Floats:
    """Contrast of a cluster with the population, comparable between variables: log ratios.

    All are (..., parameter).
    """
    own, overall = (np.maximum(part, SMALLEST) for part in (parameters, population))
    return np.asarray(np.log(own / overall))


@derived
def back(_: Family, coordinates: Floats) -> Floats:
    """Parameters at, or nearest to, these coordinates."""
    return np.exp(coordinates)


@derived
def places(family: Family, means: Floats) -> Floats:
    """Coordinates of clusters with these moments, for distances."""
    return np.asarray(family.coordinates(from_moments(family, means)), dtype=np.float64)


@derived
def log_affinity(family: Family, one: Floats, other: Floats) -> Floats:
    """Log of Bhattacharyya's coefficient of two clusters: (..., variable).

    An eighth of the symmetric Kullback–Leibler divergence, to the second order.
    """
    rise = family.natural(one) - family.natural(other)
    rise = rise * (moments(family, one) - moments(family, other))
    starts = np.cumsum(family.statistics) - family.statistics
    return np.asarray(-0.125 * np.add.reduceat(rise, starts, axis=-1))


@derived
def overlap(family: Family, one: Array, other: Array) -> Floats:
    """Number of cells that two clusters of rows may have in common: (..., variable)."""
    apart = log_affinity(family, near(family, one), near(family, other))
    rows = np.minimum(known(family, one), known(family, other))
    return np.asarray(rows * np.exp(together(family, apart)))


@derived
def problems(family: Family, parameters: Reals, *, together: bool = True) -> str:  # noqa: ARG001
    """What is wrong with parameters from elsewhere, as the end of a sentence; or "".

    Parameters
    ----------
    together : whether the parameters of a variable belong together, as those of a draw do.
    """
    words = "s or ".join(family.parameter_words)
    fine = family.support == "all" or (parameters >= 0).all()
    return "" if fine else f"has {words}s below zero"


@derived
def mean_problems(family: Family, mean: Floats) -> str:
    """What is wrong with mean statistics from elsewhere, likewise."""
    largest = np.abs(mean).max(axis=-1, keepdims=True, initial=1.0)
    fits = (np.abs(valid(family, mean) - mean) <= 1e-6 * largest).all()
    signs = family.support == "all" or (mean >= 0).all()
    fine = fits and signs and (known(family, mean) == 1).all()
    return "" if fine else f"has means that no {family.word} have"
