"""What a policy lets out of a silo's clusters, for every kind of variable.

Three questions, each answered block by block: `disclose`, what may leave of a silo's rows;
`breach`, whether released numbers could have left so; and `draw_behind`, parameters given what a
release can stand for. The rules of level counts are in `release_rounding.py`; this module has those
of numbers, which ask a family for `features`, `bounds` and the probability of rounded means.

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

from dataclasses import replace
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.families import release_rounding as rounding
from silomix.families.categorical import Levels
from silomix.families.derived import derived, log_prior, moments, nothing, spread
from silomix.families.family import Family, by_variable, join, lacks, split
from silomix.families.product import Product, first_problem, side_by_side

if TYPE_CHECKING:
    from silomix.families.release_rounding import Rounded, Said, Unrounded
    from silomix.kernels.arrays import Bools, Floats, Ints, Rng
    from silomix.model.schema import Shard
    from silomix.study.policy import Policy

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


def disclose(  # noqa: PLR0917
    family: Product,
    shard: Shard,
    member: Floats,
    concentration: Floats,
    sizes: Ints,
    rules: Policy,
    known: Ints | None = None,
) -> Rounded:
    """Apply a policy to the profiles of one silo's clusters, small ones folded already.

    Parameters
    ----------
    member : (row, cluster), over the draws of who belongs.
    concentration : (cluster, variable), how many rows the draws are worth.
    sizes : (cluster,), rows, as released.
    known : (cluster, variable), cells, likewise, where they follow from other released numbers.
    """
    parts = []
    for block, cells, v in zip(family.blocks, shard.cells, family.spans["v"], strict=True):
        apply: Any = rounding.disclose_counts if isinstance(block, Levels) else disclose_sums
        counts = None if known is None else known[:, v]
        clusters = rounding.Unrounded(member, concentration[:, v], sizes, counts)
        parts.append(apply(block, cells, clusters, rules))
    *arrays, deeds = zip(*parts, strict=True)
    mean, worth, counted = (side_by_side(array) for array in arrays)
    return rounding.Rounded(mean, worth, counted, tuple(deed for each in deeds for deed in each))


def basis(family: Product, known: Ints, concentration: Floats, rules: Policy) -> Ints:
    """Source of each released profile, `CLUSTER`, `SILO` or `UNIFORM`: (cluster, variable).

    Parameters
    ----------
    known : (cluster, variable), rows whose cell is known, as released.
    """
    parts = family.ask(basis_of_block, "vv", known, concentration, rules)
    return np.asarray(side_by_side(parts))


def basis_of_block(block: Family, known: Ints, concentration: Floats, rules: Policy) -> Ints:
    """The same of one block: levels by the number of rows, numbers by their concentration."""
    if block.has_levels:
        return rounding.profile_basis(known, block.statistics, rules)
    own = (concentration > 0) | (not rules.has_rules)
    others = np.where(own.any(axis=0), rounding.SILO, rounding.UNIFORM)
    return np.where(own, rounding.CLUSTER, others)


def breach(family: Product, mean: Floats, concentration: Floats, known: Ints, rules: Policy) -> str:
    """What released numbers have that no rule lets out, as the end of a sentence; or ""."""
    given = mean, concentration, known
    return str(first_problem(family.ask(breach_of_block, "svv", *given, rules)))


def breach_of_block(
    block: Family, mean: Floats, concentration: Floats, known: Ints, rules: Policy
) -> str:
    """The same of one block."""
    if not block.has_rules:
        return f"has {block.word} that leave only where no rule is set"
    if isinstance(block, Levels):
        return rounding.breach_levels(block, mean, known, rules)
    return breach_sums(block, mean, concentration, known, rules)


def draw_behind(family: Product, said: Said, draws: int, rng: Rng) -> Floats:
    """Draw parameters that all sources share, given what they released: (draw, parameter)."""

    def draw_of_block(block: Family, *parts: Any) -> Floats:
        own = said._replace(mean=parts[0], concentration=parts[1], known=parts[2])
        draw: Any = rounding.draw_behind_levels if isinstance(block, Levels) else draw_behind_sums
        return np.asarray(draw(block, own, draws, rng))

    drawn = family.ask(draw_of_block, "svv", said.mean, said.concentration, said.known)
    return np.asarray(side_by_side(drawn))


@derived
def bounds(block: Family) -> tuple[Floats, Floats]:
    """The smallest and largest value that leave as they are, each (variable,)."""
    raise lacks(block, "bounds")


def sum_bounds(block: Family) -> tuple[Floats, Floats]:
    """The least and the most of a winsorised cell in each sum: (variable, sum)."""
    low, high = bounds(block)
    ends = block.features(np.array([low, high, np.clip(0.0, low, high)]))
    each = split(ends, len(block.statistic_words))[..., 1:]
    return each.min(axis=0), each.max(axis=0)


@derived
def least_sums(_: Family, units: Floats, per_step: Floats) -> Floats:  # noqa: ARG001
    """Sums in steps, (..., variable, sum), no spread too small: as they are."""
    return units


@derived
def log_rounded(
    block: Family, parameters: Floats, low: Floats, high: Floats, rows: Floats, *_: Any
) -> Floats:
    """Log probability that rows leave such a mean, rounded: (draw, variable).

    As it stands for one sum, normal, and without top-coding by rank.

    Parameters
    ----------
    parameters : (draw, parameter)
    low, high : (variable, sum), bounds of the mean statistics that leave alike.
    rows : (variable,), how many the release is worth.
    _ : what methods of this name are given, too: the number of known cells, (variable,), and the
        rank at which both ends were top-coded.
    """
    error = spread(block, parameters) / np.sqrt(rows)
    mean = by_variable(moments(block, parameters), 2)[1]
    return rounding.log_between(*((end[:, 0] - mean) / error for end in (low, high)))


def steps_of(block: Family, base: Ints | int) -> Floats:
    """Steps of which sums are multiples, (..., variable, sum), for bases (...,)."""
    low, high = sum_bounds(block)
    return np.asarray(np.maximum(MARGIN, np.asarray(base)[..., None, None]) * (high - low))


def disclose_sums(block: Family, cells: Floats, clusters: Unrounded, rules: Policy) -> Rounded:
    """Apply a policy to the numbers of one silo's clusters; cells are (row, variable)."""
    member, concentration, sizes, known = clusters
    words, near = len(block.statistic_words), np.clip(cells, *bounds(block))
    exact, least = member.T @ ~np.isnan(cells), rounding.least_units(rules) * rules.round_to
    known = rounding.round_known(exact, sizes, rules) if known is None else known
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
    coarse = rounding.coarse_concentration(rounding.worth_in_doubt(member)[:, None] * full, full)
    coarse[~shown] = 0.0
    per_step = np.where(shown, coarse, 1.0)[..., None] / steps
    plain = np.rint(means * per_step) + 0.0  # −0.0 would tell a sign
    units = least_sums(block, plain, per_step)
    released = _stand_in(block, units / per_step, shown, known)
    where, rows = block.word, int(shown.sum())
    moved = np.abs(released - means)[shown].max(initial=0.0)
    inside = f"{int(((near != cells) & ~np.isnan(cells)).sum())} values were beyond the bounds"
    short = int((~shown).sum())
    few_rows = f"{short} have fewer known cells, or hardly any spread" if short else ""
    shift = f"no mean of values or squares moved over {moved:.3f}, in the units of the study"
    base, least = rules.round_to, rules.minimum_count
    deeds = (
        rounding.Deed("values winsorised", where, base, rows, 0, "applied", inside),
        rounding.Deed("values top-coded by rank", where, least, rows, 0, rounding.applied(least)),
        rounding.Deed("sums rounded", where, base, rows, 0, "applied", shift),
        rounding.Deed("smallest spread", where, base, rows, int((units != plain).sum()), "applied"),
        rounding.Deed("minimum count", where, least, shown.size, 0, "passed", few_rows),
        *rounding.stand_in_deeds(basis_of_block(block, known, coarse, rules), where, least),
        rounding.step_deed(concentration, coarse, base),
    )
    return rounding.Rounded(join([np.ones(known.shape)], released), coarse, known, deeds)


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
            lower = ascending[min(np.searchsorted(rank, minimum - rounding.SAME), len(rank) - 1)]
            upper = ascending[max(np.flatnonzero(from_top >= minimum - rounding.SAME), default=0)]
            # of too few values for both, what is left is one value
            ends[:, variable] = (lower, upper) if lower <= upper else (lower + upper) / 2
    return np.clip(values, *ends), ends


