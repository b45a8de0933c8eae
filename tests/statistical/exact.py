"""The exact posterior over all labellings of a tiny table, and draws of one sweep from it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import gammaln, logsumexp

from silomix.kernels import gibbs_sweep
from silomix.kernels.layout import lay_out, make_workspace
from silomix.kernels.reproducible import chain_key, fold

FALSE_ALARM = 1e-4
"""Probability that a right sampler fails one of these tests at a random seed."""


@dataclass(frozen=True)
class Tiny:
    """A table small enough to enumerate; code K_q is a missing cell."""

    codes: np.ndarray
    sizes: np.ndarray
    components: int
    alpha: float
    beta: float


def labellings(tiny):
    """Every labelling of the rows: (labelling, row)."""
    rows = itertools.product(range(tiny.components), repeat=len(tiny.codes))
    return np.array(list(rows), dtype=np.uint8)


def masses(tiny):
    """Posterior probability of each labelling, weights and probabilities integrated out.

    Written from the Dirichlet-multinomial formula, independently of the package.
    """
    logs = []
    for labels in labellings(tiny):
        members = np.bincount(labels, minlength=tiny.components)
        log = gammaln(tiny.alpha + members).sum()
        for q, size in enumerate(tiny.sizes):
            for c in range(tiny.components):
                seen = tiny.codes[labels == c, q]
                counts = np.bincount(seen[seen < size], minlength=size)
                log += gammaln(tiny.beta + counts).sum() - gammaln(size * tiny.beta + counts.sum())
        logs.append(log)
    return np.exp(np.array(logs) - logsumexp(logs))


def index(tiny, labels):
    """Place of a labelling in `labellings`."""
    return int(np.polyval(labels.astype(int), tiny.components))


class Sweeper:
    """Runs sweeps of the compiled sampler on a tiny table, a fresh key for each replicate."""

    def __init__(self, tiny, seed):
        self.tiny, self.seed = tiny, seed
        self.work = make_workspace(lay_out(tiny.codes, tiny.sizes), tiny.components)

    def __call__(self, labels, replicate, sweeps=1):
        labels = labels.copy()
        tiny = self.tiny
        gibbs_sweep.count(self.work, labels)
        key = chain_key(self.seed, 0, replicate)
        for sweep in range(1, sweeps + 1):
            below = fold(key, sweep)
            keys = [np.uint64(fold(below, branch)) for branch in (1, 2)]
            gibbs_sweep.draw_parameters(keys[0], self.work, tiny.alpha, tiny.beta)
            gibbs_sweep.draw_labels(keys[1], self.work, 0, 0, len(labels), labels, False)
            gibbs_sweep.gather(self.work)
        return labels


def p_value(counts, expected_masses):
    """Chi-square p-value of counts against masses; labellings expected under 5 times together."""
    expected = expected_masses * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] < 5:  # fold the rest into the rarest of the others
        smallest = np.argmin(wanted[:-1])
        observed[smallest] += observed[-1]
        wanted[smallest] += wanted[-1]
        observed, wanted = observed[:-1], wanted[:-1]
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


def invariance_p_value(tiny, target, sweep, replicates, seed, sweeps=1):
    """Start from exact draws of `tiny`, whose masses are `target`, sweep, compare with them."""
    starts = np.random.default_rng(seed).choice(len(target), size=replicates, p=target)
    every, counts = labellings(tiny), np.zeros(len(target))
    for replicate, start in enumerate(starts):
        counts[index(tiny, sweep(every[start], replicate, sweeps))] += 1
    return p_value(counts, target)


def forgetting_p_value(tiny, target, sweep, sweeps, replicates):
    """Start with all rows in one component, sweep, compare with the masses `target`."""
    start, counts = np.zeros(len(tiny.codes), dtype=np.uint8), np.zeros(len(target))
    for replicate in range(replicates):
        counts[index(tiny, sweep(start, replicate, sweeps))] += 1
    return p_value(counts, target)


def tally(codes, sizes, labels, clusters):
    """Members and cells of each cluster, as bytes: all that a silo tells of its labels."""
    cells = [np.eye(size + 1, dtype=np.int64)[codes[:, q], :size] for q, size in enumerate(sizes)]
    members = np.eye(clusters, dtype=np.int64)[labels]
    return members.sum(axis=0).tobytes() + (members.T @ np.concatenate(cells, axis=1)).tobytes()


def tally_p_value(seen, keys, target):
    """Chi-square p-value of tallies against those of all labellings, which have these masses."""
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    wanted = np.bincount([places[key] for key in keys], weights=target)
    counts = np.bincount([places[key] for key in seen], minlength=len(places))
    return p_value(counts.astype(float), wanted)
