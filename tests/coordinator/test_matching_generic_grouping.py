"""Groups of clusters of any family: gains and samples as for categories, and as enumerated."""

from __future__ import annotations

import numpy as np
import pytest
from cases import family_oracles as oracles
from cases.family_oracles import Category, Count, Number
from cases.matching_cases import admissible, groupings, smallest_p_value, together
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import gammaln, logsumexp
from statistical.exact import FALSE_ALARM

from silomix.coordinator.matching import generic_grouping
from silomix.coordinator.matching.evidence import Profile
from silomix.families import make_family
from silomix.kernels import grouping
from silomix.model.schema import Prior

SILO = np.array([0, 0, 1, 1, 2])
LEVELS = (Category("a"), Category("b", 3))


def profile_of(kinds):
    schema = oracles.make_shard(kinds, np.zeros((1, len(kinds)))).schema
    return Profile(make_family(schema, Prior()))


def level_counts(seed, blocks):
    """Counts, not whole, of clusters that differ some: (block, level)."""
    rng = np.random.default_rng(seed)
    parts = [rng.dirichlet(np.full(kind.size, 2.0), blocks) for kind in LEVELS]
    return 8 * np.concatenate(parts, axis=1) * rng.uniform(0.5, 1.0, (blocks, 1))


def test_gains_of_categories_are_those_of_the_kernel(seed):
    profile, counts = profile_of(LEVELS), level_counts(seed, 6)
    offsets = profile.family.blocks[0].offsets
    room = np.zeros((6, 3))
    compiled = grouping.Weighed(counts, np.zeros((6, 2)), room, profile.prior, offsets)
    ours = generic_grouping.Weighed(counts, np.zeros((6, 2)), profile.evidence)
    grouping.weigh_groups(compiled, 0, 6)
    generic_grouping.weigh_groups(ours, 0, 6)
    assert_allclose(ours.evidence, compiled.evidence, rtol=1e-12, atol=1e-12)
    others, start = np.arange(1, 6), np.linspace(-0.5, 0.5, 5)
    for floor in (-np.inf, 0.0):
        given = 0, others, start, np.full(5, floor), False
        found, expected = (
            generic_grouping.gains_above(ours, *given),
            grouping.gains_above(compiled, *given),
        )
        # the kernel gives a pair up only where that saves work
        expected[expected < floor] = -np.inf
        assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    assert np.isfinite(found).any()


def some_together(blocks, sampler, chains, seed):
    """How often each two blocks share a group, at the end of short independent chains."""
    rng = np.random.default_rng(seed)
    start = np.arange(len(SILO))
    return sum(sampler(blocks, start, 10, 1, rng) for _ in range(chains))


@pytest.mark.statistical
@pytest.mark.parametrize("odds", [pytest.param(0.0, marks=pytest.mark.slow), 1.5])
def test_groupings_of_categories_have_the_law_of_the_kernel(seed, odds):
    profile, counts, chains = profile_of(LEVELS), level_counts(seed, len(SILO)), 400
    alone = profile.evidence(counts).sum(axis=1)
    prior = profile.prior, profile.family.blocks[0].offsets
    compiled = grouping.Blocks(counts, SILO, alone, *prior, odds)
    ours = generic_grouping.Blocks(counts, SILO, profile.evidence, odds)
    reference = some_together(compiled, grouping.sample_groupings, 20 * chains, seed)
    found = some_together(ours, generic_grouping.sample_groupings, chains, seed)
    assert_array_equal(np.diag(found), chains)
    # the reference has an error of its own, a twentieth of the variance
    shares = reference / (20 * chains)
    error = np.sqrt(np.maximum(shares * (1 - shares), 1e-12) / chains * 1.05)
    apart = np.abs(found / chains - shares)[SILO[:, None] != SILO]
    limit = stats.norm.isf(FALSE_ALARM / (2 * len(apart)))
    assert (apart < limit * error[SILO[:, None] != SILO] + 1e-9).all()
    assert found[0, 1] == found[2, 3] == 0


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
    blocks = generic_grouping.Blocks(sums, SILO, profile.evidence, odds)
    hits = some_together(blocks, generic_grouping.sample_groupings, chains, seed)
    shares = enumerated_shares(kinds, odds)
    assert_allclose(np.diag(shares), 1.0)
    assert smallest_p_value(hits, shares, chains) > FALSE_ALARM
    assert smallest_p_value(hits, enumerated_shares(kinds, odds - 1.0), chains) < FALSE_ALARM
