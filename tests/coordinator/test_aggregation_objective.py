"""The relaxed ELBO: its value by definition, its gradient by finite differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import sweep_twin as reference
from cases.aggregation_cases import PRIOR, make_case
from numpy.testing import assert_allclose
from scipy.stats import dirichlet

from silomix.coordinator.aggregation.objective import (
    Objective,
    determinant_factors,
    evaluate,
    hypercube,
    split,
)
from silomix.model.schema import Prior

HOLDS = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1]]


def make_objective(seed, *, missing=0.1, prior=PRIOR, draws=20):
    case = make_case(
        seed, rows=(40, 30, 30), clusters=4, sizes=(2, 3, 4), holds=HOLDS, missing=missing
    )
    case = replace(case, prior=prior)
    matched = case.matched(draws, seed)
    return case, Objective(matched, case.pooled(), prior.alpha, case.family)


def some_points(objective, count, seed):
    return hypercube(count, objective.held, np.random.default_rng(seed))


@pytest.mark.parametrize("log_determinant", ["coordinates", "literal"])
def test_the_value_is_that_of_the_definition(seed, log_determinant):
    """Sampler's likelihood, SciPy's Dirichlet densities, log-determinants written out."""
    case, objective = make_objective(seed, prior=Prior(0.7, 1.4))
    objective = replace(objective, log_determinant=log_determinant)
    point = some_points(objective, 1, seed)
    (weights,), (profiles,) = split(point)
    matched, codes = objective.matched, np.concatenate(case.codes)
    total = 0.0
    for t in range(20):
        pi = sum(w * draw for w, draw in zip(weights, matched.weights[:, t], strict=True))
        p = np.einsum("sc,scd->cd", profiles, matched.parameters[:, t])
        total += reference.draw_labels(1, codes, case.sizes, pi, p.T)[1]
        total += dirichlet.logpdf(pi / pi.sum(), np.full(4, 0.7))
        for levels in np.split(p, case.offsets[1:-1], axis=1):
            exact = levels / levels.sum(axis=1, keepdims=True)
            total += sum(dirichlet.logpdf(row, np.full(len(row), 1.4)) for row in exact)
    value = total / 20
    holders = {0: 3, 1: 2, 2: 1, 3: 1}
    free, levels = 1 + 2 + 3, 2 + 3 + 4
    coordinates = log_determinant == "coordinates"
    value += (3 if coordinates else 4) / 3 * np.log(weights).sum()
    for c, count in holders.items():
        logs = sum(np.log(profiles[s, c]) for s in range(3) if HOLDS[s][c])
        value += (free / count if coordinates else levels / 3) * logs
    # the draws are kept in float32, so their sums are one to that precision only
    assert_allclose(evaluate(objective, point).value[0], value, rtol=1e-7)


@pytest.mark.parametrize("log_determinant", ["coordinates", "literal"])
@pytest.mark.parametrize("prior", [Prior(0.5, 0.5), Prior(1.0, 2.0)], ids=["half", "one, two"])
def test_the_gradient_is_the_slope(seed, log_determinant, prior):
    _, objective = make_objective(seed, prior=prior)
    objective = replace(objective, log_determinant=log_determinant)
    # away from the edges, where the third derivative of a logarithm is large
    points = 0.5 * some_points(objective, 3, seed) + 0.5 * objective.held / objective.held.sum(0)
    found = evaluate(objective, points).gradient
    assert not found[:, ~objective.held].any()
    step = 1e-5
    for place in np.argwhere(objective.held):
        moved = np.zeros(objective.held.shape)
        moved[tuple(place)] = step
        ahead = evaluate(objective, points + moved).value
        behind = evaluate(objective, points - moved).value
        slope = (ahead - behind) / (2 * step)
        assert_allclose(found[:, place[0], place[1]], slope, rtol=1e-6, atol=1e-4)


def test_the_data_gradient_adds_up_to_the_rows_and_cells(seed):
    """Euler: the likelihood's expected counts are homogeneous in λ, and in each μ_c."""
    case, objective = make_objective(seed, missing=0.0, prior=Prior(1.0, 1.0))
    point = some_points(objective, 1, seed)
    factors = determinant_factors(objective)
    found = evaluate(objective, point).gradient - factors * objective.held / np.where(
        objective.held, point, 1
    )
    sums = (found[0] * point[0]).sum(axis=0)
    assert_allclose(sums[0], 100, rtol=1e-10)
    assert_allclose(sums[1:].sum(), 100 * len(case.sizes), rtol=1e-10)
