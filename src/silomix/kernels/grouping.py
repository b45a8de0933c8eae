"""Groups of clusters scored and sampled by their evidence: compiled, with readable twins in tests.

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

# a bound on a gain is trusted up to this, times what was added up
ROUNDING = 1e-9


@kernel
def log_marginal(
    counts: Floats, more: Floats, sign: float, prior: Floats, first: int, last: int
) -> float:
    """Return one variable's part of g(counts + sign · more), without what only the prior decides.

    Parameters
    ----------
    counts, more, prior : (level,)
    first, last : the variable's levels, from `first` up to and without `last`.
    """
    total, value = 0.0, 0.0
    for level in range(first, last):
        parameter = prior[level] + counts[level] + sign * more[level]
        total += parameter
        value += math.lgamma(parameter)
    return value - math.lgamma(total)


class Weighed(NamedTuple):
    """Groups that may join, and the evidence of each, written in place.

    Attributes
    ----------
    counts : (group, level)
    evidence : (group, variable), g of those.
    room : (group, variable + 1), from each variable on, the most that the group can add to the gain
        of joining another.
    prior : (level,); offsets : (variable + 1,)
    """

    counts: Floats
    evidence: Floats
    room: Floats
    prior: Floats
    offsets: Ints


@kernel
def weigh_groups(groups: Weighed, begin: int, end: int) -> None:
    """Bring evidence and room of the groups from `begin` to before `end` up to date.

    Since g is convex, a variable adds at most r(n_a) + r(n_b) to the gain of joining two groups,
    r(n) = ½ g(2n) − g(n), which is what it adds where their counts are equal.
    """
    counts, evidence, room, prior, offsets = groups
    for q in range(len(offsets) - 2, -1, -1):
        first, last = offsets[q], offsets[q + 1]
        empty = log_marginal(counts[begin], counts[begin], -1.0, prior, first, last)
        for group in range(begin, end):
            own = counts[group]
            evidence[group, q] = log_marginal(own, own, 0.0, prior, first, last) - empty
            twice = log_marginal(own, own, 1.0, prior, first, last) - empty
            room[group, q] = room[group, q + 1] + 0.5 * twice - evidence[group, q]


@kernel
def gains_above(
    groups: Weighed, one: int, others: Ints, start: Floats, floor: Floats, best_only: bool
) -> Floats:
    """Return start + g(n_a + n_b) − g(n_a) − g(n_b) of one group with others, where it counts.

    A pair is given up as soon as the variables that are left cannot bring it up to its floor any
    more.

    Parameters
    ----------
    others, start, floor : (other,)
    best_only : whether only the largest counts: then every one found is a floor for the next.

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
    for place, other in enumerate(others):
        least = max(best, floor[place])
        for q in range(variables):
            gain, left = gains[place], room[one, q] + room[other, q]
            if gain + left < least - ROUNDING * (1.0 + left + abs(gain)):
                gains[place] = -np.inf
                break
            first, last = offsets[q], offsets[q + 1]
            joint = log_marginal(counts[one], counts[other], 1.0, prior, first, last)
            gains[place] += joint - empty[q] - evidence[one, q] - evidence[other, q]
        if best_only:
            best = max(best, gains[place])
    return gains


@kernel
def log_group(counts: Floats, more: Floats, sign: float, prior: Floats, offsets: Ints) -> float:
    """Return g(counts + sign · more), without what only the prior decides."""
    value = 0.0
    for q in range(len(offsets) - 1):
        value += log_marginal(counts, more, sign, prior, offsets[q], offsets[q + 1])
    return value


class Blocks(NamedTuple):
    """What is grouped, and the prior of a group's profile.

    Attributes
    ----------
    counts : (block, level)
    silo : (block,), numbered without gaps.
    alone : (block,), g of each by itself.
    prior : (level,); offsets : (variable + 1,)
    log_join_odds : what each join adds to the log prior of a grouping.
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
    evidence : (group,), g of those, without what only the prior decides.
    members : (group,), blocks in each.
    held : (group, silo), whether one of them is of the silo.
    contents : (group,), counts up whenever a block comes or goes.
    gains : (block, group), g(n + n_b) − g(n), n the group's counts without the block.
    known : (block, group), the contents of the group of which that is the gain.
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
    """Sample groupings from `start`, (block,); count those that put two into one: (block, block).

    A grouping's probability is proportional to the product over its groups of Γ(blocks in it) and
    their evidence, times the odds of each join; no group has two blocks of one silo. A sweep draws
    the group of each block given all others', by one uniform number; then two blocks of every silo
    that has two may exchange their groups. Work grows with blocks times occupied groups.
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
    """Sum the counts of every group: sums that are only added to and taken from lose digits."""
    state.counts[:] = 0.0
    for block in range(len(state.group)):
        state.counts[state.group[block]] += blocks.counts[block]
    for group in range(state.group.max() + 1):
        weigh(blocks, state, group)


