"""The silo's side of FedMerDel against its definition."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import digamma, gammaln, logsumexp

from silomix.data import load
from silomix.families.categorical import one_hot
from silomix.kernels.likelihood import distinct_rows
from silomix.metrics import adjusted_rand_index
from silomix.rivals.kmodes import Points
from silomix.rivals.levels import Levels
from silomix.rivals.variational import (
    Problem,
    Search,
    allot,
    delete_one,
    drop_empty,
    entropy_lost,
    evaluate,
    fit_mixture,
    fit_once,
    merge_all,
    merge_gains,
)
from silomix.simulate import simulate
from silomix.types import Schema, Variable

SCHEMA = Schema((Variable("a", ("0", "1")), Variable("b", ("0", "1", "2"))))


def problem_of(codes, schema=SCHEMA, counts=None, **search):
    codes = np.asarray(codes, dtype=np.uint8)
    counts = np.ones(len(codes), np.int64) if counts is None else counts
    settings = Search(**search)
    points = Points(one_hot(codes, schema.offsets), counts, schema.offsets)
    return Problem(points, Levels(schema.offsets, settings.beta), settings)


def some_rows(seed, rows, missing=0.2):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, 2, rows), rng.integers(0, 3, rows)], axis=1)
    hidden = rng.random(codes.shape) < missing
    return np.where(hidden, SCHEMA.sizes, codes), rng


def simulated(seed, rows=800, separability="easy", **search):
    table, truth = simulate("nested", separability=separability, rows=rows, silos=1, seed=seed)
    shard = load(table.drop(columns="silo"))
    distinct = distinct_rows(shard.codes)
    return problem_of(distinct.codes, shard.schema, distinct.counts, **search), shard, truth


def log_dirichlet_expectation(shapes):
    return digamma(shapes) - digamma(shapes.sum())


def log_dirichlet_constant(shapes):
    return gammaln(shapes.sum()) - gammaln(shapes).sum()


def seven_terms(problem, shares):
    """E ln p(x, z, π, p) − E ln q(z, π, p) at the best q(π) q(p) for these shares."""
    codes_cells, search = problem.points.cells, problem.search
    empty = search.components - shares.shape[1]
    shares = np.pad(shares, ((0, 0), (0, empty)))
    members, counts = shares.sum(axis=0), shares.T @ codes_cells
    prior = np.full(search.components, search.alpha)
    log_weights = log_dirichlet_expectation(prior + members)
    value = (members * log_weights).sum() - sum(r * np.log(r) for r in shares.ravel() if r > 0)
    value += log_dirichlet_constant(prior) + ((prior - 1) * log_weights).sum()
    value -= log_dirichlet_constant(prior + members) + ((prior + members - 1) * log_weights).sum()
    for first, last in zip(problem.levels.offsets, problem.levels.offsets[1:], strict=False):
        own = problem.levels.concentration[first:last]
        for count in counts[:, first:last]:
            logs = log_dirichlet_expectation(own + count)
            value += (count * logs).sum()
            value += log_dirichlet_constant(own) + ((own - 1) * logs).sum()
            value -= log_dirichlet_constant(own + count) + ((own + count - 1) * logs).sum()
    return value


def urn(problem, labels):
    """Log p(rows, labels), one row after the other, in proportion to what was seen before."""
    search, levels = problem.search, problem.levels
    members = np.full(search.components, search.alpha)
    counts = np.tile(levels.concentration, (search.components, 1))
    total = 0.0
    for row, label in zip(problem.points.cells, labels, strict=True):
        total += np.log(members[label] / members.sum())
        members[label] += 1
        for first, last in zip(levels.offsets, levels.offsets[1:], strict=False):
            if row[first:last].any():
                level = first + row[first:last].argmax()
                total += np.log(counts[label, level] / counts[label, first:last].sum())
                counts[label, level] += 1
    return total


@pytest.mark.parametrize("beta", [None, 0.7])
def test_the_bound_is_that_of_its_seven_terms(seed, beta):
    codes, rng = some_rows(seed, 30)
    problem = problem_of(codes, components=5, alpha=0.3, beta=beta)
    shares = rng.dirichlet(np.ones(4), 30)
    assert evaluate(problem, shares).bound == pytest.approx(seven_terms(problem, shares))


def test_with_whole_shares_the_bound_is_the_joint_probability(seed):
    codes, rng = some_rows(seed, 12)
    problem = problem_of(codes, components=3, alpha=0.4)
    labels = rng.integers(0, 3, 12)
    assert evaluate(problem, np.eye(3)[labels]).bound == pytest.approx(urn(problem, labels))


def test_the_bound_is_below_the_evidence(seed):
    codes, rng = some_rows(seed, 6, missing=0.0)
    problem = problem_of(codes, components=2, alpha=0.5)
    evidence = logsumexp([urn(problem, labels) for labels in product(range(2), repeat=6)])
    bounds = [evaluate(problem, rng.dirichlet(np.ones(2), 6)).bound for _ in range(50)]
    fitted = fit_mixture(problem, rng).bound
    assert max(*bounds, fitted) <= evidence
    assert fitted >= max(bounds)


def test_shares_are_as_defined(seed):
    codes, rng = some_rows(seed, 8)
    problem = problem_of(codes, alpha=0.2)
    fit = evaluate(problem, rng.dirichlet(np.ones(3), 8))
    shares = allot(problem, fit.members, fit.counts)
    for row, found in zip(codes, shares, strict=True):
        scores = digamma(0.2 + fit.members)
        for q, code in enumerate(row):
            if code < SCHEMA.sizes[q]:
                first, last = SCHEMA.offsets[q], SCHEMA.offsets[q + 1]
                shapes = 1 / SCHEMA.sizes[q] + fit.counts[:, first:last]
                scores = scores + digamma(shapes[:, code]) - digamma(shapes.sum(axis=1))
        np.testing.assert_allclose(found, np.exp(scores - logsumexp(scores)))


def test_equal_rows_may_be_counted_once(seed):
    codes, rng = some_rows(seed, 60)
    rows = distinct_rows(codes.astype(np.uint8))
    counted = problem_of(rows.codes, counts=rows.counts)
    shares = rng.dirichlet(np.ones(3), len(rows.codes))
    repeated = problem_of(np.repeat(rows.codes, rows.counts, axis=0))
    whole = evaluate(repeated, np.repeat(shares, rows.counts, axis=0))
    found = evaluate(counted, shares)
    assert found.bound == pytest.approx(whole.bound)
    np.testing.assert_allclose(found.counts, whole.counts)


@pytest.mark.parametrize("separability", ["easy", "poor"])
def test_the_bound_never_falls(seed, separability):
    problem, _, _ = simulated(seed, separability=separability)
    _, trace = fit_once(problem, np.random.default_rng(seed))
    # leaving out a component of less than NOBODY rows may cost what rounding costs
    assert (np.diff(trace) > -1e-6).all()
    assert len(trace) > 10


def test_an_update_that_is_none_would_be_seen(seed):
    """Shares moved away from the update lower the bound: the test above has teeth."""
    problem, _, _ = simulated(seed)
    fit, _ = fit_once(problem, np.random.default_rng(seed))
    assert evaluate(problem, fit.shares[:, ::-1] * 0.1 + fit.shares * 0.9).bound < fit.bound


def test_merge_gains_are_differences_of_bounds(seed):
    codes, rng = some_rows(seed, 40)
    problem = problem_of(codes, alpha=0.2)
    fit = evaluate(problem, rng.dirichlet(np.ones(4), 40))
    gains = merge_gains(problem, fit)
    for one in range(4):
        for other in range(one + 1, 4):
            shares = fit.shares.copy()
            shares[:, one] += shares[:, other]
            merged = evaluate(problem, np.delete(shares, other, axis=1))
            assert gains[one, other] == pytest.approx(merged.bound - fit.bound)
    assert np.isneginf(gains[np.tril_indices(4)]).all()


def test_merging_takes_all_that_rises(seed):
    problem, _, _ = simulated(seed)
    fit, _ = fit_once(replace(problem, search=replace(problem.search, refine=0)), _rng(seed))
    # every component cut in two at random, row by row
    parts = _rng(seed).random(fit.shares.shape)
    halves = np.concatenate([fit.shares * parts, fit.shares * (1 - parts)], axis=1)
    merged = merge_all(problem, evaluate(problem, halves))
    assert merged.shares.shape == fit.shares.shape
    assert merge_gains(problem, merged).max() <= 0


def test_a_component_that_is_not_needed_is_deleted(seed):
    problem, _, _ = simulated(seed)
    fit, _ = fit_once(problem, _rng(seed))
    # a fifth of all rows, whatever their cluster
    stray = _rng(seed).random(len(fit.shares)) < 0.2
    shares = np.append(fit.shares * ~stray[:, None], stray[:, None].astype(float), axis=1)
    start = evaluate(problem, shares)
    found = delete_one(problem, start)
    assert found.shares.shape == fit.shares.shape
    assert found.bound > start.bound
    assert delete_one(problem, fit) is fit


def test_empty_components_are_dropped(seed):
    codes, rng = some_rows(seed, 20)
    problem = problem_of(codes)
    shares = rng.dirichlet(np.ones(2), 20)
    padded = evaluate(problem, np.insert(shares, 1, 0.0, axis=1))
    found = drop_empty(problem, padded)
    np.testing.assert_allclose(found.shares, shares)
    assert found.bound == pytest.approx(padded.bound)


def test_components_that_faded_do_not_stay(monkeypatch):
    """With a = 0.5 they keep a millionth of a row, which would take the place of others."""
    table, _ = simulate("homogeneous", separability="easy", seed=5000)
    shard = load(table[table["silo"] == "silo 3"].drop(columns="silo"))
    problem = problem_of(shard.codes, shard.schema)

    def fewest():
        fits = [fit_once(problem, np.random.default_rng(start))[0] for start in range(8)]
        return min(fit.members.min() for fit in fits)

    assert fewest() > 1
    monkeypatch.setattr("silomix.rivals.variational.NOBODY", 1e-6)
    assert fewest() < 1e-3


def test_entropy_lost_is_zero_where_shares_do_not_overlap():
    points = Points(np.zeros((3, 5)), np.array([1, 2, 1]), SCHEMA.offsets)
    shares = np.array([[1.0, 0, 0], [0, 0.5, 0.5], [1.0, 0, 0]])
    lost = entropy_lost(points, shares)
    assert lost[0, 1] == lost[0, 2] == 0
    assert lost[1, 2] == pytest.approx(-2 * np.log(2))


def test_planted_clusters_are_found(seed):
    problem, shard, truth = simulated(seed, rows=1500)
    fit = fit_mixture(problem, _rng(seed))
    cells = one_hot(shard.codes, shard.schema.offsets)
    everyone = replace(problem, points=problem.points._replace(cells=cells))
    labels = allot(everyone, fit.members, fit.counts).argmax(axis=1)
    logs = np.log(np.maximum(truth.probabilities, 1e-300))
    best = (cells @ logs.T + np.log(truth.weights)).argmax(axis=1)
    assert adjusted_rand_index(labels, best) > 0.8


def _rng(seed):
    return np.random.default_rng(seed)
