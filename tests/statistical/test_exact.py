"""One sweep leaves the enumerated posterior invariant, the chain forgets its start, bugs fail.

The tiny tables were chosen so that each part of the code matters: variables of different sizes
(padding), many binary variables (the prior of the probabilities adds up), missing cells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from statistical.exact import (
    FALSE_ALARM,
    Sweeper,
    Tiny,
    forgetting_p_value,
    invariance_p_value,
    masses,
)

from silomix.model.schema import Prior

pytestmark = pytest.mark.statistical

ALPHA, BETA = Prior().share(10)

SMALL = Tiny(
    codes=np.array([[0, 0, 2], [1, 1, 0], [0, 1, 3], [1, 0, 3]], dtype=np.uint8),
    sizes=np.array([2, 2, 3]),
    components=3,
    alpha=ALPHA,
    beta=BETA,
)
BINARY = Tiny(
    codes=np.array(
        [[0, 0, 0, 0, 1, 1, 0, 1], [0, 0, 1, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 1, 0],
         [1, 0, 1, 1, 0, 0, 1, 1]],
        dtype=np.uint8,
    ),
    sizes=np.full(8, 2),
    components=2,
    alpha=ALPHA,
    beta=BETA,
)  # fmt: skip
HOLES = Tiny(
    codes=np.array(
        [[2, 2, 2, 0, 2, 2], [2, 2, 2, 1, 2, 2], [0, 0, 0, 2, 1, 0], [1, 0, 1, 2, 0, 0]],
        dtype=np.uint8,
    ),
    sizes=np.full(6, 2),
    components=2,
    alpha=ALPHA,
    beta=BETA,
)
RAGGED = Tiny(
    codes=np.array(
        [[0, 0, 0, 1, 1, 4], [0, 0, 1, 1, 1, 2], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 5]],
        dtype=np.uint8,
    ),
    sizes=np.array([2, 2, 2, 2, 2, 5]),
    components=2,
    alpha=ALPHA,
    beta=BETA,
)
TABLES = {"small": SMALL, "binary": BINARY, "holes": HOLES, "ragged": RAGGED}


def padded(tiny):
    """The same table when every variable is padded to the widest, and the padding takes part."""
    widest = np.full_like(tiny.sizes, tiny.sizes.max())
    codes = np.where(tiny.codes == tiny.sizes, widest, tiny.codes)
    return replace(tiny, codes=codes.astype(np.uint8), sizes=widest)


def missing_as_level(tiny):
    return replace(tiny, sizes=tiny.sizes + 1)


BUGS = {
    "prior of the probabilities doubled": (BINARY, replace(BINARY, beta=2 * BETA)),
    "prior of the weights doubled": (SMALL, replace(SMALL, alpha=2 * ALPHA)),
    "prior not fractionated": (
        BINARY,
        replace(BINARY, alpha=Prior().alpha, beta=Prior().beta),
    ),
    "padding counted": (RAGGED, padded(RAGGED)),
    "missing treated as a level": (HOLES, missing_as_level(HOLES)),
}


some_or_many = pytest.mark.parametrize(
    "replicates", [4_000, pytest.param(60_000, marks=pytest.mark.slow)]
)


def one_sweep_p_value(tiny, subject, replicates, seed):
    return invariance_p_value(tiny, masses(tiny), Sweeper(subject, seed), replicates, seed)


@some_or_many
@pytest.mark.parametrize("name", TABLES)
def test_one_sweep_leaves_the_posterior_invariant(name, replicates, seed):
    tiny = TABLES[name]
    assert one_sweep_p_value(tiny, tiny, replicates, seed) > FALSE_ALARM


@some_or_many
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, replicates, seed):
    tiny, wrong = BUGS[bug]
    assert one_sweep_p_value(tiny, wrong, replicates, seed) < FALSE_ALARM


@pytest.mark.parametrize("name", TABLES)
def test_the_chain_forgets_its_start(name, seed):
    """A kernel that does nothing is invariant too: this test is what rejects it."""
    tiny = TABLES[name]
    given = tiny, masses(tiny), Sweeper(tiny, seed)
    assert forgetting_p_value(*given, 20, 500) > FALSE_ALARM
    assert forgetting_p_value(*given, 1, 500) < FALSE_ALARM
