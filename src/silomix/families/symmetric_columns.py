"""Symmetric matrices as the columns of a block of variables, and batches of them.

A variable has some columns of its own, then its entry of the diagonal, then those with the
variables before it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from silomix.kernels.arrays import Array, Floats, Ints

# of an eigenvalue
SMALLEST = 1e-12


@lru_cache(maxsize=64)
def _places(heads: int, variables: int) -> tuple[Ints, Ints]:
    """Return where each variable's columns start, and where each entry of the matrix is.

    A variable has `heads` columns, its entry of the diagonal, and those with the variables before.
    """
    each = np.arange(variables)
    starts = np.cumsum([0, *(heads + 1 + each)])[:-1]
    row, column = np.maximum.outer(each, each), np.minimum.outer(each, each)
    return starts, starts[row] + heads + np.where(row == column, 0, 1 + column)


def unpack(columns: Array, heads: int, variables: int) -> tuple[Floats, ...]:
    """Return each head, (..., variable), and the symmetric matrix: (..., variable, variable)."""
    starts, entries = _places(heads, variables)
    found = np.asarray(columns, dtype=np.float64)
    return *(found[..., starts + head] for head in range(heads)), found[..., entries]


def pack(*parts: Floats) -> Floats:
    """Return the columns of heads and a symmetric matrix."""
    *heads, matrix = parts
    variables = matrix.shape[-1]
    starts, entries = _places(len(heads), variables)
    shape = np.broadcast_shapes(matrix.shape[:-2], *(head.shape[:-1] for head in heads))
    columns = np.empty((*shape, int(entries.max()) + 1))
    for place, head in enumerate(heads):
        columns[..., starts + place] = head
    columns[..., entries] = matrix
    return columns


def outer(x: Floats) -> Floats:
    """Return x xᵀ: (..., variable, variable)."""
    return x[..., :, None] * x[..., None, :]


def log_det(matrix: Floats) -> Floats:
    """Return the log of the determinant: (...,)."""
    return np.asarray(np.linalg.slogdet(matrix)[1])


def inverse(matrix: Floats) -> Floats:
    """Return the inverse."""
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def quadratic(matrix: Floats, x: Floats) -> Floats:
    """Return xᵀ M x: (...,)."""
    return np.asarray(np.einsum("...i,...ij,...j->...", x, matrix, x))


def with_diagonal(matrix: Floats, diagonal: Floats) -> Floats:
    """Return a matrix with another diagonal."""
    size = matrix.shape[-1]
    return np.where(np.eye(size, dtype=bool), diagonal[..., None], matrix)


@lru_cache(maxsize=64)
def halves(size: int) -> Floats:
    """Return what an entry of a symmetric matrix counts, its mirror image being left out."""
    return np.where(np.eye(size, dtype=bool), 0.5, 1.0)


def positive(matrix: Floats) -> Floats:
    """Return the nearest matrix that is positive definite, rounding being what it is."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + np.swapaxes(matrix, -1, -2)))
    least = SMALLEST + 1e-9 * np.abs(values).max(axis=-1, keepdims=True)
    if (values >= least).all():
        return matrix
    raised = np.maximum(values, least)
    return np.asarray((vectors * raised[..., None, :]) @ np.swapaxes(vectors, -1, -2))
