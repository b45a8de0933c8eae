"""What a policy's rules mean for every kind of variable, and the records that kinds share for it.

A family says itself what its rules are, in three methods: `disclose`, what may leave of a silo's
rows; `breach`, whether released numbers could have left so; and `draw_behind`, parameters given
what a release can stand for.

Of categories, level counts are rounded, and none leaves below the minimum. They are counts of the
rows whose cell is known, so their sum is the number of these, rounded like every other count
(`round_known`). Anybody who knows the policy can compute what it makes of counts. What a rounded
release can stand for is sampled: taken for exact, rounded counts make intervals that are too short,
and floors make rare levels too common. Counts are drawn on the set that would have been released
so, together with the profile that they come from (`silomix.kernels.rounded_counts`). A stand-in
profile says nothing of its cluster and is left out.

Numbers leave as sums over a cluster's rows, Σx and for normal variables Σx², after three rules:

- Each value is winsorised: one beyond the family's bounds counts as the bound. So a row that takes
  another value, or leaves, moves a sum by no more than its reach, the gap of its `sum_bounds`.
- Each value is top-coded by rank: with the minimum m, one beyond the m-th smallest or the m-th
  largest value of its cluster counts as that. So fewer than m rows have no influence by being
  extreme, and whether there are such rows cannot be told.
- A sum is rounded to a multiple of reach × max(1.6, base), one step: a column of two values leaves
  no finer than its count would. What is rounded is the mean times the released concentration c,
  which is at most 1.6 times the number of known cells, or base times: so a row's own value moves
  what is rounded by no more than a step, also where cells are missing and where sizes were rounded.
- Nothing leaves of numbers that are known for fewer rows than four times the minimum.
- No released variance is below a floor.
- Nothing leaves of numbers that are nearly all at one or two values. The m − 1 rows farthest from
  these are left out before that is judged, so that they do not decide it. This takes the place of
  the dominance rule of official statistics (Hundepool et al., 2012), which reveals by its refusals
  that a few rows dominate.

How many rows a mean is worth goes by the doubt about who belongs to the cluster, never by values,
and leaves in steps of half octaves. A cluster with fewer known cells than the minimum, or whose
numbers a few rows decide, has the pool of the others' means instead, or the prior's, and
concentration 0, by which everyone can tell.

Behind a release are all sums within half a step, and all smaller Σx² where the floor was used.
`draw_behind_sums` draws parameters by the probability that rows of theirs would have left so, which
is each family's `log_rounded` and allows for top-coding. Values beyond the bounds stay winsorised:
what that takes off a spread cannot be known from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr

from silomix.families import dirichlet
from silomix.families.columns import join, split
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
# Labels in doubt move together, and cost more than each by itself would: a rule of thumb, seen on
# simulated silos and not derived.
DOUBT_POWER = 3.0
# Sweeps of `draw_behind_levels` that are dropped, more for each silo, and sweeps between draws.
BURN_IN, BURN_IN_BY_SILO, THIN = 300, 100, 2
# How many times its share of a sum a row may count, where cells are missing or sizes rounded.
MARGIN = 1.6
# Sums leave of so many times the minimum of known cells, so that half are not top-coded.
FEWEST_CODED = 4
# Values that the rows of a cluster may nearly all be at: those of so many of the fullest bins, in
# which rows that differ by less than the sums can tell count as alike, and quartiles.
FULLEST, BINS, QUARTILES = 6, 64, (0.25, 0.5, 0.75)
# Of `draw_behind_sums`: points of a grid along each axis, of one or of two; over how many draws,
# with the data of so few rows, it first spreads; how often it is moved, and how far below the
# largest log density nothing is looked for.
GRID, GRID_STARTS, GRID_ROWS, ZOOMS, DEPTH = (400, 40), 200, 6.0, 12, 15.0
TINY = 1e-15


class Deed(NamedTuple):
    """What a rule did: the fields of `silomix.messages.Check`."""

    rule: str
    where: str
    threshold: int
    cells: int
    changed: int
    result: str
    inside: str = ""


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
        """Return some of the sources."""
        return Said._make(part[clusters] for part in self)


def least_units(rules: Policy) -> int:
    """Return the smallest multiple of the base that reaches the minimum, in units of the base."""
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
    """Return what a row of each cluster is worth, by the doubt about who belongs: (cluster,)."""
    doubt = (member * (1 - member)).sum(axis=0) / np.maximum(member.sum(axis=0), 1.0)
    return np.asarray((1 + doubt) ** -DOUBT_POWER)


def stand_in_deeds(basis: Ints, where: str, least: int) -> list[Deed]:
    """Say how often another profile stands in for a cluster's own: basis (cluster, variable)."""
    used = [int((basis == kind).sum()) for kind in (SILO, UNIFORM)]
    return [
        Deed(rule, where, least, basis.size, count, applied(count))
        for rule, count in zip(STAND_INS, used, strict=True)
    ]


