"""Whether a release that a silo is shown could have left that silo, under its own policy.

Questions about other silos' releases are answered with sums over the rows that no rule rounds. A
silo cannot know those releases, and made-up ones could be of single rows; so it answers only about
such as its own policy would let out. That refuses the plain attack. It does not make the answers
harmless: sums stay exact, and how many rows a release stands for is what its sender says.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from silomix.disclosure import least_units, pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from silomix.release import Release
    from silomix.study.policy import Policy

SAME = 1e-6
"""How far a count may be from a whole number, floating point being what it is."""
NEAR = 1e-9
"""And a probability from the pool that it stands for."""


def breaches(release: Release, policy: Policy, offsets: NDArray[np.int64]) -> Iterator[str]:
    """Yield what the policy would not have let out of a release, as the end of a sentence.

    A stricter policy's releases pass: their profiles are rounded counts of their clusters, or the
    pool of those that are, or uniform.

    Parameters
    ----------
    offsets : (variable + 1,), where each variable's levels start.
    """
    if release.tier not in policy.tiers:
        yield f"is of tier {release.tier!r}"
    if policy.has_rules:
        yield from _broken_rules(release, policy, offsets)


def _broken_rules(release: Release, policy: Policy, offsets: NDArray[np.int64]) -> Iterator[str]:
    if release.weights is not None or release.probabilities is not None:
        yield "has draws, which no rule can be held against"
    base, least = policy.round_to, least_units(policy) * policy.round_to
    sizes = release.sizes
    if sizes.min() < least:
        yield f"has a cluster of {sizes.min():,} rows, under {least:,}"
    if (sizes % base).any():
        yield f"has a cluster of {sizes[sizes % base > 0][0]:,} rows, no multiple of {base:,}"
    for variable, (start, end) in enumerate(pairwise(offsets)):
        if not _could_leave(release.mean[:, start:end], sizes, policy):
            yield f"has a profile of variable {variable + 1} that is no rounded count of rows"
    if (release.concentration > sizes[:, None] * (1 + SAME)).any():
        yield "is surer of a profile than its rows can make it"


def _could_leave(mean: NDArray[np.float64], sizes: NDArray[np.int64], policy: Policy) -> bool:
    """Tell whether the profiles of a variable, (cluster, level), are such as leave a silo."""
    counts = mean * sizes[:, None]
    units = counts / policy.round_to
    whole = (np.abs(units - np.rint(units)) <= SAME) & (units >= least_units(policy) - SAME)
    own = whole.all(axis=1)
    stand_ins = pool(mean[own], sizes[own]), np.full(mean.shape[1], 1.0 / mean.shape[1])
    near = [np.abs(mean - other).max(axis=1) <= NEAR for other in stand_ins]
    return bool((own | near[0] | near[1]).all())
