"""A silo's cluster that is two clusters of other silos in one."""

from __future__ import annotations

import numpy as np
import pytest
from cases.families import categories
from cases.matching_cases import draw_counts, draw_profiles
from numpy.testing import assert_array_equal

from silomix.coordinator.matching.evidence import DriftEvidence, LocalClusters, drift_evidence
from silomix.coordinator.matching.greedy import split_unions
from silomix.families.gaussian import Gaussian
from silomix.families.product import Product
from silomix.model.schema import Variable

VARIABLES, ROWS = 10, 200
SIZES = (2,) * VARIABLES
LEVELS = categories(SIZES)
NUMBERS = Product((Gaussian(tuple(Variable(f"x{q}", kind="gaussian") for q in range(VARIABLES))),))
# clusters 0, 1, 2 in two silos, what the third silo has of its own, and 2
GROUPS = np.array([0, 1, 2, 0, 1, 2, 3, 2])


def level_sums(rng):
    """Return a function that draws what so many rows of a cluster add up to."""
    profiles = draw_profiles(rng, 4, SIZES, 0.3)
    return lambda cluster, rows: draw_counts(rng, profiles[cluster], rows, SIZES)


def number_sums(rng):
    centres = rng.normal(0.0, 0.8, (4, VARIABLES))
    features = NUMBERS.blocks[0].features
    return lambda c, rows: features(rng.normal(centres[c], 0.6, (rows, VARIABLES))).sum(axis=0)


KINDS = {"levels": (LEVELS, level_sums), "numbers": (NUMBERS, number_sums)}


def three_silos(sums, own, rows=ROWS):
    """Return local clusters; `own` is what the third silo has beside cluster 2."""
    counts = np.array([*(sums(c, rows) for c in (0, 1, 2) * 2), own, sums(2, rows)])
    sizes = np.full(len(counts), rows)
    return LocalClusters(("a", "b", "c"), np.array([0, 0, 0, 1, 1, 1, 2, 2]), sizes, counts)


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.mark.parametrize("drift", [False, True])
def test_a_cluster_that_is_two_in_one_joins_the_larger_of_them(kind, drift, seed):
    family, make = kind
    sums = make(np.random.default_rng(seed))
    clusters = three_silos(sums, sums(0, 60) + sums(1, 140))
    profile = (
        drift_evidence(clusters, family, np.full(VARIABLES, 50.0))
        if drift
        else DriftEvidence(family)
    )
    groups, _ = split_unions(clusters, GROUPS, profile, None)
    assert_array_equal(groups, [0, 1, 2, 0, 1, 2, 1, 2])


@pytest.mark.parametrize("own", [(3,), (3, 0), (2, 0)])
def test_a_cluster_of_its_own_stays(kind, own, seed):
    """Another cluster; a mixture with one that nobody else has, or that the silo itself has."""
    family, make = kind
    sums = make(np.random.default_rng(seed))
    clusters = three_silos(sums, sum(sums(c, ROWS // len(own)) for c in own))
    given = np.eye(len(GROUPS))
    groups, confidence = split_unions(clusters, GROUPS, DriftEvidence(family), given)
    assert_array_equal(groups, GROUPS)
    assert confidence is given


def test_it_is_as_sure_as_that_it_is_a_mixture(kind, seed):
    family, make = kind
    sums = make(np.random.default_rng(seed))
    clusters = three_silos(sums, sums(0, 60) + sums(1, 140))
    before = (GROUPS[:, None] == GROUPS).astype(float)
    groups, confidence = split_unions(clusters, GROUPS, DriftEvidence(family), before)
    others = np.arange(len(GROUPS)) != 6
    assert_array_equal(confidence[np.ix_(others, others)], before[np.ix_(others, others)])
    assert_array_equal(confidence, confidence.T)
    assert confidence[6, 6] == 1.0
    mates = others & (groups == 1)
    assert (confidence[6, mates] > 0.95).all()
    assert (confidence[6, others & ~mates] == 0.0).all()


def test_of_two_silos_the_one_that_tells_clusters_apart_keeps_them(seed):
    """Only the silo that has one cluster may have two in one."""
    sums = level_sums(np.random.default_rng(seed))
    counts = np.array([sums(0, 90), sums(1, 90), sums(0, 50) + sums(1, 50)])
    clusters = LocalClusters(("a", "b"), np.array([0, 0, 1]), np.full(3, 90), counts)
    groups, _ = split_unions(clusters, np.arange(3), DriftEvidence(LEVELS), None)
    assert len(np.unique(groups)) == 2
    assert groups[0] != groups[1]
