"""The space of aggregation weights: a product of simplices over the silos.

A point is (silo, block). Block 0 is λ, over all silos; block 1 + c is μ_c, over the silos that hold
cluster c. `held` (silo, block) says which entries a block has; the others are zero. Several points
at once are (start, silo, block). With a floor, every entry that a block has is at least the floor.
"""

from __future__ import annotations

import numpy as np

from silomix.kernels.arrays import Bools, Floats, Rng

# stands for zero under a logarithm
TINY = 1e-300


def join(weights: Floats, profiles: Floats) -> Floats:
    """Make points of λ (…, silo) and μ (…, silo, cluster)."""
    return np.concatenate([weights[..., None], profiles], axis=-1)


def split(points: Floats) -> tuple[Floats, Floats]:
    """Return λ (…, silo) and μ (…, silo, cluster) of points."""
    return np.ascontiguousarray(points[..., 0]), np.ascontiguousarray(points[..., 1:])


def blocks_held(held: Bools) -> Bools:
    """Return which entries the blocks have, of which silo holds which cluster."""
    return np.concatenate([np.ones((len(held), 1), dtype=bool), held], axis=1)


def room(held: Bools, floor: float) -> Floats:
    """Return what each block has left to share out above the floor: (block,)."""
    return 1.0 - floor * held.sum(axis=0)


def project(points: Floats, held: Bools, floor: float = 0.0) -> Floats:
    """Return the nearest points of the space, block by block.

    By sorting: Duchi, Shalev-Shwartz, Singer and Chandra (2008), figure 1. A floor moves the
    origin and leaves a smaller simplex.
    """
    ranks = np.arange(1, len(held) + 1)[:, None]
    present = ranks <= held.sum(axis=0)
    above = np.where(held, points - floor, -np.inf)
    descending = np.where(present, -np.sort(-above, axis=-2), 0.0)
    excess = np.cumsum(descending, axis=-2) - room(held, floor)
    positive = np.sum(present & (descending * ranks > excess), axis=-2, keepdims=True)
    threshold = np.take_along_axis(excess, positive - 1, axis=-2) / positive
    return np.where(held, np.maximum(above - threshold, 0.0) + floor, 0.0)


def softmax(logs: Floats, held: Bools, floor: float = 0.0) -> Floats:
    """Return the points floor + (1 − n floor) softmax(logs), n the entries of a block."""
    masked = np.where(held, logs, -np.inf)
    masses = np.exp(masked - masked.max(axis=-2, keepdims=True))
    shares = masses / masses.sum(axis=-2, keepdims=True)
    return np.where(held, floor + room(held, floor) * shares, 0.0)


def softmax_inverse(points: Floats, held: Bools, floor: float = 0.0) -> Floats:
    """Return logs that `softmax` turns into these points; zero where a block has no entry."""
    shares = np.where(held, (points - floor) / room(held, floor), 1.0)
    return np.log(np.maximum(shares, TINY))


def softmax_gradient(gradient: Floats, points: Floats, held: Bools, floor: float = 0.0) -> Floats:
    """Carry a gradient in the points over to one in their logs: J^T g, J = (diag p − p p^T)."""
    left = room(held, floor)
    shares = np.where(held, (points - floor) / left, 0.0)
    mean = np.sum(shares * gradient, axis=-2, keepdims=True)
    return left * shares * (gradient - mean)


def hypercube(count: int, held: Bools, rng: Rng) -> Floats:
    """Return `count` points spread evenly over the space: (start, silo, block).

    A Latin hypercube (McKay, Beckman and Conover, 1979), pushed through the Rosenblatt map in
    closed form of Fendler et al. (2026), section 4.4: a block of n entries takes n − 1
    coordinates, and each point alone is uniform on its simplices.
    """
    from scipy.stats import qmc  # late: it takes half a second to import

    entries = held.sum(axis=0)
    points = np.zeros((count, *held.shape))
    coordinates = int((entries - 1).sum())
    design = np.zeros((count, 0))
    if coordinates:
        design = qmc.LatinHypercube(coordinates, seed=rng).random(count)
    parts = np.split(design, np.cumsum(entries - 1)[:-1], axis=1)
    for block, part in enumerate(parts):
        points[:, held[:, block], block] = rosenblatt(part)
    return points


def rosenblatt(uniforms: Floats) -> Floats:
    """Turn uniforms (point, n − 1) into points of a simplex of n entries, uniform on it.

    m_i = (1 − m_1 − … − m_{i−1}) (1 − (1 − u_i)^{1/(n − i)}); the last takes the rest.
    """
    count, free = uniforms.shape
    kept = (1.0 - uniforms) ** (1.0 / np.arange(free, 0, -1))
    left = np.concatenate([np.ones((count, 1)), np.cumprod(kept, axis=1)], axis=1)
    return np.concatenate([left[:, :-1] * (1.0 - kept), left[:, -1:]], axis=1)
