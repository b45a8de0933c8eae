"""The sampler against the world: an independent NumPy Gibbs sampler, and Geweke's joint test."""

from __future__ import annotations

import numpy as np
import pytest
from cases import sweep_twin as reference
from cases.aggregation_cases import draw_cells
from scipy import stats
from statistical.exact import FALSE_ALARM, Sweeper, Tiny
from statistical.polish_oracle import batch_mean, plain_gibbs

import silomix
from silomix.model.schema import Prior

pytestmark = pytest.mark.statistical


@pytest.mark.slow
def test_agrees_with_an_independent_sampler(seed):
    table, _ = silomix.simulate("homogeneous", separability="poor", rows=400, silos=4, seed=seed)
    table = table.drop(columns="silo")
    draws = silomix.sample(
        table, components=6, silos=3, iterations=60_000, burn_in=10_000, thin=10, seed=seed,
        progress=False,
    )  # fmt: skip
    shard, rng = draws.shard, np.random.default_rng(seed)
    alpha, beta = Prior().share(3)
    weights, _, log_likelihood, occupied = plain_gibbs(
        rng, [shard.codes], shard.schema.sizes, [np.arange(shard.rows) % 6],
        alpha=alpha, beta=beta, sweeps=20_000,
    )  # fmt: skip
    largest = weights.max(axis=(1, 2))
    traces = {"log_likelihood": log_likelihood, "occupied": occupied, "largest_weight": largest}
    for name, trace in traces.items():
        theirs, their_error = batch_mean(trace[2_000:])
        ours = [batch_mean(chain) for chain in draws.diagnostics.traces[name].values]
        means, errors = zip(*ours, strict=True)
        error = np.hypot(their_error, np.hypot(*errors) / 2)
        # three traces, t with some 19 degrees of freedom
        limit = stats.t.isf(FALSE_ALARM / 6, df=19)
        assert abs(np.mean(means) - theirs) < limit * error


def joint_draw(rng, rows, sizes, components, alpha, beta, missing):
    """Draw labels and cells from the model itself."""
    weights = rng.dirichlet(np.full(components, alpha))
    probabilities = [rng.dirichlet(np.full(size, beta), components) for size in sizes]
    labels = rng.choice(components, size=rows, p=weights).astype(np.uint8)
    codes = np.where(missing, sizes, draw_cells(rng, labels, probabilities))
    return labels, codes.astype(np.uint8)


def statistics(labels, codes, components):
    """Label-dependent and label-invariant summaries of labels and data together."""
    sizes = np.bincount(labels, minlength=components)
    same = labels[:-1] == labels[1:]
    alike = (codes[:-1] == codes[1:]).mean(axis=1)
    return [sizes[0], sizes.max(), (sizes > 0).sum(), (same * alike).sum(), (codes == 0).sum()]


def geweke_p_values(seed, replicates, wrong_beta=1.0):
    """Geweke (2004), with independent replicates: sweeps and new data keep the joint law.

    Each replicate starts from the joint law, then alternates a sweep of the sampler with fresh
    cells given its parameters, four times; Kolmogorov-Smirnov against fresh joint draws.
    """
    rng = np.random.default_rng(seed)
    rows, sizes, components, alpha, beta = 12, np.array([2, 3, 2, 4]), 3, 0.875, 0.6
    missing = np.zeros((rows, len(sizes)), bool)
    missing[0, :2] = missing[5, 3] = True
    before, after = [], []
    for replicate in range(replicates):
        labels, codes = joint_draw(rng, rows, sizes, components, alpha, beta, missing)
        before.append(statistics(labels, codes, components))
        labels, codes = joint_draw(rng, rows, sizes, components, alpha, beta, missing)
        for step in range(4):
            tiny = Tiny(codes, sizes, components, alpha, beta * wrong_beta)
            sweep = Sweeper(tiny, reference.fold(seed, step))
            labels = sweep(labels, replicate)
            table = sweep.work.table.T
            blocks = np.split(table, np.cumsum(sizes)[:-1], axis=1)
            codes = np.where(missing, sizes, draw_cells(rng, labels, blocks)).astype(np.uint8)
        after.append(statistics(labels, codes, components))
    return [
        stats.ks_2samp(one, two).pvalue
        for one, two in zip(np.array(before).T, np.array(after).T, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("wrong_beta", [1.0, 1.3])
def test_geweke_joint_distribution_keeps_the_prior_and_no_other(seed, wrong_beta):
    p_values = geweke_p_values(seed, 20_000, wrong_beta)
    assert (min(p_values) > FALSE_ALARM / len(p_values)) == (wrong_beta == 1.0)
