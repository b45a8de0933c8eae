"""K-modes and its federated version against hand computation."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest

from silomix.errors import SettingsError
from silomix.rivals import fed_kmodes
from silomix.rivals.federation import open_silos, points_of
from silomix.rivals.kmeans_kmodes import (
    MODES,
    LocalModes,
    Steps,
    assign,
    climb_modes,
    cluster_centres,
    cost,
    exchange,
    nearest_mode,
    nearest_modes,
    update_modes_locally,
)
from silomix.simulate import simulate

OFFSETS = np.array([0, 2, 5])


def points(codes, counts=None):
    return points_of(np.asarray(codes), OFFSETS, counts)


def cells(codes):
    return points(codes).cells


def test_rows_go_to_the_nearest_mode_and_ties_at_random_or_nowhere(rng):
    modes = cells([[0, 0], [1, 1]])
    labels = nearest_mode(points([[0, 0], [1, 1], [1, 2]]), modes, rng)
    np.testing.assert_array_equal(labels, [0, 1, 1])
    tied = points([[0, 1]] * 200)
    assert set(nearest_mode(tied, modes, rng)) == {0, 1}
    current = rng.integers(0, 2, 200)
    np.testing.assert_array_equal(nearest_mode(tied, modes, rng, current), current)
    # a nearer mode wins over the current one
    assert nearest_mode(points([[0, 0]]), modes, rng, np.array([1])) == [0]


def test_the_server_finds_the_cheapest_modes(rng):
    codes = np.stack([rng.integers(0, 2, 9), rng.integers(0, 3, 9)], axis=1)
    sizes = rng.integers(2, 40, 9)
    silos = [LocalModes(codes[:4], sizes[:4]), LocalModes(codes[4:], sizes[4:])]
    found = cluster_centres(
        silos, Steps(MODES, None, partial(climb_modes, OFFSETS), None, 2, 1, 30), rng
    )
    sent = points(codes, sizes)
    every = [np.array(mode) for mode in product(range(2), range(3))]
    best = min(cost(sent, cells([a, b])) for a, b in product(every, every))
    assert cost(sent, cells(found)) == best


def test_a_silo_never_sends_the_mode_of_one_row():
    table = pd.DataFrame(
        {"silo": ["s"] * 9, "a": [0] * 4 + [1] * 4 + [0], "b": [0] * 4 + [1] * 4 + [2]}
    )
    federation = open_silos(table, "silo", seed=0)
    (reply,) = federation.ask(
        partial(update_modes_locally, 3, 1, np.array([[0, 0], [1, 1], [0, 2]]))
    )
    np.testing.assert_array_equal(reply.modes, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(reply.sizes, [4, 4])


def test_no_mode_at_all_is_an_error():
    table = pd.DataFrame({"silo": ["s", "t"], "a": [0, 1], "b": [0, 1]})
    with pytest.raises(SettingsError, match="2 rows"):
        fed_kmodes(table, "silo", clusters=2)


def test_rows_are_nearest_to_their_mode_and_proportions_those_of_the_clusters(seed):
    table, _ = simulate("homogeneous", rows=400, seed=seed)
    federation = open_silos(table, "silo", seed=seed)
    offsets = federation.study.table_schema.offsets
    update, climb = partial(update_modes_locally, 5), partial(climb_modes, offsets)
    modes, _ = exchange(federation, Steps(MODES, update, climb, nearest_modes, 5, 20, 10))
    federation.ask(partial(assign, nearest_modes, modes))
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
