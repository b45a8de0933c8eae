"""Counts behind a rounded release: which ones it can stand for, and draws of them.

A silo releases a variable's level counts as units of its policy's base (`release_units`). Whoever
receives the units knows the set of counts that would have left so. `draw_behind` samples a profile
and the counts of all silos that hold the cluster, each on its own set.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from silomix.kernels.arrays import Floats, Ints, Rng

# shares that are whole but for floating point count as whole, and remainders as equal
ROUNDING = 1e-9
# moves of a silo's counts between two levels, for each level, in one sweep
MOVES = 3


class Sources(NamedTuple):
    """What local clusters say of one variable of a profile.

    Attributes
    ----------
    released : (source, level), units; start : (source, level), counts that are released so.
    base : (source,), rows of a unit; 0 where the counts are known, and stay as they are.
    least : (source,), units below which none leaves.
    worth : (source,), f, how much of a row a row is worth where members are unsure.
    """

    released: Ints
    start: Floats
    base: Ints
    least: Ints
    worth: Floats


@njit(cache=True)
def release_units(counts: Floats, units: int, least: int, released: Ints) -> None:
    """Round one variable's counts to so many units in all, none below `least`.

    Levels under `least` are raised to it, the others share the rest in proportion, and what
    rounding leaves over goes to the largest remainders, the first of equal ones first.

    Parameters
    ----------
    counts : in, (level,), not all zero.
    units : enough for every level to reach `least`.
    released : out, (level,), sums to `units`.
    """
    levels = len(counts)
    share = np.empty(levels)
    raised = np.zeros(levels, dtype=np.bool_)
    low = True
    while low:
        left, total = units, 0.0
        for k in range(levels):
            if raised[k]:
                left -= least
            else:
                total += counts[k]
        low = False
        for k in range(levels):
            share[k] = least if raised[k] else counts[k] * left / total
            if not raised[k] and share[k] < least - ROUNDING:
                raised[k] = low = True
    over = units
    for k in range(levels):
        released[k] = math.floor(share[k] + ROUNDING)
        over -= released[k]
    for _ in range(over):
        best, largest = -1, -1.0
        for k in range(levels):
            remainder = -1.0 if raised[k] else share[k] - released[k]
            if remainder > largest + ROUNDING:
                best, largest = k, remainder
        released[best] += 1


@njit(cache=True)
def _log_ratio(n_up: float, n_down: float, by: int) -> float:
    """Return the change of the log multinomial coefficient when `by` cells change levels."""
    value = 0.0
    for i in range(by):
        value += math.log(n_down - i) - math.log(n_up + i + 1.0)
    return value


@njit(cache=True, nogil=True)
def draw_log_profile(counts: Floats, worth: Floats, beta: float, logs: Floats, rng: Rng) -> None:
    """Draw p ~ Dirichlet(β + Σ f n); leaves its logarithms in `logs` (level)."""
    total = 0.0
    for k in range(logs.size):
        shape = beta
        for s in range(len(counts)):
            shape += worth[s] * counts[s, k]
        logs[k] = max(rng.standard_gamma(shape), 1e-300)
        total += logs[k]
    for k in range(logs.size):
        logs[k] = math.log(logs[k] / total)


@njit(cache=True, nogil=True)
def draw_behind(
    given: Sources, beta: float, burn_in: int, thin: int, draws: int, rng: Rng
) -> tuple[Floats, Floats]:
    """Sample one variable's profile and the counts behind every silo's release of it.

    By turns p ~ Dirichlet(β + Σ f n) and, silo by silo, n given p: multinomial to the power f on
    the counts that would be released so, by moves of cells between two levels that are refused
    where the release would change.

    Parameters
    ----------
    given : of one variable.
    burn_in, thin, draws : sweeps dropped, sweeps between draws, and draws.

    Returns
    -------
    profile : (draw, level); counts : (draw, silo, level)
    """
    released, start, base, least, worth = given
    silos, levels = released.shape
    counts = start.copy()
    units = released.sum(axis=1)
    profiles = np.empty((draws, levels))
    kept = np.empty((draws, silos, levels))
    logs = np.empty(levels)
    trial = np.empty(levels)
    found = np.empty(levels, dtype=np.int64)
    for sweep in range(burn_in + draws * thin):
        draw_log_profile(counts, worth, beta, logs, rng)
        for s in range(silos):
            reach = max(base[s], 1) * max(least[s], 1)
            for _ in range(MOVES * levels if base[s] > 0 else 0):
                up = int(rng.random() * levels)
                down = (up + 1 + int(rng.random() * (levels - 1))) % levels
                by = 1 + int(rng.random() * reach)
                if counts[s, down] < by:
                    continue
                trial[:] = counts[s]
                trial[up] += by
                trial[down] -= by
                change = by * (logs[up] - logs[down])
                change += _log_ratio(counts[s, up], counts[s, down], by)
                if math.log(rng.random()) >= worth[s] * change:
                    continue
                release_units(trial, units[s], least[s], found)
                same = True  # by hand: faster than np.array_equal
                for k in range(levels):
                    same = same and found[k] == released[s, k]
                if same:
                    counts[s] = trial
        late = sweep - burn_in + 1
        if late > 0 and late % thin == 0:
            profiles[late // thin - 1] = np.exp(logs)
            kept[late // thin - 1] = counts
    return profiles, kept
