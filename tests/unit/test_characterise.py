from __future__ import annotations

import numpy as np
import pytest

from silomix.characterise import (
    cluster_map,
    contrast,
    number_of_clusters,
    scaled_difference,
    shared_confidence,
    told_columns,
    traits,
    whole_population,
)
from silomix.errors import SettingsError
from silomix.types import Correspondence

OFFSETS = np.array([0, 2, 5])
LEVELS = [("a", "no"), ("a", "yes"), ("b", "x"), ("b", "y"), ("b", "z")]


def constant(weights, probabilities, draws=4):
    """The same values in every draw."""
    return np.tile(weights, (draws, 1)), np.tile(probabilities, (draws, 1, 1))


def test_the_whole_population_is_the_weighted_mean_of_the_clusters():
    weights, probabilities = constant([0.25, 0.75], [[1.0, 0.0], [0.2, 0.8]])
    np.testing.assert_allclose(whole_population(weights, probabilities)[0], [0.4, 0.6])


def test_the_scaled_difference_is_in_standard_deviations():
    found = scaled_difference(np.array([0.7, 1.0, 0.0]), np.array([0.5, 1.0, 0.2]))
    np.testing.assert_allclose(found, [0.4, 0.0, -0.5])


def test_both_levels_of_a_pair_mirror_each_other(seed):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(3), 20)
    probabilities = rng.dirichlet(np.ones(2), (20, 3))
    found = contrast(weights, probabilities)
    np.testing.assert_allclose(found.scaled[:, 0], -found.scaled[:, 1])
    np.testing.assert_allclose(found.high[:, 0], found.low[:, 1])


def test_a_contrast_counts_draws(seed):
    """One draw in four has the difference the other way round."""
    weights = np.full((4, 2), 0.5)
    probabilities = np.tile([[0.1, 0.9], [0.9, 0.1]], (4, 1, 1))
    probabilities[0] = probabilities[0, ::-1]
    found = contrast(weights, probabilities, margin=0.5)
    np.testing.assert_allclose(found.above, [[0.25, 0.75], [0.75, 0.25]])
    np.testing.assert_allclose(found.high, found.above)
    np.testing.assert_allclose(contrast(weights, probabilities, margin=0.9).high, 0.0)


def test_a_contrast_refuses_a_negative_margin():
    with pytest.raises(SettingsError, match=r"margin is -1; give a scaled difference of 0"):
        contrast(*constant([1.0], [[0.5, 0.5]]), margin=-1)


def test_the_first_of_two_levels_is_not_told():
    assert told_columns(OFFSETS).tolist() == [False, True, True, True, True]


def test_traits_are_what_differs_clearest_first():
    weights, probabilities = constant(
        [0.5, 0.5], [[0.1, 0.9, 0.60, 0.35, 0.05], [0.9, 0.1, 0.30, 0.35, 0.35]]
    )
    (high, low), _ = traits(contrast(weights, probabilities), LEVELS, OFFSETS)
    assert [(t.variable, t.level) for t in high] == [("a", "yes"), ("b", "x")]
    assert [(t.variable, t.level) for t in low] == [("b", "z")]
    assert high[0].probability == 1.0
    assert low[0].scaled < 0


def test_traits_leave_out_what_is_not_sure():
    weights = np.full((4, 2), 0.5)
    probabilities = np.tile([[0.1, 0.9], [0.9, 0.1]], (4, 1, 1))
    probabilities[0] = probabilities[0, ::-1]
    found = contrast(weights, probabilities)
    offsets = np.array([0, 2])
    assert traits(found, LEVELS[:2], offsets)[0] == ([], [])
    assert len(traits(found, LEVELS[:2], offsets, probability=0.75)[0][0]) == 1


def test_traits_refuse_a_probability_that_tells_both_sides():
    with pytest.raises(SettingsError, match=r"probability is 0.5; give one above 0.5"):
        traits(
            contrast(*constant([1.0], [[0.5, 0.5]])), LEVELS[:2], np.array([0, 2]), probability=0.5
        )


