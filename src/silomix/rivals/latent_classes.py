"""Latent class analysis by maximum likelihood: what poLCA and its kin do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.families.categorical import one_hot
from silomix.families.dirichlet import draw_levels
from silomix.kernels.likelihood import distinct_rows
from silomix.rivals.kmodes import Points
from silomix.rivals.levels import Levels
from silomix.rivals.pooled import pool_rows
from silomix.rivals.record import RivalResult, Stopwatch
from silomix.sampler import at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.types import Missing

STEPS = 20_000
TOLERANCE = 1e-9
"""A step that adds less to the log-likelihood is the last."""
SAME = 1e-3
"""Starts whose log-likelihoods differ by less have reached the same maximum."""
LEAST = 1e-300
"""Stands for a probability of zero, whose logarithm is not a number to add."""


@dataclass(frozen=True, eq=False)
class LatentClasses(RivalResult):
    """The classes at the largest likelihood that was found.

    Attributes
    ----------
    log_likelihood : there.
    parameters : free ones, of weights and probabilities.
    reached : how many of the starts reached it.

    Examples
    --------
    >>> two, five = [
    ...     silomix.rivals.latent_classes(table, "silo", classes=classes) for classes in (2, 5)
    ... ]
    >>> five.bic < two.bic
    True
    """

    log_likelihood: float = float("nan")
    parameters: int = 0
    reached: int = 0

    @property
    def bic(self) -> float:
        """Bayesian information criterion, the smaller the better."""
        return float(-2 * self.log_likelihood + np.log(len(self.labels)) * self.parameters)


class Maximum(NamedTuple):
    """Where EM came to rest: (class,), (class, level), and the log-likelihood there."""

    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    log_likelihood: float


def latent_classes(
    table: Table,
    silo: str | None = None,
    *,
    classes: int,
    starts: int = 50,
    seed: int = 0,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
) -> LatentClasses:
    """Fit a latent class model to all rows by maximum likelihood, with a given number of classes.

    EM (Dempster, Laird and Rubin, 1977) from random starts, as poLCA does (Linzer and Lewis,
    2011). For those who compare with published classes: it needs all rows in one place, and has no
    intervals.

    Parameters
    ----------
    table, silo, seed, variables, missing : as for `silomix.fit`.
    classes : how many.
    starts : random ones; the likelihood may have many maxima, and the largest is wanted.

    Examples
    --------
    >>> result = silomix.rivals.latent_classes(table, "silo", classes=5, seed=1)
    >>> result.weights.shape, round(result.log_likelihood), result.parameters
    ((1, 5), -2233, 84)
    """
    for name, value in (("classes", classes), ("starts", starts)):
        at_least(name, value, 1)
    watch = Stopwatch()
    pooled = pool_rows(table, silo, seed=seed, variables=variables, missing=missing)
    schema, codes = pooled.silo.shard.schema, pooled.silo.shard.codes
    rows = distinct_rows(codes)
    points = Points(one_hot(rows.codes, schema.offsets), rows.counts, schema.offsets)
    with watch.stage("local"):
        found = [
            climb(points, *random_start(classes, schema.offsets, rng))
            for rng in np.random.default_rng(seed).spawn(starts)
        ]
        best = max(found, key=lambda maximum: maximum.log_likelihood)
    order = np.argsort(-best.weights, kind="stable")
    weights, probabilities = best.weights[order], best.probabilities[order]
    return LatentClasses(
        name="latent_classes",
        labels=log_shares(one_hot(codes, schema.offsets), weights, probabilities).argmax(axis=1),
        weights=weights[None],
        probabilities=probabilities[None],
        levels=schema.levels,
        seconds=watch.seconds,
        bytes_sent=pooled.bytes_sent,
        log_likelihood=best.log_likelihood,
        parameters=classes * int((schema.sizes - 1).sum()) + classes - 1,
        reached=sum(best.log_likelihood - other.log_likelihood < SAME for other in found),
    )


def random_start(
    classes: int, offsets: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return equal weights, and level probabilities drawn evenly: (class,), (class, level)."""
    flat = np.ones((classes, int(offsets[-1])))
    return np.full(classes, 1 / classes), draw_levels(flat, offsets, rng, 1)[0]


def climb(
    points: Points, weights: NDArray[np.float64], probabilities: NDArray[np.float64]
) -> Maximum:
    """Return the maximum of the likelihood that EM climbs to from here."""
    levels, last = Levels(points.offsets), -np.inf
    for _ in range(STEPS):
        logs = log_shares(points.cells, weights, probabilities)
        totals = np.logaddexp.reduce(logs, axis=1, keepdims=True)
        reached = float(points.counts @ totals[:, 0])
        if reached - last < TOLERANCE:
            break
        last = reached
        shares = np.exp(logs - totals) * points.counts[:, None]
        weights = shares.sum(axis=0) / points.counts.sum()
        counts = shares.T @ points.cells
        probabilities = counts / np.maximum(levels.spread(levels.totals(counts)), LEAST)
    return Maximum(weights, probabilities, last)


def log_shares(
    cells: NDArray[np.float64], weights: NDArray[np.float64], probabilities: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return log π_c Π_q p_cqx for each row and class: (row, class)."""
    profiles = np.log(np.maximum(probabilities, LEAST))
    return np.asarray(cells @ profiles.T + np.log(np.maximum(weights, LEAST)))
