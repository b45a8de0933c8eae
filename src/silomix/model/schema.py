"""Variables and their levels, and the rows of one silo in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from silomix.kernels.arrays import Codes, Ints

Missing = Literal["marginalise", "level"]
# Name of the extra level that `missing="level"` gives to a variable with missing cells.
MISSING_LEVEL = "(missing)"


@dataclass(frozen=True)
class Variable:
    """One categorical variable: its name and its levels, in the order of their codes.

    Examples
    --------
    >>> silomix.Variable("smoker", ("no", "yes")).levels
    ('no', 'yes')
    """

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class Schema:
    """The variables every silo of a study shares, and what a missing cell means.

    Attributes
    ----------
    variables : in the order of the code columns.
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
    def sizes(self) -> Ints:
        """K_q, the number of levels of each variable: (variable,)."""
        return np.array([len(variable.levels) for variable in self.variables], dtype=np.int64)

    @cached_property
    def offsets(self) -> Ints:
        """Where each variable's levels start in a row of D = ΣK_q columns: (variable + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def levels(self) -> list[tuple[str, str]]:
        """What each of the D level columns stands for: (variable, level)."""
        return [(v.name, level) for v in self.variables for level in v.levels]


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows of one silo as level codes. They never leave it.

    Attributes
    ----------
    schema : what the columns and codes mean.
    codes : (row, variable), unsigned, the smallest type that holds them; code k < K_q is level
        k of the variable, code K_q is a missing cell.

    Examples
    --------
    >>> shard = draws.shard
    >>> shard.rows, shard.codes.shape
    (200, (200, 10))
    """

    schema: Schema
    codes: Codes

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.codes.shape[0])
