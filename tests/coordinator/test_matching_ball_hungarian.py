"""Matching by medians: balls against a walk over all pairs, Hungarian against all permutations."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from cases.matching_cases import SIZES, draw_releases, make_release, offsets_of, together
from numpy.testing import assert_array_equal

from silomix.coordinator.matching import paper_matchings as module
from silomix.coordinator.matching.paper_matchings import (
    ball_groups,
    components,
    free_coordinates,
    hungarian_groups,
)
from silomix.study.settings import Ball

OFFSETS = offsets_of(SIZES)


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
def test_components_are_those_of_a_walk(seed, reach, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    rng = np.random.default_rng(seed)
    points, radii = rng.random((25, 2)), reach * rng.random(25)
    assert_array_equal(together(components(points, radii)), walk(points, radii))


def test_one_ball_is_enough_and_its_rim_is_outside():
    points = np.array([[0.0], [1.0]])
    for radii, joined in [((1.5, 0.0), True), ((0.0, 1.5), True), ((1.0, 1.0), False)]:
        assert (together(components(points, np.array(radii))).all()) == joined


def test_last_level_of_each_variable_is_dropped():
    assert_array_equal(free_coordinates(np.arange(7.0)[None], OFFSETS), [[0, 2, 3, 5]])


@pytest.mark.parametrize("exponent", [0.25, 0.5])
def test_radius_of_a_silo_comes_from_its_rows(exponent):
    """Two clusters apart by just less, or just more, than the larger of the two radii."""
    small, large = (make_release([[20, 20, 20, 10, 10, 20, 20]], place=p) for p in range(2))
    small, large = replace(small, rows=40), replace(large, rows=4000)
    radius = (np.log(40) / 40) ** exponent
    for factor, joined in [(0.99, True), (1.01, False)]:
        shifted = large.medians.copy()
        shifted[0, 0] = small.medians[0, 0] + factor * radius
        shifted[0, 1:] = small.medians[0, 1:]
        pair = [small, replace(large, medians=shifted)]
        groups = ball_groups(pair, OFFSETS, Ball(exponent=exponent))
        assert (groups[0] == groups[1]) == joined


def test_a_silo_of_one_row_has_no_ball_but_may_lie_in_one(seed):
    lone = make_release([[1, 0, 1, 0, 0, 1, 0]], place=0)
    other = make_release([[1, 0, 1, 0, 0, 1, 0]], place=1, silo="other")
    same = replace(other, medians=lone.medians)
    groups = ball_groups([lone, same], OFFSETS, Ball())
    assert groups[0] != groups[1]
    groups = ball_groups([lone, replace(same, rows=50)], OFFSETS, Ball())
    assert groups[0] == groups[1]


def test_clusters_of_one_silo_may_merge():
    twins = [[30, 10, 20, 10, 10, 10, 30]] * 2
    groups = ball_groups([make_release(twins)], OFFSETS, Ball(radius=0.5))
    assert groups[0] == groups[1]


@pytest.mark.parametrize("clusters", [1, 3, 5])
def test_assignment_is_the_best_of_all_and_every_level_counts(seed, clusters):
    rng = np.random.default_rng(seed)
    reference, few = draw_releases(rng, [range(5), range(clusters)])
    groups = hungarian_groups([reference, few])[5:]

    def length(to):
        return sum(np.linalg.norm(few.medians[k] - reference.medians[r]) for k, r in enumerate(to))

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
        assert_array_equal(hungarian_groups(releases), expected)
