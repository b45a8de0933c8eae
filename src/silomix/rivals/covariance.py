"""Consensus Monte Carlo with full matrices: θ = (Σ_s W_s)⁻¹ Σ_s W_s θ_s, W_s = Σ_s⁻¹.

Scott et al. (2016). Probabilities that sum to one have a singular covariance, so the
last of them is left out of the coordinates and follows from the others. Each cluster's profile is
averaged by itself, over the silos that hold the cluster: a silo has no covariance of what it
lacks, and the profiles of two clusters are nearly independent. A matrix average of points of a
simplex may leave it: what falls below zero becomes (nearly) zero, and the rest sums to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.families.weighted_draws import SMALLEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.types import MatchedDraws

SMALLEST_SPREAD = 1e-9
"""Standard deviation added to coordinates that do not move, so that matrices can be inverted."""


def consensus_draws(
    matched: MatchedDraws, rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Average the silos' draws.

    Parameters
    ----------
    matched : the silos' draws; rows : (silo,), n_s.
    offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    outside : share of their entries that fell below zero.
    """
    weights = average_weights(matched, rows)
    probabilities = np.stack(
        [
            average_profiles(matched.probabilities[held, :, cluster], offsets)
            for cluster, held in enumerate(matched.held.T)
        ],
        axis=1,
    )
    below = np.count_nonzero(weights < 0) + np.count_nonzero(probabilities < 0)
    outside = below / (weights.size + probabilities.size)
    everything = np.array([0, weights.shape[1]])
    return onto_simplex(weights, everything), onto_simplex(probabilities, offsets), outside


def average_weights(matched: MatchedDraws, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average π: (draw, cluster), some entries perhaps below zero.

    A silo that lacks a cluster has no variance in its weight and would decide it alone. So in no
    direction is a variance below that of (diag m − mm') / (n_s + 1), m the mean weights over all
    rows: what the silo's rows would tell if their clusters were known. Like Scott's rule this
    does not depend on which cluster is left out of the coordinates.
    """
    clusters = matched.weights.shape[2]
    if clusters == 1:
        return matched.weights.mean(axis=0)
    overall = (rows @ matched.weights.mean(axis=1) / rows.sum())[:-1]
    known = np.diag(overall) - np.outer(overall, overall)
    free = matched.weights[:, :, :-1]
    covariances = [
        at_least(covariance(draws), known / (count + 1.0))
        for draws, count in zip(free, rows, strict=True)
    ]
    averaged = average(free, np.array(covariances))
    return np.append(averaged, 1.0 - averaged.sum(axis=1, keepdims=True), axis=1)


def at_least(matrix: NDArray[np.float64], least: NDArray[np.float64]) -> NDArray[np.float64]:
    """Raise a covariance, in the directions where it is below another one, to that one."""
    root = np.linalg.cholesky(least)
    inverse = np.linalg.inv(root)
    ratios, directions = np.linalg.eigh(inverse @ matrix @ inverse.T)
    half = root @ directions
    return (half * np.maximum(ratios, 1.0)) @ half.T


def average_profiles(draws: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average one cluster's probabilities over the silos that hold it: (draw, level).

    Parameters
    ----------
    draws : (silo, draw, level)
    """
    last = offsets[1:] - 1
    free = np.delete(draws, last, axis=2)
    averaged = np.empty(draws.shape[1:])
    coordinates = np.delete(np.arange(draws.shape[2]), last)
    averaged[:, last] = 0.0
    averaged[:, coordinates] = average(free, np.array([covariance(part) for part in free]))
    averaged[:, last] = 1.0 - np.add.reduceat(averaged, offsets[:-1], axis=1)
    return averaged


def covariance(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sample covariance of draws, (draw, coordinate), made invertible."""
    centred = draws - draws.mean(axis=0)
    coordinates = draws.shape[1]
    return centred.T @ centred / (len(draws) - 1) + SMALLEST_SPREAD**2 * np.eye(coordinates)


def average(draws: NDArray[np.float64], covariances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (Σ_s W_s)⁻¹ Σ_s W_s θ_s for each draw: (draw, coordinate).

    Parameters
    ----------
    draws : (silo, draw, coordinate); covariances : (silo, coordinate, coordinate), of which W_s
        are the inverses.
    """
    precisions = np.linalg.inv(covariances)
    total = np.einsum("sij,stj->ti", precisions, draws)
    return np.linalg.solve(precisions.sum(axis=0), total.T).T


def onto_simplex(values: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lift what is below zero, and make each variable's levels sum to one again: (..., level)."""
    positive = np.maximum(values, SMALLEST)
    totals = np.add.reduceat(positive, offsets[:-1], axis=-1)
    return positive / np.repeat(totals, np.diff(offsets), axis=-1)
