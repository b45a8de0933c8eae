"""The interface of a kind of variable, and what follows from it.

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
for the spread: `conjugate` writes statistics so.

`Family` has the methods in four groups: likelihood, prior, drift between silos, and how parameters
are shown. Its defaults are those of one positive parameter, the mean of x, with (n, Σx) as
statistics. `Levels` in `categorical.py` has those of categories. Everything else that the package
asks of a family is a function in `derived.py`, which has a default too; a family with a closed form
has a method of the same name. A class becomes a kind in `KINDS` of `product.py`. The prior to the
power 1/S of a silo is `Product.share`. `Product` joins blocks by concatenating their columns; every
study has one, even where all variables are of one kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Array, Bools, Floats, Ints, Reals, Rng
    from silomix.model.schema import Variable

# the values of κ; the last is the model without drift
GRID = np.append(np.geomspace(3.0, 3000.0, 25), np.inf)
# of a parameter that must be above zero: draws kept in float32 may be exactly zero
SMALLEST = 1e-30
# draws that hardly move say no more than this many rows
MOST_ROWS = 1e9


@dataclass(frozen=True)
class Family(ABC):
    """A block of variables of one kind; the module's docstring says what its vectors are.

    `natural`, `prior`, `log_normaliser`, `draw` and `fit` must be written. Without `log_marginal`,
    `shared_posterior` and `draw_own` a study in which silos may differ refuses the kind.

    Attributes
    ----------
    variables : in the order of the columns.
    has_levels : whether the cells are codes of levels, and the parameters their probabilities.
    units : of numbers: "raw", with the mean of the cells as the study's location; "scaled" by
        location and scale, with mean and standard deviation as the parameters; or "parameter",
        where there are no cells.
    support : which numbers there can be, a word of `SUPPORTS` in `silomix.model.columns`.
    word : what messages call the cells.
    has_rules : whether sums can leave rounded, which takes a method `bounds`; a policy that rounds
        refuses those that cannot.
    always_hides : whether every row hides something, so that no sums are known without parameters.
    is_joint : whether variables depend on each other: each has one parameter and one statistic more
        for each variable before it, rows with a missing cell hide it, and all have one κ.
    parameter_words, statistic_words : of each variable that has numbers; the mean of x comes first
        among the parameters, n among the statistics.
    """

    variables: tuple[Variable, ...]
    has_levels: ClassVar[bool] = False
    units: ClassVar[Literal["scaled", "raw", "parameter"]] = "raw"
    support: ClassVar[Literal["all", "positive", "counts"]] = "positive"
    word: ClassVar[str] = "numbers"
    has_rules: ClassVar[bool] = False
    always_hides: ClassVar[bool] = False
    is_joint: ClassVar[bool] = False
    parameter_words: ClassVar[tuple[str, ...]] = ("mean",)
    statistic_words: ClassVar[tuple[str, ...]] = ("n", "Σx")

    @property
    def statistics(self) -> Ints:
        """Number of statistics of each variable: (variable,)."""
        each = np.arange(len(self.variables))
        return len(self.statistic_words) + (each if self.is_joint else 0 * each)

    @property
    def locations(self) -> Floats:
        """Location of each variable in the study: (variable,)."""
        return np.array([variable.location for variable in self.variables])

    @property
    def scales(self) -> Floats:
        """Scale of each variable in the study: (variable,)."""
        return np.array([variable.scale for variable in self.variables])

    # likelihood

    def features(self, cells: Array) -> Floats:
        """T(x) = 1, x, x² ... of cells (row, variable), 0 of a missing one: (row, statistic)."""
        known = ~np.isnan(cells)
        x = np.where(known, cells, 0.0)
        return flat(known, *(x**power for power in range(1, len(self.statistic_words))))

    @abstractmethod
    def natural(self, parameters: Reals) -> Floats:
        """Natural parameters η: (..., statistic)."""

    def log_base(self, cells: Array) -> Floats:
        """What log p(x) has beside T · η, nothing: (row,)."""
        return np.zeros(len(cells))

    def log_density(self, cells: Array, parameters: Floats) -> Floats:
        """Log p(x) less log_base, what is hidden summed out: (row, cluster)."""
        return np.asarray(self.features(cells) @ self.natural(parameters).T)

    def complete(self, cells: Array, parameters: Floats, labels: Ints, rng: Rng) -> Floats:
        """Draw T(x) of incomplete rows given their known part and labels: (row, statistic)."""
        return self.features(cells)

    def expected_features(self, cells: Array, parameters: Floats) -> Floats:
        """E T(x) of incomplete rows given their known part: (row, cluster, statistic)."""
        return np.repeat(self.features(cells)[:, None], len(parameters), axis=1)

    # conjugate prior

    @abstractmethod
    def prior(self) -> Floats:
        """χ₀ of the prior: (coordinate,)."""

    def conjugate(self, statistics: Array) -> Array:
        """What rows with these sums add to χ, the sums themselves: (..., coordinate)."""
        return statistics

    @abstractmethod
    def log_normaliser(self, posterior: Floats) -> Floats:
        """F(χ) = ln ∫ exp(χ · η(θ)) h(θ) dθ, up to a constant: (..., variable)."""

    @abstractmethod
    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw parameters given χ: (..., parameter)."""

    @abstractmethod
    def fit(self, draws: Reals) -> Floats:
        """Sufficient statistics implied by posterior draws, net of the prior, by moments.

        Parameters
        ----------
        draws : (draw, cluster, parameter)

        Returns
        -------
        (cluster, statistic), maybe such as no rows have: see `valid`.
        """

    # drift between silos, at κ

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Log p(rows | shared parameters, κ) up to a function of their number: (..., variable)."""
        raise lacks(self, "log_marginal")

    def shared_posterior(
        self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """χ of the shared parameters' posterior: (chain, cluster, coordinate)."""
        raise lacks(self, "shared_posterior")

    def draw_own(self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own parameters: (silo, chain, cluster, parameter)."""
        raise lacks(self, "draw_own")

    # how parameters are shown

    def names(self) -> list[tuple[str, str]]:
        """Variable and word of each parameter, such as "mean of log"."""
        logs = [self.units == "scaled" and one.transform == "log" for one in self.variables]
        both = zip(self.variables, logs, strict=True)
        words = self.parameter_words
        return [(one.name, f"{w} of log" if is_log else w) for one, is_log in both for w in words]

    def describe(self, parameters: Reals) -> Reals:
        """Parameters in the units of the table, or of its logarithms: as they came."""
        return parameters

    def coordinates(self, parameters: Reals) -> Reals:
        """Parameters where distances mean something, their logarithms: (..., parameter)."""
        return np.log(np.maximum(parameters.astype(np.float64), SMALLEST))


def lacks(family: Family, method: str) -> NotImplementedError:
    """The error of a method that a family need not have."""
    names = ", ".join(variable.name for variable in family.variables)
    return NotImplementedError(f"{type(family).__name__}, of {names}, has no {method}")


def drifting(kappa: Floats) -> tuple[Bools, Floats]:
    """Where silos differ, and κ + 1, the rows that their spread is worth: as `kappa`."""
    drifts = np.isfinite(kappa)
    return drifts, np.where(drifts, kappa, 0.0) + 1.0


def worth(rows: Floats, kappa: Floats) -> Floats:
    """What part of a row each of a silo's n is worth, (κ + 1)/(n + κ + 1): as `rows`."""
    drifts, k = drifting(kappa)
    return np.where(drifts, k / (rows + k), 1.0)


def by_variable(columns: Array, size: int) -> tuple[Array, ...]:
    """Columns of `size` for each variable, by what they are: each (..., variable)."""
    return tuple(columns[..., place::size] for place in range(size))


def flat(*parts: Array) -> Floats:
    """Parts (..., variable) as the columns of each variable in turn: (..., column)."""
    size, shape = len(parts), np.broadcast_shapes(*(part.shape for part in parts))
    columns = np.empty((*shape[:-1], shape[-1] * size))
    for place, part in enumerate(parts):
        columns[..., place::size] = part
    return columns


def split(columns: Array, size: int) -> Floats:
    """Columns (..., column) by variable, which has `size` of them: (..., variable, own)."""
    return columns.astype(np.float64).reshape(*columns.shape[:-1], columns.shape[-1] // size, size)


def join(first: Sequence[Floats], others: Floats) -> Floats:
    """Columns of numbers, each (..., variable), and of others, (..., variable, own)."""
    both = np.concatenate([np.stack(first, axis=-1), others], axis=-1)
    return both.reshape(*both.shape[:-2], both.shape[-2] * both.shape[-1])


def draw_places(logs: Floats, rng: Rng) -> Ints:
    """Draw places on the last axis by log probabilities, (..., place): (...,)."""
    reached = np.cumsum(np.exp(logs - logs.max(axis=-1, keepdims=True)), axis=-1)
    thresholds = rng.random(logs.shape[:-1]) * reached[..., -1]
    return np.asarray((reached <= thresholds[..., None]).sum(axis=-1))
