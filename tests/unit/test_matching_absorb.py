"""Small groups folded into groups of their own silo."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import gammaln

from silomix.families.evidence import log_partition_prior
from silomix.matching.absorb import absorb_small, folding_limit, weight_gain
from silomix.matching.profile import Profile
from unit.matching_cases import SIZES, clusters_of, offsets_of, together

PROFILE = Profile(offsets_of(SIZES), 0.5)
ALPHA = 0.875
LARGE = [60.0, 20, 50, 20, 10, 40, 40]
FRAGMENT = [7.0, 2, 6, 2, 1, 5, 4]
"""Nine rows with the profile of the large one."""
STRANGER = [0.0, 9, 0, 9, 0, 0, 9]
"""Nine rows unlike it in every variable."""
FAR = [2.0, 98, 3, 2, 95, 98, 2]


def absorb(clusters, groups, limit=30):
    return absorb_small(clusters, np.array(groups), PROFILE, limit=limit, alpha=ALPHA)


def expected_gain(clusters, one, other):
    """The rise by the formula, group against group, one shared silo at a time."""
    counts, sizes, silo = clusters.counts, clusters.sizes, clusters.silo
    rise = PROFILE.evidence(counts[one + other].sum(axis=0))
    rise -= PROFILE.evidence(counts[one].sum(axis=0))
    rise -= PROFILE.evidence(counts[other].sum(axis=0))
    for s in set(silo[one]) & set(silo[other]):
        a = sum(sizes[k] for k in one if silo[k] == s)
        b = sum(sizes[k] for k in other if silo[k] == s)
        rise += gammaln(ALPHA + a + b) + gammaln(ALPHA)
        rise -= gammaln(ALPHA + a) + gammaln(ALPHA + b)
        rise += np.log(sizes[silo == s].sum())
    return rise


def test_weight_term_is_the_change_of_the_weights_evidence():
    """With the number of components fixed, joining two of them changes their term by this."""

    def weights_evidence(sizes):
        labellings = gammaln(6) - gammaln(6 - len(sizes))
        return log_partition_prior(sizes, 5, ALPHA) - labellings

    change = weights_evidence([13, 4]) - weights_evidence([9, 4, 4])
    assert_allclose(weight_gain(np.array([9]), np.array([4]), ALPHA), change)


def test_a_fragment_is_folded_and_the_gain_told():
    clusters = clusters_of([LARGE, FAR, FRAGMENT, LARGE, FAR], [0, 0, 0, 1, 1])
    groups, absorbed = absorb(clusters, [0, 1, 2, 0, 1])
    assert_array_equal(together(groups), together([0, 1, 0, 0, 1]))
    (only,) = absorbed
    assert only.clusters == (("silo 0", 2),)
    assert only.into == (("silo 0", 0), ("silo 1", 0))
    assert_allclose(only.gain, expected_gain(clusters, [2], [0, 3]), rtol=1e-9)


def test_each_shared_silo_has_its_weight_term():
    clusters = clusters_of([LARGE, FRAGMENT, LARGE, FRAGMENT], [0, 0, 1, 1])
    groups, absorbed = absorb(clusters, [0, 1, 0, 1])
    assert len(np.unique(groups)) == 1
    assert_allclose(absorbed[0].gain, expected_gain(clusters, [1, 3], [0, 2]), rtol=1e-9)


def test_a_stranger_stays():
    """Few rows, but too unlike any other to be a fragment of it."""
    counts = np.array([LARGE, FAR, STRANGER])
    counts[2] *= 3
    groups, absorbed = absorb(clusters_of(counts, [0, 0, 0], [80, 100, 27]), [0, 1, 2])
    assert len(np.unique(groups)) == 3
    assert absorbed == ()


def test_the_silo_s_rows_are_the_odds_a_small_group_must_beat():
    """The same few rows, unlike the large group, in a short silo and in a long one."""
    usual, odd = [76.0, 4, 74, 4, 2, 76, 4], [0.0, 3, 0, 3, 0, 0, 3]
    rest = [4000.0, 0, 0, 0, 4000, 4000, 0]
    gains = []
    for rows in (80, 80_000):
        clusters = clusters_of([usual, odd, rest], [0, 0, 0], [80, 3, rows])
        gains.append((expected_gain(clusters, [1], [0]), absorb(clusters, [0, 1, 2])[1]))
    (short, stays), (long, folded) = gains
    assert long - short == pytest.approx(np.log(80_083 / 163))
    assert short < 0 < long
    assert stays == ()
    assert folded[0].into == (("silo 0", 0),)
    assert folded[0].gain == pytest.approx(long)


@pytest.mark.parametrize(("limit", "folded"), [(9, False), (10, True)])
def test_only_groups_of_fewer_rows_are_folded(limit, folded):
    """The group's rows count, over all silos, not those of one silo."""
    clusters = clusters_of([LARGE, FRAGMENT], [0, 0])
    assert clusters.sizes[1] == 9
    groups, _ = absorb(clusters, [0, 1], limit)
    assert (groups[0] == groups[1]) == folded
    spread = clusters_of([LARGE, FRAGMENT, FRAGMENT], [0, 0, 1])
    groups, _ = absorb(spread, [0, 1, 1], limit=18)
    assert groups[0] != groups[1]


def test_groups_that_share_no_silo_are_left_to_the_matching():
    groups, _ = absorb(clusters_of([LARGE, FRAGMENT], [0, 1]), [0, 1])
    assert groups[0] != groups[1]


def test_best_gain_first_and_again_until_none_is_left():
    clusters = clusters_of([LARGE, FRAGMENT, FRAGMENT, FRAGMENT, FAR], [0] * 5)
    groups, absorbed = absorb(clusters, np.arange(5))
    assert_array_equal(together(groups), together([0, 0, 0, 0, 1]))
    assert len(absorbed) == 3
    pairs = [(a, b) for a in range(4) for b in range(a)]
    assert_allclose(
        absorbed[0].gain, max(expected_gain(clusters, [a], [b]) for a, b in pairs), rtol=1e-9
    )


@pytest.mark.parametrize(("rows", "limit"), [(118, 7), (999, 60), (4000, 60)])
def test_in_a_small_table_small_means_a_small_share(rows, limit):
    assert folding_limit(60, rows) == limit
    assert folding_limit(0, rows) == 0
