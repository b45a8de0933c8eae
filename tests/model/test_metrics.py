from __future__ import annotations

import itertools
import re

import numpy as np
import pandas as pd
import pytest
from arviz_stats.base import array_stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from scipy.stats import entropy
from sklearn.metrics import adjusted_rand_score, mutual_info_score

from silomix.errors import DataError, SettingsError
from silomix.model.metrics import (
    adjusted_rand_index,
    coverage,
    equal_tailed_interval,
    highest_density_interval,
    pair_clusters,
    relative_bias,
    variation_of_information,
)

partition_pairs = st.integers(1, 60).flatmap(
    lambda rows: st.tuples(
        hnp.arrays(np.int64, rows, elements=st.integers(-3, 6)),
        hnp.arrays(np.int64, rows, elements=st.integers(0, 4)),
    )
)


@given(partition_pairs)
def test_partitions_are_compared_as_scikit_learn_and_entropies_do(pair):
    a, b = pair
    assert adjusted_rand_index(a, b) == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)
    entropies = sum(entropy(np.unique(side, return_counts=True)[1]) for side in pair)
    found = variation_of_information(a, b)
    assert found == pytest.approx(entropies - 2 * mutual_info_score(a, b), abs=1e-12)
    assert found == pytest.approx(variation_of_information(b, a), abs=1e-12)
    assert found >= 0.0
    assert variation_of_information(a, a * -2) == 0.0


@pytest.mark.parametrize(
    ("a", "b", "index"),
    [
        ([7, 7, 7], [-1, -1, -1], 1.0),  # one cluster on both sides
        ([0, 1, 2], ["u", "v", "w"], 1.0),  # singletons on both sides
        ([0, 0, 0], [0, 1, 2], 0.0),
        (["north"], ["south"], 1.0),
        ([0, 0, 1, 1], [0, 1, 0, 1], -0.5),
        (pd.Series(["b", "b", "a"], index=[9, 8, 7]).astype("category"), [0, 0, 1], 1.0),
        ([1, "1", 1, "1"], [0, 1, 0, 1], 1.0),  # a number and its digits are two labels
    ],
)
def test_the_rand_index_of_partitions_known_by_hand(a, b, index):
    assert adjusted_rand_index(a, b) == index


def test_the_rand_index_is_exact_where_machine_integers_overflow(rng):
    a, b = rng.integers(3, size=300_000), rng.integers(2, size=300_000)
    assert adjusted_rand_index(a, b) == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)
    singletons = np.arange(300_000)
    assert adjusted_rand_index(singletons, singletons[::-1]) == 1.0


@pytest.mark.parametrize(
    ("compare", "a", "b", "message"),
    [
        (adjusted_rand_index, [0, 1, 1], [0, 1], "the two partitions have 3 and 2 rows"),
        (adjusted_rand_index, [], [], "a has the shape (0,)"),
        (variation_of_information, [0, 1], [[0], [1]], "b has the shape (2, 1)"),
        (variation_of_information, [0, 1, 1], ["x", None, None], "b has no label in 2 of 3 rows"),
        (pair_clusters, ["u", "v"], [0, 1], f"true_labels has dtype {pd.Series(list('uv')).dtype}"),
        (pair_clusters, [0, 1], [-1, 1], "labels goes down to -1"),
    ],
)
def test_partitions_that_cannot_be_compared(compare, a, b, message):
    with pytest.raises(DataError, match=re.escape(message)):
        compare(a, b)


def best_overlap(shared):
    """Most rows that any one-to-one pairing shares, by trying them all."""
    wide = shared if shared.shape[0] <= shared.shape[1] else shared.T
    rows = range(wide.shape[0])
    return max(
        sum(wide[r, c] for r, c in zip(rows, columns, strict=True))
        for columns in itertools.permutations(range(wide.shape[1]), wide.shape[0])
    )


