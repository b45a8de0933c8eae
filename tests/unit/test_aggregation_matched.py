"""The silos' draws in the global clusters' terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from silomix.aggregation.matched import SMALLEST, combine, matched_draws, some_draws
from silomix.errors import StudyMismatch
from silomix.types import Correspondence, MatchedDraws, SiloWeights
from unit.aggregation_cases import PRIOR, make_case

HOLDS = [[1, 1, 0], [0, 1, 1], [1, 1, 1]]


@pytest.fixture
def case(seed):
    return make_case(seed, rows=(60, 50, 40), clusters=3, sizes=(2, 3), holds=HOLDS, draws=30)


def match(case, count=30, seed=7, **changes):
    case = replace(case, **changes)
    return matched_draws(case.releases, case.correspondence, count, case.prior, case.offsets, seed)


def in_order(case, order):
    """The same study with its silos listed in another order; places stay."""
    matched = case.correspondence
    return replace(
        case,
        releases=[case.releases[s] for s in order],
        codes=[case.codes[s] for s in order],
        correspondence=Correspondence(
            tuple(matched.silos[s] for s in order),
            tuple(matched.groups[s] for s in order),
            tuple(matched.sizes[s] for s in order),
            matched.method,
        ),
    )


def rows_of(array):
    return {row.tobytes() for row in array}


def test_a_silo_has_its_own_draws_where_it_holds_a_cluster_and_zeros_elsewhere(case):
    matched = match(case)
    assert_array_equal(matched.held, np.array(HOLDS, bool))
    assert not matched.weights.transpose(0, 2, 1)[~matched.held].any()
    assert not matched.probabilities.transpose(0, 2, 1, 3)[~matched.held].any()
    for s, release in enumerate(case.releases):
        here = matched.held[s]
        own = release.weights.astype(float)
        assert rows_of(matched.weights[s][:, here]) == rows_of(own)
        # weights and profiles of one draw stay together
        order = [
            int(np.flatnonzero((own == row).all(axis=1))[0]) for row in matched.weights[s][:, here]
        ]
        assert_array_equal(
            matched.probabilities[s][:, here], release.probabilities[order].astype(float)
        )


def test_draws_of_different_silos_are_not_paired(case):
    """Two silos with the very same release, draw for draw."""
    twins = [case.releases[0], replace(case.releases[0], silo="silo-1", place=1)]
    matched = Correspondence(
        ("silo-0", "silo-1"), (np.arange(2),) * 2, (twins[0].sizes,) * 2, "truth"
    )
    found = match(case, releases=twins, correspondence=matched)
    assert rows_of(found.weights[0]) == rows_of(found.weights[1])
    assert (found.weights[0] != found.weights[1]).any()


def test_the_order_of_the_silos_does_not_matter_the_seed_and_the_place_do(case):
    matched = match(case)
    order = [2, 0, 1]
    found = match(in_order(case, order))
    assert_array_equal(found.weights, matched.weights[order])
    assert_array_equal(found.probabilities, matched.probabilities[order])
    assert (match(case, seed=8).weights != matched.weights).any()


def test_clusters_of_one_silo_in_one_group_add_up(case):
    merged = Correspondence(("silo-2",), (np.array([0, 1, 0]),), (case.releases[2].sizes,), "truth")
    apart = Correspondence(("silo-2",), (np.arange(3),), (case.releases[2].sizes,), "truth")
    three = match(case, releases=case.releases[2:], correspondence=apart)
    two = match(case, releases=case.releases[2:], correspondence=merged)
    weights, profiles = three.weights[0], three.probabilities[0]
    assert_allclose(two.weights[0, :, 0], weights[:, 0] + weights[:, 2], rtol=1e-15)
    for t in range(30):
        expected = weights[t, 0] * profiles[t, 0] + weights[t, 2] * profiles[t, 2]
        expected /= weights[t, 0] + weights[t, 2]
        assert_allclose(two.probabilities[0, t, 0], expected, rtol=1e-14)
    assert_array_equal(two.probabilities[0, :, 1], profiles[:, 1])


def test_clusters_without_weight_mix_evenly(case):
    release = case.releases[2]
    weightless = replace(release, weights=np.zeros_like(release.weights))
    merged = Correspondence(("silo-2",), (np.zeros(3, int),), (release.sizes,), "truth")
    found = match(case, releases=[weightless], correspondence=merged)
    assert not found.weights.any()
    sums = found.probabilities.sum(axis=-1)
    assert_allclose(sums, 2, rtol=1e-6)  # two variables, kept in float32


@pytest.mark.parametrize("count", [10, 30, 75])
def test_a_release_gives_as_many_draws_as_are_asked_for(case, count):
    matched = match(case, count=count)
    assert matched.weights.shape == (3, count, 3)
    # all of them before any twice
    distinct = len(rows_of(matched.weights[0]))
    assert distinct == min(count, 30)


def test_a_summary_is_drawn_afresh(case):
    release = case.releases[2]
    summary = replace(release, tier="summary", weights=None, probabilities=None)
    apart = Correspondence(("silo-2",), (np.arange(3),), (release.sizes,), "truth")
    found = match(case, count=4000, releases=[summary], correspondence=apart)
    alpha, _ = PRIOR.share(1)
    expected = (release.sizes + alpha) / (release.sizes + alpha).sum()
    # five standard errors of the mean of a Dirichlet weight
    error = np.sqrt(expected * (1 - expected) / (release.rows + 1) / 4000)
    assert (np.abs(found.weights[0].mean(axis=0) - expected) < 5 * error).all()


def test_the_first_draws_are_the_first(case):
    matched = match(case)
    few = some_draws(matched, 0, 12)
    assert_array_equal(few.weights, matched.weights[:, :12])
    assert_array_equal(few.probabilities, matched.probabilities[:, :12])
    assert some_draws(matched, 0, 1000).weights.shape == matched.weights.shape


def test_combine_is_the_weighted_sum(case, seed):
    rng = np.random.default_rng(seed)
    matched = match(case)
    weights = rng.dirichlet(np.ones(3))
    raw = matched.held * rng.random((3, 3))
    profiles = raw / raw.sum(axis=0)
    shares, probabilities = combine(matched, SiloWeights(("a", "b", "c"), weights, profiles))
    for t in range(30):
        for c in range(3):
            expected = sum(weights[s] * matched.weights[s, t, c] for s in range(3))
            assert_allclose(shares[t, c], expected, rtol=1e-14)
            levels = sum(profiles[s, c] * matched.probabilities[s, t, c] for s in range(3))
            assert_allclose(probabilities[t, c], levels, rtol=1e-14)
    assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    assert_allclose(probabilities.sum(axis=2), 2, rtol=1e-6)


def test_a_probability_of_zero_in_every_silo_is_lifted(case):
    matched = match(case)
    empty = matched.probabilities.copy()
    empty[:, :, 1, 0] = 0.0
    one = SiloWeights(("a", "b", "c"), np.full(3, 1 / 3), matched.held / matched.held.sum(0))
    _, probabilities = combine(MatchedDraws(matched.weights, empty, matched.held), one)
    assert (probabilities[:, 1, 0] == SMALLEST).all()
    assert np.isfinite(np.log(probabilities)).all()


def test_releases_of_other_silos_are_refused(case):
    with pytest.raises(StudyMismatch) as error:
        match(case, releases=case.releases[::-1])
    assert str(error.value) == (
        "the releases are of ['silo-2', 'silo-1', 'silo-0'] but the clusters were matched for "
        "['silo-0', 'silo-1', 'silo-2']; hand over the same silos in the same order"
    )


def test_a_release_with_other_clusters_is_refused(case):
    other = replace(case.releases[2], silo="silo-1")
    with pytest.raises(StudyMismatch) as error:
        match(case, releases=[case.releases[0], other, case.releases[2]])
    assert str(error.value) == (
        "silo-1: the release has 3 clusters but 2 were matched; match again with this release"
    )
