"""Columns of the variables of a block, one after the other in flat arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.families.likelihood import Likelihood
    from silomix.kernels.arrays import Array, Floats, Ints, Rng

# of a parameter that must be above zero: draws kept in float32 may be exactly zero
SMALLEST = 1e-30


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


def lacks(family: Likelihood, method: str) -> NotImplementedError:
    """Return the error of a method that a family need not have."""
    names = ", ".join(variable.name for variable in family.variables)
    return NotImplementedError(f"{type(family).__name__}, of {names}, has no {method}")
