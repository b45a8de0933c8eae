"""An independent sampler of the silo-weighted pooled model, and silos that only polish."""

from __future__ import annotations

import numpy as np
from cases.aggregation_cases import draw_cells
from cases.families import categories, shard_of

from silomix.families.chains import Rows
from silomix.kernels.reproducible import chain_key, fold
from silomix.messages import PolishReply


class PolishingSilos:
    """Answers polish rounds on shards in memory, with nothing else of a silo around it."""

    def __init__(self, shards, sizes, seed):
        self.names = tuple(f"silo {place}" for place in range(len(shards)))
        self.rows = [Rows(shard_of(codes, sizes), categories(sizes)) for codes in shards]
        self.seed = seed

    def ask(self, queries):
        replies = {}
        for place, name in enumerate(self.names):
            query = queries[name]
            key = fold(chain_key(self.seed, place, 99), query.round)
            # a copy, as after a journey: of what may not be written another kernel is compiled
            given, alpha = (query.weights, query.parameters.copy()), query.alpha or 0.0
            how = alpha, query.inner_sweeps, 1
            drawn = self.rows[place].draw_labels(key, given, *how)
            replies[name] = PolishReply.of(*drawn)
        self.last = replies
        return replies


def planted(rng, silos, rows, weights, probabilities):
    """Rows of each silo drawn from its weights: list of codes, list of labels."""
    shards, truths = [], []
    for silo in range(silos):
        labels = rng.choice(len(weights[silo]), rows, p=weights[silo])
        shards.append(draw_cells(rng, labels, probabilities))
        truths.append(labels)
    return shards, truths


def one_hot(codes, sizes):
    return np.concatenate(
        [codes[:, [q]] == np.arange(size) for q, size in enumerate(sizes)], axis=1
    ).astype(float)


def batch_mean(trace, batches=20):
    """Mean, and its standard error from batch means."""
    means = np.array([part.mean() for part in np.array_split(trace, batches)])
    return means.mean(), means.std(ddof=1) / np.sqrt(batches)


def plain_gibbs(rng, shards, sizes, labels, *, alpha, beta, sweeps):
    """Textbook Gibbs in NumPy log space, sharing no code with the package; π^s ~ Dirichlet(alpha).

    Returns weights (sweep, silo, cluster), probabilities (sweep, cluster, level), and the
    log-likelihood and the occupied clusters of all rows (sweep,).
    """
    clusters = 1 + max(int(part.max()) for part in labels)
    onehots = [one_hot(codes, sizes) for codes in shards]
    edges = np.cumsum(sizes)[:-1]
    kept = []
    for _ in range(sweeps):
        members = [np.eye(clusters)[part] for part in labels]
        counts = sum(m.T @ x for m, x in zip(members, onehots, strict=True))
        blocks = [
            np.array([rng.dirichlet(row) for row in block + beta])
            for block in np.split(counts, edges, axis=1)
        ]
        probabilities = np.concatenate(blocks, axis=1)
        weights = [rng.dirichlet(alpha + m.sum(axis=0)) for m in members]
        logs = np.log(np.maximum(probabilities, 1e-300)).T
        scores = [
            x @ logs + np.log(np.maximum(w, 1e-300)) for x, w in zip(onehots, weights, strict=True)
        ]
        labels = [np.argmax(part + rng.gumbel(size=part.shape), axis=1) for part in scores]
        log_likelihood = sum(np.logaddexp.reduce(part, axis=1).sum() for part in scores)
        kept.append((weights, probabilities, log_likelihood, len(np.unique(np.hstack(labels)))))
    return [np.array(part) for part in zip(*kept, strict=True)]
