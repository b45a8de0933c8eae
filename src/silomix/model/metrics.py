"""Accuracy of estimates against the truth: partitions, intervals and point estimates."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from silomix.errors import DataError, SettingsError
from silomix.kernels.arrays import Floats, Ints
from silomix.model.diagnostics import index_of_sizes as index_of_sizes

# Share of the draws inside the intervals that people are shown.
INTERVAL = 0.95


def adjusted_rand_index(a: ArrayLike, b: ArrayLike) -> float:
    """Adjusted Rand index of two partitions of the same rows.

    Hubert & Arabie (1985): one for equal partitions, zero on average for independent ones of
    the same sizes. Two partitions that both have one cluster, or both only singletons, are
    equal: 1.0.

    Parameters
    ----------
    a, b : (row,), labels of any kind; only which rows share one matters.

    Examples
    --------
    >>> silomix.metrics.adjusted_rand_index(["a", "a", "b", "b"], [1, 1, 0, 0])
    1.0
    """
    cells, _, _, sizes_a, sizes_b = _contingency(a, b)
    return index_of_sizes(cells, sizes_a, sizes_b)


def variation_of_information(a: ArrayLike, b: ArrayLike) -> float:
    """Variation of information H(a | b) + H(b | a) in nats (Meilă, 2007).

    Zero for equal partitions, at most the logarithm of the number of rows.

    Parameters
    ----------
    a, b : (row,), labels of any kind; only which rows share one matters.

    Examples
    --------
    >>> round(silomix.metrics.variation_of_information([0, 0, 1, 1], [0, 0, 0, 0]), 3)
    0.693
    """
    cells, of_a, of_b, sizes_a, sizes_b = _contingency(a, b)
    # no term is negative, so equal partitions give zero and never a rounding below it
    terms = np.log(sizes_a[of_a] / cells) + np.log(sizes_b[of_b] / cells)
    return float(cells @ terms / cells.sum())


def pair_clusters(
    true_labels: ArrayLike,
    labels: ArrayLike,
    *,
    true_clusters: int | None = None,
    clusters: int | None = None,
) -> Ints:
    """Pair true with estimated clusters, one to one, so that they share the most rows.

    The pairing maximises the rows shared over all pairs together (the assignment problem on
    the contingency table), so a true cluster need not get the estimated cluster that overlaps
    it most when another needs that one more. A pair that shares no row is not a pair.

    Parameters
    ----------
    true_labels, labels : (row,), cluster numbers from 0 on, so that they index the arrays of
        parameters.
    true_clusters, clusters : how many clusters there are on each side; by default, and at least,
        the highest label plus one. Give them when the last clusters may hold no row.

    Returns
    -------
    (true cluster,), the estimated cluster paired with each true one; -1 where there is none.
    Estimated clusters that do not appear in it are unpaired.

    Notes
    -----
    An unpaired true cluster has no estimate: set its interval and estimate to nan, and
    `coverage` counts a miss while `relative_bias` is nan. An unpaired estimated cluster has no
    true value and enters neither; the number of clusters and the adjusted Rand index show it.

    Examples
    --------
    >>> silomix.metrics.pair_clusters([0, 0, 1, 1], [1, 1, 0, 0]).tolist()
    [1, 0]
    """
    truth, fitted = cluster_numbers("true_labels", true_labels), cluster_numbers("labels", labels)
    _check_lengths(len(truth), len(fitted))
    n_true = max(true_clusters or 0, int(truth.max()) + 1)
    n_fitted = max(clusters or 0, int(fitted.max()) + 1)
    shared = np.bincount(truth * n_fitted + fitted, minlength=n_true * n_fitted)
    shared = shared.reshape(n_true, n_fitted)
    of_true, of_fitted = linear_sum_assignment(shared, maximize=True)
    paired = np.full(n_true, -1, dtype=np.int64)
    paired[of_true] = np.where(shared[of_true, of_fitted] > 0, of_fitted, -1)
    return paired


def coverage(true: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> float:
    """Share of the true values inside their intervals, bounds included.

    An entry with a nan in it, as for a cluster that was not found, counts as a miss; leave
    such entries out beforehand if they should not count. No entries at all give nan.

    Parameters
    ----------
    true, lower, upper : arrays of one shape, or that broadcast to one.

    Examples
    --------
    >>> silomix.metrics.coverage([0.2, 0.8], [0.1, 0.3], [0.3, 0.6])
    0.5
    """
    true, lower, upper = np.broadcast_arrays(true, lower, upper)
    swapped = int(np.count_nonzero(lower > upper))
    if swapped:
        problem = f"lower is above upper in {swapped} of {lower.size} intervals"
        raise DataError(f"{problem}; check the order of the arguments: true, lower, upper")
    covered = (lower <= true) & (true <= upper)
    return float(covered.mean()) if covered.size else float("nan")


def relative_bias(true: ArrayLike, estimate: ArrayLike) -> Floats:
    """(true − estimate) / true, element by element; nan where the true value is zero.

    The sign is that of Fendler et al. (2026), tables 4 and 5: an estimate that is too large
    has a negative bias.

    Parameters
    ----------
    true, estimate : arrays of one shape, or that broadcast to one.

    Examples
    --------
    >>> silomix.metrics.relative_bias([0.2, 0.4], [0.3, 0.4]).round(2).tolist()
    [-0.5, 0.0]
    """
    true, estimate = np.broadcast_arrays(true, estimate)
    undefined = np.full(true.shape, np.nan)
    return np.divide(true - estimate, true, out=undefined, where=true != 0)


def equal_tailed_interval(
    draws: ArrayLike, level: float = 0.95, axis: int = 0
) -> tuple[Floats, Floats]:
    """Interval that leaves (1 − level) / 2 of the draws out on each side.

    Parameters
    ----------
    draws : the draws along `axis`, any shape otherwise.
    level : share of the draws inside.
    axis : axis of the draws.

    Returns
    -------
    lower, upper : the shape of `draws` without `axis`; nan where a draw is nan.

    Examples
    --------
    >>> lower, upper = silomix.metrics.equal_tailed_interval(posterior.weights)
    >>> lower.shape, bool((lower < upper).all())
    ((5,), True)
    """
    values = _checked_draws(draws, level, axis)
    lower, upper = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=axis)
    return lower, upper


def highest_density_interval(draws: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Shortest interval between draws that holds more than `level` of them.

    The estimator of Chen & Shao (1999): of the windows of ⌊level · n⌋ + 1 sorted draws, the
    shortest, and the lowest of equally short ones. It can reach a bound such as 0 or 1, which
    an equal-tailed interval never does.

    Parameters
    ----------
    draws : (draw, …), any trailing shape; each entry of it has an interval of its own.
    level : share of the draws inside.

    Returns
    -------
    lower, upper : the trailing shape; nan where a draw is nan.

    Examples
    --------
    >>> lower, upper = silomix.metrics.highest_density_interval(posterior.weights, 0.9)
    >>> lower.shape, bool((lower < upper).all())
    ((5,), True)
    """
    values = np.sort(_checked_draws(draws, level, 0), axis=0)
    n = len(values)
    # the highest level below one rounds up to n
    steps = min(int(level * n), n - 1)
    start = np.argmin(values[steps:] - values[: n - steps], axis=0, keepdims=True)
    lower = np.take_along_axis(values, start, axis=0)[0]
    upper = np.take_along_axis(values, start + steps, axis=0)[0]
    # nan sorts last, so the last draw tells
    broken = np.isnan(values[-1])
    return np.where(broken, np.nan, lower)[()], np.where(broken, np.nan, upper)[()]


