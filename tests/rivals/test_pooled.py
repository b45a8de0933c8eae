from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import minimize

import silomix
from silomix.model.metrics import adjusted_rand_index
from silomix.rivals import latent_classes
from silomix.rivals.federation import points_of
from silomix.rivals.pooled import climb, log_joint, random_start


@pytest.fixture
def points(seed):
    """Three variables of two and three levels, one cell missing; 20 rows."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, [2, 2, 3], (20, 3))
    codes[0, 0] = 2
    return points_of(codes, np.array([0, 2, 4, 7]), rng.integers(1, 9, 20))


def likelihood(points, weights, probabilities):
    masses = np.exp(log_joint(points, weights, probabilities))
    return float(points.counts @ np.log(masses.sum(axis=1)))


def test_climbing_ends_where_no_other_method_climbs_on(points, rng):
    there = climb(points, *random_start(2, points.offsets, rng))

    def unpack(free):
        weights = np.exp(free[:2])
        profiles = np.exp(free[2:]).reshape(2, 7)
        for first, end in ((0, 2), (2, 4), (4, 7)):
            profiles[:, first:end] /= profiles[:, first:end].sum(axis=1, keepdims=True)
        return weights / weights.sum(), profiles

    start = np.log(np.concatenate([there.weights, there.probabilities.ravel()]) + 1e-12)
    further = minimize(lambda free: -likelihood(points, *unpack(free)), start, method="L-BFGS-B")
    reached = likelihood(points, there.weights, there.probabilities)
    assert there.log_likelihood == pytest.approx(reached, abs=1e-6)
    assert -further.fun == pytest.approx(there.log_likelihood, abs=1e-4)


def test_it_finds_what_was_planted_and_prefers_its_number(seed):
    table, truth = silomix.simulate("homogeneous", rows=1000, seed=seed)
    fits = [latent_classes(table, "silo", classes=k, starts=5, seed=seed) for k in (4, 5, 6)]
    found = min(fits, key=lambda fit: fit.bic)
    assert found is fits[1]
    assert [fit.parameters for fit in fits] == [4 * 16 + 3, 5 * 16 + 4, 6 * 16 + 5]
    assert adjusted_rand_index(found.labels, truth.labels) > 0.9
    assert 1 <= found.reached <= 5
    assert found.bytes_sent["silo 1"] == {"rows": 250 * 10}
    mean = found.probabilities[0]
    gaps = [np.abs(mean[list(p)] - truth.probabilities).max() for p in permutations(range(5))]
    # five standard errors of a share among the rows of a class
    assert min(gaps) < 5 * 0.5 / np.sqrt(200)
