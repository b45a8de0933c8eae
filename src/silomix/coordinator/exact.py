"""The exact strategy: the paper's pooled Gibbs sampler without moving a row.

A chain has all C⁺ components. Each sweep the silos draw their rows' labels given (π, p) and answer
with counts; the coordinator adds them and draws π ~ Dirichlet(α + members) and p ~ Dirichlet(β +
counts), the same for all silos, or with drift the shared and the silos' own weights and profiles
as in `model.families.drift`. (Silo-specific weights that share nothing would never empty the
spare components when silos are many.) It needs as many exchanges as sweeps, and finds clusters too
small for any one silo.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from silomix.coordinator.matching.absorb import folding_limit
from silomix.coordinator.polish import SILO_DRAWS, ask_round, draw_profiles
from silomix.model.families.dirichlet import log_evidence
from silomix.model.families.drift import Shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.kernels.arrays import Bools, Floats, Ints
    from silomix.messages import Silos
    from silomix.model.draws import Schedule
    from silomix.model.schema import Prior

# Sets the coordinator's draws apart from other draws of the same seed.
STREAM = 0x657861
# A cluster less alike than this to what the other draws have is not one.
PERSISTENT = 0.5


@dataclass(frozen=True, eq=False)
class ExactDraws:
    """Kept draws of the pooled posterior, chains one after the other.

    Attributes
    ----------
    weights : (draw, component); probabilities : (draw, component, level)
    counts : (draw, component, level); members : (draw, component), of the labels drawn given them.
    log_likelihood : (draw,), of all rows at those weights and probabilities.
    chain : (draw,)
    kappa : (draw, variable); None without drift.
    weights_by_silo : (draw, silo, component), the silos' own weights; None without drift.
    own : (silo draw, silo, component, level), the silos' own profiles in the last draws; None
        without drift.
    """

    weights: Floats
    probabilities: Floats
    counts: Ints
    members: Ints
    log_likelihood: Floats
    chain: Ints
    kappa: Floats | None = None
    weights_by_silo: Floats | None = None
    own: Floats | None = None


def sample_exactly(
    silos: Silos,
    components: int,
    schedule: Schedule,
    *,
    prior: Prior,
    offsets: Ints,
    seed: int,
    drift: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> ExactDraws:
    """Run the pooled Gibbs sampler over the silos, all chains in each question.

    The chains start from the prior: weights equal, profiles ~ Dirichlet(β). Under drift the silos'
    weights differ as their profiles do, π^s ~ Dirichlet(κ₀ π): with one π for all, a component
    that a silo lacks would be filled with half of another. Drift sets in after half of the
    burn-in, when the silos agree on which component is which.
    """
    chains, levels = schedule.chains, int(offsets[-1])
    rng = np.random.default_rng([seed, STREAM, 0])
    everyone = len(silos.names)
    nothing = np.zeros((everyone, chains, components, levels), dtype=np.int64)
    alike = Shared(np.empty(0), np.full((chains, len(offsets) - 1), np.inf))
    shared, own = draw_profiles(nothing, alike, prior.beta, offsets, rng, drift=False)
    by_component = np.array([0, components])
    overall = Shared(
        np.full((chains, 1, components), 1.0 / components), np.full((chains, 1), np.inf)
    )
    weights = np.broadcast_to(overall.mean, (everyone, chains, 1, components))
    kept: list[tuple[Floats, ...]] = []
    own_kept: deque[Floats] = deque(maxlen=SILO_DRAWS)
    sizes = np.zeros(everyone, dtype=np.int64)
    for sweep in range(1, schedule.iterations + 1):
        replies = ask_round(silos, sweep, weights[:, :, 0], own, None, 1)
        counts = np.stack([reply.counts for reply in replies])
        members = np.stack([reply.members for reply in replies]).astype(np.int64)
        sizes = members[:, 0].sum(axis=1)
        if sweep > schedule.burn_in and (sweep - schedule.burn_in) % schedule.thin == 0:
            likelihood = np.sum([reply.log_likelihood for reply in replies], axis=0)
            totals = counts.sum(axis=0), members.sum(axis=0)
            of_silos = np.moveaxis(weights[:, :, 0], 0, 1)
            kept.append((of_silos, shared.mean, *totals, likelihood, shared.kappa))
            own_kept.append(own[:, -1])  # of the last chain, whose draws come last
        rng = np.random.default_rng([seed, STREAM, sweep])
        # silos that may differ from the start settle in labellings of their own
        apart = drift and 2 * sweep > schedule.burn_in
        rows = members[:, :, None, :]
        overall, weights = draw_profiles(rows, overall, prior.alpha, by_component, rng, drift=apart)
        shared, own = draw_profiles(counts, shared, prior.beta, offsets, rng, drift=apart)
        if report is not None:
            report(sweep, schedule.iterations)
    of_silos, mean, counts, members, likelihood, kappa = (
        np.concatenate(np.swapaxes(np.array(part), 0, 1)) for part in zip(*kept, strict=True)
    )
    chain = np.repeat(np.arange(chains), len(kept))
    if not drift:
        return ExactDraws(of_silos[:, 0], mean, counts, members, likelihood, chain)
    over_all = np.einsum("dsc,s->dc", of_silos, sizes / sizes.sum())
    own_draws = np.array(own_kept)
    return ExactDraws(
        over_all, mean, counts, members, likelihood, chain, kappa, of_silos, own_draws
    )


@dataclass(frozen=True, eq=False)
class ExactClusters:
    """The exact draws with one meaning of cluster k throughout.

    Attributes
    ----------
    weights : (draw, cluster), each draw sums to one; probabilities : (draw, cluster, level)
    weights_by_silo : (draw, silo, cluster), or None where all silos have the same.
    own : (silo draw, silo, cluster, level), the silos' own profiles in the last draws, or None.
    reference : the kept draw whose components the clusters are.
    folded : components of the reference that were folded into others.
    unmatched : share of the rows, on average over draws, in components without a cluster.
    """

    weights: Floats
    probabilities: Floats
    weights_by_silo: Floats | None
    own: Floats | None
    reference: int
    folded: int
    unmatched: float


def align(draws: ExactDraws, *, prior: Prior, offsets: Ints, absorb: int) -> ExactClusters:
    """Match every draw's components one to one to those of the most probable draw.

    The overlap of two components is Σ min(counts) over all levels. Components of the reference
    whose profiles do not differ, by a factor of more than the number of rows, and those that the
    other draws hardly know, are folded into others; if `absorb` is a number, only those of fewer
    rows.
    """
    reference = int(np.argmax(log_joint(draws, prior, offsets)))
    occupied = draws.members[reference] > 0
    counts, members = draws.counts[reference][occupied], draws.members[reference][occupied]
    persistence = _match_draws(draws, counts)[1]
    limit = folding_limit(absorb)
    clusters, folded = _fold_small(
        counts, members, persistence >= PERSISTENT, prior, offsets, limit
    )
    components, _ = _match_draws(draws, clusters)
    every = np.arange(len(draws.weights))[:, None]
    weights = draws.weights[every, components]
    lost = 1.0 - draws.members[every, components].sum(axis=1) / draws.members.sum(axis=1)
    return ExactClusters(
        weights=weights / weights.sum(axis=1, keepdims=True),
        probabilities=draws.probabilities[every, components],
        weights_by_silo=_align_weights(draws.weights_by_silo, components),
        own=None if draws.own is None else _align_own(draws.own, components),
        reference=reference,
        folded=folded,
        unmatched=float(lost.mean()),
    )


def _align_weights(weights: Floats | None, components: Ints) -> Floats | None:
    """Return the silos' weights by cluster, each draw and silo summing to one."""
    if weights is None:
        return None
    found = np.take_along_axis(weights, components[:, None, :], axis=2)
    return found / found.sum(axis=2, keepdims=True)


