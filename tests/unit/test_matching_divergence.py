"""Minimum divergence matching: the silo's costs, the coordinator's turns, the options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from silomix.errors import PolicyRefusal, StudyMismatch
from silomix.matching import divergence as module
from silomix.matching.divergence import (
    REFERENCE_DRAWS,
    Matchable,
    Reference,
    assign,
    divergence_cost,
    divergence_groups,
    make_reference,
    one_hot,
    orders,
    pad_probabilities,
    pad_weights,
    padded,
    precision,
    update,
)
from silomix.messages import DivergenceCost, DivergenceReply
from silomix.release import random_order, release_draws
from silomix.study import Divergence
from silomix.study.policy import echo, policy_named
from unit.aggregation_cases import dirichlet_levels
from unit.matching_cases import (
    PRIOR,
    SIZES,
    RowSilos,
    draw_releases,
    make_release,
    offsets_of,
    plant_rows,
    shard_of,
    together,
)

OFFSETS = offsets_of(SIZES)
ROWS = 25


@pytest.fixture
def question(seed):
    """A reference of four clusters, a silo of two and its rows, a tenth of the cells missing."""
    rng = np.random.default_rng(seed)
    reference = Reference(
        weights=rng.dirichlet(np.ones(4)) * 1.7,
        probabilities=dirichlet_levels(rng, np.ones((4, 7)), SIZES, 6),
        say=np.ones(4),
    )
    codes = np.stack([rng.integers(0, k, ROWS) for k in SIZES], axis=1)
    codes = np.where(rng.random(codes.shape) < 0.1, SIZES, codes).astype(np.uint8)
    weights = rng.dirichlet(np.ones(2))
    probabilities = dirichlet_levels(rng, np.ones((2, 7)), SIZES, 9).astype(np.float32)
    return reference, codes, weights, probabilities


def responsibilities(codes, weights, probabilities):
    """P(component | row) of one draw, cell by cell: (row, component)."""
    shares = np.empty((len(codes), len(weights)))
    for i, row in enumerate(codes):
        for c, weight in enumerate(weights):
            mass = weight
            for q, code in enumerate(row):
                if code < SIZES[q]:
                    mass *= probabilities[c, OFFSETS[q] + code]
            shares[i, c] = mass
    return shares / shares.sum(axis=1, keepdims=True)


def naive_cost(query, codes, weights, probabilities, rng):
    """The definition: draw by draw, pair by pair, row by row."""
    size = 1 + max(len(weights), len(query.weights))
    draws = len(query.probabilities)
    taken = random_order(len(probabilities), draws, rng)
    local = pad_probabilities(probabilities[taken], size, OFFSETS, PRIOR.beta, rng)
    reference = pad_probabilities(query.probabilities, size, OFFSETS, PRIOR.beta, rng)
    cost = np.zeros((size, size))
    for t in range(draws):
        here = responsibilities(codes, pad_weights(weights, size), local[t])
        there = responsibilities(codes, pad_weights(query.weights, size), reference[t])
        for j in range(size):
            for k in range(size):
                for p, r in zip(here[:, j], there[:, k], strict=True):
                    cost[j, k] += p * np.log(p / r)
    return cost / draws


def test_cost_is_its_definition(question, seed):
    query, codes, weights, probabilities = question
    cost = divergence_cost(
        query,
        shard_of(codes, SIZES),
        weights,
        probabilities,
        PRIOR,
        np.random.default_rng(seed),
    )
    expected = naive_cost(query, codes, weights, probabilities, np.random.default_rng(seed))
    assert cost.shape == (5, 5)
    assert_allclose(cost, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("cells", [1, 100])
def test_rows_may_come_in_parts(question, seed, cells, monkeypatch):
    query, codes, weights, probabilities = question
    shard = shard_of(codes, SIZES)
    costs = []
    for at_a_time in (module.CELLS_AT_A_TIME, cells):
        monkeypatch.setattr(module, "CELLS_AT_A_TIME", at_a_time)
        rng = np.random.default_rng(seed)
        costs.append(divergence_cost(query, shard, weights, probabilities, PRIOR, rng))
    assert_allclose(costs[0], costs[1], rtol=1e-10, atol=1e-10)


def test_probability_zero_is_no_infinite_cost(question, seed):
    query, codes, weights, probabilities = question
    certain = probabilities.copy()
    certain[:, 0, :2] = [1, 0]
    cost = divergence_cost(
        query, shard_of(codes, SIZES), weights, certain, PRIOR, np.random.default_rng(seed)
    )
    assert np.isfinite(cost).all()


def test_padding_takes_an_equal_share_of_the_weight():
    assert padded(2, 5) == padded(5, 2) == 6
    assert_allclose(pad_weights(np.array([0.6, 0.2]), 4), [0.375, 0.125, 0.25, 0.25])


def test_padding_is_drawn_from_the_prior(seed):
    drawn = pad_probabilities(np.ones((4000, 1, 7)), 3, OFFSETS, 0.5, np.random.default_rng(seed))
    assert_array_equal(drawn[:, 0], 1.0)
    fresh = drawn[:, 1:].reshape(-1, 7)
    assert_allclose(np.add.reduceat(fresh, OFFSETS[:-1], axis=1), 1.0)
    # a Dirichlet(½, ½) has variance 1/8; five standard errors of 8,000 draws
    assert abs(fresh[:, 0].var() - 1 / 8) < 5 * fresh[:, 0].var() * np.sqrt(2 / 8000)


def test_missing_cells_are_nowhere():
    codes = np.array([[1, 3, 0], [2, 0, 2]], dtype=np.uint8)
    assert_array_equal(one_hot(codes, OFFSETS), [[0, 1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0, 0]])


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


def test_reference_is_the_mean_of_the_silos_that_hold_the_cluster(seed):
    rng = np.random.default_rng(seed)
    silos = [
        Matchable("", rng.random(2), dirichlet_levels(rng, np.ones((2, 7)), SIZES, 3), np.ones(2))
        for _ in range(3)
    ]
    reference = Reference(silos[0].weights, silos[0].probabilities, silos[0].say)
    for silo, group in [(silos[1], [1, 2]), (silos[2], [1, 0])]:
        reference = update(reference, silo, np.array(group))
    p = [silo.probabilities for silo in silos]
    expected = [
        (p[0][:, 0] + p[2][:, 1]) / 2,
        (p[0][:, 1] + p[1][:, 0] + p[2][:, 0]) / 3,
        p[1][:, 1],
    ]
    assert_allclose(reference.probabilities, np.stack(expected, axis=1))
    w = [silo.weights for silo in silos]
    assert_allclose(reference.weights[1], (w[0][1] + w[1][0] + w[2][0]) / 3)
    assert_array_equal(reference.say, [2, 3, 1])


@pytest.mark.parametrize("say", ["mean", "precision"])
def test_the_silo_makes_the_reference_of_the_releases(case, say):
    """The same numbers as whoever updates it silo by silo, from draws of everyone's stream."""
    groups = (np.arange(3), np.array([0, 3, 2]))
    query = DivergenceCost(tuple(case.releases[:2]), groups, 1)
    known = []
    for release in query.releases:
        rng = np.random.default_rng([7, release.place, module.STREAM])
        weights, draws = release_draws(release, REFERENCE_DRAWS, PRIOR, 3, case.offsets, rng)
        sure = precision(release, case.offsets) if say == "precision" else np.ones(3)
        known.append(Matchable(release.silo, weights.mean(axis=0), draws, sure))
    expected = update(Reference(known[0].weights, known[0].probabilities, known[0].say),
                      known[1], groups[1])  # fmt: skip
    found = make_reference(query, say, 3, PRIOR, case.offsets, 7)
    assert query.clusters == 4
    assert_array_equal(found.weights, expected.weights)
    assert_array_equal(found.probabilities, expected.probabilities)
    assert_array_equal(found.say, expected.say)