def test_the_number_of_clusters_counts_those_that_are_large_enough():
    weights = np.array([[0.90, 0.09, 0.01], [0.90, 0.095, 0.005]])
    assert number_of_clusters(weights) == {2: 0.5, 3: 0.5}
    assert number_of_clusters(weights, at_least=0.0) == {3: 1.0}


def test_the_number_of_clusters_refuses_a_share_of_everything():
    with pytest.raises(SettingsError, match=r"at_least is 1; give a share"):
        number_of_clusters(np.ones((1, 1)), at_least=1)


def correspondence(confidence):
    groups = (np.array([0, 1]), np.array([0]), np.array([0]))
    return Correspondence(("a", "b", "c"), groups, groups, "evidence", confidence)


def test_shared_confidence_is_the_worst_pair():
    confidence = np.array(
        [[1, 0.1, 0.9, 0.8], [0.1, 1, 0.3, 0.2], [0.9, 0.3, 1, 0.7], [0.8, 0.2, 0.7, 1]]
    )
    found = shared_confidence(correspondence(confidence))
    np.testing.assert_allclose(found, [[0.7, 0.3], [0.3, np.nan]])
    assert shared_confidence(correspondence(None)) is None


def rows_of_a_mixture(rng, rows, weights, probabilities):
    """Indicator rows (row, level) of a mixture, exactly as often as it says in the limit."""
    labels = rng.choice(len(weights), rows, p=weights)
    parts = []
    for start, stop in ((0, 2), (2, 5), (5, 7)):
        steps = probabilities[labels, start:stop].cumsum(axis=1)
        codes = (rng.random(rows)[:, None] > steps).sum(axis=1)
        parts.append(np.eye(stop - start)[np.minimum(codes, stop - start - 1)])
    return np.concatenate(parts, axis=1), labels


def test_the_map_is_the_correspondence_analysis_of_rows_that_the_mixture_would_give(seed):
    """With many rows, clusters lie where the textbook analysis of the rows puts their means.

    400,000 rows: a mean coordinate, and the axes, have a standard error below 0.005.
    """
    rng = np.random.default_rng(seed)
    offsets = np.array([0, 2, 5, 7])
    weights = np.array([0.5, 0.3, 0.2])
    probabilities = np.array(
        [
            [0.9, 0.1, 0.8, 0.1, 0.1, 0.7, 0.3],
            [0.2, 0.8, 0.1, 0.8, 0.1, 0.9, 0.1],
            [0.5, 0.5, 0.1, 0.1, 0.8, 0.1, 0.9],
        ]
    )
    indicator, labels = rows_of_a_mixture(rng, 400_000, weights, probabilities)
    masses = indicator.mean(axis=0) / 3
    centred = indicator / 3 - masses
    burt = centred.T @ centred / len(indicator) / np.sqrt(np.outer(masses, masses))
    _, vectors = np.linalg.eigh(burt)
    columns = vectors[:, :-3:-1] / np.sqrt(masses)[:, None]
    means = np.array([(indicator[labels == c] @ columns).mean(axis=0) / 3 for c in range(3)])
    found = cluster_map(*constant(weights, probabilities), offsets)
    np.testing.assert_allclose(np.abs(found.centres), np.abs(means), atol=4 * 0.005)
    np.testing.assert_allclose(weights @ found.centres, 0.0, atol=1e-9)
    assert found.shares.sum() == pytest.approx(1.0)
    assert found.shares[0] > found.shares[1] > 0


def test_there_is_no_map_of_what_does_not_differ():
    same = [[0.5, 0.5, 0.2, 0.3, 0.5]]
    assert cluster_map(*constant([1.0], same), OFFSETS) is None
    assert cluster_map(*constant([0.5, 0.5], same * 2), OFFSETS) is None
    one_variable = constant([0.5, 0.5], [[0.1, 0.9], [0.9, 0.1]])
    assert cluster_map(*one_variable, np.array([0, 2])) is None
