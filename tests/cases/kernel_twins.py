"""What compiled kernels compute, in plain NumPy: the same numbers, or to rounding where noted."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from silomix.kernels.layout import level_columns
from silomix.kernels.likelihood import ExpectedCounts, RowMembership, log


def expected_counts_definition(weights, probabilities, codes, counts, sizes):
    """Define `expected_counts`: logarithms and one-hot codes, one draw at a time.

    Parameters
    ----------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    codes : (row, variable); counts : (row,), how often each row occurs; sizes : (variable,)
    """
    columns = level_columns(codes, sizes)
    onehot = (columns[:, :, None] == np.arange(int(sizes.sum()))).sum(axis=1).astype(float)
    found = []
    for shares, profiles in zip(weights, probabilities, strict=True):
        scores = np.log(shares) + onehot @ np.log(profiles).T
        totals = logsumexp(scores, axis=1, keepdims=True)
        expected = counts[:, None] * np.exp(scores - totals)
        found.append((counts @ totals[:, 0], expected.sum(axis=0), expected.T @ onehot))
    return ExpectedCounts(*(np.array(each) for each in zip(*found, strict=True)))


def membership_definition(codes, sizes, weights, probabilities):
    """Define what `share_rows` computes: draw by draw, every cell of every row.

    Parameters
    ----------
    codes : (row, variable), a missing cell at its variable's size; sizes : (variable,)
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    """
    present = codes < sizes
    columns = np.where(present, np.cumsum(sizes) - sizes + codes, 0)
    share = np.zeros((len(codes), weights.shape[1]))
    log_densities = np.empty((len(weights), len(codes)))
    for draw, (weight, table) in enumerate(zip(weights, probabilities, strict=True)):
        cells = np.where(present, log(table)[:, columns], 0.0)
        with np.errstate(divide="ignore"):
            scores = (np.log(weight.astype(np.float64))[:, None] + cells.sum(axis=2)).T
        log_densities[draw] = np.logaddexp.reduce(scores, axis=1)
        share += np.exp(scores - log_densities[draw][:, None])
    log_density = np.logaddexp.reduce(log_densities, axis=0) - math.log(len(weights))
    return RowMembership(share / len(weights), log_density)


def co_clustering_definition(labels):
    """Define `co_clustering`, one draw at a time."""
    draws, rows = labels.shape
    together = np.zeros((rows, rows), dtype=np.uint16 if draws < 2**16 else np.uint32)
    for draw in labels:
        together += draw[:, None] == draw
    return together


def sum_by_cluster_definition(distances, clusters, n_clusters):
    """Define `sum_by_cluster`, as a matrix product."""
    members = clusters[:, None] == np.arange(n_clusters)
    return distances.astype(np.int64) @ members


def contingency_definition(labels, clusters, components, n_clusters):
    """Define `contingency`: sums of one-hot codes."""
    in_component = labels[:, :, None] == np.arange(components)
    in_cluster = clusters[:, None] == np.arange(n_clusters)
    overlap = np.einsum("drc,rk->dck", in_component.astype(np.int32), in_cluster)
    return overlap.astype(np.int32)


def add_support_definition(labels, share, support):
    """Define `add_support`, all rows of a draw at a time."""
    for components, given in zip(labels, share, strict=True):
        support += given[components]
