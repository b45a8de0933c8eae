"""Polish and exact strategy with drift draw from the model's posterior; planted bugs do not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cases.families import categories, model_of
from scipy import stats
from statistical import drift_oracle as oracle
from statistical.drift_oracle import TwoSilos
from statistical.exact import FALSE_ALARM, p_value, tally_p_value
from statistical.polish_oracle import PolishingSilos

import silomix.coordinator.polish
from silomix.coordinator.exact_strategy import sample_exactly
from silomix.coordinator.polish import Start, draw_profiles, polish
from silomix.kernels.dirichlet_multinomial import GRID
from silomix.model.draws import Schedule
from silomix.model.families.dirichlet import draw_levels
from silomix.model.families.drift import Shared, draw_shared
from silomix.model.prior import Prior
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
    patch.setattr(
        "silomix.model.families.drift.draw_kappa", lambda counts, shared, *_: shared.kappa
    )


def counts_for_table_counts(patch):
    """As if no variable drifted."""
    patch.setattr(
        "silomix.model.families.categorical.sum_tables", lambda counts, *_: counts.sum(axis=0)
    )


def prior_of_the_mean_forgotten(patch):
    def draw(counts, shared, family, rng):
        return draw_shared(counts, shared, categories(family.statistics, 1e-3), rng)

    patch.setattr("silomix.model.families.drift.draw_shared", draw)


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


def polish_p_value(table, seed, *, chains=4000, rounds=30):
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
    return law_p_value(table, members, counts, found.probabilities[-chains:], kappa)


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


@pytest.mark.parametrize("table", [CROSSED, DRIFTING], ids=["crossed", "drifting"])
def test_polish_draws_from_the_enumerated_posterior(table, seed):
    assert polish_p_value(table, seed) > FALSE_ALARM


slow = pytest.mark.slow
"""Of a bug that both the enumeration and the prior show, one of the two."""


@pytest.mark.parametrize(
    ("plant", "table"),
    [
        pytest.param(kappa_never_drawn, CROSSED, marks=slow),
        (counts_for_table_counts, DRIFTING),
        pytest.param(prior_of_the_mean_forgotten, CROSSED, marks=slow),
        (silos_drawn_first, CROSSED),
    ],
)
def test_a_planted_bug_shows_in_the_enumeration(plant, table, seed, monkeypatch):
    plant(monkeypatch)
    assert polish_p_value(table, seed) < FALSE_ALARM


def exact_p_values(seed, *tables, chains=4000, sweeps=60):
    """The last draws of many short chains of the exact strategy, which drift for half of them.

    Against each of these tables, which have the same rows.
    """
    silos = PolishingSilos(tables[0].shards, oracle.SIZES, seed)
    schedule = Schedule(iterations=sweeps, burn_in=sweeps - 1, chains=chains, thin=1)
    model = model_of(oracle.SIZES, seed, Prior(alpha=0.5, beta=0.5))
    draws = sample_exactly(silos, tables[0].clusters, schedule, model, drift=True)
    found = draws.members, draws.counts, draws.probabilities, draws.own.kappa
    return [law_p_value(table, *found) for table in tables]


POOLED = TwoSilos(
    kinds=(((0, 0, 5), (1, 1, 2)), ((1, 0, 3), (1, 1, 1), (0, 2, 1), (0, 0, 1))),
    clusters=2, alpha=0.5, shared_weights=True,
)  # fmt: skip


UNSHARED = replace(POOLED, kinds=(((0, 0, 8),), ((1, 1, 6), (0, 0, 1))))
"""The silos' rows differ in everything: by their profiles, or by their weights."""


def test_the_exact_strategy_draws_the_silos_weights_too(seed):
    one_for_all = replace(UNSHARED, weights_drift=False)
    right, wrong = exact_p_values(seed, UNSHARED, one_for_all)
    assert wrong < FALSE_ALARM < right


def test_the_exact_strategy_draws_from_the_enumerated_posterior(seed):
    once_for_each_silo = replace(POOLED, alpha=1.0)
    right, wrong = exact_p_values(seed, POOLED, once_for_each_silo)
    assert wrong < FALSE_ALARM < right


@slow
def test_a_planted_bug_shows_in_the_draws_of_the_exact_strategy(seed, monkeypatch):
    silos_drawn_first(monkeypatch)
    assert exact_p_values(seed, POOLED)[0] < FALSE_ALARM


