"""The compiled sweep gives the chain of the definition, label for label and draw for draw."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import sweep_twin as reference
from cases.sampler_cases import random_shard
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import stats

from silomix.kernels import gibbs_sweep
from silomix.kernels.layout import BLOCK, KeptDraws, lay_out, make_workspace
from silomix.kernels.reproducible import chain_key, draw_gammas, fold, ranges

FALSE_ALARM = 1e-4


def random_codes(seed, rows, sizes, missing):
    return random_shard(seed, rows, sizes, missing).codes


def empty_kept(draws, rows, components, levels):
    return KeptDraws(
        labels=np.zeros((draws, rows), np.uint8),
        weights=np.zeros((draws, components), np.float32),
        probabilities=np.zeros((draws, components, levels), np.float32),
        log_likelihood=np.zeros(draws),
        members=np.zeros((draws, components), np.int64),
    )


def run(key, codes, sizes, components, sweeps, alpha=0.5, beta=0.5):
    """Run the compiled sampler from its start: the workspace afterwards, and every draw."""
    work = make_workspace(lay_out(codes, sizes), components)
    labels = np.zeros(len(codes), np.uint8)
    gibbs_sweep.start(np.uint64(key), labels, components)
    assert_array_equal(labels, reference.start(key, len(codes), components))
    gibbs_sweep.count(work, labels)
    kept = empty_kept(sweeps, len(codes), components, int(sizes.sum()))
    gibbs_sweep.run(np.uint64(key), 1, sweeps, 0, 1, work, alpha, beta, labels, kept)
    return work, kept


def assert_same_chain(codes, sizes, components, sweeps, alpha, beta, seed):
    key = reference.chain_key(seed, 1, 2)
    assert key == chain_key(seed, 1, 2)
    assert fold(key, 7) == reference.fold(key, 7)
    work, kept = run(key, codes, sizes, components, sweeps, alpha, beta)
    expected = reference.start(key, len(codes), components)
    for sweep in range(1, sweeps + 1):
        expected, weights, table, log_likelihood = reference.sweep(
            key, sweep, codes, sizes, expected, components, alpha, beta
        )
        members, counts = reference.count(codes, sizes, expected, components)
        assert_array_equal(kept.labels[sweep - 1], expected)
        assert_array_equal(kept.weights[sweep - 1], weights.astype(np.float32))
        assert_array_equal(kept.probabilities[sweep - 1], table.T.astype(np.float32))
        assert_array_equal(kept.members[sweep - 1], members)
        # the compiled one adds logarithms of float32 totals, each off by a few roundings
        rounding = 2.0**-24 * (2 * work.layout.fused.shape[1] + components // 16 + 8)
        assert abs(kept.log_likelihood[sweep - 1] - log_likelihood) <= len(codes) * rounding
    assert_array_equal(work.weights, weights)
    assert_array_equal(work.table, table)
    assert_array_equal(work.counts, counts)


@pytest.mark.parametrize(
    ("rows", "sizes", "components", "missing"),
    [
        (65, [2], 16, 0.3),
        (70, [300, 2, 40, 17, 16, *[2] * 20], 20, 0.1),
        pytest.param(200, [2] * 30, 50, 0.05, marks=pytest.mark.slow),
        pytest.param(70, [300, 2, 40, 17, 16], 255, 0.1, marks=pytest.mark.slow),
    ],
    ids=["full lanes", "many levels, variables and components", "many variables", "widest"],
)
def test_compiled_chain_is_the_definition(rows, sizes, components, missing, seed):
    """Beyond what the next test reaches: each sixteen components more are compiled anew."""
    sizes = np.array(sizes)
    codes = random_codes(seed, rows, sizes, missing)
    assert_same_chain(codes, sizes, components, 5, 0.875, 0.5, seed)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 80),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    components=st.integers(1, 16),
    missing=st.sampled_from([0.0, 0.2, 1.0]),
    alpha=st.sampled_from([0.01, 0.5, 0.875, 1.0, 3.0]),
    beta=st.sampled_from([0.02, 0.5, 0.995, 1.0, 2.0]),
    seed=st.integers(0, 2**32),
)
def test_compiled_chain_is_the_definition_anywhere(
    rows, sizes, components, missing, alpha, beta, seed
):
    sizes = np.array(sizes)
    codes = random_codes(seed, rows, sizes, missing)
    assert_same_chain(codes, sizes, components, 2, alpha, beta, seed)


def test_draws_near_a_boundary_are_made_again_in_float64(seed):
    """On a long run some draws fall inside the rounding bound; the chain does not notice."""
    sizes = np.array([2, 3, 3, 2])
    codes = random_codes(seed, 3000, sizes, 0.0)
    key = chain_key(seed, 0, 0)
    work, kept = run(key, codes, sizes, 15, 100)
    assert 0 < work.exact[0] < 0.001 * 300_000
    expected, *_ = reference.sweep(key, 100, codes, sizes, kept.labels[-2], 15, 0.5, 0.5)
    assert_array_equal(kept.labels[-1], expected)


def test_rows_too_unlikely_for_float32_take_the_exact_path(seed):
    """Four hundred variables: every product underflows float32, and the smaller ones float64."""
    sizes = np.full(400, 3)
    codes = np.random.default_rng(seed).integers(0, 3, (6, 400)).astype(np.uint8)
    assert_same_chain(codes, sizes, 3, 3, 0.5, 0.5, seed)


def test_rows_shared_among_threads_give_the_same_labels_and_counts(seed):
    sizes = np.array([2, 3, 40])
    layout = lay_out(random_codes(seed, 1000, sizes, 0.1), sizes)
    key = np.uint64(chain_key(seed, 0, 0))
    results = []
    for parts in (1, 2, 3, 7):
        work = make_workspace(layout, 15, parts)
        labels = np.zeros(1000, np.uint8)
        gibbs_sweep.start(key, labels, 15)
        gibbs_sweep.count(work, labels)
        gibbs_sweep.draw_parameters(key, work, 0.5, 0.5)
        for thread, (first, last) in enumerate(ranges(1000, parts, BLOCK)):
            gibbs_sweep.draw_labels(key, work, thread, first, last, labels, True)
        gibbs_sweep.gather(work)
        results.append((labels, work.members, work.counts, gibbs_sweep.log_likelihood(work)))
    for one, *many in zip(*results, strict=True):
        for other in many:
            assert_array_equal(one, other)


@pytest.mark.parametrize(("rows", "threads"), [(1, 2), (63, 2), (64, 2), (1000, 3), (129, 8)])
def test_parts_cover_all_rows_once(rows, threads):
    bounds = ranges(rows, threads, BLOCK)
    assert len(bounds) == threads
    assert [row for first, last in bounds for row in range(first, last)] == list(range(rows))
    assert all(first % BLOCK == 0 or first == rows for first, _ in bounds)


def test_exp_and_log_are_accurate(rng):
    """Within 2 ulp of the C library, over all arguments the sampler can produce."""
    for x in -rng.random(3000) * 200:
        assert reference.exp(x) == pytest.approx(math.exp(x), rel=2**-51)
    for u in np.concatenate([rng.random(3000), 1 - rng.random(1000) * 1e-6, rng.random(99) * 50]):
        assert reference.log(u) == pytest.approx(math.log(u), rel=2**-50, abs=1e-300)


@pytest.mark.statistical
@pytest.mark.parametrize("shape", [0.05, 0.875, 1.0, 7.5, 1000.5])
def test_gamma_draws_follow_the_gamma_law(shape, seed):
    shapes = np.full(200_000, shape)
    gammas = np.empty_like(shapes)
    draw_gammas(np.uint64(chain_key(seed, 0, 0)), shapes, gammas)
    assert stats.kstest(gammas, stats.gamma(shape).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(gammas, stats.gamma(shape * 1.02).cdf).pvalue < FALSE_ALARM
    assert gammas[17] == reference.gamma(chain_key(seed, 0, 0), 17, shape)


@pytest.mark.statistical
def test_normal_draws_follow_the_normal_law_into_the_tail(seed):
    key = chain_key(seed, 3, 1)
    draws = np.array(
        [
            reference.normal(reference.fold(key, i), reference.fold(~key, i))[0]
            for i in range(60_000)
        ]
    )
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(draws * 1.03, "norm").pvalue < FALSE_ALARM


@pytest.mark.statistical
def test_neighbouring_keys_give_unrelated_uniforms(seed):
    """Chains, sweeps and rows next to each other must not be correlated."""
    keys = [
        reference.fold(reference.fold(chain_key(seed, silo, chain), sweep), 2)
        for silo in range(2)
        for chain in range(2)
        for sweep in range(1, 4)
    ]
    table = np.array(
        [[reference.uniform(reference.fold(key, i)) for i in range(4000)] for key in keys]
    )
    assert stats.kstest(table.ravel(), "uniform").pvalue > FALSE_ALARM
    correlations = np.corrcoef(np.vstack([table, np.roll(table[0], 1)]))
    largest = np.abs(correlations[np.triu_indices(len(correlations), 1)]).max()
    pairs = len(correlations) * (len(correlations) - 1) / 2
    assert largest < stats.norm.isf(FALSE_ALARM / 2 / pairs) / math.sqrt(4000)


def test_byte_counters_are_emptied_before_they_are_full(seed):
    """Every row in one component and at one level; the last, of missing cells, keeps level 0."""
    codes = np.ones((40 * BLOCK, 2), np.uint8)
    codes[-1] = 2, 3
    assert_same_chain(codes, np.array([2, 3]), 1, 2, 0.5, 0.5, seed)
