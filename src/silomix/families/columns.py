"""Columns of the variables of a block, one after the other in flat arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Array, Floats, Ints, Rng

# of a parameter that must be above zero: draws kept in float32 may be exactly zero
SMALLEST = 1e-30
# of a probability between two numbers that are nearly the same
TINY = 1e-15


def by_variable(columns: Array, size: int) -> tuple[Array, ...]:
    """Return columns of `size` for each variable, by what they are: each (..., variable)."""
    return tuple(columns[..., place::size] for place in range(size))


def flat(*parts: Array) -> Floats:
    """Return parts (..., variable) as the columns of each variable in turn: (..., column)."""
    size, shape = len(parts), np.broadcast_shapes(*(part.shape for part in parts))
    columns = np.empty((*shape[:-1], shape[-1] * size))
    for place, part in enumerate(parts):
        columns[..., place::size] = part
    return columns


def split(columns: Array, size: int) -> Floats:
    """Return columns (..., column) by variable, which has `size` of them: (..., variable, own)."""
    return columns.astype(np.float64).reshape(*columns.shape[:-1], columns.shape[-1] // size, size)


def join(first: Sequence[Floats], others: Floats) -> Floats:
    """Return columns of numbers, each (..., variable), and of others, (..., variable, own)."""
    both = np.concatenate([np.stack(first, axis=-1), others], axis=-1)
    return both.reshape(*both.shape[:-2], both.shape[-2] * both.shape[-1])


def draw_places(logs: Floats, rng: Rng) -> Ints:
    """Draw places on the last axis by log probabilities, (..., place): (...,)."""
    reached = np.cumsum(np.exp(logs - logs.max(axis=-1, keepdims=True)), axis=-1)
    thresholds = rng.random(logs.shape[:-1]) * reached[..., -1]
    return np.asarray((reached <= thresholds[..., None]).sum(axis=-1))


def log_between(low: Floats, high: Floats) -> Floats:
    """Return the log probability that a standard normal variable is between two values."""
    upper = low > 0
    a, b = np.where(upper, -high, low), np.where(upper, -low, high)
    return np.asarray(log_ndtr(b) + np.log1p(-np.exp(np.minimum(log_ndtr(a) - log_ndtr(b), -TINY))))
