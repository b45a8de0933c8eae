"""The published maxima: EM from the sampler's best draw reaches them, no draw exceeds them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from statistical import published
from statistical.polish_oracle import one_hot
from statistical.published import table_of

import silomix

CASES = [
    pytest.param(name, classes, marks=[pytest.mark.slow] if name == "gss82" else [])
    for name in ("carcinoma", "gss82", "values", "cheating")
    for classes in getattr(published, name.upper()).maxima
]


def log_masses(onehot, weights, probabilities):
    """log π_c + Σ log p of each row under each class; a zero probability counts where it is met."""
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    cells = np.where(onehot[:, None, :] > 0, logs, 0.0)
    return np.log(weights) + cells.sum(axis=2)


def em(onehot, weights, probabilities, offsets):
    """Plain maximum-likelihood EM for latent classes; returns the last log-likelihood."""
    last = -np.inf
    for _ in range(20_000):
        logs = log_masses(onehot, weights, probabilities)
        top = logs.max(axis=1, keepdims=True)
        totals = np.log(np.exp(logs - top).sum(axis=1, keepdims=True)) + top
        log_likelihood = totals.sum()
        if log_likelihood - last < 1e-9:
            return log_likelihood
        last = log_likelihood
        responsibilities = np.exp(logs - totals)
        weights = responsibilities.mean(axis=0)
        counts = responsibilities.T @ onehot
        probabilities = np.concatenate(
            [
                counts[:, first:end] / counts[:, first:end].sum(axis=1, keepdims=True)
                for first, end in pairwise(offsets)
            ],
            axis=1,
        )
    return last


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_em_from_the_best_draw_reaches_the_published_maximum(name, classes, seed):
    data = getattr(published, name.upper())
    settings = {"components": classes, "frequency": "n", "seed": seed}
    draws = silomix.sample(table_of(name), iterations=40_000, thin=1, **settings)
    best = int(np.argmax(draws.log_likelihood))
    reached = em(
        one_hot(draws.shard.codes, draws.shard.schema.sizes),
        draws.weights[best].astype(float),
        draws.probabilities[best].astype(float),
        draws.shard.schema.offsets,
    )
    assert round(reached, 3) == round(data.maxima[classes], 3)
    assert draws.log_likelihood.max() <= reached
    # the deficit of a draw is about χ²/2 with as many degrees of freedom as free parameters: the
    # best of thousands is far under its mean, which no draw of the prior comes near
    sizes = draws.shard.schema.sizes
    free = classes - 1 + classes * (sizes - 1).sum()
    assert reached - draws.log_likelihood.max() < free / 2
