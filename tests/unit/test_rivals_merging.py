"""The coordinator's side of FedMerDel against the pairs scored one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from silomix.rivals.kmodes import Points
from silomix.rivals.levels import Levels
from silomix.rivals.merdel import LocalComponents, all_losses, merge_components, sum_groups
from silomix.rivals.merging import (
    Components,
    Merging,
    greedy_search,
    largest_first,
    random_search,
)
from silomix.rivals.variational import Problem, Search, entropy_lost, evaluate

LEVELS = Levels(np.array([0, 2, 5, 8]))
ALPHA = 0.3


def make_silos(seed, silos=4, clusters=3, rows=30, soft=0.1):
    """Silos with shares of their rows in components of which some are the same across silos."""
    rng = np.random.default_rng(seed)
    profiles = [rng.dirichlet(np.full(k, 0.4), clusters + 1) for k in LEVELS.sizes]
    problems, fits = [], []
    for _ in range(silos):
        labels = rng.choice(clusters + 1, clusters, replace=False)[rng.integers(0, clusters, rows)]
        cells = np.concatenate(
            [np.stack([rng.multinomial(1, p[z]) for z in labels]) for p in profiles], axis=1
        ).astype(float)
        points = Points(cells, np.ones(rows, np.int64), LEVELS.offsets)
        problem = Problem(points, LEVELS, Search(alpha=ALPHA))
        hard = np.eye(clusters + 1)[labels][:, np.unique(labels)]
        shares = (1 - soft) * hard + soft * rng.dirichlet(np.ones(hard.shape[1]), rows)
        problems.append(problem)
        fits.append(evaluate(problem, shares))
    found = [
        LocalComponents(
            fit.members, fit.counts, fit.entropy, entropy_lost(problem.points, fit.shares)
        )
        for problem, fit in zip(problems, fits, strict=True)
    ]
    return found, fits, problems


def components_of(found, pairs="cross"):
    silo = np.repeat(np.arange(len(found)), [len(part.members) for part in found])
    return Components(
        members=np.concatenate([part.members for part in found]),
        counts=np.concatenate([part.counts for part in found]),
        held=silo[:, None] == np.arange(len(found)),
        lost=all_losses(found) if pairs == "any" else None,
        levels=LEVELS,
        alpha=ALPHA,
    ), silo


def pooled_bound(fits, problems, groups):
    """The lower bound of the mixture of all silos' components, some of them merged."""
    cells = np.concatenate([problem.points.cells for problem in problems])
    points = Points(cells, np.ones(len(cells), np.int64), LEVELS.offsets)
    blocks = np.zeros((len(cells), len(groups)))
    row = column = 0
    for fit in fits:
        n, k = fit.shares.shape
        blocks[row : row + n, column : column + k] = fit.shares
        row, column = row + n, column + k
    merged = blocks @ np.eye(len(groups))[groups]
    return evaluate(Problem(points, LEVELS, Search(components=50, alpha=ALPHA)), merged).bound


def greedy_one_by_one(components):
    """All pairs scored again at every step."""
    groups, alive = np.arange(len(components.members)), list(range(len(components.members)))
    while True:
        scored = [
            (components.gain(one, np.array([other]))[0], -one, -other)
            for one, other in combinations(alive, 2)
        ]
        gain, one, other = max(scored, default=(0, 0, 0))
        if gain <= 0:
            return groups
        components.join(-one, -other)
        groups[groups == -other] = -one
        alive.remove(-other)


@pytest.mark.parametrize("pairs", ["cross", "any"])
def test_a_gain_is_a_difference_of_bounds(seed, pairs):
    found, fits, problems = make_silos(seed)
    components, silo = components_of(found, pairs)
    apart = np.arange(len(silo))
    before = pooled_bound(fits, problems, apart)
    for one, other in combinations(range(len(silo)), 2):
        gain = components.gain(one, np.array([other]))[0]
        if pairs == "cross" and silo[one] == silo[other]:
            assert np.isneginf(gain)
        else:
            merged = np.where(apart == other, one, apart)
            assert gain == pytest.approx(pooled_bound(fits, problems, merged) - before)


@pytest.mark.parametrize("pairs", ["cross", "any"])
@pytest.mark.parametrize("more", range(5))
def test_greedy_search_is_that_of_all_pairs(seed, pairs, more):
    found, _, _ = make_silos(1000 * seed + more, silos=5)
    groups = greedy_search(components_of(found, pairs)[0])
    np.testing.assert_array_equal(groups, greedy_one_by_one(components_of(found, pairs)[0]))
    assert len(np.unique(groups)) < len(groups)


@pytest.mark.parametrize("pairs", ["cross", "any"])
@pytest.mark.parametrize("search", ["greedy", "random"])
def test_merging_raises_the_bound_and_keeps_to_its_pairs(seed, pairs, search):
    found, fits, problems = make_silos(seed, soft=0.6)
    merging = Merging(pairs, search)
    groups = merge_components(found, LEVELS, ALPHA, merging, seed)
    joined = np.concatenate(groups)
    start = pooled_bound(fits, problems, np.arange(len(joined)))
    assert pooled_bound(fits, problems, joined) > start
    if pairs == "cross":
        assert all(len(np.unique(group)) == len(group) for group in groups)


def test_the_loss_of_three_is_never_understated(seed):
    """The loss by pairs is at least the true one: no merge that lowers the bound passes."""
    _, fits, problems = make_silos(seed, silos=1, clusters=3, soft=0.8)
    shares, points = fits[0].shares, problems[0].points
    pairs = entropy_lost(points, shares)
    two = np.stack([shares[:, 0] + shares[:, 1], shares[:, 2]], axis=1)
    true = entropy_lost(points, two)[0, 1]
    assert pairs[0, 2] + pairs[1, 2] <= true < 0


def test_random_search_ends_where_no_pair_is_left(seed):
    found, _, _ = make_silos(seed)
    components, _ = components_of(found)
    groups = random_search(components, np.random.default_rng(seed))
    alive = np.unique(groups)
    gains = [components.gain(a, np.array([b]))[0] for a, b in combinations(alive, 2)]
    assert max(gains) <= 0


def test_one_component_stays_alone():
    part = LocalComponents(np.array([3.0]), np.ones((1, 8)), 0.0, None)
    for search in ("greedy", "random"):
        groups = merge_components([part], LEVELS, ALPHA, Merging(search=search), 0)
        np.testing.assert_array_equal(groups, [[0]])


def test_merged_sums_are_those_of_their_parts(seed):
    found, _, _ = make_silos(seed)
    groups = merge_components(found, LEVELS, ALPHA, Merging(), seed)
    members, counts = sum_groups(found, groups)
    assert (np.diff(members) <= 0).all()
    for cluster in range(len(members)):
        inside = [group == cluster for group in groups]
        parts = zip(found, inside, strict=True)
        assert members[cluster] == pytest.approx(sum(p.members[at].sum() for p, at in parts))
    np.testing.assert_allclose(counts.sum(axis=0), sum(part.counts.sum(axis=0) for part in found))


def test_groups_are_numbered_by_size():
    sizes = np.array([1.0, 5.0, 2.0, 1.0])
    np.testing.assert_array_equal(largest_first(np.array([0, 1, 2, 0]), sizes), [1, 0, 2, 1])


def test_losses_need_to_be_asked_for(seed):
    found, _, _ = make_silos(seed)
    without = [replace(part, lost=None) for part in found]
    assert not all_losses(without).any()
    assert all_losses(found).any()
