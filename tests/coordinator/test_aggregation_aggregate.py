"""From releases to global draws, by every method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.aggregation_cases import conjugate_release, make_case
from numpy.testing import assert_allclose, assert_array_equal

from silomix.coordinator import aggregation
from silomix.coordinator.aggregation import aggregate, objective_draws
from silomix.errors import PolicyRefusal
from silomix.messages import LogLikelihood
from silomix.model.draws import Correspondence
from silomix.model.schema import Prior
from silomix.paper import FewRounds, Psgd
from silomix.study import AGGREGATIONS, Lbfgs
from silomix.study.policy import echo, find_policy

HOLDS = [[1, 1, 0], [1, 1, 1], [0, 1, 1]]


@pytest.fixture
def case(seed):
    return make_case(seed, rows=(150, 100, 80), clusters=3, holds=HOLDS)


def run(case, silos=None, *, method="vcmc", count=60, seed=3, threads=1, **settings):
    few = {"draws": 16} if method == "vcmc" else {}
    return aggregate(
        case.releases,
        case.correspondence,
        AGGREGATIONS[method].record(**few | settings),
        silos or case.silos,
        case.model(seed),
        count=count,
        threads=threads,
    )


def assert_same(one, other):
    assert_array_equal(one.weights, other.weights)
    assert_array_equal(one.parameters, other.parameters)
    assert_array_equal(one.silo_weights.weights, other.silo_weights.weights)
    assert_array_equal(one.silo_weights.profiles, other.silo_weights.profiles)
    assert_array_equal(one.elbo_trace, other.elbo_trace)


def test_uniform_weights_are_equal(case):
    found = run(case, method="uniform").silo_weights
    assert_array_equal(found.weights, np.full(3, 1 / 3))
    assert_array_equal(found.profiles, case.correspondence.held / [2, 3, 2])


def test_the_objective_looks_at_the_first_draws_alone(case):
    silos = case.silos
    run(case, silos, oracle="federated", draws=16, count=60)
    asked = [query for query in silos.asked if isinstance(query, LogLikelihood)]
    assert {(query.first, query.last) for query in asked} == {(0, 16)}
    assert_same(
        run(case, draws=16, count=16), run(case, draws=1000, count=16)
    )  # no more than there are


def test_densities_that_are_worth_no_rows_count_as_their_silos(case, monkeypatch):
    """As under coarse rules, where clusters overlap: sizes are then from the prior alone."""
    monkeypatch.setattr(aggregation, "_members", lambda draws, *_: (draws.mean(axis=0), 0.0))
    found = run(case, method="product")
    assert_allclose(found.silo_weights.weights, np.array([150, 100, 80]) / 330)
    assert_allclose(found.silo_weights.profiles.sum(axis=0), 1)


def split_silo(seed, prior):
    """Twenty silos; the last, with twelve rows, calls them four clusters that nobody else has."""
    case = make_case(seed, rows=(40,) * 19 + (12,), clusters=2, sizes=(2,) * 4, prior=prior)
    labels = 2 + np.arange(12) % 4
    rng = np.random.default_rng(seed)
    last = conjugate_release(rng, 19, case.codes[-1], labels, case.sizes, prior, 20, 400)
    matched = case.correspondence
    return replace(
        case,
        releases=[*case.releases[:-1], last],
        correspondence=Correspondence(
            matched.silos,
            (*matched.groups[:-1], np.arange(2, 6)),
            (*matched.sizes[:-1], last.sizes),
            "truth",
        ),
    )


@pytest.mark.parametrize("solver", [Lbfgs(), Psgd(), FewRounds(rounds=10, starts=20)])
def test_the_floor_binds_where_the_objective_has_no_maximum_and_a_note_says_so(seed, solver):
    """Where α gives no reward it does not; where it does, a lower floor gives a higher objective.

    By (1 − α) m − (G − 1)/S = 0.5 · 4 − 5/20 for every unit of −log λ.
    """
    case = split_silo(seed, Prior())
    found = run(case, solver=solver)
    (note,) = found.notes
    assert "The weight of silo-19 fell to the floor, 1e-06" in note
    assert found.silo_weights.weights[19] < 1.1e-6
    if solver == Lbfgs():
        ends = [run(case, floor=f, solver=Lbfgs(tolerance=1e-6)).elbo_trace for f in (1e-9, 1e-6)]
        assert_allclose(ends[0].max() - ends[1].max(), 1.75 * np.log(1e3), rtol=0.02)
        found = run(split_silo(seed, Prior(alpha=1.5)))
        assert found.notes == ()
        assert found.silo_weights.weights[19] > 1e-4


def test_a_solver_that_ran_out_of_steps_leaves_a_note(case):
    found = run(case, solver=Lbfgs(starts=1, steps=1))
    assert f"still moving after {len(found.elbo_trace)} evaluations" in found.notes[0]
    assert run(case, solver=FewRounds(rounds=2, starts=2)).notes == ()


def test_a_release_that_may_not_be_shown_is_not(case):
    silos = case.silos
    private = replace(case.releases[1], policy=echo(find_policy("default")))
    hidden = replace(case, releases=[case.releases[0], private, *case.releases[2:]])
    with pytest.raises(PolicyRefusal) as error:
        run(hidden, silos, oracle="federated")
    assert str(error.value).startswith("silo-1: its policy does not let its release be shown")
    assert silos.asked == []
    run(hidden, silos, method="product")


def test_with_many_rows_the_objective_takes_fewer_draws_and_leaves_a_note(case, monkeypatch):
    rows = [4_000, 100_000, 10**8]
    assert [objective_draws(200, n) for n in rows] == [200, 100, 48]
    assert objective_draws(10, 10**8) == 10
    monkeypatch.setattr("silomix.coordinator.aggregation.MOST_ROW_DRAWS", 330 * 5)
    monkeypatch.setattr("silomix.coordinator.aggregation.LEAST_DRAWS", 1)
    assert "learned on 5 draws instead of 16, since there are 330 rows" in run(case).notes[0]
