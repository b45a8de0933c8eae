"""How probable a partition is, and how probable k clusters are, whatever row is in which.

One partition of rows that overlap is improbable, though one of many that are nearly the same: their
number must count too. With shares r of the rows in k of C⁺ components, N their rows and T their
statistics,

    ln p(rows, k clusters) ≥ ln C⁺!/(C⁺ − k)! + ln Γ(C⁺α)/Γ(C⁺α + ΣN)
                             + Σ_c [ln Γ(α + N_c)/Γ(α) + g(T_c)] − Σ_i Σ_c r_ic ln r_ic,

g the evidence of a cluster: the bound of variational mixtures once the parameters are at their best
for r (Rao and Kirk, 2024), times the ways to name k components. Shares of 0 and 1 give the
probability of one partition. Whatever the shares, it is a bound; steps of coordinate ascent bring
it closer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import digamma, gammaln, softmax, xlogy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.families.rows import Rows

# a component with fewer rows is none
FEWEST_ROWS = 1.0
# most steps of coordinate ascent; from the partition of a silo's draws they gain nearly all there
# is to gain
STEPS = 10
# the ascent ends with a step that gains less
SMALLEST_GAIN = 0.01


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


def log_bound(rows: Rows, labels: Ints, components: int, alpha: float, steps: int = STEPS) -> float:
    """Return the largest bound on the way of coordinate ascent that begins at a partition.

    A step gives the rows the shares that the clusters' members and sums ask for. The result is
    −inf where the first leaves a single cluster with rows. Equal rows have equal shares, so each
    distinct one begins in the cluster of its first copy.

    Parameters
    ----------
    labels : (row,), 0 … k − 1; components : C⁺; alpha : concentration of the weights.
    steps : at most so many.
    """
    cells = np.column_stack(rows.shard.cells)
    _, first, repeats = np.unique(cells, axis=0, return_index=True, return_counts=True)
    family, distinct = rows.family, rows.shard.some(first)
    features = family.features(distinct)
    _, begun = np.unique(labels[first], return_inverse=True)
    shares = np.eye(int(begun.max()) + 1)[begun]
    best = -np.inf
    for step in range(steps + 1):
        weighted = shares * repeats[:, None]
        members, sums = weighted.sum(axis=0), family.settle(distinct, features, weighted)
        if step:
            held = int((members >= FEWEST_ROWS).sum())
            if held < 2:
                break
            evidence = float(family.log_evidence(sums).sum())
            entropy = -float((repeats @ xlogy(shares, shares)).sum())
            allocated = log_allocation_prior(members, components, alpha)
            bound = log_namings(held, components) + allocated + evidence + entropy
            risen, best = bound > best + SMALLEST_GAIN, max(best, bound)
            if not risen:
                break
        # r_ic ∝ exp(ψ(α + N_c) + T(x_i) · E η_c), or near, where T is not known
        if family.always_hides:
            scores = family.log_density(distinct, family.medians(family.posterior(sums)))
        else:
            scores = features @ family.expected_natural(sums).T
        shares = softmax(scores + digamma(alpha + members), axis=1)
    return best
