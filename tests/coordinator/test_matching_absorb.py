"""Groups folded into groups of their own silo."""

from __future__ import annotations

import numpy as np
import pytest
from cases.drift_twins import TwoLevels
from cases.matching_cases import SIZES, clusters_of, draw_counts, offsets_of, together
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import gammaln

from silomix.coordinator.matching.evidence import Profile
from silomix.coordinator.matching.greedy import (
    absorb_groups,
    evidence_groups,
    folding_gain,
    folding_limit,
    join,
    sum_up,
)

PROFILE = Profile(offsets_of(SIZES), 0.5)
BINARY = offsets_of((2,) * 4)
LARGE = [60.0, 20, 50, 20, 10, 40, 40]
# nine rows with the profile of the large one
FRAGMENT = [7.0, 2, 6, 2, 1, 5, 4]
# twenty-seven rows unlike it in every variable
STRANGER = [0.0, 27, 0, 27, 0, 0, 27]
FAR = [2.0, 98, 3, 2, 95, 98, 2]


def absorb(clusters, groups, limit=np.inf, profile=PROFILE):
    return absorb_groups(clusters, np.array(groups), profile, limit=limit)


def gain(clusters, groups, profile=PROFILE):
    """What joining the first two groups gains."""
    state = sum_up(clusters, np.arange(len(groups)), np.array(groups), profile)
    rows = np.bincount(clusters.silo, weights=clusters.sizes)
    return folding_gain(state, 0, np.array([1]), None, limit=np.inf, rows=rows)[0]


def evidence(counts):
    """ln of the Dirichlet–multinomial probability of one group's cells, β = ½."""
    parts = np.split(counts, np.cumsum(SIZES)[:-1])
    return sum(
        gammaln(0.5 + part).sum()
        - len(part) * gammaln(0.5)
        + gammaln(len(part) / 2)
        - gammaln(len(part) / 2 + part.sum())
        for part in parts
    )


def expected_gain(clusters, one, other):
    """The rise by the formula: profiles, and once the search among the rows they share."""
    counts, sizes, silo = clusters.counts, clusters.sizes, clusters.silo
    shared = set(silo[one]) & set(silo[other])
    rows = sum(sizes[silo == s].sum() for s in shared)
    a, b = counts[one].sum(axis=0), counts[other].sum(axis=0)
    return evidence(a + b) - evidence(a) - evidence(b) + 1.5 * np.log(rows)


@pytest.mark.parametrize(
    ("counts", "silo", "groups"),
    [
        ([LARGE, FRAGMENT, LARGE, FAR, FAR], [0, 0, 1, 0, 1], [0, 1, 0, 2, 2]),
        ([LARGE, FRAGMENT] * 3, [0, 0, 1, 1, 2, 2], [0, 1] * 3),
        ([LARGE, FRAGMENT, FRAGMENT, FRAGMENT, FAR], [0] * 5, [0, 1, 2, 3, 4]),
    ],
    ids=["of a shared cluster", "in three silos", "three of them"],
)
def test_fragments_are_folded_and_the_price_is_paid_once(counts, silo, groups):
    order = np.argsort(silo, kind="stable")
    clusters, groups = clusters_of(np.array(counts)[order], np.sort(silo)), np.array(groups)[order]
    far = np.array([list(row) == FAR for row in np.array(counts)[order]])
    assert_array_equal(together(absorb(clusters, groups)), together(far))
    one, other = (np.flatnonzero(groups == g).tolist() for g in (0, 1))
    assert_allclose(gain(clusters, groups), expected_gain(clusters, one, other), rtol=1e-9)


@pytest.mark.parametrize("rows", [61, 300, 3000])
def test_a_splinter_of_any_size_is_folded(rows, seed):
    """Chance keeps them apart by a factor of n^1.5 in one seed of about n^1.5 > 10⁴."""
    rng = np.random.default_rng(seed)
    usual = np.array(LARGE) / 80
    counts = [draw_counts(rng, usual, 300), draw_counts(rng, usual, rows), np.multiply(FAR, 3)]
    groups = absorb(clusters_of(counts, [0, 0, 0]), [0, 1, 2])
    assert_array_equal(together(groups), together([0, 0, 1]))


def test_a_rare_cluster_of_ten_silos_is_not_drowned_by_prices():
    """Three rows that are only somewhat unlike, in each silo: ten prices would hide them."""
    usual, rare = [76.0, 4, 74, 4, 2, 76, 4], [2.0, 1, 2, 1, 0, 2, 1]
    clusters = clusters_of([usual, rare] * 10, np.repeat(range(10), 2))
    assert_array_equal(together(absorb(clusters, [0, 1] * 10)), together([0, 1] * 10))
    once = gain(clusters, [0, 1] * 10)
    assert once < 0 < once + 1.5 * (10 * np.log(83) - np.log(830))


