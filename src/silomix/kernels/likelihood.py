"""Log-likelihood and expected counts of a table under many parameter draws at once.

Eight draws are handled together, one in each lane of a vector: the table of level probabilities is
(level, cluster, lane), so a row multiplies one contiguous stretch for each of its cells. Masses are
plain products; a draw in which one could have underflowed takes that row again, rescaled. Lanes
never mix and no sum depends on the number of threads, so neither do the results.

Rows of many variables are first fused as for the sampler: neighbouring variables become one column
over the combinations that occur, so 94 conditions are about 24 columns. A combination's
probability is the product of its levels', and its expected count counts for each of them.

The definition in plain NumPy, in the tests, adds up in another order: they agree to rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.kernels.compilation import kernel, split_work
from silomix.kernels.layout import columns_of, fuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints

# draws handled together: a cache line of float64
LANES = 8

# variables from which fusing the columns is worth its bookkeeping
FUSED_FROM = 24

# combinations in a column: with more, the table and its counts leave the nearest cache
FUSED_CODES = 16

# factors are at most one: a product above this has met no underflow on its way
SMALLEST_MASS = 2.0**-900


class RowCounts(NamedTuple):
    """Distinct rows: codes (row, variable), and how often each occurs, counts (row,)."""

    codes: NDArray[np.unsignedinteger]
    counts: Ints


class RowTable(NamedTuple):
    """Rows as the kernel reads them.

    Attributes
    ----------
    codes : (row, variable), code K_q for a missing cell; sizes : (variable,), K_q.
    repeats : (row,), how often each occurs.
    columns : (row, column), the entry of the probability table that each multiplies by.
    entries : (entry, variable) for each column, the levels an entry stands for, D for a missing
        cell; None where the columns are the variables and the entries their levels.
    """

    codes: NDArray[np.unsignedinteger]
    sizes: Ints
    repeats: Floats
    columns: NDArray[np.int32]
    entries: tuple[NDArray[np.int32], ...] | None


class ExpectedCounts(NamedTuple):
    """A table's log-likelihood and what its rows are expected to add up to, draw by draw.

    Attributes
    ----------
    log_likelihood : (draw,), the labels summed out.
    members : (draw, cluster), expected rows by cluster.
    cells : (draw, cluster, level), expected cells; missing ones count nowhere.
    """

    log_likelihood: Floats
    members: Floats
    cells: Floats


def distinct_rows(codes: NDArray[np.unsignedinteger], counts: Ints | None = None) -> RowCounts:
    """Return the distinct rows, in the order of their codes, and how often each occurs.

    Parameters
    ----------
    codes : (row, variable)
    counts : (row,), how often each row stands for itself; once when left out.
    """
    if len(codes) == 0:
        return RowCounts(codes, np.zeros(0, dtype=np.int64))
    words = _pack(codes)
    order = np.lexsort(words[::-1])
    new = np.zeros(len(codes), dtype=bool)
    new[0] = True
    for word in words:
        in_order = word[order]
        new[1:] |= in_order[1:] != in_order[:-1]
    repeats = np.ones(len(codes), dtype=np.int64) if counts is None else counts
    totals = np.add.reduceat(repeats[order], np.flatnonzero(new))
    return RowCounts(codes[order[new]], totals.astype(np.int64))


def _pack(codes: NDArray[np.unsignedinteger]) -> list[NDArray[np.uint32]]:
    """Write each row as few numbers that sort as its codes do: (row,) for each.

    Sixteen bits are sorted in linear time, more are not.
    """
    words: list[NDArray[np.uint32]] = []
    span = 1
    for column in columns_of(codes):
        base = int(column.max()) + 1
        span *= base
        if not words or span > 2**16:
            words.append(column.astype(np.uint32))
            span = base
        else:
            words[-1] = words[-1] * np.uint32(base) + column
    return [word.astype(np.uint16) if word.max() < 2**16 else word for word in words]


def row_table(codes: NDArray[np.unsignedinteger], counts: Ints, sizes: Ints) -> RowTable:
    """Return the rows in the form that the kernel reads, to be made once for many questions.

    Parameters
    ----------
    codes : (row, variable), code K_q for a missing cell.
    counts : (row,), how often each row occurs.
    sizes : (variable,), K_q.
    """
    repeats = counts.astype(np.float64)
    if len(sizes) < FUSED_FROM or len(codes) == 0:
        return RowTable(codes, sizes, repeats, level_columns(codes, sizes), None)
    groups = fuse(columns_of(codes), sizes, FUSED_CODES)
    columns = np.empty((len(codes), len(groups)), dtype=np.int32)
    entries, first, variable = [], 0, 0
    for place, group in enumerate(groups):
        columns[:, place] = group[-1].code + first
        example = np.empty(len(group[-1].level), dtype=np.int64)
        example[group[-1].code] = np.arange(len(codes))  # some row that has the combination
        last = variable + len(group)
        entries.append(level_columns(codes[example], sizes)[:, variable:last])
        first, variable = first + len(example), last
    return RowTable(codes, sizes, repeats, columns, tuple(entries))


def expected_counts(
    weights: Floats, probabilities: Floats, rows: RowTable, threads: int = 1
) -> ExpectedCounts:
    """Return log p(rows | draw) and the expected counts under P(cluster | row, draw).

    The cost is proportional to draws × rows × clusters × columns.

    Parameters
    ----------
    weights : (draw, cluster), positive.
    probabilities : (draw, cluster, level), positive, at most one.
    threads : each takes some of the draws; the results do not depend on it.
    """
    if rows.entries is None:
        return _count(weights, probabilities, rows, threads)
    fused = fuse_probabilities(probabilities, rows.entries)
    if fused.min(initial=1.0) < SMALLEST_MASS:  # here rescaling a row would come too late
        plain = rows._replace(columns=level_columns(rows.codes, rows.sizes), entries=None)
        return _count(weights, probabilities, plain, threads)
    found = _count(weights, fused, rows, threads)
    return found._replace(cells=unfuse_cells(found.cells, rows.entries, probabilities.shape[2]))


def fuse_probabilities(probabilities: Floats, entries: tuple[NDArray[np.int32], ...]) -> Floats:
    """Return the product of each entry's levels: (draw, cluster, entry)."""
    ones = np.ones((*probabilities.shape[:2], 1))
    known = np.concatenate([probabilities, ones], axis=2)  # a missing cell multiplies by one
    fused = []
    for levels in entries:
        product = known[:, :, levels[:, 0]]
        for column in levels.T[1:]:
            product *= known[:, :, column]
        fused.append(product)
    return np.concatenate(fused, axis=2)


