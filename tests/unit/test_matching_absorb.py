"""Groups folded into groups of their own silo."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import gammaln

from silomix.matching.absorb import absorb_groups, folding_limit
from silomix.matching.evidence import evidence_groups
from silomix.matching.profile import Profile
from unit.drift_twins import TwoLevels
from unit.matching_cases import SIZES, clusters_of, draw_counts, offsets_of, together

PROFILE = Profile(offsets_of(SIZES), 0.5)
BINARY = offsets_of((2,) * 4)
LARGE = [60.0, 20, 50, 20, 10, 40, 40]
FRAGMENT = [7.0, 2, 6, 2, 1, 5, 4]
"""Nine rows with the profile of the large one."""
STRANGER = [0.0, 27, 0, 27, 0, 0, 27]
"""Twenty-seven rows unlike it in every variable."""
FAR = [2.0, 98, 3, 2, 95, 98, 2]


def absorb(clusters, groups, limit=np.inf, profile=PROFILE):
    return absorb_groups(clusters, np.array(groups), profile, limit=limit)


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


def test_a_fragment_is_folded_and_the_gain_told():
    clusters = clusters_of([LARGE, FAR, FRAGMENT, LARGE, FAR], [0, 0, 0, 1, 1])
    groups, absorbed = absorb(clusters, [0, 1, 2, 0, 1])
    assert_array_equal(together(groups), together([0, 1, 0, 0, 1]))
    (only,) = absorbed
    assert only.clusters == (("silo 0", 2),)
    assert only.into == (("silo 0", 0), ("silo 1", 0))
    assert_allclose(only.gain, expected_gain(clusters, [2], [0, 3]), rtol=1e-9)


@pytest.mark.parametrize("rows", [61, 300, 3000])
def test_a_splinter_of_any_size_is_folded(rows, seed):
    """Chance keeps them apart by a factor of n^1.5 in one seed of about n^1.5 > 10⁴."""
    rng = np.random.default_rng(seed)
    usual = np.array(LARGE) / 80
    counts = [draw_counts(rng, usual, 300), draw_counts(rng, usual, rows), np.multiply(FAR, 3)]
    groups, absorbed = absorb(clusters_of(counts, [0, 0, 0]), [0, 1, 2])
    assert_array_equal(together(groups), together([0, 0, 1]))
    assert len(absorbed) == 1


def test_the_price_is_paid_once_however_many_silos_are_shared():
    clusters = clusters_of([LARGE, FRAGMENT] * 3, [0, 0, 1, 1, 2, 2])
    groups, (only,) = absorb(clusters, [0, 1] * 3)
    assert len(np.unique(groups)) == 1
    assert_allclose(only.gain, expected_gain(clusters, [1, 3, 5], [0, 2, 4]), rtol=1e-9)


def test_a_rare_cluster_of_ten_silos_is_not_drowned_by_prices():
    """Three rows that are only somewhat unlike, in each silo: ten prices would hide them."""
    usual, rare = [76.0, 4, 74, 4, 2, 76, 4], [2.0, 1, 2, 1, 0, 2, 1]
    clusters = clusters_of([usual, rare] * 10, np.repeat(range(10), 2))
    groups, absorbed = absorb(clusters, [0, 1] * 10)
    gain = expected_gain(clusters, list(range(1, 20, 2)), list(range(0, 20, 2)))
    assert gain < 0 < gain + 1.5 * (10 * np.log(83) - np.log(830))
    assert_array_equal(together(groups), together([0, 1] * 10))
    assert absorbed == ()


def test_a_stranger_stays():
    """Few rows, but too unlike any other to be a fragment of it."""
    groups, absorbed = absorb(clusters_of([LARGE, FAR, STRANGER], [0, 0, 0]), [0, 1, 2])
    assert len(np.unique(groups)) == 3
    assert absorbed == ()


def test_the_silo_s_rows_are_the_odds_a_group_must_beat():
    """The same few rows, unlike the large group, in a short silo and in a long one."""
    usual, odd = [76.0, 4, 74, 4, 2, 76, 4], [0.0, 2, 0, 2, 0, 0, 2]
    rest = [4000.0, 0, 0, 0, 4000, 4000, 0]
    gains = []
    for rows in (80, 80_000):
        clusters = clusters_of([usual, odd, rest], [0, 0, 0], [80, 2, rows])
        gains.append((expected_gain(clusters, [1], [0]), absorb(clusters, [0, 1, 2])[1]))
    (short, stays), (long, folded) = gains
    assert long - short == pytest.approx(1.5 * np.log(80_082 / 162))
    assert short < 0 < long
    assert stays == ()
    assert folded[0].into == (("silo 0", 0),)
    assert folded[0].gain == pytest.approx(long)


def test_doubtful_rows_are_no_stranger():
    """Rows that a silo picked out without reason have few effective counts."""
    sure = clusters_of([LARGE, STRANGER], [0, 0])
    doubtful = clusters_of([LARGE, np.multiply(STRANGER, 0.05)], [0, 0], [80, 27])
    assert absorb(sure, [0, 1])[1] == ()
    assert len(absorb(doubtful, [0, 1])[1]) == 1


@pytest.mark.parametrize(("limit", "folded"), [(9, False), (10, True)])
def test_a_number_folds_only_groups_of_fewer_rows(limit, folded):
    """The group's rows count, over all silos, not those of one silo."""
    clusters = clusters_of([LARGE, FRAGMENT], [0, 0])
    assert clusters.sizes[1] == 9
    groups, _ = absorb(clusters, [0, 1], limit)
    assert (groups[0] == groups[1]) == folded
    spread = clusters_of([LARGE, FRAGMENT, FRAGMENT], [0, 0, 1])
    groups, _ = absorb(spread, [0, 1, 1], limit=18)
    assert groups[0] != groups[1]


