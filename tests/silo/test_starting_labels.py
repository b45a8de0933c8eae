"""Where chains without spare components begin."""

from __future__ import annotations

import numpy as np
import pytest

import silomix
from silomix.families import make_family
from silomix.families.chains import Rows
from silomix.model.draws import Schedule
from silomix.model.metrics import adjusted_rand_index
from silomix.model.schema import Prior
from silomix.model.table import load
from silomix.silo.partition import log_partition_prior
from silomix.silo.sampler import Job, join_components, sample_shard, starting_labels

PRIOR = Prior(alpha=1.0)


def rows_of(variables, seed, rows=300):
    table, truth = silomix.simulate(
        "homogeneous", rows=rows, silos=1, seed=seed, variables=variables
    )
    shard = load(table.drop(columns="silo"), kinds=truth.kinds)
    return Rows(shard, make_family(shard.schema, PRIOR)), truth.labels


def log_joint(rows, labels, components):
    members = np.bincount(labels)
    evidence = rows.family.log_evidence(rows.sum_statistics(labels, len(members))).sum()
    return evidence + log_partition_prior(members, components, PRIOR.alpha)


@pytest.mark.parametrize("variables", ["categorical", "gaussian"])
def test_the_pair_joined_is_the_one_that_leaves_the_labels_most_probable(variables, seed):
    rows, _ = rows_of(variables, seed)
    labels = np.random.default_rng(seed).integers(0, 5, 300)
    found = join_components(labels, 4, rows, PRIOR.alpha)
    assert set(found) == set(range(4))
    pairs = [(a, b) for b in range(5) for a in range(b)]
    joined = [np.where(labels == b, a, labels - (labels > b)) for a, b in pairs]
    best = max(joined, key=lambda each: log_joint(rows, each, 9))
    np.testing.assert_array_equal(found, best)


@pytest.mark.parametrize("variables", ["categorical", "gaussian"])
def test_parts_of_clusters_are_joined_and_nothing_else(variables, seed):
    rows, truth = rows_of(variables, seed)
    parts = 3 * truth + np.random.default_rng(seed).integers(0, 3, 300)
    assert adjusted_rand_index(join_components(parts, 5, rows, PRIOR.alpha), truth) > 0.95
    np.testing.assert_array_equal(join_components(truth, 9, rows, PRIOR.alpha), truth)


def test_chains_begin_at_the_labels_given_and_each_at_its_own(seed):
    rows, truth = rows_of("gaussian", seed)
    job = Job(5, PRIOR, Schedule(iterations=1, burn_in=0, chains=2, thin=1), seed=seed)
    found = starting_labels(rows.shard, job, threads=1)
    assert (found.shape, found.dtype) == ((2, 300), np.uint8)
    np.testing.assert_array_equal(starting_labels(rows.shard, job, threads=2), found)
    for labels in found:
        assert adjusted_rand_index(labels, truth) > 0.6
    draws = sample_shard(rows.shard, job, start=found)
    for labels, after in zip(found, draws.last_states, strict=True):
        assert adjusted_rand_index(labels, after) > 0.6
