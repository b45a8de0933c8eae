"""FedMerDel against its definition: the silo's fit, and the coordinator's merges."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.special import digamma, gammaln

from silomix.kernels.arrays import distinct_rows
from silomix.model.table import load
from silomix.rivals.federation import Points, points_of
from silomix.rivals.fedmerdel import (
    Components,
    Levels,
    LocalComponents,
    Search,
    components_of,
    entropy_lost,
    evaluate,
    fit_once,
    greedy_search,
    merge_all,
    random_search,
)
from silomix.simulate import simulate

OFFSETS = np.array([0, 2, 5])


def problem_of(codes, counts=None, offsets=OFFSETS, **settings):
    """Points, and how to search them."""
    return points_of(np.asarray(codes), offsets, counts), Search(**settings)


def some_rows(seed, rows, missing=0.2):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, 2, rows), rng.integers(0, 3, rows)], axis=1)
    return np.where(rng.random(codes.shape) < missing, [2, 3], codes), rng


def simulated(seed, rows=800, separability="easy"):
    table, truth = simulate("nested", separability=separability, rows=rows, silos=1, seed=seed)
    shard = load(table.drop(columns="silo"))
    distinct = distinct_rows(shard.codes)
    return problem_of(distinct.codes, distinct.counts, shard.schema.offsets), shard, truth


def dirichlet_terms(prior, counts):
    """E ln p(counts | ψ) + E ln p(ψ) − E ln q(ψ), q = Dirichlet(prior + counts) the best one."""
    shapes = prior + counts
    logs = digamma(shapes) - digamma(shapes.sum())
    log_p = gammaln(prior.sum()) - gammaln(prior).sum() + (prior - 1) @ logs
    log_q = gammaln(shapes.sum()) - gammaln(shapes).sum() + (shapes - 1) @ logs
    return counts @ logs + log_p - log_q


def seven_terms(points, search, shares):
    """E ln p(x, z, π, p) − E ln q(z, π, p) at the best q(π) q(p) for these shares."""
    prior = Levels.of(points.offsets, search).prior
    members = np.zeros(search.components)  # some of them empty
    members[: shares.shape[1]] = shares.sum(axis=0)
    value = dirichlet_terms(np.full(search.components, search.alpha), members)
    for count in shares.T @ points.cells:
        for first, last in pairwise(points.offsets):
            value += dirichlet_terms(prior[first:last], count[first:last])
    return value - sum(r * np.log(r) for r in shares.ravel() if r > 0)


@pytest.mark.parametrize("beta", [None, 0.7])
def test_the_bound_is_that_of_its_seven_terms(seed, beta):
    codes, rng = some_rows(seed, 30)
    problem = problem_of(codes, components=5, alpha=0.3, beta=beta)
    r = rng.dirichlet(np.ones(4), 30)
    assert evaluate(*problem, r).bound == pytest.approx(seven_terms(*problem, r))


@pytest.mark.parametrize("separability", ["easy", "poor"])
def test_the_bound_never_falls(seed, separability):
    problem, _, _ = simulated(seed, separability=separability)
    fit, trace = fit_once(*problem, np.random.default_rng(seed))
    # leaving out a component of less than NOBODY rows may cost what rounding costs
    assert (np.diff(trace) > -1e-6).all()
    assert len(trace) > 10
    # an update that is none would be seen
    r = fit.responsibilities
    assert evaluate(*problem, r[:, ::-1] * 0.1 + r * 0.9).bound < fit.bound


def test_merging_takes_all_that_rises(seed):
    (points, search), _, _ = simulated(seed)
    fit, _ = fit_once(points, Search(refine=0), _rng(seed))
    # every component cut in two at random, row by row
    parts = _rng(seed).random(fit.responsibilities.shape)
    halves = [fit.responsibilities * parts, fit.responsibilities * (1 - parts)]
    merged = merge_all(points, search, evaluate(points, search, np.concatenate(halves, axis=1)))
    assert len(merged.members) == len(fit.members)
    lost = entropy_lost(points, merged.responsibilities)
    levels = Levels.of(points.offsets, search)
    gains = Components(merged.members, merged.counts, lost, levels, search.alpha).gains()
    assert gains.max() <= 0


def _rng(seed):
    return np.random.default_rng(seed)


WIDER = np.array([0, 2, 5, 8])
LEVELS = Levels.of(WIDER, Search())
ALPHA = 0.3
both_pairs = pytest.mark.parametrize("pairs", ["cross", "any"])


def make_silos(seed, pairs, silos=4, clusters=3, rows=30, soft=0.1):
    """Silos whose rows are in components of which some are the same across silos, and their fits.

    Returns
    -------
    found : what they would send; fits; silo : (component,), whose it is.
    """
    rng = np.random.default_rng(seed)
    profiles = [rng.dirichlet(np.full(k, 0.4), clusters + 1) for k in np.diff(WIDER)]
    found, fits = [], []
    for _ in range(silos):
        labels = rng.choice(clusters + 1, clusters, replace=False)[rng.integers(0, clusters, rows)]
        cells = np.concatenate(
            [np.stack([rng.multinomial(1, p[z]) for z in labels]) for p in profiles], axis=1
        ).astype(float)
        points = Points(cells, np.ones(rows, np.int64), WIDER)
        hard = np.eye(clusters + 1)[labels][:, np.unique(labels)]
        r = (1 - soft) * hard + soft * rng.dirichlet(np.ones(hard.shape[1]), rows)
        fit = evaluate(points, Search(alpha=ALPHA), r)
        lost = entropy_lost(points, r) if pairs == "any" else None
        found.append(LocalComponents(fit.members, fit.counts, lost))
        fits.append((points, fit))
    return found, fits, np.repeat(np.arange(silos), [len(part.members) for part in found])


def pooled_bound(fits, groups):
    """The lower bound of the mixture of all silos' components, some of them merged."""
    cells = np.concatenate([points.cells for points, _ in fits])
    r = block_diag(*[fit.responsibilities for _, fit in fits])
    points = Points(cells, np.ones(len(cells), np.int64), WIDER)
    merged = r @ np.eye(len(groups))[groups]
    return evaluate(points, Search(components=50, alpha=ALPHA), merged).bound


