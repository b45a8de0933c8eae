"""K-modes and its federated version against hand computation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from silomix.errors import SettingsError
from silomix.families.categorical import one_hot
from silomix.rivals import fed_kmodes
from silomix.rivals.federated_kmodes import (
    SERVER,
    STREAM,
    AssignToModes,
    LocalModes,
    UpdateModes,
    cluster_modes,
    codes_of,
    cost,
    exchange,
    proportions,
)
from silomix.rivals.federation import open_silos
from silomix.rivals.kmodes import Points, assign, distances, k_modes, update
from silomix.rivals.levels import Levels
from silomix.simulate import simulate
from silomix.types import Schema, Variable

SCHEMA = Schema((Variable("a", ("0", "1")), Variable("b", ("0", "1", "2"))))


def points_of(codes, counts=None):
    codes = np.asarray(codes, dtype=np.uint8)
    counts = np.ones(len(codes), np.int64) if counts is None else np.array(counts)
    return Points(one_hot(codes, SCHEMA.offsets), counts, SCHEMA.offsets)


def cells(codes):
    return one_hot(np.asarray(codes, dtype=np.uint8), SCHEMA.offsets)


def test_distances_count_cells_that_differ():
    found = distances(cells([[0, 0], [1, 2], [2, 1]]), cells([[0, 0], [1, 1]]))
    # the last row misses its first cell
    np.testing.assert_array_equal(found, [[0, 2], [2, 1], [1, 0]])


def test_rows_go_to_the_nearest_mode(seed):
    rng = np.random.default_rng(seed)
    labels = assign(cells([[0, 0], [1, 1], [1, 2]]), cells([[0, 0], [1, 1]]), rng)
    np.testing.assert_array_equal(labels, [0, 1, 1])


def test_ties_are_broken_at_random_or_stay(seed):
    rng = np.random.default_rng(seed)
    rows, modes = cells([[0, 1]] * 200), cells([[0, 0], [1, 1]])
    assert set(assign(rows, modes, rng)) == {0, 1}
    current = rng.integers(0, 2, 200)
    np.testing.assert_array_equal(assign(rows, modes, rng, current), current)
    # a nearer mode wins over the current one
    nearer = assign(cells([[0, 0]]), modes, rng, np.array([1]))
    np.testing.assert_array_equal(nearer, [0])


def test_modes_are_the_most_frequent_levels(seed):
    rng = np.random.default_rng(seed)
    points = points_of([[0, 0], [0, 1], [1, 1], [1, 2]], counts=[1, 1, 1, 5])
    labels = np.array([0, 0, 0, 1])
    found = update(points, labels, cells([[1, 2], [0, 0], [1, 1]]), rng)
    # the third cluster has no row and keeps its mode
    np.testing.assert_array_equal(codes_of(found, SCHEMA), [[0, 1], [1, 2], [1, 1]])


def test_counts_weigh_modes(seed):
    rng = np.random.default_rng(seed)
    points = points_of([[0, 0], [0, 1], [1, 1]], counts=[1, 1, 5])
    found = update(points, np.zeros(3, np.int64), cells([[0, 0]]), rng)
    np.testing.assert_array_equal(codes_of(found, SCHEMA), [[1, 1]])


def test_the_cost_falls_with_the_passes(seed):
    table, _ = simulate("nested", rows=300, silos=1, seed=seed)
    codes = table.drop(columns="silo").to_numpy(dtype=int) - 1
    schema = Schema(tuple(Variable(f"x{q}", ("1", "2", "3")[: 2 + (q >= 4)]) for q in range(10)))
    points = Points(
        one_hot(codes.astype(np.uint8), schema.offsets), np.ones(300, np.int64), schema.offsets
    )
    costs = [
        cost(points, k_modes(points, 6, passes, np.random.default_rng(seed))[1])
        for passes in range(5)
    ]
    assert (np.diff(costs) <= 0).all()
    assert costs[-1] < costs[0]


def test_the_server_finds_the_cheapest_modes(seed):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, 2, 9), rng.integers(0, 3, 9)], axis=1)
    sizes = rng.integers(2, 40, 9)
    found = cluster_modes(
        [LocalModes(codes[:4], sizes[:4]), LocalModes(codes[4:], sizes[4:])], SCHEMA, 2, 30, rng
    )
    points = points_of(codes, sizes)
    every = [np.array(mode) for mode in product(range(2), range(3))]
    best = min(cost(points, cells([a, b])) for a, b in product(every, every))
    assert cost(points, cells(found)) == best


def test_equal_modes_make_fewer_clusters(seed):
    rng = np.random.default_rng(seed)
    same = LocalModes(np.array([[0, 1], [1, 2]]), np.array([5, 5]))
    found = cluster_modes([same, same], SCHEMA, 4, 3, rng)
    np.testing.assert_array_equal(found, [[0, 1], [1, 2]])


def test_a_silo_never_sends_the_mode_of_one_row():
    table = pd.DataFrame(
        {"silo": ["s"] * 9, "a": [0] * 4 + [1] * 4 + [0], "b": [0] * 4 + [1] * 4 + [2]}
    )
    federation = open_silos(table, "silo", seed=0)
    (reply,) = federation.ask(UpdateModes(1, 3, np.array([[0, 0], [1, 1], [0, 2]])))
    np.testing.assert_array_equal(reply.modes, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(reply.sizes, [4, 4])


def test_no_mode_at_all_is_an_error():
    table = pd.DataFrame({"silo": ["s", "t"], "a": [0, 1], "b": [0, 1]})
    with pytest.raises(SettingsError, match="no silo has a mode of at least 2 rows; ask for fewer"):
        fed_kmodes(table, "silo", clusters=2)


def test_the_last_update_of_the_silos_is_aggregated(seed):
    table, _ = simulate("nested", rows=400, seed=seed)
    federation = open_silos(table, "silo", seed=seed)
    asked = []
    ask = federation.tally.ask

    def listen(query):
        replies = ask(query)
        asked.append((query, replies))
        return replies

    federation.tally.ask = listen
    modes, rounds = exchange(federation, 6, 20, 5)
    assert len(asked) == rounds + 1
    assert asked[0][0].modes is None
    # the modes went out once before, and then were made again from the last replies
    outgoing = [query.modes.tobytes() for query, _ in asked[1:]]
    assert len(set(outgoing)) == len(outgoing)
    assert modes.tobytes() in outgoing or rounds == 20
    rng = np.random.default_rng([seed, STREAM, SERVER, rounds])
    last = list(asked[-1][1].values())
    again = cluster_modes(last, federation.study.table_schema, 6, 5, rng)
    np.testing.assert_array_equal(modes, again)


def test_proportions_are_those_of_the_final_clusters(seed):
    table, _ = simulate("homogeneous", rows=400, seed=seed)
    found = fed_kmodes(table, "silo", clusters=5, seed=seed)
    sizes = np.bincount(found.labels, minlength=found.weights.shape[1])
    np.testing.assert_allclose(found.weights, [sizes / 400])
    for cluster in np.unique(found.labels):
        rows = table[found.labels == cluster]
        for column, (name, level) in enumerate(found.levels):
            share = (rows[name].astype(str) == level).mean()
            assert found.probabilities[0, cluster, column] == pytest.approx(share)


def test_rows_are_nearest_to_their_mode(seed):
    table, _ = simulate("homogeneous", rows=400, seed=seed)
    federation = open_silos(table, "silo", seed=seed)
    modes, _ = exchange(federation, 5, 20, 5)
    federation.ask(AssignToModes(modes))
    labels = federation.labels()
    schema = federation.study.table_schema
    for silo in federation.silos.silos:
        codes = silo.shard.codes.astype(np.int64)
        away = (codes[:, None] != modes).sum(axis=2)
        own = away[np.arange(len(codes)), labels[federation.places == silo.place]]
        np.testing.assert_array_equal(own, away.min(axis=1))
    assert len(schema.variables) == modes.shape[1]


def test_proportions_of_nothing_are_equal():
    found = proportions(np.array([[0, 0, 1.0, 3.0, 0]]), Levels(SCHEMA.offsets))
    np.testing.assert_allclose(found, [[0.5, 0.5, 0.25, 0.75, 0]])


@pytest.mark.parametrize("name", ["clusters", "rounds", "restarts"])
def test_numbers_must_be_positive(name):
    table, _ = simulate("homogeneous", rows=40, seed=1)
    with pytest.raises(SettingsError, match=f"{name}"):
        fed_kmodes(table, "silo", **({"clusters": 5} | {name: 0}))
