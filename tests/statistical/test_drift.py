"""Polish and exact strategy with drift draw from the model's posterior; planted bugs do not.

Categories against enumeration; `test_drift_families.py` has every kind against the joint law.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cases.families import categories, model_of
from statistical import drift_oracle as oracle
from statistical.drift_oracle import TwoSilos
from statistical.exact import FALSE_ALARM, p_value, tally_p_value
from statistical.polish_oracle import PolishingSilos

from silomix.coordinator.exact_strategy import sample_exactly
from silomix.coordinator.polish import Start, draw_profiles, draw_shared, polish
from silomix.families.categorical import draw_levels
from silomix.model.draws import Schedule
from silomix.model.schema import Prior
from silomix.study import Polish

pytestmark = pytest.mark.statistical

CROSSED = TwoSilos(
    kinds=(((0, 0, 8), (1, 1, 1)), ((1, 0, 6), (0, 1, 1), (0, 2, 1))), clusters=2, alpha=0.25
)
"""Two clusters; whether the silos differ or their clusters is left to the posterior."""
DRIFTING = TwoSilos(
    kinds=(((0, 0, 30), (1, 0, 1)), ((1, 0, 9), (0, 1, 12), (0, 0, 9))), clusters=1, alpha=0.25
)
"""One cluster, and rows enough to tell that the silos differ."""


def kappa_never_drawn(patch):
    patch.setattr("silomix.coordinator.polish.draw_kappa", lambda counts, shared, *_: shared.kappa)


def counts_for_table_counts(patch):
    """As if no variable drifted."""
    patch.setattr("silomix.families.categorical.sum_tables", lambda counts, *_: counts.sum(axis=0))


def prior_of_the_mean_forgotten(patch):
    def draw(counts, shared, family, rng):
        return draw_shared(counts, shared, categories(family.statistics, 1e-3), rng)

    patch.setattr("silomix.coordinator.polish.draw_shared", draw)


def silos_drawn_first(patch):
    """Silos' profiles around the old m and κ, though these are then drawn without them."""

    def draw(counts, shared, family, rng, *, drift):
        if not drift:
            return draw_profiles(counts, shared, family, rng, drift=False)
        own = family.draw_own(counts, shared.mean, shared.kappa, rng)
        return draw_shared(counts, shared, family, rng), own

    patch.setattr("silomix.coordinator.polish.draw_profiles", draw)
    patch.setattr("silomix.coordinator.exact_strategy.draw_profiles", draw)


@cache
def law_of(table):
    return oracle.enumerate_posterior(table)


def polish_p_value(table, seed, *, chains=2000, rounds=15):
    """Labels, κ and m of many polished chains against the enumeration: smallest of 3, times 3."""
    silos = PolishingSilos(table.shards, oracle.SIZES, seed)
    rng = np.random.default_rng(seed)
    begun = (chains, table.clusters)
    profiles = draw_levels(np.full((*begun, 4), 0.5), oracle.OFFSETS, rng)
    start = Start(
        np.full((2, *begun), 1 / table.clusters), profiles, kappa=np.array([30.0, np.inf])
    )
    model = model_of(oracle.SIZES, seed, Prior(alpha=2 * table.alpha, beta=0.5))
    found = polish(start, silos, Polish(rounds=rounds), model, kept_draws=chains)
    replies = silos.last.values()
    members = np.stack([reply.members for reply in replies], axis=1)
    counts = np.stack([reply.statistics for reply in replies], axis=1)
    kappa = found.silo_profiles.kappa[-chains:]
    return law_p_value(table, members, counts, found.parameters[-chains:], kappa)


def law_p_value(table, members, counts, mean, kappa):
    """All of them of independent draws, the first axis."""
    law = law_of(table)
    seen = [oracle.tally(*pair) for pair in zip(members, counts, strict=True)]
    p_values = [
        p_value(oracle.count_kappa(kappa).ravel(), law.kappa.ravel()),
        p_value(oracle.count_mean(mean, kappa).ravel(), law.mean.ravel()),
    ]
    if table.clusters > 1:
        p_values.append(tally_p_value(seen, law.tallies, law.labels))
    return len(p_values) * min(p_values)


slow = pytest.mark.slow


@pytest.mark.parametrize("chains", [2000, pytest.param(4000, marks=slow)])
@pytest.mark.parametrize("table", [CROSSED, DRIFTING], ids=["crossed", "drifting"])
def test_polish_draws_from_the_enumerated_posterior(table, chains, seed):
    assert polish_p_value(table, seed, chains=chains, rounds=max(15, chains // 130)) > FALSE_ALARM


@pytest.mark.parametrize(
    ("plant", "table", "chains"),
    [
        (kappa_never_drawn, CROSSED, 1000),
        (counts_for_table_counts, DRIFTING, 1000),
        (prior_of_the_mean_forgotten, CROSSED, 1000),
        (silos_drawn_first, CROSSED, 2000),
    ],
)
def test_a_planted_bug_shows_in_the_enumeration(plant, table, chains, seed, monkeypatch):
    plant(monkeypatch)
    assert polish_p_value(table, seed, chains=chains) < FALSE_ALARM


def exact_p_values(seed, *tables, chains=2000, sweeps=40):
    """The last draws of many short chains of the exact strategy, which drift for half of them.

    Against each of these tables, which have the same rows.
    """
    silos = PolishingSilos(tables[0].shards, oracle.SIZES, seed)
    schedule = Schedule(iterations=sweeps, burn_in=sweeps - 1, chains=chains, thin=1)
    model = model_of(oracle.SIZES, seed, Prior(alpha=0.5, beta=0.5))
    draws = sample_exactly(silos, tables[0].clusters, schedule, model, drift=True)
    found = draws.members, draws.counts, draws.parameters, draws.own.kappa
    return [law_p_value(table, *found) for table in tables]


some_or_many = pytest.mark.parametrize("chains", [1000, pytest.param(4000, marks=slow)])
POOLED = TwoSilos(
    kinds=(((0, 0, 5), (1, 1, 2)), ((1, 0, 3), (1, 1, 1), (0, 2, 1), (0, 0, 1))),
    clusters=2, alpha=0.5, shared_weights=True,
)  # fmt: skip


UNSHARED = replace(POOLED, kinds=(((0, 0, 8),), ((1, 1, 6), (0, 0, 1))))
"""The silos' rows differ in everything: by their profiles, or by their weights."""


@some_or_many
def test_the_exact_strategy_draws_the_silos_weights_too(chains, seed):
    one_for_all = replace(UNSHARED, weights_drift=False)
    right, wrong = exact_p_values(seed, UNSHARED, one_for_all, chains=chains)
    assert wrong < FALSE_ALARM < right


@some_or_many
def test_the_exact_strategy_draws_from_the_enumerated_posterior(chains, seed):
    once_for_each_silo = replace(POOLED, alpha=1.0)
    right, wrong = exact_p_values(seed, POOLED, once_for_each_silo, chains=chains)
    assert wrong < FALSE_ALARM < right


@slow
def test_a_planted_bug_shows_in_the_draws_of_the_exact_strategy(seed, monkeypatch):
    silos_drawn_first(monkeypatch)
    assert exact_p_values(seed, POOLED)[0] < FALSE_ALARM
