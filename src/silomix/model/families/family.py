"""What a kind of variable must know of itself, and how kinds stand side by side in one table.

A family is a block of variables of one kind, independent of each other within a cluster. Everything
else in the package sees three flat vectors of it:

statistics (..., T)
    T(x) summed over the rows of a cluster: level counts; or n, Σx and Σx². They add up over rows,
    silos and clusters, and are what leaves a silo.
parameters (..., P)
    Level probabilities; or mean and standard deviation. What is drawn, averaged and reported.
posterior numbers (..., H)
    What a draw of the parameters needs to know: the numbers of the conjugate prior, updated.

The families here are exponential families, log p(x | θ) = T(x) · η(θ) + log_base(x), with conjugate
priors, so a cluster's posterior is a function of its statistics, and its evidence a ratio of
normalisers. `Product` joins blocks by concatenating their columns; every study has one, even where
all variables are of one kind.

Drift is a family's own matter too: how a silo's parameters vary around the shared ones at κ, which
at κ = ∞ they equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.kernels.arrays import Array, Floats, Ints, Reals, Rng
    from silomix.model.families.rounded import Rounded, Rules, Said
    from silomix.model.schema import Variable


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


def fewer_rows(statistics: Floats, known: Floats, kappa: Floats, size: int) -> Floats:
    """Return sums of n rows scaled down to the n(κ + 1)/(n + κ + 1) that they say as much as.

    Parameters
    ----------
    statistics : (..., statistic), `size` for each variable; known : (..., variable), n.
    kappa : (variable,)
    """
    drifts = np.isfinite(kappa)
    k = np.where(drifts, kappa, 0.0) + 1.0
    worth = np.where(drifts, k / (known + k), 1.0)
    return np.asarray(statistics * np.repeat(worth, size, axis=-1))


def draw_on_grid(values: Floats, log_odds: Floats, rng: Rng) -> Ints:
    """Draw a point of a grid whose last point stands apart: (chain, variable).

    Parameters
    ----------
    values : (point, chain, variable), log-likelihoods.
    log_odds : (chain,), prior log odds of all other points together against the last.
    """
    values[:-1] += log_odds[:, None] - np.log(len(values) - 1)
    masses = np.cumsum(np.exp(values - values.max(axis=0)), axis=0)
    thresholds = rng.random(values.shape[1:]) * masses[-1]
    return np.asarray((masses <= thresholds).sum(axis=0))


class Family(Protocol):
    """A block of variables of one kind; the module's docstring says what its vectors are."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """In the order of the columns."""
        ...

    @property
    def parameters(self) -> Ints:
        """How many parameters each variable has: (variable,)."""
        ...

    @property
    def statistics(self) -> Ints:
        """How many statistics each variable has: (variable,)."""
        ...

    @property
    def posterior_numbers(self) -> Ints:
        """How many posterior numbers each variable has: (variable,)."""
        ...

    @property
    def free(self) -> int:
        """Free coordinates of a cluster's parameters."""
        ...

    def names(self) -> list[tuple[str, str]]:
        """Return the variable and what it is called of each parameter."""
        ...

    def describe(self, parameters: Reals) -> Reals:
        """Return the parameters in the units of the table, or of its logarithms: as they came."""
        ...

    def whole(self, parameters: Reals, weights: Reals) -> Floats:
        """Return what clusters are compared with: each parameter over all rows.

        Parameters
        ----------
        parameters : (draw, cluster, parameter); weights : (draw, cluster)

        Returns
        -------
        (draw, parameter)
        """
        ...

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Return how far a cluster is from the whole, comparable between variables.

        Both are (..., parameter), and so is the result.
        """
        ...

    def share(self, silos: int) -> Self:
        """Return the family with the share of the prior that one of several silos takes."""
        ...

    def features(self, cells: Array) -> Floats:
        """Return T(x), (row, statistic), of cells (row, variable); zeros of a missing cell."""
        ...

    def log_base(self, cells: Array) -> Floats:
        """Return what log p(x) has beside T · η: (row,)."""
        ...

    def natural(self, parameters: Reals) -> Floats:
        """Return η: (..., statistic)."""
        ...

    def moments(self, parameters: Reals) -> Reals:
        """Return E T(x): (..., statistic)."""
        ...

    def from_moments(self, moments: Floats) -> Reals:
        """Return the parameters with these moments."""
        ...

    def places(self, moments: Floats) -> Floats:
        """Return where clusters with these moments are, for distances: (..., parameter)."""
        ...

    def inside(self, parameters: Floats) -> Floats:
        """Return parameters that are not at the edge of what they can be."""
        ...

    def prior(self) -> Floats:
        """Return the posterior numbers of no rows: (posterior number,)."""
        ...

    def posterior(self, statistics: Array, prior: Floats | None = None) -> Floats:
        """Return the posterior numbers given rows with these sums, under another prior if given."""
        ...

    def draw(self, posterior: Reals, rng: Rng, draws: int | None = None) -> Floats:
        """Draw parameters: (draw, ..., parameter); one, and no axis for it, without `draws`."""
        ...

    def log_evidence(self, statistics: Array, prior: Floats | None = None) -> Floats:
        """Return log p(cells) up to log_base, the parameters integrated out: (..., variable)."""
        ...

    def expected_natural(self, statistics: Floats) -> Floats:
        """Return E η under the posterior given these sums: (..., statistic)."""
        ...

    def known(self, statistics: Array) -> Floats:
        """Return how many rows have a cell: (..., variable)."""
        ...

    def cells(self, statistics: Floats) -> Floats:
        """Return how many cells there are in all: (...,)."""
        ...

    def valid(self, statistics: Floats) -> Floats:
        """Return sums that rows can have, near those that moments gave."""
        ...

    def fit(self, draws: Reals) -> Floats:
        """Return the sums of the rows that a posterior with such draws must have seen, by moments.

        Parameters
        ----------
        draws : (draw, cluster, parameter)

        Returns
        -------
        (cluster, statistic), maybe such as no rows have: see `valid`.
        """
        ...

    def means(self, statistics: Floats) -> tuple[Floats, Floats]:
        """Return the mean statistics of a row, and how many rows have each: (..., variable)."""
        ...

    def medians(self, posterior: Floats) -> Floats:
        """Return the medians of the parameters under posterior numbers: (..., parameter)."""
        ...

    def variances(self, mean: Floats, concentration: Floats) -> Floats:
        """Return the posterior variances of the coordinates, by what `means` gives."""
        ...

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Return the gradient, in the parameters, of the log-likelihood of rows with these sums."""
        ...

    def log_prior(self, parameters: Floats) -> tuple[float, float, Floats]:
        """Return the log density of the prior and its gradient, as `Product.log_prior`."""
        ...

    def coordinates(self, parameters: Reals) -> Reals:
        """Return the parameters where distances mean something: (..., parameter)."""
        ...

    def free_coordinates(self, parameters: Reals) -> Reals:
        """Return as many coordinates as are free: (..., coordinate)."""
        ...

    def back(self, coordinates: Floats) -> Floats:
        """Return the parameters at, or nearest to, these coordinates."""
        ...

    def overlap(self, one: Array, other: Array) -> Floats:
        """Return how many cells two clusters of rows may have in common: (..., variable)."""
        ...

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Return the log of Bhattacharyya's coefficient of two clusters: (..., variable)."""
        ...

    def problems(self, parameters: Reals, *, together: bool) -> str:
        """Say what is wrong with parameters from elsewhere, as the end of a sentence; or ""."""
        ...

    def mean_problems(self, mean: Floats) -> str:
        """Say what is wrong with mean statistics from elsewhere, likewise."""
        ...

    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return the sums that say of the shared parameters, without drift, what these say."""
        ...

    def log_remainder(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return what discounting leaves out of the log probability: (..., variable)."""
        ...

    def unrelated(self, statistics: Floats, worth: Floats) -> Floats:
        """Return the prior, as posterior numbers, that clusters which differ seem to come from.

        Parameters
        ----------
        statistics : (cluster, statistic); worth : (cluster,), how much each counts.
        """
        ...

    def draw_kappa(
        self, statistics: Array, parameters: Floats, current: Ints, log_odds: Floats, rng: Rng
    ) -> Ints:
        """Draw where κ is on `drift.GRID`, silos' own parameters integrated out: (chain, variable).

        Parameters
        ----------
        statistics : (silo, chain, cluster, statistic); parameters : (chain, cluster, parameter)
        current : (chain, variable); log_odds : (chain,), of finite κ against ∞ beforehand.
        """
        ...

    def shared_posterior(
        self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """Return the posterior numbers of the shared parameters: (chain, cluster, number)."""
        ...

    def draw_own(self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own parameters: (silo, chain, cluster, parameter)."""
        ...

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Return log p(rows | shared parameters, κ) up to a function of their number."""
        ...

    def disclose(
        self, cells: Array, member: Floats, concentration: Floats, sizes: Ints, rules: Rules
    ) -> Rounded:
        """Return what a policy lets out of a silo's clusters: see `Product.disclose`."""
        ...

    def basis(self, sizes: Ints, concentration: Floats, rules: Rules) -> Ints:
        """Say what each released profile is of: (cluster, variable)."""
        ...

    def breach(self, mean: Floats, concentration: Floats, sizes: Ints, rules: Rules) -> str:
        """Say what released numbers have that no rule lets out, as the end of a sentence; or ""."""
        ...

    def draw_behind(self, said: Said, draws: int, rng: Rng) -> Floats:
        """Draw parameters that all sources share, given what they released: (draw, parameter)."""
        ...


class Numbers(Family, Protocol):
    """A family of numbers, with what the defaults of `NumberFamily` ask of it."""

    def near(self, statistics: Floats) -> Floats:
        """Return parameters of rows with these sums, sensible ones for few rows or none."""
        ...

    def spread(self, parameters: Floats) -> Floats:
        """Return the standard deviation of x, in the units of the cells: (..., variable)."""
        ...

    def priors_near(self, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield priors that clusters may come from, (number,), and what speaks against each.

        Parameters
        ----------
        statistics : (cluster, statistic)
        """
        ...

    def bounds(self) -> tuple[Floats, Floats]:
        """Return the smallest and largest value that leave as they are, each (variable,)."""
        ...

    def log_sums(self, means: Floats, rows: Floats) -> Floats:
        """Return the log density of the mean statistics, (..., variable, sum), but for T · η."""
        ...
