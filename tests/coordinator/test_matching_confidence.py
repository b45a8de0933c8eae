"""The block Gibbs sampler, against every grouping of a few clusters."""

from __future__ import annotations

from dataclasses import replace
from math import lgamma

import numpy as np
import pytest
from cases import grouping_twins as twin
from cases.families import categories
from cases.matching_cases import (
    DRIFTING,
    PROFILE,
    SIZES,
    admissible,
    clusters_of,
    draw_counts,
    draw_profiles,
    groupings,
    smallest_p_value,
    together,
)
from numpy.testing import assert_array_equal
from scipy.stats import binomtest

from silomix.coordinator import matching as module
from silomix.coordinator.matching import co_occurrence
from silomix.coordinator.matching.evidence import DriftEvidence
from silomix.kernels.arrays import by_appearance

# probability that the right sampler fails one of these tests at a random seed
FALSE_ALARM = 1e-4

# independent chains, of which only the last grouping is looked at
CHAINS = 300


UNSURE = np.array(
    [[4, 1, 2, 2, 1, 3, 2], [2, 3, 1, 2, 2, 2, 3], [4, 2, 3, 2, 1, 3, 3],
     [1, 3, 1, 1, 2, 1, 3], [3, 2, 2, 2, 1, 3, 2]], dtype=float
)  # fmt: skip
SILO = np.array([0, 0, 1, 1, 2])


# rows enough that discounting them matters
MANY = np.array(
    [[30, 10, 15, 15, 10, 22, 18], [16, 24, 8, 16, 16, 12, 28], [22, 18, 18, 10, 12, 28, 12],
     [10, 30, 8, 20, 12, 10, 30], [24, 16, 10, 18, 12, 18, 22]], dtype=float
)  # fmt: skip


def of_group(counts, profile, log_odds):
    joins = len(counts) - 1
    together = profile.of(profile.discount(counts).sum(axis=0)).sum()
    return lgamma(len(counts)) + together + joins * log_odds


def exact(counts, silo, profile=PROFILE, log_odds=0.0):
    """Probability that two clusters share a group, by enumeration: (local, local)."""
    allowed = [np.array(g) for g in groupings(len(silo)) if admissible(g, silo)]
    logs = np.array(
        [sum(of_group(counts[g == k], profile, log_odds) for k in set(g)) for g in allowed]
    )
    masses = np.exp(logs - logs.max())
    return np.einsum("g,gab->ab", masses / masses.sum(), [together(g) for g in allowed])


@pytest.fixture(autouse=True)
def short_burn_in(monkeypatch):
    """Five clusters forget their start sooner than two thousand."""
    monkeypatch.setattr(module, "BURN_IN", 15)


def last_groupings(start, seed, counts=UNSURE, silo=SILO, profile=PROFILE, chains=CHAINS):
    """How many of the chains end with two clusters in one group: (local, local)."""
    clusters = clusters_of(counts, silo)
    streams = np.random.default_rng(seed).spawn(chains)
    ends = [co_occurrence(clusters, start, profile, rng, sweeps=1) for rng in streams]
    return np.sum(ends, axis=0).astype(int)


@pytest.mark.statistical
@pytest.mark.parametrize("start", [[0, 1, 2, 3, 4], [0, 1, 0, 1, 0]])
def test_frequencies_are_those_of_all_groupings(seed, start):
    """And a wrong prior would be noticed."""
    hits = last_groupings(np.array(start), seed)
    assert smallest_p_value(hits, exact(UNSURE, SILO), CHAINS) > FALSE_ALARM
    assert hits[0, 1] == hits[2, 3] == 0
    wrong = exact(UNSURE, SILO, DriftEvidence(categories(SIZES, 2.0)))
    assert smallest_p_value(hits, wrong, CHAINS) < FALSE_ALARM


@pytest.mark.parametrize("profile", [PROFILE, DRIFTING])
@pytest.mark.parametrize("rows", [4, 12])
def test_the_compiled_sampler_follows_its_definition(rng, seed, profile, rows):
    """The same groupings, one by one: blocks move, open groups, leave them, exchange places."""
    profiles = draw_profiles(rng, 4, concentration=5.0)
    silo = np.repeat(np.arange(6), [4, 3, 1, 4, 2, 3])
    counts = np.array([draw_counts(rng, profiles[k % 4], rows) for k in range(len(silo))])
    counts = counts * rng.uniform(0.6, 1.0, (len(silo), 1))
    start = np.concatenate([np.arange(n) for n in np.bincount(silo)])
    clusters = clusters_of(counts, silo)
    first, again = (np.random.default_rng(seed) for _ in range(2))
    # in the order in which the sampler goes through them
    order = clusters.canonical_order()
    blocks, start = profile.discount(counts)[order], by_appearance(start[order])
    expected = np.empty((len(silo),) * 2)
    expected[np.ix_(order, order)] = twin.sample_groupings(
        blocks, silo[order], start, profile, first, module.BURN_IN, 40
    )
    found = co_occurrence(clusters, start[np.argsort(order)], profile, again, 40)
    assert_array_equal(found, expected / 40)
    assert len(np.unique(found)) > 5


@pytest.mark.statistical
def test_under_drift_too(seed):
    """Discounted counts, the base of unrelated clusters, and even odds halved for each join."""
    hits = last_groupings(np.arange(5), seed, MANY, profile=DRIFTING, chains=600)

    def p_value(profile, log_odds):
        return smallest_p_value(hits, exact(MANY, SILO, profile, log_odds), chains=600)

    half = np.log(0.5)
    assert p_value(DRIFTING, half) > FALSE_ALARM
    assert p_value(DRIFTING, 0.0) < FALSE_ALARM
    assert p_value(replace(DRIFTING, base=None), half) < FALSE_ALARM
    assert p_value(replace(DRIFTING, kappa=None), half) < FALSE_ALARM


@pytest.mark.statistical
def test_two_clusters_of_a_silo_can_change_places(seed):
    """Many rows bar every way but an exchange; both ways to pair them are equally likely."""
    near = 40 * np.array([5.0, 5, 4, 3, 3, 5, 5])
    counts = np.stack([near, near, near, near])
    hits = last_groupings(np.array([0, 1, 0, 1]), seed, counts, np.array([0, 0, 1, 1]))
    assert binomtest(int(hits[0, 2]), CHAINS, 0.5).pvalue > FALSE_ALARM


def test_clusters_folded_within_a_silo_stay_together(seed):
    clusters = clusters_of(UNSURE, SILO)
    found = co_occurrence(clusters, np.array([0, 0, 1, 2, 0]), PROFILE, np.random.default_rng(seed))
    # the numbers of the groups mean nothing
    again = co_occurrence(clusters, np.array([7, 7, 3, 5, 7]), PROFILE, np.random.default_rng(seed))
    assert_array_equal(again, found)
    assert found[0, 1] == 1.0
    assert_array_equal(found[0], found[1])
    assert found[2, 3] == 0.0
    assert_array_equal(found, found.T)
    assert_array_equal(np.diag(found), np.ones(5))
    one_silo = clusters_of(UNSURE, np.zeros(5, dtype=int))
    found = co_occurrence(one_silo, np.arange(5), PROFILE, np.random.default_rng(seed))
    assert_array_equal(found, np.eye(5))
