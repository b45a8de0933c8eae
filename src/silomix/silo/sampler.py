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
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core.event import install_recorder

from silomix.kernels.layout import KeptDraws
from silomix.kernels.random_numbers import chain_key
from silomix.messages.progress import Progress
from silomix.model.diagnostics import diagnose
from silomix.model.draws import Draws, Schedule
from silomix.model.families import make_family, sweeps_for
from silomix.silo.checkpoint import Shapes, load_chain, open_checkpoint, save_chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from silomix.kernels.arrays import Array, Bytes
    from silomix.model.prior import Prior
    from silomix.model.schema import Shard

# A kernel call runs about this long, so that progress moves and Ctrl-C is heard.
SECONDS_PER_CALL = 0.1
# From here on sharing a sweep's rows among threads pays for the hand-over.
ROWS_TO_SHARE = 20_000

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
    start: Bytes | None = None,
    since: Draws | None = None,
) -> Draws:
    """Sample one silo's posterior, for as long as the schedule says.

    Parameters
    ----------
    threads : chains run side by side on them; with more threads than chains and a long table
        they share the rows. The draws do not depend on it.
    progress : called now and then from this thread.
    checkpoint : a folder; a run that was stopped in any way goes on from there, identical.
    checkpoint_every : sweeps between checkpoints.
    start : (chain, row), labels to begin with; at random when left out.
    since : draws of the same job with a shorter schedule; the chains go on where those ended.
    """
    chains, folder = job.schedule.chains, None if checkpoint is None else Path(checkpoint)
    family, (alpha, _) = make_family(shard.schema, job.prior), job.prior.share(job.silos)
    if job.prior.fractionate:
        family = family.share(job.silos)
    shapes = _shapes(shard, job, int(family.parameters.sum()))
    arrays: Mapping[str, Array]
    if folder is None:
        arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    else:
        arrays = open_checkpoint(folder, _identity(shard, job), shapes)
    sweeps = sweeps_for(family)
    plan = sweeps.prepare(shard, job.components, alpha, family)
    sharing = max(1, threads // chains) if shard.rows >= ROWS_TO_SHARE else 1
    done = [since.schedule.iterations if since else 0] * chains
    run = _Run(job, sweeps, plan, arrays, sharing, folder, checkpoint_every, start, since, done)
    return _collect(shard, run, _run_chains(run, threads, progress))


def sample_in_blocks(
    shard: Shard, job: Job, *, checkpoint: str | Path | None = None, **running: Any
) -> Iterator[Draws]:
    """Yield the draws after each block of the schedule, until the caller has seen enough.

    A block's draws are those of `sample_shard` with the block as its schedule. Every block has a
    checkpoint folder of its own; a run that was stopped begins again with the first and finds
    what was done; threads, progress and start are those of `sample_shard`.
    """
    blocks, draws = job.schedule.blocks, None
    for block in blocks:
        folder = checkpoint
        if checkpoint is not None and len(blocks) > 1:
            folder = Path(checkpoint, str(block.iterations))
        settled = replace(job, schedule=block)
        draws = sample_shard(shard, settled, checkpoint=folder, since=draws, **running)
        yield draws


def _shapes(shard: Shard, job: Job, columns: int) -> Shapes:
    chains, kept, components = job.schedule.chains, job.schedule.kept, job.components
    return {
        "labels": ((chains, kept, shard.rows), np.uint8),
        "weights": ((chains, kept, components), np.float32),
        "probabilities": ((chains, kept, components, columns), np.float32),
        "log_likelihood": ((chains, kept), np.float64),
        "members": ((chains, kept, components), np.int64),
    }


def _identity(shard: Shard, job: Job) -> dict[str, Any]:
    schema = json.dumps(asdict(shard.schema)).encode()
    cells = b"".join(np.ascontiguousarray(part).tobytes() for part in shard.cells)
    rows = hashlib.sha256(schema + cells).hexdigest()
    return {"rows": rows, **asdict(job)}


def _collect(shard: Shard, run: _Run, last_states: Bytes) -> Draws:
    job, arrays = run.job, run.arrays
    joined: dict[str, Any] = {n: getattr(job, n) for n in ("prior", "silos", "seed", "schedule")}
    for name in ("labels", "weights", "probabilities", "log_likelihood"):
        array = np.asarray(arrays[name])
        joined[name] = array.reshape(-1, *array.shape[2:])
        joined[name].flags.writeable = False  # they may be a checkpoint's files
    return Draws(
        shard=shard,
        **joined,
        chain=np.repeat(np.arange(job.schedule.chains), job.schedule.kept),
        last_states=last_states,
        diagnostics=diagnose(arrays["log_likelihood"], arrays["members"], arrays["weights"]),
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """What the chains of a run share.

    Attributes
    ----------
    sweeps, plan : what runs the sweeps, and what it prepared.
    arrays : the kept draws by name, (chain, draw, …); memory maps where there is a checkpoint.
    threads : for the rows of each chain.
    folder, every : of the checkpoint, and the sweeps between two.
    start : (chain, row), labels to begin with, if any are given.
    since : what the chains go on from.
    done : sweeps of each chain so far.
    stop : set when the chains are to end.
    """

    job: Job
    sweeps: Any
    plan: Any
    arrays: Mapping[str, Array]
    threads: int
    folder: Path | None
    every: int
    start: Bytes | None
    since: Draws | None
    done: list[int]
    stop: threading.Event = field(default_factory=threading.Event)


# Taken for good by the first thread of the process to say that the kernels are compiled.
_unsaid = threading.Lock()


def _run_chains(run: _Run, threads: int, progress: Callable[[Progress], None] | None) -> Bytes:
    """Run all chains on a pool and return their last states; this thread hears Ctrl-C."""
    chains, last = run.job.schedule.chains, run.job.schedule.iterations
    with (
        install_recorder("numba:compile") as compiled,  # not where a kernel is loaded from disk
        ThreadPoolExecutor(max_workers=max(1, min(threads, chains))) as pool,
    ):
        try:
            ends = [pool.submit(_run_chain, run, chain) for chain in range(chains)]
            waiting = set(ends)
            while waiting:
                finished, waiting = wait(waiting, SECONDS_PER_CALL, FIRST_EXCEPTION)
                for chain in finished:
                    chain.result()
                if compiled.buffer and _unsaid.acquire(blocking=False):
                    logger.warning(
                        "compiling the sampler, once for this installation: about half a minute"
                    )
                if progress is not None:
                    is_begun = any(run.done) or not compiled.buffer
                    stage, ended = "sampling" if is_begun else "compiling", run.done.count(last)
                    progress(Progress(stage, sum(run.done), last * chains, ended, chains))
        except BaseException:
            run.stop.set()  # the pool's exit then waits for no more than one kernel call
            raise
    return np.array([chain.result() for chain in ends])


def _run_chain(run: _Run, chain: int) -> Bytes:
    job, schedule = run.job, run.job.schedule
    key, last = chain_key(job.seed, job.silo, chain), schedule.iterations
    kept = KeptDraws(**{name: np.asarray(array)[chain] for name, array in run.arrays.items()})
    saved = run.folder and load_chain(run.folder, chain)
    since = run.since and (run.since.schedule.iterations, run.since.last_states[chain])
    begun = run.sweeps.start(run.plan, key)
    if run.start is not None:
        begun[: run.start.shape[1]] = run.start[chain]
    sweep, begun = saved or since or (0, begun)
    going = run.sweeps.resume(run.plan, key, begun, run.threads)
    run.done[chain], step, saved_at = sweep, 1, sweep
    with ThreadPoolExecutor(run.threads) if run.threads > 1 else nullcontext() as pool:
        while sweep < last and not run.stop.is_set():
            until = min(sweep + step, last)
            if run.folder:
                until = min(until, saved_at + run.every)
            began = time.monotonic()
            run.sweeps.advance(going, range(sweep + 1, until + 1), schedule, kept, pool)
            # twice as many sweeps in the next call, but not more than fit in its time
            per_sweep = (time.monotonic() - began) / (until - sweep)
            step = max(1, min(2 * step, int(SECONDS_PER_CALL / max(per_sweep, 1e-9))))
            sweep = run.done[chain] = until
            if run.folder and (until - saved_at >= run.every or until == last):
                save_chain(run.folder, run.arrays, chain, until, going.state)
                saved_at = until
    return going.state