def test_a_release_that_must_not_be_shown_is_not(case):
    releases = list(case.releases)
    releases[1] = replace(releases[1], policy=echo(policy_named("default")))
    with pytest.raises(PolicyRefusal, match=r"silo-1: its policy does not .*exchanges\.divergence"):
        divergence_groups(releases, Divergence(), None, np.random.default_rng(0))


def test_precision_weighs_the_surer_silo_more():
    vague, sure = ([[10, 10, 10, 5, 5, 10, 10]], [[1000, 1000, 1000, 500, 500, 1000, 1000]])
    releases = [make_release(vague, draws=4000), make_release(sure, draws=4000)]
    says = [precision(release, OFFSETS)[0] for release in releases]
    # variances as those of the draws; the fit by moments is within a few per cent
    variances = [release.probabilities.var(axis=0).mean() for release in releases]
    assert_allclose(says, 1 / np.array(variances), rtol=0.1)
    reference = Reference(np.ones(1), np.zeros((1, 1, 7)), np.array([says[0]]))
    silo = Matchable("", np.ones(1), np.ones((1, 1, 7)), np.array([says[1]]))
    after = update(reference, silo, np.array([0]))
    assert_allclose(after.probabilities, says[1] / sum(says))


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
    groups, info = divergence_groups(case.releases, Divergence(), silos, np.random.default_rng(0))
    truth = np.concatenate(case.correspondence.groups)
    assert_array_equal(together(groups), together(truth))
    assert [list(query) for query in silos.asked] == [["silo-1"], ["silo-2"]]
    rounds = [query.round for asked in silos.asked for query in asked.values()]
    assert rounds == [1, 2]
    (first,) = silos.asked[0].values()
    assert first.releases == (case.releases[0],)
    assert first.clusters == 3
    assert silos.reference(first).probabilities.shape[:2] == (REFERENCE_DRAWS, 3)
    assert info.order == ("silo-0", "silo-1", "silo-2")
    assert info.runs == (info.divergence,)


