"""Sweeps on features against an independent sampler, on tables of all kinds of variables."""

from __future__ import annotations

import numpy as np
import pytest
from cases.family_oracles import Category, Count, Number, Overdispersed, Tailed, make_shard
from cases.plain_mixture import plain_gibbs
from scipy import stats
from statistical.exact import FALSE_ALARM

from silomix.families import make_family
from silomix.families.chains import FeatureChain, prepare
from silomix.kernels.layout import KeptDraws
from silomix.model.draws import Schedule
from silomix.model.schema import Prior

pytestmark = pytest.mark.statistical

MIXED = (Category("a"), Category("b", 3), Number("x", 54.0, 9.0), Number("y"), Count("n", 3.0))
TAILED = (Category("a"), Category("b", 3), Tailed("x", 54.0, 9.0), Tailed("y"), Count("n", 3.0))
SPREAD = (Category("a"), Overdispersed("v", 2.0), Overdispersed("w", 3.0))
# the parameters of two clusters that overlap
CLUSTERS = {
    MIXED: (
        [[0.8, 0.2], [0.6, 0.3, 0.1], [-0.6, 0.7], [0.5, 0.4], [1.5]],
        [[0.3, 0.7], [0.2, 0.2, 0.6], [0.7, 0.5], [-0.3, 0.8], [4.5]],
    ),
    SPREAD: ([[0.8, 0.2], [0.8, 2.0], [6.0, 0.5]], [[0.3, 0.7], [3.0, 0.5], [1.0, 4.0]]),
}
CLUSTERS[TAILED] = CLUSTERS[MIXED]
ROWS, COMPONENTS, ALPHA = 60, 3, 0.7
BATCHES = 25


def simulate(kinds, rng):
    """Two clusters, with cells missing here and there: (row, variable)."""
    truth = rng.random(ROWS) < 0.4
    columns = [
        np.where(truth, *(kind.draw_cells(np.tile(p, (ROWS, 1)), rng) for p in pair))
        for kind, *pair in zip(kinds, *CLUSTERS[kinds], strict=True)
    ]
    cells = np.column_stack(columns)
    cells[rng.random(cells.shape) < 0.1] = np.nan
    return cells


def ours(kinds, cells, seed, sweeps):
    shard = make_shard(kinds, cells)
    family = make_family(shard.schema, Prior())
    plan = prepare(shard, COMPONENTS, ALPHA, family)
    kept = KeptDraws(
        labels=np.zeros((sweeps, ROWS), np.uint8),
        weights=np.zeros((sweeps, COMPONENTS), np.float32),
        probabilities=np.zeros((sweeps, COMPONENTS, family.parameters.sum()), np.float32),
        log_likelihood=np.zeros(sweeps),
        members=np.zeros((sweeps, COMPONENTS), np.int64),
    )
    chain = FeatureChain(plan, seed, FeatureChain.start(plan, seed), 1)
    every = range(1, sweeps + 1), Schedule(iterations=sweeps, burn_in=0, thin=1)
    chain.advance(*every, kept, None)
    return kept.labels, kept.weights.max(axis=1), kept.log_likelihood


def theirs(kinds, cells, seed, sweeps):
    columns = []
    for kind, x in zip(kinds, cells.T, strict=True):
        if isinstance(kind, Number):
            facts = kind.location, kind.scale
            word = "tailed" if isinstance(kind, Tailed) else "normal"
            columns.append((word, facts, kind.location + kind.scale * x))
        elif isinstance(kind, Category):
            columns.append(("category", kind.size, x))
        else:
            word = "count" if isinstance(kind, Count) else "spread count"
            columns.append((word, kind.mean, x))
    start, rng = np.arange(ROWS) % COMPONENTS, np.random.default_rng(seed)
    return plain_gibbs(columns, start, COMPONENTS, ALPHA, sweeps, rng)


def summaries(labels, largest, log_likelihood):
    """What no renaming of components changes: (sweep, summary)."""
    pairs = labels[:, :-1:5] == labels[:, 1::5]
    sizes = np.array([np.bincount(z, minlength=COMPONENTS) for z in labels])
    found = [pairs, (sizes**2).sum(axis=1), (sizes > 0).sum(axis=1), largest, log_likelihood]
    return np.column_stack([*found, log_likelihood**2])


def disagreement(one, other):
    """Smallest p-value that two chains agree, by batch means, times the number of summaries."""
    means, errors = [], []
    for chain in (one, other):
        kept = np.array_split(chain[len(chain) // 10 :], BATCHES)
        batches = np.array([part.mean(axis=0) for part in kept])
        means.append(batches.mean(axis=0))
        errors.append(batches.var(axis=0, ddof=1) / BATCHES)
    z = (means[0] - means[1]) / np.sqrt(sum(errors))
    return float(2 * stats.t.sf(np.abs(z), df=BATCHES - 1).min() * len(z))


WRONG_PRIOR = ("gaussian.PRIOR", (0.0, 1.0, 3.0, 1.5))
NO_DISPERSION = ("negative_binomial.DISPERSIONS", np.append(0, np.geomspace(1e-4, 1e-3, 17)))


@pytest.mark.parametrize(
    ("kinds", "wrong", "sweeps"),
    [
        (SPREAD, NO_DISPERSION, 400),
        pytest.param(MIXED, WRONG_PRIOR, 60_000, marks=pytest.mark.slow),
        pytest.param(SPREAD, NO_DISPERSION, 20_000, marks=pytest.mark.slow),
        *(pytest.param(TAILED, WRONG_PRIOR, n, marks=pytest.mark.slow) for n in (8_000, 60_000)),
    ],
)
def test_agrees_with_an_independent_sampler_and_a_wrong_model_does_not(
    kinds, wrong, sweeps, seed, monkeypatch
):
    given = kinds, simulate(kinds, np.random.default_rng(seed)), seed, sweeps
    reference = summaries(*theirs(*given))
    assert disagreement(summaries(*ours(*given)), reference) > FALSE_ALARM
    monkeypatch.setattr(f"silomix.families.{wrong[0]}", wrong[1])
    assert disagreement(summaries(*ours(*given)), reference) < FALSE_ALARM
