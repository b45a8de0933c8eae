"""The paper's matchings: balls against a walk, Hungarian against all permutations, divergence."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from cases.families import categories
from cases.matching_cases import (
    SIZES,
    RowSilos,
    draw_releases,
    make_release,
    plant_rows,
    together,
)
from numpy.testing import assert_array_equal

from silomix.coordinator.matching import MatchingProblem
from silomix.coordinator.matching.evidence import DriftEvidence, local_clusters
from silomix.errors import PolicyRefusal
from silomix.messages.released_draws import REFERENCE_DRAWS, release_medians
from silomix.paper import Ball, Divergence, Hungarian
from silomix.paper import matchings as module
from silomix.paper.matchings import (
    assign,
    ball_groups,
    components,
    divergence_groups,
    hungarian_groups,
    orders,
)
from silomix.study.policy import echo, find_policy

FAMILY = categories(SIZES)


def problem_of(releases, silos=None):
    """What `match` gives a matching."""
    counts = [release.mean * release.sizes[:, None] for release in releases]
    clusters = local_clusters(releases, counts)
    start = np.arange(len(clusters.silo))
    rng = np.random.default_rng(0)
    return MatchingProblem(releases, clusters, DriftEvidence(FAMILY), start, silos, rng)


def walk(points, radii):
    """Which points can be reached from which, one pair at a time: (point, point)."""
    count = len(points)
    reached = np.eye(count, dtype=bool)
    for a in range(count):
        for b in range(count):
            distance = np.sqrt(((points[a] - points[b]) ** 2).sum())
            if distance < radii[a] or distance < radii[b]:
                reached[a, b] = reached[b, a] = True
    for middle in range(count):
        reached |= reached[:, [middle]] & reached[[middle], :]
    return reached


@pytest.mark.parametrize("block", [1, 4, 1000])
@pytest.mark.parametrize("reach", [0.05, 0.15, 0.3])
def test_components_are_those_of_a_walk(rng, reach, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    points, radii = rng.random((25, 2)), reach * rng.random(25)
    assert_array_equal(together(components(points, radii)), walk(points, radii))
    points = np.array([[0.0], [1.0]])  # one ball is enough, and its rim is outside
    for radii, joined in [((1.5, 0.0), True), ((0.0, 1.5), True), ((1.0, 1.0), False)]:
        assert (together(components(points, np.array(radii))).all()) == joined


@pytest.mark.parametrize("exponent", [0.25, 0.5])
def test_radius_of_a_silo_comes_from_its_rows(exponent):
    """Two clusters apart by just less, or just more, than the larger of the two radii.

    The last level of a variable follows from the others, and is no coordinate.
    """
    small, large = (make_release([[20, 20, 20, 10, 10, 20, 20]], place=p) for p in range(2))
    small = replace(small, sizes=np.array([40]))
    large = replace(large, sizes=np.array([4000]))
    radius = (np.log(40) / 40) ** exponent
    for factor, joined in [(0.99, True), (1.01, False)]:
        shifted = release_medians(small, FAMILY).astype(np.float32)
        shifted[0, 0] += factor * radius
        pair = [small, replace(large, parameters=np.tile(shifted, (5, 1, 1)))]
        groups = ball_groups(problem_of(pair), Ball(exponent=exponent))
        assert (groups[0] == groups[1]) == joined


@pytest.mark.parametrize("clusters", [1, 3, 5])
def test_assignment_is_the_best_of_all_and_every_level_counts(rng, clusters):
    reference, few = draw_releases(rng, [range(5), range(clusters)])
    groups = hungarian_groups(problem_of([reference, few]), Hungarian())[5:]
    wanted, found = (release_medians(release, FAMILY) for release in (reference, few))

    def length(to):
        return sum(np.linalg.norm(found[k] - wanted[r]) for k, r in enumerate(to))

    if clusters < 5:  # otherwise the silo with more rows is the reference
        assert_array_equal(groups, min(permutations(range(5), clusters), key=length))
    assert len(set(groups)) == clusters


def test_the_reference_has_most_clusters_then_most_rows_then_comes_first():
    """Its clusters are numbered as they are."""
    one = [[30, 0, 30, 0, 0, 30, 0]]
    three = [[0, 40, 0, 40, 0, 0, 40], *one, [0, 30, 0, 0, 30, 30, 0]]
    more, swapped = np.multiply(three, 2), three[::-1]
    for counts, expected in [
        ([one, three], [1, 0, 1, 2]),
        ([three, more[::-1]], [2, 1, 0, 0, 1, 2]),
        ([three, swapped], [0, 1, 2, 2, 1, 0]),
        ([one, one], [0, 0]),
    ]:
        releases = [make_release(each, place=place) for place, each in enumerate(counts)]
        assert_array_equal(hungarian_groups(problem_of(releases), Hungarian()), expected)


@pytest.mark.parametrize(
    ("cost", "clusters", "reference", "groups"),
    [
        ([[1.0, 9, 9], [9, 5, 9], [9, 9, 5]], 2, 2, [0, 2]),
        ([[1.0, 9, 9], [9, 5 - 1e-9, 9], [9, 9, 5]], 2, 2, [0, 1]),
        ([[3.0, 8, 0], [8, 3, 9], [0, 9, 2]], 2, 2, [2, 3]),
        ([[9.0, 9, 1, 9], [9, 9, 9, 9], [9, 9, 9, 9], [9, 9, 9, 5]], 1, 3, [2]),
    ],
    ids=["as costly as chance", "less", "chance is not assigned", "one real cluster"],
)
def test_pairs_as_costly_as_chance_are_not_matched(cost, clusters, reference, groups):
    """The last cell, of two components of the prior, judges even where they go to real ones."""
    group, summed = assign(np.array(cost), clusters, reference)
    assert_array_equal(group, groups)
    ways = permutations(range(len(cost)))
    assert summed == min(sum(cost[k][to] for k, to in enumerate(way)) for way in ways)


def test_a_release_that_must_not_be_shown_is_not(case):
    releases = list(case.releases)
    releases[1] = replace(releases[1], policy=echo(find_policy("default")))
    with pytest.raises(PolicyRefusal, match=r"silo-1: its policy does not .*exchanges\.divergence"):
        divergence_groups(problem_of(releases), Divergence())


def test_first_order_is_the_roster_or_begins_with_the_most_informative():
    releases = [make_release([[n, n, n, n, 0, n, n]], place=p) for p, n in enumerate([5, 9, 7])]
    problem = problem_of(releases)
    (only,) = orders(problem, Divergence())
    assert_array_equal(only, [0, 1, 2])
    (only,) = orders(problem, Divergence(start="most-informative"))
    assert_array_equal(only, [1, 0, 2])
    several = orders(problem, Divergence(restarts=20))
    assert len(several) == 20
    assert len({tuple(order) for order in several}) > 3
    assert all(sorted(order) == [0, 1, 2] for order in several)


@pytest.fixture
def case(seed):
    """Three silos; the second lacks the first cluster and the first the last."""
    holds = [[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 0]]
    return plant_rows(seed, holds, (150, 120, 90), missing=0.05)


@pytest.mark.parametrize(
    "options",
    [{}, {"restarts": 4}, {"start": "most-informative"}, {"reference": "precision"}],
    ids=str,
)
@pytest.mark.parametrize("tier", ["draws", "summary"])
def test_divergence_asks_one_silo_at_a_time_and_finds_the_truth(case, options, tier):
    """Draws that stay in the silo are made again."""
    settings = Divergence(**options)
    silos = RowSilos(case.releases, case.codes, case.sizes, settings.reference)
    none = {"tier": "summary", "weights": None, "parameters": None}
    releases = [replace(r, **none) if tier == "summary" else r for r in case.releases]
    groups = divergence_groups(problem_of(releases, silos), settings)
    assert_array_equal(together(groups), together(np.concatenate(case.correspondence.groups)))
    rounds = [query.round for asked in silos.asked for query in asked.values()]
    assert len(set(rounds)) == len(rounds) == 2 * settings.restarts
    if not options:
        assert rounds == [1, 2]
        assert [list(query) for query in silos.asked] == [["silo-1"], ["silo-2"]]
        (first,) = silos.asked[0].values()
        assert first.releases == (releases[0],)
        assert first.clusters == 3
        assert silos.reference(first).parameters.shape[:2] == (REFERENCE_DRAWS, 3)
