"""Definitions, in plain NumPy, of what `silomix.kernels.feature_rows` compiles; and densities."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from cases.family_oracles import Overdispersed
from cases.sampler_cases import RAW
from cases.sweep_twin import fold, uniform
from scipy import stats
from scipy.special import logsumexp

LOG_DENSITIES = {
    "gaussian": stats.norm.logpdf,
    "student-t": lambda x, mean, scale: stats.t.logpdf(x, 4, mean, scale),
    "poisson": stats.poisson.logpmf,
    "negative-binomial": lambda x, *own: Overdispersed("").log_cell(x, np.stack(own, axis=-1)),
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
    for kind, group in groupby(enumerate(shard.schema.numbers), key=lambda pair: pair[1].kind):
        columns, variables = map(list, zip(*group, strict=True))
        cells, scales = shard.numbers[:, columns], np.log([one.scale for one in variables])
        if kind in LOG_DENSITIES:
            of_each = 1 + (kind in ("gaussian", "student-t", "negative-binomial"))
            for x in cells.T[..., None]:
                own = parameters[:, place : place + of_each].T
                total += np.where(np.isnan(x), 0.0, LOG_DENSITIES[kind](x, *own))
                place += of_each
        else:
            total += log_joint_density(cells, parameters[:, place : place + 9])
            place += 9
        if kind not in RAW:
            total -= np.where(np.isnan(cells), 0.0, scales).sum(axis=1)[:, None]
    return total


def log_joint_density(cells, parameters):
    """The density of the known ones of three jointly normal variables: (row, cluster)."""
    total = np.zeros((len(cells), len(parameters)))
    for cluster, (m0, s0, m1, s1, r10, m2, s2, r20, r21) in enumerate(parameters):
        m, s = np.array([m0, m1, m2]), np.array([s0, s1, s2])
        covariance = np.array([[1, r10, r20], [r10, 1, r21], [r20, r21, 1]]) * np.outer(s, s)
        for missing in np.unique(np.isnan(cells), axis=0):
            rows, known = (np.isnan(cells) == missing).all(axis=1), np.flatnonzero(~missing)
            if len(known):
                law = stats.multivariate_normal(m[known], covariance[np.ix_(known, known)])
                total[rows, cluster] = law.logpdf(cells[rows][:, known])
    return total
