"""Averages of the silos' draws, and the product of fitted Dirichlets, where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from cases.aggregation_cases import level_counts, make_case
from numpy.testing import assert_allclose

from silomix.coordinator.aggregation import multiply
from silomix.families.categorical import draw_levels, fit_dirichlet
from silomix.model.draws import MatchedDraws
from silomix.model.schema import Prior
from silomix.paper.aggregations import average_elementwise, inverse_variances

DRAWS = 4000
# relative error allowed to a concentration from 4,000 draws: four standard errors and more
MOMENTS = 0.1


def rows_of(case):
    return np.array([release.rows for release in case.releases])


def pooled_shapes(case, clusters):
    """The Dirichlets of all rows together, their clusters known."""
    codes, labels = np.concatenate(case.codes), np.concatenate(case.labels)
    members = np.bincount(labels, minlength=clusters) + case.prior.alpha
    cells = [level_counts(codes[labels == c], case.sizes) for c in range(clusters)]
    return members, np.array(cells) + case.prior.beta


def moments(shapes):
    """Mean and standard deviation of one Dirichlet's entries."""
    total = shapes.sum(axis=-1, keepdims=True)
    mean = shapes / total
    return mean, np.sqrt(mean * (1 - mean) / (total + 1))


@pytest.mark.parametrize("fractionate", [True, False], ids=["shared prior", "whole priors"])
@pytest.mark.parametrize(
    "holds", [None, [[1, 1, 1], [1, 1, 0]]], ids=["both hold all", "one lacks one"]
)
def test_the_product_of_two_halves_is_the_pooled_posterior(rng, seed, fractionate, holds):
    case = make_case(
        seed,
        rows=(300, 300),
        clusters=3,
        sizes=(2, 3, 4),
        spread=1.0,
        holds=holds,
        draws=DRAWS,
        prior=Prior(fractionate=fractionate),
    )
    product = multiply(case.matched(DRAWS, seed), rows_of(case), case.model(seed))
    members, cells = pooled_shapes(case, 3)
    found = (
        rng.dirichlet(product.weights, DRAWS),
        draw_levels(product.profiles, case.offsets, rng, DRAWS),
    )

    mean, spread = moments(members)
    assert_allclose(found[0].mean(axis=0), mean, atol=0.3 * spread.max())
    if holds is None:
        assert_allclose(found[0].std(axis=0), spread, rtol=MOMENTS)
    for first, last in zip(case.offsets[:-1], case.offsets[1:], strict=True):
        mean, spread = moments(cells[:, first:last])
        drawn = found[1][:, :, first:last]
        # the fit is off by a fraction of the posterior's own spread
        assert (np.abs(drawn.mean(axis=0) - mean) < 0.3 * spread).all()
        assert_allclose(drawn.std(axis=0), spread, rtol=1.5 * MOMENTS)


def test_the_parameters_follow_the_formula(seed):
    """a = Σ (a_s − 1) + 1 + (1 − |S_c|/S)(β − 1), with the fitted a_s."""
    case = make_case(
        seed, rows=(80, 60, 50), clusters=2, sizes=(2, 3), holds=[[1, 1], [1, 0], [1, 0]]
    )
    matched = case.matched(DRAWS, seed)
    product = multiply(matched, rows_of(case), case.model(seed))
    for c, holders in ((0, [0, 1, 2]), (1, [0])):
        total = np.zeros(5)
        for s in holders:
            mean, concentration = fit_dirichlet(matched.parameters[s][:, [c]], case.offsets)
            total += mean[0] * np.repeat(concentration[0], case.sizes) - 1
        expected = total + 1 + (1 - len(holders) / 3) * (case.prior.beta - 1)
        # where the fit goes below the prior, the prior stands
        expected = np.maximum(expected, case.prior.beta)
        assert_allclose(product.profiles[c], expected, rtol=1e-12)


def test_a_silo_of_one_cluster_brings_its_rows(seed):
    case = make_case(seed, rows=(200, 100), clusters=2, holds=[[1, 1], [0, 1]], draws=DRAWS)
    product = multiply(case.matched(DRAWS, seed), rows_of(case), case.model(seed))
    assert product.rows[1] == 100
    assert_allclose(product.rows[0], 200, rtol=MOMENTS)
    members, _ = pooled_shapes(case, 2)
    assert_allclose(product.weights / product.weights.sum(), members / members.sum(), atol=0.01)


HOLDS = [[1, 1, 1], [1, 1, 0], [1, 0, 0]]


def test_profiles_are_weighed_elementwise_by_inverse_variance(seed):
    case = make_case(seed, rows=(90, 60, 50), clusters=3, sizes=(2, 3), holds=HOLDS)
    matched = case.matched(300, seed)
    _, elements = inverse_variances(matched, rows_of(case), case.family)
    for c in range(3):
        for level in range(5):
            held = np.flatnonzero(matched.held[:, c])
            precision = [1 / matched.parameters[s, :, c, level].var() for s in held]
            assert_allclose(elements[held, c, level], precision / np.sum(precision), rtol=1e-12)
    assert not elements[~matched.held].any()
    averaged = average_elementwise(matched, elements, case.family)
    raw = np.einsum("scd,stcd->tcd", elements, matched.parameters)
    for first, last in ((0, 2), (2, 5)):
        part = raw[..., first:last]
        expected = part / part.sum(axis=-1, keepdims=True)
        assert_allclose(averaged[..., first:last], expected, rtol=1e-12)
        assert_allclose(averaged[..., first:last].sum(axis=-1), 1, rtol=1e-14)


def test_a_larger_silo_counts_more(seed):
    """Homogeneous silos: the variance of a weight is inverse to the rows."""
    case = make_case(seed, rows=(100, 200, 700), clusters=3)
    weights, elements = inverse_variances(case.matched(300, seed), rows_of(case), case.family)
    assert_allclose(weights.sum(), 1, rtol=1e-14)
    # 400 draws know a variance to about 7 %, and the silos' own make-up differs by chance
    assert_allclose(weights, [0.1, 0.2, 0.7], rtol=0.3)
    assert elements[2].mean() > elements[1].mean() > elements[0].mean()


def test_draws_that_do_not_move_count_equally(seed):
    case = make_case(seed, rows=(40, 40), clusters=2, sizes=(2, 1))
    matched = case.matched(300, seed)
    still = MatchedDraws(
        np.repeat(matched.weights[:, :1], 300, axis=1),
        np.repeat(matched.parameters[:, :1], 300, axis=1),
        matched.held,
    )
    # a silo of one cluster, whose weight is one in every draw, does not take all the weight
    sure = make_case(seed, rows=(90, 60, 50), clusters=3, holds=HOLDS)
    weights, _ = inverse_variances(sure.matched(300, seed), rows_of(sure), sure.family)
    assert weights.min() > 0.05
    assert weights[2] < 0.6
    for draws in (matched, still):
        weights, elements = inverse_variances(draws, rows_of(case), case.family)
        assert np.isfinite(weights).all()
        # a variable of one level has probability one in every draw
        assert_allclose(elements[:, :, 2], 0.5, rtol=1e-12)
