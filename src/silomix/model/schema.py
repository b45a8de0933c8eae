"""Variables and their levels, the rows of one silo coded by them, and the prior of the model.

A silo's share of the prior, its power 1/S, is `Prior.share`, and `families.product` applies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from silomix.kernels.arrays import Array, Codes, Floats, Ints

if TYPE_CHECKING:
    from silomix.families.product import Product

Missing = Literal["marginalise", "level"]
# Name of the extra level that `missing="level"` gives to a variable with missing cells.
MISSING_LEVEL = "(missing)"


@dataclass(frozen=True)
class Variable:
    """One variable: its name, its kind, and how the cells of its column are read.

    Attributes
    ----------
    levels : of a categorical variable, in the order of their codes.
    kind : "categorical", or the word of another family of `silomix.families`.
    location, scale : of numbers, so that (x − location)/scale is of the order of one in all silos;
        of counts, the location is their mean. They are of the study, not estimated in a silo.
    transform : "log" where the logarithm of the number is modelled; also "logit", of a parameter.
    prior : of a parameter, the mean and the standard deviation of its prior, transformed.
    spike : a value that many rows have, such as 0. Cells with it are missing in the number; a
        second variable, with levels "no" and "yes", indicates them.
    source : of that second variable, the column with the number.
    edges : of a categorical variable cut from numbers, where each level but the first begins.
    na_values : texts that stand for a missing cell.
    other : the level given to unknown values; "" where they are refused.

    Examples
    --------
    >>> silomix.Variable("smoker", ("no", "yes")).levels
    ('no', 'yes')
    >>> silomix.Variable("age", kind="gaussian", location=54.0, scale=9.0).kind
    'gaussian'
    """

    name: str
    levels: tuple[str, ...] = ()
    kind: str = "categorical"
    location: float = 0.0
    scale: float = 1.0
    transform: str = "none"
    spike: float | None = None
    source: str = ""
    edges: tuple[float, ...] = ()
    prior: tuple[float, ...] = ()
    na_values: tuple[str, ...] = ()
    other: str = ""

    @property
    def column(self) -> str:
        """Name of the column with its cells."""
        return self.source or self.name


@dataclass(frozen=True)
class Schema:
    """The variables every silo of a study shares, and what a missing cell means.

    Attributes
    ----------
    variables : those of one kind next to each other, in the order of `families.KINDS`.
    missing : "marginalise" leaves a missing cell out of the likelihood (exact under missing at
        random); "level" makes it one more level, `MISSING_LEVEL`, of the variables that have it.

    Examples
    --------
    >>> smoker = silomix.Variable("smoker", ("no", "yes"))
    >>> stage = silomix.Variable("stage", ("I", "II", "III"))
    >>> schema = silomix.Schema((smoker, stage))
    >>> schema.sizes.tolist(), schema.offsets.tolist()
    ([2, 3], [0, 2, 5])
    >>> schema.levels[:3]
    [('smoker', 'no'), ('smoker', 'yes'), ('stage', 'I')]
    """

    variables: tuple[Variable, ...]
    missing: Missing = "marginalise"

    @cached_property
    def categories(self) -> tuple[Variable, ...]:
        """The variables with levels."""
        return tuple(v for v in self.variables if v.levels)

    @cached_property
    def numbers(self) -> tuple[Variable, ...]:
        """The other variables."""
        return tuple(v for v in self.variables if not v.levels)

    @property
    def of_parameters(self) -> bool:
        """Whether the variables are parameters of clusters sampled elsewhere, not columns."""
        return any(v.kind == "parameter" for v in self.variables)

    @cached_property
    def sizes(self) -> Ints:
        """K_q, the number of levels of each categorical variable: (variable,)."""
        return np.array([len(variable.levels) for variable in self.categories], dtype=np.int64)

    @cached_property
    def offsets(self) -> Ints:
        """Index of each variable's first level among the D = ΣK_q: (variable + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def levels(self) -> list[tuple[str, str]]:
        """(variable, level) of each of the D level columns."""
        return [(v.name, level) for v in self.categories for level in v.levels]


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows of one silo: level codes, and numbers in the study's units. They never leave it.

    Attributes
    ----------
    schema : what the columns and codes mean.
    codes : (row, categorical variable), unsigned, the smallest type that holds them; code k < K_q
        is level k of the variable, code K_q is a missing cell.
    numbers : (row, other variable), transformed, less the location, over the scale; counts as they
        are; nan is a missing cell. None where all variables are categories.

    Examples
    --------
    >>> shard = draws.shard
    >>> shard.rows, shard.codes.shape
    (200, (200, 10))
    """

    schema: Schema
    codes: Codes
    numbers: Floats | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.codes.shape[0])

    @cached_property
    def cells(self) -> tuple[Array, ...]:
        """Cells of each kind of variable in turn: (row, variable of that kind)."""
        blocks: list[Array] = []
        codes = numbers = 0
        for _, group in groupby(self.schema.variables, key=lambda variable: variable.kind):
            variables = list(group)
            if variables[0].levels:
                blocks.append(self.codes[:, codes : codes + len(variables)])
                codes += len(variables)
            elif self.numbers is not None:
                blocks.append(self.numbers[:, numbers : numbers + len(variables)])
                numbers += len(variables)
        return tuple(blocks)

    @property
    def missing(self) -> Ints:
        """Number of missing cells of each variable: (variable,)."""
        columns = [column for block in self.cells for column in block.T]
        pairs = zip(self.schema.variables, columns, strict=True)
        return np.array([(x == len(v.levels) if v.levels else np.isnan(x)).sum() for v, x in pairs])

    def some(self, rows: Array) -> Shard:
        """The shard with a subset of the rows, given by indices or a mask."""
        numbers = None if self.numbers is None else self.numbers[rows]
        return Shard(self.schema, self.codes[rows], numbers)


@dataclass(frozen=True)
class Prior:
    """Symmetric Dirichlet priors of the pooled model, and a silo's fraction of them.

    Attributes
    ----------
    alpha : concentration of the mixture weights.
    beta : concentration of the level probabilities.
    fractionate : whether a silo uses the prior to the power 1/S.

    Examples
    --------
    >>> silomix.Prior().share(silos=2)
    (0.75, 0.75)
    >>> silomix.Prior(fractionate=False).share(silos=2)
    (0.5, 0.5)
    """

    alpha: float = 0.5
    beta: float = 0.5
    fractionate: bool = True

    def share(self, silos: int) -> tuple[float, float]:
        """One silo's (alpha, beta) in a study of `silos` silos.

        The priors of numbers are kept whole: `silomix.families.product.Product.share`.
        """
        if not self.fractionate:
            return self.alpha, self.beta
        from silomix.families.categorical import fractional

        return fractional(self.alpha, silos), fractional(self.beta, silos)


class PooledModel(NamedTuple):
    """Prior, family and seed, as every stage of the coordinator needs them.

    Attributes
    ----------
    prior : of the model of all silos' rows together, before fractionation.
    family : of the variables, under that prior.
    seed : of all random numbers; results are reproducible.
    """

    prior: Prior
    family: Product
    seed: int

    def shared_family(self, silos: int) -> Product:
        """Family under a silo's fraction of the prior in a study of `silos` silos."""
        return self.family.share(silos) if self.prior.fractionate else self.family
