"""Methods that need all rows in one place: pooled MCMC, and latent class analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.families.categorical import draw_levels, level_totals
from silomix.kernels.arrays import Floats, Ints, Rng, distinct_rows
from silomix.rivals.federation import Points, RivalResult, keep_labels, open_silos, points_of
from silomix.silo.local import sample_locally

if TYPE_CHECKING:
    from silomix.model.reading import Table

STEPS = 20_000
TOLERANCE = 1e-9  # convergence: smallest rise of the log-likelihood
SAME = 1e-3  # starts whose log-likelihoods differ by less have reached the same maximum
LEAST = 1e-300  # replaces zero probabilities, so that logarithms are finite


def pooled_mcmc(table: Table, silo: str | None = None, **settings: Any) -> RivalResult:
    """Sample the posterior of one mixture on all rows, as if there were no silos.

    The reference of Fendler et al. (2026), section 5.4 ("Full MCMC"): the sampler that a silo of
    silomix runs, under the whole prior, then one partition and the draws relabelled to it. Every
    row leaves its silo, which `bytes_sent` counts.

    Parameters
    ----------
    table, silo : as for `silomix.fit`.
    settings : seed, threads, variables, kinds, bins, missing, and those of the sampler and the
        partition, as for `silomix.fit`; `preset="paper"` for the paper's.

    Examples
    --------
    >>> result = silomix.rivals.pooled_mcmc(table, "silo", iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    unused = ("combine", "match", "assign", "tier")
    federation = open_silos(table, silo, pooled=True, unused=unused, **settings)
    (everyone,) = federation.silos.silos
    with federation.stage("sample"):
        local = sample_locally(everyone)
    keep_labels(everyone, local.partition.labels, local.weights.shape[1])
    note = local.draws.diagnostics.verdict
    return federation.result("pooled_mcmc", local.weights, local.probabilities, note)


@dataclass(frozen=True, eq=False)
class LatentClasses(RivalResult):
    """Latent classes at the largest likelihood of all starts.

    Attributes
    ----------
    log_likelihood : its value.
    parameters : number of free weights and probabilities.
    reached : number of starts that reached it.

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
    """Maximum found by EM: (class,), (class, level), and the log-likelihood."""

    weights: Floats
    probabilities: Floats
    log_likelihood: float


def latent_classes(
    table: Table, silo: str | None = None, *, classes: int, starts: int = 50, **settings: Any
) -> LatentClasses:
    """Fit a latent class model to all rows by maximum likelihood, with a given number of classes.

    EM (Dempster, Laird and Rubin, 1977) from random starts, as poLCA does (Linzer and Lewis,
    2011). For those who compare with published classes: it needs all rows in one place, and has no
    intervals.

    Parameters
    ----------
    table, silo : as for `silomix.fit`.
    classes : number of classes.
    starts : number of random starts; the likelihood may have many maxima.
    settings : seed, variables, missing, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.latent_classes(table, "silo", classes=5, seed=1)
    >>> result.weights.shape, round(result.log_likelihood), result.parameters
    ((1, 5), -2233, 84)
    """
    counts, knows = {"classes": classes, "starts": starts}, "categories"
    federation = open_silos(
        table, silo, pooled=True, knows=knows, own=counts, unused=settings, **settings
    )
    (everyone,) = federation.silos.silos
    codes, offsets = everyone.shard.codes, everyone.shard.schema.offsets
    distinct = distinct_rows(codes)
    points = points_of(distinct.codes, offsets, distinct.counts)
    with federation.stage("local"):
        streams = np.random.default_rng(federation.study.seed).spawn(starts)
        maxima = [climb(points, *random_start(classes, offsets, rng)) for rng in streams]
    best = max(maxima, key=lambda maximum: maximum.log_likelihood)
    order = np.argsort(-best.weights, kind="stable")
    weights, probabilities = best.weights[order], best.probabilities[order]
    logs = log_joint(points_of(codes, offsets), weights, probabilities)
    keep_labels(everyone, logs.argmax(axis=1), classes)
    result = federation.result("latent_classes", weights[None], probabilities[None])
    return LatentClasses(
        **vars(result),
        log_likelihood=best.log_likelihood,
        parameters=classes * int((np.diff(offsets) - 1).sum()) + classes - 1,
        reached=sum(best.log_likelihood - m.log_likelihood < SAME for m in maxima),
    )


def random_start(classes: int, offsets: Ints, rng: Rng) -> tuple[Floats, Floats]:
    """Equal weights, and uniformly random level probabilities: (class,), (class, level)."""
    flat = np.ones((classes, int(offsets[-1])))
    return np.full(classes, 1 / classes), draw_levels(flat, offsets, rng)


def climb(points: Points, weights: Floats, probabilities: Floats) -> Maximum:
    """Local maximum of the likelihood, by EM from these parameters."""
    previous = -np.inf
    for _ in range(STEPS):
        logs = log_joint(points, weights, probabilities)
        totals = np.logaddexp.reduce(logs, axis=1, keepdims=True)
        reached = float(points.counts @ totals[:, 0])
        if reached - previous < TOLERANCE:
            break
        previous = reached
        responsibilities = np.exp(logs - totals) * points.counts[:, None]
        weights = responsibilities.sum(axis=0) / points.counts.sum()
        counts = responsibilities.T @ points.cells
        probabilities = counts / np.maximum(level_totals(counts, points.offsets), LEAST)
    return Maximum(weights, probabilities, previous)


def log_joint(points: Points, weights: Floats, probabilities: Floats) -> Floats:
    """Log joint density log π_c Π_q p_cqx of each row and class: (row, class)."""
    profiles = np.log(np.maximum(probabilities, LEAST))
    return np.asarray(points.cells @ profiles.T + np.log(np.maximum(weights, LEAST)))
