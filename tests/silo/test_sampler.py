"""The draws are those of the schedule, whatever else happens while they are made."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace

import numba
import numpy as np
import pytest
from cases import sweep_twin as reference
from cases.sampler_cases import assert_same_draws, random_shard
from numpy.testing import assert_array_equal

from silomix.families.chains import CategoryChain
from silomix.messages.progress import Progress
from silomix.model.draws import Schedule
from silomix.model.schema import Prior
from silomix.silo import sampler
from silomix.silo.sampler import Job, sample_in_blocks, sample_shard

SHORT = Schedule(iterations=40, burn_in=10, chains=2, thin=3)
LONG = Schedule(iterations=5 * 10**6, burn_in=10**6, chains=2, thin=4 * 10**6)
"""A minute's work, so that a run that does not stop fails its test."""


def make_shard(seed, rows=300, sizes=(2, 3, 2, 4)):
    return random_shard(seed, rows, sizes, 0.1)


def make_job(seed, schedule=SHORT, **changes):
    return replace(Job(6, Prior(), schedule, silos=3, silo=1, seed=seed), **changes)


@pytest.mark.parametrize("chains", [1, 2])
def test_kept_draws_are_those_of_the_definition(chains, seed):
    sizes = np.array([2, 3, 2])
    shard = make_shard(seed, 12, sizes)
    schedule = Schedule(iterations=12, burn_in=4, chains=chains, thin=3)
    job = make_job(seed, schedule, components=3)
    draws = sample_shard(shard, job)
    expected = []
    for chain in range(chains):
        key = reference.chain_key(seed, 1, chain)
        labels = reference.start(key, 12, 3)
        for sweep in range(1, 13):
            drawn = reference.sweep(key, sweep, shard.codes, sizes, labels, 3, *Prior().share(3))
            labels = drawn[0]
            if sweep in (7, 10):
                expected.append((chain, *drawn))
    chain, labels, weights, tables, log_likelihood = (
        np.array(part) for part in zip(*expected, strict=True)
    )
    assert_array_equal(draws.chain, chain)
    assert_array_equal(draws.labels, labels)
    assert_array_equal(draws.weights, weights.astype(np.float32))
    assert_array_equal(draws.probabilities, tables.transpose(0, 2, 1).astype(np.float32))
    # the kernel adds logarithms of float32 totals; each is off by a few roundings at most
    assert np.abs(draws.log_likelihood - log_likelihood).max() <= 12 * 16 * 2.0**-24


@pytest.mark.parametrize(
    ("chains", "threads", "shared"),
    [(1, 3, True), (2, 3, False), (2, 4, True), (3, 2, False)],
)
def test_threads_do_not_change_the_draws(chains, threads, shared, seed, monkeypatch, advances):
    shard, job = make_shard(seed), make_job(seed, replace(SHORT, chains=chains))
    expected = sample_shard(shard, job)
    assert_same_draws(expected, sample_shard(shard, job, threads=threads))
    assert not any(pooled for *_, pooled in advances)
    monkeypatch.setattr(sampler, "ROWS_TO_SHARE", 100)
    advances.clear()
    assert_same_draws(expected, sample_shard(shard, job, threads=threads))
    assert {pooled for *_, pooled in advances} == {shared}


def test_calls_do_not_change_the_draws(seed, monkeypatch, advances):
    """However the sweeps are cut into kernel calls, the draws are the same."""
    shard, job = make_shard(seed), make_job(seed)
    expected = sample_shard(shard, job)
    pieces = []
    for seconds in (1e-9, 100.0):
        monkeypatch.setattr(sampler, "SECONDS_PER_CALL", seconds)
        advances.clear()
        assert_same_draws(expected, sample_shard(shard, job, progress=lambda _: None))
        pieces.append(len(advances))
    one_sweep_a_call, doubling = pieces
    assert one_sweep_a_call == 2 * SHORT.iterations
    assert doubling == 2 * 6  # 1, 2, 4, 8, 16 and the 9 that are left of 40


def test_progress_rises_to_the_total_in_the_calling_thread(seed, monkeypatch):
    """A chain waits for a report before each kernel call, so that none can end unseen."""
    permits, advance = threading.Semaphore(0), CategoryChain.advance

    def advance_when_seen(*call):
        assert permits.acquire(timeout=60)
        advance(*call)

    monkeypatch.setattr(CategoryChain, "advance", advance_when_seen)
    monkeypatch.setattr(sampler, "SECONDS_PER_CALL", 1e-4)
    seen = []

    def progress(at):
        seen.append((at, threading.get_ident()))
        permits.release()

    sample_shard(make_shard(seed), make_job(seed, SHORT), threads=2, progress=progress)
    reports, threads = zip(*seen, strict=True)
    done = [report.done for report in reports]
    total = 2 * SHORT.iterations
    assert len(done) > 2 * 6  # kernel calls of two chains, when each has twice the sweeps
    assert done == sorted(done)
    assert reports[-1] == Progress("sampling", total, total, chains_done=2, chains=2)
    assert set(threads) == {threading.get_ident()}


