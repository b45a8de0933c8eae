"""The closed forms against products of predictive probabilities, one row at a time."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cases.families import categories
from numpy.testing import assert_allclose

from silomix.silo.partition import log_partition_prior

SIZES = np.array([2, 3, 1, 4])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])


def with_missing(rng, rows):
    """Codes in which K_q stands for a missing cell."""
    return rng.integers(0, SIZES + 1, (rows, len(SIZES)))


def counted(codes):
    return np.concatenate(
        [np.bincount(codes[:, q], minlength=size + 1)[:size] for q, size in enumerate(SIZES)]
    )


def sequential_evidence(codes, beta):
    total = 0.0
    for q, size in enumerate(SIZES):
        seen = np.zeros(size)
        for code in codes[:, q]:
            if code < size:
                total += np.log((beta + seen[code]) / (size * beta + seen.sum()))
                seen[code] += 1
    return total


def sequential_prior(allocation, components, alpha):
    """Probability of one labelled allocation of the rows to the components."""
    held = np.zeros(components)
    probability = 1.0
    for row, component in enumerate(allocation):
        probability *= (alpha + held[component]) / (components * alpha + row)
        held[component] += 1
    return probability


def blocks(allocation):
    """The partition behind an allocation: clusters numbered as they appear."""
    numbers = {}
    return tuple(numbers.setdefault(component, len(numbers)) for component in allocation)


@pytest.mark.parametrize("beta", [0.3, 0.5, 0.875, 2.0])
def test_evidence_is_the_product_of_the_predictive_probabilities(seed, beta):
    codes = with_missing(np.random.default_rng(seed), 40)
    assert_allclose(
        categories(SIZES, beta).log_evidence(counted(codes)).sum(),
        sequential_evidence(codes, beta),
        rtol=1e-12,
    )


def test_evidence_works_along_any_leading_axes_and_is_zero_without_rows(rng):
    counts = 5 * rng.random((3, 2, OFFSETS[-1]))
    counts[1, 0] = 0
    family = categories(SIZES, 0.7)
    evidence = family.log_evidence(counts)
    assert evidence.shape == (3, 2, 4)
    assert not evidence[1, 0].any()
    assert_allclose(evidence[2, 1], family.log_evidence(counts[2, 1]), rtol=1e-12)


@pytest.mark.parametrize(("components", "alpha"), [(2, 0.5), (3, 0.875), (5, 0.5), (7, 1.3)])
def test_partition_prior_adds_up_the_labelled_allocations(components, alpha):
    expected = {}
    for allocation in product(range(components), repeat=5):
        mass = sequential_prior(allocation, components, alpha)
        expected[blocks(allocation)] = expected.get(blocks(allocation), 0) + mass
    for partition, mass in expected.items():
        found = log_partition_prior(np.bincount(partition), components, alpha)
        assert_allclose(found, np.log(mass), rtol=1e-10)
