"""Block Gibbs against every partition of a few blocks, enumerated."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from cases.families import categories
from cases.matching_cases import groupings
from scipy.special import gammaln, logsumexp

from silomix.kernels.arrays import sum_by
from silomix.rivals import DirichletProcess, FiniteDirichlet, MasterOdds, PitmanYor, Sweeps
from silomix.rivals.block_gibbs import Model, draw_group, group_blocks, sample_groupings
from silomix.silo.partition import log_partition_prior

LEVELS = categories([2, 3])
UNIFORMS = 100
PARTITIONS = [np.array(groups) for groups in groupings(4)]


def some_blocks(seed, n_blocks=4):
    """Small blocks, so that no grouping is out of the question."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, n_blocks)
    counts = [
        np.concatenate([rng.multinomial(n, np.full(k, 1 / k)) for k in (2, 3)]) for n in sizes
    ]
    return np.array(counts, dtype=float), sizes.astype(float)


def pitman_yor(rows, discount, strength):
    opened = np.log(strength + discount * np.arange(1, len(rows))).sum()
    return opened + (gammaln(rows - discount) - gammaln(1 - discount)).sum()


PRIORS = {
    "dp": (DirichletProcess(0.7), lambda rows: len(rows) * np.log(0.7) + gammaln(rows).sum()),
    "py": (PitmanYor(0.3, 0.8), lambda rows: pitman_yor(rows, 0.3, 0.8)),
    "finite": (FiniteDirichlet(3, 0.4), lambda rows: log_partition_prior(rows, 3, 0.4)),
}


def log_mass(groups, counts, sizes, log_prior):
    rows = np.bincount(groups, weights=sizes)
    clusters = np.eye(len(rows))[groups].T @ counts
    return log_prior(rows) + LEVELS.log_evidence(clusters).sum()


def renumbered(groups):
    seen = {}
    return tuple(seen.setdefault(g, len(seen)) for g in groups)


def conditional(groups, block, counts, sizes, log_prior):
    """Exact probabilities of where one block goes, given the others: {groups: probability}."""
    others = np.delete(groups, block)
    choices = {
        renumbered(np.insert(others, block, g)) for g in (*np.unique(others), others.max() + 1)
    }
    masses = {c: log_mass(np.array(c), counts, sizes, log_prior) for c in choices}
    total = logsumexp(list(masses.values()))
    return {c: np.exp(mass - total) for c, mass in masses.items()}


@pytest.mark.parametrize("name", PRIORS)
def test_each_step_has_the_exact_conditional(seed, name):
    odds, log_prior = PRIORS[name]
    counts, sizes = some_blocks(seed)
    model, blocks = Model(odds, LEVELS, Sweeps()), np.column_stack([np.ones(4), sizes, counts])
    possible = [p for p in PARTITIONS if np.isfinite(log_mass(p, counts, sizes, log_prior))]
    for groups, block in product(possible, range(4)):
        sums = sum_by(groups, blocks, 4)
        own, unknown = groups[block], np.full(4, np.nan)
        sums[own] -= blocks[block]
        found = Counter()
        for uniform in (np.arange(UNIFORMS) + 0.5) / UNIFORMS:
            moved = groups.copy()
            moved[block] = draw_group(sums, own, blocks[block], unknown, model, uniform)
            found[renumbered(moved)] += 1
        for key, probability in conditional(groups, block, counts, sizes, log_prior).items():
            assert abs(found[key] / UNIFORMS - probability) <= 1.001 / UNIFORMS


def test_a_chain_visits_partitions_in_proportion(rng, seed):
    odds, log_prior = PRIORS["dp"]
    counts, sizes = some_blocks(seed)
    model = Model(odds, LEVELS, Sweeps(20, 2000))
    draws = sample_groupings(counts, sizes, model, rng)
    masses = np.array([log_mass(p, counts, sizes, log_prior) for p in PARTITIONS])
    exact = np.exp(masses - logsumexp(masses))
    seen = np.array([(draws == p).all(axis=1).mean() for p in PARTITIONS])
    assert seen.sum() == pytest.approx(1)
    # twenty batches give a standard error that knows of the chain's memory; 15 comparisons, 6 of
    # them: a false alarm in 10⁴ runs at most (15 · 2 P(t > 6), 19 degrees of freedom)
    batches = np.array([[(part == p).all(axis=1).mean() for p in PARTITIONS]
                        for part in np.split(draws, 20)])  # fmt: skip
    errors = np.maximum(batches.std(axis=0, ddof=1) / np.sqrt(20), 1 / 2000)
    assert (np.abs(seen - exact) < 6 * errors).all()
    uniform = np.full(15, 1 / 15)
    assert (np.abs(seen - uniform) > 6 * errors).any()


def test_the_masters_odds_are_those_of_one_row():
    rows = np.array([3.0, 9.0])
    np.testing.assert_allclose(MasterOdds(2.0).log_odds(rows, 50.0), np.log([4.0, 10.0, 2.0]))


WIDE = categories([3] * 6)
"""Six variables: two outweigh the prior's wish for few clusters only when all blocks are seen."""


def planted(seed, n_blocks, rows=300):
    """Blocks of three clusters that are far apart."""
    rng = np.random.default_rng(seed)
    profiles = np.full((3, 3), 0.05) + 0.85 * np.eye(3)
    truth = rng.integers(0, 3, n_blocks)
    counts = [rng.multinomial(rows, profiles[z], size=6).ravel() for z in truth]
    return np.array(counts, dtype=float), np.full(n_blocks, float(rows)), truth


@pytest.mark.parametrize("budget", [2000, 8])
@pytest.mark.parametrize("odds", [DirichletProcess, PitmanYor, FiniteDirichlet, MasterOdds])
def test_planted_groups_are_found_in_any_number_of_steps(rng, seed, odds, budget):
    counts, sizes, truth = planted(seed, 30)
    model = Model(odds(), WIDE, Sweeps(10, 20, budget))
    groups, steps = group_blocks(counts, sizes, model, rng)
    assert renumbered(groups) == renumbered(truth)
    assert (steps > 1) == (budget < 30)
