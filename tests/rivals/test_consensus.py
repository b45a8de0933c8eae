"""Consensus averages with full matrices against loops and against Gaussian products."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from silomix.model.draws import MatchedDraws
from silomix.rivals.consensus import (
    at_least,
    average,
    average_profiles,
    average_weights,
    consensus_draws,
    covariance,
    onto_simplex,
)

OFFSETS = np.array([0, 2, 5])


def some_matched(seed, draws=300, lacking=True):
    rng = np.random.default_rng(seed)
    held = np.ones((3, 2), dtype=bool)
    held[2, 1] = not lacking
    weights = np.stack([rng.dirichlet(a, draws) for a in ([20, 30], [60, 40], [5, 5])])
    probabilities = np.concatenate(
        [rng.dirichlet(np.full(k, 3.0), (3, draws, 2)) for k in (2, 3)], axis=-1
    )
    if lacking:
        weights[2] = [1.0, 0.0]
        probabilities[2, :, 1] = 0.0
    return MatchedDraws(weights, probabilities, held)


def releases(*rows):
    return [SimpleNamespace(rows=count) for count in rows]


def random_covariances(rng, silos, size):
    roots = rng.normal(size=(silos, size, size))
    return roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(size)


def test_the_average_is_as_defined(seed):
    rng = np.random.default_rng(seed)
    draws, covariances = rng.normal(size=(3, 7, 4)), random_covariances(rng, 3, 4)
    precisions = [np.linalg.inv(matrix) for matrix in covariances]
    for t, found in enumerate(average(draws, covariances)):
        total = sum(w @ theta for w, theta in zip(precisions, draws[:, t], strict=True))
        np.testing.assert_allclose(found, np.linalg.inv(sum(precisions)) @ total)


def test_it_is_exact_for_gaussian_silos(seed):
    """The average of draws of N(μ_s, Σ_s) has the moments of the product of the densities."""
    rng = np.random.default_rng(seed)
    means, covariances = rng.normal(size=(3, 2)), random_covariances(rng, 3, 2)
    pairs = zip(means, covariances, strict=True)
    draws = np.stack([rng.multivariate_normal(m, v, 20_000) for m, v in pairs])
    precisions = np.linalg.inv(covariances)
    true_covariance = np.linalg.inv(precisions.sum(axis=0))
    true_mean = true_covariance @ np.einsum("sij,sj->i", precisions, means)
    found = average(draws, covariances)
    # five standard errors of a mean, and of a variance, of so many Gaussian draws
    spread = np.sqrt(np.diag(true_covariance))
    assert (np.abs(found.mean(axis=0) - true_mean) < 5 * spread / np.sqrt(20_000)).all()
    ratio = found.var(axis=0) / spread**2
    assert (np.abs(ratio - 1) < 5 * np.sqrt(2 / 20_000)).all()
    plain = draws.mean(axis=0)
    assert (np.abs(plain.mean(axis=0) - true_mean) > 5 * spread / np.sqrt(20_000)).any()


def test_the_left_out_levels_follow_from_the_others(seed):
    matched = some_matched(seed, lacking=False)
    found = average_profiles(matched.probabilities[:, :, 0], OFFSETS)
    np.testing.assert_allclose(np.add.reduceat(found, OFFSETS[:-1], axis=1), 1.0)
    binary = matched.probabilities[:, :, 0, :1]
    pair = matched.probabilities[:, :, 0, 2:4]
    free = np.concatenate([binary, pair], axis=2)
    expected = average(free, np.array([covariance(part) for part in free]))
    np.testing.assert_allclose(found[:, [0, 2, 3]], expected)


def test_a_silo_without_the_cluster_has_no_influence_on_it(seed):
    matched = some_matched(seed)
    weights, found, _ = consensus_draws(matched, releases(100, 100, 100), OFFSETS)
    two = average_profiles(matched.probabilities[:2, :, 1], OFFSETS)
    np.testing.assert_allclose(found[:, 1], onto_simplex(two, OFFSETS))
    assert 0.2 < weights[:, 1].mean() < 0.5


def nested(seed, draws=1000):
    """Silos of 1000 rows with 6, 5, 3 and 2 of six clusters."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((4, draws, 6))
    for place, clusters in enumerate((6, 5, 3, 2)):
        weights[place, :, :clusters] = rng.dirichlet(np.full(clusters, 1000 / clusters), draws)
    return weights


