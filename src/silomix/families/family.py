"""What a kind of variable must know of itself, and how kinds stand side by side in one table.

A family is a block of variables of one kind, independent of each other within a cluster but for
those of a joint family, such as `gaussian_full`. Everything else in the package sees three flat
vectors of it:

statistics (..., T)
    T(x) summed over the rows of a cluster: level counts; or n, Σx and Σx². They add up over rows,
    silos and clusters, and are what leaves a silo.
parameters (..., P)
    Level probabilities; or mean and standard deviation. What is drawn, averaged and reported.
conjugate coordinates χ (..., H)
    Of a prior or posterior of the parameters: p(θ | χ) ∝ exp(χ · η(θ)) h(θ). The prior χ₀ is that
    of pseudo-observations, and rows add their statistics: the posterior is χ₀ + ΣT.

The families here are exponential families, log p(x | θ) = T(x) · η(θ) + log_base(x), with conjugate
priors. With F(χ) = ln ∫ exp(χ · η(θ)) h(θ) dθ, `log_normaliser`, the evidence of rows is
F(χ₀ + ΣT) − F(χ₀), and E η its gradient. Of most families χ has the columns of the statistics. A
normal family lists n twice, as its prior may be worth different numbers of rows for the mean and
for the spread: `conjugate` writes statistics so. `Product` joins blocks by concatenating their
columns; every study has one, even where all variables are of one kind.

Drift is a family's own matter too: how a silo's parameters vary around the shared ones at κ, which
at κ = ∞ they equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from silomix.kernels.dirichlet_multinomial import GRID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from silomix.families.release_rounding import Rounded, Said
    from silomix.kernels.arrays import Array, Bools, Floats, Ints, Reals, Rng
    from silomix.model.schema import Variable
    from silomix.study.policy import Policy

# of the sums, between the sides of a numerical difference
STEP = 1e-5
# of a parameter that must be above zero: draws kept in float32 may be exactly zero
SMALLEST = 1e-30


def by_variable(columns: Array, size: int) -> tuple[Array, ...]:
    """Return columns of `size` for each variable, by what they are: each (..., variable)."""
    return tuple(columns[..., place::size] for place in range(size))


def flat(*parts: Array) -> Floats:
    """Return parts (..., variable) as the columns of each variable in turn: (..., column)."""
    size, shape = len(parts), np.broadcast_shapes(*(part.shape for part in parts))
    columns = np.empty((*shape[:-1], shape[-1] * size))
    for place, part in enumerate(parts):
        columns[..., place::size] = part
    return columns


def split(columns: Array, size: int) -> Floats:
    """Return columns (..., column) by variable, which has `size` of them: (..., variable, own)."""
    return columns.astype(np.float64).reshape(*columns.shape[:-1], columns.shape[-1] // size, size)


def join(first: Sequence[Floats], others: Floats) -> Floats:
    """Return columns of numbers, each (..., variable), and of others, (..., variable, own)."""
    both = np.concatenate([np.stack(first, axis=-1), others], axis=-1)
    return both.reshape(*both.shape[:-2], both.shape[-2] * both.shape[-1])


def draw_places(logs: Floats, rng: Rng) -> Ints:
    """Draw places on the last axis by log probabilities, (..., place): (...,)."""
    reached = np.cumsum(np.exp(logs - logs.max(axis=-1, keepdims=True)), axis=-1)
    thresholds = rng.random(logs.shape[:-1]) * reached[..., -1]
    return np.asarray((reached <= thresholds[..., None]).sum(axis=-1))


@dataclass(frozen=True)
class Family(ABC):
    """A block of variables of one kind; the module's docstring says what its vectors are.

    Attributes
    ----------
    variables : in the order of the columns.
    always_hides : whether `hides` is true of every row, so that no sums are known without
        parameters.
    extra : how many conjugate coordinates each variable has beside its statistics.
    """

    variables: tuple[Variable, ...]
    always_hides: ClassVar[bool] = False
    extra: ClassVar[int] = 0

    @property
    @abstractmethod
    def statistics(self) -> Ints:
        """How many statistics each variable has: (variable,)."""

    @property
    def parameters(self) -> Ints:
        """How many parameters each variable has, as many as statistics: (variable,)."""
        return self.statistics

    @property
    def conjugates(self) -> Ints:
        """How many conjugate coordinates each variable has: (variable,)."""
        return self.statistics + self.extra

    @abstractmethod
    def names(self) -> list[tuple[str, str]]:
        """Return the variable and what it is called of each parameter."""

    def tells(self) -> Bools:
        """Say which parameters tell clusters apart, the first of each variable: (parameter,)."""
        return np.concatenate([np.arange(count) == 0 for count in self.parameters])

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

    def share(self, silos: int) -> Self:
        """Return the family with the share of the prior that one of several silos takes: all."""
        return self

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

    def places(self, moments: Floats) -> Floats:
        """Return where clusters with these moments are, for distances: their coordinates."""
        return np.asarray(self.coordinates(self.from_moments(moments)), dtype=np.float64)

    def inside(self, parameters: Floats) -> Floats:
        """Return parameters that are not at the edge of what they can be: none is zero."""
        return np.maximum(parameters, SMALLEST)

    @abstractmethod
    def prior(self) -> Floats:
        """Return χ₀ of the prior: (coordinate,)."""

    def conjugate(self, statistics: Array) -> Array:
        """Return what rows with these sums add to χ, the sums themselves: (..., coordinate)."""
        return statistics

    @abstractmethod
    def log_normaliser(self, posterior: Floats) -> Floats:
        """Return F(χ) = ln ∫ exp(χ · η(θ)) h(θ) dθ, up to a constant: (..., variable)."""

    @abstractmethod
    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw parameters given χ: (..., parameter)."""

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
        for column, values in enumerate(np.moveaxis(statistics, -1, 0)):
            step = STEP * np.maximum(np.abs(values), 1.0)
            sides = np.array([statistics, statistics], dtype=np.float64)
            sides[..., column] += [-step, step]
            low, high = self.log_evidence(sides).sum(axis=-1)
            slopes[..., column] = (high - low) / (2.0 * step)
        return slopes

    @abstractmethod
    def known(self, statistics: Array) -> Floats:
        """Return how many rows have a cell: (..., variable)."""

    def valid(self, statistics: Floats) -> Floats:
        """Return sums that rows can have, near those that moments gave: none is below zero."""
        return np.maximum(statistics, 0.0)

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

    @abstractmethod
    def means(self, statistics: Floats) -> tuple[Floats, Floats]:
        """Return the mean statistics of a row, and how many rows have each: (..., variable)."""

    @abstractmethod
    def medians(self, posterior: Floats) -> Floats:
        """Return the medians of the parameters given χ: (..., parameter)."""

    @abstractmethod
    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Return the gradient, in the parameters, of the log-likelihood of rows with these sums."""

    @abstractmethod
    def log_prior(self, parameters: Floats) -> tuple[float, Floats | float, Floats]:
        """Return the log density of the prior, and its gradient.

        Returns
        -------
        constant : for each cluster; value : the rest, to be added up over all axes; by variable,
            (..., variable), where numbers can leave rounded.
        gradient : (..., parameter)
        """

    @abstractmethod
    def coordinates(self, parameters: Reals) -> Reals:
        """Return the parameters where distances mean something: (..., parameter)."""

    def free_coordinates(self, parameters: Reals) -> Reals:
        """Return as many coordinates as are free, all of them: (..., coordinate)."""
        return self.coordinates(parameters)

    @abstractmethod
    def back(self, coordinates: Floats) -> Floats:
        """Return the parameters at, or nearest to, these coordinates."""

    def overlap(self, one: Array, other: Array) -> Floats:
        """Return how many cells two clusters of rows may have in common: (..., variable)."""
        apart = self.log_affinity(self.typical(one), self.typical(other))
        rows = np.minimum(self.known(one), self.known(other))
        return np.asarray(rows * np.exp(self.together(apart)))

    def typical(self, statistics: Array) -> Floats:
        """Return the parameters that rows with these sums have by themselves, for comparison."""
        return self.from_moments(self.means(statistics)[0])

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Return about the log of Bhattacharyya's coefficient of two clusters: (..., variable).

        An eighth of the symmetric Kullback–Leibler divergence, to the second order.
        """
        rise = (self.natural(one) - self.natural(other)) * (self.moments(one) - self.moments(other))
        starts = np.cumsum(self.statistics) - self.statistics
        return np.asarray(-0.125 * np.add.reduceat(rise, starts, axis=-1))

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

    @abstractmethod
    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return the sums that say of the shared parameters, without drift, what these say."""

    @abstractmethod
    def log_remainder(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return what discounting leaves out of the log probability: (..., variable)."""

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

    def draw_kappa(
        self, statistics: Array, parameters: Floats, current: Ints, log_odds: Floats, rng: Rng
    ) -> Ints:
        """Draw where κ is on `GRID`, silos' own parameters integrated out: (chain, variable).

        Parameters
        ----------
        statistics : (silo, chain, cluster, statistic); parameters : (chain, cluster, parameter)
        current : (chain, variable); log_odds : (chain,), of finite κ against ∞ beforehand.
        """
        grid = np.repeat(GRID[:, None], current.shape[1], axis=1)
        by_silo = [self.log_marginal(statistics, parameters, kappa) for kappa in grid]
        values = self.together(np.array(by_silo).sum(axis=(1, 3)))
        # the last point, ∞, stands apart
        values[:-1] += log_odds[:, None] - np.log(len(values) - 1)
        drawn = draw_places(np.moveaxis(values, 0, -1), rng)
        return np.asarray(drawn[:, self.leads][:, np.cumsum(self.leads) - 1])

    def shared_posterior(
        self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """Return χ of the shared parameters' posterior: (chain, cluster, coordinate)."""
        raise self.lacks("shared_posterior")

    def draw_own(self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own parameters: (silo, chain, cluster, parameter)."""
        raise self.lacks("draw_own")

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Return log p(rows | shared parameters, κ) up to a function of their number."""
        raise self.lacks("log_marginal")

    @classmethod
    def has_drift(cls) -> bool:
        """Tell whether silos may differ in such variables: whether it says how."""
        return cls.draw_own is not Family.draw_own

    def lacks(self, method: str) -> NotImplementedError:
        """Return the error of a method that a family need not have."""
        names = ", ".join(variable.name for variable in self.variables)
        return NotImplementedError(f"{type(self).__name__}, of {names}, has no {method}")

    @abstractmethod
    def disclose(
        self, cells: Array, member: Floats, concentration: Floats, sizes: Ints, rules: Policy
    ) -> Rounded:
        """Return what a policy lets out of a silo's clusters.

        Parameters
        ----------
        cells : (row, variable); member : (row, cluster); concentration : (cluster, variable)
        sizes : (cluster,), as released.
        """

    @abstractmethod
    def basis(self, known: Ints, concentration: Floats, rules: Policy) -> Ints:
        """Say what each released profile is of: (cluster, variable).

        Parameters
        ----------
        known : (cluster, variable), rows whose cell is known, as released.
        """

    @abstractmethod
    def breach(self, mean: Floats, concentration: Floats, known: Ints, rules: Policy) -> str:
        """Say what released numbers have that no rule lets out, as the end of a sentence; or ""."""

    @abstractmethod
    def draw_behind(self, said: Said, draws: int, rng: Rng) -> Floats:
        """Draw parameters that all sources share, given what they released: (draw, parameter)."""
