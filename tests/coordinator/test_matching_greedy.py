"""Greedy merging by evidence, against all pairs and all groupings; then folding within a silo."""

from __future__ import annotations

from itertools import combinations
from math import lgamma

import numpy as np
import pytest
from cases.drift_twins import TwoLevels
from cases.families import categories
from cases.grouping_twins import pair_gains
from cases.matching_cases import (
    DRIFTING,
    PROFILE,
    SIZES,
    admissible,
    clusters_of,
    draw_counts,
    draw_profiles,
    groupings,
    make_release,
    offsets_of,
    rearrange,
    rearrange_groups,
    together,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import gammaln

from silomix.coordinator.matching import greedy as module
from silomix.coordinator.matching.evidence import DriftEvidence, local_clusters
from silomix.coordinator.matching.greedy import (
    absorb_groups,
    apart_gain,
    evidence_groups,
    folding_gain,
    folding_limit,
    greedy_merges,
    join,
    sum_up,
)


def total_evidence(groups, counts):
    groups = np.asarray(groups)
    return sum(
        lgamma((groups == g).sum()) + PROFILE.of(counts[groups == g].sum(axis=0)).sum()
        for g in np.unique(groups)
    )


def naive_greedy(counts, silo):
    """Score every pair anew before each merge."""
    groups = [[k] for k in range(len(counts))]
    gains = []
    while True:
        best, pair = 1e-6, None
        for a, b in combinations(range(len(groups)), 2):
            if {silo[k] for k in groups[a]} & {silo[k] for k in groups[b]}:
                continue
            one, other = counts[groups[a]].sum(axis=0), counts[groups[b]].sum(axis=0)
            gain = sum(
                sign * PROFILE.of(of).sum()
                for sign, of in ((1, one + other), (-1, one), (-1, other))
            )
            ways = lgamma(len(groups[a]) + len(groups[b]))
            gain += ways - lgamma(len(groups[a])) - lgamma(len(groups[b]))
            if gain > best:
                best, pair = gain, (a, b)
        if pair is None:
            break
        gains.append(best)
        groups[pair[0]] += groups.pop(pair[1])
    ids = np.empty(len(counts), dtype=int)
    for number, members in enumerate(groups):
        ids[members] = number
    return ids, gains


def as_groups(clusters, profile=PROFILE):
    everyone = np.arange(len(clusters.silo))
    return sum_up(clusters, everyone, everyone, profile)


def merge_gains(clusters):
    return [gain for _, _, gain in greedy_merges(as_groups(clusters), apart_gain)]


def one_in_each(counts):
    """As many silos as clusters, so that any two may join; a pair's prior gain is then zero."""
    return clusters_of(counts, range(len(counts)))


def draw_clusters(rng, silos, most, concentration=1.0, rows=30):
    """Silos with a few clusters each of a common population, hard to tell apart."""
    profiles = draw_profiles(rng, most, concentration=concentration)
    counts, silo = [], []
    for s in range(silos):
        for c in rng.choice(most, rng.integers(1, most + 1), replace=False):
            counts.append(draw_counts(rng, profiles[c], int(rng.integers(2, rows))))
            silo.append(s)
    # effective counts are not whole numbers
    return clusters_of(np.array(counts) * rng.uniform(0.6, 1.0, (len(counts), 1)), silo)


@pytest.mark.parametrize("profile", [PROFILE, DRIFTING])
def test_only_gains_that_do_not_count_are_given_up(seed, profile):
    """The others are the change of the evidence, and what each join adds to the prior."""
    counts = draw_clusters(np.random.default_rng(seed), 9, 4, concentration=0.3).counts
    groups, others = as_groups(one_in_each(counts), profile), np.arange(1, len(counts))
    gains = pair_gains(groups.scored.counts, profile, 0, others) + profile.log_join_odds
    lowest = np.full(len(gains), -np.inf)
    for floor in (lowest, gains - 1e-6, gains + 1e-6, np.full(len(gains), np.median(gains))):
        found = apart_gain(groups, 0, others, floor, best_only=False)
        given_up = np.isneginf(found)
        assert not given_up[gains >= floor].any()
        assert_allclose(found[~given_up], gains[~given_up], rtol=1e-10, atol=1e-10)
    assert given_up.any()
    found = apart_gain(groups, 0, others, lowest, best_only=True)
    assert np.argmax(found) == np.argmax(gains)
    assert found.max() == pytest.approx(gains.max())


@pytest.mark.parametrize("silos", [2, 5, 9])
def test_merges_are_those_of_the_full_table(rng, silos):
    for _ in range(5):
        clusters = draw_clusters(rng, silos, 4)
        groups = evidence_groups(clusters, PROFILE)
        expected, gains = naive_greedy(clusters.counts, clusters.silo)
        assert_array_equal(together(groups), together(expected))
        assert_allclose(merge_gains(clusters), gains, rtol=1e-9, atol=1e-9)
        rise = total_evidence(groups, clusters.counts)
        rise -= total_evidence(np.arange(len(groups)), clusters.counts)
        assert_allclose(sum(gains), rise, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("present", [[(0, 1), (0, 1), (0, 1)], [(0, 1), (1, 2), (2, 0)]])
def test_separable_clusters_get_the_best_of_all_groupings(present):
    profiles = np.array(
        [[0.9, 0.1, 0.8, 0.1, 0.1, 0.9, 0.1], [0.1, 0.9, 0.1, 0.8, 0.1, 0.9, 0.1],
         [0.5, 0.5, 0.1, 0.1, 0.8, 0.1, 0.9]]
    )  # fmt: skip
    counts = np.array([200 * profiles[c] for clusters in present for c in clusters])
    silo = np.repeat(range(3), 2)
    clusters = clusters_of(counts, silo)
    groups = evidence_groups(clusters, PROFILE)
    allowed = [g for g in groupings(6) if admissible(g, silo)]
    best = max(allowed, key=lambda g: total_evidence(g, clusters.counts))
    assert_array_equal(together(groups), together(best))
    assert_array_equal(together(groups), together([c for clusters in present for c in clusters]))


def test_many_small_copies_become_one_group(rng, monkeypatch):
    """Were all groupings equally likely, chance would keep copies of one cluster apart."""
    sizes = (3,) * 10
    profile = DriftEvidence(categories(sizes))
    planted = draw_profiles(rng, 10, sizes, concentration=0.3)
    counts = [np.array([draw_counts(rng, p, 8, sizes) for p in planted]) for _ in range(100)]
    releases = [make_release(own, place=s, sizes=sizes) for s, own in enumerate(counts)]
    clusters = local_clusters(releases, counts)
    with_prior = len(np.unique(evidence_groups(clusters, profile)))
    monkeypatch.setattr(module, "membership_gain", lambda one, others: np.zeros(len(others)))
    without = len(np.unique(evidence_groups(clusters, profile)))
    assert with_prior == 10 < without


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_ties_are_broken_by_what_the_clusters_are(data):
    """One silo offers two identical clusters; only one of them can be taken."""
    twin, near = [9.0, 1, 5, 3, 2, 8, 2], [9.0, 1, 5, 3, 2, 7, 3]
    counts = [np.array(own) for own in ([twin], [twin, near], [near, twin], [twin])]
    releases = [
        make_release(own, place=place, silo="abcd"[place]) for place, own in enumerate(counts)
    ]
    silos = data.draw(st.permutations(range(4)))
    labels = [data.draw(st.permutations(range(r.clusters))) for r in releases]
    before = evidence_groups(local_clusters(releases, counts), PROFILE)
    others = rearrange(releases, silos, labels), [rearrange_groups(counts, silos, labels)]
    after = evidence_groups(local_clusters(*others), PROFILE)
    by_silo = np.split(before, np.cumsum([r.clusters for r in releases])[:-1])
    assert_array_equal(together(after), together(rearrange_groups(by_silo, silos, labels)))


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
    """The rise by the formula: profiles, and once a splinter's search among the rows they share."""
    counts, sizes, silo = clusters.counts, clusters.sizes, clusters.silo
    shared = set(silo[one]) & set(silo[other])
    rows = sum(sizes[silo == s].sum() for s in shared)
    a, b = counts[one].sum(axis=0), counts[other].sum(axis=0)
    splinter = min(sizes[one].sum(), sizes[other].sum()) < max(rows / 10, 50)
    return evidence(a + b) - evidence(a) - evidence(b) + splinter * 1.5 * np.log(rows)


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


@pytest.mark.parametrize("rows", [61, 3000])
def test_a_splinter_of_any_size_is_folded(rows, rng):
    """Chance keeps them apart by a factor of n^1.5 in one seed of about n^1.5 > 10⁴."""
    usual = np.array(LARGE) / 80
    counts = [draw_counts(rng, usual, 300), draw_counts(rng, usual, rows), np.multiply(FAR, 3)]
    groups = absorb(clusters_of(counts, [0, 0, 0]), [0, 1, 2])
    assert_array_equal(together(groups), together([0, 0, 1]))


def test_strangers_stay_unless_their_rows_are_doubtful():
    """Rows that a silo picked out without reason have few effective counts."""
    assert len(np.unique(absorb(clusters_of([LARGE, FAR, STRANGER], [0, 0, 0]), [0, 1, 2]))) == 3
    doubtful = clusters_of([LARGE, np.multiply(STRANGER, 0.05)], [0, 0], [800, 27])
    assert len(np.unique(absorb(doubtful, [0, 1]))) == 1


@pytest.mark.parametrize(
    ("most", "rows", "groups"), [(4000, 2000, 2), (4000, 300, 1), (60, 55, 2), (60, 45, 1)]
)
def test_only_splinters_have_to_pay_for_the_search(most, rows, groups):
    """Clusters that overlap are worth few rows, which could not pay for a search among all."""
    few = np.multiply(LARGE, 0.06), np.multiply(FAR, 0.06)
    clusters = clusters_of(few, [0, 0], [most, rows])
    against = evidence(few[0]) + evidence(few[1]) - evidence(few[0] + few[1])
    assert 0 < against < 1.5 * np.log(most + rows)
    assert len(np.unique(absorb(clusters, [0, 1]))) == groups


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
    return DriftEvidence(categories((2,) * 4), np.full(4, kappa))


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
    # a second fold sees what the first one left: counts of a silo are discounted together
    pieces = binary([USUAL, PIECE, PIECE], [0, 0, 0])
    state = sum_up(pieces, np.arange(3), np.arange(3), profile)
    join(state, 0, 1)
    rows = np.bincount(pieces.silo, weights=pieces.sizes)
    second = folding_gain(state, 0, np.array([2]), None, limit=np.inf, rows=rows)[0]
    whole = binary([np.add(USUAL, PIECE), PIECE], [0, 0])
    assert second == pytest.approx(gain(whole, [0, 1], profile), abs=1e-9)
    # a piece of a group that another silo holds too
    across = binary([USUAL, PIECE, UNLIKE], [0, 0, 1])
    assert len(np.unique(absorb(across, [0, 1, 0], profile=profile))) == 1
    for clusters, groups, one in ((within, [0, 1, 2], [0]), (across, [0, 1, 0], [0, 2])):
        exact = exact_gain(clusters, one, [1], kappa)
        assert gain(clusters, groups, profile) == pytest.approx(exact, abs=0.25)
