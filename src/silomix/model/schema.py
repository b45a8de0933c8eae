"""Variables and their levels, and the rows of one silo in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from silomix.kernels.arrays import Array, Codes, Floats, Ints

Missing = Literal["marginalise", "level"]
# Name of the extra level that `missing="level"` gives to a variable with missing cells.
MISSING_LEVEL = "(missing)"


@dataclass(frozen=True)
class Variable:
    """One variable: its name, its kind, and what the cells of its column mean.

    Attributes
    ----------
    levels : of a categorical variable, in the order of their codes.
    kind : "categorical", or the word of another family of `silomix.families`.
    location, scale : of numbers, so that (x − location)/scale is of the order of one in all silos;
        of counts, the location is their mean. They are the study's, never taken from one silo.
    transform : "log" where the logarithm of the number is what is modelled; of a parameter "logit",
        too.
    prior : of a parameter, the mean and the standard deviation of its prior, transformed.
    spike : a value that many rows have, such as 0. Cells with it are missing in the number;
        another variable, with levels "no" and "yes", says which they are.
    source : of that other variable, the column with the number.
    edges : of a categorical variable cut from numbers, where each level but the first begins.
    na_values : texts that stand for a missing cell.
    other : the level of cells that are not among the levels; "" where they are refused.

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
        """The column of a table that has its cells."""
        return self.source or self.name


@dataclass(frozen=True)
class Schema:
    """The variables every silo of a study shares, and what a missing cell means.

    Attributes
    ----------
    variables : those of one kind next to each other, in the order of `families.all_kinds`.
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
        """The categorical variables."""
        return tuple(v for v in self.variables if v.kind == "categorical")

    @cached_property
    def numbers(self) -> tuple[Variable, ...]:
        """The other variables."""
        return tuple(v for v in self.variables if v.kind != "categorical")

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
        """Where each variable's levels start in a row of D = ΣK_q columns: (variable + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def levels(self) -> list[tuple[str, str]]:
        """What each of the D level columns stands for: (variable, level)."""
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
        """The cells of each kind of variable in turn: (row, variable of that kind)."""
        kinds = [variable.kind for variable in self.schema.numbers]
        edges = [0, *(i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1]), len(kinds)]
        found: list[Array] = [self.codes] if len(self.schema.categories) else []
        if self.numbers is not None:
            found += [self.numbers[:, first:last] for first, last in pairwise(edges)]
        return tuple(found)

    @property
    def missing(self) -> Ints:
        """How many cells of each variable are missing: (variable,)."""
        found = (self.codes == self.schema.sizes).sum(axis=0)
        return found if self.numbers is None else np.r_[found, np.isnan(self.numbers).sum(axis=0)]

    def some(self, rows: Array) -> Shard:
        """Return the shard of some of the rows: places, or a mask."""
        numbers = None if self.numbers is None else self.numbers[rows]
        return Shard(self.schema, self.codes[rows], numbers)
