"""What a polish may send: counted in numbers, so that no encoding changes a result."""

from __future__ import annotations

import numpy as np
import pytest
from cases.families import categories

import silomix
from silomix.coordinator.convergence import FIRST_CHECK
from silomix.coordinator.polish import FEWEST_CHAINS, NUMBER, affordable
from silomix.messages import PolishReply
from silomix.study import Polish, make_study

SIZES = (2, 3, 2)
CLUSTERS = 3


def numbers_of(chains):
    """How many numbers are in one reply."""
    shape = chains, CLUSTERS, sum(SIZES)
    members, likelihood = np.ones(shape[:2], dtype=np.int64), np.zeros(chains)
    reply = PolishReply.of(np.ones(shape, dtype=np.int64), members, members / 3, likelihood)
    return sum(np.size(part) for part in vars(reply).values())


@pytest.fixture
def schema():
    table, _ = silomix.simulate("homogeneous", rows=60, silos=2, seed=1)
    return silomix.sample(table.drop(columns="silo"), iterations=20, threads=1).shard.schema


def plan(schema, **polish):
    study = make_study(schema, ["a", "b"], polish=Polish(**polish))
    return affordable(study, np.array([200, 100]), CLUSTERS, categories(SIZES))


@pytest.mark.parametrize("chains", [64, 100])
def test_without_a_budget_there_are_all_chains_and_rounds(schema, chains):
    assert plan(schema, chains=chains, most_bytes="any") == (chains, 200)
    assert plan(schema, chains=chains, rounds=20, most_bytes=1) == (100, 20)


def test_chains_are_given_up_before_rounds(schema):
    whole = 50 * NUMBER * numbers_of(64)
    assert plan(schema, most_bytes=whole) == (64, 50)
    chains, rounds = plan(schema, most_bytes=whole // 2)
    assert chains in {31, 32}
    assert rounds >= 50
    least = NUMBER * numbers_of(FEWEST_CHAINS)
    assert plan(schema, most_bytes=40 * least) == (FEWEST_CHAINS, 40)
    assert plan(schema, most_bytes=1) == (FEWEST_CHAINS, FIRST_CHECK)


def test_the_usual_budget_is_that_of_the_smallest_table_or_a_megabyte(schema):
    study = make_study(schema, ["a", "b"])
    found = [
        affordable(study, np.array([10**7, rows]), CLUSTERS, categories(SIZES))
        for rows in (1, 1000)
    ]
    assert found[0] == found[1] == plan(schema, most_bytes=1_000_000)
    many = affordable(study, np.array([10**7, 10**5]), CLUSTERS, categories(SIZES))
    assert many == plan(schema, most_bytes=50 * 10**5 * 2 * len(schema.variables))


def test_what_is_in_a_study_is_what_a_fit_in_one_process_may_change(schema):
    assert make_study(schema, ["a"]).polish.most_bytes == "tables"
    table, _ = silomix.simulate("homogeneous", rows=60, silos=2, seed=1)
    fast = {"silo": "silo", "iterations": 100, "components": 4, "threads": 1, "progress": False}
    assert silomix.fit(table, **fast).study.polish.most_bytes == "any"
    asked = silomix.fit(table, polish=Polish(most_bytes=5), **fast)
    assert asked.study.polish.most_bytes == 5
