"""Traces by hand, R-hat and ESS against their source, and a verdict for each kind of run."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from arviz_stats.base import array_stats
from numpy.testing import assert_allclose, assert_array_equal

from silomix.model.diagnostics import ESS_LIMIT, FEWEST_DRAWS, RHAT_LIMIT, diagnose

TRACES = ["log_likelihood", "occupied", "largest_weight", "allocation_entropy"]


def make_run(rng, chains=2, draws=500, components=4, rows=60):
    """Independent draws: as good as a run can be. The smaller components are often empty."""
    shares = 0.2 ** np.arange(components)
    return (
        rng.normal(-500, 5, (chains, draws)),
        rng.multinomial(rows, shares / shares.sum(), (chains, draws)),
        rng.dirichlet(np.ones(components), (chains, draws)).astype(np.float32),
    )


def still(log_likelihood):
    """A run of which only the log-likelihood moves."""
    chains, draws = log_likelihood.shape
    members = np.tile([30, 20, 10], (chains, draws, 1))
    weights = np.tile(np.float32([0.5, 0.25, 0.25]), (chains, draws, 1))
    return log_likelihood, members, weights


def test_traces_are_what_they_say():
    log_likelihood = np.array([[-3.5, -2.5]])
    members = np.array([[[2, 0, 2], [1, 0, 3]]])
    weights = np.array([[[0.5, 0.125, 0.375], [0.25, 0.125, 0.625]]], np.float32)
    traces = diagnose(log_likelihood, members, weights).traces
    assert list(traces) == TRACES
    assert_array_equal(traces["log_likelihood"].values, log_likelihood)
    assert_array_equal(traces["occupied"].values, [[2, 2]])
    assert_array_equal(traces["largest_weight"].values, [[0.5, 0.625]])
    entropies = [[math.log(2), math.log(4) - 0.75 * math.log(3)]]
    assert_allclose(traces["allocation_entropy"].values, entropies, rtol=1e-15)
    assert all(trace.values.dtype == np.float64 for trace in traces.values())


@pytest.mark.parametrize("chains", [2, 4])
def test_rhat_and_ess_are_those_of_arviz(chains, seed):
    diagnostics = diagnose(*make_run(np.random.default_rng(seed), chains))
    for trace in diagnostics.traces.values():
        assert trace.values.shape == (chains, 500)
        assert trace.rhat == array_stats.rhat(trace.values, chain_axis=0, draw_axis=1)
        assert trace.ess == array_stats.ess(trace.values, chain_axis=0, draw_axis=1)


def test_a_single_chain_is_compared_with_itself(seed):
    """Its R-hat is that of its halves; its ESS, which splits every chain, is its own."""
    diagnostics = diagnose(*make_run(np.random.default_rng(seed), 1, draws=1001))
    for trace in diagnostics.traces.values():
        halves = trace.values[0, :1000].reshape(2, 500)
        assert trace.rhat == array_stats.rhat(halves, chain_axis=0, draw_axis=1)
        assert trace.ess == array_stats.ess(trace.values, chain_axis=0, draw_axis=1)


def test_label_switching_changes_nothing(rng):
    log_likelihood, members, weights = make_run(rng, draws=100, components=15, rows=1000)
    before = diagnose(log_likelihood, members, weights)
    number = np.argsort(rng.random(members.shape), axis=-1)
    after = diagnose(
        log_likelihood,
        np.take_along_axis(members, number, axis=-1),
        np.take_along_axis(weights, number, axis=-1),
    )
    for name in TRACES:
        assert_array_equal(after.traces[name].values, before.traces[name].values, name)
        assert (after.traces[name].rhat, after.traces[name].ess) == (
            before.traces[name].rhat,
            before.traces[name].ess,
        )
    assert after.verdict == before.verdict


def test_chains_that_number_the_same_clusters_differently_agree(seed):
    """Rows that never move: a rounding error must not pass for a disagreement."""
    log_likelihood = np.random.default_rng(seed).normal(-50, 1, (2, 400))
    sizes = [77, 59, 48, 31, 27]  # whose entropy comes out differently when added backwards
    members = np.tile(sizes, (2, 400, 1))
    members[1] = sizes[::-1]
    diagnostics = diagnose(log_likelihood, members, np.full((2, 400, 5), np.float32(0.2)))
    assert np.ptp(diagnostics.traces["allocation_entropy"].values) == 0
    assert diagnostics.trusted


def test_a_good_run_is_trusted_one_chain_with_a_caution(seed):
    diagnostics = diagnose(*make_run(np.random.default_rng(seed)))
    rhat = max(trace.rhat for trace in diagnostics.traces.values())
    ess = min(trace.ess for trace in diagnostics.traces.values())
    assert rhat < RHAT_LIMIT
    assert ess > ESS_LIMIT
    assert diagnostics.trusted
    assert diagnostics.verdict == (
        f"Trust it: R-hat is at most {rhat:.2f} and there are at least {ess:.0f} effective "
        "draws for every trace."
    )
    alone = diagnose(*make_run(np.random.default_rng(seed), 1, draws=1000))
    assert alone.trusted
    assert "With one chain" in alone.verdict


def disagreeing(name, run):
    """Change a good run so that its chains differ in one trace, and in it most."""
    log_likelihood, members, weights = run
    if name == "log_likelihood":
        log_likelihood[1] += 10
    elif name == "occupied":
        # as many rows in one component as before, the others shared by three or by one
        members[:, :, :] = [30, 10, 10, 10]
        members[1] = [30, 30, 0, 0]
        members[0, ::2] = [30, 30, 0, 0]
    elif name == "largest_weight":
        weights[1] = np.float32(0.25) + np.float32(0.01) * (weights[1] - np.float32(0.25))
    else:
        members[:, ::2] = [24, 12, 12, 12]
        members[:, 1::2] = [15, 15, 15, 15]
        members[1] = [20, 14, 13, 13]
    return log_likelihood, members, weights


@pytest.mark.parametrize("name", TRACES)
def test_chains_that_disagree_are_not_trusted(name, seed):
    diagnostics = diagnose(*disagreeing(name, make_run(np.random.default_rng(seed))))
    rhat = diagnostics.traces[name].rhat
    assert rhat == max(trace.rhat for trace in diagnostics.traces.values())
    assert RHAT_LIMIT < rhat < 100
    assert not diagnostics.trusted
    words = name.replace("_", ".").replace("occupied", "number of occupied components")
    assert re.search(f"the 2 chains disagree on the {words} .R-hat {rhat:.2f}", diagnostics.verdict)


def test_a_chain_that_drifts_is_not_trusted(seed):
    log_likelihood = np.random.default_rng(seed).normal(size=(1, 600)) + np.linspace(0, 9, 600)
    diagnostics = diagnose(*still(log_likelihood))
    assert not diagnostics.trusted
    assert "the two halves of the chain disagree on the log-likelihood" in diagnostics.verdict


def test_few_effective_draws_call_for_care(seed):
    # two chains, each of two halves, all four the same: they could not agree better
    walk = np.cumsum(np.random.default_rng(seed).normal(size=(1, 300)), axis=1)
    diagnostics = diagnose(*still(np.tile(walk, (2, 2))))
    trace = diagnostics.traces["log_likelihood"]
    assert trace.rhat < RHAT_LIMIT
    assert trace.ess < ESS_LIMIT
    assert not diagnostics.trusted
    assert f"the log-likelihood has only {trace.ess:.0f} effective draws" in diagnostics.verdict


@pytest.mark.parametrize("chains", [1, 2])
def test_too_few_draws_tell_nothing_and_the_fewest_are_judged(chains, seed):
    for draws in (1, 2, FEWEST_DRAWS - 1):
        diagnostics = diagnose(*make_run(np.random.default_rng(seed), chains, draws))
        assert all(math.isnan(trace.rhat) for trace in diagnostics.traces.values())
        assert all(math.isnan(trace.ess) for trace in diagnostics.traces.values())
        assert not diagnostics.trusted
        assert diagnostics.verdict.startswith(f"Cannot tell: {draws} kept draws")
    diagnostics = diagnose(*make_run(np.random.default_rng(seed), chains, FEWEST_DRAWS))
    assert math.isfinite(diagnostics.traces["log_likelihood"].rhat)


@pytest.mark.parametrize("chains", [1, 2])
def test_constant_traces_are_no_alarm_and_do_not_hide_the_others(chains, seed):
    constant = diagnose(*still(np.full((chains, 50), -7.0)))
    assert all(math.isnan(trace.rhat) for trace in constant.traces.values())
    assert constant.trusted
    assert constant.verdict.startswith("Every trace is constant")
    moving = diagnose(*still(np.random.default_rng(seed).normal(size=(chains, 800))))
    assert math.isnan(moving.traces["occupied"].rhat)
    assert moving.trusted
    assert moving.verdict.startswith("Trust it: ")
