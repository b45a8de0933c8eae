"""Imputation of the counts behind a rounded release.

A silo releases a variable's level counts as units of its policy's base (`release_units`). The units
determine the set of counts that round to them. `draw_behind` samples a profile and the counts of
all silos with the cluster, each on its own set.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from silomix.kernels.arrays import Floats, Ints, Rng

# tolerance for treating shares as whole, and remainders as equal
ROUNDING = 1e-9
# proposed moves of a silo's counts between two levels, per level and sweep
MOVES = 3


class Sources(NamedTuple):
    """Released counts of one variable, by local cluster.

    Attributes
    ----------
    released : (source, level), units; start : (source, level), initial counts that round to them.
    base : (source,), rows of a unit; 0 where the counts are observed, and stay fixed.
    least : (source,), smallest released units.
    worth : (source,), f, effective sample size per row, given uncertain membership.
    """

    released: Ints
    start: Floats
    base: Ints
    least: Ints
    worth: Floats


@njit(cache=True)
def release_units(counts: Floats, units: int, least: int, released: Ints) -> None:
    """Round one variable's counts to a total of `units`, none below `least`.

    Levels under `least` are raised to it, the others share the rest in proportion, and remaining
    units go to the largest remainders, ties to the first.

    Parameters
    ----------
    counts : in, (level,), not all zero.
    units : at least `least` for every level.
    released : out, (level,), sums to `units`.
    """
    levels = len(counts)
    share = np.empty(levels)
    raised = np.zeros(levels, dtype=np.bool_)
    low = True
    while low:
        remaining, total = units, 0.0
        for k in range(levels):
            if raised[k]:
                remaining -= least
            else:
                total += counts[k]
        low = False
        for k in range(levels):
            share[k] = least if raised[k] else counts[k] * remaining / total
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
    """Change of the log multinomial coefficient when `by` cells change levels."""
    value = 0.0
    for i in range(by):
        value += math.log(n_down - i) - math.log(n_up + i + 1.0)
    return value


@njit(cache=True, nogil=True)
def draw_log_profile(counts: Floats, worth: Floats, beta: float, logs: Floats, rng: Rng) -> None:
    """Draw p ~ Dirichlet(β + Σ f n); its logarithms are written to `logs` (level)."""
    total = 0.0
    for k in range(logs.size):
        shape = beta
        for s in range(len(counts)):
            shape += worth[s] * counts[s, k]
        logs[k] = max(rng.standard_gamma(shape), 1e-300)
        total += logs[k]
    logs[:] = np.log(logs / total)


@njit(cache=True, nogil=True)
def draw_behind(
    sources: Sources, beta: float, burn_in: int, thin: int, draws: int, rng: Rng
) -> tuple[Floats, Floats]:
    """Gibbs samples of one variable's profile and the counts behind every silo's release of it.

    Alternates p ~ Dirichlet(β + Σ f n) and, silo by silo, n given p: multinomial to the power f on
    the counts consistent with the release, by Metropolis moves of cells between two levels that are
    rejected where the release would change.

    Parameters
    ----------
    sources : the release of one variable.
    burn_in, thin, draws : sweeps dropped, sweeps between draws, and number of draws.

    Returns
    -------
    profile : (draw, level); counts : (draw, silo, level)
    """
    released, start, base, least, worth = sources
    silos, levels = released.shape
    counts = start.copy()
    units = released.sum(axis=1)
    profiles = np.empty((draws, levels))
    kept_counts = np.empty((draws, silos, levels))
    logs = np.empty(levels)
    trial = np.empty(levels)
    units_of_trial = np.empty(levels, dtype=np.int64)
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
                release_units(trial, units[s], least[s], units_of_trial)
                consistent = True  # by hand: faster than np.array_equal
                for k in range(levels):
                    consistent = consistent and units_of_trial[k] == released[s, k]
                if consistent:
                    counts[s] = trial
        late = sweep - burn_in + 1
        if late > 0 and late % thin == 0:
            profiles[late // thin - 1] = np.exp(logs)
            kept_counts[late // thin - 1] = counts
    return profiles, kept_counts
