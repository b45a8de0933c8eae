"""Blocks of variables side by side: the family that every study has, and the kinds that there are.

Columns are concatenated, block after block: each method asks every block about its own columns, and
joins the answers. See `silomix.families.family` for what the vectors and methods are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from silomix.families import derived
from silomix.families.categorical import Categorical, Levels, fractional
from silomix.families.columns import SMALLEST
from silomix.families.family import (
    Family,
    coordinate_counts,
    hides,
    leads,
    parameter_counts,
    together,
)
from silomix.families.gaussian import Gaussian
from silomix.families.gaussian_full import FullGaussian
from silomix.families.negative_binomial import NegativeBinomial
from silomix.families.parameter import Parameter
from silomix.families.poisson import Poisson
from silomix.families.student_t import StudentT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from silomix.kernels.arrays import Array, Bools, Floats, Ints, Reals, Rng
    from silomix.model.prior import Prior
    from silomix.model.schema import Schema, Shard, Variable

# The family of each kind, by the word that tables and study files have for it, in the order that
# kinds have in a schema. A class that is added here, in every program that reads the study, is a
# kind like the others.
KINDS: dict[str, type[Family]] = {
    "categorical": Categorical,
    "gaussian": Gaussian,
    "gaussian-full": FullGaussian,
    "student-t": StudentT,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "parameter": Parameter,  # of clusters sampled elsewhere: no column of a table
}

# steps of EM that sums of hidden rows take; each leaves about 0.4 of the way to go
SETTLING = 8

R = TypeVar("R")


def has_drift(kind: str) -> bool:
    """Whether silos may differ in variables of this kind: whether its family says how."""
    return KINDS[kind].draw_own is not Family.draw_own


def make_family(schema: Schema, prior: Prior) -> Product:
    """Family of a study's variables under the prior of the pooled model."""
    blocks: list[Family] = []
    for kind, group in groupby(schema.variables, key=lambda variable: variable.kind):
        family = KINDS[kind](tuple(group))
        blocks.append(replace(family, beta=prior.beta) if isinstance(family, Levels) else family)
    return Product(tuple(blocks))


