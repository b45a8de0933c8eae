"""Consensus averages with full matrices against loops and against Gaussian products."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from silomix.model.draws import MatchedDraws
from silomix.rivals.consensus import (
    average,
    average_profiles,
    average_weights,
    consensus_draws,
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


def test_the_average_is_as_defined(rng):
    draws, covariances = rng.normal(size=(3, 7, 4)), random_covariances(rng, 3, 4)
    precisions = [np.linalg.inv(matrix) for matrix in covariances]
    for t, found in enumerate(average(draws, covariances)):
        total = sum(w @ theta for w, theta in zip(precisions, draws[:, t], strict=True))
        np.testing.assert_allclose(found, np.linalg.inv(sum(precisions)) @ total)


def test_a_silo_without_the_cluster_has_no_influence_on_it(seed):
    matched = some_matched(seed)
    weights, found, _ = consensus_draws(matched, releases(100, 100, 100), OFFSETS)
    two = average_profiles(matched.parameters[:2, :, 1], OFFSETS)
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


def test_what_leaves_the_simplex_comes_back(seed):
    found = onto_simplex(np.array([[-0.1, 1.1, 0.2, 0.3, 0.5]]), OFFSETS)
    np.testing.assert_allclose(found, [[0, 1, 0.2, 0.3, 0.5]], atol=1e-12)
    matched = some_matched(seed)
    weights, probabilities, _ = consensus_draws(matched, releases(100, 50, 20), OFFSETS)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.add.reduceat(probabilities, OFFSETS[:-1], axis=2), 1.0)
    assert min(found.min(), weights.min(), probabilities.min()) > 0
