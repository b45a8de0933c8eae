"""Draws that follow a partition, from hand-made components."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from cases.release_cases import draws_of, shard_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from silomix.errors import SamplingWarning, SettingsError
from silomix.families.release_rounding import whole_counts
from silomix.kernels.similarity import BYTE, contingency
from silomix.silo.partition import partition
from silomix.silo.relabel import RELABELLINGS, assign, local_posterior, mix_components

TRUTH = np.repeat([0, 1, 2], [30, 20, 10])


def make_draws(labels, weights, probabilities):
    """Draws with these parameters, over variables of three levels that show the cluster."""
    rows, variables = np.shape(labels)[1], np.shape(probabilities)[2] // 3
    codes = np.tile(np.resize(TRUTH, rows)[:, None], variables)
    return draws_of(shard_of(codes, (3,) * variables), labels, weights, probabilities)


def aligned(rng, n_draws=40, components=5, noise=0.1):
    """Draws in which component c is cluster c, and the rest are almost empty."""
    labels = np.tile(TRUTH, (n_draws, 1))
    astray = rng.random(labels.shape) < noise
    labels[astray] = rng.integers(0, components, astray.sum())
    return make_draws(
        labels,
        rng.dirichlet(np.ones(components), n_draws),
        rng.dirichlet(np.ones(3), (n_draws, components, 3)).reshape(n_draws, components, 9),
    )


def switch(draws, rng):
    """The same draws, the components numbered anew in each."""
    number = np.argsort(rng.random(draws.weights.shape), axis=1)
    place = np.argsort(number, axis=1)
    return replace(
        draws,
        labels=np.take_along_axis(number, draws.labels.astype(int), axis=1).astype(np.uint8),
        weights=np.take_along_axis(draws.weights, place, axis=1),
        probabilities=np.take_along_axis(draws.probabilities, place[:, :, None], axis=1),
    )


def assert_same(left, right):
    assert_array_equal(left.weights, right.weights)
    assert_array_equal(left.probabilities, right.probabilities)
    assert_array_equal(left.prior_draws, right.prior_draws)
    assert_array_equal(left.memberships, right.memberships)


def relabelled(relabel, overlap, weights, probabilities):
    return mix_components(RELABELLINGS[relabel](overlap, weights), weights, probabilities)


def test_match_undoes_label_switching_exactly(rng):
    draws = aligned(rng, n_draws=BYTE + 45)
    found = local_posterior(switch(draws, rng), TRUTH)
    kept = draws.weights[:, :3].astype(np.float64)
    assert_array_equal(found.probabilities, draws.probabilities[:, :3])
    assert_allclose(found.weights, kept / kept.sum(axis=1, keepdims=True), rtol=1e-6)
    assert_array_equal(found.prior_draws, [0, 0, 0])
    assert found.weights.dtype == found.probabilities.dtype == np.float32
    assert_array_equal(found.sizes, [30, 20, 10])


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
@pytest.mark.parametrize("relabel", sorted(RELABELLINGS))
@settings(max_examples=25, deadline=None)
@given(number=st.integers(0, 10**6), noise=st.sampled_from([0.0, 0.3, 1.0]))
def test_the_numbers_of_the_components_never_matter(relabel, number, noise):
    """With few rows, equal overlaps and empty components are common."""
    rng = np.random.default_rng(number)
    labels = np.where(rng.random((20, 6)) < noise, rng.integers(0, 5, (20, 6)), [0, 0, 1, 1, 2, 2])
    draws = make_draws(labels, rng.dirichlet(np.ones(5), 20), rng.dirichlet(np.ones(3), (20, 5)))
    left = local_posterior(draws, [0, 0, 0, 1, 1, 2], relabel)
    right = local_posterior(switch(draws, rng), [0, 0, 0, 1, 1, 2], relabel)
    if relabel == "match":
        assert_same(left, right)
    else:  # the sums run over the components in another order
        assert_allclose(left.weights, right.weights, rtol=1e-6)
        assert_allclose(left.probabilities, right.probabilities, rtol=1e-5)
        assert_allclose(left.memberships, right.memberships, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(number=st.integers(0, 10**6), clusters=st.integers(1, 4))
def test_match_has_the_largest_overlap_of_all_assignments(number, clusters):
    rng = np.random.default_rng(number)
    overlap = rng.integers(0, 4, (5, 4, clusters), dtype=np.int32)
    overlap *= rng.random(overlap.shape) < 0.5
    weights = rng.dirichlet(np.ones(4), 5).astype(np.float32)
    component = assign(overlap, weights)
    for table, chosen in zip(overlap, component, strict=True):
        assert len(set(chosen)) == clusters
        totals = [
            sum(table[c, k] for k, c in enumerate(order))
            for order in permutations(range(4), clusters)
        ]
        assert sum(table[c, k] for k, c in enumerate(chosen)) == max(totals)


@pytest.mark.parametrize(
    ("overlap", "component"),
    [
        ([[5, 4, 0], [0, 0, 3], [0, 0, 2], [0, 0, 0]], [0, 3, 1]),
        ([[5, 4, 0], [0, 0, 3], [0, 0, 2]], [0, 2, 1]),
        ([[5, 3], [2, 0], [0, 0]], [1, 0]),
    ],
    ids=["an empty one before a neighbour's", "strangers if none is empty", "rows before empty"],
)
def test_which_component_match_lends_a_cluster_without_one(overlap, component):
    """Rows by component and cluster; both ways to give component 0 away share as many rows."""
    weights = np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float32)[:, : len(overlap)]
    probabilities = np.arange(len(overlap), dtype=np.float32).reshape(1, -1, 1)
    overlap = np.array([overlap], dtype=np.int32)
    assert_array_equal(assign(overlap, weights), [component])
    found, parameters, share = relabelled("match", overlap, weights, probabilities)
    assert_array_equal(parameters[0, :, 0], component)
    kept = weights[0, component]
    assert_allclose(found, [kept / kept.sum()], rtol=1e-6)
    assert_array_equal(share[0], np.arange(overlap.shape[1])[:, None] == component)


def test_average_by_hand_with_an_empty_component():
    """Three rows of cluster 0 sit in component 0, one in component 1; component 2 is empty.

    Weights: .5 · 3/3 + .3 · 1/3 = .6 and .3 · 2/3 = .2, divided by their sum .8.
    """
    overlap = np.array([[[3, 0], [1, 2], [0, 0]]], dtype=np.int32)
    weights = np.array([[0.5, 0.3, 0.2]], dtype=np.float32)
    probabilities = np.array([[[0.8, 0.2], [0.4, 0.6], [0.1, 0.9]]], dtype=np.float32)
    found, parameters, share = relabelled("average", overlap, weights, probabilities)
    assert_allclose(found, [[0.75, 0.25]], rtol=1e-6)
    assert_allclose(parameters, [[[0.7, 0.3], [0.4, 0.6]]], rtol=1e-6)
    assert_allclose(share, [[[1, 0], [1 / 3, 2 / 3], [0, 0]]])


def test_prior_draws_are_counted_and_warned_of():
    labels = np.tile(TRUTH, (20, 1))
    labels[:2][labels[:2] == 2] = 0  # in two draws of twenty cluster 2 joins cluster 0
    draws = make_draws(labels, np.full((20, 4), 0.25), np.full((20, 4, 3), 1 / 3))
    with pytest.warns(SamplingWarning, match=r"cluster 2: 10\.0% of the draws"):
        found = local_posterior(draws, TRUTH)
    assert_allclose(found.prior_draws, [0, 0, 0.1])
    assert_array_equal(local_posterior(draws, TRUTH, "average").prior_draws, [0, 0, 0])


def test_memberships_by_hand():
    """Six rows, two clusters of three, four draws of three components.

    Row 3 sits with cluster 0 in the second draw. In the third the components have changed their
    numbers, and row 0 has a component of its own, which is nobody's. In the fourth row 5 has.
    """
    labels = [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1], [2, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 2]]
    draws = make_draws(labels, np.full((4, 3), 1 / 3), np.full((4, 3, 3), 1 / 3))
    found = local_posterior(draws, [0, 0, 0, 1, 1, 1])
    matched = [[0.75, 0], [1, 0], [1, 0], [0.25, 0.75], [0, 1], [0, 0.75]]
    assert_array_equal(found.memberships, matched)
    found = local_posterior(draws, [0, 0, 0, 1, 1, 1], "average")
    # in the second draw three of the four rows of component 0 are cluster 0's
    mixed = [3.75 / 4, 0.25 / 4]
    assert_allclose(found.memberships, [mixed, mixed, mixed, [0.75 / 4, 3.25 / 4], [0, 1], [0, 1]])


def counts_by_draw(draws, share):
    """Level counts of each cluster in each draw, row by row: (draw, cluster, level)."""
    offsets = draws.shard.schema.offsets
    counts = np.zeros((len(share), share.shape[2], offsets[-1]))
    for d, labels in enumerate(draws.labels):
        for row, codes in enumerate(draws.shard.codes):
            counts[d][:, offsets[:-1] + codes] += share[d, labels[row]][:, None]
    return counts


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("relabel", sorted(RELABELLINGS))
def test_memberships_give_the_mean_over_the_draws_of_the_level_counts(rng, relabel, noise):
    draws = switch(aligned(rng, n_draws=BYTE + 3, noise=noise), rng)
    codes = rng.integers(0, 3, draws.shard.codes.shape).astype(np.uint8)
    draws = replace(draws, shard=replace(draws.shard, codes=codes))
    found = local_posterior(draws, TRUTH, relabel)
    overlap = contingency(draws.labels, found.partition.labels, draws.components, 3)
    *_, share = relabelled(relabel, overlap, draws.weights, draws.probabilities)
    offsets = draws.shard.schema.offsets
    levels = [np.eye(3)[column] for column in codes.T]
    from_memberships = found.memberships.T @ np.concatenate(levels, axis=1)
    exact = counts_by_draw(draws, share).mean(axis=0)
    assert_allclose(from_memberships, exact, atol=1e-9)
    assert_array_equal(whole_counts(codes, offsets, found.memberships), np.rint(exact.round(9)))


def test_a_word_a_partition_and_labels_of_any_kind_say_the_same(seed):
    draws = aligned(np.random.default_rng(seed))
    ready = partition(draws)
    by_word = local_posterior(draws)
    assert local_posterior(draws, ready).partition is ready
    assert by_word.partition.method == "linkage"
    for given_labels in (ready, TRUTH, 7 - TRUTH, np.array(["c", "a", "b"])[TRUTH]):
        assert_same(by_word, local_posterior(draws, given_labels))
    assert local_posterior(draws, TRUTH).partition.method == "given"
    six = np.arange(60) % 6
    assert local_posterior(draws, six, "average").weights.shape == (40, 6)
    for wrong, words in (
        ({"relabel": "mean"}, r"relabel='mean' is not known"),
        ({"partition": "ward"}, r"partition='ward' is not known"),
        ({"partition": TRUTH[:50]}, r"shape \(50,\) and the draws have 60 rows"),
        ({"partition": TRUTH[:, None]}, r"shape \(60, 1\) and the draws have 60 rows"),
        ({"partition": six}, r"has 6 clusters .* only 5 components.*'average'"),
    ):
        with pytest.raises(SettingsError, match=words):
            local_posterior(draws, **wrong)
