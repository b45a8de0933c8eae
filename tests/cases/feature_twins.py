"""Definitions, in plain NumPy, of what `silomix.kernels.feature_rows` compiles; and densities."""

from __future__ import annotations

import numpy as np
from cases.sweep_twin import fold, uniform
from scipy import stats
from scipy.special import logsumexp

LOG_DENSITIES = {
    "gaussian": stats.norm.logpdf,
    "poisson": stats.poisson.logpmf,
    "exponential": lambda x, mean: stats.expon.logpdf(x, 0, mean),
}


def draw_labels(key, features, natural, log_weights):
    """Each row's label, by inversion of the cumulative masses: (row,)."""
    labels = []
    for place, row in enumerate(features):
        scores = log_weights.copy()
        for value, column in zip(row, natural, strict=True):
            scores += value * column
        masses = np.exp(scores - scores.max()).cumsum()
        labels.append(int((masses[:-1] <= uniform(fold(key, place)) * masses[-1]).sum()))
    return np.array(labels)


def sum_by_label(features, labels, clusters):
    """Rows of each label, (cluster,), and what they add up to: (cluster, feature)."""
    members = np.eye(clusters)[labels]
    return members.sum(axis=0), members.T @ features


def responsibilities(features, natural, log_weights):
    """P(cluster | row), (draw, row, cluster), and ln Σ_c of the masses: (draw, row)."""
    scores = features @ natural + log_weights[:, None]
    total = logsumexp(scores, axis=2)
    return np.exp(scores - total[..., None]), total


def log_density(shard, parameters):
    """Σ ln p(cell) by SciPy, of each row in each cluster: (row, cluster).

    Parameters
    ----------
    parameters : (cluster, parameter), in the order of the variables.
    """
    total, place = np.zeros((shard.rows, len(parameters))), 0
    for q, size in enumerate(shard.schema.sizes):
        logs = np.log(parameters[:, place : place + size])
        total += np.pad(logs, ((0, 0), (0, 1)))[:, shard.codes[:, q]].T
        place += size
    for q, variable in enumerate(shard.schema.numbers):
        x, normal = shard.numbers[:, [q]], variable.kind == "gaussian"
        own = parameters[:, place : place + 1 + normal].T
        logs = LOG_DENSITIES[variable.kind](x, *own)
        logs -= np.log(variable.scale) if normal else 0.0
        total += np.where(np.isnan(x), 0.0, logs)
        place += 1 + normal
    return total
