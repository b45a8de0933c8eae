"""Groups of clusters of any family: gains and samples as for categories, and as enumerated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from cases import family_oracles as oracles
from cases.family_oracles import Category, Count, Number
from cases.grouping_twins import pair_gains
from cases.matching_cases import admissible, groupings, smallest_p_value, together
from numpy.testing import assert_allclose
from scipy.special import gammaln, logsumexp
from statistical.exact import FALSE_ALARM

from silomix.coordinator.matching import Grouping
from silomix.coordinator.matching.evidence import DriftEvidence, Scored
from silomix.families import make_family
from silomix.model.schema import Prior

SILO = np.array([0, 0, 1, 1, 2])
LEVELS = (Category("a"), Category("b", 3))


def profile_of(kinds):
    schema = oracles.make_shard(kinds, np.zeros((1, len(kinds)))).schema
    return DriftEvidence(make_family(schema, Prior()))


def level_counts(seed, blocks):
    """Counts, not whole, of clusters that differ some: (block, level)."""
    rng = np.random.default_rng(seed)
    parts = [rng.dirichlet(np.full(kind.size, 2.0), blocks) for kind in LEVELS]
    return 8 * np.concatenate(parts, axis=1) * rng.uniform(0.5, 1.0, (blocks, 1))


def test_gains_of_categories_are_those_of_the_kernel(seed):
    profile, counts = profile_of(LEVELS), level_counts(seed, 6)
    groups = Scored(counts, profile)
    others, start = np.arange(1, 6), np.linspace(-0.5, 0.5, 5)
    for floor in (-np.inf, 0.0):
        found = groups.gains_above(0, others, start, np.full(5, floor), best_only=False)
        expected = start + pair_gains(counts, profile, 0, others)
        # the kernel gives a pair up only where that saves work
        assert_allclose(found[expected >= floor], expected[expected >= floor], rtol=1e-10)
        assert (found[expected < floor] < floor).all()
    assert np.isfinite(found).any()


def some_together(sums, profile, odds, chains, seed):
    """How often each two blocks share a group, at the end of short independent chains."""
    rng, hits = np.random.default_rng(seed), np.zeros((len(SILO),) * 2, dtype=int)
    for _ in range(chains):
        chain = Grouping(sums, SILO, np.arange(len(SILO)), With(profile.family, odds=odds))
        for _ in range(11):
            chain.draw_groups(rng)
            chain.exchange(rng)
        hits += together(chain.group)
    return hits


@dataclass(frozen=True, eq=False)
class With(DriftEvidence):
    """Evidence without drift, but with some odds of joining."""

    odds: float = 0.0

    @property
    def log_join_odds(self):
        return self.odds


ROWS = [
    np.array([[0.1, 1], [0.4, 2], [nan := np.nan, 1]]),
    np.array([[1.3, 4], [1.0, nan], [1.5, 6]]),
    np.array([[0.5, 3], [0.9, 1]]),
    np.array([[1.1, 5], [0.8, 3]]),
    np.array([[0.7, 2], [1.2, nan]]),
]
"""Of each block: clusters of which one cannot be sure."""
NUMBERS = (Number("x", 54.0, 9.0), Count("n", 3.0))


def enumerated_shares(kinds, log_join_odds):
    """P(two blocks share a group), written from the law of `sample_groupings`."""
    rows = [part[:, : len(kinds)] for part in ROWS]
    every = [np.array(one) for one in groupings(len(SILO)) if admissible(one, SILO)]
    logs = []
    for groups in every:
        sizes = np.bincount(groups)
        log = gammaln(sizes).sum() + log_join_odds * (len(SILO) - len(sizes))
        for group in range(len(sizes)):
            inside = [rows[block] for block in np.flatnonzero(groups == group)]
            log += oracles.log_evidence(kinds, np.concatenate(inside))
        logs.append(log)
    masses = np.exp(np.array(logs) - logsumexp(logs))
    return sum(mass * together(groups) for mass, groups in zip(masses, every, strict=True))


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("kinds", "odds"),
    [
        pytest.param(NUMBERS[:1], 0.0, id="gaussian, even", marks=pytest.mark.slow),
        pytest.param(NUMBERS, 1.0, id="mixed, uneven"),
        pytest.param(NUMBERS, 0.0, id="mixed, even", marks=pytest.mark.slow),
        pytest.param(NUMBERS[:1], 1.0, id="gaussian, uneven", marks=pytest.mark.slow),
    ],
)
def test_groupings_are_those_of_the_enumeration(kinds, odds, seed):
    profile, chains = profile_of(kinds), 400
    rows = [oracles.make_shard(kinds, part[:, : len(kinds)]) for part in ROWS]
    sums = np.array([profile.family.features(shard).sum(axis=0) for shard in rows])
    hits = some_together(sums, profile, odds, chains, seed)
    shares = enumerated_shares(kinds, odds)
    assert_allclose(np.diag(shares), 1.0)
    assert smallest_p_value(hits, shares, chains) > FALSE_ALARM
    assert smallest_p_value(hits, enumerated_shares(kinds, odds - 1.0), chains) < FALSE_ALARM
