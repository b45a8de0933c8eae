"""Shard -> Draws: chains, schedule, storage, progress, interruption. No likelihoods here.

The apply step of Fendler et al. (2026), section 4.2: each silo samples its own posterior under
the prior to the power 1/S. Draws depend on the seed, the silo's place in the roster, the chain and
the sweep, never on threads, checkpoints, progress or how often the run was stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.kernels.compilation import watch_compilation
from silomix.kernels.random_numbers import chain_key
from silomix.messages.progress import Progress
from silomix.model.diagnostics import diagnose
from silomix.model.draws import Draws
from silomix.model.families.categorical import Categorical, Kept, Sweeps
from silomix.silo.checkpoint import load_chain, open_checkpoint, save_chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from silomix.model.draws import Schedule
    from silomix.model.schema import Prior, Shard
    from silomix.silo.checkpoint import Checkpoint

# A kernel call runs about this long, so that progress moves and Ctrl-C is heard.
SECONDS_PER_CALL = 0.1
# From here on sharing a sweep's rows among threads pays for the hand-over.
ROWS_TO_SHARE = 20_000

CATEGORICAL = Categorical()

logger = logging.getLogger("silomix")


@dataclass(frozen=True)
class Job:
    """Everything that decides the draws of one silo, but the rows.

    Attributes
    ----------
    silos, silo : how many silos the study has, and this one's place among them.
    """

    components: int
    prior: Prior
    schedule: Schedule
    silos: int = 1
    silo: int = 0
    seed: int = 0


def sample_shard(
    shard: Shard,
    job: Job,
    *,
    threads: int = 1,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    since: Draws | None = None,
    family: Categorical = CATEGORICAL,
) -> Draws:
    """Sample one silo's posterior, for as long as the schedule says.

    Parameters
    ----------
    threads : chains run side by side on them; with more threads than chains and a long table
        they share the rows. The draws do not depend on it.
    progress : called now and then from this thread.
    checkpoint : a folder; a run that was stopped in any way goes on from there, identical.
    checkpoint_every : sweeps between checkpoints.
    since : draws of the same job with a shorter schedule; the chains go on where those ended.
    family : of the components' distributions.
    """
    schedule = job.schedule
    plan = family.prepare(shard, job.components, *job.prior.share(job.silos))
    shapes = _shapes(shard.rows, family.columns(shard.schema), job)
    saved = checkpoint and open_checkpoint(checkpoint, _identity(shard, job), shapes)
    arrays: Mapping[str, NDArray[Any]] = (
        saved.arrays
        if saved
        else {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    )
    share = _threads_per_chain(threads, schedule.chains, shard.rows)
    runs = [
        _ChainRun(
            family=family,
            plan=plan,
            key=chain_key(job.seed, job.silo, chain),
            schedule=schedule,
            kept=Kept(**{name: np.asarray(array)[chain] for name, array in arrays.items()}),
            threads=share,
            checkpoint=saved or None,
            checkpoint_every=checkpoint_every,
            chain=chain,
            since=None if since is None else (since.schedule.iterations, since.last_labels[chain]),
        )
        for chain in range(schedule.chains)
    ]
    last_labels = _run_chains(runs, threads, progress)
    return _collect(shard, job, arrays, last_labels)


def sample_in_blocks(
    shard: Shard,
    job: Job,
    *,
    threads: int = 1,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: str | Path | None = None,
) -> Iterator[Draws]:
    """Yield the draws after each block of the schedule, until the caller has seen enough.

    A block's draws are those of `sample_shard` with the block as its schedule. Every block has a
    checkpoint folder of its own; a run that was stopped begins again with the first and finds
    what was done.
    """
    blocks, draws = job.schedule.blocks, None
    for block in blocks:
        folder = checkpoint
        if checkpoint is not None and len(blocks) > 1:
            folder = Path(checkpoint, str(block.iterations))
        draws = sample_shard(
            shard,
            replace(job, schedule=block),
            threads=threads,
            progress=progress,
            checkpoint=folder,
            since=draws,
        )
        yield draws


def _threads_per_chain(threads: int, chains: int, rows: int) -> int:
    return max(1, threads // chains) if rows >= ROWS_TO_SHARE else 1


def _shapes(rows: int, columns: int, job: Job) -> dict[str, tuple[tuple[int, ...], type]]:
    chains, kept, components = job.schedule.chains, job.schedule.kept, job.components
    return {
        "labels": ((chains, kept, rows), np.uint8),
        "weights": ((chains, kept, components), np.float32),
        "probabilities": ((chains, kept, components, columns), np.float32),
        "log_likelihood": ((chains, kept), np.float64),
        "members": ((chains, kept, components), np.int64),
    }


def _identity(shard: Shard, job: Job) -> dict[str, Any]:
    schema = json.dumps(asdict(shard.schema)).encode()
    rows = hashlib.sha256(schema + np.ascontiguousarray(shard.codes).tobytes()).hexdigest()
    return {"rows": rows, **asdict(job)}


def _collect(
    shard: Shard,
    job: Job,
    arrays: Mapping[str, NDArray[Any]],
    last_labels: NDArray[np.uint8],
) -> Draws:
    diagnostics = diagnose(arrays["log_likelihood"], arrays["members"], arrays["weights"])

    def joined(name: str) -> NDArray[Any]:
        array = np.asarray(arrays[name])
        joint = array.reshape(-1, *array.shape[2:])
        joint.flags.writeable = False  # they may be a checkpoint's files
        return joint

    return Draws(
        shard=shard,
        labels=joined("labels"),
        weights=joined("weights"),
        probabilities=joined("probabilities"),
        log_likelihood=joined("log_likelihood"),
        chain=np.repeat(np.arange(job.schedule.chains), job.schedule.kept),
        last_labels=last_labels,
        prior=job.prior,
        silos=job.silos,
        seed=job.seed,
        schedule=job.schedule,
        diagnostics=diagnostics,
    )


@dataclass(frozen=True, eq=False)
class _ChainRun:
    family: Categorical
    plan: Any
    key: int
    schedule: Schedule
    kept: Kept
    threads: int
    checkpoint: Checkpoint | None
    checkpoint_every: int
    chain: int
    since: tuple[int, NDArray[np.uint8]] | None


def _run_chains(
    runs: list[_ChainRun], threads: int, progress: Callable[[Progress], None] | None
) -> NDArray[np.uint8]:
    """Run all chains on a pool and return their last labels; this thread hears Ctrl-C."""
    done = [run.since[0] if run.since else 0 for run in runs]
    stop = threading.Event()
    report = _Reporter([run.schedule.iterations for run in runs], progress)
    with (
        watch_compilation() as compiling,
        ThreadPoolExecutor(max_workers=max(1, min(threads, len(runs)))) as pool,
    ):
        try:
            chains = [pool.submit(_run_chain, run, done, stop) for run in runs]
            waiting = set(chains)
            while waiting:
                finished, waiting = wait(waiting, SECONDS_PER_CALL, FIRST_EXCEPTION)
                for chain in finished:
                    chain.result()
                report(done, compiling=compiling.is_set())
        except BaseException:
            stop.set()  # the pool's exit then waits for no more than one kernel call
            raise
    return np.array([chain.result() for chain in chains])


# Taken for good by the first thread of the process to say that the kernels are compiled.
_untold = threading.Lock()


def _tell_of_compiling() -> None:
    if _untold.acquire(blocking=False):
        logger.warning("compiling the sampler, once for this installation: about half a minute")


class _Reporter:
    """Says that kernels are being compiled, then how many sweeps are done."""

    def __init__(self, last: list[int], progress: Callable[[Progress], None] | None) -> None:
        self.last, self.progress = last, progress

    def __call__(self, done: list[int], *, compiling: bool) -> None:
        if compiling:
            _tell_of_compiling()
        if self.progress is not None:
            stage = "compiling" if compiling and not any(done) else "sampling"
            finished = sum(at >= last for at, last in zip(done, self.last, strict=True))
            progress = Progress(stage, sum(done), sum(self.last), finished, len(self.last))
            self.progress(progress)


def _run_chain(run: _ChainRun, done: list[int], stop: threading.Event) -> NDArray[np.uint8]:
    rows = run.kept.labels.shape[1]
    saved = run.checkpoint and load_chain(run.checkpoint, run.chain, rows)
    sweep, labels = saved or run.since or (0, run.family.start(run.plan, run.key))
    chain = run.family.resume(run.plan, labels, run.threads)
    last, step, saved_at = run.schedule.iterations, 1, sweep
    with ExitStack() as stack:
        pool: Executor | None = None
        if run.threads > 1:
            pool = stack.enter_context(ThreadPoolExecutor(max_workers=run.threads))
        while sweep < last and not stop.is_set():
            until = min(sweep + step, last)
            if run.checkpoint:
                until = min(until, saved_at + run.checkpoint_every)
            began = time.monotonic()
            sweeps = Sweeps(run.key, sweep + 1, until, run.schedule.burn_in, run.schedule.thin)
            run.family.advance(chain, sweeps, run.kept, pool)
            per_sweep = (time.monotonic() - began) / (until - sweep)
            step = max(1, min(2 * step, int(SECONDS_PER_CALL / max(per_sweep, 1e-9))))
            sweep = done[run.chain] = until
            if run.checkpoint and (until - saved_at >= run.checkpoint_every or until == last):
                save_chain(run.checkpoint, run.chain, until, chain.labels)
                saved_at = until
    done[run.chain] = sweep
    return chain.labels
