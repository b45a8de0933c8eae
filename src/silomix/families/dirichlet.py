"""Level probabilities, one Dirichlet for each variable: draws, fits, shares, evidence."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from silomix.kernels.arrays import Array, Codes, Floats, Ints, Reals, Rng

# Draws that hardly move say no more than this many observations.
LARGEST_CONCENTRATION = 1e9
# a gamma variable of tiny shape may come out as zero; no probability does
SMALLEST_GAMMA = 1e-300


def fractional(concentration: float, silos: int) -> float:
    """Return the concentration of a Dirichlet prior to the power 1/S, S silos: (a − 1)/S + 1.

    Fendler et al. (2026), section 4.2 "The apply step".
    """
    return (concentration - 1) / silos + 1


def level_totals(by_level: Array, offsets: Ints) -> Array:
    """Add up the levels of each variable, for each of its levels: (..., level)."""
    totals = np.add.reduceat(by_level, offsets[:-1], axis=-1)
    return np.repeat(totals, np.diff(offsets), axis=-1)


def draw_levels(shapes: Reals, offsets: Ints, rng: Rng, draws: int | None = None) -> Floats:
    """Draw the level probabilities of every variable from its Dirichlet.

    Parameters
    ----------
    shapes : (..., level)
    offsets : (variable + 1,), where each variable's levels start.
    draws : how many of each; one, and no axis for it, when left out.

    Returns
    -------
    (draw, ..., level)
    """
    size = None if draws is None else (draws, *shapes.shape)
    gammas = np.maximum(rng.standard_gamma(shapes, size=size), SMALLEST_GAMMA)
    return np.asarray(gammas / level_totals(gammas, offsets))


def fit_dirichlet(probabilities: Reals, offsets: Ints) -> tuple[Floats, Floats]:
    """Fit a Dirichlet to draws of each cluster's and variable's probabilities, by moments.

    The concentration is the geometric mean over the levels of m(1 − m)/v − 1 (Minka, 2000,
    equation 23).

    Parameters
    ----------
    probabilities : (draw, cluster, level)
    offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    mean : (cluster, level)
    concentration : (cluster, variable)
    """
    draws = probabilities.astype(np.float64)
    mean = draws.mean(axis=0)
    variance = np.maximum(draws.var(axis=0), 1e-300)
    each = np.clip(mean * (1 - mean) / variance - 1, 1e-3, LARGEST_CONCENTRATION)
    logs = np.add.reduceat(np.log(each), offsets[:-1], axis=-1)
    return mean, np.exp(logs / np.diff(offsets))


def shares_of(counts: Floats, offsets: Ints) -> Floats:
    """Return each level's share of its variable's counts; equal shares of none."""
    totals = level_totals(counts, offsets)
    equal = 1.0 / level_totals(np.ones_like(counts), offsets)
    return np.divide(counts, totals, out=equal, where=totals > 0)


def log_evidence(counts: Array, offsets: Ints, prior: Floats) -> Floats:
    """Return log p(cells of a cluster), its level probabilities integrated out: (..., variable).

    Each variable has its own total, so a row may miss some of its cells; a cluster without
    rows has evidence 0.

    Parameters
    ----------
    counts : (..., level), how often each level occurs in the cluster, whole numbers or not.
    offsets : (variable + 1,), where each variable's levels start.
    prior : (level,), shapes of the Dirichlet prior of each variable's probabilities.
    """
    rise = gammaln(prior + counts) - gammaln(prior)
    totals, size = (np.add.reduceat(n, offsets[:-1], axis=-1) for n in (counts, prior))
    fall = gammaln(size + totals) - gammaln(size)
    return np.asarray(np.add.reduceat(rise, offsets[:-1], axis=-1) - fall)


def sum_cells(codes: Codes, offsets: Ints, shares: Floats) -> Floats:
    """Return how often each level occurs in each cluster, by the rows' shares: (cluster, level).

    Parameters
    ----------
    codes : (row, variable); shares : (row, cluster)
    """
    cells = [
        [np.bincount(column, of_cluster, size + 1)[:size] for of_cluster in shares.T]
        for column, size in zip(codes.T, np.diff(offsets), strict=True)
    ]
    return np.concatenate(cells, axis=1)
