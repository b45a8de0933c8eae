"""A table as its distinct rows, and in the form that the likelihood kernels read.

Rows of many variables are fused as for the sampler: neighbouring variables become one column over
the combinations that occur, so 94 conditions are about 24 columns. A combination's probability is
the product of its levels', and its expected count counts for each of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from silomix.kernels.arrays import Codes, Floats, Ints
from silomix.kernels.layout import fuse

# with at least this many variables, fusing columns saves time
FUSED_FROM = 24

# combinations in a column: with more, the table and its counts exceed the first-level cache
FUSED_CODES = 16


class RowCounts(NamedTuple):
    """Distinct rows: codes (row, variable), and how often each occurs, counts (row,)."""

    codes: Codes
    counts: Ints


class RowTable(NamedTuple):
    """Rows in the form that the kernel reads.

    Attributes
    ----------
    codes : (row, variable), code K_q for a missing cell; sizes : (variable,), K_q.
    repeats : (row,), how often each occurs.
    columns : (row, column), index of the factor in the probability table.
    entries : (entry, variable) for each column, the levels that an entry combines, D for a
        missing cell; None where the columns are the variables and the entries their levels.
    """

    codes: Codes
    sizes: Ints
    repeats: Floats
    columns: NDArray[np.int32]
    entries: tuple[NDArray[np.int32], ...] | None


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


def row_table(codes: Codes, counts: Ints, sizes: Ints) -> RowTable:
    """Rows in the form that the kernel reads, made once for many questions.

    Parameters
    ----------
    codes : (row, variable), code K_q for a missing cell.
    counts : (row,), how often each row occurs.
    sizes : (variable,), K_q.
    """
    repeats = counts.astype(np.float64)
    if len(sizes) < FUSED_FROM or len(codes) == 0:
        return RowTable(codes, sizes, repeats, level_columns(codes, sizes), None)
    groups = fuse(np.ascontiguousarray(codes.T), sizes, FUSED_CODES)
    columns = np.empty((len(codes), len(groups)), dtype=np.int32)
    entries, first_entry, variable = [], 0, 0
    for place, group in enumerate(groups):
        columns[:, place] = group[-1].code + first_entry
        example = np.empty(len(group[-1].level), dtype=np.int64)
        example[group[-1].code] = np.arange(len(codes))  # some row that has the combination
        end = variable + len(group)
        entries.append(level_columns(codes[example], sizes)[:, variable:end])
        first_entry, variable = first_entry + len(example), end
    return RowTable(codes, sizes, repeats, columns, tuple(entries))


def level_columns(codes: Codes, sizes: Ints) -> NDArray[np.int32]:
    """Level column of each cell, D for a missing one: (row, variable)."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = codes.astype(np.int32) + offsets[:-1].astype(np.int32)
    columns[codes == sizes] = offsets[-1]
    return columns