def has_hardly_any_spread(
    values: Floats, weights: Floats, ends: Floats, sums: int, minimum: int
) -> bool:
    """Whether a cluster's numbers are nearly all at one value, or at two.

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


def _stand_in(block: Family, means: Floats, own: Bools, known: Ints) -> Floats:
    """Means (cluster, variable, sum), those that are not `own` replaced by a stand-in."""
    empty = split(nothing(block), len(block.statistic_words))[:, 1:]
    rows = known * own
    pooled = np.einsum("cv,cvs->vs", rows, means) / np.maximum(rows.sum(axis=0), 1)[:, None]
    other = np.where(np.asarray(own.any(axis=0))[:, None], pooled, empty)
    return np.where(own[..., None], means, other)


def breach_sums(
    block: Family, mean: Floats, concentration: Floats, known: Ints, rules: Policy
) -> str:
    """What released sums have that no rule lets out, as the end of a sentence; or ""."""
    means, own = split(mean, len(block.statistic_words))[..., 1:], concentration > 0
    rows = np.where(own, concentration, 1.0)
    down = 2 * np.log2(np.maximum(known, 1) / rows) - 2 * np.log2(1 / rounding.MIDDLE)
    if not (~own | (rows == known) | (np.abs(down - np.rint(down)) <= rounding.SAME)).all():
        return f"has concentrations of {block.word} that are not half octaves"
    per_step = rows[..., None] / steps_of(block, rules.round_to)
    units = np.rint(means * per_step)
    same = np.abs(means * per_step - units) <= rounding.SAME
    if not (same | ~own[..., None]).all():
        return f"has sums of {block.word} that are not multiples of their step"
    if (own[..., None] & (least_sums(block, units, per_step) > units)).any():
        return f"has {block.word} with less spread than may leave"
    low, high = (np.rint(end * per_step) for end in sum_bounds(block))
    inside = (units >= low) & (units <= least_sums(block, high, per_step))
    if (own[..., None] & ~inside).any():
        return f"has means of {block.word} that no winsorised values have"
    apart = np.abs(means - _stand_in(block, means, own, known))
    near = (apart <= rounding.NEAR * (1 + np.abs(means))).all()
    return "" if near else f"has {block.word} of clusters with too few rows"


def draw_behind_sums(block: Family, said: Said, draws: int, rng: Rng) -> Floats:
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
            points: Floats, one: Family = one, known: Floats = known, v: int = v
        ) -> Floats:
            value = np.asarray(log_prior(one, points)[1])[:, 0] + one.natural(points) @ known
            for s in np.flatnonzero(shown[:, v]):
                rows = said.concentration[s, [v]], said.known[s, [v]], said.least[s]
                value += log_rounded(one, points, low[s, [v]], high[s, [v]], *rows)[:, 0]
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
    """Grid's points (point, parameter), their log densities (point,), and its steps."""
    size = GRID[len(low) - 1]
    axes = [np.linspace(a, b, size) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(low))
    logs = np.full(len(points), -np.inf)
    there = points[:, -1] > 0  # rates and spreads are positive, and come last
    logs[there] = log_density(points[there])
    return points, logs, (high - low) / (size - 1)


def _rounded_alike(block: Family, said: Said, means: Floats, shown: Bools) -> tuple[Floats, Floats]:
    """Bounds of the mean statistics that would have left so, (source, variable, sum)."""
    rows = np.where(shown, said.concentration, 1.0)[..., None]
    per_step = rows / steps_of(block, said.base)
    units = np.rint(means * per_step)
    # one step of Σx² less would have been raised: all that is smaller leaves like this
    less = units - np.arange(units.shape[-1], dtype=np.float64)
    at_floor = shown[..., None] & (less != least_sums(block, less, per_step))
    return np.where(at_floor, 0.0, means - 0.5 / per_step), means + 0.5 / per_step
