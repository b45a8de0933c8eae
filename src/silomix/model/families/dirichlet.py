"""Level probabilities, one Dirichlet for each variable: draws, fits, evidence of counts, priors.

And how probable k clusters are, whatever row is in which: a variational lower bound. One partition
of rows that overlap is improbable, though one of many that are nearly the same: their number must
count too. With shares r of the rows in k of C⁺ components, N their rows and n their cells,

    ln p(rows, k clusters) ≥ ln C⁺!/(C⁺ − k)! + ln Γ(C⁺α)/Γ(C⁺α + ΣN)
                             + Σ_c [ln Γ(α + N_c)/Γ(α) + g(n_c)] − Σ_i Σ_c r_ic ln r_ic,

g the Dirichlet–multinomial evidence: the bound of variational mixtures of categorical variables
once the parameters are at their best for r (Rao and Kirk, 2024), times the ways to name k
components. Shares of 0 and 1 give the probability of one partition. Whatever the shares, it is a
bound; steps of coordinate ascent bring it closer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import digamma, gammaln, xlogy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from silomix.kernels.arrays import Array, Codes, Floats, Ints, Reals, Rng
    from silomix.kernels.distinct_rows import RowCounts
    from silomix.model.prior import Prior

# Draws that hardly move say no more than this many observations.
LARGEST_CONCENTRATION = 1e9
# a gamma variable of tiny shape may come out as zero; no probability does
SMALLEST_GAMMA = 1e-300
# of the bound: a component with fewer rows is none
FEWEST_ROWS = 1.0
# most steps of coordinate ascent; from the partition of a silo's draws they gain nearly all there
# is to gain
STEPS = 10
# the ascent ends with a step that gains less
SMALLEST_GAIN = 0.01


def level_totals(by_level: Array, offsets: Ints) -> Array:
    """Add up the levels of each variable, for each of its levels: (..., level)."""
    totals = np.add.reduceat(by_level, offsets[:-1], axis=-1)
    return np.repeat(totals, np.diff(offsets), axis=-1)


def sum_by(groups: Ints, values: Reals, n_groups: int) -> Floats:
    """Add up values, (item, ...), by the group of each item, (item,): (group, ...)."""
    total = np.zeros((n_groups, *values.shape[1:]))
    np.add.at(total, groups, values)
    return total


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


def without_prior(
    mean: Floats, concentration: Floats, offsets: Ints, beta: float
) -> tuple[Floats, Floats]:
    """Take the prior out of fitted Dirichlets: what is left is what the rows said.

    Parameters
    ----------
    mean : (cluster, level); concentration : (cluster, variable)
    beta : the silo's prior concentration of a level.

    Returns
    -------
    mean : (cluster, level), uniform where nothing is left; concentration : (cluster, variable)
    """
    sizes = np.diff(offsets)
    counts = np.maximum(mean * np.repeat(concentration, sizes, axis=1) - beta, 0.0)
    return shares_of(counts, offsets), np.add.reduceat(counts, offsets[:-1], axis=1)


def shares_of(counts: Floats, offsets: Ints) -> Floats:
    """Return each level's share of its variable's counts; equal shares of none."""
    totals = level_totals(counts, offsets)
    equal = 1.0 / level_totals(np.ones_like(counts), offsets)
    return np.divide(counts, totals, out=equal, where=totals > 0)


def effective_counts(mean: Floats, concentration: Floats, offsets: Ints) -> Floats:
    """Return mean × concentration: (cluster, level)."""
    return mean * np.repeat(concentration, np.diff(offsets), axis=1)


def log_evidence(counts: ArrayLike, offsets: Ints, beta: float | Floats) -> Floats:
    """Return log p(cells of a cluster), its level probabilities integrated out.

    Each variable has its own total, so a row may miss some of its cells; a cluster without
    rows has evidence 0.

    Parameters
    ----------
    counts : (..., level), how often each level occurs in the cluster, whole numbers or not.
    offsets : (variable + 1,), where each variable's levels start.
    beta : parameters of the Dirichlet prior of each variable's probabilities: one number, or one
        for each level.

    Returns
    -------
    (...,), one number for each cluster.
    """
    counts = np.asarray(counts, dtype=np.float64)
    parameters = np.broadcast_to(np.asarray(beta, dtype=np.float64), counts.shape[-1:])
    concentration = np.add.reduceat(parameters, offsets[:-1])
    totals = np.add.reduceat(counts, offsets[:-1], axis=-1)
    by_level = gammaln(parameters + counts) - gammaln(parameters)
    by_variable = gammaln(concentration) - gammaln(concentration + totals)
    return np.asarray(by_level.sum(axis=-1) + by_variable.sum(axis=-1))


def log_partition_prior(sizes: ArrayLike, components: int, alpha: float) -> float:
    """Return the log prior probability of a partition, its clusters carrying no labels.

    The rows fall into `components` components whose weights are Dirichlet(alpha, …, alpha);
    C⁺!/(C⁺ − k)! labellings of the components give the same partition into k clusters. It is
    −inf for more clusters than components.

    Parameters
    ----------
    sizes : (cluster,), rows in each cluster, none of them empty.
    components : C⁺, the number of components, empty ones included.
    alpha : concentration of the weights.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    return log_namings(len(sizes), components) + log_allocation_prior(sizes, components, alpha)


