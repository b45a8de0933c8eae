"""The matchings of Fendler et al. (2026) that are not the default: ball, Hungarian, and divergence.

Ball and Hungarian compare the clusters' medians. "divergence" matches each silo in turn to a
running reference, at a cost computed on the silo's own rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from silomix.coordinator.aggregation import objective as elbo
from silomix.errors import StudyMismatch
from silomix.messages import DivergenceCost, DivergenceReply, Release, Silos
from silomix.messages.released_draws import padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.coordinator.matching import MatchingProblem
    from silomix.kernels.arrays import Floats, Ints, Reals
    from silomix.paper import Ball, Divergence, Hungarian

# clusters whose distances to all others are in memory at a time
BLOCK = 1000


def ball_groups(problem: MatchingProblem, settings: Ball) -> Ints:
    """Connected components of the graph of close clusters: (local,).

    Ball matching (Fendler et al., 2026, algorithm 2). An edge needs one cluster inside the
    other's ball, not both: the algorithm as printed adds an edge for each direction. Clusters
    of one silo may be connected too. The last level of each variable is dropped, as in the
    paper, so with three levels or more the answer depends on their order.

    Parameters
    ----------
    settings : one radius for every cluster, or the exponent of the radius (log n_s / n_s)^exponent
        of a silo's clusters: 1/4 for an over-fitted mixture, 1/2 for a finite one. A silo of one
        row has radius 0: its cluster is matched only if it lies in another's ball.
    """
    releases, family = problem.releases, problem.evidence.family
    points = family.free_coordinates(np.concatenate(problem.medians))
    if settings.radius is not None:
        return components(points, np.full(len(points), settings.radius))
    rows = np.repeat([float(r.rows) for r in releases], [r.clusters for r in releases])
    return components(points, (np.log(rows) / rows) ** settings.exponent)


def components(points: Reals, radii: Floats) -> Ints:
    """Component of each point, joined to all points nearer than either's radius.

    Parameters
    ----------
    points : (point, coordinate); radii : (point,)
    """
    edges = []
    for start in range(0, len(points), BLOCK):
        some = slice(start, start + BLOCK)
        reach = np.maximum(radii[some, None], radii)
        near, far = np.nonzero(cdist(points[some], points) < reach)
        edges.append(np.stack([near + start, far]))
    ends = np.concatenate(edges, axis=1)
    graph = coo_array((np.ones(ends.shape[1], dtype=np.int8), tuple(ends)), (len(points),) * 2)
    return connected_components(graph, directed=False)[1].astype(np.int64)


def hungarian_groups(problem: MatchingProblem, _: Hungarian) -> Ints:
    """Assign clusters to a reference silo's so that the medians' distance is least: (local,).

    Fendler et al. (2026), section "Cluster matching", after Rabinovich, Angelino and Jordan
    (2015): Euclidean distance over all coordinates, of categories ΣK_q. As many clusters as
    possible are matched, however far apart: where no silo holds every cluster it cannot be right.
    The reference is the silo with most clusters, then most rows, then first in the roster.
    """
    releases, family = problem.releases, problem.evidence.family
    reference = max(range(len(releases)), key=lambda s: (releases[s].clusters, releases[s].rows))
    points = [family.coordinates(medians) for medians in problem.medians]
    costs = [cdist(part, points[reference]) for part in points]
    return np.concatenate([linear_sum_assignment(cost)[1] for cost in costs])


def divergence_groups(problem: MatchingProblem, settings: Divergence) -> Ints:
    """Match silo after silo to the mean of those matched before: (local,).

    Minimum divergence matching (Fendler et al., 2026, algorithm 1), with the options of its
    discussion: the first run goes through the roster, from its first or from its most
    informative silo; each of the other `restarts` takes the silos in a random order. The run
    with the smallest summed divergence is kept.

    Parameters
    ----------
    problem : its silos are asked one at a time for the cost of the reference so far.
    settings : restarts and start; the silos, which make the reference, look at the rest.
    """
    releases, silos = problem.releases, problem.silos
    needs = 'as the matching "divergence" needs; choose another matching'
    why = f"nor other clusters be compared with its rows, {needs}"
    elbo.check_exchange(releases, "divergence", why)
    tried = enumerate(orders(problem, settings))
    runs = [match_in_order(releases, order, silos, number) for number, order in tried]
    return min(runs, key=lambda run: run[1])[0]


def orders(problem: MatchingProblem, settings: Divergence) -> list[list[int]]:
    """Orders of the silos to try."""
    first = 0
    if settings.start == "most-informative":
        clusters = problem.clusters
        first = int(np.argmax(np.bincount(clusters.silo, clusters.counts.sum(axis=1))))
    silos = len(problem.releases)
    others = [place for place in range(silos) if place != first]
    shuffled = [problem.rng.permutation(silos).tolist() for _ in range(settings.restarts - 1)]
    return [[first, *others], *shuffled]


def match_in_order(
    releases: Sequence[Release], order: Sequence[int], silos: Silos, number: int
) -> tuple[Ints, float]:
    """Make run `number`: match the silos one after the other, the first being the reference.

    Returns
    -------
    groups : (local,)
    divergence : summed cost of the assignments.
    """
    groups = {order[0]: np.arange(releases[order[0]].clusters)}
    total = 0.0
    for step, place in enumerate(order[1:], start=1):
        own = releases[place]
        shown = tuple(releases[other] for other in groups)
        query = DivergenceCost(shown, tuple(groups.values()), round=number * len(order) + step)
        reply: DivergenceReply = silos.ask({own.silo: query})[own.silo]
        size = padded(own.clusters, query.clusters)
        if reply.cost.shape != (size, size):
            raise StudyMismatch(
                f"{own.silo!r} answered the divergence question with costs of shape "
                f"{reply.cost.shape}; {size} × {size} were asked for: let it answer again, with "
                "the release of the same study"
            )
        groups[place], divergence = assign(reply.cost, own.clusters, query.clusters)
        total += divergence
    return np.concatenate([groups[place] for place in range(len(releases))]), total


def assign(cost: Floats, clusters: int, reference: int) -> tuple[Ints, float]:
    """Group of each local cluster, and the summed divergence.

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
