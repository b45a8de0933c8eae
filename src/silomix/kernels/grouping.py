"""Evidence and sampling of groups of clusters: compiled, with readable twins in tests.

A group of counts n, summed over its members, has the evidence of a Dirichlet–multinomial,

    g(n) = Σ_q [ln Γ(Σa) − ln Γ(Σa + Σn) + Σ_k ln Γ(a_k + n_k) − ln Γ(a_k)],

with the parameters a of the prior. Randomness comes from a NumPy generator, in a stated order, on
one thread.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from silomix.kernels.arrays import Bools, Floats, Ints, Rng
from silomix.kernels.compilation import kernel

# relative rounding error of a bound on a gain
ROUNDING = 1e-9


@kernel
def log_marginal(
    counts: Floats, change: Floats, sign: float, prior: Floats, first: int, last: int
) -> float:
    """One variable's part of g(counts + sign · more), up to a constant of the prior.

    Parameters
    ----------
    counts, change, prior : (level,)
    first, last : the variable's levels, `first` to before `last`.
    """
    total, value = 0.0, 0.0
    for level in range(first, last):
        parameter = prior[level] + counts[level] + sign * change[level]
        total += parameter
        value += math.lgamma(parameter)
    return value - math.lgamma(total)


class Weighed(NamedTuple):
    """Groups that may merge, and the evidence of each, updated in place.

    Attributes
    ----------
    counts : (group, level)
    evidence : (group, variable), g of the counts.
    room : (group, variable + 1), upper bound, from each variable on, of the group's contribution to
        the gain of a merger.
    prior : (level,); offsets : (variable + 1,)
    """

    counts: Floats
    evidence: Floats
    room: Floats
    prior: Floats
    offsets: Ints


@kernel
def weigh_groups(groups: Weighed, begin: int, end: int) -> None:
    """Update evidence and room of the groups `begin` to before `end`.

    Since g is convex, a variable adds at most r(n_a) + r(n_b) to the gain of merging two groups,
    r(n) = ½ g(2n) − g(n), which it attains where their counts are equal.
    """
    counts, evidence, room, prior, offsets = groups
    for q in range(len(offsets) - 2, -1, -1):
        first, last = offsets[q], offsets[q + 1]
        empty = log_marginal(counts[begin], counts[begin], -1.0, prior, first, last)
        for group in range(begin, end):
            n = counts[group]
            evidence[group, q] = log_marginal(n, n, 0.0, prior, first, last) - empty
            twice = log_marginal(n, n, 1.0, prior, first, last) - empty
            room[group, q] = room[group, q + 1] + 0.5 * twice - evidence[group, q]


@kernel
def gains_above(
    groups: Weighed, a: int, others: Ints, start: Floats, floor: Floats, best_only: bool
) -> Floats:
    """Gains of merging one group with others, start + g(n_a + n_b) − g(n_a) − g(n_b).

    A pair is abandoned as soon as the remaining variables cannot lift its gain to its floor.

    Parameters
    ----------
    others, start, floor : (other,), groups, and offset and smallest useful gain of each.
    best_only : whether only the largest is needed: then each gain is a floor for the next.

    Returns
    -------
    (other,), −inf where it is below the floor.
    """
    counts, evidence, room, prior, offsets = groups
    variables = len(offsets) - 1
    empty = np.empty(variables)
    nothing = np.zeros(counts.shape[1])
    for q in range(variables):
        empty[q] = log_marginal(nothing, nothing, 0.0, prior, offsets[q], offsets[q + 1])
    gains = start.copy()
    best = -np.inf
    for place, b in enumerate(others):
        least = max(best, floor[place])
        for q in range(variables):
            gain, remaining = gains[place], room[a, q] + room[b, q]
            if gain + remaining < least - ROUNDING * (1.0 + remaining + abs(gain)):
                gains[place] = -np.inf
                break
            first, last = offsets[q], offsets[q + 1]
            joint = log_marginal(counts[a], counts[b], 1.0, prior, first, last)
            gains[place] += joint - empty[q] - evidence[a, q] - evidence[b, q]
        if best_only:
            best = max(best, gains[place])
    return gains


@kernel
def log_group(counts: Floats, change: Floats, sign: float, prior: Floats, offsets: Ints) -> float:
    """Compute g(counts + sign · more), up to a constant of the prior."""
    value = 0.0
    for q in range(len(offsets) - 1):
        value += log_marginal(counts, change, sign, prior, offsets[q], offsets[q + 1])
    return value


class Blocks(NamedTuple):
    """Blocks of rows to be grouped, and the prior of a group's profile.

    Attributes
    ----------
    counts : (block, level)
    silo : (block,), numbered without gaps.
    alone : (block,), g of each by itself.
    prior : (level,); offsets : (variable + 1,)
    log_join_odds : term of the log prior of a grouping for each join.
    """

    counts: Floats
    silo: Ints
    alone: Floats
    prior: Floats
    offsets: Ints
    log_join_odds: float


class Grouping(NamedTuple):
    """A grouping of blocks, written in place; as many groups as blocks, most of them empty.

    Attributes
    ----------
    group : (block,)
    counts : (group, level)
    evidence : (group,), g of the counts, up to a constant of the prior.
    members : (group,), blocks in each.
    held : (group, silo), whether the group has a block of the silo.
    contents : (group,), version of the group, which rises whenever a block enters or leaves.
    gains : (block, group), g(n + n_b) − g(n), n the group's counts without the block.
    known : (block, group), version of the group for which that gain was computed.
    """

    group: Ints
    counts: Floats
    evidence: Floats
    members: Ints
    held: Bools
    contents: Ints
    gains: Floats
    known: Ints


@kernel
def sample_groupings(blocks: Blocks, start: Ints, burn_in: int, sweeps: int, rng: Rng) -> Ints:
    """Gibbs samples of groupings from `start`, (block,); counts of shared groups: (block, block).

    A grouping's probability is proportional to the product over its groups of Γ(blocks in it) and
    their evidence, times the odds of each join; no group has two blocks of one silo. A sweep draws
    the group of each block given all others', by one uniform number; then two blocks of every silo
    that has two may exchange their groups. The cost is proportional to blocks × occupied groups.
    """
    n_blocks, n_silos = len(start), blocks.silo.max() + 1
    state = Grouping(
        group=start.copy(),
        counts=np.zeros_like(blocks.counts),
        evidence=np.zeros(n_blocks),
        members=np.zeros(n_blocks, dtype=np.int64),
        held=np.zeros((n_blocks, n_silos), dtype=np.bool_),
        contents=np.ones(n_blocks, dtype=np.int64),
        gains=np.zeros((n_blocks, n_blocks)),
        known=np.zeros((n_blocks, n_blocks), dtype=np.int64),
    )
    for block, group in enumerate(start):
        state.members[group] += 1
        state.held[group, blocks.silo[block]] = True
    together = np.zeros((n_blocks, n_blocks), dtype=np.int64)
    for sweep in range(burn_in + sweeps):
        add_up(blocks, state)
        for block in range(n_blocks):
            draw_group(blocks, state, block, rng)
        for silo in range(n_silos):
            exchange(blocks, state, silo, rng)
        if sweep >= burn_in:
            for a in range(n_blocks):
                together[a] += state.group == state.group[a]
    return together


@kernel
def add_up(blocks: Blocks, state: Grouping) -> None:
    """Sum the counts of every group afresh, since incremental sums accumulate rounding errors."""
    state.counts[:] = 0.0
    for block in range(len(state.group)):
        state.counts[state.group[block]] += blocks.counts[block]
    for group in range(state.group.max() + 1):
        weigh(blocks, state, group)


@kernel
def weigh(blocks: Blocks, state: Grouping, group: int) -> None:
    """Update the evidence of a group."""
    counts = state.counts[group]
    state.evidence[group] = log_group(counts, counts, 0.0, blocks.prior, blocks.offsets)


@kernel
def draw_group(blocks: Blocks, state: Grouping, block: int, rng: Rng) -> None:
    """Draw the group of one block given the others': an occupied one, or a new one."""
    current = state.group[block]
    is_singleton = state.members[current] == 1
    choices = np.empty(len(state.group) + 1, dtype=np.int64)
    masses = np.empty(len(state.group) + 1)
    n, empty, group, blocks_seen = 0, -1, 0, 0
    while blocks_seen < len(state.group):  # the groups behind the last block are empty
        blocks_seen += state.members[group]
        if state.members[group] == 0:
            empty = group if empty < 0 else empty
        elif not state.held[group, blocks.silo[block]]:
            choices[n] = group
            n += 1
        group += 1
    empty = group if empty < 0 else empty
    choices[n] = current
    n += 1
    for place in range(n):
        group = choices[place]
        others = state.members[group] - (group == current)
        # alone in its group: odds 1, like an empty group, and no join
        odds = -blocks.log_join_odds if others == 0 else math.log(others)
        masses[place] = find_gain(blocks, state, block, group) + odds
    if not is_singleton:
        choices[n] = empty
        masses[n] = blocks.alone[block] - blocks.log_join_odds
        n += 1
    largest = masses[:n].max()
    total = 0.0
    for place in range(n):
        total += math.exp(masses[place] - largest)
        masses[place] = total
    threshold, chosen = rng.random() * total, 0
    while chosen < n - 1 and masses[chosen] <= threshold:
        chosen += 1
    if choices[chosen] != current:
        move(blocks, state, block, choices[chosen])
        weigh(blocks, state, current)
        weigh(blocks, state, choices[chosen])


