"""Definitions, in plain NumPy, of what `silomix.kernels.grouping` compiles."""

from __future__ import annotations

import numpy as np

from silomix.rivals.states import Blocks, begin, move, refresh


def pair_gains(counts, profile, one, others):
    """g(n_a + n_b) − g(n_a) − g(n_b) of one group with each of the others."""
    apart = profile.evidence(counts[one]) + profile.evidence(counts[others])
    return profile.evidence(counts[one] + counts[others]) - apart


def sample_groupings(counts, silo, start, profile, rng, burn_in, sweeps):
    """How many sampled groupings put two blocks into one group: (block, block)."""
    blocks = Blocks(counts, profile.evidence(counts))
    state = begin(blocks, start, profile)
    together = np.zeros((len(start), len(start)), dtype=np.int64)
    for sweep in range(burn_in + sweeps):
        for block, uniform in enumerate(rng.random(len(start))):
            draw_group(state, blocks, silo, block, uniform, profile)
        for s in range(1 + silo.max()):
            of_silo = np.flatnonzero(silo == s)
            if len(of_silo) > 1:
                pair = of_silo[two_of(len(of_silo), rng)]
                exchange(state, blocks, pair, rng.logistic(), profile)
        if sweep >= burn_in:
            together += state.group[:, None] == state.group
    return together


def draw_group(state, blocks, silo, block, uniform, profile):
    own = state.group[block]
    same_silo = np.unique(state.group[silo == silo[block]])
    others = np.setdiff1d(np.flatnonzero(state.members), same_silo)
    refresh(state, blocks, block, others, profile)
    lonely = state.members[own] == 1
    choices = np.append(others, own)
    without = state.members[choices] - (choices == own)
    scores = state.gains[block, choices] + np.log(np.maximum(without, 1))
    if not lonely:
        choices = np.append(choices, np.argmin(state.members))
        without = np.append(without, 0)
        scores = np.append(scores, blocks.alone[block])
    scores[without == 0] -= profile.log_join_odds
    masses = np.exp(scores - scores.max()).cumsum()
    to = int(choices[masses.searchsorted(uniform * masses[-1], side="right")])
    if to != own:
        move(state, blocks, block, to, profile)


def two_of(size, rng):
    """Two of 0, 1, …, without replacement, in random order."""
    a, b = rng.integers(0, size - 1), rng.integers(0, size)
    b = size - 1 if b == a else b
    return [b, a] if rng.integers(0, 2) == 0 else [a, b]


def exchange(state, blocks, pair, threshold, profile):
    one, other = pair
    groups = state.group[[one, other]]
    shift = blocks.counts[other] - blocks.counts[one]
    changed = profile.evidence(state.counts[groups] + np.stack([shift, -shift]))
    if changed.sum() - state.evidence[groups].sum() > threshold:
        move(state, blocks, one, groups[1], profile)
        move(state, blocks, other, groups[0], profile)
