"""Cells as level columns, and the evidence of level counts when variables differ in prior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from silomix.families.dirichlet import draw_levels, log_evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Levels:
    """The level columns of a schema, with a symmetric Dirichlet prior for each variable.

    Attributes
    ----------
    offsets : (variable + 1,), where each variable's levels start.
    beta : concentration of each level; None is 1/K_q, so that each variable's sum to one.
    """

    offsets: NDArray[np.int64]
    beta: float | None = None

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """K_q, the levels of each variable: (variable,)."""
        return np.diff(self.offsets)

    @cached_property
    def concentration(self) -> NDArray[np.float64]:
        """Concentration of each level: (level,)."""
        each = 1.0 / self.sizes if self.beta is None else np.full(len(self.sizes), self.beta)
        return self.spread(each)

    @cached_property
    def _alike(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64], float]]:
        """Variables with equally many levels: their columns, offsets and concentration."""
        found = []
        for size in np.unique(self.sizes):
            variables = np.flatnonzero(self.sizes == size)
            columns = (self.offsets[variables][:, None] + np.arange(size)).ravel()
            offsets = np.arange(len(variables) + 1) * size
            found.append((columns, offsets, float(self.concentration[columns[0]])))
        return found

    def spread(self, by_variable: NDArray[np.float64]) -> NDArray[np.float64]:
        """Repeat (..., variable) for each level of the variable: (..., level)."""
        return np.repeat(by_variable, self.sizes, axis=-1)

    def totals(self, by_level: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up the levels of each variable: (..., variable) from (..., level)."""
        return np.asarray(np.add.reduceat(by_level, self.offsets[:-1], axis=-1))

    def evidence(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log p(cells), the level probabilities integrated out: (...,) from (..., level)."""
        parts = [log_evidence(counts[..., at], offsets, beta) for at, offsets, beta in self._alike]
        return np.asarray(sum(parts))

    def draw(
        self, counts: NDArray[np.float64], draws: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Draw level probabilities given level counts: (draw, cluster, level)."""
        return draw_levels(self.concentration + counts, self.offsets, rng, draws)