def test_strangers_stay_unless_their_rows_are_doubtful():
    """Rows that a silo picked out without reason have few effective counts."""
    assert len(np.unique(absorb(clusters_of([LARGE, FAR, STRANGER], [0, 0, 0]), [0, 1, 2]))) == 3
    doubtful = clusters_of([LARGE, np.multiply(STRANGER, 0.05)], [0, 0], [80, 27])
    assert len(np.unique(absorb(doubtful, [0, 1]))) == 1


def test_the_silo_s_rows_are_the_odds_a_group_must_beat():
    """The same few rows, unlike the large group, in a short silo and in a long one."""
    usual, odd = [76.0, 4, 74, 4, 2, 76, 4], [0.0, 2, 0, 2, 0, 0, 2]
    rest = [4000.0, 0, 0, 0, 4000, 4000, 0]
    short, long = (
        clusters_of([usual, odd, rest], [0, 0, 0], [80, 2, rows]) for rows in (80, 80_000)
    )
    rise = gain(long, [0, 1, 2]) - gain(short, [0, 1, 2])
    assert rise == pytest.approx(1.5 * np.log(80_082 / 162))
    assert [len(np.unique(absorb(each, [0, 1, 2]))) for each in (short, long)] == [3, 2]


def test_a_number_folds_only_groups_of_fewer_rows_that_share_a_silo():
    """The group's rows count, over all silos, not those of one silo."""
    clusters = clusters_of([LARGE, FRAGMENT], [0, 0])
    assert [len(np.unique(absorb(clusters, [0, 1], limit))) for limit in (9, 10)] == [2, 1]
    spread = clusters_of([LARGE, FRAGMENT, FRAGMENT], [0, 0, 1])
    assert len(np.unique(absorb(spread, [0, 1, 1], limit=18))) == 2
    assert len(np.unique(absorb(clusters_of([LARGE, FRAGMENT], [0, 1]), [0, 1]))) == 2


def test_true_is_no_limit_and_a_number_is_one():
    assert folding_limit(True) == np.inf
    assert folding_limit(60) == 60
    assert folding_limit(1) == 1  # which Python says equals True
    assert folding_limit(False) == folding_limit(0) == 0


USUAL = [140.0, 60, 40, 160, 100, 100, 180, 20]
# a fifth of the rows away in every variable: within drift of κ = 20 between silos
UNLIKE = [100.0, 100, 80, 120, 140, 60, 140, 60]
PIECE = [7.0, 3, 2, 8, 5, 5, 9, 1]


def binary(counts, silo):
    return clusters_of(counts, silo, sizes=(2,) * 4)


def drifting(kappa):
    return Profile(BINARY, 0.5, np.full(4, kappa))


def exact_gain(clusters, one, other, kappa):
    """The rise with the silos' profiles integrated out: what one silo adds drifts together."""
    exact, rise = TwoLevels(), 1.5 * np.log(clusters.sizes[clusters.silo == 0].sum())
    for first in BINARY[:-1]:
        for group, sign in ((one + other, 1), (one, -1), (other, -1)):
            by_silo = [
                clusters.counts[[k for k in group if clusters.silo[k] == s], first : first + 2]
                for s in {int(clusters.silo[k]) for k in group}
            ]
            logs = [exact.log_likelihood(counts.sum(axis=0), kappa) for counts in by_silo]
            rise += sign * exact.log_integral(*logs)
    return rise


@pytest.mark.parametrize("kappa", [20.0, 300.0])
def test_under_drift_a_silo_s_clusters_still_have_to_be_alike(kappa):
    """Silos drift apart; what one silo told apart by itself no drift explains."""
    profile = drifting(kappa)
    joined = evidence_groups(binary([USUAL, UNLIKE], [0, 1]), profile)
    assert (joined[0] == joined[1]) == (kappa == 20.0)
    within = binary([USUAL, PIECE, UNLIKE], [0, 0, 0])
    assert_array_equal(together(absorb(within, [0, 1, 2], profile=profile)), together([0, 0, 1]))
    assert exact_gain(within, [0], [2], kappa) < -15
    # a piece of a group that another silo holds too
    across = binary([USUAL, PIECE, UNLIKE], [0, 0, 1])
    assert len(np.unique(absorb(across, [0, 1, 0], profile=profile))) == 1
    for clusters, groups, one in ((within, [0, 1, 2], [0]), (across, [0, 1, 0], [0, 2])):
        exact = exact_gain(clusters, one, [1], kappa)
        assert gain(clusters, groups, profile) == pytest.approx(exact, abs=0.25)


def test_a_second_fold_sees_what_the_first_one_left():
    """Counts of one silo are discounted together, however they came together."""
    profile = drifting(50.0)
    clusters = binary([USUAL, PIECE, PIECE], [0, 0, 0])
    state = sum_up(clusters, np.arange(3), np.arange(3), profile)
    join(state, 0, 1)
    rows = np.bincount(clusters.silo, weights=clusters.sizes)
    second = folding_gain(state, 0, np.array([2]), None, limit=np.inf, rows=rows)[0]
    whole = binary([np.add(USUAL, PIECE), PIECE], [0, 0])
    assert second == pytest.approx(gain(whole, [0, 1], profile), abs=1e-9)
