"""What a family says of rows given parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from silomix.families.columns import SMALLEST

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Bools, Floats, Ints, Reals, Rng
    from silomix.model.schema import Variable


@dataclass(frozen=True)
class Likelihood(ABC):
    """The density of a block of variables, and the sums that say all of their rows.

    Attributes
    ----------
    variables : in the order of the columns.
    always_hides : whether `hides` is true of every row, so that no sums are known without
        parameters.
    """

    variables: tuple[Variable, ...]
    always_hides: ClassVar[bool] = False

    @property
    @abstractmethod
    def statistics(self) -> Ints:
        """How many statistics each variable has: (variable,)."""

    @property
    def parameters(self) -> Ints:
        """How many parameters each variable has, as many as statistics: (variable,)."""
        return self.statistics

    @abstractmethod
    def features(self, cells: Array) -> Floats:
        """Return T(x), (row, statistic), of cells (row, variable); zeros of a missing cell."""

    def log_base(self, cells: Array) -> Floats:
        """Return what log p(x) has beside T · η, nothing: (row,)."""
        return np.zeros(len(cells))

    @abstractmethod
    def natural(self, parameters: Reals) -> Floats:
        """Return η: (..., statistic)."""

    def hides(self, cells: Array) -> Bools:
        """Tell which rows have a density that is no T · η, none or all: (row,).

        Of such rows `features` is what a chain begins with, or zero, and the next three methods
        are asked instead.
        """
        return np.full(len(cells), self.always_hides)

    def log_density(self, cells: Array, parameters: Floats) -> Floats:
        """Return log p(x) less log_base, what is hidden summed out: (row, cluster)."""
        return np.asarray(self.features(cells) @ self.natural(parameters).T)

    def complete(self, cells: Array, parameters: Floats, labels: Ints, rng: Rng) -> Floats:
        """Draw T(x) given what is seen of the rows, and their labels: (row, statistic)."""
        return self.features(cells)

    def expected_features(self, cells: Array, parameters: Floats) -> Floats:
        """Return E T(x) given what is seen of the rows, by cluster: (row, cluster, statistic)."""
        return np.repeat(self.features(cells)[:, None], len(parameters), axis=1)

    @abstractmethod
    def moments(self, parameters: Reals) -> Reals:
        """Return E T(x): (..., statistic)."""

    @abstractmethod
    def from_moments(self, moments: Floats) -> Floats:
        """Return the parameters with these moments."""

    def inside(self, parameters: Floats) -> Floats:
        """Return parameters that are not at the edge of what they can be: none is zero."""
        return np.maximum(parameters, SMALLEST)

    @abstractmethod
    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Return the gradient, in the parameters, of the log-likelihood of rows with these sums."""

    @abstractmethod
    def known(self, statistics: Array) -> Floats:
        """Return how many rows have a cell: (..., variable)."""

    @abstractmethod
    def means(self, statistics: Floats) -> tuple[Floats, Floats]:
        """Return the mean statistics of a row, and how many rows have each: (..., variable)."""

    def valid(self, statistics: Floats) -> Floats:
        """Return sums that rows can have, near those that moments gave: none is below zero."""
        return np.maximum(statistics, 0.0)

    @property
    def leads(self) -> Bools:
        """Which variables have a κ of their own, all of them: (variable,).

        One that has none differs between silos together with the last before it that does.
        """
        return np.ones(len(self.variables), dtype=np.bool_)

    def together(self, values: Floats) -> Floats:
        """Return log probabilities summed over the variables that share a κ: (..., variable)."""
        sums = np.add.reduceat(values, np.flatnonzero(self.leads), axis=-1)
        return sums[..., np.cumsum(self.leads) - 1]
