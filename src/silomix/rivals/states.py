"""A grouping of blocks that a sampler changes in place, with the gains it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.matching.profile import Profile


class Blocks(NamedTuple):
    """What moves as one.

    Attributes
    ----------
    counts : (block, level)
    alone : (block,), evidence of each block by itself.
    """

    counts: NDArray[np.float64]
    alone: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class State:
    """A grouping of the blocks, written in place; there are as many groups as blocks, many empty.

    Attributes
    ----------
    group : (block,)
    counts : (group, level)
    evidence : (group,)
    members : (group,), blocks in each.
    gains : (block, group), g(n + n_b) − g(n), n the group's counts without the block.
    known : (block, group), whether that gain is up to date.
    """

    group: NDArray[np.int64]
    counts: NDArray[np.float64]
    evidence: NDArray[np.float64]
    members: NDArray[np.int64]
    gains: NDArray[np.float64]
    known: NDArray[np.bool_]


def begin(blocks: Blocks, start: NDArray[np.int64], profile: Profile) -> State:
    """Return the state of the grouping `start`: (block,)."""
    n_blocks, levels = blocks.counts.shape
    counts = np.zeros((n_blocks, levels))
    np.add.at(counts, start, blocks.counts)
    return State(
        group=start.copy(),
        counts=counts,
        evidence=profile.evidence(counts),
        members=np.bincount(start, minlength=n_blocks),
        gains=np.empty((n_blocks, n_blocks)),
        known=np.zeros((n_blocks, n_blocks), dtype=np.bool_),
    )


def refresh(
    state: State, blocks: Blocks, block: int, others: NDArray[np.int64], profile: Profile
) -> None:
    """Bring the gains of a block with its own group and some others up to date.

    A block's own moves leave its gains as they are: they are with the *other* blocks of a
    group.
    """
    choices = np.append(others, state.group[block])
    old = choices[~state.known[block, choices]]
    if len(old):
        inside = old == state.group[block]
        sign = np.where(inside, -1.0, 1.0)
        changed = profile.evidence(state.counts[old] + sign[:, None] * blocks.counts[block])
        state.gains[block, old] = sign * (changed - state.evidence[old])
        state.known[block, old] = True


def move(state: State, blocks: Blocks, block: int, to: int, profile: Profile) -> None:
    """Move a block into another group, in place."""
    both = np.array([state.group[block], to])
    state.group[block] = to
    state.members[both] += np.array([-1, 1])
    for group in both:
        state.counts[group] = blocks.counts[state.group == group].sum(axis=0)
    state.evidence[both] = profile.evidence(state.counts[both])
    current = state.known[block, both]
    state.known[:, both] = False
    state.known[block, both] = current
