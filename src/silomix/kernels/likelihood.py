"""Likelihood, expected counts and memberships of rows under many parameter draws.

`expected_counts` computes the sums over rows that the aggregation needs, `share_rows` the
membership of each row, averaged over draws.

For the sums, eight draws are handled together, one in each lane of a vector: the table of level
probabilities is (level, cluster, lane), so a row multiplies one contiguous stretch for each of its
cells. Masses are plain products; a draw in which one could have underflowed takes that row again,
rescaled. Lanes never mix and no sum depends on the number of threads, so neither do the results.

For memberships, scores are sums of logarithms, in memory for rows × clusters only, and equal rows
are one. A row starts from the score of the most common level of every variable and takes one step
for each cell that differs from it, which in sparse tables is a few steps instead of one for each
variable.

Their definitions in plain NumPy, in the tests, add in another order and agree up to rounding.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from silomix.kernels.arrays import Codes, Floats, Ints, Reals
from silomix.kernels.gibbs_sweep import SMALLEST
from silomix.kernels.layout import RowTable, level_columns
from silomix.kernels.reproducible import kernel, split_work
from silomix.kernels.vector_instructions import DOUBLE_LANES, exponentials

# draws handled together: a cache line of float64
LANES = 8
# factors are at most one: a product above this has not underflowed on its way
SMALLEST_MASS = 2.0**-900
# draws handled together for memberships: their steps stay in the second-level cache while the rows
# pass
TILE = 32
# rows in a block within which equal rows are detected: larger ones would copy long tables
BLOCK_ROWS = 2**14


class ExpectedCounts(NamedTuple):
    """Log-likelihood and expected counts of a table, draw by draw.

    Attributes
    ----------
    log_likelihood : (draw,), the labels summed out.
    members : (draw, cluster), expected rows by cluster.
    cells : (draw, cluster, level), expected cells; missing ones are not counted.
    """

    log_likelihood: Floats
    members: Floats
    cells: Floats


def expected_counts(
    weights: Floats, probabilities: Floats, rows: RowTable, threads: int = 1
) -> ExpectedCounts:
    """Log-likelihood of the rows, and expected counts under P(cluster | row, draw).

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
    if fused.min(initial=1.0) < SMALLEST_MASS:  # underflow before any row could be rescaled
        plain = rows._replace(columns=level_columns(rows.codes, rows.sizes), entries=None)
        return _count(weights, probabilities, plain, threads)
    counts = _count(weights, fused, rows, threads)
    return counts._replace(cells=unfuse_cells(counts.cells, rows.entries, probabilities.shape[2]))


def fuse_probabilities(probabilities: Floats, entries: tuple[NDArray[np.int32], ...]) -> Floats:
    """Product of each entry's levels: (draw, cluster, entry)."""
    ones = np.ones((*probabilities.shape[:2], 1))
    factors = np.concatenate([probabilities, ones], axis=2)  # a missing cell multiplies by one
    fused = []
    for levels in entries:
        product = factors[:, :, levels[:, 0]]
        for column in levels.T[1:]:
            product *= factors[:, :, column]
        fused.append(product)
    return np.concatenate(fused, axis=2)


def unfuse_cells(cells: Floats, entries: tuple[NDArray[np.int32], ...], levels: int) -> Floats:
    """Count of each level, from those of the entries that contain it: (draw, cluster, level)."""
    member = np.zeros((cells.shape[2], levels + 1))
    start = 0
    for group in entries:
        places = start + np.arange(len(group))
        member[places[:, None], group] = 1.0
        start += len(group)
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

    wide = (blocks, width), (blocks, levels + 1, width)
    inputs = shares.reshape(wide[0]), table.reshape(wide[1])
    sums = log_likelihood, members.reshape(wide[0]), cells.reshape(wide[1])

    def add(first: int, last: int) -> None:
        shares_of, table_of = (array[first:last] for array in inputs)
        part = ExpectedCounts(*(array[first:last] for array in sums))
        add_rows(rows.columns, rows.repeats, shares_of, table_of, part)

    split_work(blocks, threads, add)
    return ExpectedCounts(
        log_likelihood.reshape(-1)[:draws],
        members.transpose(0, 2, 1).reshape(-1, clusters)[:draws],
        cells[:, :levels].transpose(0, 3, 2, 1).reshape(-1, clusters, levels)[:draws],
    )


