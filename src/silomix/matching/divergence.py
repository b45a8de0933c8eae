"""Match each silo in turn to a running reference, at a cost computed on the silo's own rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import log_softmax

from silomix.errors import PolicyRefusal, StudyMismatch
from silomix.families.dirichlet import draw_levels
from silomix.matching.records import MatchingInfo
from silomix.messages import DivergenceCost
from silomix.release import random_order, release_draws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.messages import DivergenceReply, Silos
    from silomix.release import Release
    from silomix.study import Divergence
    from silomix.types import Prior, Shard

REFERENCE_DRAWS = 100
"""Draws of the reference, over which costs are averaged."""

STREAM = 0x726566
"""Sets the reference's draws apart from other draws of the same seed."""

CELLS_AT_A_TIME = 2_000_000
"""Responsibilities, (row, draw, component), that a silo holds in memory."""

SMALLEST_PROBABILITY = 1e-300


@dataclass(frozen=True, eq=False)
class Matchable:
    """What a release tells of a silo.

    Attributes
    ----------
    silo : its name.
    weights : (cluster,), means.
    probabilities : (draw, cluster, level)
    say : (cluster,), how much its clusters count in the reference.
    """

    silo: str
    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    say: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reference:
    """The clusters found so far; attributes as in `Matchable`, `say` summed over the silos."""

    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    say: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Run:
    """One pass over the silos.

    Attributes
    ----------
    order : (silo,), places of the silos as they were matched.
    groups : for each silo in the order of the roster, (cluster,).
    divergence : summed cost of the assignments.
    """

    order: NDArray[np.int64]
    groups: tuple[NDArray[np.int64], ...]
    divergence: float


def divergence_groups(
    releases: Sequence[Release],
    settings: Divergence,
    silos: Silos,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], MatchingInfo]:
    """Match silo after silo to the mean of those matched before.

    Minimum divergence matching (Fendler et al., 2026, algorithm 1), with the options of its
    discussion: the first run goes through the roster, from its first or from its most
    informative silo; each of the other `restarts` takes the silos in a random order. The run
    with the smallest summed divergence is kept.

    Parameters
    ----------
    releases : one from each silo, in the order of the roster.
    settings : restarts and start; the silos, which make the reference, look at the rest.
    silos : asked one at a time for the cost of the reference so far.
    rng : for the orders.

    Returns
    -------
    groups : (local,)
    info : the order and the summed divergence of the run that was kept, and of all runs.
    """
    check_may_be_shown(releases)
    runs = [
        match_in_order(releases, order, silos, number)
        for number, order in enumerate(orders(releases, settings, rng))
    ]
    best = min(runs, key=lambda run: run.divergence)
    return np.concatenate(best.groups), MatchingInfo(
        order=tuple(releases[place].silo for place in best.order),
        divergence=best.divergence,
        runs=tuple(run.divergence for run in runs),
    )


def check_may_be_shown(releases: Sequence[Release]) -> None:
    """Refuse to show a release to other silos where its silo's policy does not allow it."""
    for release in releases:
        if not release.policy["exchanges"]["divergence"]:
            raise PolicyRefusal(
                f"{release.silo}: its policy does not let its release be shown to other silos, nor "
                'other clusters be held against its rows, as the matching "divergence" needs; '
                "choose another matching, or let the policy's owner allow exchanges.divergence"
            )


def make_reference(
    query: DivergenceCost,
    say: str,
    silos: int,
    prior: Prior,
    offsets: NDArray[np.int64],
    seed: int,
) -> Reference:
    """Return what the releases of a question come to, in the silo that is asked.

    Parameters
    ----------
    say : "mean" or "precision": how much each silo's clusters count.
    silos : how many the study has.
    prior : of the pooled model.
    offsets : (variable + 1,), where each variable's levels start.
    seed : of the study.
    """
    empty = np.zeros((REFERENCE_DRAWS, 0, int(offsets[-1])))
    reference = Reference(np.zeros(0), empty, np.zeros(0))
    for release, group in zip(query.releases, query.groups, strict=True):
        rng = np.random.default_rng([seed, release.place, STREAM])
        weights, draws = release_draws(release, REFERENCE_DRAWS, prior, silos, offsets, rng)
        sure = precision(release, offsets) if say == "precision" else np.ones(release.clusters)
        silo = Matchable(release.silo, weights.mean(axis=0), draws, sure)
        reference = update(reference, silo, group)
    return reference


