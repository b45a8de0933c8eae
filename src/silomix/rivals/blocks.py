"""Sample which blocks of rows belong together, blocks never splitting.

The second stage of SNOB (Zuanetti et al., 2019) and SIGN (Ni et al., 2020), and the master's step
of DisCGS (Khoufache et al., 2024), for categorical data: a block's cells by level are all that is
needed. With block b taken out, of m rows and counts n_b, it joins cluster j, of N_j rows, or opens
one with odds

    join: A(N_j, m) exp[g(n_j + n_b) − g(n_j)],    open: B(m, k) exp[g(n_b)],

g the Dirichlet-multinomial evidence, k the number of clusters, A and B those of the prior of
partitions (`silomix.rivals.odds`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import SettingsError
from silomix.matching.local_clusters import by_appearance
from silomix.rivals.states import Blocks, begin, move, refresh

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.matching.profile import Profile
    from silomix.rivals.odds import Odds
    from silomix.rivals.states import State


@dataclass(frozen=True)
class Sweeps:
    """How long to sample.

    Attributes
    ----------
    burn_in, kept : sweeps dropped, and sweeps kept.
    budget : the most blocks that are sampled at once. With more, they are first shuffled into
        parts of so many, each part's clusters become blocks, and so on: the steps of SIGN.

    Examples
    --------
    >>> silomix.rivals.Sweeps(kept=100)
    Sweeps(burn_in=50, kept=100, budget=2000)
    """

    burn_in: int = 50
    kept: int = 200
    budget: int = 2000

    def __post_init__(self) -> None:
        for name, least in (("burn_in", 0), ("kept", 1), ("budget", 2)):
            value = getattr(self, name)
            if value < least:
                raise SettingsError(f"{name} is {value}; it must be at least {least}")


@dataclass(frozen=True, eq=False)
class Model:
    """The prior of partitions, and how counts become evidence."""

    odds: Odds
    profile: Profile


def group_blocks(
    counts: NDArray[np.float64],
    sizes: NDArray[np.float64],
    model: Model,
    sweeps: Sweeps,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], int]:
    """Group blocks into clusters, in as many steps as the budget asks for.

    Parameters
    ----------
    counts : (block, level); sizes : (block,), rows.

    Returns
    -------
    groups : (block,), numbered as they appear.
    steps : how many it took.
    """
    groups, steps = np.arange(len(sizes)), 1
    while 1 + groups.max() > sweeps.budget:
        blocks = 1 + int(groups.max())
        frozen = np.empty(blocks, dtype=np.int64)
        parts = -(-blocks // sweeps.budget)
        summed = sum_up(counts, sizes, groups)
        for part in np.array_split(rng.permutation(blocks), parts):
            found = freeze(*summed, part, model, sweeps, rng)
            frozen[part] = part[found]
        merged = by_appearance(frozen)[groups]
        if merged.max() == groups.max():
            break
        groups, steps = merged, steps + 1
    everyone = np.arange(1 + groups.max())
    last = freeze(*sum_up(counts, sizes, groups), everyone, model, sweeps, rng)
    return by_appearance(last[groups]), steps


def sum_up(
    counts: NDArray[np.float64], sizes: NDArray[np.float64], groups: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the counts, (group, level), and rows, (group,), of groups of blocks."""
    total = np.zeros((1 + int(groups.max()), counts.shape[1]))
    np.add.at(total, groups, counts)
    rows = np.zeros(len(total))
    np.add.at(rows, groups, sizes)
    return total, rows


def freeze(
    counts: NDArray[np.float64],
    sizes: NDArray[np.float64],
    chosen: NDArray[np.int64],
    model: Model,
    sweeps: Sweeps,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Sample the chosen blocks' grouping and return one of the draws: (chosen,)."""
    draws = sample_groups(counts[chosen], sizes[chosen], model, sweeps, rng)
    return draws[least_squares(draws, sizes[chosen])]


def least_squares(draws: NDArray[np.int64], sizes: NDArray[np.float64]) -> int:
    """Return the draw nearest to how often rows are together, in squared distance (Dahl, 2006).

    Parameters
    ----------
    draws : (draw, block), groups; sizes : (block,), rows, all pairs of which count.
    """
    together = np.zeros((len(sizes), len(sizes)))
    for groups in draws:
        together += groups[:, None] == groups
    # (1[same] − P)² less what all draws share
    pairs = np.outer(sizes, sizes) * (1 - 2 * together / len(draws))
    losses = [float(pairs[groups[:, None] == groups].sum()) for groups in draws]
    return int(np.argmin(losses))


def sample_groups(
    counts: NDArray[np.float64],
    sizes: NDArray[np.float64],
    model: Model,
    sweeps: Sweeps,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Run the Gibbs sampler over blocks: (draw, block), groups numbered as they appear."""
    chain = begin_chain(counts, sizes, model)
    draws = np.empty((sweeps.kept, len(sizes)), dtype=np.int64)
    for sweep in range(-sweeps.burn_in, sweeps.kept):
        for block, uniform in enumerate(rng.random(len(sizes))):
            to = draw_group(chain, block, uniform, model)
            move_block(chain, block, to, model)
        if sweep >= 0:
            draws[sweep] = by_appearance(chain.state.group)
    return draws


@dataclass(frozen=True, eq=False)
class Chain:
    """Blocks and their grouping, which is written in place.

    Attributes
    ----------
    blocks : what moves; sizes : (block,), rows of each.
    state : the grouping; rows : (group,), rows of each group.
    """

    blocks: Blocks
    sizes: NDArray[np.float64]
    state: State
    rows: NDArray[np.float64]


def begin_chain(counts: NDArray[np.float64], sizes: NDArray[np.float64], model: Model) -> Chain:
    """Return a chain that starts where the prior of partitions says."""
    n_blocks = len(sizes)
    start = np.arange(n_blocks) if model.odds.start == "apart" else np.zeros(n_blocks, np.int64)
    blocks = Blocks(counts, model.profile.evidence(counts))
    rows = np.zeros(n_blocks)
    np.add.at(rows, start, sizes)
    return Chain(blocks, sizes, begin(blocks, start, model.profile), rows)


def draw_group(chain: Chain, block: int, uniform: float, model: Model) -> int:
    """Draw the group of one block given all others': an occupied one, or an empty one."""
    state, size = chain.state, chain.sizes[block]
    own = state.group[block]
    occupied = np.flatnonzero(state.members)
    others = occupied[occupied != own]
    refresh(state, chain.blocks, block, others, model.profile)
    lonely = state.members[own] == 1
    joinable = others if lonely else np.append(others, own)
    without = chain.rows[joinable] - size * (joinable == own)
    empty = own if lonely else np.argmin(state.members)
    scores = np.append(
        model.odds.join(without, size) + state.gains[block, joinable],
        model.odds.open(size, len(joinable)) + chain.blocks.alone[block],
    )
    masses = np.exp(scores - scores.max()).cumsum()
    drawn = masses.searchsorted(uniform * masses[-1], side="right")
    return int(np.append(joinable, empty)[drawn])


def move_block(chain: Chain, block: int, to: int, model: Model) -> None:
    """Move a block into a group, in place; it may be its own."""
    own = chain.state.group[block]
    if to != own:
        move(chain.state, chain.blocks, block, to, model.profile)
        chain.rows[own] -= chain.sizes[block]
        chain.rows[to] += chain.sizes[block]