SIZES = np.array([2, 3, 2])
OFFSETS = np.array([0, 2, 5, 7])
CELLS = np.array([[[3, 2, 9], [1, 4, 0]], [[6, 6, 5], [2, 12, 3]], [[0, 1, 4], [8, 3, 2]]])
"""Cells of each silo, cluster and variable: they stay; which levels they have is simulated."""
BETA = 0.5


def draw_prior(chains, rng):
    """What the silos share and their own profiles, from the model."""
    share = rng.random((chains, 1))
    finite = GRID[rng.integers(0, len(GRID) - 1, (chains, 3))]
    kappa = np.where(rng.random((chains, 3)) < share, np.inf, finite)
    mean = np.maximum(
        np.concatenate([rng.dirichlet(np.full(k, BETA), (chains, 2)) for k in SIZES], axis=2),
        1e-300,
    )
    spread = np.repeat(kappa, SIZES, axis=1)[:, None]
    drifts = np.isfinite(spread)
    shapes = np.broadcast_to(np.where(drifts, spread, 1.0) * mean, (3, *mean.shape))
    gammas = np.maximum(rng.standard_gamma(shapes), 1e-300)
    totals = np.repeat(np.add.reduceat(gammas, OFFSETS[:-1], axis=-1), SIZES, axis=-1)
    return Shared(mean, kappa), np.where(drifts, gammas / totals, mean)


def simulate_counts(own, rng):
    """Cells of every silo, chain, cluster and variable, from the silo's own profiles."""
    parts = [
        rng.multinomial(CELLS[:, None, :, q], own[..., first : first + size])
        for q, (first, size) in enumerate(zip(OFFSETS, SIZES, strict=False))
    ]
    return np.concatenate(parts, axis=-1)


def moments(shared, own):
    """What is compared: (chain, moment)."""
    same = np.isinf(shared.kappa)
    finite = np.where(same, 1.0, shared.kappa)
    apart = (own - shared.mean) ** 2
    by_variable = np.add.reduceat(apart, OFFSETS[:-1], axis=-1)
    found = [
        same, same.sum(axis=1)[:, None] ** 2, np.log(finite), np.log(finite) ** 2,
        np.log(finite) * same[:, ::-1],
        shared.mean, shared.mean**2,
        np.moveaxis(own, 0, 1), np.moveaxis(own * shared.mean, 0, 1),
        np.moveaxis(apart, 0, 1), np.moveaxis(by_variable * finite[:, None], 0, 1),
    ]  # fmt: skip
    return np.concatenate([part.reshape(len(same), -1) for part in found], axis=1)


def geweke_p_value(seed, *, from_prior, chains=4000, rounds=60):
    """Simulate cells given profiles and draw profiles given cells, in turn: still the prior?

    Geweke (2004, JASA 99, 799–804), with independent chains; the smallest p-value of all moments,
    times their number.
    """
    rng = np.random.default_rng(seed)
    prior = moments(*draw_prior(25 * chains, rng))
    shared, own = draw_prior(chains, rng)
    if not from_prior:
        even = np.broadcast_to(np.repeat(1 / SIZES, SIZES), shared.mean.shape)
        shared, own = Shared(even, np.full_like(shared.kappa, GRID[10])), own * 0 + even
    for _ in range(rounds):
        counts = simulate_counts(own, rng)
        shared, own = silomix.coordinator.polish.draw_profiles(
            counts, shared, categories(SIZES, BETA), rng, drift=True
        )
    ours = moments(shared, own)
    error = np.sqrt(ours.var(axis=0) / len(ours) + prior.var(axis=0) / len(prior))
    z = (ours.mean(axis=0) - prior.mean(axis=0)) / np.maximum(error, 1e-12)
    return float(2 * stats.norm.sf(np.abs(z)).min() * len(z))


@pytest.mark.parametrize("from_prior", [pytest.param(True, marks=slow), False])
def test_simulating_and_drawing_in_turn_keeps_the_prior(from_prior, seed):
    assert geweke_p_value(seed, from_prior=from_prior) > FALSE_ALARM


@pytest.mark.parametrize(
    "plant",
    [
        kappa_never_drawn,
        pytest.param(counts_for_table_counts, marks=slow),
        prior_of_the_mean_forgotten,
        pytest.param(silos_drawn_first, marks=slow),
    ],
)
def test_a_planted_bug_shows_in_the_prior(plant, seed, monkeypatch):
    plant(monkeypatch)
    assert geweke_p_value(seed, from_prior=False, chains=2000, rounds=30) < FALSE_ALARM
