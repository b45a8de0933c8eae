"""Greedy merging by evidence, against the full table of pairs and against all groupings."""

from __future__ import annotations

from itertools import combinations
from math import lgamma

import numpy as np
import pytest
from cases.grouping_twins import pair_gains
from cases.matching_cases import (
    SIZES,
    admissible,
    clusters_of,
    draw_counts,
    draw_profiles,
    draw_releases,
    groupings,
    make_release,
    offsets_of,
    rearrange,
    rearrange_groups,
    together,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from silomix.coordinator.matching import greedy as module
from silomix.coordinator.matching.evidence import Profile, local_clusters
from silomix.coordinator.matching.greedy import apart_gain, evidence_groups, greedy_merges, sum_up

PROFILE = Profile(offsets_of(SIZES), 0.5)
DRIFTING = Profile(
    PROFILE.offsets,
    0.5,
    kappa=np.array([10.0, np.inf, 10.0]),
    base=np.array([2.0, 2, 8, 8, 8, 1, 1]),
)


def total_evidence(groups, counts):
    groups = np.asarray(groups)
    return sum(
        lgamma((groups == g).sum()) + PROFILE.evidence(counts[groups == g].sum(axis=0))
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
            gain = PROFILE.evidence(one + other) - PROFILE.evidence(one) - PROFILE.evidence(other)
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
    gains = pair_gains(groups.weighed.counts, profile, 0, others) + profile.log_join_odds
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
def test_merges_are_those_of_the_full_table(seed, silos):
    rng = np.random.default_rng(seed)
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


def test_many_small_copies_become_one_group(seed, monkeypatch):
    """Were all groupings equally likely, chance would keep copies of one cluster apart."""
    rng = np.random.default_rng(seed)
    sizes = (3,) * 10
    profile = Profile(offsets_of(sizes), 0.5)
    planted = draw_profiles(rng, 10, sizes, concentration=0.3)
    clusters = local_clusters(
        [
            make_release([draw_counts(rng, p, 8, sizes) for p in planted], place=s, sizes=sizes)
            for s in range(100)
        ]
    )
    with_prior = len(np.unique(evidence_groups(clusters, profile)))
    monkeypatch.setattr(module, "membership_gain", lambda one, others, silos: np.zeros(len(others)))
    without = len(np.unique(evidence_groups(clusters, profile)))
    assert with_prior == 10 < without


def test_clusters_without_information_stay_alone():
    """No counts, no evidence either way: a gain of nothing is not a rise."""
    counts = [[0] * 7, [9, 1, 8, 1, 1, 2, 8], [0] * 7]
    groups = evidence_groups(clusters_of(counts, [0, 1, 2], [1, 10, 1]), PROFILE)
    assert len(np.unique(groups)) == 3


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_another_order_gives_the_same_groups(data, seed):
    rng = np.random.default_rng(seed)
    present = [rng.choice(4, rng.integers(1, 5), replace=False) for _ in range(rng.integers(1, 6))]
    releases = draw_releases(rng, present, rows=int(rng.integers(1, 30)), concentration=1.0)
    clusters = local_clusters(releases)
    # clusters of one silo that are alike in every count may stand for each other
    distinct = {
        (silo, *counts) for silo, counts in zip(clusters.silo, clusters.counts, strict=True)
    }
    assume(len(distinct) == len(clusters.silo))
    silos = data.draw(st.permutations(range(len(releases))))
    labels = [data.draw(st.permutations(range(r.clusters))) for r in releases]
    before = evidence_groups(clusters, PROFILE)
    after = evidence_groups(local_clusters(rearrange(releases, silos, labels)), PROFILE)
    by_silo = np.split(before, np.cumsum([r.clusters for r in releases])[:-1])
    assert_array_equal(together(after), together(rearrange_groups(by_silo, silos, labels)))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_ties_are_broken_by_what_the_clusters_are(data):
    """One silo offers two identical clusters; only one of them can be taken."""
    twin, near = [9.0, 1, 5, 3, 2, 8, 2], [9.0, 1, 5, 3, 2, 7, 3]
    releases = [
        make_release(counts, place=place, silo=name)
        for place, (name, counts) in enumerate(
            [("a", [twin]), ("b", [twin, near]), ("c", [near, twin]), ("d", [twin])]
        )
    ]
    silos = data.draw(st.permutations(range(4)))
    labels = [data.draw(st.permutations(range(r.clusters))) for r in releases]
    before = evidence_groups(local_clusters(releases), PROFILE)
    after = evidence_groups(local_clusters(rearrange(releases, silos, labels)), PROFILE)
    by_silo = np.split(before, np.cumsum([r.clusters for r in releases])[:-1])
    assert_array_equal(together(after), together(rearrange_groups(by_silo, silos, labels)))


def test_outdated_partners_are_looked_at_again():
    """The best partner of the first group leaves with another; it must find the next best."""
    table = np.full((4, 4), -np.inf)
    for (a, b), gain in {(0, 1): 5.0, (1, 2): 9.0, (0, 3): 2.0}.items():
        table[a, b] = table[b, a] = gain

    def gain(groups, one, others, *_, **__):
        merged = groups.weighed.counts[:, 0] > 1
        return np.array([-np.inf if merged[one] or merged[o] else table[one, o] for o in others])

    groups = as_groups(clusters_of(np.ones((4, 7)), range(4), [1] * 4))
    assert greedy_merges(groups, gain) == [(1, 2, 9.0), (0, 3, 2.0)]
