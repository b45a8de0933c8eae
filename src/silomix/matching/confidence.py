"""How sure the grouping is: sample groupings from their evidence, count who shares a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.matching.greedy import sum_blocks
from silomix.matching.records import by_appearance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.matching.profile import Profile
    from silomix.matching.records import LocalClusters

MOST_LOCAL_CLUSTERS = 2000
"""With more, the confidence is not computed."""

BURN_IN = 50
SWEEPS = 250
"""Sweeps dropped, and sweeps counted."""


class Blocks(NamedTuple):
    """What moves as one: the clusters of one silo that share a group.

    Attributes
    ----------
    counts : (block, level), effective counts, discounted for drift.
    alone : (block,), evidence of each block by itself.
    silo : (block,)
    of_silo : for each silo, its blocks.
    """

    counts: NDArray[np.float64]
    alone: NDArray[np.float64]
    silo: NDArray[np.int64]
    of_silo: list[NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class State:
    """A grouping of the blocks, written in place; there are as many groups as blocks, many empty.

    Attributes
    ----------
    group : (block,)
    counts : (group, level)
    evidence : (group,)
    members : (group,), blocks in each.
    held : (group, silo), whether one of them is of the silo.
    gains : (block, group), g(n + n_b) − g(n), n the group's counts without the block.
    known : (block, group), whether that gain is up to date.
    """

    group: NDArray[np.int64]
    counts: NDArray[np.float64]
    evidence: NDArray[np.float64]
    members: NDArray[np.int64]
    held: NDArray[np.bool_]
    gains: NDArray[np.float64]
    known: NDArray[np.bool_]


def co_occurrence(
    clusters: LocalClusters,
    groups: NDArray[np.int64],
    profile: Profile,
    rng: np.random.Generator,
    sweeps: int = SWEEPS,
) -> NDArray[np.float64]:
    """Return how often each two local clusters share a group, over sampled groupings.

    Block Gibbs over the local clusters (the merge step of SNOB: Zuanetti et al., 2019), which
    starts from `groups`. A grouping's probability is proportional to the product over its
    groups of Γ(blocks in it) and their profile evidence, as in `evidence_groups`; no group has
    two blocks of one silo. Clusters of one silo that share a group in `groups` were put
    there on purpose and stay together.

    Parameters
    ----------
    clusters : all silos' clusters.
    groups : (local,)
    profile : how counts become evidence.
    rng : the chain's randomness.
    sweeps : how many to count, after the burn-in.

    Returns
    -------
    (local, local), ones on the diagonal.
    """
    order = clusters.canonical_order()
    start = by_appearance(groups[order])
    silo, group, own = sum_blocks(clusters, order, start)
    block = by_appearance(clusters.silo[order] * (1 + start.max()) + start)
    silo = by_appearance(silo)
    counts = profile.discount(own)
    of_silo = [np.flatnonzero(silo == s) for s in range(1 + silo.max())]
    blocks = Blocks(counts, profile.evidence(counts), silo, of_silo)
    together = sample_groupings(blocks, group, profile, rng, sweeps)
    of_local = np.empty(len(order), dtype=np.int64)
    of_local[order] = block
    return together[np.ix_(of_local, of_local)]


def sample_groupings(
    blocks: Blocks,
    start: NDArray[np.int64],
    profile: Profile,
    rng: np.random.Generator,
    sweeps: int,
) -> NDArray[np.float64]:
    """Run the sampler and return how often two blocks share a group: (block, block)."""
    state = begin(blocks, start, profile)
    n_blocks = len(start)
    together = np.zeros((n_blocks, n_blocks), dtype=np.int64)
    for sweep in range(BURN_IN + sweeps):
        for block, uniform in enumerate(rng.random(n_blocks)):
            draw_group(state, blocks, block, uniform, profile)
        for of_silo in blocks.of_silo:
            if len(of_silo) > 1:
                one, other = rng.choice(of_silo, 2, replace=False)
                exchange(state, blocks, (one, other), rng.logistic(), profile)
        if sweep >= BURN_IN:
            together += state.group[:, None] == state.group
    return together / sweeps


def begin(blocks: Blocks, start: NDArray[np.int64], profile: Profile) -> State:
    """Return the state of the grouping `start`: (block,)."""
    n_blocks, levels = blocks.counts.shape
    counts = np.zeros((n_blocks, levels))
    np.add.at(counts, start, blocks.counts)
    held = np.zeros((n_blocks, 1 + int(blocks.silo.max())), dtype=np.bool_)
    held[start, blocks.silo] = True
    return State(
        group=start.copy(),
        counts=counts,
        evidence=profile.evidence(counts),
        members=np.bincount(start, minlength=n_blocks),
        held=held,
        gains=np.empty((n_blocks, n_blocks)),
        known=np.zeros((n_blocks, n_blocks), dtype=np.bool_),
    )


def draw_group(state: State, blocks: Blocks, block: int, uniform: float, profile: Profile) -> None:
    """Draw the group of one block given all others': an occupied one, or one of its own."""
    own = state.group[block]
    occupied = np.flatnonzero(state.members)
    others = occupied[~state.held[occupied, blocks.silo[block]]]
    refresh(state, blocks, block, others, profile)
    lonely = state.members[own] == 1
    empty = own if lonely else np.argmin(state.members)
    choices = np.concatenate((others, (own, empty)))
    scores = state.gains[block, choices]
    without = state.members[choices] - (choices == own)
    scores[:-1] += np.log(np.maximum(without[:-1], 1))  # alone: odds 1, like an empty group
    scores[-1] = -np.inf if lonely else blocks.alone[block]
    scores[without == 0] -= profile.log_join_odds  # a group of its own is no join
    masses = np.exp(scores - scores.max()).cumsum()
    to = int(choices[masses.searchsorted(uniform * masses[-1], side="right")])
    if to != own:
        move(state, blocks, block, to, profile)


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


def exchange(
    state: State,
    blocks: Blocks,
    pair: tuple[int, int],
    threshold: float,
    profile: Profile,
) -> None:
    """Draw which of two blocks of one silo is in which of their groups.

    One at a time they could change places only by way of a group of their own. The odds of a
    change are the ratio of the evidence, which a logistic threshold draws; Metropolis would
    always exchange equal blocks, and two silos doing so in each sweep come back to the start.
    """
    one, other = pair
    groups = state.group[[one, other]]
    shift = blocks.counts[other] - blocks.counts[one]
    changed = profile.evidence(state.counts[groups] + np.stack([shift, -shift]))
    if changed.sum() - state.evidence[groups].sum() > threshold:
        move(state, blocks, one, groups[1], profile)
        move(state, blocks, other, groups[0], profile)


def move(state: State, blocks: Blocks, block: int, to: int, profile: Profile) -> None:
    """Move a block into another group, in place."""
    both = np.array([state.group[block], to])
    silo = blocks.silo[block]
    state.group[block] = to
    state.members[both] += np.array([-1, 1])
    for group in both:
        inside = state.group == group
        state.counts[group] = blocks.counts[inside].sum(axis=0)
        state.held[group, silo] = (blocks.silo[inside] == silo).any()
    state.evidence[both] = profile.evidence(state.counts[both])
    current = state.known[block, both]
    state.known[:, both] = False
    state.known[block, both] = current