@given(
    st.integers(1, 40).flatmap(
        lambda rows: st.tuples(
            hnp.arrays(np.int64, rows, elements=st.integers(0, 3)),
            hnp.arrays(np.int64, rows, elements=st.integers(0, 4)),
        )
    )
)
def test_pairs_share_as_many_rows_as_any_pairing_can(pair):
    true_labels, labels = pair
    paired = pair_clusters(true_labels, labels, true_clusters=4, clusters=5)
    shared = np.zeros((4, 5), dtype=int)
    np.add.at(shared, pair, 1)
    found = np.flatnonzero(paired >= 0)
    assert paired.shape == (4,)
    assert len(set(paired[found])) == len(found)
    assert (shared[found, paired[found]] > 0).all()
    assert shared[found, paired[found]].sum() == best_overlap(shared)


def test_coverage_counts_the_bounds_in_and_nan_as_a_miss():
    true = [0.1, 0.5, 0.9, 0.4]
    assert coverage(true, [0.1, 0.6, 0.2, np.nan], [0.3, 0.8, 0.9, np.nan]) == 0.5
    assert coverage(true, 0.2, 0.5) == 0.5
    assert np.isnan(coverage([], [], []))


def test_bounds_that_are_swapped_and_shapes_that_do_not_fit():
    with pytest.raises(DataError, match="lower is above upper in 2 of 3 intervals"):
        coverage([0.1, 0.2, 0.3], [0.5, 0.1, 0.5], [0.4, 0.3, 0.4])
    with pytest.raises(ValueError, match=r"shape \(2,\) and arg 1 with shape \(3,\)"):
        coverage([0.1, 0.2], [0.0] * 3, [1.0] * 3)


def test_relative_bias_has_the_papers_sign_and_nan_where_there_is_none():
    assert_array_equal(relative_bias([0.5, 0.25, -2.0], [1.0, 0.125, -1.0]), [-1.0, 0.5, 0.5])
    assert_array_equal(relative_bias([[0.0], [0.5]], [0.5, np.nan]), [[np.nan] * 2, [0, np.nan]])


def test_an_equal_tailed_interval_leaves_as_much_out_on_each_side():
    draws = np.random.default_rng(0).permutation(np.arange(101.0))
    assert equal_tailed_interval(draws, 0.5) == (25.0, 75.0)
    lower, upper = equal_tailed_interval(np.stack([draws, draws * 2]), 0.5, axis=1)
    assert_array_equal(lower, [25, 50])
    assert_array_equal(upper, [75, 150])


def shortest_window(draws, level):
    """Shortest interval between two draws holding more than level of them, by trying all."""
    found = [
        (b - a, a, b)
        for a, b in itertools.product(draws, draws)
        if a <= b and np.count_nonzero((a <= draws) & (draws <= b)) >= level * len(draws)
    ]
    return min(found)[1:]


@given(
    hnp.arrays(np.float64, st.integers(1, 25), elements=st.integers(-20, 20), unique=True),
    # level · n is never whole here, so "at least" and "more than" are one
    st.sampled_from([0.513, 0.707, 0.97]),
)
def test_the_highest_density_interval_is_the_shortest_window(draws, level):
    lower, upper = highest_density_interval(draws, level)
    assert (lower, upper) == shortest_window(draws, level)


@pytest.mark.parametrize("shape", [(200,), (401, 3), (250, 2, 4)])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_the_highest_density_interval_is_arvizs(seed, shape, level):
    draws = np.random.default_rng(seed).gamma(0.7, size=shape)
    lower, upper = highest_density_interval(draws, level)
    assert lower.shape == upper.shape == shape[1:]
    expected = array_stats.hdi(draws, prob=level, axis=0)
    assert_array_equal(np.stack([lower, upper], axis=-1), expected)


@pytest.mark.parametrize("interval", [equal_tailed_interval, highest_density_interval])
def test_an_interval_needs_a_level_and_draws(interval):
    for level in (0, 1, 95, -0.1, np.nan):
        with pytest.raises(SettingsError, match=f"level={level}"):
            interval([1.0, 2.0], level)
    with pytest.raises(DataError, match="there are no draws along axis 0"):
        interval(np.empty((0, 3)))
    assert interval(1.0) == (1.0, 1.0)
    assert highest_density_interval([3.0, 1.0, 2.0], np.nextafter(1, 0)) == (1.0, 3.0)
