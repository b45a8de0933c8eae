"""The rules of a policy for numbers: sums over a cluster's rows, of bounded values, in wide steps.

Values leave as sums, Σx and for normal variables Σx², after three rules:

- Each value is winsorised: one beyond the family's bounds counts as the bound. So a row that takes
  another value, or leaves, moves a sum by no more than its reach, the gap of its `sum_bounds`.
- A sum is rounded to a multiple of reach × max(1.25, base/4), one step. What is rounded is the
  mean times the released concentration c, which is at most 1.25 times the number of known cells, or
  base/4 times: so one row moves what is rounded by no more than a step, also where cells are
  missing and where sizes were rounded.
- No released variance is below a floor, so a constant column does not show as one.

How many rows a mean is worth goes by the doubt about who belongs to the cluster, never by values,
and leaves in steps of half octaves.

A cluster with fewer known cells than the minimum has the pool of the others' means instead, or the
prior's, and concentration 0, by which everyone can tell.

Behind a release are all sums within half a step, and all smaller Σx² where the floor was used.
`draw_behind` samples them by Metropolis moves with the parameters integrated out, and then draws
parameters given them. Values beyond the bounds stay winsorised: what that takes off a spread cannot
be known from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.model.families.family import join, split
from silomix.model.families.rounded import (
    MIDDLE,
    NEAR,
    SAME,
    Deed,
    Rounded,
    coarse_concentration,
    stand_in_deeds,
    step_deed,
    worth_in_doubt,
)

if TYPE_CHECKING:
    from silomix.kernels.arrays import Bools, Floats, Ints, Rng
    from silomix.model.families.rounded import Rules, Said

# How many times its share of a sum a row may count, where cells are missing or sizes rounded.
MARGIN = 1.25
# A concentration of this share of the size is one step down.
STEP_DOWN = 0.7
# Sweeps of `draw_behind`, and how far its moves go, as shares of what a release can stand for.
SWEEPS, MOVES = 15, (1.0, 0.25)


def steps_of(block: Any, base: Ints | int) -> Floats:
    """Return what sums are multiples of, (..., variable, sum), for bases (...,)."""
    low, high = block.sum_bounds()
    return np.asarray(np.maximum(MARGIN, np.asarray(base)[..., None, None] / 4) * (high - low))


def disclose(
    block: Any, cells: Floats, member: Floats, concentration: Floats, sizes: Ints, rules: Rules
) -> Rounded:
    """Apply a policy to the numbers of one silo's clusters, small ones folded already.

    Parameters
    ----------
    cells : (row, variable); member : (row, cluster), over the draws of who belongs.
    concentration : (cluster, variable), how many rows the draws are worth, for comparison.
    sizes : (cluster,), rows, as released.
    """
    near = np.clip(cells, *block.bounds())
    sums = split(member.T @ block.features(near), len(block.statistic_words))
    known = sums[..., 0]
    # moments of the draws would tell of single values: one that comes and goes moves them
    worth = worth_in_doubt(member)[:, None] * known
    full = np.broadcast_to(sizes[:, None], known.shape).astype(np.float64)
    steps = steps_of(block, rules.round_to)
    few = full > known * np.maximum(MARGIN, rules.round_to / 4)
    coarse = coarse_concentration(np.where(few, np.minimum(worth, STEP_DOWN * full), worth), full)
    coarse[np.rint(known) < max(rules.minimum_count, 1)] = 0.0
    own = np.asarray(coarse > 0)
    per_step = np.where(own, coarse, 1.0)[..., None] / steps
    mean = sums[..., 1:] / np.maximum(known, 1e-300)[..., None]
    plain = np.rint(mean * per_step)
    units = block.least_units(plain, per_step)
    released = _stand_in(block, units / per_step, own, sizes)
    where, rows = block.word, int(own.sum())
    moved = np.abs(released - mean)[own].max(initial=0.0)
    inside = f"{int(((near != cells) & ~np.isnan(cells)).sum())} values were beyond the bounds"
    few_rows = f"{int((~own).sum())} have fewer known cells"
    base, least = rules.round_to, rules.minimum_count
    deeds = (
        Deed("values winsorised", where, base, rows, 0, "applied", inside),
        Deed("sums rounded", where, base, rows, 0, "applied", f"no mean moved over {moved:.3f}"),
        Deed("smallest spread", where, base, rows, int((units != plain).sum()), "applied"),
        Deed("minimum count", where, least, own.size, 0, "passed", few_rows),
        *stand_in_deeds(block.basis(sizes, coarse, rules), where, least),
        step_deed(concentration, coarse, base),
    )
    return Rounded(join([np.ones(known.shape)], released), coarse, deeds)


def _stand_in(block: Any, means: Floats, own: Bools, sizes: Ints) -> Floats:
    """Return means (cluster, variable, sum), those that are not `own` replaced by a stand-in."""
    nothing = split(block.nothing(), len(block.statistic_words))[:, 1:]
    rows = sizes[:, None] * own
    pooled = np.einsum("cv,cvs->vs", rows, means) / np.maximum(rows.sum(axis=0), 1)[:, None]
    other = np.where(np.asarray(own.any(axis=0))[:, None], pooled, nothing)
    return np.where(own[..., None], means, other)


def breach(block: Any, mean: Floats, concentration: Floats, sizes: Ints, rules: Rules) -> str:
    """Say what released numbers have that no rule lets out, as the end of a sentence; or ""."""
    means, own = split(mean, len(block.statistic_words))[..., 1:], concentration > 0
    rows = np.where(own, concentration, 1.0)
    down = 2 * np.log2(sizes[:, None] / rows) - 2 * np.log2(1 / MIDDLE)
    if not (~own | (rows == sizes[:, None]) | (np.abs(down - np.rint(down)) <= SAME)).all():
        return f"has concentrations of {block.word} that are no half octaves"
    per_step = rows[..., None] / steps_of(block, rules.round_to)
    units = np.rint(means * per_step)
    same = np.abs(means * per_step - units) <= SAME
    if not (same | ~own[..., None]).all():
        return f"has sums of {block.word} that are no multiples of their step"
    if (own[..., None] & (block.least_units(units, per_step) > units)).any():
        return f"has {block.word} with less spread than may leave"
    low, high = (np.rint(end * per_step) for end in block.sum_bounds())
    inside = (units >= low) & (units <= block.least_units(high, per_step))
    if (own[..., None] & ~inside).any():
        return f"has means of {block.word} that no winsorised values have"
    apart = np.abs(means - _stand_in(block, means, own, sizes))
    known = (apart <= NEAR * (1 + np.abs(means))).all()
    return "" if known else f"has {block.word} of clusters with too few rows"


def draw_behind(block: Any, said: Said, draws: int, rng: Rng) -> Floats:
    """Draw parameters that all sources share, given what they released: (draw, parameter)."""
    means = split(said.mean, len(block.statistic_words))[..., 1:]
    rows = said.concentration
    open_ = (said.base > 0)[:, None] & (rows > 0)
    per_step = np.where(open_, rows, 1.0)[..., None] / steps_of(block, said.base)
    half = np.where(open_[..., None], 0.5 / per_step, 0.0)
    low, high = means - half, means + half
    units = np.rint(means * per_step)
    # one step of Σx² less would have been raised: all that is smaller leaves like this
    less = units - np.arange(units.shape[-1])
    at_floor = open_[..., None] & (less != block.least_units(less, per_step))
    low = np.where(at_floor, 0.0, low)
    now = np.broadcast_to(means, (draws, *means.shape)).copy()
    total = join([rows], rows[..., None] * means).sum(axis=0) + np.zeros((draws, 1))
    value = block.log_evidence(total)
    for source in np.tile(np.flatnonzero(open_.any(axis=1)), SWEEPS):
        for far in MOVES:
            old, wide = now[:, source], (high - low)[source]
            shift = far * wide * (rng.random(old.shape) - 0.5)
            trial = low[source] + wide * rng.random(old.shape) if far == 1.0 else old + shift
            there = ((trial >= low[source]) & (trial <= high[source])).all(axis=-1)
            trial = np.where(there[..., None], trial, old)
            ones, n = np.zeros(rows[source].shape), rows[source]
            changed = total + join([ones + np.zeros(there.shape)], n[:, None] * (trial - old))
            found = block.log_evidence(changed)
            rise = block.log_sums(trial, n) - block.log_sums(old, n) + found - value
            takes = there & (np.log(rng.random(there.shape)) < rise)
            now[:, source] = np.where(takes[..., None], trial, old)
            total = np.where(np.repeat(takes, block.statistics, axis=-1), changed, total)
            value = np.where(takes, found, value)
    return np.asarray(block.draw(block.posterior(total), rng))
