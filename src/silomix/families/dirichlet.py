"""Draws of level probabilities: one Dirichlet for each variable, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# a gamma variable of tiny shape may come out as zero; no probability does
SMALLEST_GAMMA = 1e-300


def draw_levels(
    shapes: NDArray[np.floating],
    offsets: NDArray[np.int64],
    rng: np.random.Generator,
    draws: int | None = None,
) -> NDArray[np.float64]:
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