def test_over_messages_as_in_memory(case):
    """The silos' answers, one at a time, are the costs computed with all rows at hand."""
    silos = RowSilos(case.releases, case.codes, case.sizes)
    groups, info = divergence_groups(case.releases, Divergence(), silos, np.random.default_rng(0))
    queries = {name: query for asked in silos.asked for name, query in asked.items()}
    found = [np.arange(3)]
    summed = 0.0
    for release, codes in zip(case.releases[1:], case.codes[1:], strict=True):
        query = queries[release.silo]
        cost = divergence_cost(
            silos.reference(query),
            shard_of(codes, case.sizes),
            release.weights.mean(axis=0),
            release.probabilities,
            PRIOR,
            np.random.default_rng([release.place, query.round]),
        )
        group, divergence = assign(cost, release.clusters, query.clusters)
        found.append(group)
        summed += divergence
    assert_array_equal(groups, np.concatenate(found))
    assert info.divergence == summed


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
    groups, info = divergence_groups(case.releases, settings, silos, np.random.default_rng(0))
    assert_array_equal(together(groups), together(np.concatenate(case.correspondence.groups)))
    assert len(info.runs) == settings.restarts
    assert info.divergence == min(info.runs)
    rounds = [query.round for asked in silos.asked for query in asked.values()]
    assert len(set(rounds)) == len(rounds) == 2 * settings.restarts


def test_draws_that_stay_in_the_silo_are_made_again(case):
    summaries = [
        replace(r, tier="summary", weights=None, probabilities=None) for r in case.releases
    ]
    silos = RowSilos(case.releases, case.codes, case.sizes)
    groups, _ = divergence_groups(summaries, Divergence(), silos, np.random.default_rng(0))
    assert_array_equal(together(groups), together(np.concatenate(case.correspondence.groups)))


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (np.zeros((3, 3)), r"'silo 1' .* of shape \(3, 3\); 4 × 4 finite"),
        (np.full((4, 4), np.nan), r"shape \(4, 4\), some not finite; 4 × 4 finite"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused(seed, cost, words):
    releases = draw_releases(np.random.default_rng(seed), [range(3), range(2)])

    class Wrong:
        names = ("silo 0", "silo 1")

        def ask(self, query):
            return {name: DivergenceReply(cost) for name in query}

    with pytest.raises(StudyMismatch, match=words):
        divergence_groups(releases, Divergence(), Wrong(), np.random.default_rng(0))