def greedy_one_by_one(components):
    """All pairs scored again at every step."""
    groups = np.arange(len(components.members))
    while True:
        scored = [
            (components.gain(a, np.array([b]))[0], -a, -b)
            for a, b in combinations(np.unique(groups), 2)
        ]
        gain, a, b = max(scored, default=(0, 0, 0))
        if gain <= 0:
            return groups
        components.join(-a, -b)
        groups[groups == -b] = -a


@both_pairs
def test_a_gain_is_a_difference_of_bounds(seed, pairs):
    found, fits, silo = make_silos(seed, pairs)
    gains = components_of(found, LEVELS, ALPHA).gains()
    assert np.isneginf(gains[np.tril_indices(len(silo))]).all()
    apart = np.arange(len(silo))
    before = pooled_bound(fits, apart)
    for a, b in combinations(range(len(silo)), 2):
        if pairs == "cross" and silo[a] == silo[b]:
            assert np.isneginf(gains[a, b])
        else:
            merged = pooled_bound(fits, np.where(apart == b, a, apart))
            assert gains[a, b] == pytest.approx(merged - before)


@both_pairs
@pytest.mark.parametrize("more", range(5))
def test_greedy_search_is_that_of_all_pairs(seed, pairs, more):
    found, _, _ = make_silos(1000 * seed + more, pairs, silos=5)
    groups, expected = (
        search(components_of(found, LEVELS, ALPHA)) for search in (greedy_search, greedy_one_by_one)
    )
    np.testing.assert_array_equal(groups, expected)
    assert len(np.unique(groups)) < len(groups)


@both_pairs
@pytest.mark.parametrize("search", [greedy_search, lambda some: random_search(some, _rng(0))])
def test_merging_raises_the_bound_and_ends_where_no_pair_is_left(seed, pairs, search):
    found, fits, silo = make_silos(seed, pairs, soft=0.6)
    components = components_of(found, LEVELS, ALPHA)
    groups = search(components)
    assert pooled_bound(fits, groups) > pooled_bound(fits, np.arange(len(groups)))
    if pairs == "cross":
        assert len({*zip(silo, groups, strict=True)}) == len(groups)
    left = combinations(np.unique(groups), 2)
    assert all(components.gain(a, np.array([b]))[0] <= 0 for a, b in left)
