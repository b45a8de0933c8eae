"""P(cluster | row): the kernel against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases.kernel_twins import membership_definition
from numpy.testing import assert_allclose, assert_array_equal

from silomix.kernels import likelihood
from silomix.kernels.likelihood import TILE, log_weights, make_steps, share_rows

SIZES = np.array([2, 3, 5, 1, 2])


def random_case(rng, draws=TILE + 5, clusters=3, rows=40, sizes=SIZES):
    weights = rng.dirichlet(np.ones(clusters), draws)
    probabilities = np.concatenate(
        [rng.dirichlet(np.full(size, 0.5), (draws, clusters)) for size in sizes], axis=2
    )
    # code K_q is a missing cell
    codes = rng.integers(0, sizes + 1, (rows, len(sizes))).astype(np.uint8)
    return codes, sizes, weights, probabilities


def compute(codes, sizes, weights, probabilities, threads=1):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    steps = make_steps(weights, probabilities, offsets)
    return share_rows(codes, steps, log_weights(weights), threads)


def assert_same(found, expected):
    # a score is a sum of a few logarithms, each good to a few units in the last place
    assert_allclose(found[0], expected[0], rtol=1e-10, atol=1e-12)
    assert_allclose(found[1], expected[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("draws", [1, TILE - 1, TILE, TILE + 1, 3 * TILE])
@pytest.mark.parametrize("clusters", [1, 2, 7])
def test_the_kernel_is_its_definition(seed, draws, clusters):
    case = random_case(np.random.default_rng(seed), draws, clusters)
    found = compute(*case)
    assert_same(found, membership_definition(*case))
    assert_allclose(found.membership.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("rows", [1, 515])
def test_threads_and_blocks_do_not_matter(seed, rows):
    codes, *rest = random_case(np.random.default_rng(seed), rows=rows)
    one, many = compute(codes, *rest, threads=1), compute(codes, *rest, threads=3)
    assert_array_equal(one.membership, many.membership)
    assert_array_equal(one.log_density, many.log_density)
    last = compute(codes[-1:], *rest)
    assert_array_equal(last.membership[0], one.membership[-1])
    assert_array_equal(last.log_density[0], one.log_density[-1])


def test_equal_rows_get_the_same_wherever_blocks_begin(seed, monkeypatch):
    codes, *rest = random_case(np.random.default_rng(seed), rows=12)
    codes = np.concatenate([codes, codes[::-1], codes[:5]])
    whole = compute(codes, *rest)
    monkeypatch.setattr(likelihood, "BLOCK_ROWS", 7)
    in_blocks = compute(codes, *rest, threads=2)
    assert_array_equal(in_blocks.membership, whole.membership)
    assert_array_equal(in_blocks.log_density, whole.log_density)
    assert_same(whole, membership_definition(codes, *rest))


def test_codes_of_two_bytes_and_float32_draws(rng):
    codes, sizes, weights, probabilities = random_case(rng, sizes=np.array([300, 2]))
    codes = rng.integers(0, sizes + 1, codes.shape).astype(np.uint16)
    case = (codes, sizes, weights.astype(np.float32), probabilities.astype(np.float32))
    assert_same(compute(*case), membership_definition(*case))


def test_a_silo_that_lacks_a_cluster_never_gets_it(seed):
    codes, sizes, weights, probabilities = random_case(np.random.default_rng(seed))
    weights[:, 1] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    found = compute(codes, sizes, weights, probabilities)
    assert_same(found, membership_definition(codes, sizes, weights, probabilities))
    assert_array_equal(found.membership[:, 1], 0.0)


def test_probabilities_that_float32_rounds_to_zero_leave_a_number(seed):
    codes, sizes, weights, probabilities = random_case(np.random.default_rng(seed), clusters=2)
    probabilities[:, :, :2] = [1.0, 0.0]
    codes[:, 0] = 1
    found = compute(codes, sizes, weights, probabilities)
    assert np.isfinite(found.log_density).all()
    assert_allclose(found.membership.sum(axis=1), 1.0, rtol=1e-12)


def test_thousands_of_variables_do_not_underflow(rng):
    """The first half speaks for one cluster, the second, a little more, for the other."""
    sizes = np.full(4001, 2)
    strong, weak = np.array([0.9, 0.1]), np.array([0.1, 0.9])
    half = np.arange(4001) < 2000
    one = np.where(half[:, None], strong, weak).ravel()
    other = np.where(half[:, None], weak, strong).ravel()
    probabilities = np.tile(np.stack([one, other]), (2, 1, 1))
    weights = rng.dirichlet(np.ones(2), 2)
    found = compute(np.zeros((1, 4001), dtype=np.uint8), sizes, weights, probabilities)
    # 2001 factors of 9 against 2000: the ratio of the two is one factor of 9
    share = weights[:, 1] * 0.9 / (weights[:, 1] * 0.9 + weights[:, 0] * 0.1)
    # 4001 logarithms of at most 2.3, each rounded at 1e-16 of sums up to 5000
    assert_allclose(found.membership[0, 1], share.mean(), rtol=1e-8)
    assert found.log_density[0] < math.log(1e-300)
