"""What sets clusters and silos apart: by hand, against loops, and against the rows themselves."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from cases.families import categories
from numpy.testing import assert_allclose

from silomix.model.draws import Correspondence
from silomix.posterior.characterise import (
    OVERLAP,
    cluster_map,
    contrast,
    joint_probabilities,
    nearly_same,
    profile_overlap,
    single_silo_clusters,
    spread,
    traits,
)

FAMILY = categories((2, 3))


def constant(weights, probabilities, draws=4):
    """The same values in every draw."""
    return np.tile(weights, (draws, 1)), np.tile(probabilities, (draws, 1, 1))


def test_the_scaled_difference_is_in_standard_deviations():
    given = np.array([0.7, 1.0, 0.0]), np.array([0.5, 1.0, 0.2])
    found = categories([3]).scaled_difference(*given)
    assert_allclose(found, [0.4, 0.0, -0.5])
    weights, probabilities = constant([0.25, 0.75], [[1.0, 0.0], [0.2, 0.8]])
    assert_allclose(contrast(weights, probabilities, categories([2])).whole, [0.4, 0.6])


def test_a_contrast_counts_draws_and_traits_leave_out_what_is_not_sure():
    """One draw in four has the difference the other way round; so has one in forty."""
    for draws, sure in ((4, 0.75), (40, 0.975)):
        weights = np.full((draws, 2), 0.5)
        probabilities = np.tile([[0.1, 0.9], [0.9, 0.1]], (draws, 1, 1))
        probabilities[0] = probabilities[0, ::-1]
        found = contrast(weights, probabilities, categories([2]))
        assert_allclose(found.above, [[1 - sure, sure], [sure, 1 - sure]])
        assert_allclose(found.high, found.above)
        high, low = traits(found, categories([2]))[0]
        assert (high.tolist(), low.tolist()) == ([1] if sure > 0.95 else [], [])


def test_traits_are_what_differs_clearest_first():
    weights, probabilities = constant(
        [0.5, 0.5], [[0.1, 0.9, 0.60, 0.35, 0.05], [0.9, 0.1, 0.30, 0.35, 0.35]]
    )
    (high, low), _ = traits(contrast(weights, probabilities, FAMILY), FAMILY)
    assert (high.tolist(), low.tolist()) == ([1, 2], [4])


def test_the_map_is_the_correspondence_analysis_of_rows_that_the_mixture_would_give():
    """Clusters lie where the textbook analysis of endlessly many rows puts their means."""
    offsets = np.array([0, 2, 5, 7])
    weights = np.array([0.5, 0.3, 0.2])
    probabilities = np.array(
        [
            [0.9, 0.1, 0.8, 0.1, 0.1, 0.7, 0.3],
            [0.2, 0.8, 0.1, 0.8, 0.1, 0.9, 0.1],
            [0.5, 0.5, 0.1, 0.1, 0.8, 0.1, 0.9],
        ]
    )
    # how often a row has two levels: within a cluster variables are independent
    both = np.einsum("c,ck,cl->kl", weights, probabilities, probabilities)
    for start, stop in pairwise(offsets):
        both[start:stop, start:stop] = np.diag(weights @ probabilities[:, start:stop])
    masses = both.diagonal() / 3
    burt = (both / 9 - np.outer(masses, masses)) / np.sqrt(np.outer(masses, masses))
    _, vectors = np.linalg.eigh(burt)
    columns = vectors[:, :-3:-1] / np.sqrt(masses)[:, None]
    found = cluster_map(*constant(weights, probabilities), offsets)
    assert_allclose(np.abs(found.centres), np.abs(probabilities @ columns / 3), rtol=1e-9)
    assert found.shares.sum() == pytest.approx(1.0)
    assert found.shares[0] > found.shares[1] > 0
    assert cluster_map(*constant([0.5, 0.5], probabilities[:1].repeat(2, axis=0)), offsets) is None


NAMES = ("north", "south", "west")


def correspondence(confidence="given"):
    """Cluster 0 in all silos, cluster 1 in the north, cluster 2 in south and west."""
    sure = np.eye(6)
    # local clusters: north 0 1, south 2 3, west 4 5
    for a, b, share in [(0, 2, 0.9), (0, 4, 0.9), (2, 4, 1.0), (3, 5, 0.8), (1, 3, 0.4)]:
        sure[a, b] = sure[b, a] = share
    # the south's two clusters in one group: which its own rows speak against
    sure[2, 3] = sure[3, 2] = 0.7
    return Correspondence(
        silos=NAMES,
        groups=(np.array([0, 1]), np.array([0, 2]), np.array([0, 2])),
        sizes=(np.array([500, 100]), np.array([400, 30]), np.array([300, 10])),
        method="evidence",
        confidence=sure if confidence == "given" else confidence,
    )


def weights_by_silo():
    """Of 600, 430 and 310 rows: (draw, silo, cluster)."""
    shares = np.array([[500, 100, 0], [396, 4, 30], [299, 1, 10]]) / [[600], [430], [310]]
    return np.stack([shares, shares])


ROWS = (600, 430, 310)


class TestSingleSilo:
    def test_by_hand(self):
        (found,) = single_silo_clusters(weights_by_silo(), ROWS, correspondence())
        assert found[:2] == (1, "north")
        assert found[2] == pytest.approx(100 / 105)
        # with cluster 2 it is one with the south's part in 0.4 of the groupings, the west's in none
        assert found[3] == pytest.approx(1 - 0.4 * 30 / 40)
        (found,) = single_silo_clusters(weights_by_silo(), ROWS, correspondence(confidence=None))
        assert np.isnan(found[3])

    @pytest.mark.parametrize(
        ("weights", "rows", "lonely"),
        [
            ([[0.9, 0.1], [0.9999, 0.0001]], (50, 50), True),
            # a tenth of a small silo, and as many rows of a large one
            ([[0.9, 0.1], [0.9999, 0.0001]], (100, 100_000), False),
            # a silo that has most rows has most of every cluster
            ([[0.7, 0.3], [0.7, 0.3]], (5000, 100), False),
            ([[0.7, 0.3]], (600,), False),
        ],
    )
    def test_the_share_is_of_rows_and_more_than_the_silo_s_share_of_all(
        self, weights, rows, lonely
    ):
        match = correspondence(confidence=None)
        found = single_silo_clusters(np.array([weights]), rows, match)
        assert [lone[:2] for lone in found] == [(1, "north")] * lonely


class TestNearlySame:
    def profiles(self):
        apart = np.array([[0.9, 0.1, 0.8, 0.1, 0.1], [0.1, 0.9, 0.1, 0.8, 0.1]])
        return np.stack([apart[0], apart[1], np.array([0.5, 0.5, 0.2, 0.2, 0.6])])[None]

    def test_by_the_sampled_groupings(self):
        pairs = nearly_same(correspondence(), self.profiles(), FAMILY)
        # clusters 0 and 2: only the south's own two clusters ever shared a group
        assert [pair[:2] for pair in pairs] == [(1, 2)]
        assert pairs[0][2] == pytest.approx(0.3)

    def test_by_profiles_that_nearly_coincide(self):
        profiles = self.profiles()
        profiles[0, 2] = profiles[0, 0]
        pairs = nearly_same(None, profiles, FAMILY)
        assert [pair[:2] for pair in pairs] == [(0, 2)]
        assert np.isnan(pairs[0][2])
        assert pairs[0][3] == pytest.approx(1.0)
        both = nearly_same(correspondence(), profiles, FAMILY)
        assert [pair[:2] for pair in both] == [(1, 2), (0, 2)]

    def test_many_small_differences_are_a_difference(self):
        """Each of 100 conditions is rare and differs by 0.05: together they tell rows apart."""
        rare, rarer = np.tile([0.93, 0.07], 100), np.tile([0.98, 0.02], 100)
        overlap = profile_overlap(np.stack([rare, rarer]), categories([2] * 100))
        assert overlap[0, 1] < 0.5
        twenty = profile_overlap(np.stack([rare, rarer])[:, :20], categories([2] * 10))
        assert twenty[0, 1] > OVERLAP


def test_joint_probabilities_are_those_of_a_loop(rng):
    groups = tuple(rng.permutation(4)[: rng.integers(1, 5)] for _ in range(5))
    sizes = tuple(rng.integers(1, 50, len(group)) for group in groups)
    local = [(s, g, n) for s in range(5) for g, n in zip(groups[s], sizes[s], strict=True)]
    sure = rng.random((len(local), len(local)))
    match = Correspondence(tuple("abcde"), groups, sizes, "evidence", (sure + sure.T) / 2)
    found = joint_probabilities(match)
    for a, b in product(range(match.clusters), repeat=2):
        terms = [
            (n * m, match.confidence[i, j])
            for i, (s, g, n) in enumerate(local)
            for j, (t, h, m) in enumerate(local)
            if (g, h) == (a, b) and s != t and a != b
        ]
        total = sum(weight for weight, _ in terms)
        expected = sum(weight * share for weight, share in terms) / total if total else np.nan
        assert_allclose(found[a, b], expected, rtol=1e-12)


def test_the_overlap_is_a_sum_over_all_rows(rng):
    offsets = np.array([0, 2, 5, 6])
    parts = [rng.dirichlet(np.ones(stop - start), 3) for start, stop in pairwise(offsets)]
    profiles = np.concatenate(parts, axis=1)
    profiles[:2, :2] = np.eye(2)  # a level that no row can have keeps clusters apart
    expected = np.zeros((3, 3))
    for cells in product(*(range(start, stop) for start, stop in pairwise(offsets))):
        root = np.sqrt(profiles[:, cells].prod(axis=1))
        expected += np.outer(root, root)
    assert_allclose(profile_overlap(profiles, categories(np.diff(offsets))), expected, rtol=1e-12)


def test_the_spread_is_the_sd_between_silos(rng):
    drawn = rng.beta(10.0, 10.0, 200_000)
    # relative error of an sd, here 0.0016; misses by chance once in 15,000 runs
    assert spread(np.array([20.0]))[0] == pytest.approx(drawn.std(), rel=4 * 0.0016)
    assert spread(np.array([np.inf]))[0] == 0.0
