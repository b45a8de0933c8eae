"""Dispersions of negative binomial counts, and the laws of their mean: see `negative_binomial`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaln, gammaln

from silomix.model.families.family import SMALLEST

if TYPE_CHECKING:
    from silomix.kernels.arrays import Floats, Rng

# Steps this small lose little at any α between: a cluster is not cut in two to make up for it.
DISPERSIONS = np.append(0.0, 2.0 ** np.linspace(-6.0, 4.0, 17))
POINTS = len(DISPERSIONS)


def log_rising(x: Floats) -> Floats:
    """Return L_α(x) at every α but 0: (..., point)."""
    r = 1.0 / DISPERSIONS[1:]
    return gammaln(x[..., None] + r) - gammaln(r) - x[..., None] * np.log(r)


def log1p_over(m: Floats, alpha: Floats = DISPERSIONS) -> Floats:
    """Return ln(1 + αm)/α, m at α = 0."""
    some = np.where(alpha > 0, alpha, 1.0)
    return np.where(alpha > 0, np.log1p(some * m) / some, m)


def log_normaliser(shape: Floats, rate: Floats, alpha: Floats = DISPERSIONS) -> Floats:
    """Return ln ∫ m^(shape − 1) (1 + αm)^(−shape − 1 − rate/α) dm, a gamma's at α = 0."""
    r = 1.0 / np.where(alpha > 0, alpha, 1.0)
    curved = shape * np.log(r) + betaln(shape, r * rate + 1.0)
    return np.where(alpha > 0, curved, gammaln(shape) - shape * np.log(rate))


def draw_means(shape: Floats, rate: Floats, alpha: Floats, rng: Rng) -> Floats:
    """Draw m from the law that `log_normaliser` is of: r times a ratio of gammas."""
    some = np.where(alpha > 0, alpha, 1.0)
    below = np.where(alpha > 0, some * rng.standard_gamma(rate / some + 1.0), rate)
    return np.asarray(np.maximum(rng.standard_gamma(shape) / below, SMALLEST))


@cache
def some_counts() -> tuple[Floats, Floats]:
    """Return counts that stand for all, few of the large ones.

    Returns
    -------
    worth : (place,), log of how many counts each is over x!; features : (place, statistic), T(x).
    """
    # each of the first; then steps that grow as a Poisson variable widens, and then with x
    t = np.arange(241.0)
    edges = 31.5 + t + t * t / 8.0 + 1e-3 * np.expm1(t / 10.0)
    x = np.concatenate([np.arange(32.0), 0.5 * (edges[1:] + edges[:-1])])
    worth = np.log(np.concatenate([np.ones(32), np.diff(edges)])) - gammaln(x + 1.0)
    return worth, np.column_stack([np.ones(len(x)), x, log_rising(x)])


def draw_dispersions(logs: Floats, rng: Rng, size: tuple[int, ...]) -> Floats:
    """Draw one of the dispersions by log probabilities, (..., point): `size`."""
    reached = np.cumsum(np.exp(logs - logs.max(axis=-1, keepdims=True)), axis=-1)
    thresholds = rng.random(size) * reached[..., -1]
    return DISPERSIONS[(reached <= thresholds[..., None]).sum(axis=-1)]
