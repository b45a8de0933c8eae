"""FedMerDel against its definition: the silo's fit, and the coordinator's merges."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.special import digamma, gammaln, logsumexp

from silomix.kernels.distinct_rows import distinct_rows
from silomix.model.metrics import adjusted_rand_index
from silomix.model.table import load
from silomix.rivals.federation import Levels, Points, largest_first
from silomix.rivals.merdel import (
    Components,
    LocalComponents,
    Search,
    components_of,
    delete_one,
    entropy_lost,
    evaluate,
    fit_mixture,
    fit_once,
    greedy_search,
    merge_all,
    random_search,
    responsibilities,
)
from silomix.simulate import simulate

OFFSETS = np.array([0, 2, 5])


def problem_of(codes, counts=None, offsets=OFFSETS, **settings):
    """Points, and how to search them."""
    search = Search(**settings)
    return Levels(offsets, search.beta).points(np.asarray(codes), counts), search


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
    levels = points.levels
    members = np.zeros(search.components)  # some of them empty
    members[: shares.shape[1]] = shares.sum(axis=0)
    value = dirichlet_terms(np.full(search.components, search.alpha), members)
    for count in shares.T @ points.cells:
        for first, last in pairwise(levels.offsets):
            value += dirichlet_terms(levels.concentration[first:last], count[first:last])
    return value - sum(r * np.log(r) for r in shares.ravel() if r > 0)


def urn(points, search, labels):
    """Log p(rows, labels), one row after the other, in proportion to what was seen before."""
    levels = points.levels
    members = np.full(search.components, search.alpha)
    counts = np.tile(levels.concentration, (search.components, 1))
    total = 0.0
    for row, label in zip(points.cells, labels, strict=True):
        total += np.log(members[label] / members.sum())
        members[label] += 1
        for first, last in pairwise(levels.offsets):
            if row[first:last].any():
                level = first + row[first:last].argmax()
                total += np.log(counts[label, level] / counts[label, first:last].sum())
                counts[label, level] += 1
    return total


@pytest.mark.parametrize("beta", [None, 0.7])
def test_the_bound_is_that_of_its_seven_terms(seed, beta):
    codes, rng = some_rows(seed, 30)
    problem = problem_of(codes, components=5, alpha=0.3, beta=beta)
    r = rng.dirichlet(np.ones(4), 30)
    assert evaluate(*problem, r).bound == pytest.approx(seven_terms(*problem, r))


def test_of_one_partition_the_bound_is_the_joint_probability(seed):
    codes, rng = some_rows(seed, 12)
    problem = problem_of(codes, components=3, alpha=0.4)
    labels = rng.integers(0, 3, 12)
    assert evaluate(*problem, np.eye(3)[labels]).bound == pytest.approx(urn(*problem, labels))


def test_the_bound_is_below_the_evidence(seed):
    codes, rng = some_rows(seed, 6, missing=0.0)
    problem = problem_of(codes, components=2, alpha=0.5)
    evidence = logsumexp([urn(*problem, labels) for labels in product(range(2), repeat=6)])
    bounds = [evaluate(*problem, rng.dirichlet(np.ones(2), 6)).bound for _ in range(50)]
    fitted = fit_mixture(*problem, rng).bound
    assert max(bounds) <= fitted <= evidence


def test_responsibilities_are_as_defined(seed):
    codes, rng = some_rows(seed, 8)
    points, search = problem_of(codes, alpha=0.2)
    fit = evaluate(points, search, rng.dirichlet(np.ones(3), 8))
    n_levels = points.levels.n_levels
    for row, found in zip(
        codes, responsibilities(points, fit.members, fit.counts, 0.2), strict=True
    ):
        scores = digamma(0.2 + fit.members)
        for q, code in enumerate(row):
            if code < n_levels[q]:
                shapes = 1 / n_levels[q] + fit.counts[:, OFFSETS[q] : OFFSETS[q + 1]]
                scores = scores + digamma(shapes[:, code]) - digamma(shapes.sum(axis=1))
        np.testing.assert_allclose(found, np.exp(scores - logsumexp(scores)))


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
    gains = Components(merged.members, merged.counts, lost, points.levels, search.alpha).gains()
    assert gains.max() <= 0


def test_a_component_that_is_not_needed_is_deleted(seed):
    problem, _, _ = simulated(seed)
    fit, _ = fit_once(*problem, _rng(seed))
    # a fifth of all rows, whatever their cluster
    r = fit.responsibilities
    stray = _rng(seed).random((len(r), 1)) < 0.2
    start = evaluate(*problem, np.append(r * ~stray, stray.astype(float), axis=1))
    found = delete_one(*problem, start)
    assert len(found.members) == len(fit.members)
    assert found.bound > start.bound
    assert delete_one(*problem, fit) is fit


def test_components_that_faded_do_not_stay(monkeypatch):
    """With a = 0.5 they keep a millionth of a row, which would take the place of others."""
    table, _ = simulate("homogeneous", separability="easy", seed=5000)
    shard = load(table[table["silo"] == "silo 3"].drop(columns="silo"))
    problem = problem_of(shard.codes, offsets=shard.schema.offsets)

    def fewest():
        fits = [fit_once(*problem, np.random.default_rng(start))[0] for start in range(8)]
        return min(fit.members.min() for fit in fits)

    assert fewest() > 1
    monkeypatch.setattr("silomix.rivals.merdel.NOBODY", 1e-6)
    assert fewest() < 1e-3


def test_planted_clusters_are_found(seed):
    (points, search), shard, truth = simulated(seed, rows=1500)
    fit = fit_mixture(points, search, _rng(seed))
    everyone = points.levels.points(shard.codes)
    labels = responsibilities(everyone, fit.members, fit.counts, search.alpha).argmax(axis=1)
    logs = np.log(np.maximum(truth.probabilities, 1e-300))
    best = (everyone.cells @ logs.T + np.log(truth.weights)).argmax(axis=1)
    assert adjusted_rand_index(labels, best) > 0.8


def _rng(seed):
    return np.random.default_rng(seed)


LEVELS = Levels(np.array([0, 2, 5, 8]))
ALPHA = 0.3
both_pairs = pytest.mark.parametrize("pairs", ["cross", "any"])


def make_silos(seed, pairs, silos=4, clusters=3, rows=30, soft=0.1):
    """Silos whose rows are in components of which some are the same across silos, and their fits.

    Returns
    -------
    found : what they would send; fits; silo : (component,), whose it is.
    """
    rng = np.random.default_rng(seed)
    profiles = [rng.dirichlet(np.full(k, 0.4), clusters + 1) for k in LEVELS.n_levels]
    found, fits = [], []
    for _ in range(silos):
        labels = rng.choice(clusters + 1, clusters, replace=False)[rng.integers(0, clusters, rows)]
        cells = np.concatenate(
            [np.stack([rng.multinomial(1, p[z]) for z in labels]) for p in profiles], axis=1
        ).astype(float)
        points = Points(cells, np.ones(rows, np.int64), LEVELS)
        hard = np.eye(clusters + 1)[labels][:, np.unique(labels)]
        r = (1 - soft) * hard + soft * rng.dirichlet(np.ones(hard.shape[1]), rows)
        fit = evaluate(points, Search(alpha=ALPHA), r)
        lost = entropy_lost(points, r) if pairs == "any" else None
        found.append(LocalComponents(fit.members, fit.counts, fit.entropy, lost))
        fits.append((points, fit))
    return found, fits, np.repeat(np.arange(silos), [len(part.members) for part in found])


def pooled_bound(fits, groups):
    """The lower bound of the mixture of all silos' components, some of them merged."""
    cells = np.concatenate([points.cells for points, _ in fits])
    r = block_diag(*[fit.responsibilities for _, fit in fits])
    points = Points(cells, np.ones(len(cells), np.int64), LEVELS)
    return evaluate(
        points, Search(components=50, alpha=ALPHA), r @ np.eye(len(groups))[groups]
    ).bound


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


def test_the_loss_of_three_is_never_understated(seed):
    """The loss by pairs is at least the true one: no merge that lowers the bound passes."""
    _, [(points, fit)], _ = make_silos(seed, "any", silos=1, soft=0.8)
    r = fit.responsibilities
    pairs = entropy_lost(points, r)
    true = entropy_lost(points, np.stack([r[:, 0] + r[:, 1], r[:, 2]], axis=1))[0, 1]
    assert pairs[0, 2] + pairs[1, 2] <= true < 0


def test_groups_are_numbered_by_size():
    sizes = np.array([1.0, 5.0, 2.0, 1.0])
    np.testing.assert_array_equal(largest_first(np.array([0, 1, 2, 0]), sizes), [1, 0, 2, 1])
