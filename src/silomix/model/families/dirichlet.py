"""Level probabilities, one Dirichlet for each variable: draws, the evidence of counts, priors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from silomix.kernels.arrays import Floats, Ints

# a gamma variable of tiny shape may come out as zero; no probability does
SMALLEST_GAMMA = 1e-300


def draw_levels(
    shapes: NDArray[np.floating], offsets: Ints, rng: np.random.Generator, draws: int | None = None
) -> Floats:
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
    totals = np.add.reduceat(gammas, offsets[:-1], axis=-1)
    return np.asarray(gammas / np.repeat(totals, np.diff(offsets), axis=-1))


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