def step_deed(before: Floats, after: Floats, base: int) -> Deed:
    """Say what became of concentrations, (cluster, variable)."""
    ratio, changed = after / np.maximum(before, 1.0), int((after != before).sum())
    inside = f"multiplied by {ratio.min():.2f} to {ratio.max():.2f}"
    rule, where = "steps of a factor 1.41", "concentrations"
    return Deed(rule, where, base, before.size, changed, "applied", inside)


def applied(number: int) -> str:
    """Return the result of a rule that changed so many numbers."""
    return "applied" if number else "not needed"


def whole_counts(codes: Codes, offsets: Ints, member: Floats) -> Floats:
    """Return how often each level occurs in each cluster, in whole numbers: (cluster, level).

    The counts are means over the draws of who belongs, not those of the one partition, which are
    biased where clusters overlap.
    """
    return np.rint(dirichlet.sum_cells(codes, offsets, member))


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
    """Say what the rules did to profiles: all (cluster, level)."""
    base, least, where, cells = rules.round_to, rules.minimum_count, "profiles", int(own.sum())
    low = int((own & (np.rint(mean * known) < least_units(rules) * base)).sum())
    moved = np.abs(profile - mean)[own].max(initial=0.0)
    changed = int((own & (profile != mean)).sum())
    inside = f"no probability moved by more than {moved:.3f}"
    yield Deed("counts rounded", where, base, cells, changed, "applied", inside)
    inside = f"{low} levels were under it and were raised to it"
    yield Deed("minimum count", where, least, cells, low, applied(least), inside)


def pool(profiles: Floats, rows: Ints) -> Floats:
    """Return what released profiles, (cluster, level), come to: (level,); uniform for none.

    It is what stands in for a profile that is not released. Were it of the whole silo, the
    released ones could be subtracted, and the one that is not would be left.
    """
    if not len(profiles):
        return np.full(profiles.shape[1], 1.0 / profiles.shape[1])
    return np.asarray(rows @ profiles / rows.sum())


def profile_basis(known: Ints, levels: Ints, rules: Policy) -> Ints:
    """Say what each released profile is of: `CLUSTER`, `SILO` or `UNIFORM`, (cluster, variable).

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
    """Return a profile whose levels, times the rows, are rounded counts: (level,).

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


def could_leave(mean: Floats, known: Ints, rules: Policy) -> bool:
    """Tell whether the profiles of a variable, (cluster, level), are such as leave a silo."""
    units = mean * known[:, None] / rules.round_to
    whole = (np.abs(units - np.rint(units)) <= SAME) & (units >= least_units(rules) - SAME)
    own = whole.all(axis=1) & (known >= mean.shape[1] * least_units(rules) * rules.round_to)
    stand_in = pool(mean[own], known[own])
    return bool((own | (np.abs(mean - stand_in).max(axis=1) <= NEAR)).all())


def draw_behind_levels(block: Any, said: Said, draws: int, rng: Rng) -> Floats:
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


def steps_of(block: Any, base: Ints | int) -> Floats:
    """Return what sums are multiples of, (..., variable, sum), for bases (...,)."""
    low, high = block.sum_bounds()
    return np.asarray(np.maximum(MARGIN, np.asarray(base)[..., None, None]) * (high - low))


