"""The law of rounding: what a policy makes of counts, as anybody who knows it can compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.kernels.rounded_counts import release_units

if TYPE_CHECKING:
    from silomix.kernels.arrays import Floats, Ints
    from silomix.study.policy import Policy

# Of a step of half an octave, as a share of its upper end.
MIDDLE = 2**-0.25

# Stands for a count that the policy does not let out.
WITHHELD = -1

# What a released profile is of: the cluster, those of the silo that show theirs, or nothing.
CLUSTER, SILO, UNIFORM = 0, 1, 2


@dataclass(frozen=True)
class Check:
    """What one rule did.

    Attributes
    ----------
    rule, where : the rule, and the numbers it was applied to.
    threshold : the policy's number.
    cells : how many numbers it was applied to.
    changed : how many it changed; None where that would say something about a number.
    result : "applied", "not needed" or "passed".
    inside : details that only the silo may see; empty in a release.
    """

    rule: str
    where: str
    threshold: int
    cells: int
    changed: int | None
    result: str
    inside: str = ""


FOLDED = "small clusters folded"
# Rules that put another profile in the place of a cluster's own. They may say how often they were
# needed: the released sizes say as much.
STAND_INS = ("pooled profile", "uniform profile")


def pool(profiles: Floats, sizes: Ints) -> Floats:
    """Return what released profiles, (cluster, level), come to: (level,); uniform for none.

    It is what stands in for a profile that is not released. Were it of the whole silo, the
    released ones could be subtracted, and the one that is not would be left.
    """
    if not len(profiles):
        return np.full(profiles.shape[1], 1.0 / profiles.shape[1])
    return np.asarray(sizes @ profiles / sizes.sum())


def round_counts(counts: Ints, policy: Policy) -> Ints:
    """Round counts to the policy's base, and to no less than its minimum: same axes."""
    base = policy.round_to
    return np.maximum((counts + base // 2) // base, least_units(policy)) * base


def least_units(policy: Policy) -> int:
    """Return the smallest multiple of the base that reaches the minimum, in units of the base."""
    return -(-policy.minimum_count // policy.round_to)


def profile_basis(sizes: Ints, levels: Ints, policy: Policy) -> Ints:
    """Say what each released profile is of: `CLUSTER`, `SILO` or `UNIFORM`, (cluster, variable).

    A cluster with too few rows for every level to reach the minimum has no profile of its own
    to release. What those that have one come to stands in, if there are any. It depends on
    released numbers alone, so everyone can tell.

    Parameters
    ----------
    sizes : (cluster,), as released.
    levels : (variable,), how many each has.
    """
    own = sizes[:, None] >= levels * least_units(policy) * policy.round_to
    return np.where(own, CLUSTER, np.where(own.any(axis=0), SILO, UNIFORM))


def profile_rows(sizes: Ints, levels: Ints, policy: Policy) -> Ints:
    """Return how many rows each released profile stands for, (cluster, variable); 0 for none.

    Parameters as in `profile_basis`.
    """
    own = profile_basis(sizes, levels, policy) == CLUSTER
    return np.where(own, sizes[:, None], sizes @ own)


def round_profile(mean: Floats, known: float, rows: int, policy: Policy) -> Floats:
    """Return a profile whose levels, times the rows, are rounded counts: (level,).

    Multiples of round_to/rows, each at least the minimum, summing to one. Levels under the
    minimum are raised to it, the others share the rest in proportion, and what rounding leaves
    over goes to the largest remainders. Where every level is under it, all get the same.

    It is how often a level was seen that must reach the minimum. Where cells are missing, or it is
    in doubt who belongs, its share of the rows may do so when that does not.

    Parameters
    ----------
    mean : (level,), sums to one.
    known : how many rows the mean is of.
    rows : a multiple of the base, enough for every level to reach the minimum.
    """
    units, least = rows // policy.round_to, least_units(policy)
    low = np.rint(mean * known) < least * policy.round_to
    seen = np.ones(len(mean)) if low.all() else np.where(low, 0.0, mean)
    released = np.empty(len(mean), dtype=np.int64)
    release_units(seen, units, least, released)
    return released / units


def coarse_concentration(concentration: Floats, full: Floats) -> Floats:
    """Round concentrations to half octaves below that of a cluster whose members are certain.

    With certain members the concentration is the cluster's exact size, up to the noise of a
    finite number of draws: rounded finely, its average over the variables would give the size
    back. So whatever is near the full weight of the released size becomes it, and
    the rest the middle of its step.

    Parameters
    ----------
    concentration : (cluster, variable)
    full : (cluster, variable), released size.
    """
    some = np.maximum(concentration, 1.0)
    steps = np.maximum(np.floor(2 * np.log2(full / some)), 0)
    return full * np.where(steps == 0, 1.0, MIDDLE * 2 ** (-steps / 2))
