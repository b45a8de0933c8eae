"""Assignment to a reference silo, against all permutations."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from silomix.matching.hungarian import fullest, hungarian_groups, nearest
from unit.matching_cases import draw_releases, make_release


@pytest.mark.parametrize("clusters", [1, 3, 5])
def test_assignment_is_the_best_of_all(seed, clusters):
    rng = np.random.default_rng(seed)
    medians, reference = rng.random((clusters, 7)), rng.random((5, 7))
    matched = nearest(medians, reference)

    def length(to):
        return sum(np.linalg.norm(medians[k] - reference[r]) for k, r in enumerate(to))

    best = min(permutations(range(5), clusters), key=length)
    assert_array_equal(matched, best)


def test_distance_counts_every_level():
    """Without the last level the first reference would be the nearer one."""
    medians = np.array([[0.5, 0.5, 0.0]])
    reference = np.array([[0.5, 0.6, 0.9], [0.5, 0.3, 0.0]])
    assert_array_equal(nearest(medians, reference), [1])


def test_reference_has_most_clusters_then_most_rows_then_comes_first(seed):
    rng = np.random.default_rng(seed)
    few, many, more_rows = draw_releases(rng, [range(2), range(4), range(4)])
    assert more_rows.rows > many.rows
    assert fullest([few, many]) == 1
    assert fullest([few, many, more_rows]) == 2
    assert fullest([many, more_rows, few]) == 1
    same = replace(more_rows, rows=many.rows)
    assert fullest([few, many, same]) == 1


def test_info_names_the_reference(seed):
    releases = draw_releases(np.random.default_rng(seed), [range(2), range(4), range(3)])
    _, info = hungarian_groups(releases)
    assert info.reference == "silo 1"


def test_clusters_beyond_the_reference_open_groups():
    one = [[30, 0, 30, 0, 0, 30, 0]]
    three = [[30, 0, 30, 0, 0, 30, 0], [0, 30, 0, 30, 0, 0, 30], [0, 30, 0, 0, 30, 30, 0]]
    releases = [
        make_release(counts, place=place) for place, counts in enumerate([one, three, three])
    ]
    groups, info = hungarian_groups(releases, reference=0)
    assert_array_equal(groups, [0, 0, 1, 2, 0, 3, 4])
    assert info.reference == "silo 0"
