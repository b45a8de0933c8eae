"""The exact strategy: the paper's pooled Gibbs sampler without moving a row.

A chain has all C⁺ components and one π. Each sweep the silos draw their rows' labels given (π, p) and
answer with counts; the coordinator adds them and draws π ~ Dirichlet(α + members) and p ~
Dirichlet(β + counts). (Silo-specific weights would never empty the spare components when silos are
many.) It needs as many exchanges as sweeps, and finds clusters too small for any one silo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from silomix.families.evidence import log_evidence
from silomix.polish import ask_round, draw_profiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from silomix.messages import Silos
    from silomix.types import Prior, Schedule

STREAM = 0x657861
"""Sets the coordinator's draws apart from other draws of the same seed."""


@dataclass(frozen=True, eq=False)
class ExactDraws:
    """Kept draws of the pooled posterior, chains one after the other.

    Attributes
    ----------
    weights : (draw, component); probabilities : (draw, component, level)
    counts : (draw, component, level); members : (draw, component), of the labels drawn given them.
    log_likelihood : (draw,), of all rows at those weights and probabilities.
    chain : (draw,)
    """

    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    counts: NDArray[np.int64]
    members: NDArray[np.int64]
    log_likelihood: NDArray[np.float64]
    chain: NDArray[np.int64]


def sample_exactly(
    silos: Silos,
    components: int,
    schedule: Schedule,
    *,
    prior: Prior,
    offsets: NDArray[np.int64],
    seed: int,
    report: Callable[[int, int], None] | None = None,
) -> ExactDraws:
    """Run the pooled Gibbs sampler over the silos, all chains in each question.

    The chains start from the prior: weights equal, profiles ~ Dirichlet(β).
    """
    chains, levels = schedule.chains, int(offsets[-1])
    rng = np.random.default_rng([seed, STREAM, 0])
    nothing = np.zeros((chains, components, levels), dtype=np.int64)
    probabilities = draw_profiles(nothing, prior.beta, offsets, rng)
    weights = np.full((chains, components), 1.0 / components)
    kept: list[tuple[NDArray[np.float64], ...]] = []
    everyone = len(silos.names)
    for sweep in range(1, schedule.iterations + 1):
        shared = np.broadcast_to(weights, (everyone, *weights.shape))
        replies = ask_round(silos, sweep, shared, probabilities, None, 1)
        counts = np.sum([reply.counts for reply in replies], axis=0)
        members = np.sum([reply.members for reply in replies], axis=0)
        if sweep > schedule.burn_in and (sweep - schedule.burn_in) % schedule.thin == 0:
            likelihood = np.sum([reply.log_likelihood for reply in replies], axis=0)
            kept.append((weights, probabilities, counts, members, likelihood))
        rng = np.random.default_rng([seed, STREAM, sweep])
        shares = np.maximum(rng.standard_gamma(members + prior.alpha), 1e-300)
        weights = shares / shares.sum(axis=1, keepdims=True)
        probabilities = draw_profiles(counts, prior.beta, offsets, rng)
        if report is not None:
            report(sweep, schedule.iterations)
    by_chain = [np.concatenate(np.swapaxes(np.array(part), 0, 1)) for part in zip(*kept, strict=True)]
    return ExactDraws(*by_chain, chain=np.repeat(np.arange(chains), len(kept)))


@dataclass(frozen=True, eq=False)
class ExactClusters:
    """The exact draws with one meaning of cluster k throughout.

    Attributes
    ----------
    weights : (draw, cluster), each draw sums to one; probabilities : (draw, cluster, level)
    reference : the kept draw whose components the clusters are.
    folded : components of the reference that were folded into others.
    unmatched : share of the rows, on average over draws, in components without a cluster.
    """

    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    reference: int
    folded: int
    unmatched: float


def align(
    draws: ExactDraws, *, prior: Prior, offsets: NDArray[np.int64], absorb: int
) -> ExactClusters:
    """Match every draw's components one to one to those of the most probable draw.

    The overlap of two components is Σ min(counts) over all levels. Components of the reference
    with fewer than `absorb` rows are folded into another where that raises the evidence.
    """
    reference = int(np.argmax(log_joint(draws, prior, offsets)))
    clusters, folded = _fold_small(
        draws.counts[reference], draws.members[reference], prior, offsets, absorb
    )
    weights = np.empty((len(draws.weights), len(clusters)))
    probabilities = np.empty((len(draws.weights), len(clusters), draws.counts.shape[2]))
    lost = 0.0
    for t in range(len(draws.weights)):
        overlap = np.minimum(draws.counts[t][:, None, :], clusters[None, :, :]).sum(axis=2)
        components, places = linear_sum_assignment(overlap, maximize=True)
        weights[t, places] = draws.weights[t, components]
        probabilities[t, places] = draws.probabilities[t, components]
        lost += 1.0 - draws.members[t, components].sum() / draws.members[t].sum()
    weights /= weights.sum(axis=1, keepdims=True)
    return ExactClusters(weights, probabilities, reference, folded, lost / len(weights))


def log_joint(
    draws: ExactDraws, prior: Prior, offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return log p(rows, labels) of each draw's labels, parameters integrated out: (draw,)."""
    profiles = log_evidence(draws.counts, offsets, prior.beta).sum(axis=1)
    return profiles + gammaln(prior.alpha + draws.members).sum(axis=1)


def _fold_small(
    counts: NDArray[np.int64],
    members: NDArray[np.int64],
    prior: Prior,
    offsets: NDArray[np.int64],
    absorb: int,
) -> tuple[NDArray[np.int64], int]:
    """Return the reference's clusters (cluster, level), small ones folded in where better."""
    occupied = members > 0
    counts, members = counts[occupied], members[occupied]
    folded = 0
    while len(members) > 1 and members.min() < absorb:
        small = int(np.argmin(members))
        others = np.delete(np.arange(len(members)), small)
        alone = log_evidence(counts[[small]], offsets, prior.beta)[0] + gammaln(
            prior.alpha + members[small]
        )
        gain = (
            log_evidence(counts[others] + counts[small], offsets, prior.beta)
            - log_evidence(counts[others], offsets, prior.beta)
            - alone
            + gammaln(prior.alpha + members[others] + members[small])
            - gammaln(prior.alpha + members[others])
            + gammaln(prior.alpha)
        )
        if gain.max() <= 0:
            break
        target = others[int(np.argmax(gain))]
        counts[target] += counts[small]
        members[target] += members[small]
        counts, members = np.delete(counts, small, axis=0), np.delete(members, small)
        folded += 1
    return counts, folded