def unfuse_cells(cells: Floats, entries: tuple[NDArray[np.int32], ...], levels: int) -> Floats:
    """Count each entry's cells for all its levels: (draw, cluster, level)."""
    member = np.zeros((cells.shape[2], levels + 1))
    first = 0
    for group in entries:
        places = first + np.arange(len(group))
        member[places[:, None], group] = 1.0
        first += len(group)
    return cells @ member[:, :levels]


def _count(weights: Floats, probabilities: Floats, rows: RowTable, threads: int) -> ExpectedCounts:
    draws, clusters = weights.shape
    levels = probabilities.shape[2]
    blocks, width = -(-draws // LANES), clusters * LANES
    lanes = np.minimum(np.arange(blocks * LANES), draws - 1).reshape(blocks, LANES)
    shares = np.ascontiguousarray(weights[lanes].transpose(0, 2, 1), dtype=np.float64)
    # a missing cell multiplies by the row of ones after the last level
    table = np.ones((blocks, levels + 1, clusters, LANES))
    table[:, :levels] = probabilities[lanes].transpose(0, 3, 2, 1)
    log_likelihood = np.zeros((blocks, LANES))
    members = np.zeros_like(shares)
    cells = np.zeros_like(table)

    def add(first: int, last: int) -> None:
        add_rows(
            rows.columns,
            rows.repeats,
            shares[first:last].reshape(last - first, width),
            table[first:last].reshape(last - first, levels + 1, width),
            log_likelihood[first:last],
            members[first:last].reshape(last - first, width),
            cells[first:last].reshape(last - first, levels + 1, width),
        )

    split_work(blocks, threads, add)
    return ExpectedCounts(
        log_likelihood.reshape(-1)[:draws],
        members.transpose(0, 2, 1).reshape(-1, clusters)[:draws],
        cells[:, :levels].transpose(0, 3, 2, 1).reshape(-1, clusters, levels)[:draws],
    )


def level_columns(codes: NDArray[np.unsignedinteger], sizes: Ints) -> NDArray[np.int32]:
    """Return the level column of each cell, D for a missing one: (row, variable)."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = codes.astype(np.int32) + offsets[:-1].astype(np.int32)
    columns[codes == sizes] = offsets[-1]
    return columns


@kernel
def rescaled_row(
    columns: NDArray[np.int32], shares: Floats, table: Floats, lane: int, masses: Floats
) -> float:
    """Write one draw's masses of a row again, without underflow; return the log of their scale.

    Each cluster is multiplied by 2^512, which is exact, whenever it becomes small: one that is
    far behind after some cells may be ahead after all of them.

    Parameters
    ----------
    columns : in, (variable,).
    shares : in, (cluster · lane).
    table : in, (level + 1, cluster · lane).
    masses : in and out, (cluster · lane).
    """
    exponents = np.zeros(masses.size, dtype=np.int64)
    largest = -(2**62)
    for j in range(lane, masses.size, LANES):
        mass = shares[j]
        for q in range(columns.size):
            mass *= table[columns[q], j]
            if mass < 2.0**-512:
                mass *= 2.0**512
                exponents[j] -= 512
        masses[j] = mass
        largest = max(largest, exponents[j])
    for j in range(lane, masses.size, LANES):
        masses[j] = math.ldexp(masses[j], exponents[j] - largest)
    return largest * math.log(2.0)


@kernel
def add_rows(
    columns: NDArray[np.int32],
    repeats: Floats,
    shares: Floats,
    table: Floats,
    log_likelihood: Floats,
    members: Floats,
    cells: Floats,
) -> None:
    """Add every row to the counts of every block of draws.

    Parameters
    ----------
    columns : in, (row, variable), as in `level_columns`.
    repeats : in, (row,), how often each occurs.
    shares : in, (block, cluster · lane).
    table : in, (block, level + 1, cluster · lane).
    log_likelihood : in and out, (block, lane).
    members, cells : in and out, as `shares` and `table`.
    """
    blocks, width = shares.shape
    rows, variables = columns.shape
    clusters = width // LANES
    masses = np.empty(width)
    totals = np.empty(LANES)
    least = np.empty(LANES)
    for block in range(blocks):
        start = shares[block]
        for row in range(rows):
            for j in range(width):
                masses[j] = start[j]
            for q in range(variables):
                factors = table[block, columns[row, q]]
                for j in range(width):
                    masses[j] *= factors[j]
            for lane in range(LANES):
                totals[lane] = masses[lane]
                least[lane] = masses[lane]
            for c in range(1, clusters):
                for lane in range(LANES):
                    mass = masses[c * LANES + lane]
                    totals[lane] += mass
                    least[lane] = min(least[lane], mass)
            for lane in range(LANES):
                shift = 0.0
                if least[lane] < SMALLEST_MASS:
                    shift = rescaled_row(columns[row], start, table[block], lane, masses)
                    totals[lane] = 0.0
                    for c in range(clusters):
                        totals[lane] += masses[c * LANES + lane]
                log_likelihood[block, lane] += repeats[row] * (math.log(totals[lane]) + shift)
                totals[lane] = repeats[row] / totals[lane]
            for c in range(clusters):
                for lane in range(LANES):
                    masses[c * LANES + lane] *= totals[lane]
            expected = members[block]
            for j in range(width):
                expected[j] += masses[j]
            for q in range(variables):
                sums = cells[block, columns[row, q]]
                for j in range(width):
                    sums[j] += masses[j]