def _contingency(a: ArrayLike, b: ArrayLike) -> tuple[Ints, ...]:
    """Nonempty cells of two partitions' contingency table, and its margins.

    Only those cells: two partitions of 300,000 singletons have as many, the full table 9e10.

    Returns
    -------
    rows in each cell, and the clusters of a and of b that meet there: (cell,) each; rows in each
    cluster of a, and of b.
    """
    codes_a, codes_b = _codes("a", a), _codes("b", b)
    _check_lengths(len(codes_a), len(codes_b))
    sizes_a, sizes_b = np.bincount(codes_a), np.bincount(codes_b)
    numbers, cells = np.unique(codes_a * len(sizes_b) + codes_b, return_counts=True)
    return cells, *np.divmod(numbers, len(sizes_b)), sizes_a, sizes_b


def _codes(name: str, labels: ArrayLike) -> Ints:
    """Labels as 0 … k − 1, in the order of their first row."""
    codes = pd.factorize(_column(name, labels))[0].astype(np.int64)
    missing = np.flatnonzero(codes < 0)
    if missing.size:
        first = f"the first of them row {missing[0]} (from 0); drop those rows from both partitions"
        raise DataError(f"{name} has no label in {missing.size} of {len(codes)} rows, {first}")
    return codes


def cluster_numbers(name: str, labels: ArrayLike) -> Ints:
    """Cluster numbers; refuse anything but integers from 0 on.

    Parameters
    ----------
    name : the name of the argument, for messages.
    labels : (row,)

    Raises
    ------
    DataError
        When a row has none, or something else.

    Examples
    --------
    >>> silomix.metrics.cluster_numbers("labels", [0, 2, 1]).tolist()
    [0, 2, 1]
    """
    column = _column(name, labels)
    if not pd.api.types.is_integer_dtype(column.dtype) or column.hasnans:
        number = "a whole number, the place of its cluster in the arrays of parameters"
        raise DataError(f"{name} has dtype {column.dtype}; give each row {number}")
    if column.min() < 0:
        raise DataError(f"{name} goes down to {column.min()}; number the clusters from 0 on")
    return column.to_numpy(dtype=np.int64)


def _column(name: str, labels: ArrayLike) -> pd.Series:
    if np.ndim(labels) != 1 or len(column := pd.Series(labels)) == 0:
        raise DataError(f"{name} has the shape {np.shape(labels)}; give one label per row, (row,)")
    return column


def _check_lengths(rows_a: int, rows_b: int) -> None:
    if rows_a != rows_b:
        problem = f"the two partitions have {rows_a} and {rows_b} rows"
        raise DataError(f"{problem}; give labels of the same rows, in the same order")


def _checked_draws(draws: ArrayLike, level: float, axis: int) -> Floats:
    if not 0 < level < 1:
        raise SettingsError(f"level={level}: give a share between 0 and 1, such as 0.95")
    values = np.atleast_1d(np.asarray(draws, dtype=np.float64))
    if values.shape[axis] == 0:
        raise DataError(f"there are no draws along axis {axis} of shape {values.shape}")
    return values
