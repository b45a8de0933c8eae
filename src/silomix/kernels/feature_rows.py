"""Rows as sufficient statistics: labels, expected sums and memberships for any exponential family.

A row is its features T(x), a missing cell zeros, and a cluster its natural parameters η: the log
density of the row is T(x) · η, up to what no cluster changes. Rows are taken one by one and
clusters side by side, so a row costs one vector operation for each feature that is not zero. Sums
run over the rows in their order: no result depends on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from silomix.kernels.arrays import Array, Bytes, Floats
from silomix.kernels.compilation import kernel, split_work
from silomix.kernels.random_numbers import fold_bits, uniform


@kernel
def _score(features: Floats, natural: Floats, log_weights: Floats, scores: Floats) -> float:
    """Write ln(weight) + T · η of one row into `scores`, (cluster,); return the largest.

    natural : (feature, cluster)
    """
    scores[:] = log_weights
    for feature in range(features.size):
        value = features[feature]
        if value != 0.0:
            for cluster in range(scores.size):
                scores[cluster] += value * natural[feature, cluster]
    return scores.max()


@kernel
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
    clusters = log_weights.size
    scores, prefix = np.empty(clusters), np.empty(clusters)
    members[:] = 0.0
    statistics[:] = 0.0
    log_likelihood = 0.0
    for row in range(len(features)):
        largest = _score(features[row], natural, log_weights, scores)
        total = 0.0
        for cluster in range(clusters):
            total += math.exp(scores[cluster] - largest)
            prefix[cluster] = total
        log_likelihood += largest + math.log(total)
        target = uniform(fold_bits(key, row)) * total
        chosen = 0
        while chosen < clusters - 1 and prefix[chosen] <= target:
            chosen += 1
        labels[row] = chosen
        members[chosen] += 1.0
        for feature in range(features.shape[1]):
            statistics[chosen, feature] += features[row, feature]
    return log_likelihood


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
    first: int,
    last: int,
    log_likelihood: Floats,
    members: Floats,
    statistics: Floats,
) -> None:
    scores = np.empty(log_weights.shape[1])
    for draw in range(first, last):
        for row in range(len(features)):
            largest = _score(features[row], natural[draw], log_weights[draw], scores)
            total = 0.0
            for cluster in range(scores.size):
                scores[cluster] = math.exp(scores[cluster] - largest)
                total += scores[cluster]
            log_likelihood[draw] += largest + math.log(total)
            for cluster in range(scores.size):
                share = scores[cluster] / total
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

    def expect(first: int, last: int) -> None:
        _expect(features, natural, log_weights, first, last, *out)

    split_work(draws, threads, expect)
    return out


@kernel
def _share(
    features: Floats,
    natural: Floats,
    log_weights: Floats,
    first: int,
    last: int,
    membership: Floats,
    log_density: Floats,
) -> None:
    draws, clusters = log_weights.shape
    scores, by_draw = np.empty(clusters), np.empty(draws)
    for row in range(first, last):
        for draw in range(draws):
            largest = _score(features[row], natural[draw], log_weights[draw], scores)
            total = 0.0
            for cluster in range(clusters):
                scores[cluster] = math.exp(scores[cluster] - largest)
                total += scores[cluster]
            by_draw[draw] = largest + math.log(total)
            for cluster in range(clusters):
                membership[row, cluster] += scores[cluster] / (total * draws)
        largest = by_draw.max()
        log_density[row] = largest + math.log(np.exp(by_draw - largest).mean())


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

    def share(first: int, last: int) -> None:
        _share(features, natural, log_weights, first, last, *out)

    split_work(len(features), threads, share)
    return out
