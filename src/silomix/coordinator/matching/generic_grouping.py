"""Groups scored and sampled by their evidence, for families that have no kernel of their own.

The same as `silomix.kernels.grouping`, which is for categories, with the family's evidence in NumPy
calls over all groups at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import NamedTuple

import numpy as np

from silomix.kernels.arrays import Floats, Ints, Rng

# ln p of sums (..., statistic), variable by variable: (..., variable)
Evidence = Callable[[Floats], Floats]


class Weighed(NamedTuple):
    """Groups that may join, and the evidence of each, written in place.

    Attributes
    ----------
    counts : (group, statistic); evidence : (group, variable)
    """

    counts: Floats
    evidence: Floats
    score: Evidence


def weigh_groups(groups: Weighed, begin: int, end: int) -> None:
    """Bring the evidence of the groups from `begin` to before `end` up to date."""
    groups.evidence[begin:end] = groups.score(groups.counts[begin:end])


def gains_above(
    groups: Weighed, one: int, others: Ints, start: Floats, floor: Floats, *_: bool
) -> Floats:
    """Return start + the gain of joining one group with others; −inf below the floor: (other,)."""
    joint = groups.score(groups.counts[one] + groups.counts[others])
    apart = groups.evidence[one] + groups.evidence[others]
    gains = start + (joint - apart).sum(axis=1)
    return np.where(gains < floor, -np.inf, gains)


class Blocks(NamedTuple):
    """What is grouped.

    Attributes
    ----------
    counts : (block, statistic); silo : (block,)
    log_join_odds : what each join adds to the log prior of a grouping.
    """

    counts: Floats
    silo: Ints
    score: Evidence
    log_join_odds: float


def sample_groupings(blocks: Blocks, start: Ints, burn_in: int, sweeps: int, rng: Rng) -> Ints:
    """Sample groupings from `start`, (block,); count those that put two into one: (block, block).

    As `silomix.kernels.grouping.sample_groupings`: the groups of blocks one by one, then two blocks
    of every silo that has two may change places.
    """
    state = _State(blocks, start.copy())
    together = np.zeros((len(start), len(start)), dtype=np.int64)
    of_silo = [np.flatnonzero(blocks.silo == silo) for silo in np.unique(blocks.silo)]
    for sweep in range(burn_in + sweeps):
        for block in range(len(start)):
            state.draw_group(block, rng)
        for own in of_silo:
            if len(own) > 1:
                one, other = rng.choice(own, 2, replace=False)
                state.exchange(one, other, rng)
        if sweep >= burn_in:
            together += state.group[:, None] == state.group
    return together


class _State:
    """A grouping, and the evidence of every set of blocks that was ever looked at.

    A chain that has settled looks at the same few sets again and again.
    """

    def __init__(self, blocks: Blocks, group: Ints) -> None:
        self.blocks, self.group, self.silo = blocks, group, blocks.silo.tolist()
        # the blocks of each group, as many groups as blocks, most of them empty
        self.sets = [frozenset(np.flatnonzero(group == g).tolist()) for g in range(len(group))]
        self._known: dict[frozenset[int], float] = {frozenset(): 0.0}

    def evidence(self, sets: list[frozenset[int]]) -> list[float]:
        """Return ln p of what each set of blocks adds up to."""
        new = [each for each in set(sets) if each not in self._known]
        if new:
            sums = np.array([self.blocks.counts[sorted(each)].sum(axis=0) for each in new])
            values = self.blocks.score(sums).sum(axis=1)
            self._known |= dict(zip(new, values.tolist(), strict=True))
        return [self._known[each] for each in sets]

    def draw_group(self, block: int, rng: Rng) -> None:
        """Draw the group of one block given all others': one without its silo, or its own."""
        own, silo = frozenset([block]), self.silo[block]
        self.sets[self.group[block]] -= own
        open_ = [
            group
            for group, members in enumerate(self.sets)
            if members and all(self.silo[other] != silo for other in members)
        ]
        joint = self.evidence([own, *(self.sets[group] | own for group in open_)])
        apart = self.evidence([frozenset(), *(self.sets[group] for group in open_)])
        odds = [-self.blocks.log_join_odds, *(np.log(len(self.sets[group])) for group in open_)]
        masses = np.array(joint) - apart + odds
        shares = np.cumsum(np.exp(masses - masses.max()))
        place = int((shares <= rng.random() * shares[-1]).sum())
        self._put(block, self.sets.index(frozenset()) if place == 0 else open_[place - 1])

    def exchange(self, one: int, other: int, rng: Rng) -> None:
        """Draw which of two blocks of one silo is in which of their groups."""
        here, there = self.sets[self.group[one]], self.sets[self.group[other]]
        changed = (here - {one}) | {other}, (there - {other}) | {one}
        now, then = sum(self.evidence([here, there])), sum(self.evidence([*changed]))
        if then - now > rng.logistic():
            groups = self.group[one], self.group[other]
            for block, (old, new) in zip((one, other), permutations(groups), strict=True):
                self.sets[old] -= {block}
                self._put(block, new)

    def _put(self, block: int, group: int) -> None:
        self.group[block] = group
        self.sets[group] |= {block}