def test_it_does_not_matter_which_cluster_is_left_out(seed):
    weights, rows = nested(seed), np.full(4, 1000)
    found = []
    for left_out in range(6):
        order = np.roll(np.arange(6), left_out)
        matched = MatchedDraws(weights[:, :, order], np.ones((4, 1000, 6, 1)), weights[:, 0] > 0)
        found.append(average_weights(matched, rows)[:, np.argsort(order)])
    np.testing.assert_allclose(found, np.broadcast_to(found[0], np.shape(found)), atol=1e-6)
    # all weights are positive, and no silo without the last cluster decides about the others
    assert found[0].mean(axis=0).min() > 0


def test_weights_that_differ_between_silos_are_no_common_parameter(seed):
    """The silo with the rare cluster is the least sure of it: its weight comes out too small."""
    weights, rows = nested(seed), np.full(4, 1000)
    matched = MatchedDraws(weights, np.ones((4, 1000, 6, 1)), weights[:, 0] > 0)
    found = average_weights(matched, rows)
    mean = weights.mean(axis=(0, 1))
    known = (np.diag(mean) - np.outer(mean, mean))[:-1, :-1] / 1001.0
    precisions = [np.linalg.inv(at_least(np.cov(draws[:, :-1].T), known)) for draws in weights]
    totals = sum(
        w @ draws[:, :-1].mean(axis=0) for w, draws in zip(precisions, weights, strict=True)
    )
    by_hand = np.linalg.solve(sum(precisions), totals)
    np.testing.assert_allclose(found.mean(axis=0)[:-1], by_hand, rtol=1e-4)
    assert found[:, 5].mean() + 5 * found[:, 5].std() < mean[5]


def test_a_covariance_is_raised_only_where_it_is_below(seed):
    rng = np.random.default_rng(seed)
    large, small = random_covariances(rng, 2, 3)
    both = large + small
    np.testing.assert_allclose(at_least(both, small), both)
    np.testing.assert_allclose(at_least(small, both), both)
    np.testing.assert_allclose(at_least(np.diag([4.0, 1.0]), 2 * np.eye(2)), np.diag([4.0, 2.0]))


def test_one_cluster_has_all_the_weight():
    matched = MatchedDraws(np.ones((2, 5, 1)), np.ones((2, 5, 1, 5)), np.ones((2, 1), bool))
    np.testing.assert_array_equal(average_weights(matched, np.array([3, 4])), np.ones((5, 1)))


def test_what_leaves_the_simplex_comes_back_and_is_counted(seed):
    found = onto_simplex(np.array([[-0.1, 1.1, 0.2, 0.3, 0.5]]), OFFSETS)
    np.testing.assert_allclose(found, [[0, 1, 0.2, 0.3, 0.5]], atol=1e-12)
    matched = some_matched(seed)
    weights, probabilities, notes = consensus_draws(matched, releases(100, 50, 20), OFFSETS)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.add.reduceat(probabilities, OFFSETS[:-1], axis=2), 1.0)
    assert min(found.min(), weights.min(), probabilities.min()) > 0
    raw = [average_profiles(matched.probabilities[held, :, c], OFFSETS)
           for c, held in enumerate(matched.held.T)]  # fmt: skip
    raw = [average_weights(matched, np.array([100, 50, 20])), *raw]
    share = np.mean(np.concatenate([part.ravel() for part in raw]) < 0)
    assert [note.split()[0] for note in notes] == ([f"{share:.2%}"] if share else [])