def disclose_sums(  # noqa: PLR0917
    block: Any,
    cells: Floats,
    member: Floats,
    concentration: Floats,
    sizes: Ints,
    rules: Policy,
    known: Ints | None = None,
) -> Rounded:
    """Apply a policy to the numbers of one silo's clusters, small ones folded already.

    Parameters
    ----------
    cells : (row, variable); member : (row, cluster), over the draws of who belongs.
    concentration : (cluster, variable), how many rows the draws are worth, for comparison.
    sizes : (cluster,), rows, as released
    known : (cluster, variable), as released, where it follows from other released numbers.
    """
    words, near = len(block.statistic_words), np.clip(cells, *block.bounds())
    exact, least = member.T @ ~np.isnan(cells), least_units(rules) * rules.round_to
    known = round_known(exact, sizes, rules) if known is None else known
    means = np.zeros((*known.shape, words - 1))
    # of fewer, most would be top-coded
    shown = known >= max(FEWEST_CODED * least, 1)
    for cluster, weights in enumerate(member.T):
        coded, ends = top_code(near, weights, least)
        sums = split(weights @ block.features(coded), words)[:, 1:]
        means[cluster] = sums / np.maximum(exact[cluster], 1e-300)[:, None]
        for variable in np.flatnonzero(shown[cluster]):
            column = coded[:, variable], weights, ends[:, variable]
            clumped = has_hardly_any_spread(*column, words - 1, rules.minimum_count)
            shown[cluster, variable] = not clumped
    # moments of the draws would tell of single values, and exact numbers of single missing cells
    full = np.maximum(known, 1).astype(np.float64)
    steps = steps_of(block, rules.round_to)
    coarse = coarse_concentration(worth_in_doubt(member)[:, None] * full, full)
    coarse[~shown] = 0.0
    per_step = np.where(shown, coarse, 1.0)[..., None] / steps
    plain = np.rint(means * per_step) + 0.0  # −0.0 would tell a sign
    units = block.least_units(plain, per_step)
    released = _stand_in(block, units / per_step, shown, known)
    where, rows = block.word, int(shown.sum())
    moved = np.abs(released - means)[shown].max(initial=0.0)
    inside = f"{int(((near != cells) & ~np.isnan(cells)).sum())} values were beyond the bounds"
    short = int((~shown).sum())
    few_rows = f"{short} have fewer known cells, or hardly any spread" if short else ""
    shift = f"no mean of values or squares moved over {moved:.3f}, in the units of the study"
    base, least = rules.round_to, rules.minimum_count
    deeds = (
        Deed("values winsorised", where, base, rows, 0, "applied", inside),
        Deed("values top-coded by rank", where, least, rows, 0, applied(least)),
        Deed("sums rounded", where, base, rows, 0, "applied", shift),
        Deed("smallest spread", where, base, rows, int((units != plain).sum()), "applied"),
        Deed("minimum count", where, least, shown.size, 0, "passed", few_rows),
        *stand_in_deeds(block.basis(known, coarse, rules), where, least),
        step_deed(concentration, coarse, base),
    )
    return Rounded(join([np.ones(known.shape)], released), coarse, known, deeds)


def top_code(values: Floats, weights: Floats, minimum: int) -> tuple[Floats, Floats]:
    """Replace values beyond the minimum-th smallest and largest of each variable by these.

    Parameters
    ----------
    values : (row, variable), nan where missing; weights : (row,), probability of belonging.

    Returns
    -------
    values : (row, variable); ends : (2, variable), the smallest and the largest that are left.
    """
    ends = np.zeros((2, values.shape[1]))
    for variable, column in enumerate(values.T):
        rows = ~np.isnan(column) & (weights > 0)
        order = np.argsort(column[rows], kind="stable")
        ascending, rank = column[rows][order], np.cumsum(weights[rows][order])
        if len(rank):
            from_top = rank[-1] - rank + weights[rows][order]
            lower = ascending[min(np.searchsorted(rank, minimum - SAME), len(rank) - 1)]
            upper = ascending[max(np.flatnonzero(from_top >= minimum - SAME), default=0)]
            # of too few values for both, what is left is one value
            ends[:, variable] = (lower, upper) if lower <= upper else (lower + upper) / 2
    return np.clip(values, *ends), ends


