"""The tests of Fendler et al. (2026), table 11: each row has one cluster, as if that were sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from silomix.outside.record import Comparison

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.outside.columns import Target

    Interval = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def compare_labels(
    target: Target, labels: NDArray[np.int64], clusters: int, level: float
) -> Comparison:
    """Return how the labelled rows of each cluster differ from all rows.

    Parameters
    ----------
    target : what to compare.
    labels : (row,), from 0.
    clusters : how many there are.
    level : of the intervals.
    """
    known = ~np.isnan(target.values)
    values, labels = target.values[known], labels[known]
    rows = np.bincount(labels, minlength=clusters).astype(np.float64)
    sums = np.bincount(labels, values, clusters).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums / rows
        if target.level is not None:
            test = compare_shares(sums, rows, float(values.sum()), len(values), level)
        else:
            squares = np.bincount(labels, (values - means[labels]) ** 2, clusters)
            whole = values.var(ddof=1) / len(values) if len(values) > 1 else np.nan
            test = welch(
                means - values.mean(),
                (squares / (rows - 1) / rows, rows),
                (np.full(clusters, whole), np.full(clusters, float(len(values)))),
                level,
            )
    lower, upper, p_value = test
    return Comparison(
        variable=target.variable,
        level=target.level,
        whole=float(values.mean()),
        rows=rows,
        estimate=means,
        difference=means - values.mean(),
        lower=lower,
        upper=upper,
        p_value=p_value,
    )


def compare_shares(
    having: NDArray[np.float64],
    rows: NDArray[np.float64],
    having_in_all: float,
    all_rows: int,
    level: float,
) -> Interval:
    """Return interval and p value of the z-test for two proportions with continuity correction.

    Yates's correction, no larger than the difference, as in R's prop.test. The cluster and the
    whole population are taken as two independent samples, though the cluster is part of the whole:
    of the ways to read the note of the table, this one gives the p values that it prints.

    Parameters
    ----------
    having : (cluster,), rows with the level.
    rows : (cluster,)
    having_in_all, all_rows : the same in the whole population.
    level : of the interval.
    """
    share, whole = having / rows, having_in_all / all_rows
    pooled = (having + having_in_all) / (rows + all_rows)
    difference, reach = share - whole, 1 / rows + 1 / all_rows
    correction = np.minimum(0.5 * reach, np.abs(difference))
    z = (np.abs(difference) - correction) / np.sqrt(pooled * (1 - pooled) * reach)
    error = np.sqrt(share * (1 - share) / rows + whole * (1 - whole) / all_rows)
    half = ndtri(0.5 + level / 2) * error + correction
    lower, upper = np.maximum(difference - half, -1), np.minimum(difference + half, 1)
    return lower, upper, 2 * ndtr(-z)


def welch(
    difference: NDArray[np.float64],
    first: tuple[NDArray[np.float64], NDArray[np.float64]],
    second: tuple[NDArray[np.float64], NDArray[np.float64]],
    level: float,
) -> Interval:
    """Return interval and p value of Welch's t-test, without equal variances.

    Parameters
    ----------
    difference : (cluster,), of two means.
    first, second : (cluster,) each, squared standard error of the mean, and rows.
    level : of the interval.
    """
    error = np.sqrt(first[0] + second[0])
    freedom = satterthwaite(first, second)
    half = stdtrit(freedom, 0.5 + level / 2) * error
    return difference - half, difference + half, 2 * stdtr(freedom, -np.abs(difference) / error)


def satterthwaite(
    first: tuple[NDArray[np.float64], NDArray[np.float64]],
    second: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the degrees of freedom of the sum of two squared standard errors, as for `welch`."""
    parts = first[0] ** 2 / (first[1] - 1) + second[0] ** 2 / (second[1] - 1)
    return (first[0] + second[0]) ** 2 / parts
