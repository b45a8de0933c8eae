"""The likelihood of many draws at once, against its definition and against known answers."""

from __future__ import annotations

import numpy as np
import pytest
from cases import sweep_twin as reference
from cases.kernel_twins import expected_counts_definition
from numpy.testing import assert_allclose, assert_array_equal

from silomix.kernels.arrays import distinct_rows
from silomix.kernels.layout import level_columns, row_table
from silomix.kernels.likelihood import LANES, SMALLEST_MASS, fuse_probabilities
from silomix.kernels.likelihood import expected_counts as counts_of_rows

# sums of some thousand positive terms, added in another order
ROUNDING = 1e-12


def expected_counts(weights, probabilities, codes, counts, sizes, threads=1):
    return counts_of_rows(weights, probabilities, row_table(codes, counts, sizes), threads)


def random_problem(rng, *, draws=11, rows=60, clusters=4, sizes=(2, 3, 5, 1, 4), missing=0.1):
    sizes = np.array(sizes)
    weights = rng.dirichlet(np.ones(clusters), draws)
    levels = [rng.dirichlet(np.full(k, 0.4), (draws, clusters)) for k in sizes]
    codes = np.stack([rng.integers(0, k, rows) for k in sizes], axis=1)
    codes = np.where(rng.random(codes.shape) < missing, sizes, codes).astype(np.uint8)
    probabilities = np.maximum(np.concatenate(levels, axis=-1), 1e-30)
    return weights, probabilities, codes, rng.integers(1, 9, rows), sizes


def assert_same_counts(found, expected, rtol=ROUNDING):
    for name, array in found._asdict().items():
        # less than 1e-100 of a row may be rounded to nothing
        assert_allclose(array, getattr(expected, name), rtol=rtol, atol=1e-100, err_msg=name)


@pytest.mark.parametrize("draws", [1, LANES, LANES + 1, 3 * LANES])
@pytest.mark.parametrize("clusters", [1, 7])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_kernel_is_its_definition(rng, draws, clusters, missing):
    problem = random_problem(rng, draws=draws, clusters=clusters, missing=missing)
    assert_same_counts(expected_counts(*problem), expected_counts_definition(*problem))
    none = [part[:0] if place in (2, 3) else part for place, part in enumerate(problem)]
    assert not expected_counts(*none).log_likelihood.any()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_fused_columns_change_nothing(rng, missing):
    problem = random_problem(rng, rows=400, sizes=(2,) * 20 + (3,) * 10, missing=missing)
    table = row_table(*problem[2:])
    assert table.columns.shape[1] <= 15  # at least two variables to a column
    assert len(table.entries) == table.columns.shape[1]
    assert_same_counts(expected_counts(*problem), expected_counts_definition(*problem))


def test_the_log_likelihood_is_that_of_the_sampler(seed):
    """Code of its own, in scalar Python: the sum over the labels of one Gibbs sweep."""
    weights, probabilities, codes, counts, sizes = random_problem(np.random.default_rng(seed))
    rows = np.repeat(codes, counts, axis=0)
    found = expected_counts(weights, probabilities, codes, counts, sizes).log_likelihood
    for value, shares, profiles in zip(found, weights, probabilities, strict=True):
        expected = reference.draw_labels(1, rows, sizes, shares, profiles.T)[1]
        assert_allclose(value, expected, rtol=ROUNDING)


def test_a_hundred_variables_of_tiny_probabilities_do_not_underflow(rng):
    problem = random_problem(rng, sizes=(3,) * 100)
    weights, probabilities, *rest = problem
    tiny = np.where(rng.random(probabilities.shape) < 0.5, 1e-30, probabilities)
    found = expected_counts(weights, tiny, *rest)
    assert found.log_likelihood.max() < np.log(np.finfo(float).tiny)
    # the definition rounds log masses of thousands to 1e-12, and responsibilities with them
    assert_same_counts(found, expected_counts_definition(weights, tiny, *rest), rtol=1e-9)


def test_a_cluster_that_vanishes_on_the_way_comes_back():
    """One has mass 1e-1200 after the first forty cells, the other catches up in the last forty."""
    sizes = np.full(80, 2)
    weights = np.array([[0.25, 0.75]])
    profiles = np.full((1, 2, 160), 0.5)
    profiles[0, 0, :80] = 1e-30
    profiles[0, 1, 80:] = 1e-30
    codes = np.zeros((1, 80), np.uint8)
    found = expected_counts(weights, profiles, codes, np.array([8]), sizes)
    assert_allclose(found.members[0], [2, 6], rtol=ROUNDING)
    mass = 40 * np.log(1e-30) + 40 * np.log(0.5)
    assert_allclose(found.log_likelihood[0], 8 * mass, rtol=ROUNDING)