def _align_own(own: Floats, components: Ints) -> Floats:
    """Return the silos' profiles by cluster: (silo draw, silo, cluster, level)."""
    last = components[-len(own) :, None, :, None]
    return np.take_along_axis(own, last, axis=2)


def _match_draws(draws: ExactDraws, clusters: Ints) -> tuple[Ints, Floats]:
    """Return each draw's component for each cluster, and how alike the two are on average.

    Parameters
    ----------
    clusters : (cluster, level), counts of the reference.

    Returns
    -------
    components : (draw, cluster)
    persistence : (cluster,), mean over draws of Σ min(counts) / Σ max(counts), 1 for the same.
    """
    components = np.empty((len(draws.weights), len(clusters)), dtype=np.int64)
    alike = np.zeros(len(clusters))
    for t, counts in enumerate(draws.counts):
        overlap = np.minimum(counts[:, None, :], clusters[None, :, :]).sum(axis=2)
        found, places = linear_sum_assignment(overlap, maximize=True)
        components[t, places] = found
        shared = overlap[found, places]
        union = counts[found].sum(axis=1) + clusters[places].sum(axis=1) - shared
        alike[places] += shared / union
    return components, alike / len(components)


def log_joint(draws: ExactDraws, prior: Prior, offsets: Ints) -> Floats:
    """Return log p(rows, labels) of each draw's labels, parameters integrated out: (draw,)."""
    profiles = log_evidence(draws.counts, offsets, prior.beta).sum(axis=1)
    return profiles + gammaln(prior.alpha + draws.members).sum(axis=1)


def _fold_small(
    counts: Ints, members: Ints, persistent: Bools, prior: Prior, offsets: Ints, limit: float
) -> tuple[Ints, int]:
    """Return the reference's clusters (cluster, level), small ones folded in, and how many were.

    Parameters
    ----------
    counts : (cluster, level); members, persistent : (cluster,)
    """
    keep = np.ones(len(members), dtype=bool)
    counts, members = counts.copy(), members.copy()
    for small in np.argsort(members, kind="stable"):
        others = np.flatnonzero(keep)
        others = others[others != small]
        if members[small] >= limit or len(others) == 0:
            continue
        gain = _folding_gain(counts, small, others, prior, offsets) + np.log(members.sum())
        if gain.max() > 0 or not persistent[small]:
            target = others[int(np.argmax(gain))]
            counts[target] += counts[small]
            members[target] += members[small]
            keep[small] = False
    return counts[keep], int((~keep).sum())


def _folding_gain(counts: Ints, small: int, others: Ints, prior: Prior, offsets: Ints) -> Floats:
    """Return what folding `small` into each of the others adds to the evidence: (other,)."""
    together = log_evidence(counts[others] + counts[small], offsets, prior.beta)
    apart = log_evidence(counts[others], offsets, prior.beta)
    return together - apart - log_evidence(counts[small], offsets, prior.beta)
