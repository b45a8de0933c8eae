"""The clusters of the exact strategy: components followed from draw to draw, small ones folded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.families import model_of
from statistical.polish_oracle import PolishingSilos

from silomix.coordinator.exact_strategy import ExactDraws, align, sample_exactly
from silomix.model.draws import Schedule

SIZES = np.array([2, 2])
A, B, NONE = [60, 0, 60, 0], [0, 40, 0, 40], [0] * 4


def made(members, counts, weights):
    """Draws with these members and cells, and with parameters that tell components apart."""
    counts = np.array(counts)
    numbered = np.arange(float(counts.size)).reshape(counts.shape)
    weights, zeros = np.array(weights), np.zeros(len(counts))
    return ExactDraws(weights, weights[:, None], numbered, counts, np.array(members), zeros)


def run(draws, absorb=60):
    return align(draws, model_of(SIZES, 0), absorb)


def test_switched_and_stray_components():
    draws = made(
        [[60, 40, 0], [0, 41, 59], [58, 40, 2]],
        [[A, B, NONE], [NONE, [1, 40, 1, 40], [59, 0, 59, 0]], [[58, 0, 58, 0], B, [2, 0, 2, 0]]],
        [[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.6, 0.2, 0.2]],
    )
    parts, merged, unmatched = run(draws)
    assert merged == 0
    assert unmatched == pytest.approx(0.02 / 3)
    for t, own in enumerate([[0, 1], [2, 1], [0, 1]]):
        np.testing.assert_array_equal(parts.profile_draws[t], draws.parameters[t, own])
        kept = draws.weights[t, own]
        np.testing.assert_allclose(parts.weights[t], kept / kept.sum())


@pytest.mark.parametrize(
    ("absorb", "folded"), [(True, 1), (60, 1), (4, 1), (3, 0), (0, 0), (False, 0)]
)
def test_a_small_twin_is_folded(absorb, folded):
    draws = made([[60, 40, 3]] * 2, [[A, B, [3, 0, 3, 0]]] * 2, [[0.5, 0.3, 0.2]] * 2)
    parts, merged, _ = run(draws, absorb)
    assert (merged, parts.weights.shape[1]) == (folded, 3 - folded)


def test_a_twin_of_many_rows_is_folded_unless_a_number_says_otherwise():
    twin = [70, 0, 70, 0]
    draws = made([[60, 40, 70]] * 2, [[A, B, twin]] * 2, [[0.4, 0.2, 0.4]] * 2)
    assert [run(draws, absorb)[1] for absorb in (True, 60)] == [1, 0]


def test_silos_own_weights_follow_their_components():
    draws = made([[60, 40, 0], [0, 41, 59]], [[A, B, NONE], [NONE, B, A]], [[0.5, 0.3, 0.2]] * 2)
    own = np.array([[[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]], [[0.1, 0.3, 0.6], [0.2, 0.4, 0.4]]])
    parts, _, _ = run(replace(draws, weights_by_silo=own))
    kept = np.stack([own[0][:, [0, 1]], own[1][:, [2, 1]]])
    np.testing.assert_allclose(parts.weights_by_silo, kept / kept.sum(axis=2, keepdims=True))


class Listening(PolishingSilos):
    """Notes, round by round, whether the silos were asked with the same weights, and profiles."""

    def ask(self, queries):
        one, other = queries.values()
        pairs = [(one.weights, other.weights), (one.parameters, other.parameters)]
        self.same = [*getattr(self, "same", []), [np.array_equal(*pair) for pair in pairs]]
        return super().ask(queries)


@pytest.mark.parametrize("drift", [True, False])
def test_drift_sets_in_after_half_of_the_burn_in(drift, seed):
    """These silos cannot be taken for the same."""
    shards = [
        np.repeat([[0, 0], [1, 1]], rows, axis=0).astype(np.uint8) for rows in (90, [170, 10])
    ]
    silos = Listening(shards, SIZES, seed)
    schedule = Schedule(iterations=60, burn_in=40, chains=2, thin=1)
    draws = sample_exactly(silos, 3, schedule, model_of(SIZES, seed), drift=drift)
    same = np.array(silos.same)
    # the answers to round 21 are the first that drift
    assert same[:21].all()
    assert same[21:].all(axis=0).tolist() == [not drift, not drift]
    if not drift:
        assert draws.own is None
        np.testing.assert_array_equal(draws.weights_by_silo[:, 1], draws.weights)
        return
    assert draws.weights_by_silo.shape == (40, 2, 3)
    np.testing.assert_allclose(draws.weights, draws.weights_by_silo.mean(axis=1))
    assert draws.own.kappa.shape == (40, 2)
    assert draws.own.parameters.shape == (20, 2, 3, 4)
