"""Run the chains of one silo: schedule, storage, progress, interruption.

The sweep itself is in `families.chains`, and compiled for categories in `kernels.gibbs_sweep`.

The apply step of Fendler et al. (2026), section 4.2: each silo samples its own posterior under
the prior to the power 1/S. Draws depend on the seed, the silo's place in the roster, the chain and
the sweep, never on threads, checkpoints, progress or how often the run was stopped.

A checkpoint keeps draws on disk as they are made, so that a killed run can resume. It is a folder:

- ``run.json``: what the run is (settings, digest of the rows); a checkpoint of another run is
  refused. It is written last, so a folder without it holds nothing yet.
- ``labels.npy``, ``weights.npy``, …: the kept draws of all chains, (chain, draw, …), written in
  place as they come.
- ``chain-0.npz``, …: each chain's state and the sweep it belongs to, replaced in one step.

Only their owner may read the files. Randomness is keyed by sweep, so a chain needs only its state:
draws written after the last replacement are simply repeated, identically.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.event import install_recorder
from scipy.special import gammaln

from silomix.errors import CheckpointError
from silomix.families import make_family
from silomix.families.chains import CategoryChain, FeatureChain, Plan, Rows, prepare
from silomix.kernels.arrays import Array, Bytes, Floats
from silomix.kernels.layout import KeptDraws
from silomix.kernels.reproducible import chain_key
from silomix.messages.progress import Progress, Report
from silomix.model.diagnostics import diagnose
from silomix.model.draws import Draws, Schedule
from silomix.model.files import private_file, private_folder, replace_file, whole_file, writing
from silomix.model.schema import PooledModel, Prior, Shard
from silomix.silo.store import digest_arrays

# A kernel call runs about this long, so that progress is shown and Ctrl-C works.
SECONDS_PER_CALL = 0.1
# In longer tables it pays to split a sweep's rows among threads.
ROWS_TO_SHARE = 20_000

# components for each cluster, but never more than a byte can number
TIMES_AS_MANY, MOST_COMPONENTS = 3, 255
# after only 100 sweeps, some chains have not yet separated overlapping clusters
STARTING_SWEEPS = 600
# stream of random numbers of these draws, different from that of the chains they start
STARTING_STREAM = 0x6B6E77

logger = logging.getLogger("silomix")
FORMAT = 2
RUN_FILE = "run.json"


@dataclass(frozen=True)
class Job:
    """Everything, except the rows, that determines the draws of one silo.

    Attributes
    ----------
    silos, silo : the number of silos in the study, and this one's index.
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
    progress: Report | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    start: Bytes | None = None,
    since: Draws | None = None,
) -> Draws:
    """Sample one silo's posterior by the schedule.

    Parameters
    ----------
    threads : chains run side by side on them; with more threads than chains and a long table
        they share the rows. The draws do not depend on it.
    progress : called from time to time from this thread.
    checkpoint : a folder from which an interrupted run resumes, with identical draws.
    checkpoint_every : sweeps between checkpoints.
    start : (chain, row), initial labels; random by default.
    since : draws of the same job with a shorter schedule, whose chains are continued.
    """
    chains, folder = job.schedule.chains, None if checkpoint is None else Path(checkpoint)
    model = PooledModel(job.prior, make_family(shard.schema, job.prior), job.seed)
    family, (alpha, _) = model.shared_family(job.silos), job.prior.share(job.silos)
    kept, components = job.schedule.kept, job.components
    shapes: Shapes = {
        "labels": ((chains, kept, shard.rows), np.uint8),
        "weights": ((chains, kept, components), np.float32),
        "probabilities": ((chains, kept, components, int(family.parameters.sum())), np.float32),
        "log_likelihood": ((chains, kept), np.float64),
        "members": ((chains, kept, components), np.int64),
    }
    arrays: Mapping[str, Array]
    if folder is None:
        arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    else:
        schema = np.frombuffer(json.dumps(asdict(shard.schema)).encode(), np.uint8)
        identity = {"rows": digest_arrays([schema, *shard.cells]), **asdict(job)}
        arrays = open_checkpoint(folder, identity, shapes)
    plan = prepare(shard, job.components, alpha, family)
    sharing = max(1, threads // chains) if shard.rows >= ROWS_TO_SHARE else 1
    done = [since.schedule.iterations if since else 0] * chains
    kind = CategoryChain if family.is_categorical else FeatureChain
    run = _Run(job, kind, plan, arrays, sharing, folder, checkpoint_every, start, since, done)
    last_states = _run_chains(run, threads, progress)
    joined: dict[str, Any] = {n: getattr(job, n) for n in ("prior", "silos", "seed", "schedule")}
    for name in ("labels", "weights", "probabilities", "log_likelihood"):
        array = np.asarray(arrays[name])
        joined[name] = array.reshape(-1, *array.shape[2:])
        joined[name].flags.writeable = False  # they may be a checkpoint's files
    return Draws(
        shard=shard,
        **joined,
        chain=np.repeat(np.arange(chains), kept),
        last_states=last_states,
        diagnostics=diagnose(arrays["log_likelihood"], arrays["members"], arrays["weights"]),
    )


def sample_in_blocks(
    shard: Shard, job: Job, *, checkpoint: str | Path | None = None, **running: Any
) -> Iterator[Draws]:
    """Yield the draws after each block of the schedule, until the caller stops.

    A block's draws are those of `sample_shard` with the block as its schedule. Every block has its
    own checkpoint folder; an interrupted run starts again with the first and loads what is
    finished; threads, progress and start are those of `sample_shard`.
    """
    blocks, draws = job.schedule.blocks, None
    for block in blocks:
        inner = str(block.iterations) if len(blocks) > 1 else ""
        folder = None if checkpoint is None else Path(checkpoint, inner)
        settled = replace(job, schedule=block)
        draws = sample_shard(shard, settled, checkpoint=folder, since=draws, **running)
        yield draws


def starting_labels(shard: Shard, job: Job, threads: int) -> Bytes:
    """Initial labels of chains with as many components as clusters: (chain, row).

    From random labels such a chain often gets stuck where one component holds two clusters and
    another a stray row; a mixture with spare components escapes from there. So each chain first
    runs for a while with several times as many components under the same prior, few of which
    empty; then these are merged greedily, the pair first whose merger leaves log p(rows, labels)
    largest. Initial labels do not change the posterior.
    """
    sweeps, components = STARTING_SWEEPS, min(TIMES_AS_MANY * job.components, MOST_COMPONENTS)
    schedule = Schedule(sweeps, sweeps - 1, job.schedule.chains, 1, adaptive=False)
    many = replace(job, components=components, schedule=schedule, seed=job.seed ^ STARTING_STREAM)
    draws = sample_shard(shard, many, threads=threads)
    options = job.components, Rows(shard, draws.silo_family), job.prior.alpha
    return np.array([join_components(labels, *options) for labels in draws.labels], dtype=np.uint8)


def join_components(labels: Bytes, clusters: int, rows: Rows, alpha: float) -> Array:
    """Merge components, (row,), until `clusters` hold rows: (row,), numbered from 0."""
    _, merged, members = np.unique(labels, return_inverse=True, return_counts=True)
    sums = rows.sum_statistics(merged, len(members))

    def score(members: Array, sums: Array) -> Floats:
        """Contribution of components to log p(rows, labels): (...,)."""
        evidence = rows.family.log_evidence(sums).sum(axis=-1)
        return np.asarray(evidence + gammaln(alpha + members) - gammaln(alpha))

    while len(members) > clusters:
        a, b = np.array(list(combinations(range(len(members)), 2))).T
        single = score(members, sums)
        joint = score(members[a] + members[b], sums[a] + sums[b])
        best = np.argmax(joint - single[a] - single[b])
        target, gone = a[best], b[best]
        members[target] += members[gone]
        sums[target] += sums[gone]
        members, sums = np.delete(members, gone), np.delete(sums, gone, axis=0)
        merged = np.where(merged == gone, target, merged - (merged > gone))
    return merged


@dataclass(frozen=True, eq=False)
class _Run:
    """State that the chains of a run share.

    Attributes
    ----------
    kind, plan : class of the chains, and their common data.
    arrays : the kept draws by name, (chain, draw, …); memory maps where there is a checkpoint.
    threads : for the rows of each chain.
    folder, every : of the checkpoint, and the sweeps between two.
    start : (chain, row), initial labels, if given.
    since : draws that the chains continue.
    done : sweeps of each chain so far.
    stop : set when the chains must end.
    """

    job: Job
    kind: type[CategoryChain | FeatureChain]
    plan: Plan
    arrays: Mapping[str, Array]
    threads: int
    folder: Path | None
    every: int
    start: Bytes | None
    since: Draws | None
    done: list[int]
    stop: threading.Event = field(default_factory=threading.Event)


# Ensures that the compilation notice is logged once per process.
_unsaid = threading.Lock()


def _run_chains(run: _Run, threads: int, progress: Report | None) -> Bytes:
    """Run all chains on a pool and return their last states; this thread receives Ctrl-C."""
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
                        "compiling the sampler, once for these kinds of columns: half a minute"
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
    key, iterations = chain_key(job.seed, job.silo, chain), schedule.iterations
    kept = KeptDraws(**{name: np.asarray(array)[chain] for name, array in run.arrays.items()})
    saved = run.folder and load_chain(run.folder, chain)
    since = run.since and (run.since.schedule.iterations, run.since.last_states[chain])
    state = run.kind.start(run.plan, key)
    if run.start is not None:
        state[: run.start.shape[1]] = run.start[chain]
    sweep, state = saved or since or (0, state)
    sampler = run.kind(run.plan, key, state, run.threads)
    run.done[chain], step, saved_at = sweep, 1, sweep
    with ThreadPoolExecutor(run.threads) if run.threads > 1 else nullcontext() as pool:
        while sweep < iterations and not run.stop.is_set():
            until = min(sweep + step, iterations)
            if run.folder:
                until = min(until, saved_at + run.every)
            started = time.monotonic()
            sampler.advance(range(sweep + 1, until + 1), schedule, kept, pool)
            # twice as many sweeps in the next call, but not more than fit in its time
            per_sweep = (time.monotonic() - started) / (until - sweep)
            step = max(1, min(2 * step, int(SECONDS_PER_CALL / max(per_sweep, 1e-9))))
            sweep = run.done[chain] = until
            if run.folder and (until - saved_at >= run.every or until == iterations):
                save_chain(run.folder, run.arrays, chain, until, sampler.state)
                saved_at = until
    return sampler.state


# (shape, dtype) of each array by name
Shapes = dict[str, tuple[tuple[int, ...], type]]


def open_checkpoint(folder: Path, identity: Mapping[str, Any], shapes: Shapes) -> dict[str, Array]:
    """Open or create the checkpoint in `folder`; refuse a damaged or foreign one.

    Parameters
    ----------
    identity : the run's settings, as JSON; must match those on disk.
    shapes : of the kept draws.

    Returns
    -------
    Memory maps of the kept draws by name, (chain, draw, …).
    """
    expected = json.loads(json.dumps({"format": FORMAT, **identity}))
    with writing(folder, CheckpointError):
        if not (folder / RUN_FILE).exists():
            return _make(folder, expected, shapes)
    with _reading(folder, RUN_FILE) as path:
        saved = json.loads(path.read_text(encoding="utf-8"))
        differing = [key for key in expected | saved if saved.get(key) != expected.get(key)]
    if differing:
        listed = "; ".join(
            f"{key} is {saved.get(key)!r} there and {expected.get(key)!r} here" for key in differing
        )
        raise CheckpointError(
            f"the checkpoint in {folder} belongs to another run: {listed}. Use the settings and "
            "table it was made with, or give another folder"
        )
    arrays = {}
    for name in shapes:
        with _reading(folder, f"{name}.npy") as path:
            np.load(path, mmap_mode="r")  # r+ alone fills a truncated file with zeros
            arrays[name] = np.load(path, mmap_mode="r+")
    return arrays


def save_chain(
    folder: Path, arrays: Mapping[str, Array], chain: int, sweep: int, state: Bytes
) -> None:
    """Save the state of `chain` after `sweep`, once its draws are on the disk."""
    for array in arrays.values():
        if isinstance(array, np.memmap):
            array.flush()
    path = folder / f"chain-{chain}.npz"
    with writing(path, CheckpointError), whole_file(path, alone=True, private=True) as file:
        np.savez(file, sweep=np.int64(sweep), state=state)


def load_chain(folder: Path, chain: int) -> tuple[int, Bytes] | None:
    """Saved (sweep, state) of `chain`, or None."""
    name = f"chain-{chain}.npz"
    if not (folder / name).exists():
        return None
    # opened here: np.load leaves a file open if it is not an archive
    with _reading(folder, name) as path, path.open("rb") as file, np.load(file) as saved:
        return int(saved["sweep"]), saved["state"]


def _make(folder: Path, identity: Mapping[str, Any], shapes: Shapes) -> dict[str, Array]:
    private_folder(folder)
    arrays: dict[str, Array] = {}
    for name, (shape, dtype) in shapes.items():
        path = folder / f"{name}.npy"
        private_file(path)
        arrays[name] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            # take the space now: a disk that is too small refuses here, not in mid-run
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    for stale in folder.glob("chain-*.npz"):
        stale.unlink()
    content = json.dumps(identity, indent=1).encode()
    replace_file(folder / RUN_FILE, content, alone=True, private=True)
    return arrays


@contextmanager
def _reading(folder: Path, name: str) -> Iterator[Path]:
    """Turn any error of reading a checkpoint's file into one that says what to do."""
    try:
        yield folder / name
    except Exception:
        raise CheckpointError(
            f"the checkpoint file {folder / name} is missing, damaged or truncated; delete the "
            f"folder {folder} to start the run again from the beginning"
        ) from None
