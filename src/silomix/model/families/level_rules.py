"""The rules of a policy for categories: level counts rounded, none below the minimum.

Anybody who knows the policy can compute what it makes of counts. What a rounded release can stand
for is sampled: taken for exact, rounded counts make intervals that are too short, and floors make
rare levels too common. Counts are drawn on the set that would have been released so, together with
the profile that they come from (`silomix.kernels.rounded_counts`). A stand-in profile says nothing
of its cluster and is left out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.kernels import rounded_counts
from silomix.model.families import dirichlet
from silomix.model.families.rounded import (
    CLUSTER,
    NEAR,
    SAME,
    SILO,
    UNIFORM,
    Deed,
    Rounded,
    applied,
    certain_members,
    coarse_concentration,
    least_units,
    stand_in_deeds,
    step_deed,
    worth_in_doubt,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.kernels.arrays import Bools, Codes, Floats, Ints, Rng
    from silomix.model.families.rounded import Rules, Said

# Sweeps of `draw_behind` that are dropped, more of them for each silo, and sweeps between draws.
BURN_IN, BURN_IN_BY_SILO, THIN = 300, 100, 2


def whole_counts(codes: Codes, offsets: Ints, member: Floats) -> Floats:
    """Return how often each level occurs in each cluster, in whole numbers: (cluster, level).

    The counts are means over the draws of who belongs, not those of the one partition, which are
    biased where clusters overlap.
    """
    return np.rint(dirichlet.sum_cells(codes, offsets, member))


def without_rare(
    codes: Codes, member: Floats, concentration: Floats, counts: Floats, offsets: Ints, rules: Rules
) -> Floats:
    """Return concentrations to which counts under the policy's minimum did not contribute.

    Draws of a rare level spread the more the more rows that are in doubt have it, so moments tell
    those whom nobody has from the others. A variable with such a level takes what a row is worth
    from the cluster's other variables, the median of them; where all have one, from the doubt
    about its rows. Where no draw doubts who belongs, rows are worth what they are: moments would
    say the same but for noise, which with few draws or a strong prior comes to more than a step.

    Parameters
    ----------
    concentration : (cluster, variable); counts : (cluster, level), of `whole_counts`.
    """
    known = np.rint(member.T @ (codes < np.diff(offsets)))
    least = least_units(rules) * rules.round_to
    rare = np.logical_or.reduceat(counts < least, offsets[:-1], axis=1)
    shown = np.where(rare, np.nan, concentration / np.maximum(known, 1.0))
    worth = worth_in_doubt(member)
    some = ~rare.all(axis=1)
    worth[some] = np.nanmedian(shown[some], axis=1)
    certain = certain_members(member)
    worth[certain] = 1.0
    return np.where(rare | certain[:, None], worth[:, None] * known, concentration)


def disclose(
    sizes: Ints, mean: Floats, concentration: Floats, known: Floats, offsets: Ints, rules: Rules
) -> Rounded:
    """Apply a policy to one silo's profiles, small clusters folded already.

    Parameters
    ----------
    sizes : (cluster,), rows, as released.
    mean : (cluster, level), shares of whole counts, without the prior.
    concentration : (cluster, variable), how many rows the draws are worth, without the prior.
    known : (cluster, variable), how many rows the shares are of: those with a level, on average
        over the draws of who belongs. Fewer than the minimum say nothing.
    offsets : (variable + 1,), where each variable's levels start.
    """
    levels = np.diff(offsets)
    basis = profile_basis(sizes, levels, rules)
    profile = np.empty_like(mean)
    for variable, (start, end) in enumerate(pairwise(offsets)):
        own = basis[:, variable] == CLUSTER
        for cluster in np.flatnonzero(own):
            profile[cluster, start:end] = round_profile(
                mean[cluster, start:end], known[cluster, variable], int(sizes[cluster]), rules
            )
        profile[~own, start:end] = pool(profile[own, start:end], sizes[own])
    full = np.broadcast_to(sizes[:, None], concentration.shape).astype(np.float64)
    coarse = np.where(basis == SILO, np.float64(rules.minimum_count), 0.0)
    own = (basis == CLUSTER) & (known >= rules.minimum_count)
    coarse[own] = coarse_concentration(concentration, full)[own]
    shares = mean, profile, np.repeat(known, levels, axis=1)
    deeds = (*_deeds(*shares, np.repeat(basis == CLUSTER, levels, axis=1), rules),)
    deeds += (*stand_in_deeds(basis, "profiles", rules.minimum_count),)
    return Rounded(profile, coarse, (*deeds, step_deed(concentration, coarse, rules.round_to)))


def _deeds(
    mean: Floats, profile: Floats, known: Floats, own: Bools, rules: Rules
) -> Iterator[Deed]:
    """Say what the rules did to profiles: all (cluster, level)."""
    base, least, where, cells = rules.round_to, rules.minimum_count, "profiles", int(own.sum())
    low = int((own & (np.rint(mean * known) < least_units(rules) * base)).sum())
    moved = np.abs(profile - mean)[own].max(initial=0.0)
    changed = int((own & (profile != mean)).sum())
    inside = f"no probability moved by more than {moved:.3f}"
    yield Deed("counts rounded", where, base, cells, changed, "applied", inside)
    inside = f"{low} levels were under it and were raised to it"
    yield Deed("minimum count", where, least, cells, low, applied(least), inside)


def pool(profiles: Floats, sizes: Ints) -> Floats:
    """Return what released profiles, (cluster, level), come to: (level,); uniform for none.

    It is what stands in for a profile that is not released. Were it of the whole silo, the
    released ones could be subtracted, and the one that is not would be left.
    """
    if not len(profiles):
        return np.full(profiles.shape[1], 1.0 / profiles.shape[1])
    return np.asarray(sizes @ profiles / sizes.sum())


def profile_basis(sizes: Ints, levels: Ints, rules: Rules) -> Ints:
    """Say what each released profile is of: `CLUSTER`, `SILO` or `UNIFORM`, (cluster, variable).

    A cluster with too few rows for every level to reach the minimum has no profile of its own
    to release. What those that have one come to stands in, if there are any. It depends on
    released numbers alone, so everyone can tell.

    Parameters
    ----------
    sizes : (cluster,), as released.
    levels : (variable,), how many each has.
    """
    own = sizes[:, None] >= levels * least_units(rules) * rules.round_to
    return np.where(own, CLUSTER, np.where(own.any(axis=0), SILO, UNIFORM))


def round_profile(mean: Floats, known: float, rows: int, rules: Rules) -> Floats:
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
    units, least = rows // rules.round_to, least_units(rules)
    low = np.rint(mean * known) < least * rules.round_to
    seen = np.ones(len(mean)) if low.all() else np.where(low, 0.0, mean)
    released = np.empty(len(mean), dtype=np.int64)
    rounded_counts.release_units(seen, units, least, released)
    return released / units


def could_leave(mean: Floats, sizes: Ints, rules: Rules) -> bool:
    """Tell whether the profiles of a variable, (cluster, level), are such as leave a silo."""
    units = mean * sizes[:, None] / rules.round_to
    whole = (np.abs(units - np.rint(units)) <= SAME) & (units >= least_units(rules) - SAME)
    own = whole.all(axis=1)
    stand_ins = pool(mean[own], sizes[own]), np.full(mean.shape[1], 1.0 / mean.shape[1])
    near = [np.abs(mean - other).max(axis=1) <= NEAR for other in stand_ins]
    return bool((own | near[0] | near[1]).all())


def draw_behind(block: Any, said: Said, draws: int, rng: Rng) -> Floats:
    """Draw a profile that all sources share, given what they released: (draw, level).

    Sources that no rule changed stand for themselves.
    """
    levels, ruled = block.statistics, (said.base > 0)[:, None]
    base, sizes, least = (part[:, None] for part in (said.base, said.sizes, said.least))
    base = np.maximum(base, 1)
    released = np.rint(said.mean * sizes / base).astype(np.int64) * ruled
    known = said.mean * np.repeat(said.concentration, levels, axis=1)
    start = np.where(ruled, np.float64(base) * released, known)
    own = sizes >= levels * least
    worth = np.where(own, np.minimum(said.concentration / sizes, 1.0), 0.0)
    worth = np.where(ruled, worth, 1.0)
    units = np.where(ruled, least // base, 0)[:, 0]
    profile = np.empty((draws, int(block.offsets[-1])))
    for variable, (first, last) in enumerate(pairwise(block.offsets)):
        some = worth[:, variable] > 0
        given = rounded_counts.Sources(
            np.ascontiguousarray(released[some, first:last]),
            np.ascontiguousarray(start[some, first:last]),
            said.base[some],
            units[some],
            worth[some, variable],
        )
        how = BURN_IN + BURN_IN_BY_SILO * len(given.worth), THIN, draws
        profile[:, first:last], _ = rounded_counts.draw_behind(given, block.beta, *how, rng)
    return profile
