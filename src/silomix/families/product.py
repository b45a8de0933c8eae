"""Blocks of variables side by side: the family that every study has.

Columns are concatenated, block after block, and each method hands every block its own. See
`silomix.families.family` for what the vectors and methods are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from silomix.families.categorical import Categorical
from silomix.families.family import Family
from silomix.families.release_rounding import Rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from silomix.kernels.arrays import Array, Bools, Floats, Ints, Reals, Rng
    from silomix.model.schema import Shard, Variable

# what the last axis of an argument is; one that all blocks get as it is; a shard; and a `Said`
VARIABLE, PARAMETER, STATISTIC, CONJUGATE, AS_IT_IS, CELLS, SAID = range(7)

# steps of EM that sums of hidden rows take; each leaves about 0.4 of the way to go
SETTLING = 8

P = ParamSpec("P")
R = TypeVar("R")


def side_by_side(parts: Sequence[Any]) -> Any:
    """Return the blocks' columns side by side; those of a single block as they are."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def each_side_by_side(parts: Sequence[tuple[Any, ...]]) -> Any:
    """Return several arrays, each of them side by side."""
    return tuple(side_by_side(arrays) for arrays in zip(*parts, strict=True))


def first_problem(parts: Sequence[str]) -> Any:
    """Return what the first block that says something says; or ""."""
    return next(filter(None, parts), "")


def one_list(parts: Sequence[Any]) -> Any:
    """Return the blocks' lists one after the other."""
    return list(chain(*parts))


def one_prior(parts: Sequence[tuple[float, Any, Any]]) -> Any:
    """Return the sums of the blocks' log densities, and their gradients side by side."""
    constant, value, slopes = zip(*parts, strict=True)
    return sum(constant), sum(float(np.sum(part)) for part in value), side_by_side(slopes)


def one_release(parts: Sequence[Rounded]) -> Any:
    """Return what may leave of all blocks, and what the rules did to them in turn."""
    *arrays, deeds = zip(*parts, strict=True)
    return Rounded._make([*map(side_by_side, arrays), tuple(chain(*deeds))])


