"""The exact strategy: the paper's pooled Gibbs sampler without moving a row.

A chain has all C⁺ components. Each sweep the silos draw their rows' labels given (π, p) and answer
with counts; the coordinator adds them and draws π ~ Dirichlet(α + members) and p ~ Dirichlet(β +
counts), the same for all silos, or with drift the shared and the silos' own weights and profiles
as in `polish`. (Silo-specific weights that share nothing would never empty the
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

from silomix.coordinator.matching.greedy import folding_limit
from silomix.coordinator.polish import Shared, ask_round, draw_profiles
from silomix.families.categorical import Categorical
from silomix.families.product import Product
from silomix.messages import ReleasedDiagnostics, Silos
from silomix.model.diagnostics import diagnose
from silomix.model.draws import Schedule, SiloProfiles
from silomix.model.schema import PooledModel, Variable
from silomix.posterior.global_posterior import SILO_DRAWS, Parts
from silomix.posterior.verdict import PosteriorDiagnostics

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.kernels.arrays import Array, Bools, Floats, Ints
    from silomix.study import Study

    Report = Callable[[int, int], None]

# Sets the coordinator's draws apart from other draws of the same seed.
STREAM = 0x657861
# A cluster less alike than this to what the other draws have is not one.
PERSISTENT = 0.5


def find_pooled_posterior(
    study: Study, silos: Silos, model: PooledModel, report: Report
) -> tuple[Parts, PosteriorDiagnostics]:
    """Sample the pooled posterior over the silos, one exchange a sweep, and align its draws."""
    schedule = study.sampling
    draws = sample_exactly(
        silos, study.model.components, schedule, model, drift=study.drifts, report=report
    )
    known = study.model.clusters is not None
    parts, folded, unmatched = align(draws, model, study.matching.absorb, known=known)
    notes = [
        f"Exact strategy: {schedule.iterations} exchanges"
        + ("." if study.drifts else "; one set of weights for all silos."),
        f"{unmatched:.1%} of the rows sat, on average, in components without a cluster.",
    ]
    if folded:
        notes.append(f"{folded} small components were folded into their neighbours.")
    traces: tuple[Array, ...] = draws.log_likelihood, draws.members, draws.weights
    judged = diagnose(*(part.reshape(schedule.chains, -1, *part.shape[1:]) for part in traces))
    chains = ReleasedDiagnostics.of(judged, prior_draws=0.0, sweeps=schedule.iterations)
    return parts, PosteriorDiagnostics(silos={}, chains=chains, notes=tuple(notes))


@dataclass(frozen=True, eq=False)
class ExactDraws:
    """Kept draws of the pooled posterior, chains one after the other.

    Attributes
    ----------
    weights : (draw, component), of all rows.
    weights_by_silo : (draw, silo, component), the same for all silos without drift.
    parameters : (draw, component, parameter)
    counts : (draw, component, statistic), of the labels drawn given them.
    members : (draw, component), of the same.
    log_likelihood : (draw,), of all rows at those weights and parameters.
    own : κ, and the silos' own profiles in the last draws; None without drift.
    """

    weights: Floats
    weights_by_silo: Floats
    parameters: Floats
    counts: Array
    members: Ints
    log_likelihood: Floats
    own: SiloProfiles | None = None


def sample_exactly(
    silos: Silos,
    components: int,
    schedule: Schedule,
    model: PooledModel,
    *,
    drift: bool = False,
    report: Report | None = None,
) -> ExactDraws:
    """Run the pooled Gibbs sampler over the silos, all chains in each question.

    The chains start from the prior: weights equal, profiles ~ Dirichlet(β). Under drift the silos'
    weights differ as their profiles do, π^s ~ Dirichlet(κ₀ π): with one π for all, a component
    that a silo lacks would be filled with half of another. Drift sets in after half of the
    burn-in, when the silos agree on which component is which.
    """
    prior, family, seed = model
    chains, everyone = schedule.chains, len(silos.names)
    rng = np.random.default_rng([seed, STREAM, 0])
    statistics = int(family.statistics.sum())
    nothing = np.zeros((everyone, chains, components, statistics), dtype=np.int64)
    alike = Shared(np.empty(0), np.full((chains, len(family.variables)), np.inf))
    shared, own = draw_profiles(nothing, alike, family, rng, drift=False)
    # which component a row is in is a category too
    component = Variable("component", tuple(map(str, range(components))))
    mixture = Product((Categorical((component,), prior.alpha),))
    overall = Shared(
        np.full((chains, 1, components), 1.0 / components), np.full((chains, 1), np.inf)
    )
    weights = np.broadcast_to(overall.mean, (everyone, chains, 1, components))
    kept: list[tuple[Floats, ...]] = []
    own_kept: deque[Floats] = deque(maxlen=SILO_DRAWS)
    sizes = np.zeros(everyone, dtype=np.int64)
    for sweep in range(1, schedule.iterations + 1):
        _, sums, counted, likelihood = ask_round(silos, sweep, weights[:, :, 0], own, None, 1)
        members = counted.astype(np.int64)
        sizes = members[:, 0].sum(axis=1)
        if sweep > schedule.burn_in and (sweep - schedule.burn_in) % schedule.thin == 0:
            of_silos = np.moveaxis(weights[:, :, 0], 0, 1)
            totals = sums.sum(axis=0), members.sum(axis=0), likelihood
            kept.append((of_silos, shared.mean, *totals, shared.kappa))
            own_kept.append(own[:, -1])  # of the last chain, whose draws come last
        rng = np.random.default_rng([seed, STREAM, sweep])
        # silos that may differ from the start settle in labellings of their own
        apart = drift and 2 * sweep > schedule.burn_in
        rows = members[:, :, None, :]
        overall, weights = draw_profiles(rows, overall, mixture, rng, drift=apart)
        shared, own = draw_profiles(sums, shared, family, rng, drift=apart)
        if report is not None:
            report(sweep, schedule.iterations)
    of_silos, mean, counts, members, likelihood, kappa = (
        np.concatenate(np.swapaxes(np.array(part), 0, 1)) for part in zip(*kept, strict=True)
    )
    over_all, silo_profiles = of_silos[:, 0], None
    if drift:
        over_all = np.einsum("dsc,s->dc", of_silos, sizes / sizes.sum())
        silo_profiles = SiloProfiles(kappa, np.array(own_kept).astype(np.float32))
    return ExactDraws(over_all, of_silos, mean, counts, members, likelihood, silo_profiles)


def align(
    draws: ExactDraws, model: PooledModel, absorb: int, *, known: bool = False
) -> tuple[Parts, int, float]:
    """Match every draw's components one to one to those of the most probable draw.

    The overlap of two components is the family's, of categories Σ min(counts) over all levels.
    Components of the reference whose profiles do not differ, by a factor of more than the number of
    rows, and those that the other draws hardly know, are folded into others; if `absorb` is a
    number, only those of fewer rows. Where the number of clusters is known, an empty component of
    the reference is a cluster too.

    Returns
    -------
    parts : with one meaning of cluster k throughout; each draw's weights sum to one.
    folded : components of the reference that were folded into others.
    unmatched : share of the rows, on average over draws, in components without a cluster.
    """
    reference = int(np.argmax(log_joint(draws, model)))
    occupied = (draws.members[reference] > 0) | known
    counts, members = draws.counts[reference][occupied], draws.members[reference][occupied]
    persistence = _match_draws(draws, counts, model.family)[1]
    limit = folding_limit(absorb)
    clusters = _fold_small(counts, members, persistence >= PERSISTENT, model, limit)
    components, _ = _match_draws(draws, clusters, model.family)
    every = np.arange(len(draws.weights))[:, None]
    weights, parameters = draws.weights[every, components], draws.parameters[every, components]
    weights /= weights.sum(axis=1, keepdims=True)
    by_silo = np.take_along_axis(draws.weights_by_silo, components[:, None, :], axis=2)
    by_silo /= by_silo.sum(axis=2, keepdims=True)
    own = draws.own
    if own is not None:
        last = components[-len(own.parameters) :, None, :, None]
        own = SiloProfiles(own.kappa, np.take_along_axis(own.parameters, last, axis=2))
    lost = 1.0 - draws.members[every, components].sum(axis=1) / draws.members.sum(axis=1)
    parts = Parts(weights, by_silo, parameters, None, None, own)
    return parts, len(counts) - len(clusters), float(lost.mean())


def _match_draws(draws: ExactDraws, clusters: Array, family: Product) -> tuple[Ints, Floats]:
    """Each draw's component for each cluster, and how alike the two are on average.

    Parameters
    ----------
    clusters : (cluster, statistic), what those of the reference add up to.

    Returns
    -------
    components : (draw, cluster)
    persistence : (cluster,), mean over draws of what two share of what either has; 1 for the same.
    """
    components = np.empty((len(draws.weights), len(clusters)), dtype=np.int64)
    alike = np.zeros(len(clusters))
    for t, counts in enumerate(draws.counts):
        overlap = family.overlap(counts[:, None, :], clusters[None, :, :]).sum(axis=2)
        own, places = linear_sum_assignment(overlap, maximize=True)
        components[t, places] = own
        shared = overlap[own, places]
        union = (family.known(counts[own]) + family.known(clusters[places])).sum(axis=1) - shared
        alike[places] += shared / np.maximum(union, 1.0)  # two empty ones have nothing
    return components, alike / len(components)


def log_joint(draws: ExactDraws, model: PooledModel) -> Floats:
    """Log p(rows, labels) of each draw's labels, parameters integrated out: (draw,)."""
    profiles = model.family.log_evidence(draws.counts).sum(axis=(1, 2))
    return profiles + gammaln(model.prior.alpha + draws.members).sum(axis=1)


def _fold_small(
    counts: Array, members: Ints, persistent: Bools, model: PooledModel, limit: float
) -> Array:
    """Reference's clusters (cluster, statistic), small ones folded into others.

    Parameters
    ----------
    counts : (cluster, statistic); members, persistent : (cluster,)
    """

    def evidence(of: Array) -> Floats:
        return np.asarray(model.family.log_evidence(of).sum(axis=-1))

    keep = np.ones(len(members), dtype=bool)
    counts, members = counts.copy(), members.copy()
    for small in np.argsort(members, kind="stable"):
        others = np.flatnonzero(keep)
        others = others[others != small]
        if members[small] >= limit or len(others) == 0:
            continue
        together, apart = evidence(counts[others] + counts[small]), evidence(counts[others])
        gain = together - apart - evidence(counts[small]) + np.log(members.sum())
        if gain.max() > 0 or not persistent[small]:
            target = others[int(np.argmax(gain))]
            counts[target] += counts[small]
            members[target] += members[small]
            keep[small] = False
    return counts[keep]