def has_hardly_any_spread(
    values: Floats, weights: Floats, ends: Floats, sums: int, minimum: int
) -> bool:
    """Tell whether a cluster's numbers are nearly all at one value, or at two.

    From Σx, and Σx² where it leaves, a recipient who knows the values could compute how many rows
    have another. So the distance from the value, or the product of the distances from both, is
    added up over the rows but for the minimum − 1 that have most of it, which therefore do not
    decide; it must be more than one row alone can have.

    Parameters
    ----------
    values : (row,), top-coded; weights : (row,); ends : (2,), their smallest and largest
    sums : how many sums of a variable leave: 1 or 2.
    """
    rows = ~np.isnan(values) & (weights > 0)
    values, weights = values[rows], weights[rows]
    likely = np.sort(values[weights >= weights.max() / 2])
    bins = np.rint((likely - likely[0]) * (BINS / max(np.ptp(likely), 1e-300)))
    _, first, counts = np.unique(bins, return_index=True, return_counts=True)
    fullest = np.argsort(-counts, kind="stable")[:FULLEST]
    middle = likely[(first + counts // 2)[fullest]]
    anchors = sorted({*middle, *np.quantile(values, QUARTILES, method="nearest")})
    for places in combinations_with_replacement(anchors, sums):
        farthest = np.array([*ends, np.mean(places)])
        most = np.prod([abs(farthest - at) for at in places], axis=0).max()
        apart = np.sort(weights * np.prod([abs(values - at) for at in places], axis=0))
        if apart[: len(apart) - max(minimum - 1, 0)].sum() <= most:
            return True
    return False


def _stand_in(block: Any, means: Floats, own: Bools, known: Ints) -> Floats:
    """Return means (cluster, variable, sum), those that are not `own` replaced by a stand-in."""
    nothing = split(block.nothing(), len(block.statistic_words))[:, 1:]
    rows = known * own
    pooled = np.einsum("cv,cvs->vs", rows, means) / np.maximum(rows.sum(axis=0), 1)[:, None]
    other = np.where(np.asarray(own.any(axis=0))[:, None], pooled, nothing)
    return np.where(own[..., None], means, other)


def breach_sums(block: Any, mean: Floats, concentration: Floats, known: Ints, rules: Policy) -> str:
    """Say what released numbers have that no rule lets out, as the end of a sentence; or ""."""
    means, own = split(mean, len(block.statistic_words))[..., 1:], concentration > 0
    rows = np.where(own, concentration, 1.0)
    down = 2 * np.log2(np.maximum(known, 1) / rows) - 2 * np.log2(1 / MIDDLE)
    if not (~own | (rows == known) | (np.abs(down - np.rint(down)) <= SAME)).all():
        return f"has concentrations of {block.word} that are not half octaves"
    per_step = rows[..., None] / steps_of(block, rules.round_to)
    units = np.rint(means * per_step)
    same = np.abs(means * per_step - units) <= SAME
    if not (same | ~own[..., None]).all():
        return f"has sums of {block.word} that are not multiples of their step"
    if (own[..., None] & (block.least_units(units, per_step) > units)).any():
        return f"has {block.word} with less spread than may leave"
    low, high = (np.rint(end * per_step) for end in block.sum_bounds())
    inside = (units >= low) & (units <= block.least_units(high, per_step))
    if (own[..., None] & ~inside).any():
        return f"has means of {block.word} that no winsorised values have"
    apart = np.abs(means - _stand_in(block, means, own, known))
    near = (apart <= NEAR * (1 + np.abs(means))).all()
    return "" if near else f"has {block.word} of clusters with too few rows"


def draw_behind_sums(block: Any, said: Said, draws: int, rng: Rng) -> Floats:
    """Draw parameters that all sources share, given what they released: (draw, parameter).

    A source that no rule changed counts by its likelihood, and a rounded one by the probability
    that rows would have left the same. Where there is one, each variable is drawn on a grid.
    """
    means = split(said.mean, len(block.statistic_words))[..., 1:]
    sums = join([said.concentration], said.concentration[..., None] * means)
    shown = (said.base > 0)[:, None] & (said.concentration > 0)
    exact = np.where(np.repeat(shown, block.statistics, axis=1), 0.0, sums).sum(axis=0)
    if not shown.any():
        updated = block.prior() + block.conjugate(exact)
        return np.asarray(block.draw(np.tile(updated, (draws, 1)), rng))
    low, high = _rounded_alike(block, said, means, shown)
    words, drawn = len(block.statistic_words), []
    for v, own in enumerate(block.variables):
        one = replace(block, variables=(own,))
        known = split(exact, words)[v]

        def log_density(
            points: Floats, one: Any = one, known: Floats = known, v: int = v
        ) -> Floats:
            value = one.log_prior(points)[1][:, 0] + one.natural(points) @ known
            for s in np.flatnonzero(shown[:, v]):
                rows = said.concentration[s, [v]], said.known[s, [v]], said.least[s]
                value += one.log_rounded(points, low[s, [v]], high[s, [v]], *rows)[:, 0]
            return np.asarray(value)

        about = split(sums.sum(axis=0), words)[v]
        few = about * min(1.0, GRID_ROWS / max(about[0], 1.0))
        start = one.draw(np.tile(one.prior() + one.conjugate(few), (GRID_STARTS, 1)), rng)
        drawn.append(_draw_on_grid(log_density, start, draws, rng))
    return np.concatenate(drawn, axis=1)


def _draw_on_grid(log_density: Any, start: Floats, draws: int, rng: Rng) -> Floats:
    """Draw points of a density by evaluating it on a grid that closes in on it: (draw, parameter).

    Parameters
    ----------
    log_density : of points (point, parameter), up to a constant.
    start : (point, parameter), points that spread about as far as the density does.
    """
    low, high = start.min(axis=0), start.max(axis=0)
    points, logs, step = _on_grid(log_density, low, high)
    for _ in range(ZOOMS):
        kept, width = points[logs > logs.max() - DEPTH], high - low
        first, last = kept.min(axis=0), kept.max(axis=0)
        # beyond an edge that is kept there is more
        below, above = first <= low, last >= high
        if (2 * (last - first) > width).all() and not (below | above).any():
            break
        low = first - np.where(below, width / 2, step)
        high = last + np.where(above, width / 2, step)
        points, logs, step = _on_grid(log_density, low, high)
    weights = np.exp(logs - logs.max())
    places = rng.choice(len(points), draws, p=weights / weights.sum())
    drawn = points[places] + step * (rng.random((draws, len(step))) - 0.5)
    drawn[:, -1] = np.where(drawn[:, -1] > 0, drawn[:, -1], points[places, -1])
    return drawn


def _on_grid(log_density: Any, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats]:
    """Return a grid's points (point, parameter), their log densities (point,), and its steps."""
    size = GRID[len(low) - 1]
    axes = [np.linspace(a, b, size) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(low))
    logs = np.full(len(points), -np.inf)
    there = points[:, -1] > 0  # rates and spreads are positive, and come last
    logs[there] = log_density(points[there])
    return points, logs, (high - low) / (size - 1)


def _rounded_alike(block: Any, said: Said, means: Floats, shown: Bools) -> tuple[Floats, Floats]:
    """Return the bounds of the mean statistics that would have left so, (source, variable, sum)."""
    rows = np.where(shown, said.concentration, 1.0)[..., None]
    per_step = rows / steps_of(block, said.base)
    units = np.rint(means * per_step)
    # one step of Σx² less would have been raised: all that is smaller leaves like this
    less = units - np.arange(units.shape[-1])
    at_floor = shown[..., None] & (less != block.least_units(less, per_step))
    return np.where(at_floor, 0.0, means - 0.5 / per_step), means + 0.5 / per_step


def log_between(low: Floats, high: Floats) -> Floats:
    """Return the log probability that a standard normal variable is between two values."""
    upper = low > 0
    a, b = np.where(upper, -high, low), np.where(upper, -low, high)
    return np.asarray(log_ndtr(b) + np.log1p(-np.exp(np.minimum(log_ndtr(a) - log_ndtr(b), -TINY))))
