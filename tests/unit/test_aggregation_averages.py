"""Uniform and inverse-variance averages."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from silomix.aggregation.cmc import average_elementwise, inverse_variances, uniform_weights
from silomix.aggregation.matched import matched_draws
from silomix.types import MatchedDraws
from unit.aggregation_cases import make_case

HOLDS = [[1, 1, 1], [1, 1, 0], [1, 0, 0]]


def match(case, seed, draws=300):
    return matched_draws(case.releases, case.correspondence, draws, case.prior, case.offsets, seed)


def rows_of(case):
    return np.array([release.rows for release in case.releases])


def test_uniform_weights_are_even_among_those_who_hold():
    weights, profiles = uniform_weights(np.array(HOLDS, bool))
    assert_array_equal(weights, [1 / 3] * 3)
    assert_array_equal(profiles, [[1 / 3, 1 / 2, 1], [1 / 3, 1 / 2, 0], [1 / 3, 0, 0]])


def test_profiles_are_weighed_elementwise_by_inverse_variance(seed):
    case = make_case(seed, rows=(90, 60, 50), clusters=3, sizes=(2, 3), holds=HOLDS)
    matched = match(case, seed)
    _, elements = inverse_variances(matched, rows_of(case))
    for c in range(3):
        for level in range(5):
            held = np.flatnonzero(matched.held[:, c])
            precision = [1 / matched.probabilities[s, :, c, level].var() for s in held]
            assert_allclose(elements[held, c, level], precision / np.sum(precision), rtol=1e-12)
    assert not elements[~matched.held].any()
    averaged = average_elementwise(matched, elements, case.offsets)
    raw = np.einsum("scd,stcd->tcd", elements, matched.probabilities)
    for first, last in ((0, 2), (2, 5)):
        part = raw[..., first:last]
        expected = part / part.sum(axis=-1, keepdims=True)
        assert_allclose(averaged[..., first:last], expected, rtol=1e-12)
        assert_allclose(averaged[..., first:last].sum(axis=-1), 1, rtol=1e-14)


def test_a_larger_silo_counts_more(seed):
    """Homogeneous silos: the variance of a weight is inverse to the rows."""
    case = make_case(seed, rows=(100, 200, 700), clusters=3)
    weights, elements = inverse_variances(match(case, seed), rows_of(case))
    assert_allclose(weights.sum(), 1, rtol=1e-14)
    # 400 draws know a variance to about 7 %, and the silos' own make-up differs by chance
    assert_allclose(weights, [0.1, 0.2, 0.7], rtol=0.3)
    assert elements[2].mean() > elements[1].mean() > elements[0].mean()


def test_a_silo_without_doubt_does_not_take_all_the_weight(seed):
    """The last silo holds one cluster, whose weight is one in every draw."""
    case = make_case(seed, rows=(90, 60, 50), clusters=3, holds=HOLDS)
    weights, _ = inverse_variances(match(case, seed), rows_of(case))
    assert weights[2] < 0.6
    assert weights.min() > 0.05


def test_draws_that_do_not_move_count_equally(seed):
    case = make_case(seed, rows=(40, 40), clusters=2, sizes=(2, 1))
    matched = match(case, seed)
    still = MatchedDraws(
        np.repeat(matched.weights[:, :1], 300, axis=1),
        np.repeat(matched.probabilities[:, :1], 300, axis=1),
        matched.held,
    )
    for draws in (matched, still):
        weights, elements = inverse_variances(draws, rows_of(case))
        assert np.isfinite(weights).all()
        # a variable of one level has probability one in every draw
        assert_allclose(elements[:, :, 2], 0.5, rtol=1e-12)
