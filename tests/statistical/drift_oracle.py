"""The exact posterior of a tiny table of two silos whose profiles drift, by enumeration.

Written from the model's formulas, independently of the package: labels are enumerated, so is κ on
its grid, ω of its prior is integrated out, and so are the silos' own profiles and weights; the
shared profile m of a variable of two levels is integrated by quadrature. Of the exact strategy, so
are the shared weights π of two components, and κ₀ of the silos' own around them is enumerated.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import gammaln, logsumexp

GRID = np.append(np.geomspace(3.0, 3000.0, 25), np.inf)
POINTS = 800
MEAN_BINS = 8
KAPPA_CLASS = np.append(np.repeat(np.arange(5), 5), 5)
"""Five finite points in each class; infinity is one of its own."""
CLASSES = 6
SIZES = np.array([2, 2])
OFFSETS = np.array([0, 2, 4])


@dataclass(frozen=True)
class TwoSilos:
    """Two variables of two levels; β = ½.

    Attributes
    ----------
    kinds : for each silo, (first code, second code, rows) of each kind of row; code 2 is missing.
    alpha : of the weights: of each silo's own, or of the π that they are around.
    shared_weights : whether π^s ~ Dirichlet(κ₀ π), as in the exact strategy.
    weights_drift : whether κ₀ is drawn; without it π^s = π.
    """

    kinds: tuple[tuple[tuple[int, int, int], ...], ...]
    clusters: int
    alpha: float
    shared_weights: bool = False
    weights_drift: bool = True

    @property
    def shards(self):
        """Codes (row, variable) of each silo."""
        return [
            np.concatenate([np.tile([a, b], (rows, 1)) for a, b, rows in kinds]).astype(np.uint8)
            for kinds in self.kinds
        ]


@dataclass(frozen=True)
class Law:
    """Masses of what can be compared with draws.

    Attributes
    ----------
    tallies : (labelling,), key of the counts that each labelling adds up to.
    labels : (labelling,)
    kappa : (class of the first variable, class of the second)
    mean : (2, bin), of m in the first cluster and variable, at finite κ and at ∞; a bin is a
        range of the angle θ where m = sin² θ.
    """

    tallies: list[bytes]
    labels: np.ndarray
    kappa: np.ndarray
    mean: np.ndarray


def tally(members, counts):
    """Key of what silos tell: members (..., cluster), counts (..., cluster, level)."""
    return members.astype(np.int64).tobytes() + counts.astype(np.int64).tobytes()


@cache
def integrate_mean(counts, beta=0.5):
    """ln ∫ Beta(m; β, β) Π_s p(counts_s | m, κ) dm + constant, by κ, and each bin's share of it.

    With β = ½ the prior is even in the angle θ; counts : (n, N) of each silo.
    """
    angle = (np.arange(POINTS) + 0.5) / POINTS * np.pi / 2
    m, rest = np.sin(angle) ** 2, np.cos(angle) ** 2
    kappa = GRID[:-1, None]
    logs = np.tile((beta - 0.5) * np.log(m * rest), (len(GRID), 1))
    for n, others in counts:
        logs[-1] += n * np.log(m) + others * np.log(rest)
        logs[:-1] += gammaln(kappa * m + n) - gammaln(kappa * m)
        logs[:-1] += gammaln(kappa * rest + others) - gammaln(kappa * rest)
        logs[:-1] += gammaln(kappa) - gammaln(kappa + n + others)
    bins = logsumexp(logs.reshape(len(GRID), MEAN_BINS, -1), axis=2) - np.log(POINTS)
    total = logsumexp(bins, axis=1)
    return total, np.exp(bins - total[:, None])


def log_kappa_prior():
    """ln p(κ of both variables), ω ~ Beta(1, 1) integrated out: (point, point)."""
    same = np.isinf(GRID)[:, None].astype(int) + np.isinf(GRID)
    return gammaln(1 + same) + gammaln(3 - same) - gammaln(4) - (2 - same) * np.log(len(GRID) - 1)


def log_weights(table, members):
    """ln p(members of each silo) of a labelling, (silo, cluster), weights integrated out."""
    if not table.shared_weights:
        return gammaln(table.alpha + members).sum()
    by_kappa, _ = integrate_mean(tuple(map(tuple, members)), table.alpha)
    if not table.weights_drift:
        return by_kappa[-1]
    return np.logaddexp(logsumexp(by_kappa[:-1]) - np.log(len(GRID) - 1), by_kappa[-1])


def silo_labellings(kinds, clusters):
    """Ways to share rows out among clusters: ln of their number, members, counts, of each."""
    cells = [np.append(np.eye(3)[a, :2], np.eye(3)[b, :2]) for a, b, _ in kinds]
    for split in itertools.product(*(shares(rows, clusters) for *_, rows in kinds)):
        rows = np.array(split)
        ways = sum(gammaln(1 + row.sum()) - gammaln(1 + row).sum() for row in rows)
        yield ways, rows.sum(axis=0), np.einsum("kc,kl->cl", rows, cells)


def shares(rows, clusters):
    """Every way to write `rows` as a sum over clusters."""
    every = itertools.product(range(rows + 1), repeat=clusters)
    return [split for split in every if sum(split) == rows]


def enumerate_posterior(table):
    """Sum over every labelling of the rows of both silos."""
    tallies, logs, bins = [], [], []
    for silos in itertools.product(*(silo_labellings(k, table.clusters) for k in table.kinds)):
        ways, members, counts = (np.array(part) for part in zip(*silos, strict=True))
        told = members, counts
        if table.shared_weights:
            told = members.sum(axis=0), counts.sum(axis=0)
        first, second = (
            [
                integrate_mean(tuple(map(tuple, counts[:, c, q : q + 2])))
                for c in range(table.clusters)
            ]
            for q in (0, 2)
        )
        log = log_kappa_prior() + ways.sum() + log_weights(table, members)
        log += sum(total for total, _ in first)[:, None] + sum(total for total, _ in second)
        tallies.append(tally(*told))
        logs.append(log)
        bins.append(first[0][1])
    joint = np.exp(logs - logsumexp(logs))
    classes = np.eye(CLASSES)[KAPPA_CLASS]
    by_mean = np.einsum("zab,zam->am", joint, np.array(bins))
    return Law(
        tallies,
        joint.sum(axis=(1, 2)),
        classes.T @ joint.sum(axis=0) @ classes,
        np.stack([by_mean[:-1].sum(axis=0), by_mean[-1]]),
    )


def count_kappa(kappa):
    """How many draws (draw, variable) are of each class, as in `Law.kappa`."""
    first, second = KAPPA_CLASS[np.searchsorted(GRID, kappa * (1 - 1e-9))].T
    found = np.zeros((CLASSES, CLASSES))
    np.add.at(found, (first, second), 1)
    return found


def count_mean(mean, kappa):
    """How many draws (draw, cluster, level) of m are in each bin, as in `Law.mean`."""
    angle = np.arcsin(np.sqrt(mean[:, 0, 0])) / (np.pi / 2)
    place = np.minimum((angle * MEAN_BINS).astype(int), MEAN_BINS - 1)
    found = np.zeros((2, MEAN_BINS))
    np.add.at(found, (np.isinf(kappa[:, 0]).astype(int), place), 1)
    return found