@pytest.fixture
def its_threads(monkeypatch):
    """The threads that a run starts; others of the process may come and go meanwhile."""
    started = []
    start = threading.Thread.start

    def record(self):
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", record)
    return started


@pytest.mark.parametrize(
    ("chains", "threads", "shared"),
    [(2, 1, 10**9), (2, 2, 10**9), (1, 2, 100)],
    ids=["one chain waits", "both run", "threads share the rows"],
)
def test_an_exception_in_the_callback_ends_the_run(
    chains, threads, shared, seed, monkeypatch, advances, its_threads
):
    monkeypatch.setattr(sampler, "ROWS_TO_SHARE", shared)
    for error in (ZeroDivisionError("from the callback"), KeyboardInterrupt()):

        def report(at, error=error):
            if at.done:
                raise error

        job = make_job(seed, replace(LONG, chains=chains))
        with pytest.raises(type(error)) as caught:
            sample_shard(make_shard(seed), job, threads=threads, progress=report)
        assert caught.value is error
        assert its_threads
        assert not any(thread.is_alive() for thread in its_threads)
    assert max(sweeps[-1] for _, sweeps, _ in advances) < LONG.iterations


def fail_at(monkeypatch, key, sweep):
    """Let the chain with this key run out of memory when it comes to the sweep."""
    advance = CategoryChain.advance

    def fail(chain, sweeps, *others):
        if chain.key == key and sweep <= sweeps[-1]:
            raise MemoryError(f"at sweep {sweep}")
        advance(chain, sweeps, *others)

    monkeypatch.setattr(CategoryChain, "advance", fail)


def test_a_chain_that_fails_ends_the_others(seed, monkeypatch, its_threads):
    fail_at(monkeypatch, reference.chain_key(seed, 1, 1), 20)
    with pytest.raises(MemoryError, match="at sweep 20"):
        sample_shard(make_shard(seed), make_job(seed, LONG), threads=2)
    assert its_threads
    assert not any(thread.is_alive() for thread in its_threads)


@pytest.mark.parametrize(("sweep", "first"), [(7, 1), (8, 8), (40, 36)])
def test_a_run_goes_on_from_its_last_checkpoint(sweep, first, seed, tmp_path, advances):
    """Checkpoints are at sweeps 7, 14, … 35 and 40; the chain fails coming to `sweep`."""
    shard, job = make_shard(seed), make_job(seed)
    expected = sample_shard(shard, job)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        fail_at(patch, reference.chain_key(seed, 1, 1), sweep)
        sample_shard(shard, job, checkpoint=tmp_path, checkpoint_every=7)
    advances.clear()
    resumed = sample_shard(shard, job, checkpoint=tmp_path, checkpoint_every=7)
    assert_same_draws(expected, resumed)
    key = reference.chain_key(seed, 1, 1)
    assert min(sweeps[0] for of, sweeps, _ in advances if of == key) == first


def test_compiling_is_noticed_and_said_once(seed, monkeypatch, caplog):
    double = numba.njit(lambda number: 2 * number)
    for is_new in (True, False):
        with sampler.install_recorder("numba:compile") as compiled:
            double(1)
        assert bool(compiled.buffer) is is_new
    compiled.buffer.append("an event")
    monkeypatch.setattr(sampler, "install_recorder", lambda _: nullcontext(compiled))
    monkeypatch.setattr(sampler, "SECONDS_PER_CALL", 1e-4)
    monkeypatch.setattr(sampler, "_unsaid", threading.Lock())
    stages = []
    for _ in range(2):
        sample_shard(
            make_shard(seed), make_job(seed), progress=lambda at: stages.append((at.stage, at.done))
        )
    words = "compiling the sampler, once for these kinds of columns: half a minute"
    assert [record.getMessage() for record in caplog.records].count(words) == 1
    assert all((stage == "compiling") == (done == 0) for stage, done in stages)


BLOCKS = Schedule(iterations=4000, burn_in=2000, chains=2, thin=4, adaptive=True)


def test_a_block_has_the_draws_of_its_schedule(seed):
    """Chains that go on from the block before are those that ran through."""
    shard, job = make_shard(seed), make_job(seed, BLOCKS)
    blocks = list(sample_in_blocks(shard, job, threads=2))
    assert [draws.schedule.iterations for draws in blocks] == [1000, 2000, 4000]
    for draws in blocks:
        assert_same_draws(draws, sample_shard(shard, replace(job, schedule=draws.schedule)))


def test_blocks_that_were_stopped_go_on_from_their_checkpoints(tmp_path, seed):
    shard, job = make_shard(seed), make_job(seed, BLOCKS)
    *_, whole = sample_in_blocks(shard, job)
    for stopped_at in (700, 3000):

        def stop(at, stopped_at=stopped_at):
            if at.done > 2 * stopped_at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            list(sample_in_blocks(shard, job, progress=stop, checkpoint=tmp_path))
    *_, resumed = sample_in_blocks(shard, job, checkpoint=tmp_path)
    assert_same_draws(resumed, whole)
