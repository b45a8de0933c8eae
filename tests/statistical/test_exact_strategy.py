"""The exact strategy over silos agrees with the pooled sampler of the paper's model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.families import model_of
from scipy import stats
from statistical.exact import FALSE_ALARM, labellings, masses, tally, tally_p_value
from statistical.polish_oracle import PolishingSilos, batch_mean
from statistical.test_exact import SMALL

import silomix
from silomix.coordinator.exact_strategy import sample_exactly
from silomix.model.draws import Schedule
from silomix.model.schema import Prior
from silomix.model.table import load

pytestmark = pytest.mark.statistical


def traces(weights, members, log_likelihood):
    return {
        "log_likelihood": log_likelihood,
        "occupied": (members > 0).sum(axis=1).astype(float),
        "largest_weight": weights.max(axis=1),
    }


@pytest.mark.slow
def test_agrees_with_the_pooled_sampler_and_a_prior_per_silo_does_not(seed):
    table, truth = silomix.simulate("non-nested", separability="easy", rows=240, seed=seed)
    shard = load(table.drop(columns="silo"))
    shards = [shard.codes[(table["silo"] == name).to_numpy()] for name in truth.silos]
    pooled = silomix.sample(
        table.drop(columns="silo"), components=8, iterations=60_000, chains=2, seed=seed,
        progress=False,
    )  # fmt: skip
    schedule = Schedule(iterations=14_000, burn_in=2_000, chains=2, thin=2)
    silos = PolishingSilos(shards, shard.schema.sizes, seed)

    def p_value(prior):
        draws = sample_exactly(silos, 8, schedule, model_of(shard.schema.sizes, seed, prior))
        smallest = 1.0
        for name, trace in traces(draws.weights, draws.members, draws.log_likelihood).items():
            theirs = [batch_mean(chain) for chain in pooled.diagnostics.traces[name].values]
            ours = [batch_mean(chain) for chain in np.split(trace, 2)]
            gap = np.mean([m for m, _ in ours]) - np.mean([m for m, _ in theirs])
            error = np.sqrt(sum(e**2 for _, e in (*ours, *theirs))) / 2
            smallest = min(smallest, 2 * stats.t.sf(abs(gap) / error, df=19))
        return 3 * smallest

    assert p_value(Prior()) > FALSE_ALARM
    assert p_value(Prior(alpha=4 * 0.5)) < FALSE_ALARM


def enumeration_p_value(prior, seed, chains=2000):
    """The last labels of many short chains over two silos, against the enumerated posterior."""
    pooled = replace(SMALL, alpha=0.5, beta=0.5)
    silos = PolishingSilos([SMALL.codes[:3], SMALL.codes[3:]], SMALL.sizes, seed)
    schedule = Schedule(iterations=25, burn_in=24, chains=chains, thin=1)
    draws = sample_exactly(silos, 3, schedule, model_of(SMALL.sizes, seed, prior))
    pairs = zip(draws.members, draws.counts, strict=True)
    seen = [members.tobytes() + counts.tobytes() for members, counts in pairs]
    keys = [tally(SMALL.codes, SMALL.sizes, labels, 3) for labels in labellings(pooled)]
    return tally_p_value(seen, keys, masses(pooled))


def test_the_labels_are_those_of_the_enumerated_posterior(seed):
    assert enumeration_p_value(Prior(), seed) > FALSE_ALARM
    for wrong in (Prior(alpha=1.0), Prior(beta=1.0)):  # the first: once for each silo
        assert enumeration_p_value(wrong, seed) < FALSE_ALARM
