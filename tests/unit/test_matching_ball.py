"""Ball matching, against a walk over all pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist

from silomix.matching import ball as module
from silomix.matching.ball import ball_groups, components, free_coordinates
from unit.matching_cases import SIZES, draw_releases, make_release, offsets_of, together

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
    assert_array_equal(together(components(points, radii, cdist)), walk(points, radii))


def test_one_ball_is_enough_and_its_rim_is_outside():
    points = np.array([[0.0], [1.0]])
    for radii, joined in [((1.5, 0.0), True), ((0.0, 1.5), True), ((1.0, 1.0), False)]:
        assert (together(components(points, np.array(radii), cdist)).all()) == joined


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
        groups, _ = ball_groups(pair, OFFSETS, exponent=exponent)
        assert (groups[0] == groups[1]) == joined


def test_a_silo_of_one_row_has_no_ball_but_may_lie_in_one(seed):
    lone = make_release([[1, 0, 1, 0, 0, 1, 0]], place=0)
    other = make_release([[1, 0, 1, 0, 0, 1, 0]], place=1, silo="other")
    same = replace(other, medians=lone.medians)
    groups, _ = ball_groups([lone, same], OFFSETS)
    assert groups[0] != groups[1]
    groups, _ = ball_groups([lone, replace(same, rows=50)], OFFSETS)
    assert groups[0] == groups[1]


def test_own_radius_and_own_distance(seed):
    releases = draw_releases(np.random.default_rng(seed), [range(3), range(3)])
    groups, _ = ball_groups(releases, OFFSETS, radius=1e-9)
    assert len(np.unique(groups)) == 6
    groups, _ = ball_groups(releases, OFFSETS, radius=100.0)
    assert len(np.unique(groups)) == 1

    def first_coordinate(points, others):
        return np.abs(points[:, :1] - others[:, 0])

    points = np.concatenate([r.medians for r in releases])[:, :1]
    groups, _ = ball_groups(releases, OFFSETS, radius=0.1, distance=first_coordinate)
    assert_array_equal(together(groups), walk(points, np.full(6, 0.1)))


def test_clusters_of_one_silo_may_merge():
    twins = [[30, 10, 20, 10, 10, 10, 30]] * 2
    groups, _ = ball_groups([make_release(twins)], OFFSETS, radius=0.5)
    assert groups[0] == groups[1]


def test_answer_depends_on_which_level_is_last():
    """The documented price of dropping one: the same two clusters, levels in another order."""
    first, second = (
        np.array([[0.0, 1, 0.5, 0.5, 0.0, 0, 1]]),
        np.array([[0.0, 1, 0.5, 0.1, 0.4, 0, 1]]),
    )
    swapped = [0, 1, 3, 4, 2, 5, 6]
    seen = [
        cdist(free_coordinates(first[:, o], OFFSETS), free_coordinates(second[:, o], OFFSETS))
        for o in (list(range(7)), swapped)
    ]
    assert_allclose(seen[0], 0.4)
    assert_allclose(seen[1], np.hypot(0.4, 0.4))
