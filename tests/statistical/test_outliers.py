"""Clusters of t variables in four silos: found as they are, with intervals that cover.

Normal clusters, on the same rows, are more than there are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import silomix
from silomix.model.metrics import adjusted_rand_index

pytestmark = [pytest.mark.statistical, pytest.mark.slow]

ROWS, COLUMNS, DATASETS = 400, list("abc"), 12
MEANS, SCALES = np.array([[-2.0] * 3, [2.0] * 3]), np.array([[0.7, 1.0, 1.3], [1.3, 1.0, 0.7]])


def simulate(seed):
    """Return a table, the true labels, and those of who knows the parameters."""
    rng = np.random.default_rng([12, seed])
    truth = rng.integers(2, size=ROWS)
    cells = MEANS[truth] + SCALES[truth] * rng.standard_t(4, (ROWS, 3))
    best = stats.t(4, MEANS[:, None], SCALES[:, None]).logpdf(cells).sum(axis=2).argmax(axis=0)
    table = pd.DataFrame(cells, columns=COLUMNS).assign(silo=rng.choice(list("nesw"), ROWS))
    return table, truth, best


def fit(table, kind, seed):
    kinds = dict.fromkeys(COLUMNS, kind)
    how = {"components": 6, "iterations": 600, "seed": seed, "threads": 1}
    return silomix.fit(table, silo="silo", kinds=kinds, **how)


def recover(seed):
    """Return clusters, the index that knowing the parameters would add, and what covers."""
    table, truth, best = simulate(seed)
    found = fit(table, "student-t", seed)
    lost = adjusted_rand_index(truth, best) - adjusted_rand_index(truth, found.labels)
    if found.n_clusters != 2:
        return found.n_clusters, lost, np.zeros((2, 6), dtype=bool)
    draws = found.parameters[:, np.argsort(found.parameters.mean(axis=0)[:, 0])]
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    planted = np.stack([MEANS, SCALES], axis=-1).reshape(2, 6)
    return found.n_clusters, lost, (low <= planted) & (planted <= high)


def test_clusters_are_found_and_intervals_cover():
    """Means and scales have 72 intervals each, of which 68 cover on average, give or take two."""
    clusters, lost, inside = zip(*map(recover, range(DATASETS)), strict=True)
    assert list(clusters) == [2] * DATASETS
    assert np.mean(lost) < 0.02
    covered = np.array(inside).reshape(-1, 3, 2).mean(axis=(0, 1))
    # four standard errors around 0.95
    assert (np.abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / (6 * DATASETS))).all(), covered


def test_normal_clusters_are_more_than_there_are():
    assert fit(simulate(0)[0], "gaussian", 0).n_clusters > 2
