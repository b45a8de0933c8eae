"""Short names of array types, whose axes docstrings give; groups, and distinct rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
# kept draws; and either these or what is computed from them
Singles = NDArray[np.float32]
Reals = NDArray[np.floating]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# labels of rows, and bits; a table's cells, of as few bytes as its levels need
Bytes = NDArray[np.uint8]
Codes = NDArray[np.unsignedinteger]
Rng = np.random.Generator


def sum_by(groups: Ints, values: Reals, n_groups: int) -> Floats:
    """Add up values, (item, ...), by the group of each item, (item,): (group, ...)."""
    total = np.zeros((n_groups, *values.shape[1:]))
    np.add.at(total, groups, values)
    return total


def by_appearance(ids: Ints) -> Ints:
    """Ids numbered anew, 0, 1, …, in the order in which they first appear."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


class RowCounts(NamedTuple):
    """Distinct rows: codes (row, variable), and how often each occurs, counts (row,)."""

    codes: Codes
    counts: Ints


def distinct_rows(codes: Codes, counts: Ints | None = None) -> RowCounts:
    """Distinct rows, in the order of their codes, with their frequencies.

    Parameters
    ----------
    codes : (row, variable)
    counts : (row,), frequency of each row; 1 by default.
    """
    # as bytes, the highest first, rows sort as their codes do
    ordered = np.ascontiguousarray(codes, codes.dtype.newbyteorder(">"))
    rows = ordered.view(np.dtype((np.void, ordered.itemsize * codes.shape[1]))).ravel()
    _, example, inverse = np.unique(rows, return_index=True, return_inverse=True)
    totals = np.bincount(inverse, counts, len(example))
    return RowCounts(codes[example], totals.astype(np.int64))