def side_by_side(parts: Sequence[Any]) -> Any:
    """The blocks' columns side by side; those of a single block as they are."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


@dataclass(frozen=True)
class Product:
    """A family made of blocks."""

    blocks: tuple[Family, ...]

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, block after block."""
        return tuple(variable for block in self.blocks for variable in block.variables)

    @cached_property
    def parameters(self) -> Ints:
        """Number of parameters of each variable: (variable,)."""
        return np.concatenate([parameter_counts(block) for block in self.blocks])

    @cached_property
    def statistics(self) -> Ints:
        """Number of statistics of each variable: (variable,)."""
        return np.concatenate([block.statistics for block in self.blocks])

    @cached_property
    def conjugates(self) -> Ints:
        """Number of conjugate coordinates of each variable: (variable,)."""
        return np.concatenate([coordinate_counts(block) for block in self.blocks])

    @cached_property
    def leads(self) -> Bools:
        """Which variables have a κ of their own: (variable,)."""
        return np.concatenate([leads(block) for block in self.blocks])

    @cached_property
    def starts(self) -> Ints:
        """Where each variable's parameters start: (variable + 1,)."""
        return np.concatenate([[0], np.cumsum(self.parameters)]).astype(np.int64)

    @property
    def is_categorical(self) -> bool:
        """Whether all variables have Dirichlet priors, for which there are faster kernels."""
        return all(type(block) is Categorical for block in self.blocks)

    @property
    def beta(self) -> float:
        """Concentration of each level."""
        return next(block.beta for block in self.blocks if isinstance(block, Levels))

    @property
    def always_hides(self) -> bool:
        """Whether every row hides something in one of the blocks."""
        return any(block.always_hides for block in self.blocks)

    @cached_property
    def free(self) -> int:
        """Number of free coordinates of a cluster's parameters."""
        return int(self.parameters.sum() - (self.shares()[self.starts[1:] - 1]).sum())

    @cached_property
    def spans(self) -> dict[str, list[slice]]:
        """Columns of each block among variables (v), parameters (p), statistics (s) and χ (c)."""
        edges = np.cumsum([0, *(len(block.variables) for block in self.blocks)])
        counts = {"p": self.parameters, "s": self.statistics, "c": self.conjugates}
        ends = {axis: np.append(0, np.cumsum(count))[edges] for axis, count in counts.items()}
        return {
            axis: [slice(*pair) for pair in pairwise(end.tolist())]
            for axis, end in {"v": edges, **ends}.items()
        }

    def _ask(self, function: Callable[..., R], axes: str, *arrays: Any, **named: Any) -> list[R]:
        """What a function says of each block, given its columns of the first arrays.

        Parameters
        ----------
        function : a method of `Family`, or a function of `silomix.families.derived`.
        axes : what the last axis of each array is, as in `spans`; x for a shard.
        """
        answers = []
        for place, block in enumerate(self.blocks):
            own = [
                array.cells[place] if axis == "x" else array[..., self.spans[axis][place]]
                for axis, array in zip(axes, arrays, strict=False)
            ]
            answer = getattr(block, function.__name__, partial(function, block))
            answers.append(answer(*own, *arrays[len(axes) :], **named))
        return answers

    def _join(self, function: Callable[..., Any], axes: str, *arrays: Any) -> Any:
        """The same, side by side."""
        return side_by_side(self._ask(function, axes, *arrays))

    def share(self, silos: int) -> Product:
        """Family with the share of the prior that one of several silos takes.

        Of level probabilities that is the power 1/S; a power of the priors of numbers may be
        improper, so each silo takes them in full.
        """
        return Product(
            tuple(
                replace(block, beta=fractional(block.beta, silos))
                if isinstance(block, Levels)
                else block
                for block in self.blocks
            )
        )

    def repeat(self, by_variable: Array) -> Array:
        """A value for each statistic, of a value for each variable: (..., statistic)."""
        return np.repeat(by_variable, self.statistics, axis=-1)

    # rows

    def features(self, shard: Shard) -> Floats:
        """T(x): (row, statistic)."""
        return self._join(Family.features, "x", shard)

    def hides(self, shard: Shard) -> Bools:
        """Which rows are incomplete in one of the blocks: (row,)."""
        return np.logical_or.reduce(self._ask(hides, "x", shard))

    def log_base(self, shard: Shard) -> Floats:
        """What log p(x) has beside T · η: (row,)."""
        return np.sum(self._ask(Family.log_base, "x", shard), axis=0)

    def log_density(self, shard: Shard, parameters: Floats) -> Floats:
        """Log p(x) less log_base, what is hidden summed out: (row, cluster)."""
        return np.sum(self._ask(Family.log_density, "xp", shard, parameters), axis=0)

    def complete(self, shard: Shard, parameters: Floats, labels: Ints, rng: Rng) -> Floats:
        """Draw T(x) of incomplete rows given their known part and labels: (row, statistic)."""
        return self._join(Family.complete, "xp", shard, parameters, labels, rng)

    def expected_features(self, shard: Shard, parameters: Floats) -> Floats:
        """E T(x) of incomplete rows given their known part: (row, cluster, statistic)."""
        return self._join(Family.expected_features, "xp", shard, parameters)

    def settle(self, shard: Shard, features: Floats, shares: Floats) -> Floats:
        """Sums of rows with these shares, (row, cluster): (cluster, statistic).

        Where every row hides something, it is at its mean given the sums, after steps of EM.
        """
        sums = shares.T @ features
        for _ in range(SETTLING if self.always_hides else 0):
            at = self.medians(self.prior() + self.conjugate(sums))
            for cluster, own in enumerate(shares.T):
                some = own > 0
                features = self.expected_features(shard.some(some), at[[cluster]])[:, 0]
                sums[cluster] = own[some] @ features
        return np.asarray(sums)

    # parameters

    def names(self) -> list[tuple[str, str]]:
        """Variable and word of each parameter."""
        return [name for block in self.blocks for name in block.names()]

    def shares(self) -> Bools:
        """Which parameters are probabilities, to be read in per cent: (parameter,)."""
        levels = [block.has_levels for block in self.blocks for _ in block.variables]
        return np.repeat(np.array(levels), self.parameters)

    def tells(self) -> Bools:
        """Which parameters are informative of clusters: (parameter,).

        Of numbers the first of each variable; of levels all but the first of two, which mirrors
        the other.
        """
        counts = np.repeat(self.parameters, self.parameters)
        place = np.arange(len(counts)) - np.repeat(self.starts[:-1], self.parameters)
        return np.where(self.shares(), place >= (counts == 2), place == 0)

    def natural(self, parameters: Reals) -> Floats:
        """Natural parameters η: (..., statistic)."""
        return self._join(Family.natural, "p", parameters)

    def columns(self, parameters: Reals) -> Floats:
        """Natural parameters with the clusters side by side: (draw, statistic, cluster)."""
        # in double precision the smallest probability is not zero
        natural = self.natural(parameters.astype(np.float64))
        return np.ascontiguousarray(np.swapaxes(natural, 1, 2))

    def inside(self, parameters: Floats) -> Floats:
        """Parameters of which none is zero."""
        return np.where(np.abs(parameters) < SMALLEST, SMALLEST, parameters)

    def moments(self, parameters: Reals) -> Reals:
        """E T(x): (..., statistic)."""
        return self._join(derived.moments, "p", parameters)

    def from_moments(self, moments: Floats) -> Floats:
        """Parameters with these moments: (..., parameter)."""
        return self._join(derived.from_moments, "s", moments)

    def describe(self, parameters: Reals) -> Reals:
        """Parameters in the units of the table, or of its logarithms: (..., parameter)."""
        return self._join(Family.describe, "p", parameters)

    def coordinates(self, parameters: Reals) -> Reals:
        """Parameters where distances mean something: (..., parameter)."""
        return self._join(Family.coordinates, "p", parameters)

    def free_coordinates(self, parameters: Reals) -> Reals:
        """Coordinates without those of each variable's last level: (..., coordinate)."""
        last = self.starts[1:] - 1
        return np.delete(self.coordinates(parameters), last[self.shares()[last]], axis=-1)

    def back(self, coordinates: Floats) -> Floats:
        """Parameters at, or nearest to, these coordinates."""
        return self._join(derived.back, "p", coordinates)

    def places(self, moments: Floats) -> Floats:
        """Coordinates of clusters with these moments, for distances."""
        return self._join(derived.places, "s", moments)

    def whole(self, parameters: Reals, weights: Reals) -> Floats:
        """Population average of the parameters: (draw, parameter)."""
        return self._join(derived.whole, "p", parameters, weights)

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Contrast of a cluster with the population: (..., parameter)."""
        return self._join(derived.scaled_difference, "pp", parameters, whole)

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Log of Bhattacharyya's coefficient of two clusters: (..., variable)."""
        return self._join(derived.log_affinity, "pp", one, other)

    def overlap(self, one: Array, other: Array) -> Floats:
        """Number of cells that two clusters of rows may have in common: (..., variable)."""
        return self._join(derived.overlap, "ss", one, other)

    def problems(self, parameters: Reals, *, together: bool = True) -> str:
        """What is wrong with parameters from elsewhere, as the end of a sentence; or ""."""
        found = self._ask(derived.problems, "p", parameters, together=together)
        return next(filter(None, found), "")

    def mean_problems(self, mean: Floats) -> str:
        """What is wrong with mean statistics from elsewhere, likewise."""
        return next(filter(None, self._ask(derived.mean_problems, "s", mean)), "")

    # prior, posterior and evidence

    def prior(self) -> Floats:
        """χ₀ of the prior: (coordinate,)."""
        return self._join(Family.prior, "")

    def conjugate(self, statistics: Array) -> Array:
        """What rows with these sums add to χ: (..., coordinate)."""
        return self._join(Family.conjugate, "s", statistics)

    def log_normaliser(self, posterior: Floats) -> Floats:
        """F(χ): (..., variable)."""
        return self._join(Family.log_normaliser, "c", posterior)

    def log_evidence(self, statistics: Array, prior: Floats | None = None) -> Floats:
        """Log p(cells) up to log_base, the parameters integrated out: (..., variable)."""
        base = self.prior() if prior is None else prior
        updated = self.log_normaliser(base + self.conjugate(statistics))
        return np.asarray(updated - self.log_normaliser(base))

    def expected_natural(self, statistics: Floats) -> Floats:
        """E η under the posterior given these sums: (..., statistic)."""
        return self._join(derived.expected_natural, "s", statistics)

    def draw(self, posterior: Reals, rng: Rng, draws: int | None = None) -> Floats:
        """Draw parameters: (draw, ..., parameter); one, and no axis for it, without `draws`."""
        shape = posterior.shape if draws is None else (draws, *posterior.shape)
        return self._join(Family.draw, "c", np.broadcast_to(posterior, shape), rng)

    def medians(self, posterior: Floats) -> Floats:
        """Medians of the parameters given χ: (..., parameter)."""
        return self._join(derived.medians, "c", posterior)

    def fit(self, draws: Reals) -> Floats:
        """Sufficient statistics implied by posterior draws, net of the prior: (..., statistic)."""
        return self._join(Family.fit, "p", draws)

    def valid(self, statistics: Floats) -> Floats:
        """Sums that rows can have, near those that moments gave: (..., statistic)."""
        return self._join(derived.valid, "s", statistics)

    def known(self, statistics: Array) -> Floats:
        """Number of rows that have a cell: (..., variable)."""
        return self._join(derived.known, "s", statistics)

    def means(self, statistics: Floats) -> tuple[Floats, Floats]:
        """Mean statistics of a row, and how many rows have a cell: (..., variable)."""
        mean, rows = zip(*self._ask(derived.means, "s", statistics), strict=True)
        return side_by_side(mean), side_by_side(rows)

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Gradient of the log-likelihood of rows with these sums: as `parameters`."""
        return self._join(derived.score, "ps", parameters, statistics)

    def log_prior(self, parameters: Floats) -> tuple[float, float, Floats]:
        """Log density of the prior, for each cluster and added up, and its gradient."""
        parts = self._ask(derived.log_prior, "p", parameters)
        constant, value, slopes = zip(*parts, strict=True)
        return sum(constant), sum(float(np.sum(part)) for part in value), side_by_side(slopes)

    # drift between silos

    def together(self, values: Floats) -> Floats:
        """Log probabilities summed over the variables that share a κ: (..., variable)."""
        return self._join(together, "v", values)

    def unrelated(self, statistics: Floats, counts: Floats) -> Floats:
        """χ of the prior that clusters which differ seem to come from: (coordinate,)."""
        return self._join(derived.unrelated, "s", statistics, counts)

    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Sums that say of the shared parameters, without drift, what these say at κ."""
        return self._join(derived.discount, "sv", statistics, kappa)

    def log_remainder(self, statistics: Floats, kappa: Floats) -> Floats:
        """Log p(rows | θ, κ) less that of the discounted rows: (..., variable)."""
        return self._join(derived.log_remainder, "sv", statistics, kappa)

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Log p(rows | shared parameters, κ): (..., variable)."""
        return self._join(Family.log_marginal, "spv", statistics, parameters, kappa)

    def draw_kappa(
        self, statistics: Array, parameters: Floats, current: Ints, log_odds: Floats, rng: Rng
    ) -> Ints:
        """Draw where κ is on the grid: (chain, variable)."""
        return self._join(derived.draw_kappa, "spv", statistics, parameters, current, log_odds, rng)

    def shared_posterior(
        self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """χ of the shared parameters' posterior: (chain, cluster, coordinate)."""
        return self._join(Family.shared_posterior, "spv", statistics, parameters, kappa, rng)

    def draw_own(self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own parameters: (silo, chain, cluster, parameter)."""
        return self._join(Family.draw_own, "spv", statistics, parameters, kappa, rng)
