"""Rounding of counts under a policy: what every kind of variable shares, and level counts.

`disclosure.py` applies these rules, and those of numbers, to all kinds; `silo/release.py` has all
the rules in their order.

Of categories, level counts are rounded, and none leaves below the minimum. They are counts of the
rows whose cell is known, so their sum is the number of these, rounded like every other count
(`round_known`). Anybody who knows the policy can compute what it makes of counts. What a rounded
release can stand for is sampled: taken for exact, rounded counts make intervals that are too short,
and floors make rare levels too common. Counts are drawn on the set that would have been released
so, together with the profile that they come from (`silomix.kernels.rounded_counts`). A stand-in
profile says nothing of its cluster and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import log_ndtr

from silomix.families.categorical import Levels, shares_of
from silomix.kernels import rounded_counts
from silomix.kernels.arrays import Bools, Codes, Floats, Ints, Rng

if TYPE_CHECKING:
    from silomix.study.policy import Policy

# Of a step of half an octave, as a share of its upper end.
MIDDLE = 2**-0.25
# What a released profile is of: the cluster, those of the silo that show theirs, or nothing.
CLUSTER, SILO, UNIFORM = 0, 1, 2
# Rules that put another profile in the place of a cluster's own. They may say how often they were
# needed: the released numbers say as much.
STAND_INS = ("pooled profile", "uniform profile")
# How far a share may be from none or all, floating point being what it is.
CERTAIN = 1e-9
# And a count, or a sum in steps, from a whole number.
SAME = 1e-6
# And a profile from the pool that it stands for.
NEAR = 1e-9
# Of a probability between two numbers that are nearly the same.
TINY = 1e-15
# Labels in doubt move together, and cost more than each by itself would: a rule of thumb, seen on
# simulated silos and not derived.
DOUBT_POWER = 3.0
# Sweeps of `draw_behind_levels` that are dropped, more for each silo, and sweeps between draws.
BURN_IN, BURN_IN_BY_SILO, THIN = 300, 100, 2


class Deed(NamedTuple):
    """What a rule did: the fields of `silomix.messages.Check`."""

    rule: str
    where: str
    threshold: int
    cells: int
    changed: int
    result: str
    inside: str = ""


class Unrounded(NamedTuple):
    """A silo's clusters before the rules, small ones folded already.

    Attributes
    ----------
    member : (row, cluster), over the draws of who belongs.
    concentration : (cluster, variable), how many rows the draws are worth.
    sizes : (cluster,), rows, as released.
    known : (cluster, variable), cells, likewise, where they follow from other released numbers.
    """

    member: Floats
    concentration: Floats
    sizes: Ints
    known: Ints | None


class Rounded(NamedTuple):
    """What may leave of a silo's clusters.

    Attributes
    ----------
    mean : (cluster, statistic); concentration : (cluster, variable)
    known : (cluster, variable), rows whose cell is known: see `round_known`.
    deeds : what the rules did, with details that only the silo may see.
    """

    mean: Floats
    concentration: Floats
    known: Ints
    deeds: tuple[Deed, ...]


class Said(NamedTuple):
    """What local clusters, of one release or several, say of a profile.

    Attributes
    ----------
    mean : (source, statistic); concentration : (source, variable)
    known : (source, variable), rows whose cell is known, as released.
    base : (source,), what counts were rounded to; 0 where no rule changed them.
    least : (source,), rows below which no count leaves.
    """

    mean: Floats
    concentration: Floats
    known: Ints
    base: Ints
    least: Ints

    def of(self, clusters: Ints | Bools) -> Said:
        """Some of the sources."""
        return Said._make(part[clusters] for part in self)


def least_units(rules: Policy) -> int:
    """Smallest multiple of the base that reaches the minimum, in units of the base."""
    return -(-rules.minimum_count // rules.round_to)


def round_counts(counts: Ints, rules: Policy) -> Ints:
    """Round counts to the policy's base, and to no less than its minimum: same axes."""
    base = rules.round_to
    return np.maximum((counts + base // 2) // base, least_units(rules)) * base


def round_known(known: Floats, sizes: Ints, rules: Policy) -> Ints:
    """Round the number of rows whose cell is known: (cluster, variable).

    It is 0 where they are fewer than the minimum. A missing cell is a level, too: where the rounded
    number is so near the size that few cells may be missing, it is the size. That depends on
    released numbers alone, so that the difference of the two tells no more than they do. Of a
    cluster that is too small for two levels it is the size, whatever is missing.

    Parameters
    ----------
    known : (cluster, variable), on average over the draws of who belongs.
    sizes : (cluster,), as released.
    """
    counts, size = np.rint(known).astype(np.int64), sizes[:, None]
    rounded, few = round_counts(counts, rules), (least_units(rules) + 1) * rules.round_to
    some = np.where(size - rounded < few, size, rounded)
    is_small = size < 2 * least_units(rules) * rules.round_to
    return np.where((counts < max(rules.minimum_count, 1)) & ~is_small, 0, some)


def coarse_concentration(concentration: Floats, full: Floats) -> Floats:
    """Round concentrations to half octaves below that of a cluster whose members are certain.

    With certain members the concentration is the cluster's exact size, up to the noise of a
    finite number of draws: rounded finely, its average over the variables would give the size
    back. So whatever is near the full weight of the released size becomes it, and
    the rest the middle of its step.

    Parameters
    ----------
    concentration : (cluster, variable)
    full : (cluster, variable), released number of known cells.
    """
    some = np.maximum(concentration, 1.0)
    steps = np.maximum(np.floor(2 * np.log2(full / some)), 0)
    return full * np.where(steps == 0, 1.0, MIDDLE * 2 ** (-steps / 2))


def worth_in_doubt(member: Floats) -> Floats:
    """Effective sample size per row, given uncertain membership: (cluster,)."""
    doubt = (member * (1 - member)).sum(axis=0) / np.maximum(member.sum(axis=0), 1.0)
    return np.asarray((1 + doubt) ** -DOUBT_POWER)


def stand_in_deeds(basis: Ints, where: str, least: int) -> list[Deed]:
    """How often another profile stands in for a cluster's own: basis (cluster, variable)."""
    used = [int((basis == kind).sum()) for kind in (SILO, UNIFORM)]
    return [
        Deed(rule, where, least, basis.size, count, applied(count))
        for rule, count in zip(STAND_INS, used, strict=True)
    ]


def step_deed(before: Floats, after: Floats, base: int) -> Deed:
    """Changes of concentrations, (cluster, variable)."""
    ratio, changed = after / np.maximum(before, 1.0), int((after != before).sum())
    inside = f"multiplied by {ratio.min():.2f} to {ratio.max():.2f}"
    rule, where = "steps of a factor 1.41", "concentrations"
    return Deed(rule, where, base, before.size, changed, "applied", inside)


def applied(number: int) -> str:
    """Result of a rule that changed so many numbers."""
    return "applied" if number else "not needed"


def whole_counts(codes: Codes, offsets: Ints, member: Floats) -> Floats:
    """Count of each level in each cluster, in whole numbers: (cluster, level).

    The counts are means over the draws of who belongs, not those of the one partition, which are
    biased where clusters overlap.
    """
    cells = [
        [np.bincount(column, of_cluster, size + 1)[:size] for of_cluster in member.T]
        for column, size in zip(codes.T, np.diff(offsets), strict=True)
    ]
    return np.rint(np.concatenate(cells, axis=1))


def without_rare(
    codes: Codes, member: Floats, drawn: Floats, counts: Floats, offsets: Ints, rules: Policy
) -> Floats:
    """Effective sample size per known cell, without counts under the policy's minimum.

    Draws of a rare level spread the more the more rows that are in doubt have it, so moments tell
    those whom nobody has from the others. A variable with such a level takes what a row is worth
    from the cluster's other variables, the median of them; where all have one, from the doubt
    about its rows. Where no draw doubts who belongs, rows are worth what they are: moments would
    say the same but for noise, which with few draws or a strong prior comes to more than a step.

    Parameters
    ----------
    drawn : (cluster, variable), concentrations; counts : (cluster, level), of `whole_counts`.
    """
    known = np.rint(member.T @ (codes < np.diff(offsets)))
    least = least_units(rules) * rules.round_to
    rare = np.logical_or.reduceat(counts < least, offsets[:-1], axis=1)
    shown = np.where(rare, np.nan, drawn / np.maximum(known, 1.0))
    worth = worth_in_doubt(member)
    some = ~rare.all(axis=1)
    worth[some] = np.nanmedian(shown[some], axis=1)
    certain = np.asarray((np.abs(member - np.rint(member)) < CERTAIN).all(axis=0))
    worth[certain] = 1.0
    return np.where(rare | certain[:, None], worth[:, None], drawn / np.maximum(known, 1.0))


def disclose_counts(block: Levels, cells: Codes, clusters: Unrounded, rules: Policy) -> Rounded:
    """Apply a policy to level counts of one silo's clusters: see `disclosure.disclose`."""
    member, concentration, sizes, known = clusters
    offsets, counts = block.offsets, whole_counts(cells, block.offsets, member)
    exact, mean = block.known(counts), shares_of(counts, offsets)
    worth = without_rare(cells, member, concentration, counts, offsets, rules)
    known = round_known(exact, sizes, rules) if known is None else known
    return disclose_levels(mean, worth, exact, known, offsets, rules)


def disclose_levels(
    mean: Floats, worth: Floats, exact: Floats, known: Ints, offsets: Ints, rules: Policy
) -> Rounded:
    """Apply a policy to one silo's profiles, small clusters folded already.

    Parameters
    ----------
    mean : (cluster, level), shares of whole counts, without the prior.
    worth : (cluster, variable), of `without_rare`.
    exact : (cluster, variable), how many rows the shares are of: those with a level, on average
        over the draws of who belongs. known : the same, as released.
    offsets : (variable + 1,), where each variable's levels start.
    """
    levels = np.diff(offsets)
    basis = profile_basis(known, levels, rules)
    profile = np.empty_like(mean)
    for variable, (start, end) in enumerate(pairwise(offsets)):
        own, rows = basis[:, variable] == CLUSTER, known[:, variable]
        for cluster in np.flatnonzero(own):
            profile[cluster, start:end] = round_profile(
                mean[cluster, start:end], exact[cluster, variable], int(rows[cluster]), rules
            )
        profile[~own, start:end] = pool(profile[own, start:end], rows[own])
    coarse = np.where(basis == SILO, np.float64(rules.minimum_count), 0.0)
    own = basis == CLUSTER
    # of the released numbers: exact ones would tell of single missing cells
    coarse[own] = coarse_concentration(worth[own] * known[own], known[own].astype(np.float64))
    shares = mean, profile, np.repeat(exact, levels, axis=1)
    deeds = (*_deeds(*shares, np.repeat(own, levels, axis=1), rules),)
    deeds += (*stand_in_deeds(basis, "profiles", rules.minimum_count),)
    deeds += (step_deed(worth * exact, coarse, rules.round_to),)
    return Rounded(profile, coarse, known, deeds)


def _deeds(
    mean: Floats, profile: Floats, known: Floats, own: Bools, rules: Policy
) -> Iterator[Deed]:
    """Changes of profiles by the rules: all (cluster, level)."""
    base, least, where, cells = rules.round_to, rules.minimum_count, "profiles", int(own.sum())
    low = int((own & (np.rint(mean * known) < least_units(rules) * base)).sum())
    moved = np.abs(profile - mean)[own].max(initial=0.0)
    changed = int((own & (profile != mean)).sum())
    inside = f"no probability moved by more than {moved:.3f}"
    yield Deed("counts rounded", where, base, cells, changed, "applied", inside)
    inside = f"{low} levels were under it and were raised to it"
    yield Deed("minimum count", where, least, cells, low, applied(least), inside)


def pool(profiles: Floats, rows: Ints) -> Floats:
    """Pool of released profiles, (cluster, level): (level,); uniform for none.

    It is what stands in for a profile that is not released. Were it of the whole silo, the
    released ones could be subtracted, and the one that is not would be left.
    """
    if not len(profiles):
        return np.full(profiles.shape[1], 1.0 / profiles.shape[1])
    return np.asarray(rows @ profiles / rows.sum())


def profile_basis(known: Ints, levels: Ints, rules: Policy) -> Ints:
    """Source of each released profile: `CLUSTER`, `SILO` or `UNIFORM`, (cluster, variable).

    A cluster with too few known cells for every level to reach the minimum has no profile of its
    own to release. What those that have one come to stands in, if there are any. It depends on
    released numbers alone, so everyone can tell.

    Parameters
    ----------
    known : (cluster, variable), as released.
    levels : (variable,), how many each has.
    """
    own = known >= levels * least_units(rules) * rules.round_to
    return np.where(own, CLUSTER, np.where(own.any(axis=0), SILO, UNIFORM))


def round_profile(mean: Floats, known: float, rows: int, rules: Policy) -> Floats:
    """Profile whose levels, times the rows, are rounded counts: (level,).

    Multiples of round_to over the rows, each at least the minimum, summing to one. Levels under the
    minimum are raised to it, the others share the rest in proportion, and what rounding leaves
    over goes to the largest remainders. Where every level is under it, all get the same.

    It is how often a level was seen that must reach the minimum. Where numbers were rounded, its
    share of the rows may do so when that does not.

    Parameters
    ----------
    mean : (level,), sums to one.
    known : how many rows the mean is of.
    rows : as released: a multiple of the base, enough for every level to reach the minimum.
    """
    units, least = rows // rules.round_to, least_units(rules)
    low = np.rint(mean * known) < least * rules.round_to
    seen = np.ones(len(mean)) if low.all() else np.where(low, 0.0, mean)
    released = np.empty(len(mean), dtype=np.int64)
    rounded_counts.release_units(seen, units, least, released)
    return released / units


def breach_levels(block: Levels, mean: Floats, known: Ints, rules: Policy) -> str:
    """What released shares have that no rule lets out, as the end of a sentence; or ""."""
    least = least_units(rules)
    for variable, (start, end) in enumerate(pairwise(block.offsets)):
        profiles, rows = mean[:, start:end], known[:, variable]
        units = profiles * rows[:, None] / rules.round_to
        whole = (np.abs(units - np.rint(units)) <= SAME) & (units >= least - SAME)
        own = whole.all(axis=1) & (rows >= (end - start) * least * rules.round_to)
        stand_in = pool(profiles[own], rows[own])
        if not (own | (np.abs(profiles - stand_in).max(axis=1) <= NEAR)).all():
            return f"has a profile of variable {variable + 1} that is not a rounded count"
    return ""


def draw_behind_levels(block: Levels, said: Said, draws: int, rng: Rng) -> Floats:
    """Draw a profile that all sources share, given what they released: (draw, level).

    Sources that no rule changed stand for themselves.
    """
    levels, ruled = block.statistics, (said.base > 0)[:, None]
    base, least = np.maximum(said.base, 1)[:, None], said.least[:, None]
    rows = np.repeat(said.known, levels, axis=1)
    released = np.rint(said.mean * rows / base).astype(np.int64) * ruled
    counts = said.mean * np.repeat(said.concentration, levels, axis=1)
    start = np.where(ruled, np.float64(base) * released, counts)
    own = (said.known >= levels * least) & (said.known > 0)
    worth = np.where(own, np.minimum(said.concentration / np.maximum(said.known, 1), 1.0), 0.0)
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


def log_between(low: Floats, high: Floats) -> Floats:
    """Log probability that a standard normal variable is between two values."""
    upper = low > 0
    a, b = np.where(upper, -high, low), np.where(upper, -low, high)
    return np.asarray(log_ndtr(b) + np.log1p(-np.exp(np.minimum(log_ndtr(a) - log_ndtr(b), -TINY))))
