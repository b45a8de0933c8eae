"""How probable k clusters are, whatever row is in which: a variational lower bound.

One partition of rows that overlap is improbable, though one of many that are nearly the same: their
number must count too. With shares r of the rows in k of C⁺ components, N their rows and n their
cells,

    ln p(rows, k clusters) ≥ ln C⁺!/(C⁺ − k)! + ln Γ(C⁺α)/Γ(C⁺α + ΣN)
                             + Σ_c [ln Γ(α + N_c)/Γ(α) + g(n_c)] − Σ_i Σ_c r_ic ln r_ic,

g the Dirichlet–multinomial evidence: the bound of variational mixtures of categorical variables
once the parameters are at their best for r (Rao and Kirk, 2024), times the ways to name k
components. Shares of 0 and 1 give the probability of one partition (`model.families.dirichlet`).
Whatever the shares, it is a bound; steps of coordinate ascent bring it closer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import digamma, xlogy

from silomix.model.families.dirichlet import log_allocation_prior, log_evidence, log_namings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints

# components with fewer rows are none
HELD = 1.0

# most steps of coordinate ascent; from the partition of a silo's draws they gain nearly all there
# is to gain
STEPS = 10

# the ascent ends with a step that gains less
RISE = 0.01


class Rows(NamedTuple):
    """Distinct rows, and how often each occurs.

    Attributes
    ----------
    codes : (row, variable), a missing cell at its variable's size; repeats : (row,)
    sizes : (variable,), K_q.
    """

    codes: NDArray[np.unsignedinteger[Any]]
    repeats: Ints
    sizes: Ints


def log_bound(
    rows: Rows, labels: Ints, components: int, alpha: float, beta: float, *, steps: int = STEPS
) -> float:
    """Return the largest bound on the way of coordinate ascent that begins at a partition.

    A step gives the rows the shares that the clusters' members and cells ask for. The result is
    −inf where the first leaves a single cluster with rows.

    Parameters
    ----------
    labels : (row,), 0 … k − 1.
    components : C⁺; alpha, beta : concentrations of the priors.
    steps : at most so many.
    """
    shares = np.eye(int(labels.max()) + 1)[labels]
    cells = sum_cells(rows, shares)
    best = -np.inf
    for _ in range(steps):
        shares = allot(rows, rows.repeats @ shares, cells, alpha, beta)
        cells = sum_cells(rows, shares)
        bound = bound_of_shares(rows, shares, cells, components, alpha, beta)
        risen, best = bound > best + RISE, max(best, bound)
        if not risen:
            break
    return best


def bound_of_shares(
    rows: Rows, shares: Floats, cells: Floats, components: int, alpha: float, beta: float
) -> float:
    """Return the bound for given shares; −inf where a single cluster has rows.

    Parameters
    ----------
    shares : (row, cluster); cells : (cluster, level), what `sum_cells` makes of them.
    """
    members = rows.repeats @ shares
    held = int((members >= HELD).sum())
    if held < 2:
        return -np.inf
    offsets = np.concatenate([[0], np.cumsum(rows.sizes)])
    evidence = float(log_evidence(cells, offsets, beta).sum())
    entropy = -float((rows.repeats @ xlogy(shares, shares)).sum())
    named = log_namings(held, components) + log_allocation_prior(members, components, alpha)
    return named + evidence + entropy


def sum_cells(rows: Rows, shares: Floats) -> Floats:
    """Return how often each level occurs in each cluster, by the rows' shares: (cluster, level).

    Parameters
    ----------
    shares : (row, cluster)
    """
    weighted = (shares * rows.repeats[:, None]).T
    return np.concatenate(
        [
            [np.bincount(column, of_cluster, size + 1)[:size] for of_cluster in weighted]
            for column, size in zip(rows.codes.T, rows.sizes, strict=True)
        ],
        axis=1,
    )


def allot(rows: Rows, members: Floats, counts: Floats, alpha: float, beta: float) -> Floats:
    """Return the rows' shares given the clusters' members and cells: (row, cluster).

    r_ic ∝ exp(ψ(α + N_c) + Σ_q [ψ(β + n_cqx) − ψ(K_q β + n_cq·)]), x the row's level of q; a
    missing cell adds nothing.

    Parameters
    ----------
    members : (cluster,); counts : (cluster, level)
    """
    scores = np.tile(digamma(alpha + members)[:, None], len(rows.codes))
    by_variable = np.split(counts, np.cumsum(rows.sizes)[:-1], axis=1)
    for column, cells in zip(rows.codes.T, by_variable, strict=True):
        shapes = beta + cells
        logs = digamma(shapes) - digamma(shapes.sum(axis=1, keepdims=True))
        scores += np.pad(logs, ((0, 0), (0, 1)))[:, column]
    scores -= scores.max(axis=0)
    np.exp(scores, out=scores)
    return np.ascontiguousarray((scores / scores.sum(axis=0)).T)
