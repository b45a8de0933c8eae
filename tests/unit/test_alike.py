"""Clusters of one silo, clusters that may be one: by hand, and against a loop."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from silomix.posterior.alike import (
    OVERLAP,
    joint_probabilities,
    nearly_same,
    profile_overlap,
    single_silo_clusters,
    spread,
)
from silomix.types import Correspondence

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
        (found,) = single_silo_clusters(weights_by_silo(), ROWS, NAMES, correspondence())
        assert (found.cluster, found.silo) == (1, "north")
        assert found.share == pytest.approx(100 / 105)
        # with cluster 2 it is one with the south's part in 0.4 of the groupings, the west's in none
        assert found.apart == pytest.approx(1 - 0.4 * 30 / 40)

    def test_the_share_is_of_rows_not_of_weights(self):
        """A tenth of a small silo, and as many of a large one's."""
        weights = np.array([[[0.9, 0.1], [0.9999, 0.0001]]])
        (found,) = single_silo_clusters(weights, (50, 50), NAMES[:2])
        assert (found.cluster, found.silo) == (1, "north")
        # of 100 rows in the north and 100,000 in the south it has 10 in each
        assert single_silo_clusters(weights, (100, 100_000), NAMES[:2]) == []

    def test_a_silo_that_has_most_rows_has_most_of_every_cluster(self):
        alike = np.tile([0.7, 0.3], (1, 2, 1))
        assert single_silo_clusters(alike, (5000, 100), NAMES[:2]) == []
        own = np.array([[[0.7, 0.3], [0.995, 0.005]]])
        (found,) = single_silo_clusters(own, (5000, 100), NAMES[:2])
        assert (found.cluster, found.silo) == (1, "north")

    def test_without_groupings_nobody_knows(self):
        for match in (None, correspondence(confidence=None)):
            (found,) = single_silo_clusters(weights_by_silo(), ROWS, NAMES, match)
            assert np.isnan(found.apart)

    def test_rows_that_nobody_knows_and_a_single_silo(self):
        assert single_silo_clusters(weights_by_silo(), None, NAMES) == []
        assert single_silo_clusters(weights_by_silo()[:, :1], (600,), NAMES[:1]) == []


class TestNearlySame:
    OFFSETS = np.array([0, 2, 5])

    def profiles(self):
        apart = np.array([[0.9, 0.1, 0.8, 0.1, 0.1], [0.1, 0.9, 0.1, 0.8, 0.1]])
        return np.stack([apart[0], apart[1], np.array([0.5, 0.5, 0.2, 0.2, 0.6])])[None]

    def test_by_the_sampled_groupings(self):
        pairs = nearly_same(correspondence(), self.profiles(), self.OFFSETS)
        # clusters 0 and 2: only the south's own two clusters ever shared a group
        assert [(pair.a, pair.b) for pair in pairs] == [(1, 2)]
        assert pairs[0].probability == pytest.approx(0.3)
        assert nearly_same(correspondence(), self.profiles(), self.OFFSETS, doubtful=0.31) == []

    def test_by_profiles_that_nearly_coincide(self):
        profiles = self.profiles()
        profiles[0, 2] = profiles[0, 0]
        pairs = nearly_same(None, profiles, self.OFFSETS)
        assert [(pair.a, pair.b) for pair in pairs] == [(0, 2)]
        assert np.isnan(pairs[0].probability)
        assert pairs[0].overlap == pytest.approx(1.0)
        both = nearly_same(correspondence(), profiles, self.OFFSETS)
        assert [(pair.a, pair.b) for pair in both] == [(1, 2), (0, 2)]

    def test_one_cluster_has_no_pair(self):
        assert nearly_same(None, self.profiles()[:, :1], self.OFFSETS) == []

    def test_many_small_differences_are_a_difference(self):
        """Each of 100 conditions is rare and differs by 0.05: together they tell rows apart."""
        rare, rarer = np.tile([0.93, 0.07], 100), np.tile([0.98, 0.02], 100)
        overlap = profile_overlap(np.stack([rare, rarer]), np.arange(0, 201, 2))
        assert overlap[0, 1] < 0.5
        twenty = profile_overlap(np.stack([rare, rarer])[:, :20], np.arange(0, 21, 2))
        assert twenty[0, 1] > OVERLAP


def test_joint_probabilities_are_those_of_a_loop(seed):
    rng = np.random.default_rng(seed)
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


def test_the_overlap_is_a_sum_over_all_rows(seed):
    rng = np.random.default_rng(seed)
    offsets = np.array([0, 2, 5, 6])
    parts = [rng.dirichlet(np.ones(stop - start), 3) for start, stop in pairwise(offsets)]
    profiles = np.concatenate(parts, axis=1)
    expected = np.zeros((3, 3))
    for cells in product(*(range(start, stop) for start, stop in pairwise(offsets))):
        root = np.sqrt(profiles[:, cells].prod(axis=1))
        expected += np.outer(root, root)
    assert_allclose(profile_overlap(profiles, offsets), expected, rtol=1e-12)


def test_a_level_that_no_row_can_have_keeps_clusters_apart():
    never = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert_allclose(profile_overlap(never, np.array([0, 2])), np.eye(2))


def test_the_spread_is_the_sd_between_silos(seed):
    rng = np.random.default_rng(seed)
    drawn = rng.beta(10.0, 10.0, 200_000)
    # relative error of an sd, here 0.0016; misses by chance once in 15,000 runs
    assert spread(np.array([20.0]))[0] == pytest.approx(drawn.std(), rel=4 * 0.0016)
    assert spread(np.array([np.inf]))[0] == 0.0
