"""Federated k-means: its parts by hand, and the whole against one k-means of all rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans

import silomix
from silomix.errors import DataError, SettingsError
from silomix.model.metrics import adjusted_rand_index
from silomix.rivals import fed_kmeans
from silomix.rivals.federation import open_silos
from silomix.rivals.kmeans_kmodes import (
    Moments,
    Steps,
    Sums,
    climb_means,
    cluster_centres,
    distances,
    k_means,
    spread_start,
    standard_deviations,
    update_means,
)

POINTS = Sums(np.array([[2.0, 0.0], [0.0, 3.0], [8.0, 4.0]]), np.array([[1.0, 0], [0, 1], [2, 2]]))
"""A row without its second cell, one without its first, and two rows of mean (4, 2)."""


def far_apart(seed, rows=300):
    """Numbers of three clusters, in silos that have them all."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, rows)
    cells = rng.normal(size=(rows, 4)) + 8.0 * np.eye(3, 4)[truth]
    table = pd.DataFrame(cells, columns=list("abcd"))
    return table.assign(silo=rng.choice(["n", "s"], rows)), truth


def test_distances_are_over_known_cells_and_count_rows():
    centres = np.array([[0.0, 0.0], [3.0, 2.0]])
    found = distances(POINTS, centres)
    # the last is without the squares inside the point, which are the same for every centre
    np.testing.assert_allclose(found, [[4, 1], [9, 1], [2 * (16 + 4), 2 * 1]])


def test_a_centre_is_the_mean_of_its_rows_and_stays_without_any():
    centres = k_means(POINTS, np.array([[3.0, 2.0], [-50.0, -50.0]]), passes=1)
    np.testing.assert_allclose(centres, [[(2 + 8) / 3, (3 + 4) / 3], [-50, -50]])


def test_starts_are_distinct_points(seed):
    rng = np.random.default_rng(seed)
    twice = Sums(np.repeat(np.arange(6.0).reshape(3, 2), 2, axis=0), np.ones((6, 2)))
    for clusters, found in ((2, 2), (3, 3), (5, 3)):
        starts = spread_start(twice, clusters, rng)
        assert len(np.unique(starts, axis=0)) == len(starts) == found


def test_a_silo_never_sends_the_sums_of_one_row():
    table = pd.DataFrame({"silo": ["s"] * 5, "a": [0.1, 0.2, 5.1, 5.2, 90.0]})
    federation = open_silos(table, "silo", seed=0)
    cells = federation.silos.silos[0].shard.numbers
    (reply,) = federation.ask(partial(update_means, 3, np.array([2.0]), 1, cells[[0, 2, 4]] / 2))
    sums = [cells[:2].sum(axis=0) / 2, cells[2:4].sum(axis=0) / 2]
    np.testing.assert_allclose(reply.total, sums)
    np.testing.assert_array_equal(reply.known, [[2], [2]])


def test_no_centre_at_all_is_an_error():
    with pytest.raises(SettingsError, match="2 rows"):
        cluster_centres(
            [Sums(*np.empty((2, 0, 3)))], Steps(0, None, climb_means, None, 2, 1, 1), None
        )


def test_clusters_far_apart_are_those_of_all_rows_together(seed):
    table, truth = far_apart(seed)
    found = fed_kmeans(table, "silo", clusters=3, seed=seed)
    assert adjusted_rand_index(found.labels, truth) > 0.99
    cells = table[list("abcd")].to_numpy()
    pooled = KMeans(3, n_init=5, random_state=seed).fit(cells / cells.std(axis=0))
    assert adjusted_rand_index(found.labels, pooled.labels_) > 0.99
    np.testing.assert_allclose(found.weights[0], np.bincount(found.labels) / len(table))
    for cluster in range(3):
        rows = cells[found.labels == cluster]
        described = np.stack([rows.mean(axis=0), rows.std(axis=0)], axis=1).ravel()
        np.testing.assert_allclose(found.probabilities[0, cluster], described, rtol=1e-6)
    assert found.levels[:2] == [("a", "mean"), ("a", "sd")]
    assert {kind for sent in found.bytes_sent.values() for kind in sent} == {
        "Moments",
        "Sums",
        "ClusterSums",
    }


def test_missing_cells_are_left_out(seed):
    table, truth = far_apart(seed)
    holes = np.random.default_rng(seed).random((len(table), 4)) < 0.1
    cells = table[list("abcd")].mask(holes)
    found = fed_kmeans(cells.assign(silo=table["silo"]), "silo", clusters=3, seed=seed)
    assert adjusted_rand_index(found.labels, truth) > 0.75
    assert np.isfinite(found.probabilities).all()


def test_categories_are_refused_and_counts_are_numbers():
    table, truth = silomix.simulate("homogeneous", rows=200, seed=1, variables="mixed")
    with pytest.raises(DataError, match="knows numbers only; leave out"):
        fed_kmeans(table, "silo", clusters=5, kinds=truth.kinds)
    kinds = {name: kind for name, kind in truth.kinds.items() if kind != "categorical"}
    found = fed_kmeans(table, "silo", clusters=5, kinds=kinds, variables=list(kinds))
    assert [word for _, word in found.levels][-1] == "rate"


def test_scales_are_the_standard_deviations_of_all_silos(seed):
    cells = np.random.default_rng(seed).normal(3.0, [1.0, 5.0, 0.0], (50, 3))
    parts = [Moments(np.full(3, len(x)), x.sum(axis=0), (x**2).sum(axis=0))
             for x in (cells[:20], cells[20:])]  # fmt: skip
    found = standard_deviations(parts)
    np.testing.assert_allclose(found[:2], cells[:, :2].std(axis=0))
    assert found[2] == 1 or found[2] < 1e-6
