"""P(cluster | row), averaged over draws: one pass, memory for rows × clusters only.

Scores are sums of logarithms, so that no number of variables underflows. A row starts from the
score of the most common level of every variable and takes one step for each cell that differs
from it, which in sparse tables is a few steps instead of one for each variable.

The definition in plain NumPy, in the tests, adds up in another order: they agree to rounding.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.kernels.compilation import kernel
from silomix.kernels.gibbs_sweep import SMALLEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints

# draws handled together: their steps stay in the second-level cache while the rows pass
TILE = 32
# rows that one thread takes at a time
BLOCK = 256


class RowMembership(NamedTuple):
    """What the draws say of each row.

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
    common : (variable,), the code of the level that is most probable over all draws and clusters.
    first : (variable,), where the steps of each variable's codes start.
    start : (tile, cluster · TILE), the score of a row of common levels.
    steps : (tile, code, cluster · TILE), what another code changes; a variable has K_q + 1
        codes, the last for a missing cell.
    draws : how many there are, the padding not counted.
    """

    common: Ints
    first: Ints
    start: Floats
    steps: Floats
    draws: int


def share_rows(
    codes: NDArray[np.unsignedinteger], steps: Steps, weights: Floats, threads: int
) -> RowMembership:
    """Run the kernel on blocks of rows, side by side; arguments as for `add_membership`."""
    found = RowMembership(np.empty((len(codes), weights.shape[1] // TILE)), np.empty(len(codes)))

    def compute(first: int) -> None:
        some = slice(first, first + BLOCK)
        add_membership(codes[some], steps, weights, found.membership[some], found.log_density[some])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compute, range(0, len(codes), BLOCK)))
    return found


def make_steps(
    weights: NDArray[np.floating], probabilities: NDArray[np.floating], offsets: Ints
) -> Steps:
    """Return the steps of these draws.

    The common levels depend on the draws alone: what a row gets does not depend on other rows.

    Parameters
    ----------
    weights : (draw, cluster), to tell which levels are common.
    probabilities : (draw, cluster, level)
    offsets : (variable + 1,), where each variable's levels start.
    """
    draws, clusters, _ = probabilities.shape
    sizes = np.diff(offsets)
    share = np.einsum("tc,tcl->l", weights, probabilities, dtype=np.float64)
    common = np.array(
        [share[first:last].argmax() for first, last in pairwise(offsets)], dtype=np.int64
    )
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


def log(values: NDArray[np.floating]) -> Floats:
    """Return logarithms of probabilities; one that a float32 rounded to zero is a small one."""
    return np.log(np.maximum(values.astype(np.float64), SMALLEST))


def log_weights(weights: NDArray[np.floating]) -> Floats:
    """Return logarithms of weights (draw, cluster) in tiles; a silo may lack a cluster: −inf.

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
    codes: NDArray[np.unsignedinteger],
    steps: Steps,
    log_weights: Floats,
    membership: Floats,
    log_density: Floats,
) -> None:
    """Compute each row's cluster probabilities and log predictive density, over all draws.

    Parameters
    ----------
    codes : in, (row, variable), code K_q for a missing cell.
    steps : in, as `make_steps` returns them.
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
                mine = scores[cluster * TILE : (cluster + 1) * TILE]
                for draw in range(TILE):
                    top[draw] = max(top[draw], mine[draw])
            total[:] = 0.0
            for cluster in range(clusters):
                mine = scores[cluster * TILE : (cluster + 1) * TILE]
                for draw in range(draws):
                    mass = math.exp(mine[draw] - top[draw])
                    mine[draw] = mass
                    total[draw] += mass
            for cluster in range(clusters):
                mine = scores[cluster * TILE : (cluster + 1) * TILE]
                share = 0.0
                for draw in range(draws):
                    share += mine[draw] / total[draw]
                membership[row, cluster] += share
            for draw in range(draws):
                if top[draw] > highest[row]:
                    density[row] *= math.exp(highest[row] - top[draw])
                    highest[row] = top[draw]
                density[row] += total[draw] * math.exp(top[draw] - highest[row])
    for row in range(rows):
        log_density[row] = highest[row] + math.log(density[row] / steps.draws)
        for cluster in range(clusters):
            membership[row, cluster] /= steps.draws
