"""Silos that answer from draws: the log-likelihood of a user's function, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from silomix.errors import DataError
from silomix.messages import (
    AssignRows,
    CountDistinctRows,
    LogLikelihood,
    Received,
    SampleLocally,
    ShareReleases,
)
from silomix.transports.combination import GivenDraws, sum_up_draws


@pytest.fixture
def asked():
    """Two silos of two clusters, and a sharing of their releases."""
    rng = np.random.default_rng(1)
    draws = {
        name: {
            "weights": rng.dirichlet([60, 40], 200),
            "parameters": {"rate": np.exp([0.0, 2.0] + 0.1 * rng.standard_normal((200, 2)))},
        }
        for name in ("north", "south")
    }
    plan, releases, _ = sum_up_draws(
        draws, ("weights", None, None), rows={}, transforms={}, prior={}
    )
    groups = (np.array([0, 1]), np.array([0, 1]))
    return plan, releases, ShareReleases(tuple(releases), groups, 30)


def smooth(weights, parameters):
    return (np.log(weights) * [3.0, 5.0]).sum(axis=1) - np.square(parameters["rate"] - 2).sum(
        axis=1
    )


def points(*weights):
    """Points at which λ and every μ are the same."""
    lam = np.array(weights)
    return lam, np.repeat(lam[:, :, None], 2, axis=2)


def test_the_gradient_is_that_along_the_simplices(asked):
    plan, releases, share = asked
    silos = GivenDraws(plan, releases, {"north": smooth, "south": smooth})
    silos.ask(share)

    def reply(*at):
        return silos.ask(LogLikelihood(share.key, 0, 30, *points(*at)))["north"]

    here, step = reply([0.4, 0.6]), 1e-4
    there, back = reply([0.4 + step, 0.6 - step]), reply([0.4 - step, 0.6 + step])
    along = (here.weights[0] - here.weights[0, ::-1])[0]
    along += (here.profiles[0, 0] - here.profiles[0, 1]).sum()
    assert_allclose((there.value - back.value) / (2 * step), along, rtol=1e-3)


def test_functions_get_shares_and_values_as_they_know_them(asked):
    plan, releases, share = asked
    seen = []

    def look(weights, parameters):
        seen.append((weights, parameters["rate"]))
        return np.zeros(len(weights))

    silos = GivenDraws(plan, releases, {"north": look, "south": look})
    silos.ask(share)
    silos.ask({"north": LogLikelihood(share.key, 10, 30, *points([0.5, 0.5]))})
    for weights, rate in seen:
        assert_allclose(weights.sum(axis=1), 1)
        assert weights.shape == rate.shape == (20, 2)
        assert_allclose(rate.mean(axis=0), [1.0, np.exp(2.0)], rtol=0.1)


@pytest.mark.parametrize("wrong", [lambda w, _: 1.0, lambda w, _: np.full(len(w), -np.inf)])
def test_a_function_that_returns_something_else_is_named(asked, wrong):
    plan, releases, share = asked
    silos = GivenDraws(plan, releases, {"north": wrong, "south": smooth})
    silos.ask(share)
    with pytest.raises(DataError, match="north: its log_likelihood returned"):
        silos.ask(LogLikelihood(share.key, 0, 30, *points([0.5, 0.5])))


def test_nothing_is_known_of_rows(asked):
    plan, releases, _ = asked
    silos = GivenDraws(plan, releases, {})
    assert silos.ask(SampleLocally()) == dict(zip(plan.silos, releases, strict=True))
    weights = np.full((3, 4), 0.25)
    query = AssignRows(weights, np.zeros((3, 4, 1)))
    assert silos.ask(query)["south"] == Received()
    with pytest.raises(NotImplementedError):
        silos.ask(CountDistinctRows())
