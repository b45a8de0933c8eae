"""The sampler against the world: an independent NumPy Gibbs sampler, and Geweke's joint test."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from cases import sweep_twin as reference
from scipy import stats
from statistical.exact import FALSE_ALARM, Sweeper, Tiny

import silomix
from silomix.model.schema import Prior

pytestmark = pytest.mark.statistical


def plain_gibbs(rng, onehot, offsets, components, alpha, beta, sweeps):
    """The textbook sampler in NumPy log space, sharing no code with the package.

    Returns label-invariant traces: log-likelihood, occupied components, largest weight.
    """
    rows = len(onehot)
    labels = rng.integers(0, components, rows)
    traces = np.empty((sweeps, 3))
    for sweep in range(sweeps):
        members = np.eye(components)[labels]
        weights = rng.dirichlet(alpha + members.sum(axis=0))
        counts = members.T @ onehot
        blocks = [
            [rng.dirichlet(beta + counts[c, first:last]) for c in range(components)]
            for first, last in pairwise(offsets)
        ]
        logs = np.log(weights) + onehot @ np.log(np.concatenate(blocks, axis=1)).T
        log_likelihood = np.logaddexp.reduce(logs, axis=1)
        noise = rng.gumbel(size=logs.shape)
        labels = np.argmax(logs + noise, axis=1)
        traces[sweep] = log_likelihood.sum(), len(np.unique(labels)), weights.max()
    return traces


def batch_mean(trace, batches=20):
    """Mean, and its standard error from batch means."""
    means = np.array([part.mean() for part in np.array_split(trace, batches)])
    return means.mean(), means.std(ddof=1) / np.sqrt(batches)


@pytest.mark.slow
def test_agrees_with_an_independent_sampler(seed):
    table, _ = silomix.simulate("homogeneous", separability="poor", rows=400, silos=4, seed=seed)
    table = table.drop(columns="silo")
    draws = silomix.sample(
        table, components=6, silos=3, iterations=60_000, burn_in=10_000, thin=10, seed=seed,
        progress=False,
    )  # fmt: skip
    codes, schema = draws.shard.codes, draws.shard.schema
    onehot = np.concatenate(
        [codes[:, [q]] == np.arange(size) for q, size in enumerate(schema.sizes)], axis=1
    ).astype(float)
    rng = np.random.default_rng(seed)
    traces = plain_gibbs(rng, onehot, schema.offsets, 6, *Prior().share(3), 20_000)[2_000:]
    ours = [trace.values for trace in draws.diagnostics.traces.values()]
    for trace, mine in zip(traces.T, ours, strict=False):
        theirs, their_error = batch_mean(trace)
        means, errors = zip(*[batch_mean(chain) for chain in mine], strict=True)
        error = np.hypot(their_error, np.hypot(*errors) / 2)
        # three traces, t with some 19 degrees of freedom
        limit = stats.t.isf(FALSE_ALARM / 6, df=19)
        assert abs(np.mean(means) - theirs) < limit * error


def joint_draw(rng, rows, sizes, components, alpha, beta, missing):
    """Draw weights, probabilities, labels and cells from the model itself."""
    weights = rng.dirichlet(np.full(components, alpha))
    probabilities = [rng.dirichlet(np.full(size, beta), components) for size in sizes]
    labels = rng.choice(components, size=rows, p=weights).astype(np.uint8)
    return labels, cells(rng, labels, probabilities, missing, sizes)


def cells(rng, labels, probabilities, missing, sizes):
    """Draw cells given labels and probabilities; where `missing`, code K_q."""
    codes = np.stack(
        [
            (rng.random((len(labels), 1)) > table[labels].cumsum(axis=1)[:, :-1]).sum(axis=1)
            for table in probabilities
        ],
        axis=1,
    )
    return np.where(missing, sizes, codes).astype(np.uint8)


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
            table = sweep.parameters.table.T
            blocks = np.split(table, np.cumsum(sizes)[:-1], axis=1)
            codes = cells(rng, labels, blocks, missing, sizes)
        after.append(statistics(labels, codes, components))
    return [
        stats.ks_2samp(one, two).pvalue
        for one, two in zip(np.array(before).T, np.array(after).T, strict=True)
    ]


@pytest.mark.slow
def test_geweke_joint_distribution(seed):
    p_values = geweke_p_values(seed, 20_000)
    assert min(p_values) > FALSE_ALARM / len(p_values)


@pytest.mark.slow
def test_geweke_catches_a_wrong_prior(seed):
    p_values = geweke_p_values(seed, 20_000, wrong_beta=1.3)
    assert min(p_values) < FALSE_ALARM / len(p_values)
