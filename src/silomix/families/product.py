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
from silomix.families.family import SMALLEST, Family
from silomix.families.gaussian import Gaussian
from silomix.families.gaussian_full import FullGaussian
from silomix.families.negative_binomial import NegativeBinomial
from silomix.families.parameter import Parameter
from silomix.families.poisson import Poisson
from silomix.families.student_t import StudentT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from silomix.kernels.arrays import Array, Bools, Floats, Ints, Reals, Rng
    from silomix.model.schema import Prior, Schema, Shard, Variable

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


def each_side_by_side(parts: Sequence[tuple[Any, ...]]) -> Any:
    """Several arrays, each of them side by side."""
    return tuple(map(side_by_side, zip(*parts, strict=True)))


def total(parts: Sequence[Any]) -> Any:
    """The sum over the blocks."""
    return np.sum(parts, axis=0)


def first_problem(parts: Sequence[str]) -> Any:
    """The first non-empty message, or ""."""
    return next(filter(None, parts), "")


def blockwise(
    function: Callable[..., R],
    axes: str = "",
    join: Callable[[Sequence[Any]], Any] = side_by_side,
) -> Callable[..., R]:
    """A method that asks a function of every block, with its columns of arrays, and joins answers.

    Parameters
    ----------
    function : a method of `Family`, or a function of families.
    axes : what the last axis of each array is: variables (v), parameters (p), statistics (s) or
        coordinates of χ (c); x for a shard. Arguments beyond are the same for all blocks.
    """

    def method(product: Product, /, *arrays: Any, **named: Any) -> Any:
        return join(product.ask(function, axes, *arrays, **named))

    method.__doc__ = function.__doc__
    return method


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
        return np.concatenate([derived.parameter_counts(block) for block in self.blocks])

    @cached_property
    def statistics(self) -> Ints:
        """Number of statistics of each variable: (variable,)."""
        return np.concatenate([block.statistics for block in self.blocks])

    @cached_property
    def conjugates(self) -> Ints:
        """Number of conjugate coordinates of each variable: (variable,)."""
        return np.concatenate([derived.coordinate_counts(block) for block in self.blocks])

    @cached_property
    def leads(self) -> Bools:
        """Which variables have a κ of their own: (variable,)."""
        return np.concatenate([derived.leads(block) for block in self.blocks])

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

    def ask(self, function: Callable[..., Any], axes: str, *arrays: Any, **named: Any) -> list[Any]:
        """What a function says of each block, given its columns of the arrays: see `blockwise`."""
        answers = []
        for place, block in enumerate(self.blocks):
            own = [
                array.cells[place] if axis == "x" else array[..., self.spans[axis][place]]
                for axis, array in zip(axes, arrays, strict=False)
            ]
            answer = getattr(block, function.__name__, partial(function, block))
            answers.append(answer(*own, *arrays[len(axes) :], **named))
        return answers

    def share(self, silos: int) -> Product:
        """Family with the share of the prior that one of several silos takes.

        Of level probabilities that is the power 1/S; a power of the priors of numbers may be
        improper, so each silo takes them in full.
        """
        shared = [
            replace(b, beta=fractional(b.beta, silos)) if isinstance(b, Levels) else b
            for b in self.blocks
        ]
        return Product(tuple(shared))

    def repeat(self, by_variable: Array) -> Array:
        """A value for each statistic, of a value for each variable: (..., statistic)."""
        return np.repeat(by_variable, self.statistics, axis=-1)

    # rows
    features = blockwise(Family.features, "x")
    hides = blockwise(derived.hides, "x", np.logical_or.reduce)
    log_base = blockwise(Family.log_base, "x", total)
    log_density = blockwise(Family.log_density, "xp", total)
    complete = blockwise(Family.complete, "xp")
    expected_features = blockwise(Family.expected_features, "xp")

    # parameters
    natural = blockwise(Family.natural, "p")
    moments = blockwise(derived.moments, "p")
    from_moments = blockwise(derived.from_moments, "s")
    describe = blockwise(Family.describe, "p")
    coordinates = blockwise(Family.coordinates, "p")
    back = blockwise(derived.back, "p")
    places = blockwise(derived.places, "s")
    whole = blockwise(derived.whole, "p")
    scaled_difference = blockwise(derived.scaled_difference, "pp")
    log_affinity = blockwise(derived.log_affinity, "pp")
    overlap = blockwise(derived.overlap, "ss")
    problems = blockwise(derived.problems, "p", first_problem)
    mean_problems = blockwise(derived.mean_problems, "s", first_problem)

    # prior, posterior and evidence
    prior = blockwise(Family.prior)
    conjugate = blockwise(Family.conjugate, "s")
    log_normaliser = blockwise(Family.log_normaliser, "c")
    log_evidence = derived.log_evidence
    expected_natural = blockwise(derived.expected_natural, "s")
    medians = blockwise(derived.medians, "c")
    fit = blockwise(Family.fit, "p")
    valid = blockwise(derived.valid, "s")
    known = blockwise(derived.known, "s")
    means = blockwise(derived.means, "s", each_side_by_side)
    score = blockwise(derived.score, "ps")

    # drift between silos
    together = blockwise(derived.together, "v")
    unrelated = blockwise(derived.unrelated, "s")
    discount = blockwise(derived.discount, "sv")
    log_remainder = blockwise(derived.log_remainder, "sv")
    log_marginal = blockwise(Family.log_marginal, "spv")
    draw_kappa = blockwise(derived.draw_kappa, "spv")
    shared_posterior = blockwise(Family.shared_posterior, "spv")
    draw_own = blockwise(Family.draw_own, "spv")

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

    def columns(self, parameters: Reals) -> Floats:
        """Natural parameters with the clusters side by side: (draw, statistic, cluster)."""
        # in double precision the smallest probability is not zero
        natural = self.natural(parameters.astype(np.float64))
        return np.ascontiguousarray(np.swapaxes(natural, 1, 2))

    def inside(self, parameters: Floats) -> Floats:
        """Parameters of which none is zero."""
        return np.where(np.abs(parameters) < SMALLEST, SMALLEST, parameters)

    def free_coordinates(self, parameters: Reals) -> Reals:
        """Coordinates without those of each variable's last level: (..., coordinate)."""
        last = self.starts[1:] - 1
        return np.delete(self.coordinates(parameters), last[self.shares()[last]], axis=-1)

    def draw(self, posterior: Reals, rng: Rng, draws: int | None = None) -> Floats:
        """Draw parameters: (draw, ..., parameter); one, and no axis for it, without `draws`."""
        shape = posterior.shape if draws is None else (draws, *posterior.shape)
        drawn = self.ask(Family.draw, "c", np.broadcast_to(posterior, shape), rng)
        return np.asarray(side_by_side(drawn))

    def log_prior(self, parameters: Floats) -> tuple[float, float, Floats]:
        """Log density of the prior, for each cluster and added up, and its gradient."""
        parts = self.ask(derived.log_prior, "p", parameters)
        constant, value, slopes = zip(*parts, strict=True)
        return sum(constant), sum(float(np.sum(part)) for part in value), side_by_side(slopes)

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
