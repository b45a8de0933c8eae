"""Rows as sufficient statistics: labels, expected sums, memberships for exponential families.

A row is its features T(x), a missing cell zeros, and a cluster its natural parameters η: the log
density of the row is T(x) · η, up to a term that is the same for all clusters. Four rows are scored
together, with eight clusters side by side in a vector. Each score is a sum over the features in
their order, and sums over rows run in the order of the rows: no result depends on the number of
threads.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from silomix.kernels.arrays import Array, Bytes, Floats
from silomix.kernels.gibbs_sweep import LABELS, PARAMETERS, SMALLEST
from silomix.kernels.reproducible import draw_gammas, fold_bits, kernel, split_work, uniform
from silomix.kernels.vector_instructions import DOUBLE_LANES, add_products, exponentials

# labels and sums by label: labels, (row,); members, (cluster,); statistics, (cluster, feature)
Labelled = tuple[Bytes, Floats, Floats]
# and by draw: log-likelihood, (draw,); members, (draw, cluster); statistics
ByDraw = tuple[Floats, Floats, Floats]
# membership, (row, cluster), and log density, (row,)
ByRow = tuple[Floats, Floats]
# room for scores, masses and totals of the rows that are weighed together, see `_weigh`
Room = tuple[Floats, Floats, Floats]
# how chains are sampled: key, concentration of the weights, sweeps
Job = tuple[np.uint64, float, int]

# rows scored together, whose sums fit the registers; and remaining rows, one by one
ROWS = 4
TOGETHER, ALONE = (0,) * ROWS, (0,)
# log weight of a padding cluster
NO_WEIGHT = -1e300


def in_vectors(natural: Floats, log_weights: Floats) -> tuple[Floats, Floats]:
    """Pad the clusters to whole vectors.

    Parameters
    ----------
    natural : (..., feature, cluster); log_weights : (..., cluster)
    """
    clusters = log_weights.shape[-1]
    width = -(-clusters // DOUBLE_LANES) * DOUBLE_LANES
    wide = np.zeros((*natural.shape[:-1], width))
    wide[..., :clusters] = natural
    logs = np.full((*log_weights.shape[:-1], width), NO_WEIGHT)
    logs[..., :clusters] = log_weights
    return wide, logs


@kernel
def _make_room(width: int) -> Room:
    return np.empty((ROWS, width)), np.empty((ROWS, width)), np.empty((ROWS, 2))


@kernel
def _weigh(features: Floats, first: int, natural: Floats, log_weights: Floats, room: Room) -> int:
    """Score the clusters for the next rows from `first` on; return how many rows: `ROWS` at most.

    Written into `room`, (row, …) each, are the scores ln(weight) + T · η by cluster; the masses,
    their exponentials but for a factor; and the sum of those, and ln of the whole sum.
    """
    scores, masses, totals = room
    rows, width = min(ROWS, len(features) - first), log_weights.size
    for lane in range(0, width, DOUBLE_LANES):
        if rows == ROWS:
            add_products(features, first, natural, log_weights, lane, scores, TOGETHER)
        else:
            for row in range(rows):
                scores_of = scores[row:]
                add_products(features, first + row, natural, log_weights, lane, scores_of, ALONE)
    for row in range(rows):
        largest = scores[row, 0]
        for cluster in range(1, width):
            largest = max(largest, scores[row, cluster])
        for lane in range(0, width, DOUBLE_LANES):
            exponentials(scores, row * width + lane, largest, masses)
        total = 0.0
        for cluster in range(width):
            total += masses[row, cluster]
        totals[row, 0], totals[row, 1] = total, largest + math.log(total)
    return rows


@kernel
def draw_labels(
    key: np.uint64, features: Floats, natural: Floats, log_weights: Floats, out: Labelled
) -> float:
    """Draw each row's label given the parameters, and sum the rows by label.

    Parameters
    ----------
    key : row i draws from (key, i).
    features : (row, feature)
    natural, log_weights : (feature, cluster) and (cluster,), `in_vectors`.
    out : overwritten.

    Returns
    -------
    Σ ln Σ_c weight_c exp(T · η_c), the labels summed out.
    """
    labels, members, statistics = out
    clusters, room = members.size, _make_room(log_weights.size)
    _, masses, totals = room
    members[:] = 0.0
    statistics[:] = 0.0
    log_likelihood = 0.0
    for first in range(0, len(features), ROWS):
        rows = _weigh(features, first, natural, log_weights, room)
        for place in range(rows):
            row = first + place
            log_likelihood += totals[place, 1]
            remaining = uniform(fold_bits(key, row)) * totals[place, 0]
            chosen = 0
            while chosen < clusters - 1 and masses[place, chosen] <= remaining:
                remaining -= masses[place, chosen]
                chosen += 1
            labels[row] = chosen
            members[chosen] += 1.0
            for feature in range(features.shape[1]):
                statistics[chosen, feature] += features[row, feature]
    return log_likelihood


@kernel
def draw_chains(
    features: Floats, natural: Floats, job: Job, weights: Floats, out: ByDraw, begin: int, end: int
) -> None:
    """Draw labels of chains begin … end − 1 given parameters, and weights given labels.

    As `silomix.kernels.gibbs_sweep.draw_given_parameters`, with the same keys.

    Parameters
    ----------
    features : (row, feature); natural : (chain, feature, cluster in vectors)
    job : key, alpha and sweeps.
    weights : (chain, cluster), in and out; out : by chain.
    """
    (key, alpha, sweeps), (log_likelihood, members, statistics) = job, out
    clusters, labels = weights.shape[1], np.empty(len(features), dtype=np.uint8)
    logs, shares = np.full(natural.shape[2], NO_WEIGHT), np.empty(clusters)
    for chain in range(begin, end):
        for sweep in range(sweeps):
            below = fold_bits(fold_bits(key, chain), sweep)
            for cluster in range(clusters):
                logs[cluster] = math.log(max(weights[chain, cluster], SMALLEST))
            sums = labels, members[chain], statistics[chain]
            value = draw_labels(fold_bits(below, LABELS), features, natural[chain], logs, sums)
            if sweep == 0:
                log_likelihood[chain] = value
            if alpha > 0.0:
                draw_gammas(fold_bits(below, PARAMETERS), members[chain] + alpha, shares)
                weights[chain] = shares / shares.sum()


@kernel
def add_by_label(features: Floats, labels: Array, members: Floats, statistics: Floats) -> None:
    """Sum the rows of each label: members (cluster,), statistics (cluster, feature), in, out."""
    for row in range(len(features)):
        members[labels[row]] += 1.0
        for feature in range(features.shape[1]):
            statistics[labels[row], feature] += features[row, feature]


@kernel
def _expect(
    features: Floats, natural: Floats, log_weights: Floats, out: ByDraw, begin: int, end: int
) -> None:
    log_likelihood, members, statistics = out
    room = _make_room(log_weights.shape[1])
    _, masses, totals = room
    for draw in range(begin, end):
        for first in range(0, len(features), ROWS):
            for place in range(_weigh(features, first, natural[draw], log_weights[draw], room)):
                row = features[first + place]
                log_likelihood[draw] += totals[place, 1]
                for cluster in range(members.shape[1]):
                    share = masses[place, cluster] / totals[place, 0]
                    if share > 0.0:
                        members[draw, cluster] += share
                        for feature in range(row.size):
                            statistics[draw, cluster, feature] += share * row[feature]


def expected_sums(
    features: Floats, natural: Floats, log_weights: Floats, threads: int = 1
) -> tuple[Floats, Floats, Floats]:
    """Log-likelihood and expected sufficient statistics of the rows, by draw.

    Parameters
    ----------
    features : (row, feature); natural : (draw, feature, cluster); log_weights : (draw, cluster)
    threads : each takes some of the draws; the results do not depend on it.

    Returns
    -------
    log_likelihood : (draw,); members : (draw, cluster); statistics : (draw, cluster, feature)
    """
    draws, clusters = log_weights.shape
    out = np.zeros(draws), np.zeros((draws, clusters)), np.zeros((draws, clusters, len(natural[0])))
    wide = in_vectors(natural, log_weights)
    split_work(draws, threads, partial(_expect, features, *wide, out))
    return out


@kernel
def _share(
    features: Floats, natural: Floats, log_weights: Floats, out: ByRow, begin: int, end: int
) -> None:
    membership, log_density = out
    draws, width = log_weights.shape
    room = _make_room(width)
    _, masses, totals = room
    by_draw, upto = np.empty((ROWS, draws)), features[:end]
    for first in range(begin, end, ROWS):
        rows = min(ROWS, end - first)
        for draw in range(draws):
            _weigh(upto, first, natural[draw], log_weights[draw], room)
            for place in range(rows):
                by_draw[place, draw] = totals[place, 1]
                for cluster in range(membership.shape[1]):
                    share = masses[place, cluster] / (totals[place, 0] * draws)
                    membership[first + place, cluster] += share
        for place in range(rows):
            largest = by_draw[place].max()
            mean = np.exp(by_draw[place] - largest).mean()
            log_density[first + place] = largest + math.log(mean)


def share_features(
    features: Floats, natural: Floats, log_weights: Floats, threads: int = 1
) -> tuple[Floats, Floats]:
    """Membership and predictive density of each row, averaged over draws.

    Parameters
    ----------
    features : (row, feature); natural : (draw, feature, cluster); log_weights : (draw, cluster)
    threads : each takes some of the rows; the results do not depend on it.

    Returns
    -------
    membership : (row, cluster), the mean over draws of P(cluster | row).
    log_density : (row,), ln of the mean over draws of Σ_c weight_c exp(T · η_c).
    """
    out = np.zeros((len(features), log_weights.shape[1])), np.zeros(len(features))
    wide = in_vectors(natural, log_weights)
    split_work(len(features), threads, partial(_share, features, *wide, out))
    return out