@pytest.mark.parametrize("threads", [3, 8])
def test_threads_do_not_change_a_bit(seed, threads):
    problem = random_problem(np.random.default_rng(seed), draws=5 * LANES + 3)
    one, several = expected_counts(*problem), expected_counts(*problem, threads=threads)
    for name, array in one._asdict().items():
        assert_array_equal(array, getattr(several, name), err_msg=name)


def test_a_draw_does_not_depend_on_its_neighbours(rng):
    """One draw must be rescaled; the others in its vector need not."""
    weights, probabilities, *rest = random_problem(rng, draws=LANES, sizes=(3,) * 60)
    company = probabilities.copy()
    company[3] = 1e-30
    alone = expected_counts(weights, probabilities, *rest)
    together = expected_counts(weights, company, *rest)
    others = np.delete(np.arange(LANES), 3)
    for name, array in alone._asdict().items():
        assert_array_equal(array[others], getattr(together, name)[others], err_msg=name)


def test_a_row_without_cells_is_shared_out_by_the_weights(seed):
    weights, probabilities, _, _, sizes = random_problem(np.random.default_rng(seed))
    empty = sizes[None].astype(np.uint8)
    found = expected_counts(weights, probabilities, empty, np.array([3]), sizes)
    assert_allclose(found.members, 3 * weights, rtol=ROUNDING)
    assert_allclose(found.log_likelihood, 0, atol=ROUNDING)
    assert not found.cells.any()


def test_level_columns_send_missing_cells_past_the_last_level():
    sizes = np.array([2, 1, 3])
    codes = np.array([[0, 0, 2], [2, 1, 3], [1, 0, 0]], dtype=np.uint8)
    assert_array_equal(level_columns(codes, sizes), [[0, 2, 5], [6, 6, 6], [1, 2, 3]])
    # offsets beyond what the codes' own type can hold
    wide = np.full(200, 2)
    last = level_columns(np.ones((1, 200), np.uint8), wide)
    assert last[0, -1] == 399


def test_draws_that_fused_columns_would_lose_keep_their_place(rng):
    """Thirty constant variables are one column: its product is nothing in two of five draws."""
    weights, probabilities, codes, *rest = random_problem(rng, draws=5, sizes=(2,) * 40, missing=0)
    codes[:, :30] = 0
    probabilities = 0.05 + 0.9 * probabilities
    probabilities[[1, 3], :, 0:60:2] = 1e-30
    fused = fuse_probabilities(probabilities, row_table(codes, *rest).entries)
    assert_array_equal(fused.min(axis=(1, 2)) < SMALLEST_MASS, [False, True, False, True, False])
    problem = weights, probabilities, codes, *rest
    assert_same_counts(expected_counts(*problem), expected_counts_definition(*problem), rtol=1e-9)


@pytest.mark.parametrize("variables", [1, 2, 45, 94, 200])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_distinct_rows_are_those_of_numpy(rng, variables, dtype):
    codes = rng.choice(rng.integers(0, 3, (40, variables)).astype(dtype), 300)
    found = distinct_rows(codes)
    rows, counts = np.unique(codes, axis=0, return_counts=True)
    assert found.codes.dtype == dtype
    assert_array_equal(found.codes, rows)
    assert_array_equal(found.counts, counts)
    parts = [distinct_rows(part) for part in (codes[:100], codes[100:])]
    merged = distinct_rows(*(np.concatenate(both) for both in zip(*parts, strict=True)))
    assert_array_equal(merged.codes, rows)
    assert_array_equal(merged.counts, counts)
    # rows that differ in one cell, in any word that a row is packed into
    one_more = np.repeat(rows[:1], variables + 1, axis=0)
    one_more[np.arange(variables), np.arange(variables)] += 1
    assert len(distinct_rows(one_more).counts) == variables + 1


@pytest.mark.parametrize("base", [2, 4, 16, 256])
def test_a_word_that_is_just_full_does_not_overflow(base):
    """64 bits hold exactly this many cells; one more starts another word."""
    fit = int(64 / np.log2(base))
    for variables in (fit, fit + 1):
        largest = np.full(variables, base - 1, dtype=np.uint8)
        rows = np.stack([np.zeros_like(largest), largest, largest])
        found = distinct_rows(rows)
        assert_array_equal(found.codes, rows[:2])
        assert_array_equal(found.counts, [1, 2])
