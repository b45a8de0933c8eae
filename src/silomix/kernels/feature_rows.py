"""Rows as sufficient statistics: labels, expected sums and memberships for any exponential family.

A row is its features T(x), a missing cell zeros, and a cluster its natural parameters η: the log
density of the row is T(x) · η, up to what no cluster changes. Rows are scored a block at a time,
four of them and all clusters side by side, as vectors. Each score is a sum over the features in
their order, and sums over rows run in the order of the rows: no result depends on the number of
threads.
"""

from __future__ import annotations

import math

import numpy as np

from silomix.kernels.arrays import Array, Bytes, Floats
from silomix.kernels.compilation import kernel, split_work
from silomix.kernels.gibbs_sweep import LABELS, PARAMETERS, SMALLEST
from silomix.kernels.random_numbers import draw_gammas, fold_bits, uniform

# clusters are padded to whole vectors
LANES = 8
# rows scored together: their scores stay in the nearest cache
BLOCK = 64
# weight of a cluster that pads; and differences of logs below which a mass is nothing to a sum
NO_WEIGHT, NOTHING = -1e300, -45.0


def in_vectors(natural: Floats, log_weights: Floats) -> tuple[Floats, Floats]:
    """Pad the clusters to whole vectors.

    Parameters
    ----------
    natural : (..., feature, cluster); log_weights : (..., cluster)
    """
    clusters = log_weights.shape[-1]
    width = -(-clusters // LANES) * LANES
    wide = np.zeros((*natural.shape[:-1], width))
    wide[..., :clusters] = natural
    logs = np.full((*log_weights.shape[:-1], width), NO_WEIGHT)
    logs[..., :clusters] = log_weights
    return wide, logs


@kernel
def _score(
    features: Floats, first: int, last: int, natural: Floats, log_weights: Floats, scores: Floats
) -> None:
    """Write ln(weight) + T · η of rows first … last − 1 into `scores`, (row in block, cluster)."""
    width = log_weights.size
    for row in range(last - first):
        for cluster in range(width):
            scores[row, cluster] = log_weights[cluster]
    row = 0
    while row < last - first:
        if row + 4 <= last - first:
            a, b, c, d = scores[row], scores[row + 1], scores[row + 2], scores[row + 3]
            for feature in range(features.shape[1]):
                w = features[first + row, feature]
                x = features[first + row + 1, feature]
                y = features[first + row + 2, feature]
                z = features[first + row + 3, feature]
                for cluster in range(width):
                    value = natural[feature, cluster]
                    a[cluster] += w * value
                    b[cluster] += x * value
                    c[cluster] += y * value
                    d[cluster] += z * value
            row += 4
        else:
            for feature in range(features.shape[1]):
                w = features[first + row, feature]
                for cluster in range(width):
                    scores[row, cluster] += w * natural[feature, cluster]
            row += 1


@kernel
def _masses(scores: Floats, masses: Floats) -> tuple[float, float]:
    """Write exp(scores − largest) into `masses`, (cluster,); return their sum, and the largest."""
    largest = scores[0]
    for cluster in range(1, scores.size):
        largest = max(largest, scores[cluster])
    total = 0.0
    for cluster in range(scores.size):
        apart = scores[cluster] - largest
        masses[cluster] = math.exp(apart) if apart > NOTHING else 0.0
        total += masses[cluster]
    return total, largest


@kernel
def _draw_labels(
    key: np.uint64,
    features: Floats,
    natural: Floats,
    log_weights: Floats,
    labels: Bytes,
    members: Floats,
    statistics: Floats,
) -> float:
    width, clusters = log_weights.size, members.size
    scores, masses = np.empty((BLOCK, width)), np.empty(width)
    members[:] = 0.0
    statistics[:] = 0.0
    log_likelihood = 0.0
    for first in range(0, len(features), BLOCK):
        last = min(first + BLOCK, len(features))
        _score(features, first, last, natural, log_weights, scores)
        for row in range(first, last):
            total, largest = _masses(scores[row - first], masses)
            log_likelihood += largest + math.log(total)
            left = uniform(fold_bits(key, row)) * total
            chosen = 0
            while chosen < clusters - 1 and masses[chosen] <= left:
                left -= masses[chosen]
                chosen += 1
            labels[row] = chosen
            members[chosen] += 1.0
            for feature in range(features.shape[1]):
                statistics[chosen, feature] += features[row, feature]
    return log_likelihood


def draw_labels(
    key: np.uint64,
    features: Floats,
    natural: Floats,
    log_weights: Floats,
    labels: Bytes,
    members: Floats,
    statistics: Floats,
) -> float:
    """Draw each row's label given the parameters, and add up what the labels make of the rows.

    Parameters
    ----------
    key : row i draws from (key, i).
    features : (row, feature); natural : (feature, cluster); log_weights : (cluster,)
    labels : (row,); members : (cluster,); statistics : (cluster, feature), all of them out.

    Returns
    -------
    Σ ln Σ_c weight_c exp(T · η_c), the labels summed out.
    """
    wide = in_vectors(natural, log_weights)
    return _draw_labels(key, features, *wide, labels, members, statistics)


@kernel
def draw_chains(
    key: np.uint64,
    begin: int,
    end: int,
    features: Floats,
    natural: Floats,
    alpha: float,
    sweeps: int,
    weights: Floats,
    members: Floats,
    statistics: Floats,
    log_likelihood: Floats,
) -> None:
    """Draw labels of chains begin … end − 1 given their parameters, and their weights given those.

    As `silomix.kernels.gibbs_sweep.draw_given_parameters`, keys and all.

    Parameters
    ----------
    features : (row, feature); natural : (chain, feature, cluster in vectors)
    weights : (chain, cluster), in and out; members, statistics, log_likelihood : by chain, out.
    """
    clusters, labels = weights.shape[1], np.empty(len(features), dtype=np.uint8)
    logs, shares = np.full(natural.shape[2], NO_WEIGHT), np.empty(clusters)
    for chain in range(begin, end):
        for sweep in range(sweeps):
            below = fold_bits(fold_bits(key, chain), sweep)
            for cluster in range(clusters):
                logs[cluster] = math.log(max(weights[chain, cluster], SMALLEST))
            given = fold_bits(below, LABELS), features, natural[chain], logs
            found = _draw_labels(*given, labels, members[chain], statistics[chain])
            if sweep == 0:
                log_likelihood[chain] = found
            if alpha > 0.0:
                draw_gammas(fold_bits(below, PARAMETERS), members[chain] + alpha, shares)
                weights[chain] = shares / shares.sum()


@kernel
def sum_by_label(features: Floats, labels: Array, members: Floats, statistics: Floats) -> None:
    """Add up the rows of each label: members (cluster,) and statistics (cluster, feature), out."""
    members[:] = 0.0
    statistics[:] = 0.0
    for row in range(len(features)):
        members[labels[row]] += 1.0
        for feature in range(features.shape[1]):
            statistics[labels[row], feature] += features[row, feature]


@kernel
def _expect(
    features: Floats,
    natural: Floats,
    log_weights: Floats,
    begin: int,
    end: int,
    log_likelihood: Floats,
    members: Floats,
    statistics: Floats,
) -> None:
    width = log_weights.shape[1]
    scores, masses = np.empty((BLOCK, width)), np.empty(width)
    for draw in range(begin, end):
        for first in range(0, len(features), BLOCK):
            last = min(first + BLOCK, len(features))
            _score(features, first, last, natural[draw], log_weights[draw], scores)
            for row in range(first, last):
                total, largest = _masses(scores[row - first], masses)
                log_likelihood[draw] += largest + math.log(total)
                for cluster in range(members.shape[1]):
                    share = masses[cluster] / total
                    if share > 0.0:
                        members[draw, cluster] += share
                        for feature in range(features.shape[1]):
                            statistics[draw, cluster, feature] += share * features[row, feature]


def expected_sums(
    features: Floats, natural: Floats, log_weights: Floats, threads: int = 1
) -> tuple[Floats, Floats, Floats]:
    """Return the log-likelihood of the rows and what they are expected to add up to, by draw.

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

    def expect(begin: int, end: int) -> None:
        _expect(features, *wide, begin, end, *out)

    split_work(draws, threads, expect)
    return out


@kernel
def _share(
    features: Floats,
    natural: Floats,
    log_weights: Floats,
    begin: int,
    end: int,
    membership: Floats,
    log_density: Floats,
) -> None:
    draws, width = log_weights.shape
    scores, masses = np.empty((BLOCK, width)), np.empty(width)
    by_draw = np.empty((BLOCK, draws))
    for first in range(begin, end, BLOCK):
        last = min(first + BLOCK, end)
        for draw in range(draws):
            _score(features, first, last, natural[draw], log_weights[draw], scores)
            for row in range(first, last):
                total, largest = _masses(scores[row - first], masses)
                by_draw[row - first, draw] = largest + math.log(total)
                for cluster in range(membership.shape[1]):
                    membership[row, cluster] += masses[cluster] / (total * draws)
        for row in range(first, last):
            logs = by_draw[row - first]
            largest = logs.max()
            log_density[row] = largest + math.log(np.exp(logs - largest).mean())


def share_features(
    features: Floats, natural: Floats, log_weights: Floats, threads: int = 1
) -> tuple[Floats, Floats]:
    """Return what all draws together say of each row.

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

    def share(begin: int, end: int) -> None:
        _share(features, *wide, begin, end, *out)

    split_work(len(features), threads, share)
    return out
