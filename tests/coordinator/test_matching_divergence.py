"""Minimum divergence matching: the silo's costs, the coordinator's turns, the options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.matching_cases import (
    RowSilos,
    draw_releases,
    make_release,
    plant_rows,
    together,
)
from numpy.testing import assert_array_equal

from silomix.coordinator.matching.paper_matchings import assign, divergence_groups, orders
from silomix.errors import PolicyRefusal, StudyMismatch
from silomix.messages import DivergenceReply
from silomix.messages.released_draws import REFERENCE_DRAWS
from silomix.study import Divergence
from silomix.study.policy import echo, find_policy


def test_pairs_as_costly_as_chance_are_not_matched():
    chance = 5.0
    cost = np.array([[1.0, 9, 9], [9, chance, 9], [9, 9, chance]])
    group, summed = assign(cost, 2, 2)
    assert_array_equal(group, [0, 2])
    assert summed == 1 + chance + chance
    cost[1, 1] -= 1e-9
    assert_array_equal(assign(cost, 2, 2)[0], [0, 1])


def test_chance_is_a_cell_even_where_the_assignment_avoids_it():
    """The two prior components go to real ones; the cell between them still judges."""
    cost = np.array([[3.0, 8, 0], [8, 3, 9], [0, 9, 2]])
    group, _ = assign(cost, 2, 2)
    assert_array_equal(group, [2, 3])


def test_only_real_local_clusters_open_groups():
    cost = np.full((4, 4), 9.0)
    cost[0, 2] = 1.0
    cost[3, 3] = 5.0
    group, _ = assign(cost, 1, 3)
    assert_array_equal(group, [2])


def test_a_release_that_must_not_be_shown_is_not(case):
    releases = list(case.releases)
    releases[1] = replace(releases[1], policy=echo(find_policy("default")))
    with pytest.raises(PolicyRefusal, match=r"silo-1: its policy does not .*exchanges\.divergence"):
        divergence_groups(releases, Divergence(), None, np.random.default_rng(0))


def test_first_order_is_the_roster_or_begins_with_the_most_informative(seed):
    releases = [make_release([[n, n, n, n, 0, n, n]], place=p) for p, n in enumerate([5, 9, 7])]
    rng = np.random.default_rng(seed)
    (only,) = orders(releases, Divergence(), rng)
    assert_array_equal(only, [0, 1, 2])
    (only,) = orders(releases, Divergence(start="most-informative"), rng)
    assert_array_equal(only, [1, 0, 2])
    several = orders(releases, Divergence(restarts=20), rng)
    assert len(several) == 20
    assert len({tuple(order) for order in several}) > 3
    assert all(sorted(order) == [0, 1, 2] for order in several)


@pytest.fixture
def case(seed):
    """Three silos; the second lacks the first cluster and the first the last."""
    holds = [[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 0]]
    return plant_rows(seed, holds, (150, 120, 90), missing=0.05)


def test_asks_one_silo_at_a_time_and_finds_the_truth(case):
    silos = RowSilos(case.releases, case.codes, case.sizes)
    groups = divergence_groups(case.releases, Divergence(), silos, np.random.default_rng(0))
    truth = np.concatenate(case.correspondence.groups)
    assert_array_equal(together(groups), together(truth))
    assert [list(query) for query in silos.asked] == [["silo-1"], ["silo-2"]]
    rounds = [query.round for asked in silos.asked for query in asked.values()]
    assert rounds == [1, 2]
    (first,) = silos.asked[0].values()
    assert first.releases == (case.releases[0],)
    assert first.clusters == 3
    assert silos.reference(first).probabilities.shape[:2] == (REFERENCE_DRAWS, 3)


@pytest.mark.parametrize(
    "settings",
    [
        Divergence(restarts=4),
        Divergence(start="most-informative"),
        Divergence(reference="precision"),
    ],
    ids=["restarts", "start", "reference"],
)
def test_options_find_the_truth_too(case, settings):
    silos = RowSilos(case.releases, case.codes, case.sizes, settings.reference)
    groups = divergence_groups(case.releases, settings, silos, np.random.default_rng(0))
    assert_array_equal(together(groups), together(np.concatenate(case.correspondence.groups)))
    rounds = [query.round for asked in silos.asked for query in asked.values()]
    assert len(set(rounds)) == len(rounds) == 2 * settings.restarts


def test_draws_that_stay_in_the_silo_are_made_again(case):
    summaries = [
        replace(r, tier="summary", weights=None, probabilities=None) for r in case.releases
    ]
    silos = RowSilos(case.releases, case.codes, case.sizes)
    groups = divergence_groups(summaries, Divergence(), silos, np.random.default_rng(0))
    assert_array_equal(together(groups), together(np.concatenate(case.correspondence.groups)))


def test_a_reply_that_does_not_fit_is_refused(seed):
    releases = draw_releases(np.random.default_rng(seed), [range(3), range(2)])

    class Wrong:
        names = ("silo 0", "silo 1")

        def ask(self, query):
            return {name: DivergenceReply(np.zeros((3, 3))) for name in query}

    with pytest.raises(StudyMismatch, match=r"'silo 1' .* of shape \(3, 3\); 4 × 4"):
        divergence_groups(releases, Divergence(), Wrong(), np.random.default_rng(0))


def test_the_run_with_the_smallest_divergence_is_kept(case, monkeypatch):
    runs = iter([(np.array([0]), 3.0), (np.array([1]), 2.0), (np.array([2]), 2.5)])
    monkeypatch.setattr(
        "silomix.coordinator.matching.paper_matchings.match_in_order", lambda *_: next(runs)
    )
    rng = np.random.default_rng(0)
    assert divergence_groups(case.releases, Divergence(restarts=3), None, rng) == [1]
