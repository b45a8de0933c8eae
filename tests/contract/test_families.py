"""Every family of component distributions does what the sampler relies on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases.sampler_cases import random_shard
from numpy.testing import assert_allclose, assert_array_equal

from silomix.kernels.layout import KeptDraws
from silomix.model.draws import Schedule
from silomix.model.families.categorical import Categorical

FAMILIES = [Categorical()]

# levels of the variables; twenty are more than the kernels count byte by byte
SIZES = (2, 3, 20, 1, 4)
COMPONENTS = 7
ALPHA, BETA = 0.75, 0.5
KEY = 2**63 + 12345


@pytest.fixture(params=FAMILIES, ids=lambda family: type(family).__name__)
def family(request):
    return request.param


@pytest.fixture
def shard(seed):
    """More than a few blocks of rows."""
    return random_shard(seed, 330, SIZES, 0.1)


def unwritten(family, shard, draws):
    """Room for `draws` draws, filled with what no draw can hold."""
    columns = len(shard.schema.levels)
    return KeptDraws(
        labels=np.full((draws, shard.rows), 255, np.uint8),
        weights=np.full((draws, COMPONENTS), np.nan, np.float32),
        probabilities=np.full((draws, COMPONENTS, columns), np.nan, np.float32),
        log_likelihood=np.full(draws, np.nan),
        members=np.full((draws, COMPONENTS), -1),
    )


def assert_same(one, other):
    for name, array in one._asdict().items():
        assert_array_equal(array, getattr(other, name), err_msg=name)


def run(family, shard, *, key=KEY, alpha=ALPHA, beta=BETA, sweeps=12, threads=1):
    """Keep every sweep of a chain, its rows shared among threads where there are more."""
    plan = family.prepare(shard, COMPONENTS, alpha, beta)
    chain = family.resume(plan, key, family.start(plan, key), threads)
    kept = unwritten(family, shard, sweeps)
    everything = range(1, sweeps + 1), Schedule(burn_in=0, thin=1)
    if threads == 1:
        family.advance(chain, *everything, kept, None)
    else:
        with ThreadPoolExecutor(threads) as pool:
            family.advance(chain, *everything, kept, pool)
    assert_array_equal(chain.labels, kept.labels[-1])
    return kept


def test_a_kept_draw_is_whole_and_hangs_together(family, shard):
    kept = run(family, shard)
    assert kept.probabilities.shape[2] == len(shard.schema.levels) > 0
    assert kept.labels.max() < COMPONENTS
    assert all(np.isfinite(array).all() for array in kept)
    assert_array_equal(
        kept.members, [np.bincount(labels, minlength=COMPONENTS) for labels in kept.labels]
    )
    # a sum of seven rounded numbers that add up to one
    assert_allclose(kept.weights.sum(axis=1, dtype=np.float64), 1, rtol=COMPONENTS * 2**-24)
    assert (kept.weights > 0).all()


def test_the_key_and_the_prior_decide_the_draws(family, shard):
    """The start depends on the key alone."""
    one, other = (family.prepare(shard, COMPONENTS, *prior) for prior in ((ALPHA, BETA), (2, 3)))
    labels = family.start(one, KEY)
    assert (labels.dtype, labels.shape, labels.max() < COMPONENTS) == (np.uint8, (330,), True)
    assert_array_equal(labels, family.start(other, KEY))
    assert (labels != family.start(one, KEY + 1)).any()
    kept = run(family, shard)
    assert_same(kept, run(family, shard))
    for change in ({"key": KEY + 1}, {"alpha": 2 * ALPHA}, {"beta": 2 * BETA}):
        assert (run(family, shard, **change).labels != kept.labels).any()


@pytest.mark.parametrize("threads", [2, 8], ids="{} threads".format)
def test_threads_that_share_the_rows_give_the_same_draws(family, shard, threads):
    """With eight, some have no rows."""
    assert_same(run(family, shard), run(family, shard, threads=threads))


@pytest.mark.parametrize("piece", [1, 5])
@pytest.mark.parametrize("rebuild", [False, True], ids=["same chain", "rebuilt from its labels"])
def test_pieces_make_the_whole(family, shard, piece, rebuild):
    plan = family.prepare(shard, COMPONENTS, ALPHA, BETA)
    chain = family.resume(plan, KEY, family.start(plan, KEY), 1)
    kept = unwritten(family, shard, 12)
    for first in range(1, 13, piece):
        some = range(first, min(first + piece, 13))
        family.advance(chain, some, Schedule(burn_in=0, thin=1), kept, None)
        if rebuild:
            labels = chain.labels.copy()
            chain = family.resume(plan, KEY, labels, 1)
            assert chain.labels is not labels  # which the next chain may start from as well
    assert_same(run(family, shard), kept)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("burn_in", "thin", "sweeps"), [(4, 3, [7, 10]), (0, 5, [5, 10]), (11, 1, [12]), (5, 8, [])]
)
def test_only_sweeps_that_are_due_are_kept(family, shard, threads, burn_in, thin, sweeps):
    plan = family.prepare(shard, COMPONENTS, ALPHA, BETA)
    chain = family.resume(plan, KEY, family.start(plan, KEY), threads)
    kept = unwritten(family, shard, len(sweeps) + 1)
    with ThreadPoolExecutor(threads) as pool:
        shared = pool if threads > 1 else None
        family.advance(chain, range(1, 13), Schedule(burn_in=burn_in, thin=thin), kept, shared)
    every = run(family, shard)
    due = np.array(sweeps, dtype=int) - 1
    assert_same(
        KeptDraws(*(array[:-1] for array in kept)), KeptDraws(*(array[due] for array in every))
    )
    after = KeptDraws(*(array[-1:] for array in kept))
    assert_same(after, unwritten(family, shard, 1))