def log_namings(clusters: int, components: int) -> float:
    """Return ln C⁺!/(C⁺ − k)!, the ways to name k clusters after components."""
    return float(gammaln(components + 1) - gammaln(components - clusters + 1))


def log_allocation_prior(sizes: Floats, components: int, alpha: float) -> float:
    """Return the log prior probability of rows in named components, so many in each: (cluster,)."""
    weights = gammaln(components * alpha) - gammaln(components * alpha + sizes.sum())
    return float(weights + (gammaln(alpha + sizes) - gammaln(alpha)).sum())


def log_bound(
    rows: RowCounts, offsets: Ints, labels: Ints, components: int, prior: Prior, steps: int = STEPS
) -> float:
    """Return the largest bound on the way of coordinate ascent that begins at a partition.

    A step gives the rows the shares that the clusters' members and cells ask for. The result is
    −inf where the first leaves a single cluster with rows.

    Parameters
    ----------
    rows : distinct rows; a missing cell has the code K_q.
    labels : (row,), 0 … k − 1.
    components : C⁺
    steps : at most so many.
    """
    shares = np.eye(int(labels.max()) + 1)[labels]
    cells = sum_cells(rows.codes, offsets, shares * rows.counts[:, None])
    best = -np.inf
    for _ in range(steps):
        shares = _responsibilities(rows, offsets, rows.counts @ shares, cells, prior)
        cells = sum_cells(rows.codes, offsets, shares * rows.counts[:, None])
        members = rows.counts @ shares
        held = int((members >= FEWEST_ROWS).sum())
        if held < 2:
            break
        evidence = float(log_evidence(cells, offsets, prior.beta).sum())
        entropy = -float((rows.counts @ xlogy(shares, shares)).sum())
        allocated = log_allocation_prior(members, components, prior.alpha)
        bound = log_namings(held, components) + allocated + evidence + entropy
        risen, best = bound > best + SMALLEST_GAIN, max(best, bound)
        if not risen:
            break
    return best


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


def _responsibilities(
    rows: RowCounts, offsets: Ints, members: Floats, counts: Floats, prior: Prior
) -> Floats:
    """Return the rows' shares given the clusters' members and level counts: (row, cluster).

    r_ic ∝ exp(ψ(α + N_c) + Σ_q [ψ(β + n_cqx) − ψ(K_q β + n_cq·)]), x the row's level of q; a
    missing cell adds nothing.
    """
    scores = np.tile(digamma(prior.alpha + members)[:, None], len(rows.codes))
    by_variable = np.split(counts, offsets[1:-1], axis=1)
    for column, cells in zip(rows.codes.T, by_variable, strict=True):
        shapes = prior.beta + cells
        logs = digamma(shapes) - digamma(shapes.sum(axis=1, keepdims=True))
        scores += np.pad(logs, ((0, 0), (0, 1)))[:, column]
    scores -= scores.max(axis=0)
    np.exp(scores, out=scores)
    return np.ascontiguousarray((scores / scores.sum(axis=0)).T)
