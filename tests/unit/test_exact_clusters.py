"""The clusters of the exact strategy: components followed from draw to draw, small ones folded."""

from __future__ import annotations

import numpy as np
import pytest

from silomix.exact import ExactDraws, align
from silomix.types import Prior

A, B, NONE = [60, 0, 60, 0], [0, 40, 0, 40], [0] * 4


def made(members, counts, weights):
    """Draws with these members and cells, and with probabilities that tell components apart."""
    counts = np.array(counts)
    numbered = np.arange(float(counts.size)).reshape(counts.shape)
    zeros = np.zeros(len(counts))
    return ExactDraws(np.array(weights), numbered, counts, np.array(members), zeros, zeros)


def run(draws, absorb=60):
    return align(draws, prior=Prior(), offsets=np.array([0, 2, 4]), absorb=absorb)


def test_switched_and_stray_components():
    draws = made(
        [[60, 40, 0], [0, 41, 59], [58, 40, 2]],
        [[A, B, NONE], [NONE, [1, 40, 1, 40], [59, 0, 59, 0]], [[58, 0, 58, 0], B, [2, 0, 2, 0]]],
        [[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.6, 0.2, 0.2]],
    )
    found = run(draws)
    assert (found.reference, found.folded) == (0, 0)
    assert found.unmatched == pytest.approx(0.02 / 3)
    for t, own in enumerate([[0, 1], [2, 1], [0, 1]]):
        np.testing.assert_array_equal(found.probabilities[t], draws.probabilities[t, own])
        kept = draws.weights[t, own]
        np.testing.assert_allclose(found.weights[t], kept / kept.sum())


@pytest.mark.parametrize(("absorb", "folded"), [(60, 1), (0, 0)])
def test_a_small_twin_is_folded(absorb, folded):
    draws = made([[60, 40, 3]] * 2, [[A, B, [3, 0, 3, 0]]] * 2, [[0.5, 0.3, 0.2]] * 2)
    found = run(draws, absorb)
    assert (found.folded, found.weights.shape[1]) == (folded, 3 - folded)
