"""Draws remade from releases: in the global clusters' terms, and as a reference to match to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.aggregation_cases import PRIOR, dirichlet_levels, make_case
from cases.families import categories, model_of, shard_of
from cases.matching_cases import SIZES, make_release, offsets_of
from numpy.testing import assert_allclose, assert_array_equal

from silomix.families.chains import Rows
from silomix.families.family import SMALLEST
from silomix.messages import DivergenceCost
from silomix.messages import released_draws as module
from silomix.messages.released_draws import (
    Reference,
    divergence_cost,
    make_reference,
    matched_draws,
    mix,
    padded,
    precision,
    random_order,
)
from silomix.model.draws import MatchedDraws

HOLDS = [[1, 1, 0], [0, 1, 1], [1, 1, 1]]


@pytest.fixture
def case(seed):
    return make_case(seed, rows=(60, 50, 40), clusters=3, sizes=(2, 3), holds=HOLDS, draws=30)


def match(case, count=30, seed=7, releases=None, groups=None):
    releases = case.releases if releases is None else releases
    groups = case.correspondence.groups if groups is None else groups
    return matched_draws(releases, groups, count, case.model(seed))


def rows_of(array):
    return {row.tobytes() for row in array}


def test_a_silo_has_its_own_draws_where_it_holds_a_cluster_and_zeros_elsewhere(case):
    matched = match(case)
    assert_array_equal(matched.held, np.array(HOLDS, bool))
    assert not matched.weights.transpose(0, 2, 1)[~matched.held].any()
    assert not matched.parameters.transpose(0, 2, 1, 3)[~matched.held].any()
    for s, release in enumerate(case.releases):
        here = matched.held[s]
        own = release.weights.astype(float)
        assert rows_of(matched.weights[s][:, here]) == rows_of(own)
        # weights and profiles of one draw stay together
        order = [
            int(np.flatnonzero((own == row).all(axis=1))[0]) for row in matched.weights[s][:, here]
        ]
        assert_array_equal(matched.parameters[s][:, here], release.parameters[order].astype(float))


def test_draws_of_different_silos_are_not_paired(case):
    """Two silos with the very same release, draw for draw."""
    twins = [case.releases[0], replace(case.releases[0], silo="silo-1", place=1)]
    found = match(case, releases=twins, groups=[np.arange(2)] * 2)
    assert rows_of(found.weights[0]) == rows_of(found.weights[1])
    assert (found.weights[0] != found.weights[1]).any()


def test_the_order_of_the_silos_does_not_matter_the_seed_and_the_place_do(case):
    matched = match(case)
    order = [2, 0, 1]
    releases, groups = case.releases, case.correspondence.groups
    found = match(case, releases=[releases[s] for s in order], groups=[groups[s] for s in order])
    assert_array_equal(found.weights, matched.weights[order])
    assert_array_equal(found.parameters, matched.parameters[order])
    assert (match(case, seed=8).weights != matched.weights).any()


def test_clusters_of_one_silo_in_one_group_add_up(case):
    last = case.releases[2:]
    three, two = (match(case, releases=last, groups=[np.array(g)]) for g in ([0, 1, 2], [0, 1, 0]))
    weights, profiles = three.weights[0], three.parameters[0]
    assert_allclose(two.weights[0, :, 0], weights[:, 0] + weights[:, 2], rtol=1e-15)
    expected = weights[:, [0]] * profiles[:, 0] + weights[:, [2]] * profiles[:, 2]
    expected /= weights[:, [0]] + weights[:, [2]]
    assert_allclose(two.parameters[0, :, 0], expected, rtol=1e-14)
    assert_array_equal(two.parameters[0, :, 1], profiles[:, 1])
    # without weight they mix evenly
    weightless = replace(last[0], weights=np.zeros_like(last[0].weights))
    found = match(case, releases=[weightless], groups=[np.zeros(3, int)])
    assert not found.weights.any()
    assert_allclose(found.parameters.sum(axis=-1), 2, rtol=1e-6)  # two variables, in float32


@pytest.mark.parametrize("count", [10, 30, 75])
def test_a_release_gives_as_many_draws_as_are_asked_for(case, count):
    matched = match(case, count=count)
    assert matched.weights.shape == (3, count, 3)
    # all of them before any twice
    distinct = len(rows_of(matched.weights[0]))
    assert distinct == min(count, 30)


def test_a_summary_is_drawn_afresh(case):
    release = case.releases[2]
    summary = replace(release, tier="summary", weights=None, parameters=None)
    found = match(case, count=4000, releases=[summary], groups=[np.arange(3)])
    alpha, _ = PRIOR.share(1)
    expected = (release.sizes + alpha) / (release.sizes + alpha).sum()
    # five standard errors of the mean of a Dirichlet weight
    error = np.sqrt(expected * (1 - expected) / (release.rows + 1) / 4000)
    assert (np.abs(found.weights[0].mean(axis=0) - expected) < 5 * error).all()


def test_draws_mix_to_the_weighted_sum_and_never_to_zero(case, rng):
    matched = match(case)
    few = matched.some(0, 12)
    assert_array_equal(few.parameters, matched.parameters[:, :12])
    weights = rng.dirichlet(np.ones(3))
    raw = matched.held * rng.random((3, 3))
    profiles = raw / raw.sum(axis=0)
    shares, probabilities = mix(matched, weights, profiles, case.family)
    assert_allclose(shares, np.einsum("s,stc->tc", weights, matched.weights), rtol=1e-14)
    expected = np.einsum("sc,stcl->tcl", profiles, matched.parameters)
    assert_allclose(probabilities, expected, rtol=1e-14)
    empty = matched.parameters.copy()
    empty[:, :, 1, 0] = 0.0
    empty = MatchedDraws(matched.weights, empty, matched.held)
    _, lifted = mix(empty, weights, profiles, case.family)
    assert (lifted[:, 1, 0] == SMALLEST).all()


OFFSETS, FAMILY = offsets_of(SIZES), categories(SIZES)
ROWS = 25


@pytest.fixture
def question(seed):
    """A reference of four clusters, a silo of two and its rows, a tenth of the cells missing."""
    rng = np.random.default_rng(seed)
    reference = Reference(
        weights=rng.dirichlet(np.ones(4)) * 1.7,
        parameters=dirichlet_levels(rng, np.ones((4, 7)), SIZES, 6),
        influence=np.ones(4),
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


def naive_cost(reference, codes, weights, probabilities, rng):
    """The definition: draw by draw, pair by pair, row by row."""
    size = 1 + max(len(weights), len(reference.weights))
    draws = len(reference.parameters)
    taken = random_order(len(probabilities), draws, rng)
    local = module._pad_parameters(probabilities[taken], size, FAMILY, rng)
    others = module._pad_parameters(reference.parameters, size, FAMILY, rng)
    cost = np.zeros((size, size))
    for t in range(draws):
        here = responsibilities(codes, module._pad_weights(weights, size), local[t])
        there = responsibilities(codes, module._pad_weights(reference.weights, size), others[t])
        for j in range(size):
            for k in range(size):
                for p, r in zip(here[:, j], there[:, k], strict=True):
                    cost[j, k] += p * np.log(p / r)
    return cost / draws


def test_cost_is_its_definition_however_many_rows_at_a_time(question, seed, monkeypatch):
    reference, codes, *own = question
    rows = Rows(shard_of(codes, SIZES), FAMILY)
    expected = naive_cost(reference, codes, *own, np.random.default_rng(seed))
    assert expected.shape == (5, 5)
    for cells in (module.CELLS_AT_A_TIME, 1, 100):
        monkeypatch.setattr(module, "CELLS_AT_A_TIME", cells)
        cost = divergence_cost(reference, rows, *own, np.random.default_rng(seed))
        assert_allclose(cost, expected, rtol=1e-8, atol=1e-8)
    own[1][:, 0, :2] = [1, 0]  # probability zero is no infinite cost
    cost = divergence_cost(reference, rows, *own, np.random.default_rng(seed))
    assert np.isfinite(cost).all()


def test_padding_takes_an_equal_share_and_is_drawn_from_the_prior(rng):
    assert padded(2, 5) == padded(5, 2) == 6
    assert_allclose(module._pad_weights(np.array([0.6, 0.2]), 4), [0.375, 0.125, 0.25, 0.25])
    drawn = module._pad_parameters(np.ones((4000, 1, 7)), 3, FAMILY, rng)
    assert_array_equal(drawn[:, 0], 1.0)
    fresh = drawn[:, 1:].reshape(-1, 7)
    assert_allclose(np.add.reduceat(fresh, OFFSETS[:-1], axis=1), 1.0)
    # a Dirichlet(½, ½) has variance 1/8; five standard errors of 8,000 draws
    assert abs(fresh[:, 0].var() - 1 / 8) < 5 * fresh[:, 0].var() * np.sqrt(2 / 8000)


@pytest.mark.parametrize("influence", ["mean", "precision"])
def test_the_reference_is_the_mean_of_the_silos_that_hold_the_cluster(rng, influence):
    releases = [make_release(rng.integers(1, 60, (2, 7)), place=place) for place in range(3)]
    groups = [np.array([0, 1]), np.array([1, 2]), np.array([1, 0])]
    about = influence, model_of(SIZES, 7), 3
    own = [make_reference(DivergenceCost((r,), (np.arange(2),), 0), *about) for r in releases]
    found = make_reference(DivergenceCost(tuple(releases), tuple(groups), 0), *about)
    for cluster, parts in enumerate([[(0, 0), (2, 1)], [(0, 1), (1, 0), (2, 0)], [(1, 1)]]):
        worth = [own[s].influence[c] for s, c in parts]
        draws = [own[s].parameters[:, c] for s, c in parts]
        weights = [own[s].weights[c] for s, c in parts]
        expected = np.average(draws, axis=0, weights=worth)
        assert_allclose(found.parameters[:, cluster], expected)
        assert_allclose(found.weights[cluster], np.average(weights, weights=worth))
        assert_allclose(found.influence[cluster], sum(worth))


def test_precision_weighs_the_surer_silo_more():
    vague, sure = ([[10, 10, 10, 5, 5, 10, 10]], [[1000, 1000, 1000, 500, 500, 1000, 1000]])
    releases = [make_release(counts, draws=4000) for counts in (vague, sure)]
    found = [precision(release.parameters, FAMILY)[0] for release in releases]
    variances = [release.parameters.var(axis=0).mean() for release in releases]
    assert_allclose(found, 1 / np.array(variances), rtol=1e-5)