@kernel
def find_gain(blocks: Blocks, state: Grouping, block: int, group: int) -> float:
    """Gain of a block in a group, from the cache if the group is unchanged."""
    if state.known[block, group] != state.contents[group]:
        sign = -1.0 if state.group[block] == group else 1.0
        counts, block_counts = state.counts[group], blocks.counts[block]
        changed = log_group(counts, block_counts, sign, blocks.prior, blocks.offsets)
        state.gains[block, group] = sign * (changed - state.evidence[group])
        state.known[block, group] = state.contents[group]
    return state.gains[block, group]


@kernel
def exchange(blocks: Blocks, state: Grouping, silo: int, rng: Rng) -> None:
    """Gibbs exchange of the groups of two blocks of one silo.

    By single moves they could swap only by way of a new group. The odds of a swap are the ratio
    of the evidence, drawn with a logistic threshold; Metropolis would always swap equal blocks,
    and two silos that do so in each sweep return to the start.
    """
    its_blocks: Ints = np.flatnonzero(blocks.silo == silo)
    size = len(its_blocks)
    if size < 2:
        return
    # two of them without replacement, in random order (Floyd)
    a, b = int(rng.integers(0, size - 1)), int(rng.integers(0, size))
    if b == a:
        b = size - 1
    if rng.integers(0, 2) == 0:
        a, b = b, a
    block_a, block_b = its_blocks[a], its_blocks[b]
    group_a, group_b = state.group[block_a], state.group[block_b]
    shift = blocks.counts[block_b] - blocks.counts[block_a]
    rise = log_group(state.counts[group_a], shift, 1.0, blocks.prior, blocks.offsets)
    rise += log_group(state.counts[group_b], shift, -1.0, blocks.prior, blocks.offsets)
    if rise - state.evidence[group_a] - state.evidence[group_b] > rng.logistic(0.0, 1.0):
        move(blocks, state, block_a, group_b)
        move(blocks, state, block_b, group_a)
        state.held[group_b, silo] = True  # each group still has a block of the silo
        weigh(blocks, state, group_a)
        weigh(blocks, state, group_b)


@kernel
def move(blocks: Blocks, state: Grouping, block: int, target: int) -> None:
    """Move a block into another group; the caller updates the groups' evidence."""
    source, silo = state.group[block], blocks.silo[block]
    state.group[block] = target
    state.members[source] -= 1
    state.members[target] += 1
    state.held[source, silo] = False
    state.held[target, silo] = True
    state.counts[target] += blocks.counts[block]
    state.counts[source] -= blocks.counts[block]
    if state.members[source] == 0:
        state.counts[source] = 0.0
    for group in (source, target):
        # a block's gains exclude itself, so that its own moves do not change them
        current = state.known[block, group] == state.contents[group]
        state.contents[group] += 1
        if current:
            state.known[block, group] = state.contents[group]
