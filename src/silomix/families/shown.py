"""How a family's parameters are named, compared and checked."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from silomix.families.likelihood import Likelihood

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Bools, Floats, Reals


class Shown(Likelihood):
    """Names, units, contrasts and distances of parameters; what is wrong with others'."""

    @abstractmethod
    def names(self) -> list[tuple[str, str]]:
        """Return the variable and what it is called of each parameter."""

    def shares(self) -> Bools:
        """Say which parameters are probabilities, to be read in per cent, none: (parameter,)."""
        return np.zeros(self.parameters.sum(), dtype=np.bool_)

    def describe(self, parameters: Reals) -> Reals:
        """Return the parameters in the units of the table, or of its logarithms: as they came."""
        return parameters

    def whole(self, parameters: Reals, weights: Reals) -> Floats:
        """Return what clusters are compared with: each parameter averaged over all rows.

        Parameters
        ----------
        parameters : (draw, cluster, parameter); weights : (draw, cluster)

        Returns
        -------
        (draw, parameter)
        """
        return np.einsum("tc,tcp->tp", weights, parameters, dtype=np.float64)

    @abstractmethod
    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Return how far a cluster is from the whole, comparable between variables.

        Both are (..., parameter), and so is the result.
        """

    @abstractmethod
    def coordinates(self, parameters: Reals) -> Reals:
        """Return the parameters where distances mean something: (..., parameter)."""

    @abstractmethod
    def back(self, coordinates: Floats) -> Floats:
        """Return the parameters at, or nearest to, these coordinates."""

    def places(self, moments: Floats) -> Floats:
        """Return where clusters with these moments are, for distances: their coordinates."""
        return np.asarray(self.coordinates(self.from_moments(moments)), dtype=np.float64)

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Return about the log of Bhattacharyya's coefficient of two clusters: (..., variable).

        An eighth of the symmetric Kullback–Leibler divergence, to the second order.
        """
        rise = (self.natural(one) - self.natural(other)) * (self.moments(one) - self.moments(other))
        starts = np.cumsum(self.statistics) - self.statistics
        return np.asarray(-0.125 * np.add.reduceat(rise, starts, axis=-1))

    def overlap(self, one: Array, other: Array) -> Floats:
        """Return how many cells two clusters of rows may have in common: (..., variable)."""
        apart = self.log_affinity(self.typical(one), self.typical(other))
        rows = np.minimum(self.known(one), self.known(other))
        return np.asarray(rows * np.exp(self.together(apart)))

    def typical(self, statistics: Array) -> Floats:
        """Return the parameters that rows with these sums have by themselves, for comparison."""
        return self.from_moments(self.means(statistics)[0])

    @abstractmethod
    def problems(self, parameters: Reals, *, together: bool = True) -> str:
        """Say what is wrong with parameters from elsewhere, as the end of a sentence; or "".

        Parameters
        ----------
        together : whether the parameters of a variable belong together, as those of a draw do.
        """

    @abstractmethod
    def mean_problems(self, mean: Floats) -> str:
        """Say what is wrong with mean statistics from elsewhere, likewise."""
