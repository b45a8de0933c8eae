"""Every aggregation that is registered does what the pipeline and the report rely on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.aggregation_cases import make_case
from numpy.testing import assert_allclose, assert_array_equal

from silomix.coordinator.aggregation import aggregate
from silomix.model.draws import Correspondence
from silomix.study import AGGREGATIONS

HOLDS = [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
ROWS = (150, 100, 80)


@pytest.fixture(params=sorted(AGGREGATIONS))
def word(request):
    return request.param


@pytest.fixture
def case(seed):
    return make_case(seed, rows=ROWS, clusters=3, holds=HOLDS)


def run(case, word, silos=None, *, seed=3, count=60, threads=1):
    settings, model = AGGREGATIONS[word].record(), case.model(seed)
    given = case.releases, case.correspondence, settings, silos or case.silos, model
    return aggregate(*given, count=count, threads=threads)


def arrays(found):
    yield from (found.weights, found.parameters, found.elbo_trace)
    yield from (found.silo_weights.weights, found.silo_weights.profiles)


def test_draws_and_weights_are_on_their_simplices(case, word):
    found = run(case, word)
    assert found.weights.shape == (60, 3)
    assert found.parameters.shape == (60, 3, 26)
    assert found.matched.weights.shape == (3, 60, 3)
    # the silos' draws are kept in float32
    assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-6)
    sums = np.add.reduceat(found.parameters, case.offsets[:-1], axis=-1)
    assert_allclose(sums, 1, rtol=1e-6)
    assert (found.weights > 0).all()
    assert (found.parameters > 0).all()
    assert found.silo_weights.silos == case.correspondence.silos
    assert_allclose(found.silo_weights.weights.sum(), 1, rtol=1e-12)
    assert_allclose(found.silo_weights.profiles.sum(axis=0), 1, rtol=1e-12)
    assert_array_equal(found.silo_weights.profiles > 0, case.correspondence.held)
    assert all(isinstance(note, str) for note in found.notes)


def test_draws_are_of_the_rows_that_were_planted(case, word):
    found = run(case, word)
    labels, codes = np.concatenate(case.labels), np.concatenate(case.codes)
    first = [(codes[labels == c, 0] == 0).mean() for c in range(3)]
    assert_allclose(found.parameters[:, :, 0].mean(axis=0), first, atol=0.1)


def test_means_of_draws_are_between_those_of_the_silos(case, word):
    found = run(case, word)
    silos = found.matched.weights
    low, high = silos.min(axis=0) - 1e-6, silos.max(axis=0) + 1e-6
    inside = ((low <= found.weights) & (found.weights <= high)).all()
    assert inside or not AGGREGATIONS[word].record.averages


def test_it_asks_what_its_record_says(case, word):
    asked = AGGREGATIONS[word].record().asks(len(ROWS))
    silos = case.silos
    run(case, word, silos)
    assert {type(query).__name__ for query in silos.asked} == set(asked.questions if asked else ())


def test_the_seed_decides_and_threads_do_not_and_zeros_do_no_harm(case, word):
    found = run(case, word)
    for one, other in zip(arrays(found), arrays(run(case, word, threads=3)), strict=True):
        assert_array_equal(one, other)
    assert (run(case, word, seed=4).weights != found.weights).any()
    for release in case.releases:
        release.parameters[:, :, 0] = 0
    emptied = run(case, word)
    assert np.isfinite(np.log(emptied.parameters)).all()
    assert np.isfinite(emptied.weights).all()


def test_another_order_of_silos_gives_the_same_answer(case, word):
    """To Monte Carlo error: draw t of a silo meets another draw of the others."""
    order = [2, 0, 1]
    match = case.correspondence
    releases = [replace(case.releases[s], place=place) for place, s in enumerate(order)]
    turned = (tuple(each[s] for s in order) for each in (match.silos, match.groups, match.sizes))
    codes = [case.codes[s] for s in order]
    moved = replace(
        case, releases=releases, codes=codes, correspondence=Correspondence(*turned, "truth")
    )
    before, after = run(case, word, count=400), run(moved, word, count=400)
    assert after.silo_weights.silos == tuple(match.silos[s] for s in order)
    assert_allclose(after.weights.mean(axis=0), before.weights.mean(axis=0), atol=0.02)
    means = (found.parameters.mean(axis=0) for found in (before, after))
    assert_allclose(*means, atol=0.02)
    assert_allclose(after.silo_weights.weights, before.silo_weights.weights[order], atol=0.1)


def test_one_silo_has_nothing_to_weigh_and_one_cluster_is_whole(seed, word):
    case = make_case(seed, rows=(120,), clusters=3)
    silos = case.silos
    found = run(case, word, silos)
    assert silos.asked == []
    assert_array_equal(found.silo_weights.weights, [1])
    assert_array_equal(found.silo_weights.profiles, np.ones((1, 3)))
    own = found.matched.weights[0]
    assert_allclose(found.weights.mean(axis=0), own.mean(axis=0), atol=0.02)
    assert_allclose(run(make_case(seed, rows=(50, 40), clusters=1), word).weights, 1, rtol=1e-6)
