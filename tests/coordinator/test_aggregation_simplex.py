"""The space of aggregation weights: projection, softmax, and points spread over it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.stats import beta, kstest
from statistical.exact import FALSE_ALARM

from silomix.coordinator.aggregation.objective import (
    hypercube,
    join,
    project,
    rosenblatt,
    softmax,
    softmax_gradient,
    softmax_inverse,
    split,
)

# four silos; the second block has three entries, the third one, the last three
HELD = np.array([[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 1, 1], [1, 1, 0, 1]], bool)
FLOORS = [0.0, 1e-6, 0.05]


def nearest_by_quadratic_program(point, floor):
    """Brute force: minimise the squared distance under the constraints."""
    found = minimize(
        lambda w: np.sum((w - point) ** 2),
        np.full(len(point), 1 / len(point)),
        jac=lambda w: 2 * (w - point),
        bounds=[(floor, 1)] * len(point),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    return found.x


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_projection_finds_the_nearest_point(rng, floor, scale):
    points = scale * rng.normal(size=(5, 4, 4))
    found = project(points, HELD, floor)
    assert_allclose(found.sum(axis=1), 1, rtol=1e-14)
    assert (found[:, HELD] >= floor).all()
    assert not found[:, ~HELD].any()
    assert_allclose(project(found, HELD, floor), found, atol=1e-15)
    for start in range(5):
        for block in range(4):
            here = HELD[:, block]
            expected = nearest_by_quadratic_program(points[start, here, block], floor)
            # the program stops at 1e-14 of the squared distance
            assert_allclose(found[start, here, block], expected, atol=1e-6 * max(1, scale))


@pytest.mark.parametrize("floor", FLOORS)
def test_softmax_lands_in_the_space_and_comes_back(rng, floor):
    points = softmax(3 * rng.normal(size=(6, 4, 4)), HELD, floor)
    assert_allclose(points.sum(axis=1), 1, rtol=1e-14)
    assert (points[:, HELD] >= floor).all()
    assert not points[:, ~HELD].any()
    # a share this small loses digits to the floor that is taken off
    assert_allclose(softmax(softmax_inverse(points, HELD, floor), HELD, floor), points, rtol=1e-9)
    assert np.isfinite(softmax_inverse(project(points - 5, HELD, floor), HELD, floor)).all()


@pytest.mark.parametrize("floor", FLOORS)
def test_the_softmax_gradient_is_the_slope(rng, floor):
    logs, slopes = rng.normal(size=(4, 4)), rng.normal(size=(4, 4)) * HELD
    found = softmax_gradient(slopes, softmax(logs, HELD, floor), HELD, floor)
    step = 1e-5
    for place in np.ndindex(4, 4):
        moved = np.zeros((4, 4))
        moved[place] = step
        ahead = np.sum(slopes * softmax(logs + moved, HELD, floor))
        behind = np.sum(slopes * softmax(logs - moved, HELD, floor))
        # the error of a central difference is of the order of step²
        assert_allclose(found[place], (ahead - behind) / (2 * step), atol=10 * step**2)


def test_every_stratum_of_the_hypercube_has_one_point(seed):
    """The first entry of a block is a function of one coordinate, so it is stratified too."""
    points = hypercube(40, HELD, np.random.default_rng(seed))
    assert_array_equal(points, hypercube(40, HELD, np.random.default_rng(seed)))
    assert_array_equal(join(*split(points)), points)
    assert_allclose(points.sum(axis=1), 1, rtol=1e-14)
    assert not points[:, ~HELD].any()
    for block, entries in ((0, 4), (1, 3), (3, 3)):
        first = points[:, np.flatnonzero(HELD[:, block])[0], block]
        uniforms = beta.cdf(first, 1, entries - 1)
        assert_array_equal(np.sort((uniforms * 40).astype(int)), np.arange(40))


def entry_p_value(points):
    """Each entry of a uniform point of a simplex of n entries is Beta(1, n − 1)."""
    entries = points.shape[1]
    tests = [kstest(column, beta(1, entries - 1).cdf).pvalue for column in points.T]
    return min(tests) * entries


@pytest.mark.statistical
@pytest.mark.parametrize("entries", [2, 3, 7])
def test_the_rosenblatt_map_is_uniform_on_the_simplex(rng, entries):
    uniforms = rng.random((4000, entries - 1))
    points = rosenblatt(uniforms)
    assert_allclose(points.sum(axis=1), 1, rtol=1e-14)
    assert entry_p_value(points) > FALSE_ALARM
    # and jointly: Dirichlet(1, …, 1) entries have correlation −1/(n − 1), here with its error
    correlation = np.corrcoef(points[:, 0], points[:, -1])[0, 1]
    assert abs(correlation + 1 / (entries - 1)) < 5 / np.sqrt(4000)


@pytest.mark.statistical
def test_breaking_the_stick_evenly_would_be_noticed(rng):
    uniforms = rng.random((4000, 3))
    left = np.cumprod(np.concatenate([np.ones((4000, 1)), 1 - uniforms], axis=1), axis=1)
    wrong = np.concatenate([left[:, :-1] * uniforms, left[:, -1:]], axis=1)
    assert entry_p_value(wrong) < FALSE_ALARM
