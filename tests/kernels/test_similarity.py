"""Every compiled loop over the labels against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from cases.kernel_twins import (
    add_support_definition,
    co_clustering_definition,
    contingency_definition,
    sum_by_cluster_definition,
)
from numpy.testing import assert_array_equal

from silomix.kernels.similarity import (
    BYTE,
    TILE,
    add_support,
    co_clustering,
    contingency,
    sum_by_cluster,
)


def random_labels(rng, draws, rows, components=6):
    return rng.integers(0, components, (draws, rows)).astype(np.uint8)


@pytest.mark.parametrize("rows", [1, TILE - 1, TILE, TILE + 1, 2 * TILE + 3])
@pytest.mark.parametrize("draws", [1, 7])
def test_co_clustering_at_the_edges_of_a_tile(seed, rows, draws):
    labels = random_labels(np.random.default_rng(seed), draws, rows)
    assert_array_equal(co_clustering(labels), co_clustering_definition(labels))


@pytest.mark.parametrize("draws", [BYTE - 1, BYTE, BYTE + 1, 3 * BYTE + 2])
def test_co_clustering_at_the_edges_of_a_byte(rng, draws):
    labels = random_labels(rng, draws, 20)
    labels[:, :5] = 3  # together in every draw: a counter would overflow here first
    assert_array_equal(co_clustering(labels), co_clustering_definition(labels))


@pytest.mark.parametrize(
    ("draws", "dtype"), [(2**16 - 1, np.uint16), (2**16, np.uint32), (2**16 + 5, np.uint32)]
)
def test_co_clustering_takes_the_smallest_type_that_holds_the_draws(draws, dtype):
    labels = np.zeros((draws, 3), dtype=np.uint8)
    labels[0, 2] = 1
    together = co_clustering(labels)
    assert together.dtype == dtype
    assert_array_equal(
        together,
        [[draws, draws, draws - 1], [draws, draws, draws - 1], [draws - 1, draws - 1, draws]],
    )


def test_co_clustering_reads_a_memory_map_and_every_byte_value(seed, tmp_path):
    labels = random_labels(np.random.default_rng(seed), 300, 40, components=256)
    np.save(tmp_path / "labels.npy", labels)
    stored = np.load(tmp_path / "labels.npy", mmap_mode="r")
    assert_array_equal(co_clustering(stored), co_clustering_definition(labels))
    assert_array_equal(co_clustering(labels[:, ::2]), co_clustering_definition(labels[:, ::2]))


def test_contingency(rng):
    labels = random_labels(rng, 30, 70, components=5)
    clusters = rng.integers(0, 3, 70)
    overlap = contingency(labels, clusters, 7, 4)  # two components and one cluster stay empty
    assert overlap.shape == (30, 7, 4)
    assert_array_equal(overlap, contingency_definition(labels, clusters, 7, 4))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_sum_by_cluster(rng, dtype):
    # the largest values of the type: a sum kept in the type itself would overflow
    largest = np.iinfo(dtype).max
    distances = rng.integers(largest - 5, largest, (50, 50)).astype(dtype)
    clusters = rng.integers(0, 4, 50)
    sums = sum_by_cluster(distances, clusters, 5)
    assert_array_equal(sums, sum_by_cluster_definition(distances, clusters, 5))


def test_add_support_adds_in_the_order_of_the_draws(rng):
    labels = random_labels(rng, 25, 80)
    share = rng.random((25, 6, 3))
    support = rng.random((80, 3))
    expected = support.copy()
    add_support(labels, share, support)
    add_support_definition(labels, share, expected)
    assert_array_equal(support, expected)
