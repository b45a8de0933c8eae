"""What a study would cost is estimated, and too much of it refused, before any work is done."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from cases.sampler_cases import random_shard

from silomix.errors import PolicyRefusal
from silomix.families.chains import CategoryChain, FeatureChain
from silomix.messages import AssignRows, SampleLocally
from silomix.model.schema import Schema, Shard, Variable
from silomix.silo import cost
from silomix.silo.answer import answer
from silomix.silo.cost import check_cost, question_cost, sampling_cost
from silomix.silo.local import Silo, sample_locally
from silomix.study import make_study
from silomix.study.policy import OPEN, PRESETS, Policy

MILLION = 1_000_000


def silo_of(shard, policy=None, **settings):
    fixed = {"adaptive": False} if "iterations" in settings else {}
    study = make_study(shard.schema, ["north"], **fixed, **settings)
    return Silo("north", 0, shard, study, policy=policy or Policy())


def categories(rows, levels=(2,) * 10):
    names = tuple(f"x{place}" for place in range(len(levels)))
    variables = (Variable(n, tuple(map(str, range(k)))) for n, k in zip(names, levels, strict=True))
    # the cells are never looked at
    codes = np.broadcast_to(np.uint8(0), (rows, len(levels)))
    return Shard(Schema(tuple(variables)), codes)


def numbers(rows, kind, columns, *, missing=False):
    variables = tuple(Variable(f"y{place}", (), kind) for place in range(columns))
    cells = np.broadcast_to(np.nan if missing else 0.0, (rows, columns))
    return Shard(Schema(variables), np.zeros((rows, 0), np.uint8), cells)


WIDE = categories(MILLION, (2,) * 94)


@pytest.mark.parametrize(
    ("shard", "settings", "unit"),
    [
        (WIDE, {"components": 100, "iterations": 100_000, "chains": 8}, "minutes"),
        (categories(1000), {"iterations": 10**12, "thin": 10**9}, "minutes"),
        (categories(1), {"iterations": 10**7, "chains": 10**4, "thin": 10**6}, "minutes"),
        (categories(1), {"iterations": 10, "chains": 10**9, "thin": 1}, "minutes"),
        (categories(1), {"iterations": 10**8, "burn_in": 0, "thin": 1}, "gigabytes"),
        (categories(MILLION), {"iterations": 40_000, "thin": 1}, "gigabytes"),
        (categories(50_000), {"threshold": 50_000}, "gigabytes"),
        (categories(50_000), {"subsample": 40_000}, "gigabytes"),
        (categories(1000, (20_000,)), {"components": 100}, "gigabytes"),
        (categories(MILLION, (2000,)), {"iterations": 10, "thin": 1}, "gigabytes"),
        (numbers(MILLION, "student-t", 30), {"components": 50}, "minutes"),
        (numbers(100_000, "gaussian-full", 30, missing=True), {"iterations": 10}, "gigabytes"),
    ],
)
def test_a_study_that_takes_too_long_or_too_much_is_refused_with_the_numbers(
    shard, settings, unit, monkeypatch
):
    monkeypatch.setattr("silomix.silo.local.sample_in_blocks", None)  # nothing is sampled
    if shard.schema.numbers:
        settings = settings | {"oracle": "federated"}
    silo = silo_of(shard, **settings)
    with pytest.raises(PolicyRefusal, match=rf"^north: .* about [\d,]+ {unit} .* allows "):
        sample_locally(silo)
    check_cost(sampling_cost(silo), replace(silo, policy=OPEN), "sampling")


def test_it_is_refused_under_every_preset_with_rules_before_anything_else_is_done():
    for policy in PRESETS.values():
        silo = silo_of(categories(MILLION), policy, iterations=10**9, thin=10**6, tier="summary")
        if policy.has_rules:
            with pytest.raises(PolicyRefusal, match="minutes"):
                answer(SampleLocally(), silo)


def test_the_defaults_are_within_the_limits_of_large_tables():
    for shard in (categories(MILLION, (2,) * 30), numbers(100_000, "gaussian", 20)):
        more = {"oracle": "federated"} if shard.schema.numbers else {}
        silo = silo_of(shard, **more)
        check_cost(sampling_cost(silo), silo, "sampling")


def test_a_question_about_every_row_is_refused_too():
    silo = silo_of(categories(MILLION))
    weights = np.broadcast_to(np.float32(0.01), (100_000, 100))
    profiles = np.broadcast_to(np.float32(0.5), (100_000, 100, 20))
    with pytest.raises(PolicyRefusal, match=r"answering AssignRows would take about .* minutes"):
        answer(AssignRows(weights, profiles), silo)
    check_cost(question_cost(AssignRows(weights[:500, :20], profiles[:500, :20]), silo), silo, "")


RUNS = {
    "categories": (random_shard(1, 3000, (2, 3, 4, 2, 3), 0.1), 10, {}),
    "numbers": (numbers(400, "gaussian", 5), 6, {"oracle": "federated"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_operations_and_bytes_are_those_of_a_run(name, monkeypatch):
    """Counted, not timed: sweeps are as many as were made, and memory is what NumPy asked for."""
    shard, components, more = RUNS[name]
    if shard.numbers is not None:
        rng = np.random.default_rng(1)
        cells = rng.standard_normal(shard.numbers.shape) + 4 * rng.integers(3, size=(shard.rows, 1))
        shard = replace(shard, numbers=cells)
    made = silo_of(shard, OPEN, components=components, iterations=600, chains=3, thin=2, **more)
    swept = []
    for kind in (CategoryChain, FeatureChain):
        plain = kind.advance

        def advance(self, sweeps, *rest, plain=plain):
            swept.append(len(sweeps))
            return plain(self, sweeps, *rest)

        monkeypatch.setattr(kind, "advance", advance)
    sample_locally(made)  # compiles what a run needs
    swept.clear()
    tracemalloc.start()
    sample_locally(made)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / 3 < 1e9 * sampling_cost(made).gigabytes < 3 * peak
    monkeypatch.setattr(cost, "_sweep", lambda *_: 1e9)
    whole = sampling_cost(made).minutes
    monkeypatch.setattr(cost, "_sweep", lambda *_: 0.0)
    assert 60 * (whole - sampling_cost(made).minutes) == pytest.approx(sum(swept))
