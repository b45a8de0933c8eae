"""Planted clusters of negative binomial counts: found, where Poisson counts are cut into more."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import silomix
from silomix.model.metrics import (
    adjusted_rand_index,
    highest_density_interval,
    pair_clusters,
)

pytestmark = [pytest.mark.statistical, pytest.mark.slow]

ROWS = 500
QUICK = {"components": 8, "iterations": 1000}
# of three clusters, by variable
MEANS = np.array([[1.0, 8.0, 2.0, 6.0], [6.0, 1.5, 9.0, 1.0], [12.0, 9.0, 0.5, 0.4]])
# between the dispersions that the family has
DISPERSIONS = np.array([[1.3, 0.6, 0.9, 0.4], [0.5, 1.6, 0.6, 2.1], [0.4, 0.7, 2.6, 1.1]])


def simulate(seed):
    """Return a table of counts in two silos, and the cluster of each row."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(len(MEANS), size=ROWS)
    shape = 1 / DISPERSIONS[truth]
    counts = rng.poisson(MEANS[truth] * rng.standard_gamma(shape) / shape)
    table = pd.DataFrame(counts, columns=list("abcd"))
    return table.assign(silo=rng.choice(["north", "south"], ROWS)), truth


def fit(table, kind, seed):
    kinds = dict.fromkeys("abcd", kind)
    return silomix.fit(table, silo="silo", kinds=kinds, **QUICK, seed=seed, threads=1)


def test_clusters_are_found_where_poisson_counts_would_split_them(seed, tmp_path):
    table, truth = simulate(seed)
    found = fit(table, "negative-binomial", seed)
    assert found.n_clusters == len(MEANS)
    assert adjusted_rand_index(truth, found.labels) > 0.6
    assert fit(table, "poisson", seed).n_clusters >= 2 * len(MEANS)
    # of twelve 95 % intervals fewer than nine hold the true value in one table of 400
    pairs = pair_clusters(truth, found.labels)
    lower, upper = highest_density_interval(found.parameters[:, pairs, ::2])
    assert ((lower <= MEANS) & (upper >= MEANS)).sum() >= 9
    # a mean of .5 with dispersion 2.6 is uncertain by a factor of two, and others hardly at all
    draws = np.log(found.parameters[:, pairs, ::2])
    assert (np.abs(draws.mean(axis=0) - np.log(MEANS)) < 4 * draws.std(axis=0)).all()
    assert np.abs(np.log(found.parameters[:, pairs, ::2].mean(axis=0) / MEANS)).mean() < 0.2
    # all that is done with a posterior can be done with this one
    again = silomix.load(found.save(tmp_path / "counts.silomix"))
    assert again.report(tmp_path / "counts.html").stat().st_size > 0
