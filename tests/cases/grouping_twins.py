"""Definitions, in plain NumPy, of what `silomix.kernels.grouping` compiles."""

from __future__ import annotations

import numpy as np

from silomix.rivals.blocks import Grouping


def pair_gains(counts, profile, one, others):
    """g(n_a + n_b) − g(n_a) − g(n_b) of one group with each of the others."""
    apart = profile.evidence(counts[one]) + profile.evidence(counts[others])
    return profile.evidence(counts[one] + counts[others]) - apart


def sample_groupings(counts, silo, start, profile, rng, burn_in, sweeps):
    """How many sampled groupings put two blocks into one group: (block, block)."""
    state = Grouping(counts, start, profile)
    together = np.zeros((len(start), len(start)), dtype=np.int64)
    for sweep in range(burn_in + sweeps):
        for block, uniform in enumerate(rng.random(len(start))):
            draw_group(state, silo, block, uniform, profile)
        for s in range(1 + silo.max()):
            of_silo = np.flatnonzero(silo == s)
            if len(of_silo) > 1:
                pair = of_silo[two_of(len(of_silo), rng)]
                exchange(state, pair, rng.logistic(), profile)
        if sweep >= burn_in:
            together += state.group[:, None] == state.group
    return together


def draw_group(state, silo, block, uniform, profile):
    own = state.group[block]
    same_silo = np.unique(state.group[silo == silo[block]])
    others = np.setdiff1d(np.flatnonzero(state.members), same_silo)
    lonely = state.members[own] == 1
    choices = np.append(others, own)
    without = state.members[choices] - (choices == own)
    scores = state.gains_with(block, choices) + np.log(np.maximum(without, 1))
    if not lonely:
        choices = np.append(choices, np.argmin(state.members))
        without = np.append(without, 0)
        scores = np.append(scores, state.alone[block])
    scores[without == 0] -= profile.log_join_odds
    masses = np.exp(scores - scores.max()).cumsum()
    to = int(choices[masses.searchsorted(uniform * masses[-1], side="right")])
    if to != own:
        state.move(block, to)


def two_of(size, rng):
    """Two of 0, 1, …, without replacement, in random order."""
    a, b = rng.integers(0, size - 1), rng.integers(0, size)
    b = size - 1 if b == a else b
    return [b, a] if rng.integers(0, 2) == 0 else [a, b]


def exchange(state, pair, threshold, profile):
    one, other = pair
    groups = state.group[[one, other]]
    shift = state.blocks[other] - state.blocks[one]
    changed = profile.evidence(state.counts[groups] + np.stack([shift, -shift]))
    if changed.sum() - state.evidence[groups].sum() > threshold:
        state.move(one, groups[1])
        state.move(other, groups[0])
