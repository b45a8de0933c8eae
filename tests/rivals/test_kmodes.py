"""K-modes and its federated version against hand computation."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest

from silomix.errors import SettingsError
from silomix.rivals import fed_kmodes
from silomix.rivals.federation import Levels, open_silos
from silomix.rivals.kmodes import (
    SERVER,
    STREAM,
    LocalModes,
    assign_to_modes,
    cluster_modes,
    codes_of,
    cost,
    exchange,
    k_modes,
    nearest_mode,
    proportions,
    update_locally,
    update_modes,
)
from silomix.simulate import simulate

LEVELS = Levels(np.array([0, 2, 5]))


def points(codes, counts=None):
    return LEVELS.points(np.asarray(codes), None if counts is None else np.array(counts))


def cells(codes):
    return points(codes).cells


def test_the_cost_counts_cells_that_differ():
    # the last row misses its first cell
    rows = points([[0, 0], [1, 2], [2, 1]], counts=[1, 10, 100])
    assert cost(rows, cells([[0, 0]])) == 0 + 20 + 100
    assert cost(rows, cells([[0, 0], [1, 1]])) == 0 + 10 + 0


def test_rows_go_to_the_nearest_mode_and_ties_at_random_or_nowhere(seed):
    rng = np.random.default_rng(seed)
    modes = cells([[0, 0], [1, 1]])
    labels = nearest_mode(points([[0, 0], [1, 1], [1, 2]]), modes, rng)
    np.testing.assert_array_equal(labels, [0, 1, 1])
    tied = points([[0, 1]] * 200)
    assert set(nearest_mode(tied, modes, rng)) == {0, 1}
    current = rng.integers(0, 2, 200)
    np.testing.assert_array_equal(nearest_mode(tied, modes, rng, current), current)
    # a nearer mode wins over the current one
    assert nearest_mode(points([[0, 0]]), modes, rng, np.array([1])) == [0]


@pytest.mark.parametrize(
    ("counts", "expected"), [([1, 1, 1, 5], [[0, 1], [1, 2], [1, 1]]), ([1, 1, 5, 5], [[1, 1]])]
)
def test_modes_are_the_most_frequent_levels_by_count(seed, counts, expected):
    rows, labels = points([[0, 0], [0, 1], [1, 1], [1, 2]], counts), np.array([0, 0, 0, 1])
    found = update_modes(rows, labels, cells([[1, 2], [0, 0], [1, 1]]), np.random.default_rng(seed))
    # the third cluster has no row and keeps its mode
    np.testing.assert_array_equal(codes_of(found, LEVELS)[: len(expected)], expected)


def test_the_cost_falls_with_the_passes(seed):
    table, _ = simulate("nested", rows=300, silos=1, seed=seed)
    codes = table.drop(columns="silo").to_numpy(dtype=int) - 1
    rows = Levels(np.array([0, 2, 4, 6, 8, 11, 14, 17, 20, 23, 26])).points(codes)
    modes = [k_modes(rows, 6, passes, np.random.default_rng(seed))[1] for passes in range(5)]
    costs = [cost(rows, found) for found in modes]
    assert (np.diff(costs) <= 0).all()
    assert costs[-1] < costs[0]


def test_the_server_finds_the_cheapest_modes(seed):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, 2, 9), rng.integers(0, 3, 9)], axis=1)
    sizes = rng.integers(2, 40, 9)
    found = cluster_modes(
        [LocalModes(codes[:4], sizes[:4]), LocalModes(codes[4:], sizes[4:])], LEVELS, 2, 30, rng
    )
    sent = points(codes, sizes)
    every = [np.array(mode) for mode in product(range(2), range(3))]
    best = min(cost(sent, cells([a, b])) for a, b in product(every, every))
    assert cost(sent, cells(found)) == best


def test_equal_modes_make_fewer_clusters(seed):
    rng = np.random.default_rng(seed)
    same = LocalModes(np.array([[0, 1], [1, 2]]), np.array([5, 5]))
    found = cluster_modes([same, same], LEVELS, 4, 3, rng)
    np.testing.assert_array_equal(found, [[0, 1], [1, 2]])


def test_a_silo_never_sends_the_mode_of_one_row():
    table = pd.DataFrame(
        {"silo": ["s"] * 9, "a": [0] * 4 + [1] * 4 + [0], "b": [0] * 4 + [1] * 4 + [2]}
    )
    federation = open_silos(table, "silo", seed=0)
    (reply,) = federation.ask(partial(update_locally, 1, 3, np.array([[0, 0], [1, 1], [0, 2]])))
    np.testing.assert_array_equal(reply.modes, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(reply.sizes, [4, 4])


def test_no_mode_at_all_is_an_error():
    table = pd.DataFrame({"silo": ["s", "t"], "a": [0, 1], "b": [0, 1]})
    with pytest.raises(SettingsError, match="2 rows"):
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
    sent = [question.args[-1] for question, _ in asked]
    assert sent[0] is None
    # the modes went out once before, and then were made again from the last replies
    outgoing = [modes.tobytes() for modes in sent[1:]]
    assert len(set(outgoing)) == len(outgoing)
    assert modes.tobytes() in outgoing or rounds == 20
    rng = np.random.default_rng([seed, STREAM, SERVER, rounds])
    levels = Levels(federation.study.table_schema.offsets)
    again = cluster_modes(list(asked[-1][1].values()), levels, 6, 5, rng)
    np.testing.assert_array_equal(modes, again)


def test_rows_are_nearest_to_their_mode_and_proportions_those_of_the_clusters(seed):
    table, _ = simulate("homogeneous", rows=400, seed=seed)
    federation = open_silos(table, "silo", seed=seed)
    modes, _ = exchange(federation, 5, 20, 10)
    federation.ask(partial(assign_to_modes, modes))
    for silo in federation.silos.silos:
        away = (silo.shard.codes[:, None] != modes).sum(axis=2)
        own = away[silo.store.membership.astype(bool)]
        np.testing.assert_array_equal(own, away.min(axis=1))
    found = fed_kmodes(table, "silo", clusters=5, seed=seed)
    np.testing.assert_allclose(found.weights[0], np.bincount(found.labels) / 400)
    for cluster in np.unique(found.labels):
        rows = table[found.labels == cluster].astype(str)
        shares = [(rows[name] == level).mean() for name, level in found.levels]
        np.testing.assert_allclose(found.probabilities[0, cluster], shares)


def test_proportions_of_nothing_are_equal():
    found = proportions(np.array([[0, 0, 1, 3, 0]]), LEVELS)
    np.testing.assert_allclose(found, [[0.5, 0.5, 0.25, 0.75, 0]])
