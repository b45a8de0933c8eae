"""Priors of partitions, as the odds that a block of rows joins a cluster or opens one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np
from scipy.special import gammaln

from silomix.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Start = Literal["apart", "together"]


class Odds(Protocol):
    """What a prior of partitions says of a block of rows; `start` is where a chain begins."""

    start: ClassVar[Start]

    def join(self, rows: NDArray[np.float64], block: float, /) -> NDArray[np.float64]:
        """Return the log odds of joining each of some clusters, given their rows: (cluster,)."""
        ...

    def open(self, block: float, clusters: int, /) -> float:
        """Return the log odds of a cluster of its own, given how many others there are."""
        ...


def positive(name: str, value: float) -> None:
    """Refuse a parameter that is not above zero."""
    if not value > 0:
        raise SettingsError(f"{name} is {value}; it must be above 0")


@dataclass(frozen=True)
class DirichletProcess:
    """Join with Γ(N + m)/Γ(N), open with α Γ(m): SNOB (Zuanetti et al., 2019).

    Examples
    --------
    >>> silomix.rivals.DirichletProcess(concentration=2.0).concentration
    2.0
    """

    concentration: float = 1.0
    start: ClassVar[Start] = "apart"

    def __post_init__(self) -> None:
        positive("concentration", self.concentration)

    def join(self, rows: NDArray[np.float64], block: float, /) -> NDArray[np.float64]:
        """Return the log odds of joining: (cluster,)."""
        return np.asarray(gammaln(rows + block) - gammaln(rows))

    def open(self, block: float, _clusters: int, /) -> float:
        """Return the log odds of a cluster of its own."""
        return float(np.log(self.concentration) + gammaln(block))


@dataclass(frozen=True)
class PitmanYor:
    """Join with Γ(N − σ + m)/Γ(N − σ), open with (θ + σk) Γ(m − σ)/Γ(1 − σ).

    SIGN (Ni et al., 2020).

    Attributes
    ----------
    discount : σ, from 0 (a Dirichlet process) to below 1.
    strength : θ, above 0.

    Examples
    --------
    >>> silomix.rivals.PitmanYor(discount=0.5)
    PitmanYor(discount=0.5, strength=1.0)
    """

    discount: float = 0.25
    strength: float = 1.0
    start: ClassVar[Start] = "apart"

    def __post_init__(self) -> None:
        positive("strength", self.strength)
        if not 0 <= self.discount < 1:
            raise SettingsError(f"discount is {self.discount}; it must be from 0 to below 1")

    def join(self, rows: NDArray[np.float64], block: float, /) -> NDArray[np.float64]:
        """Return the log odds of joining: (cluster,)."""
        left = rows - self.discount
        return np.asarray(gammaln(left + block) - gammaln(left))

    def open(self, block: float, clusters: int, /) -> float:
        """Return the log odds of a cluster of its own."""
        fresh = gammaln(block - self.discount) - gammaln(1 - self.discount)
        return float(np.log(self.strength + self.discount * clusters) + fresh)


@dataclass(frozen=True)
class FiniteDirichlet:
    """Join with Γ(a + N + m)/Γ(a + N), open with (C − k) Γ(a + m)/Γ(a): C components.

    Attributes
    ----------
    components : C, empty ones included.
    concentration : a, of their weights.

    Examples
    --------
    >>> silomix.rivals.FiniteDirichlet(components=10)
    FiniteDirichlet(components=10, concentration=0.5)
    """

    components: int = 15
    concentration: float = 0.5
    start: ClassVar[Start] = "apart"

    def __post_init__(self) -> None:
        positive("components", self.components)
        positive("concentration", self.concentration)

    def join(self, rows: NDArray[np.float64], block: float, /) -> NDArray[np.float64]:
        """Return the log odds of joining: (cluster,)."""
        full = rows + self.concentration
        return np.asarray(gammaln(full + block) - gammaln(full))

    def open(self, block: float, clusters: int, /) -> float:
        """Return the log odds of a cluster of its own; −inf when every component is taken."""
        if clusters >= self.components:
            return -np.inf
        fresh = gammaln(self.concentration + block) - gammaln(self.concentration)
        return float(np.log(self.components - clusters) + fresh)


@dataclass(frozen=True)
class MasterOdds:
    """Join with N + 1, open with α: the master of DisCGS (Khoufache et al., 2024).

    A block counts as one row, so these are the odds of no prior: the step is an approximation.
    It starts from all blocks together. The multinomial version of DisCGS has α = 0.1 blocks a
    silo, which is the default here when a silo has five.

    Examples
    --------
    >>> silomix.rivals.MasterOdds()
    MasterOdds(concentration=0.5)
    """

    concentration: float = 0.5
    start: ClassVar[Start] = "together"

    def __post_init__(self) -> None:
        positive("concentration", self.concentration)

    def join(self, rows: NDArray[np.float64], _block: float, /) -> NDArray[np.float64]:
        """Return the log odds of joining: (cluster,)."""
        return np.asarray(np.log(rows + 1.0))

    def open(self, _block: float, _clusters: int, /) -> float:
        """Return the log odds of a cluster of its own."""
        return float(np.log(self.concentration))


ODDS: dict[str, Odds] = {
    "dirichlet-process": DirichletProcess(),
    "pitman-yor": PitmanYor(),
    "finite": FiniteDirichlet(),
    "discgs": MasterOdds(),
}


def choose_odds(odds: str | Odds) -> Odds:
    """Turn a word into a prior of partitions; a prior stays as it is."""
    if not isinstance(odds, str):
        return odds
    if odds not in ODDS:
        raise SettingsError(f"odds={odds!r} is unknown; choose from {list(ODDS)}, or give a record")
    return ODDS[odds]
