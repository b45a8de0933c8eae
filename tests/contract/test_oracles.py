"""Every oracle gives the same numbers: strategies differ in what moves between the nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.aggregation_cases import make_case, share_of
from numpy.testing import assert_allclose, assert_array_equal

from silomix.coordinator.aggregation.objective import (
    Objective,
    contingency,
    evaluate,
    federated,
    hypercube,
)
from silomix.messages import CountDistinctRows, LogLikelihood, ShareReleases

ORACLES = {
    "pooled": lambda case, silos, share, threads: case.pooled(threads),
    "contingency": lambda case, silos, share, threads: contingency(silos, case.family, threads),
    "federated": lambda case, silos, share, threads: federated(silos, share),
}
AGREE = 1e-10
HOLDS = [[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0]]


@pytest.fixture(params=ORACLES)
def make_oracle(request):
    return ORACLES[request.param]


@pytest.fixture
def case(seed):
    """A study with clusters that some silos lack and cells that some rows lack."""
    return make_case(seed, rows=(150, 90, 120, 30), holds=HOLDS, missing=0.1)


def objective_with(case, make_oracle, seed, silos=None, threads=1):
    share, matched = share_of(case, 30, seed)
    oracle = make_oracle(case, silos or case.silos, share, threads)
    return Objective(matched, oracle, case.prior.alpha, case.family)


@pytest.fixture
def expected(case, seed):
    """The objective of rows at hand, at four points."""
    objective = objective_with(case, ORACLES["pooled"], seed)
    points = hypercube(4, objective.held, np.random.default_rng(seed))
    return points, evaluate(objective, points)


def assert_same(found, known, rtol=0.0):
    assert_allclose(found.value, known.value, rtol=rtol)
    assert_allclose(found.gradient, known.gradient, rtol=rtol)


def test_the_elbo_and_its_gradient_are_the_same(case, seed, make_oracle, expected):
    """To the bit whether points are asked together or alone, and on any number of threads."""
    points, known = expected
    objective = objective_with(case, make_oracle, seed)
    found = evaluate(objective, points)
    assert_same(found, known, AGREE)
    assert_same(evaluate(objective_with(case, make_oracle, seed, threads=3), points), found)
    for start in range(len(points)):
        alone = evaluate(objective, points[start : start + 1])
        assert_array_equal(alone.value, found.value[start : start + 1])
        assert_array_equal(alone.gradient, found.gradient[start : start + 1])


def test_one_row_less_would_be_noticed(case, seed, make_oracle, expected):
    points, known = expected
    case.codes[1] = case.codes[1][1:]
    found = evaluate(objective_with(case, make_oracle, seed), points)
    assert (np.abs(found.value - known.value) > 1e3 * AGREE * np.abs(known.value)).all()


def test_some_of_the_draws_can_be_asked_about(case, seed, make_oracle, expected):
    """A stochastic step looks at a part of the draws; the silo must take the same part."""
    found, known = (
        evaluate(replace(whole, matched=whole.matched.some(10, 25), first=10), expected[0])
        for whole in (objective_with(case, of, seed) for of in (make_oracle, ORACLES["pooled"]))
    )
    assert_same(found, known, AGREE)


def test_what_each_oracle_asks(case, seed, expected):
    points, _ = expected
    for name, kinds in (
        ("pooled", []),
        ("contingency", [CountDistinctRows]),
        ("federated", [ShareReleases] + [LogLikelihood] * 3),
    ):
        silos = case.silos
        objective = objective_with(case, ORACLES[name], seed, silos)
        for _ in range(3):
            evaluate(objective, points)
        assert [type(query) for query in silos.asked] == kinds