def test_true_is_no_limit_and_a_number_is_one():
    assert folding_limit(True) == np.inf
    assert folding_limit(60) == 60
    assert folding_limit(1) == 1  # which Python says equals True
    assert folding_limit(False) == folding_limit(0) == 0


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


USUAL = [140.0, 60, 40, 160, 100, 100, 180, 20]
UNLIKE = [100.0, 100, 80, 120, 140, 60, 140, 60]
"""A fifth of the rows away in every variable: within drift of κ = 20 between silos."""
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
    across = binary([USUAL, UNLIKE], [0, 1])
    within = binary([USUAL, UNLIKE, PIECE], [0, 0, 0])
    joined = evidence_groups(across, profile)[0]
    assert (joined[0] == joined[1]) == (kappa == 20.0)
    groups, (only,) = absorb(within, [0, 1, 2], profile=profile)
    assert_array_equal(together(groups), together([0, 1, 0]))
    assert only.gain == pytest.approx(exact_gain(within, [0], [2], kappa), abs=0.25)
    assert exact_gain(within, [0], [1], kappa) < -15


@pytest.mark.parametrize("kappa", [20.0, 300.0])
def test_under_drift_the_gain_is_that_of_the_exact_integral(kappa):
    """A piece of a group that another silo holds too."""
    clusters = binary([USUAL, PIECE, UNLIKE], [0, 0, 1])
    groups, (only,) = absorb(clusters, [0, 1, 0], profile=drifting(kappa))
    assert len(np.unique(groups)) == 1
    assert only.gain == pytest.approx(exact_gain(clusters, [0, 2], [1], kappa), abs=0.25)


def test_a_second_fold_sees_what_the_first_one_left():
    """Counts of one silo are discounted together, however they came together."""
    clusters = binary([USUAL, PIECE, PIECE], [0, 0, 0])
    _, (first, second) = absorb(clusters, [0, 1, 2], profile=drifting(50.0))
    assert first.into == (("silo 0", 0),)
    whole = binary([np.add(USUAL, PIECE), PIECE], [0, 0])
    _, (only,) = absorb(whole, [0, 1], profile=drifting(50.0))
    assert second.gain == pytest.approx(only.gain, abs=1e-9)
