"""What every silo assumes: variables and their levels, the prior and a silo's share of it; rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.kernels.arrays import Ints

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


@dataclass(frozen=True)
class Prior:
    """Symmetric Dirichlet priors of the pooled model, and how one silo takes its share.

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
        """Return one silo's (alpha, beta) in a study of `silos` silos."""
        if not self.fractionate:
            return self.alpha, self.beta
        return fractionate(self.alpha, silos), fractionate(self.beta, silos)


def fractionate(concentration: float, silos: int) -> float:
    """Return (a − 1)/S + 1, the concentration of a Dirichlet prior to the power 1/S.

    Fendler et al. (2026), section 4.2 "The apply step".
    """
    return (concentration - 1) / silos + 1


class PooledModel(NamedTuple):
    """What every stage of the coordinator needs to know of a study.

    Attributes
    ----------
    prior : of the model of all silos' rows together, not a silo's share of it.
    offsets : (variable + 1,), where each variable's levels start.
    seed : of all randomness: same seed, same answer.
    """

    prior: Prior
    offsets: Ints
    seed: int


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
    codes: NDArray[np.unsignedinteger]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.codes.shape[0])