@kernel
def rescaled_row(
    columns: NDArray[np.int32], shares: Floats, table: Floats, lane: int, masses: Floats
) -> float:
    """Recompute one draw's masses of a row without underflow; return the log of their scale.

    Each cluster is multiplied by 2^512, which is exact, whenever it becomes small: one that is
    small after some cells may be the largest after all of them.

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
    columns: NDArray[np.int32], repeats: Floats, shares: Floats, table: Floats, sums: ExpectedCounts
) -> None:
    """Add every row to the counts of every block of draws.

    Parameters
    ----------
    columns : in, (row, variable), as in `level_columns`.
    repeats : in, (row,), how often each occurs.
    shares : in, (block, cluster · lane).
    table : in, (block, level + 1, cluster · lane).
    sums : in and out; log-likelihood (block, lane), members and cells as `shares` and `table`.
    """
    log_likelihood, members, cells = sums
    blocks, width = shares.shape
    rows, variables = columns.shape
    clusters = width // LANES
    masses = np.empty(width)
    totals = np.empty(LANES)
    least = np.empty(LANES)
    for block in range(blocks):
        start = shares[block]
        for row in range(rows):
            masses[:] = start
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
                counted = cells[block, columns[row, q]]
                for j in range(width):
                    counted[j] += masses[j]


class RowMembership(NamedTuple):
    """Membership and predictive density of each row, averaged over draws.

    Attributes
    ----------
    membership : (row, cluster), the mean over draws of P(cluster | row, draw).
    log_density : (row,), the logarithm of the mean over draws of p(row | draw).
    """

    membership: Floats
    log_density: Floats


class Steps(NamedTuple):
    """Level probabilities as scores, cut into tiles of draws; the last tile is padded with zeros.

    Attributes
    ----------
    common : (variable,), code of the level with the largest mean probability.
    first : (variable,), index of each variable's first step.
    start : (tile, cluster · TILE), score of a row of common levels.
    steps : (tile, code, cluster · TILE), change of the score for another code; a variable has
        K_q + 1 codes, the last for a missing cell.
    draws : number of draws, without the padding.
    """

    common: Ints
    first: Ints
    start: Floats
    steps: Floats
    draws: int


def share_rows(codes: Codes, steps: Steps, weights: Floats, threads: int) -> RowMembership:
    """Run the kernel on the distinct rows of each block; arguments as for `add_membership`."""
    out = RowMembership(np.empty((len(codes), weights.shape[1] // TILE)), np.empty(len(codes)))
    bytes_of_row = np.dtype((np.void, codes.shape[1] * codes.itemsize))

    def compute(first: int, last: int) -> None:
        for start in range(first, last, BLOCK_ROWS):
            part = slice(start, min(start + BLOCK_ROWS, last))
            block = np.ascontiguousarray(codes[part])
            whole = block.view(bytes_of_row)[:, 0]
            _, example, place = np.unique(whole, return_index=True, return_inverse=True)
            shares, logs = np.empty((len(example), out.membership.shape[1])), np.empty(len(example))
            add_membership(block[example], steps, weights, shares, logs)
            out.membership[part], out.log_density[part] = shares[place], logs[place]

    split_work(len(codes), threads, compute)
    return out


def make_steps(weights: Reals, probabilities: Reals, offsets: Ints) -> Steps:
    """Steps of the scores under these draws.

    The common levels depend on the draws alone, so that a row's result does not depend on others.

    Parameters
    ----------
    weights : (draw, cluster), by which the common levels are chosen.
    probabilities : (draw, cluster, level)
    offsets : (variable + 1,), where each variable's levels start.
    """
    draws, clusters, _ = probabilities.shape
    sizes = np.diff(offsets)
    share = np.einsum("tc,tcl->l", weights, probabilities, dtype=np.float64)
    common = np.array([share[slice(*ends)].argmax() for ends in pairwise(offsets)], dtype=np.int64)
    first = offsets[:-1] + np.arange(len(sizes))
    start = np.zeros((draws, clusters))
    steps = np.zeros((int(sizes.sum()) + len(sizes), draws, clusters))
    for variable, size in enumerate(sizes):
        levels = slice(offsets[variable], offsets[variable + 1])
        logs = log(probabilities[:, :, levels]).transpose(2, 0, 1)
        start += logs[common[variable]]
        steps[first[variable] : first[variable] + size] = logs
        steps[first[variable] : first[variable] + size + 1] -= logs[common[variable]]
    return Steps(common, first, in_tiles(start[None])[:, 0], in_tiles(steps), draws)


def log(values: Reals) -> Floats:
    """Logarithms of probabilities; those that a float32 rounded to zero are set to a small one."""
    return np.log(np.maximum(values.astype(np.float64), SMALLEST))


def log_weights(weights: Reals) -> Floats:
    """Logarithms of weights (draw, cluster) in tiles; −inf where a silo lacks a cluster.

    Returns
    -------
    (tile, cluster · TILE)
    """
    values = weights.astype(np.float64)
    logs = np.log(values, out=np.full(values.shape, -np.inf), where=values > 0)
    return in_tiles(logs[None])[:, 0]


def in_tiles(values: Floats) -> Floats:
    """Cut (code, draw, cluster) into (tile, code, cluster · TILE), zeros after the last draw."""
    codes, draws, clusters = values.shape
    tiles = -(-draws // TILE)
    padded = np.zeros((codes, tiles * TILE, clusters))
    padded[:, :draws] = values
    cut = padded.reshape(codes, tiles, TILE, clusters).transpose(1, 0, 3, 2)
    return np.ascontiguousarray(cut).reshape(tiles, codes, clusters * TILE)


@kernel
def add_membership(
    codes: Codes, steps: Steps, log_weights: Floats, membership: Floats, log_density: Floats
) -> None:
    """Mean over draws of each row's cluster probabilities, and its log predictive density.

    Parameters
    ----------
    codes : in, (row, variable), code K_q for a missing cell.
    steps : in, from `make_steps`.
    log_weights : in, (tile, cluster · TILE), of the rows' silo.
    membership : out, (row, cluster), the mean over draws of P(cluster | row, draw).
    log_density : out, (row,), the logarithm of the mean over draws of p(row | draw).
    """
    rows, variables = codes.shape
    clusters = membership.shape[1]
    scores = np.empty(clusters * TILE)
    top = np.empty(TILE)
    total = np.empty(TILE)
    highest = np.full(rows, -np.inf)
    density = np.zeros(rows)
    membership[:] = 0.0
    for tile in range(steps.start.shape[0]):
        draws = min(TILE, steps.draws - tile * TILE)
        start = steps.start[tile] + log_weights[tile]
        changes = steps.steps[tile]
        for row in range(rows):
            scores[:] = start
            for variable in range(variables):
                code = np.int64(codes[row, variable])
                if code != steps.common[variable]:
                    change = changes[steps.first[variable] + code]
                    for place in range(scores.size):
                        scores[place] += change[place]
            top[:] = scores[:TILE]
            for cluster in range(1, clusters):
                scores_of = scores[cluster * TILE : (cluster + 1) * TILE]
                for draw in range(TILE):
                    top[draw] = max(top[draw], scores_of[draw])
            total[:] = 0.0
            for cluster in range(clusters):
                scores_of = scores[cluster * TILE : (cluster + 1) * TILE]
                for draw in range(TILE):
                    scores_of[draw] -= top[draw]
                for lane in range(0, TILE, DOUBLE_LANES):
                    exponentials(scores_of, lane, 0.0, scores_of)
                for draw in range(TILE):
                    total[draw] += scores_of[draw]
            largest = highest[row]
            for draw in range(draws):
                largest = max(largest, top[draw])
            density[row] *= math.exp(highest[row] - largest)
            highest[row] = largest
            for lane in range(0, TILE, DOUBLE_LANES):
                exponentials(top, lane, largest, top)
            for draw in range(draws):
                density[row] += total[draw] * top[draw]
            for draw in range(TILE):
                total[draw] = 1.0 / total[draw]
            for cluster in range(clusters):
                scores_of = scores[cluster * TILE : (cluster + 1) * TILE]
                share = 0.0
                for draw in range(draws):
                    share += scores_of[draw] * total[draw]
                membership[row, cluster] += share
    for row in range(rows):
        log_density[row] = highest[row] + math.log(density[row] / steps.draws)
        membership[row] /= steps.draws
