"""The prior of a family's parameters, its posterior and evidence."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from silomix.families.likelihood import Likelihood

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.kernels.arrays import Array, Floats, Ints, Reals, Rng

# of χ: half of what is between the sides of a numerical difference
STEP = 1e-5


class Conjugate(Likelihood):
    """The conjugate prior: the posterior has the coordinates χ₀ + ΣT.

    Attributes
    ----------
    extra : how many conjugate coordinates each variable has beside its statistics.
    """

    extra: ClassVar[int] = 0

    @abstractmethod
    def prior(self) -> Floats:
        """Return χ₀ of the prior: (coordinate,)."""

    def share(self, silos: int) -> Self:
        """Return the family with the share of the prior that one of several silos takes: all."""
        return self

    @property
    def conjugates(self) -> Ints:
        """How many conjugate coordinates each variable has: (variable,)."""
        return self.statistics + self.extra

    def conjugate(self, statistics: Array) -> Array:
        """Return what rows with these sums add to χ, the sums themselves: (..., coordinate)."""
        return statistics

    @abstractmethod
    def log_normaliser(self, posterior: Floats) -> Floats:
        """Return F(χ) = ln ∫ exp(χ · η(θ)) h(θ) dθ, up to a constant: (..., variable)."""

    @abstractmethod
    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw parameters given χ: (..., parameter)."""

    @abstractmethod
    def fit(self, draws: Reals) -> Floats:
        """Return the sums of the rows that a posterior with such draws must have seen, by moments.

        Parameters
        ----------
        draws : (draw, cluster, parameter)

        Returns
        -------
        (cluster, statistic), maybe such as no rows have: see `valid`.
        """

    def log_evidence(self, statistics: Array, prior: Floats | None = None) -> Floats:
        """Return log p(cells) up to log_base, the parameters integrated out: (..., variable)."""
        base = self.prior() if prior is None else prior
        updated = self.log_normaliser(base + self.conjugate(statistics))
        return np.asarray(updated - self.log_normaliser(base))

    def expected_natural(self, statistics: Floats) -> Floats:
        """Return E η under the posterior given these sums, the slope of the evidence.

        By central differences; (..., statistic).
        """
        slopes = np.empty(statistics.shape)
        sizes = np.abs(statistics if self.extra else self.prior() + statistics)
        for column, size in enumerate(np.moveaxis(sizes, -1, 0)):
            step = STEP * np.where(size > 0, size, 1.0)
            sides = np.array([statistics, statistics], dtype=np.float64)
            sides[..., column] += [-step, step]
            low, high = self.log_evidence(sides).sum(axis=-1)
            slopes[..., column] = (high - low) / (2.0 * step)
        return slopes

    @abstractmethod
    def medians(self, posterior: Floats) -> Floats:
        """Return the medians of the parameters given χ: (..., parameter)."""

    @abstractmethod
    def log_prior(self, parameters: Floats) -> tuple[float, Floats | float, Floats]:
        """Return the log density of the prior, and its gradient.

        Returns
        -------
        constant : for each cluster; value : the rest, to be added up over all axes; by variable,
            (..., variable), where numbers can leave rounded.
        gradient : (..., parameter)
        """

    def unrelated(self, statistics: Floats, worth: Floats) -> Floats:
        """Return χ of the prior that clusters which differ seem to come from: (coordinate,).

        It is, for each variable, the most probable of `priors_near`.

        Parameters
        ----------
        statistics : (cluster, statistic); worth : (cluster,), how much each counts.
        """
        best, chosen = np.full(len(self.variables), -np.inf), self.prior()
        for tried, against in self.priors_near(statistics):
            value = self.together(worth @ self.log_evidence(statistics, tried)) - against
            better = value > best
            best = np.where(better, value, best)
            chosen = np.where(np.repeat(better, self.conjugates), tried, chosen)
        return chosen

    @abstractmethod
    def priors_near(self, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield priors χ that clusters may come from, and what speaks against each.

        Parameters
        ----------
        statistics : (cluster, statistic)
        """