def precision(release: Release, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return one over the posterior variance of each cluster, averaged over levels: (cluster,).

    One number for each cluster, so that the weighted mean of probabilities sums to one.
    """
    spread = 1 + np.repeat(release.concentration, np.diff(offsets), axis=1)
    variance = (release.mean * (1 - release.mean) / spread).mean(axis=1)
    return 1 / np.maximum(variance, SMALLEST_PROBABILITY)


def orders(
    releases: Sequence[Release], settings: Divergence, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return the orders to try, each (silo,)."""
    first = 0
    if settings.start == "most-informative":
        first = int(np.argmax([release.effective_counts.sum() for release in releases]))
    others = [place for place in range(len(releases)) if place != first]
    shuffled = [rng.permutation(len(releases)) for _ in range(settings.restarts - 1)]
    return [np.array([first, *others]), *shuffled]


def match_in_order(
    releases: Sequence[Release], order: NDArray[np.int64], silos: Silos, number: int
) -> Run:
    """Make run `number`: match the silos one after the other, the first being the reference."""
    places = order.tolist()
    groups = {places[0]: np.arange(releases[places[0]].clusters)}
    total = 0.0
    for step, place in enumerate(places[1:], start=1):
        own, before = releases[place], places[:step]
        query = DivergenceCost(
            releases=tuple(releases[other] for other in before),
            groups=tuple(groups[other] for other in before),
            round=number * len(places) + step,
        )
        reply: DivergenceReply = silos.ask({own.silo: query})[own.silo]
        check_cost(reply.cost, padded(own.clusters, query.clusters), own.silo)
        groups[place], divergence = assign(reply.cost, own.clusters, query.clusters)
        total += divergence
    return Run(order, tuple(groups[place] for place in range(len(releases))), total)


def check_cost(cost: NDArray[np.float64], size: int, silo: str) -> None:
    """Refuse a reply that is not a cost matrix of the size that was asked for."""
    if cost.shape != (size, size) or not np.isfinite(cost).all():
        raise StudyMismatch(
            f"{silo!r} answered the divergence question with costs of shape {cost.shape}"
            f"{'' if np.isfinite(cost).all() else ', some not finite'}; {size} × {size} finite "
            "ones were asked for: let it answer again, with the release of the same study"
        )


def padded(clusters: int, reference: int) -> int:
    """Return C^m, the components on both sides once padded with components of the prior."""
    return max(clusters, reference) + 1


def assign(
    cost: NDArray[np.float64], clusters: int, reference: int
) -> tuple[NDArray[np.int64], float]:
    """Return the group of each local cluster, and the summed divergence.

    A pair at least as costly as matching two components of the prior is not matched. That
    cost is read off the table: the best assignment need not contain such a pair. Only real
    local clusters open new groups.

    Parameters
    ----------
    cost : (local cluster, reference cluster), padded.
    clusters, reference : how many of each are real.
    """
    _, matched = linear_sum_assignment(cost)
    at_random = cost[-1, -1]
    group = matched[:clusters].astype(np.int64)
    new = (group >= reference) | (cost[np.arange(clusters), group] >= at_random)
    group[new] = reference + np.arange(new.sum())
    return group, float(cost[np.arange(len(cost)), matched].sum())


def update(reference: Reference, silo: Matchable, group: NDArray[np.int64]) -> Reference:
    """Take a matched silo into the reference's running means, cluster by cluster.

    Parameters
    ----------
    reference : before.
    silo : what comes in.
    group : (local cluster,), its place in the reference; beyond the last, a new cluster.
    """
    new = max(int(group.max()) + 1 - len(reference.say), 0)
    say = np.pad(reference.say, (0, new))
    weights = np.pad(reference.weights, (0, new))
    probabilities = np.pad(reference.probabilities, ((0, 0), (0, new), (0, 0)))
    total = say[group] + silo.say
    share = silo.say / total
    weights[group] += share * (silo.weights - weights[group])
    probabilities[:, group] += share[:, None] * (silo.probabilities - probabilities[:, group])
    say[group] = total
    return Reference(weights, probabilities, say)


def divergence_cost(
    known: Reference,
    shard: Shard,
    weights: NDArray[np.floating],
    probabilities: NDArray[np.floating],
    prior: Prior,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return the cost of matching each local cluster to each reference cluster, in the silo.

    The cost is the posterior expectation of Σ_i P_ij log(P_ij / P*_ik) over the silo's rows i,
    P_ij the probability that row i is of cluster j given the silo's own parameters and P* that
    given the reference's: the column's part of D(P ‖ P*) of Fendler et al. (2026), which may be
    negative. Draw t of the reference goes with a random draw of the silo.

    Both sides are padded to C^m = max(C*, C^s) + 1 components. A component that pads is drawn
    from the pooled model's prior, anew for each draw: beta as it stands, not the silo's share
    of it, for the reference is to become global. It has weight 1/C^m and the real clusters
    share what is left in proportion to their means: were they to keep a sum of one, a silo
    with few clusters would look unlike a reference with many for its weights alone.

    Parameters
    ----------
    known : the reference.
    shard : the silo's rows.
    weights : (cluster,), means of the silo's weights.
    probabilities : (draw, cluster, level), the silo's draws.
    prior : of the pooled model.
    rng : for the draws of the prior and the pairing of draws.

    Returns
    -------
    (local cluster, reference cluster), both padded: the components of the prior come last.
    """
    size = padded(len(weights), len(known.weights))
    n_draws = len(known.probabilities)
    taken = random_order(len(probabilities), n_draws, rng)
    offsets = shard.schema.offsets
    sides = [
        (
            pad_weights(mean, size),
            pad_probabilities(draws, size, offsets, prior.beta, rng),
        )
        for mean, draws in [(weights, probabilities[taken]), (known.weights, known.probabilities)]
    ]
    cost = np.zeros((size, size))
    rows = max(1, CELLS_AT_A_TIME // (n_draws * size))
    for start in range(0, shard.rows, rows):
        present = one_hot(shard.codes[start : start + rows], offsets)
        local, reference = (log_responsibilities(present, *side) for side in sides)
        share = np.exp(local)
        cost += np.einsum("idj,idj->j", share, local)[:, None]
        cost -= np.tensordot(share, reference, axes=([0, 1], [0, 1]))
    return cost / n_draws


def pad_weights(weights: NDArray[np.floating], size: int) -> NDArray[np.float64]:
    """Return (size,) weights that sum to one, 1/size for each component that is added.

    Parameters
    ----------
    weights : (component,); means over silos that lack some clusters need not sum to one.
    size : C^m.
    """
    scaled = weights.astype(np.float64) * (len(weights) / size / weights.sum())
    return np.pad(scaled, (0, size - len(weights)), constant_values=1 / size)


def pad_probabilities(
    draws: NDArray[np.floating],
    size: int,
    offsets: NDArray[np.int64],
    beta: float,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return (draw, size, level): the draws, then components drawn from Dirichlet(beta)."""
    n_draws, clusters, levels = draws.shape
    shapes = np.full((size - clusters, levels), beta)
    drawn = draw_levels(shapes, offsets, rng, n_draws)
    return np.concatenate([draws.astype(np.float64), drawn], axis=1)


def one_hot(codes: NDArray[np.unsignedinteger], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (row, level), one where the row has the level; a missing cell has none."""
    sizes = np.diff(offsets)
    present = np.zeros((len(codes), int(offsets[-1])))
    row, variable = np.nonzero(codes < sizes)
    present[row, offsets[variable] + codes[row, variable]] = 1.0
    return present


def log_responsibilities(
    present: NDArray[np.float64],
    weights: NDArray[np.float64],
    probabilities: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return log P(component | row), draw by draw: (row, draw, component).

    Parameters
    ----------
    present : (row, level)
    weights : (component,)
    probabilities : (draw, component, level)
    """
    logs = np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))
    scores = np.tensordot(present, logs, axes=(1, 2)) + np.log(
        np.maximum(weights, SMALLEST_PROBABILITY)
    )
    return log_softmax(scores, axis=2)
