"""Blocks of variables side by side: the family that every study has.

Columns are concatenated, block after block, and each method hands every block its own. See
`silomix.model.families.family` for what the vectors and methods are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.model.families.categorical import Categorical
from silomix.model.families.rounded import Rounded

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Floats, Ints, Reals, Rng
    from silomix.model.families.family import Family
    from silomix.model.families.rounded import Rules, Said
    from silomix.model.schema import Shard, Variable

VARIABLE, PARAMETER, STATISTIC, NUMBER = range(4)


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
        """How many parameters each variable has: (variable,)."""
        return np.concatenate([block.parameters for block in self.blocks])

    @cached_property
    def statistics(self) -> Ints:
        """How many statistics each variable has: (variable,)."""
        return np.concatenate([block.statistics for block in self.blocks])

    @cached_property
    def posterior_numbers(self) -> Ints:
        """How many posterior numbers each variable has: (variable,)."""
        return np.concatenate([block.posterior_numbers for block in self.blocks])

    @property
    def is_categorical(self) -> bool:
        """Whether all variables are categories, for which there are faster kernels."""
        return all(isinstance(block, Categorical) for block in self.blocks)

    @cached_property
    def categories(self) -> Categorical:
        """The block of categories, one without variables where there is none."""
        found = (block for block in self.blocks if isinstance(block, Categorical))
        return next(found, Categorical(()))

    @cached_property
    def free(self) -> int:
        """Free coordinates of a cluster's parameters."""
        return sum(block.free for block in self.blocks)

    @cached_property
    def _spans(self) -> tuple[tuple[slice, ...], ...]:
        """For each block, where its variables, parameters, statistics and numbers are."""
        sizes = [
            (len(b.variables), b.parameters.sum(), b.statistics.sum(), b.posterior_numbers.sum())
            for b in self.blocks
        ]
        ends = np.cumsum([(0, 0, 0, 0), *sizes], axis=0)
        return tuple(
            tuple(slice(*span) for span in zip(first, last, strict=True))
            for first, last in pairwise(ends.tolist())
        )

    def _each(
        self, method: str, *given: tuple[int, Array | None], rest: Any = (), **same: Any
    ) -> list[Any]:
        """Call a method of every block with its columns of each array, and what is the same."""
        found = []
        for block, spans in zip(self.blocks, self._spans, strict=True):
            own = [None if array is None else array[..., spans[kind]] for kind, array in given]
            found.append(getattr(block, method)(*own, *rest, **same))
        return found

    def names(self) -> list[tuple[str, str]]:
        """Return the variable and what it is called of each parameter."""
        return [name for block in self.blocks for name in block.names()]

    @cached_property
    def offsets(self) -> Ints:
        """Where each variable's parameters start: (variable + 1,)."""
        return np.concatenate([[0], np.cumsum(self.parameters)]).astype(np.int64)

    def describe(self, parameters: Reals) -> Reals:
        """Return the parameters in the units of the table, or of its logarithms: as they came."""
        return _joined(self._each("describe", (PARAMETER, parameters)))

    def whole(self, parameters: Reals, weights: Reals) -> Floats:
        """Return what clusters are compared with, each parameter over all rows: (draw, parameter).

        Parameters
        ----------
        parameters : (draw, cluster, parameter); weights : (draw, cluster)
        """
        return _joined(self._each("whole", (PARAMETER, parameters), rest=(weights,)))

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Return how far a cluster is from the whole, comparable: (..., parameter)."""
        given = (PARAMETER, parameters), (PARAMETER, whole)
        return _joined(self._each("scaled_difference", *given))

    def share(self, silos: int) -> Product:
        """Return the family with the share of the prior that one of several silos takes."""
        return Product(tuple(block.share(silos) for block in self.blocks))

    def repeat(self, by_variable: Array) -> Array:
        """Return a value for each statistic, of a value for each variable: (..., statistic)."""
        return np.repeat(by_variable, self.statistics, axis=-1)

    def features(self, shard: Shard) -> Floats:
        """Return T(x): (row, statistic)."""
        cells = zip(self.blocks, shard.cells, strict=True)
        return _joined([block.features(part) for block, part in cells])

    def log_base(self, shard: Shard) -> Floats:
        """Return what log p(x) has beside T · η: (row,)."""
        cells = zip(self.blocks, shard.cells, strict=True)
        return np.asarray(sum(block.log_base(part) for block, part in cells))

    def natural(self, parameters: Reals) -> Floats:
        """Return η: (..., statistic)."""
        return _joined(self._each("natural", (PARAMETER, parameters)))

    def moments(self, parameters: Reals) -> Floats:
        """Return E T(x): (..., statistic)."""
        return _joined(self._each("moments", (PARAMETER, parameters)))

    def from_moments(self, moments: Floats) -> Floats:
        """Return the parameters with these moments: (..., parameter)."""
        return _joined(self._each("from_moments", (STATISTIC, moments)))

    def columns(self, parameters: Reals) -> Floats:
        """Return η with the clusters side by side: (draw, statistic, cluster)."""
        # in double precision the smallest probability is not zero
        natural = self.natural(parameters.astype(np.float64))
        return np.ascontiguousarray(np.swapaxes(natural, 1, 2))

    def places(self, moments: Floats) -> Floats:
        """Return where clusters with these moments are, for distances: (..., parameter)."""
        return _joined(self._each("places", (STATISTIC, moments)))

    def inside(self, parameters: Floats) -> Floats:
        """Return parameters that are not at the edge of what they can be."""
        return _joined(self._each("inside", (PARAMETER, parameters)))

    def prior(self) -> Floats:
        """Return the posterior numbers of no rows: (number,)."""
        return _joined(self._each("prior"))

    def posterior(self, statistics: Array, prior: Floats | None = None) -> Floats:
        """Return the posterior numbers given rows with these sums: (..., number)."""
        return _joined(self._each("posterior", (STATISTIC, statistics), (NUMBER, prior)))

    def draw(self, posterior: Reals, rng: Rng, draws: int | None = None) -> Floats:
        """Draw parameters: (draw, ..., parameter); one, and no axis for it, without `draws`."""
        return _joined(self._each("draw", (NUMBER, posterior), rest=(rng, draws)))

    def log_evidence(self, statistics: Array, prior: Floats | None = None) -> Floats:
        """Return log p(cells) up to log_base, parameters integrated out: (..., variable)."""
        return _joined(self._each("log_evidence", (STATISTIC, statistics), (NUMBER, prior)))

    def expected_natural(self, statistics: Floats) -> Floats:
        """Return E η under the posterior given these sums: (..., statistic)."""
        return _joined(self._each("expected_natural", (STATISTIC, statistics)))

    def known(self, statistics: Array) -> Floats:
        """Return how many rows have a cell: (..., variable)."""
        return _joined(self._each("known", (STATISTIC, statistics)))

    def cells(self, statistics: Floats) -> Floats:
        """Return how many cells there are in all: (...,)."""
        return np.asarray(sum(self._each("cells", (STATISTIC, statistics))))

    def valid(self, statistics: Floats) -> Floats:
        """Return sums that rows can have, near those that moments gave."""
        return _joined(self._each("valid", (STATISTIC, statistics)))

    def fit(self, draws: Reals) -> Floats:
        """Return the sums of the rows that a posterior with such draws must have seen."""
        return _joined(self._each("fit", (PARAMETER, draws)))

    def means(self, statistics: Floats) -> tuple[Floats, Floats]:
        """Return the mean statistics of a row, and how many rows have each: (..., variable)."""
        pairs = self._each("means", (STATISTIC, statistics))
        mean, known = zip(*pairs, strict=True)
        return _joined(mean), _joined(known)

    def medians(self, posterior: Floats) -> Floats:
        """Return the medians of the parameters: (..., parameter)."""
        return _joined(self._each("medians", (NUMBER, posterior)))

    def variances(self, mean: Floats, concentration: Floats) -> Floats:
        """Return the posterior variances of the coordinates: (..., parameter)."""
        return _joined(self._each("variances", (STATISTIC, mean), (VARIABLE, concentration)))

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Return the gradient of the log-likelihood of rows with these sums: (..., parameter)."""
        return _joined(self._each("score", (PARAMETER, parameters), (STATISTIC, statistics)))

    def log_prior(self, parameters: Floats) -> tuple[float, float, Floats]:
        """Return the log density of the prior, and its gradient.

        Returns
        -------
        constant : for each cluster; value : the rest, added up over all axes.
        gradient : (..., parameter)
        """
        parts = self._each("log_prior", (PARAMETER, parameters))
        constant, value, slopes = zip(*parts, strict=True)
        return sum(constant), sum(value), _joined(slopes)

    def coordinates(self, parameters: Reals) -> Floats:
        """Return the parameters where distances mean something: (..., parameter)."""
        return _joined(self._each("coordinates", (PARAMETER, parameters)))

    def free_coordinates(self, parameters: Reals) -> Floats:
        """Return as many coordinates as are free: (..., coordinate)."""
        return _joined(self._each("free_coordinates", (PARAMETER, parameters)))

    def back(self, coordinates: Floats) -> Floats:
        """Return the parameters at, or nearest to, these coordinates."""
        return _joined(self._each("back", (PARAMETER, coordinates)))

    def log_affinity(self, one: Floats, other: Floats) -> Floats:
        """Return the log of Bhattacharyya's coefficient of two clusters: (..., variable)."""
        return _joined(self._each("log_affinity", (PARAMETER, one), (PARAMETER, other)))

    def overlap(self, one: Array, other: Array) -> Floats:
        """Return how many cells two clusters of rows may have in common: (..., variable)."""
        return _joined(self._each("overlap", (STATISTIC, one), (STATISTIC, other)))

    def problems(self, parameters: Reals, *, together: bool = True) -> str:
        """Say what is wrong with parameters from elsewhere, as the end of a sentence; or "".

        Parameters
        ----------
        together : whether the parameters of a variable belong together, as those of a draw do.
        """
        found = self._each("problems", (PARAMETER, parameters), together=together)
        return next(filter(None, found), "")

    def mean_problems(self, mean: Floats) -> str:
        """Say what is wrong with mean statistics from elsewhere, likewise."""
        return next(filter(None, self._each("mean_problems", (STATISTIC, mean))), "")

    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return the sums that say of the shared parameters, without drift, what these say."""
        return _joined(self._each("discount", (STATISTIC, statistics), (VARIABLE, kappa)))

    def log_remainder(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return what discounting leaves out of the log probability: (..., variable)."""
        return _joined(self._each("log_remainder", (STATISTIC, statistics), (VARIABLE, kappa)))

    def unrelated(self, statistics: Floats, worth: Floats) -> Floats:
        """Return the prior that clusters which differ seem to come from: (number,)."""
        return _joined(self._each("unrelated", (STATISTIC, statistics), rest=(worth,)))

    def draw_kappa(
        self, statistics: Array, parameters: Floats, current: Ints, log_odds: Floats, rng: Rng
    ) -> Ints:
        """Draw where κ is on the grid, silos' own parameters integrated out: (chain, variable)."""
        given = (STATISTIC, statistics), (PARAMETER, parameters), (VARIABLE, current)
        return _joined(self._each("draw_kappa", *given, rest=(log_odds, rng)))

    def shared_posterior(
        self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """Return the posterior numbers of the shared parameters: (chain, cluster, number)."""
        given = (STATISTIC, statistics), (PARAMETER, parameters), (VARIABLE, kappa)
        return _joined(self._each("shared_posterior", *given, rest=(rng,)))

    def draw_own(self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own parameters: (silo, chain, cluster, parameter)."""
        given = (STATISTIC, statistics), (PARAMETER, parameters), (VARIABLE, kappa)
        return _joined(self._each("draw_own", *given, rest=(rng,)))

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Return log p(rows | shared parameters, κ): (..., variable)."""
        given = (STATISTIC, statistics), (PARAMETER, parameters), (VARIABLE, kappa)
        return _joined(self._each("log_marginal", *given))

    def disclose(
        self, shard: Shard, member: Floats, concentration: Floats, sizes: Ints, rules: Rules
    ) -> Rounded:
        """Return what a policy lets out of a silo's clusters.

        Parameters
        ----------
        member : (row, cluster); concentration : (cluster, variable)
        sizes : (cluster,), as released.
        """
        found = [
            block.disclose(cells, member, concentration[:, spans[VARIABLE]], sizes, rules)
            for block, cells, spans in zip(self.blocks, shard.cells, self._spans, strict=True)
        ]
        mean, worth, deeds = zip(*found, strict=True)
        return Rounded(_joined(mean), _joined(worth), tuple(chain(*deeds)))

    def basis(self, sizes: Ints, concentration: Floats, rules: Rules) -> Ints:
        """Say what each released profile is of: (cluster, variable), see `rounded`."""
        given = [(concentration[:, spans[VARIABLE]], rules) for spans in self._spans]
        found = [b.basis(sizes, *rest) for b, rest in zip(self.blocks, given, strict=True)]
        return np.asarray(_joined(found))

    def breach(self, mean: Floats, concentration: Floats, sizes: Ints, rules: Rules) -> str:
        """Say what released numbers have that no rule lets out, as the end of a sentence; or ""."""
        given = (STATISTIC, mean), (VARIABLE, concentration)
        return next(filter(None, self._each("breach", *given, rest=(sizes, rules))), "")

    def draw_behind(self, said: Said, draws: int, rng: Rng) -> Floats:
        """Draw parameters that all sources share, given what they released: (draw, parameter)."""
        found = []
        for block, spans in zip(self.blocks, self._spans, strict=True):
            own = said._replace(
                mean=said.mean[:, spans[STATISTIC]],
                concentration=said.concentration[:, spans[VARIABLE]],
            )
            found.append(block.draw_behind(own, draws, rng))
        return np.asarray(_joined(found))


def _joined(parts: Any) -> Any:
    """Return the blocks' columns side by side; those of a single block as they are."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
