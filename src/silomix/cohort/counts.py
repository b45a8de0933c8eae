"""Independent conditions of people with at least two of them, in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def at_least_two(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of two conditions or more: (cluster,).

    Parameters
    ----------
    chances : (cluster, condition), each below one.
    """
    return 1.0 - _none(chances) - _exactly_one(chances)


def prevalence(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share with each condition among those with at least two: (cluster, condition).

    Who has a condition has at least two if one of the others is there as well.
    """
    no_other = _none(chances)[:, np.newaxis] / (1.0 - chances)
    return chances * (1.0 - no_other) / at_least_two(chances)[:, np.newaxis]


def count_moments(
    chances: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the mean square of the number of conditions, at least two: (cluster,)."""
    mean, variance = chances.sum(axis=1), (chances * (1.0 - chances)).sum(axis=1)
    one, share = _exactly_one(chances), at_least_two(chances)
    return (mean - one) / share, (variance + mean**2 - one) / share


def _none(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.prod(1.0 - chances, axis=1)


def _exactly_one(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    return _none(chances) * (chances / (1.0 - chances)).sum(axis=1)
