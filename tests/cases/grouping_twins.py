"""Definitions, in plain NumPy, of gains and of the sampler of groupings."""

from __future__ import annotations

import numpy as np


def pair_gains(counts, profile, one, others):
    """g(n_a + n_b) − g(n_a) − g(n_b) of one group with each of the others."""
    apart = profile.of(counts[one]) + profile.of(counts[others])
    return (profile.of(counts[one] + counts[others]) - apart).sum(axis=-1)


def sample_groupings(blocks, silo, start, profile, rng, burn_in, sweeps):
    """How many sampled groupings put two blocks into one group: (block, block)."""
    group = start.copy()
    together = np.zeros((len(start), len(start)), dtype=np.int64)
    for sweep in range(burn_in + sweeps):
        for block, uniform in enumerate(rng.random(len(start))):
            group[block] = draw_group(group, blocks, silo, block, uniform, profile)
        for s in range(1 + silo.max()):
            of_silo = np.flatnonzero(silo == s)
            if len(of_silo) > 1:
                pair = of_silo[two_of(len(of_silo), rng)]
                exchange(group, blocks, pair, rng.logistic(), profile)
        if sweep >= burn_in:
            together += group[:, None] == group
    return together


def draw_group(group, blocks, silo, block, uniform, profile):
    rest = np.arange(len(group)) != block
    members = np.bincount(group[rest], minlength=len(group))
    own, same_silo = group[block], np.unique(group[silo == silo[block]])
    choices = np.append(np.setdiff1d(np.flatnonzero(members), same_silo), own)
    if members[own]:
        choices = np.append(choices, np.argmin(np.bincount(group, minlength=len(group))))
    others = np.array([blocks[rest & (group == choice)].sum(axis=0) for choice in choices])
    scores = (profile.of(others + blocks[block]) - profile.of(others)).sum(axis=1)
    scores += np.log(np.maximum(members[choices], 1))
    scores[members[choices] == 0] -= profile.log_join_odds
    masses = np.exp(scores - scores.max()).cumsum()
    return int(choices[masses.searchsorted(uniform * masses[-1], side="right")])


def two_of(size, rng):
    """Two of 0, 1, …, without replacement, in random order."""
    a, b = rng.integers(0, size - 1), rng.integers(0, size)
    b = size - 1 if b == a else b
    return [b, a] if rng.integers(0, 2) == 0 else [a, b]


def exchange(group, blocks, pair, threshold, profile):
    moved = group.copy()
    moved[pair] = group[pair[::-1]]
    before, after = (
        sum(profile.of(blocks[some == g].sum(axis=0)).sum() for g in group[pair])
        for some in (group, moved)
    )
    if after - before > threshold:
        group[:] = moved
