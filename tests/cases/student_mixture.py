"""Mixtures of Student's t, for which silomix has no family: planted data, a sampler, the density.

Variables are independent within a cluster, each with a location and a scale, and ν = 4 degrees of
freedom. The sampler is of another make than silomix's: Gibbs, with a precision for each cell (t as
a mixture of normals), NumPy alone, labels begun at random, so that chains name clusters otherwise.
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import logsumexp

NU = 4.0
CONSTANT = stats.t.logpdf(0.0, NU)
# locations of four clusters in two variables, and their scales
LOCATIONS = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [9.0, 9.0]])
SCALES = np.array([[1.0, 1.0], [1.5, 0.7], [0.8, 1.2], [1.0, 1.0]])
# shares of the clusters in each silo: none has all four
SHARES = {
    "north": [0.5, 0.3, 0.2, 0.0],
    "south": [0.0, 0.4, 0.3, 0.3],
    "west": [0.4, 0.0, 0.3, 0.3],
}


def plant(rng, rows=400, shift=0.0):
    """Rows and labels by silo; with a shift, silos' locations differ by so many scales."""
    found = {}
    for silo, shares in SHARES.items():
        labels = rng.choice(4, rows, p=shares)
        own = LOCATIONS + shift * SCALES * rng.standard_normal(LOCATIONS.shape)
        noise = rng.standard_t(NU, (rows, 2))
        found[silo] = own[labels] + SCALES[labels] * noise, labels
    return found


def log_density(x, locations, scales):
    """log p(row | cluster), of clusters with axes (..., cluster, variable): (..., row, cluster)."""
    z = (x[:, None, :] - locations[..., None, :, :]) / scales[..., None, :, :]
    # as scipy.stats.t.logpdf, which checks its arguments for longer than it computes
    logs = CONSTANT - 0.5 * (NU + 1) * np.log1p(z * z / NU) - np.log(scales)[..., None, :, :]
    return logs.sum(axis=-1)


def log_likelihood(x):
    """The log-likelihood of rows as `combine` asks for it."""

    def of_draws(weights, parameters):
        locations = np.stack([parameters["loc[0]"], parameters["loc[1]"]], axis=-1)
        scales = np.stack([parameters["scale[0]"], parameters["scale[1]"]], axis=-1)
        logs = log_density(x, locations, scales) + np.log(weights)[:, None, :]
        return logsumexp(logs, axis=2).sum(axis=1)

    return of_draws


def sample(x, labels, components, rng, *, sweeps, alpha=1.0):
    """One chain from these labels, (row,).

    Given the precisions of the cells, location and squared scale are normal–inverse-gamma with
    next to no prior; the weights are Dirichlet(alpha).

    Returns
    -------
    weights (draw, component), locations and scales (draw, component, variable), and the last labels
    """
    u = np.ones(x.shape)
    m0, l0, a0, b0 = x.mean(axis=0), 0.01, 0.1, 0.05
    weights = np.empty((sweeps, components))
    locations, scales = np.empty((2, sweeps, components, x.shape[1]))
    for sweep in range(sweeps):
        ones = np.eye(components)[labels]
        n, size, first = ones.sum(axis=0), l0 + ones.T @ u, ones.T @ (u * x)
        mean = (l0 * m0 + first) / size
        b = b0 + 0.5 * (ones.T @ (u * x * x) + l0 * m0**2 - size * mean**2)
        sd = np.sqrt(np.maximum(b, 1e-9) / rng.standard_gamma(a0 + 0.5 * n[:, None], size.shape))
        loc = mean + sd / np.sqrt(size) * rng.standard_normal(size.shape)
        w = rng.dirichlet(alpha + n)
        logs = log_density(x, loc, sd) + np.log(w + 1e-300)
        labels = (logs + rng.gumbel(size=logs.shape)).argmax(axis=1)
        z = (x - loc[labels]) / sd[labels]
        u = rng.standard_gamma(0.5 * (NU + 1), z.shape) / (0.5 * (NU + z * z))
        weights[sweep], locations[sweep], scales[sweep] = w, loc, sd
    return weights, locations, scales, labels


def sampled(x, components, rng, *, chains=2, sweeps=600, **how):
    """The draws of a silo as `combine` takes them, chains first.

    A chain that begins at random may keep two clusters in one component for long: as people do,
    each begins where the best of some short ones ended.
    """
    runs = []
    for _ in range(chains):
        short = [
            sample(x, rng.integers(components, size=len(x)), components, rng, sweeps=60, **how)
            for _ in range(5)
        ]
        best = max(short, key=lambda run: _last_likelihood(x, *run[:3]))
        runs.append(sample(x, best[3], components, rng, sweeps=sweeps, **how)[:3])
    weights, locations, scales = (np.stack(parts) for parts in zip(*runs, strict=True))
    return {"weights": weights, "parameters": {"loc": locations, "scale": scales}}


def _last_likelihood(x, weights, locations, scales):
    logs = log_density(x, locations[-1], scales[-1]) + np.log(weights[-1] + 1e-300)
    return logsumexp(logs, axis=1).sum()


def labels_at(x, posterior, silo):
    """The most probable cluster of each row, by the density at a posterior's means."""
    place = posterior.silos.index(silo)
    values = posterior.parameters.mean(axis=0, dtype=np.float64)
    weights = posterior.weights_by_silo[:, place].mean(axis=0, dtype=np.float64)
    logs = log_density(x, values[:, :2], values[:, 2:]) + np.log(weights + 1e-12)
    return logs.argmax(axis=1)


def best_labels(x, silo):
    """The most probable cluster of each row where everything is known."""
    logs = log_density(x, LOCATIONS, SCALES) + np.log(np.array(SHARES[silo]) + 1e-12)
    return logs.argmax(axis=1)
