"""`match`: numbering, absorbing and confidence."""

from __future__ import annotations

import numpy as np
from cases.aggregation_cases import counts_of
from cases.families import model_of
from cases.matching_cases import SIZES, QuietSilos, make_release
from numpy.testing import assert_array_equal

from silomix.coordinator import matching as module
from silomix.coordinator.matching import match, number_by_rows
from silomix.kernels.arrays import by_appearance
from silomix.study import Evidence

FIRST, SECOND = [95.0, 5, 90, 5, 5, 95, 5], [5.0, 95, 5, 90, 5, 5, 95]
FRAGMENT = [9.0, 1, 9, 0, 1, 9, 1]


def run(releases, settings=None, seed=0):
    settings, model = settings or Evidence(), model_of(SIZES, seed)
    found, kappa = match(
        releases, counts_of(releases, model), settings, QuietSilos(releases), model, drift=False
    )
    assert kappa is None
    return found


def test_groups_are_numbered_by_rows_then_by_the_roster_or_by_appearance():
    assert_array_equal(by_appearance(np.array([7, 3, 7, 0, 3])), [0, 1, 0, 2, 1])
    groups, sizes = np.array([5, 2, 9, 2, 5, 7]), np.array([10, 30, 40, 10, 30, 1])
    assert_array_equal(number_by_rows(groups, sizes), [0, 1, 2, 1, 0, 3])


def test_correspondence_and_what_happened(monkeypatch):
    releases = [
        make_release([SECOND, FIRST, FRAGMENT], members=[80, 100, 10]),
        make_release([FIRST], place=1, members=[100]),
    ]
    found = run(releases)
    assert found.silos == ("silo 0", "silo 1")
    assert found.method == "evidence"
    assert [group.tolist() for group in found.groups] == [[1, 0, 0], [0]]
    assert [sizes.tolist() for sizes in found.sizes] == [[80, 100, 10], [100]]
    assert found.confidence[1, 3] > 0.99
    assert run(releases, Evidence(absorb=0)).clusters == 3
    monkeypatch.setattr(module, "MOST_LOCAL_CLUSTERS", 2)
    assert run(releases).confidence is None
