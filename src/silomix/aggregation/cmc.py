"""Plain averages of the silos' draws: by inverse variance (consensus Monte Carlo), or uniform."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.aggregation.matched import SMALLEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.types import MatchedDraws

SMALLEST_VARIANCE = 1e-30
"""Draws that do not move have this variance, so that silos which all stand still count equally."""


def uniform_weights(
    held: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return λ_s = 1/S, (silo,), and μ_{s,c} = 1/|S_c| over the silos that hold c, as in `held`.

    Parameters
    ----------
    held : (silo, cluster)
    """
    return np.full(len(held), 1.0 / len(held)), held / held.sum(axis=0)


def inverse_variances(
    matched: MatchedDraws, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return λ, and the elementwise weights of the profiles, by inverse variance.

    Scott et al. (2016), with independent weights. The reading for a mixture:

    - a silo has one weight for all of π, as in the linear family of Fendler et al. (2026), or
      π̂ would not sum to one: λ_s ∝ 1 / mean_c var(π_c^s). A cluster that the silo lacks, or a
      silo with one cluster, has draws without variance and would take all the weight, so no
      variance is below m_c (1 − m_c) / (n_s + 1), m the mean weights over all rows: what the
      silo's rows would tell if their clusters were known;
    - p has a weight for each element, ∝ 1 / var(p_{c,k}^s) over the silos that hold c.

    Parameters
    ----------
    rows : (silo,), n_s.

    Returns
    -------
    weights : (silo,), λ; elements : (silo, cluster, level), sums to one over the silos.
    """
    means = matched.weights.mean(axis=1)
    overall = rows @ means / rows.sum()
    known = overall * (1 - overall) / (rows[:, None] + 1.0)
    variance = np.maximum(matched.weights.var(axis=1), known).mean(axis=1)
    precision = 1.0 / np.maximum(variance, SMALLEST_VARIANCE)
    spread = np.maximum(matched.probabilities.var(axis=1), SMALLEST_VARIANCE)
    elements = matched.held[:, :, None] / spread
    return precision / precision.sum(), elements / elements.sum(axis=0)


def average_elementwise(
    matched: MatchedDraws, elements: NDArray[np.float64], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return Σ_s w_{s,c,k} p_{c,k}^s, made to sum to one within each variable.

    Parameters
    ----------
    elements : (silo, cluster, level), w.
    offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    (draw, cluster, level)
    """
    mixed = np.zeros(matched.probabilities.shape[1:])
    for share, probabilities in zip(elements, matched.probabilities, strict=True):
        mixed += share * probabilities
    mixed = np.maximum(mixed, SMALLEST)
    totals = np.add.reduceat(mixed, offsets[:-1], axis=-1)
    return mixed / np.repeat(totals, np.diff(offsets), axis=-1)