@kernel
def weigh(blocks: Blocks, state: Grouping, group: int) -> None:
    """Bring the evidence of a group up to date."""
    counts = state.counts[group]
    state.evidence[group] = log_group(counts, counts, 0.0, blocks.prior, blocks.offsets)


@kernel
def draw_group(blocks: Blocks, state: Grouping, block: int, rng: Rng) -> None:
    """Draw the group of one block given all others': an occupied one, or one of its own."""
    own = state.group[block]
    lonely = state.members[own] == 1
    choices = np.empty(len(state.group) + 1, dtype=np.int64)
    masses = np.empty(len(state.group) + 1)
    n, empty, group, seen = 0, -1, 0, 0
    while seen < len(state.group):  # the groups behind the last block are empty
        seen += state.members[group]
        if state.members[group] == 0:
            empty = group if empty < 0 else empty
        elif not state.held[group, blocks.silo[block]]:
            choices[n] = group
            n += 1
        group += 1
    empty = group if empty < 0 else empty
    choices[n] = own
    n += 1
    for place in range(n):
        group = choices[place]
        others = state.members[group] - (group == own)
        # alone in its group: odds 1, like an empty group, and no join
        odds = -blocks.log_join_odds if others == 0 else math.log(others)
        masses[place] = find_gain(blocks, state, block, group) + odds
    if not lonely:
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
    if choices[chosen] != own:
        move(blocks, state, block, choices[chosen])
        weigh(blocks, state, own)
        weigh(blocks, state, choices[chosen])


@kernel
def find_gain(blocks: Blocks, state: Grouping, block: int, group: int) -> float:
    """Return the gain of a block with a group, looked up if the group is as it was."""
    if state.known[block, group] != state.contents[group]:
        sign = -1.0 if state.group[block] == group else 1.0
        counts, own = state.counts[group], blocks.counts[block]
        changed = log_group(counts, own, sign, blocks.prior, blocks.offsets)
        state.gains[block, group] = sign * (changed - state.evidence[group])
        state.known[block, group] = state.contents[group]
    return state.gains[block, group]


@kernel
def exchange(blocks: Blocks, state: Grouping, silo: int, rng: Rng) -> None:
    """Draw which of two blocks of one silo is in which of their groups.

    One at a time they could change places only by way of a group of their own. The odds of a
    change are the ratio of the evidence, which a logistic threshold draws; Metropolis would
    always exchange equal blocks, and two silos doing so in each sweep come back to the start.
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
    one, other = its_blocks[a], its_blocks[b]
    own, to = state.group[one], state.group[other]
    shift = blocks.counts[other] - blocks.counts[one]
    rise = log_group(state.counts[own], shift, 1.0, blocks.prior, blocks.offsets)
    rise += log_group(state.counts[to], shift, -1.0, blocks.prior, blocks.offsets)
    if rise - state.evidence[own] - state.evidence[to] > rng.logistic(0.0, 1.0):
        move(blocks, state, one, to)
        move(blocks, state, other, own)
        state.held[to, silo] = True  # the silo has left neither
        weigh(blocks, state, own)
        weigh(blocks, state, to)


@kernel
def move(blocks: Blocks, state: Grouping, block: int, to: int) -> None:
    """Move a block into another group; the groups' evidence is left to the caller."""
    own, silo = state.group[block], blocks.silo[block]
    state.group[block] = to
    state.members[own] -= 1
    state.members[to] += 1
    state.held[own, silo] = False
    state.held[to, silo] = True
    state.counts[to] += blocks.counts[block]
    state.counts[own] -= blocks.counts[block]
    if state.members[own] == 0:
        state.counts[own] = 0.0
    for group in (own, to):
        # its gains are with the other blocks of a group: its own moves leave them as they are
        current = state.known[block, group] == state.contents[group]
        state.contents[group] += 1
        if current:
            state.known[block, group] = state.contents[group]
