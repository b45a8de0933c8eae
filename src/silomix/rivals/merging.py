"""Merge the components of all silos from their counts alone, while the lower bound rises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from silomix.errors import SettingsError
from silomix.rivals.variational import pair_gain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.rivals.levels import Levels

REJECTIONS = 10
"""A random search ends after so many rejected pairs in a row for each component to begin with."""


@dataclass(frozen=True)
class Merging:
    """How the components of all silos are merged.

    Attributes
    ----------
    pairs : "cross" never puts two components of one silo together; "any" may.
    search : "greedy" takes the best pair each time; "random" any pair that raises the bound.

    Examples
    --------
    >>> silomix.rivals.Merging(pairs="any")
    Merging(pairs='any', search='greedy')
    """

    pairs: Literal["cross", "any"] = "cross"
    search: Literal["greedy", "random"] = "greedy"

    def __post_init__(self) -> None:
        for name, words in (("pairs", ("cross", "any")), ("search", ("greedy", "random"))):
            if getattr(self, name) not in words:
                raise SettingsError(
                    f"{name}={getattr(self, name)!r} is unknown; choose from {list(words)}"
                )


@dataclass(frozen=True, eq=False)
class Components:
    """Groups of components; at first each is alone. Merging writes into the place of the first.

    Attributes
    ----------
    members : (group,); counts : (group, level), summed over the group.
    held : (group, silo), which silos have a component in it.
    lost : (group, group), entropy lost in a merge, zero across silos; None to keep the components
        of a silo apart.
    levels, alpha : the priors.
    """

    members: NDArray[np.float64]
    counts: NDArray[np.float64]
    held: NDArray[np.bool_]
    lost: NDArray[np.float64] | None
    levels: Levels
    alpha: float

    def gain(self, one: int, others: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the rise of the bound when a group takes each of some others: (other,).

        The shares of components of different silos do not overlap, so their merge costs no
        entropy and needs counts only. For components of one silo the loss is that of the pairs:
        exact for two, and for more never less than the true one, so that no merge is taken that
        lowers the bound.
        """
        gains = pair_gain(
            self.levels,
            self.alpha,
            (self.members[one], self.members[others]),
            (self.counts[one], self.counts[others]),
        )
        if self.lost is not None:
            return gains + self.lost[one, others]
        shared = (self.held[others] & self.held[one]).any(axis=1)
        return np.where(shared, -np.inf, gains)

    def join(self, one: int, other: int) -> None:
        """Add a group to another, in place."""
        self.members[one] += self.members[other]
        self.counts[one] += self.counts[other]
        self.held[one] |= self.held[other]
        if self.lost is not None:
            self.lost[one] += self.lost[other]
            self.lost[:, one] = self.lost[one]


def greedy_search(components: Components) -> NDArray[np.int64]:
    """Merge the best pair until none raises the bound; return the groups: (component,).

    Each group remembers its best later partner, and looks again only when that one changed.
    """
    total = len(components.members)
    groups = np.arange(total)
    alive = np.ones(total, dtype=bool)
    gains = np.full((total, total), -np.inf)
    for one in range(total):
        later = np.arange(one + 1, total)
        gains[one, later] = components.gain(one, later)
    best = gains.max(axis=1)
    while best[one := int(best.argmax())] > 0:
        other = int(gains[one].argmax())
        components.join(one, other)
        groups[groups == other] = one
        alive[other] = False
        changed = np.flatnonzero((gains[:, [one, other]] == best[:, None]).any(axis=1) & alive)
        gains[other], gains[:, other] = -np.inf, -np.inf
        rest = np.flatnonzero(alive & (np.arange(total) != one))
        fresh = components.gain(one, rest)
        after = rest > one
        gains[one, rest[after]] = fresh[after]
        gains[rest[~after], one] = fresh[~after]
        best[other] = -np.inf
        best[rest] = np.maximum(best[rest], gains[rest, one])
        again = np.append(changed, one)
        best[again] = gains[again].max(axis=1)
    return groups


def random_search(components: Components, rng: np.random.Generator) -> NDArray[np.int64]:
    """Try random pairs and take each that raises the bound; return the groups: (component,)."""
    groups = np.arange(len(components.members))
    alive = list(groups)
    patience, rejected = REJECTIONS * len(alive), 0
    while len(alive) > 1 and rejected < patience:
        one, other = (alive[at] for at in rng.choice(len(alive), 2, replace=False))
        rejected += 1
        if components.gain(one, np.array([other]))[0] > 0:
            components.join(one, other)
            groups[groups == other] = one
            alive.remove(other)
            rejected = 0
    return groups


def largest_first(groups: NDArray[np.int64], sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return groups 0, 1, … numbered anew by decreasing sums of sizes, equal ones as before."""
    order = np.argsort(-np.bincount(groups, weights=sizes), kind="stable")
    return np.argsort(order)[groups]
