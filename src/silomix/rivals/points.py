"""Rows as cells by level, and the Dirichlet prior of level probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.model.families.categorical import one_hot
from silomix.model.families.dirichlet import draw_levels, log_evidence

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class Levels:
    """The level columns of a schema, with a symmetric Dirichlet prior for each variable.

    Attributes
    ----------
    offsets : (variable + 1,), where each variable's levels start.
    beta : concentration of each level; None is 1/K_q, so that each variable's sum to one.
    """

    offsets: Ints
    beta: float | None = None

    @cached_property
    def n_levels(self) -> Ints:
        """K_q, the levels of each variable: (variable,)."""
        return np.diff(self.offsets)

    @cached_property
    def concentration(self) -> Floats:
        """Concentration of each level: (level,)."""
        if self.beta is not None:
            return np.full(int(self.offsets[-1]), self.beta)
        return self.spread(1.0 / self.n_levels)

    def spread(self, by_variable: Floats) -> Floats:
        """Repeat (..., variable) for each level of the variable: (..., level)."""
        return np.repeat(by_variable, self.n_levels, axis=-1)

    def totals(self, by_level: Floats) -> Floats:
        """Add up the levels of each variable, for each of its levels: (..., level)."""
        return self.spread(np.add.reduceat(by_level, self.offsets[:-1], axis=-1))

    def evidence(self, counts: Floats) -> Floats:
        """Return g = ln p(cells), probabilities integrated out: (...,) from (..., level)."""
        return log_evidence(counts, self.offsets, self.concentration)

    def draw(self, counts: Floats, draws: int, rng: Generator) -> Floats:
        """Draw level probabilities given level counts: (draw, cluster, level)."""
        return draw_levels(self.concentration + counts, self.offsets, rng, draws)


class Points(NamedTuple):
    """What is clustered.

    Attributes
    ----------
    cells : (point, level), one for the level a point has; a missing cell is in no column.
    counts : (point,), how many rows each stands for.
    """

    cells: Floats
    counts: Ints
    levels: Levels


def points_of(codes: NDArray[np.integer], levels: Levels, counts: Ints | None = None) -> Points:
    """Return rows of codes, (row, variable), as points; each stands for itself without counts."""
    cells = one_hot(codes.astype(np.uint32), levels.offsets)
    return Points(cells, np.ones(len(codes), np.int64) if counts is None else counts, levels)


def sum_by(groups: Ints, values: NDArray[np.floating], n_groups: int) -> Floats:
    """Add up values, (item, ...), by the group of each item, (item,): (group, ...)."""
    total = np.zeros((n_groups, *values.shape[1:]))
    np.add.at(total, groups, values)
    return total


def largest_first(groups: Ints, sizes: Floats) -> Ints:
    """Return groups 0, 1, … numbered anew by decreasing sums of sizes, equal ones as before."""
    order = np.argsort(-np.bincount(groups, weights=sizes), kind="stable")
    return np.argsort(order)[groups]