def of_blocks(
    method: Callable[Concatenate[Any, P], R],
    *axes: int,
    join: Callable[[Sequence[Any]], Any] = side_by_side,
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls a family's for every block, and joins what the blocks return.

    Parameters
    ----------
    axes : of the arguments in turn; those beyond, and those with a name, are as they are.
    """

    def call(product: Product, /, *given: Any, **named: Any) -> Any:
        return join(product.ask_blocks(method.__name__, axes, *given, **named))

    call.__doc__ = method.__doc__
    return call


def of_rows(
    method: Callable[..., R], *axes: int, join: Callable[[Any], Any] = side_by_side
) -> Callable[..., R]:
    """Return such a method that takes a shard, where a block's takes its cells."""
    return of_blocks(method, CELLS, *axes, join=join)


def of_variables(name: str) -> cached_property[Array]:
    """Return a property that has what a family has by variable, block after block: (variable,)."""
    return cached_property(lambda family: np.concatenate([getattr(b, name) for b in family.blocks]))


@dataclass(frozen=True)
class Product:
    """A family made of blocks."""

    blocks: tuple[Family, ...]

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, block after block."""
        return tuple(variable for block in self.blocks for variable in block.variables)

    parameters = of_variables("parameters")
    statistics = of_variables("statistics")
    conjugates = of_variables("conjugates")
    leads = of_variables("leads")

    @property
    def is_categorical(self) -> bool:
        """Whether all variables are categories, for which there are faster kernels."""
        return all(isinstance(block, Categorical) for block in self.blocks)

    @property
    def always_hides(self) -> bool:
        """Whether every row hides something in one of the blocks."""
        return any(block.always_hides for block in self.blocks)

    @cached_property
    def categories(self) -> Categorical:
        """The block of categories, one without variables where there is none."""
        found = (block for block in self.blocks if isinstance(block, Categorical))
        return next(found, Categorical(()))

    @cached_property
    def free(self) -> int:
        """Free coordinates of a cluster's parameters."""
        return len(self.free_coordinates(self.medians(self.prior())))

    @cached_property
    def starts(self) -> Ints:
        """Where each variable's parameters start: (variable + 1,)."""
        return np.concatenate([[0], np.cumsum(self.parameters)]).astype(np.int64)

    @cached_property
    def _spans(self) -> list[tuple[slice, ...]]:
        """For each block, where its variables, parameters, statistics and χ are."""
        sizes = [
            (len(b.variables), b.parameters.sum(), b.statistics.sum(), b.conjugates.sum())
            for b in self.blocks
        ]
        ends = np.cumsum([(0, 0, 0, 0), *sizes], axis=0)
        return [(*map(slice, first, last), slice(None)) for first, last in pairwise(ends.tolist())]

    def ask_blocks(self, method: str, axes: Sequence[int], *given: Any, **named: Any) -> list[Any]:
        """Call a method of every block with its columns of each array: see `of_blocks`."""
        found = []
        for number, (block, spans) in enumerate(zip(self.blocks, self._spans, strict=True)):
            own = list(given)
            for place, (axis, array) in enumerate(zip(axes, given, strict=False)):
                if axis == CELLS:
                    own[place] = array.cells[number]
                elif axis == SAID:
                    by_variable = {
                        name: getattr(array, name)[:, spans[VARIABLE]]
                        for name in ("concentration", "known")
                    }
                    own[place] = array._replace(mean=array.mean[:, spans[STATISTIC]], **by_variable)
                elif axis != AS_IT_IS and array is not None:
                    own[place] = array[..., spans[axis]]
            found.append(getattr(block, method)(*own, **named))
        return found

    def share(self, silos: int) -> Product:
        """Return the family with the share of the prior that one of several silos takes."""
        return Product(tuple(block.share(silos) for block in self.blocks))

    def repeat(self, by_variable: Array) -> Array:
        """Return a value for each statistic, of a value for each variable: (..., statistic)."""
        return np.repeat(by_variable, self.statistics, axis=-1)

    def columns(self, parameters: Reals) -> Floats:
        """Return η with the clusters side by side: (draw, statistic, cluster)."""
        # in double precision the smallest probability is not zero
        natural = self.natural(parameters.astype(np.float64))
        return np.ascontiguousarray(np.swapaxes(natural, 1, 2))

    def draw(self, posterior: Reals, rng: Rng, draws: int | None = None) -> Floats:
        """Draw parameters: (draw, ..., parameter); one, and no axis for it, without `draws`."""
        shape = posterior.shape if draws is None else (draws, *posterior.shape)
        numbers = np.broadcast_to(posterior, shape)
        return np.asarray(side_by_side(self.ask_blocks("draw", [CONJUGATE], numbers, rng)))

    def tells(self) -> Bools:
        """Say which parameters tell clusters apart: (parameter,).

        Of numbers the first of each variable; of levels all but the first of two, which mirrors
        the other.
        """
        counts = np.repeat(self.parameters, self.parameters)
        place = np.arange(len(counts)) - np.repeat(self.starts[:-1], self.parameters)
        return np.where(self.shares(), place >= (counts == 2), place == 0)

    def free_coordinates(self, parameters: Reals) -> Reals:
        """Return coordinates without those of each variable's last level: (..., coordinate)."""
        last = self.starts[1:] - 1
        return np.delete(self.coordinates(parameters), last[self.shares()[last]], axis=-1)

    def settle(self, shard: Shard, features: Floats, shares: Floats) -> Floats:
        """Return what rows with these shares, (row, cluster), add up to: (cluster, statistic).

        Where every row hides something, that is at its mean given the sums, after steps of EM.
        """
        sums = shares.T @ features
        for _ in range(SETTLING if self.always_hides else 0):
            at = self.medians(self.prior() + self.conjugate(sums))
            for cluster, own in enumerate(shares.T):
                some = own > 0
                features = self.expected_features(shard.some(some), at[[cluster]])[:, 0]
                sums[cluster] = own[some] @ features
        return np.asarray(sums)

    features = of_rows(Family.features)
    log_base = of_rows(Family.log_base, join=sum)
    hides = of_rows(Family.hides, join=np.logical_or.reduce)
    log_density = of_rows(Family.log_density, PARAMETER, join=sum)
    complete = of_rows(Family.complete, PARAMETER)
    expected_features = of_rows(Family.expected_features, PARAMETER)
    disclose = of_rows(
        Family.disclose, AS_IT_IS, VARIABLE, AS_IT_IS, AS_IT_IS, VARIABLE, join=one_release
    )
    names = of_blocks(Family.names, join=one_list)
    shares = of_blocks(Family.shares)
    describe = of_blocks(Family.describe, PARAMETER)
    whole = of_blocks(Family.whole, PARAMETER)
    scaled_difference = of_blocks(Family.scaled_difference, PARAMETER, PARAMETER)
    natural = of_blocks(Family.natural, PARAMETER)
    moments = of_blocks(Family.moments, PARAMETER)
    from_moments = of_blocks(Family.from_moments, STATISTIC)
    places = of_blocks(Family.places, STATISTIC)
    inside = of_blocks(Family.inside, PARAMETER)
    prior = of_blocks(Family.prior)
    conjugate = of_blocks(Family.conjugate, STATISTIC)
    log_normaliser = of_blocks(Family.log_normaliser, CONJUGATE)
    log_evidence = of_blocks(Family.log_evidence, STATISTIC, CONJUGATE)
    expected_natural = of_blocks(Family.expected_natural, STATISTIC)
    known = of_blocks(Family.known, STATISTIC)
    valid = of_blocks(Family.valid, STATISTIC)
    fit = of_blocks(Family.fit, PARAMETER)
    means = of_blocks(Family.means, STATISTIC, join=each_side_by_side)
    medians = of_blocks(Family.medians, CONJUGATE)
    score = of_blocks(Family.score, PARAMETER, STATISTIC)
    log_prior = of_blocks(Family.log_prior, PARAMETER, join=one_prior)
    coordinates = of_blocks(Family.coordinates, PARAMETER)
    back = of_blocks(Family.back, PARAMETER)
    log_affinity = of_blocks(Family.log_affinity, PARAMETER, PARAMETER)
    overlap = of_blocks(Family.overlap, STATISTIC, STATISTIC)
    problems = of_blocks(Family.problems, PARAMETER, join=first_problem)
    mean_problems = of_blocks(Family.mean_problems, STATISTIC, join=first_problem)
    discount = of_blocks(Family.discount, STATISTIC, VARIABLE)
    log_remainder = of_blocks(Family.log_remainder, STATISTIC, VARIABLE)
    together = of_blocks(Family.together, VARIABLE)
    unrelated = of_blocks(Family.unrelated, STATISTIC)
    draw_kappa = of_blocks(Family.draw_kappa, STATISTIC, PARAMETER, VARIABLE)
    shared_posterior = of_blocks(Family.shared_posterior, STATISTIC, PARAMETER, VARIABLE)
    draw_own = of_blocks(Family.draw_own, STATISTIC, PARAMETER, VARIABLE)
    log_marginal = of_blocks(Family.log_marginal, STATISTIC, PARAMETER, VARIABLE)
    basis = of_blocks(Family.basis, VARIABLE, VARIABLE)
    breach = of_blocks(Family.breach, STATISTIC, VARIABLE, VARIABLE, join=first_problem)
    draw_behind = of_blocks(Family.draw_behind, SAID)
