"""How fast one Gibbs sweep is, against the same sweep in log space. `make bench`.

One process, one thread, variants interleaved, medians of repeats. Quality stands next to time: the
fast kernel's labels are compared with the definition's on the same table before it is timed.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numba import njit

from silomix.families import make_family
from silomix.families.chains import CategoryChain, prepare
from silomix.kernels.layout import KeptDraws
from silomix.model.draws import Schedule
from silomix.model.schema import Prior, Schema, Shard, Variable
from silomix.silo.sampler import Job, sample_shard

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from cases import sweep_twin as reference

RESULTS = Path(__file__).parent / "results" / "sweep.json"
REPEATS = 9
PAPER_ITERATIONS = 50_000
ALPHA, BETA = Prior().share(4)


@dataclass(frozen=True)
class Workload:
    name: str
    rows: int
    sizes: tuple[int, ...]
    components: int
    clusters: int
    bar: float | None
    fast_sweeps: int
    slow_sweeps: int


PAPER_VARIABLES = (2,) * 4 + (3,) * 6
WORKLOADS = [
    Workload("one silo of the paper", 1000, PAPER_VARIABLES, 15, 5, None, 4000, 200),
    Workload("the paper's pooled table", 4000, PAPER_VARIABLES, 15, 5, 20.0, 1000, 50),
    Workload("health records", 10_000, (2,) * 94, 50, 20, 60.0, 60, 2),
]


def make_table(work: Workload, seed: int) -> np.ndarray:
    """Latent-class rows; binary variables of the wide table are rare conditions, as in EHR."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, work.clusters, work.rows)
    columns = []
    for size in work.sizes:
        if len(work.sizes) > 50:
            present = rng.beta(0.4, 6.0, work.clusters)
            probabilities = np.stack([1 - present, present], axis=1)
        else:
            probabilities = rng.dirichlet(np.full(size, 0.3), work.clusters)
        bounds = probabilities[labels].cumsum(axis=1)[:, :-1]
        columns.append((rng.random((work.rows, 1)) > bounds).sum(axis=1))
    return np.stack(columns, axis=1).astype(np.uint8)


@njit(error_model="numpy")
def log_space_sweeps(codes, sizes, offsets, labels, components, alpha, beta, sweeps, seed):
    """The sweep as most people would write it: logarithms, logsumexp, NumPy's generator."""
    np.random.seed(seed)
    rows, variables = codes.shape
    levels = sizes.sum()
    log_table = np.empty((levels, components))
    log_weights = np.empty(components)
    logs = np.empty(components)
    for _ in range(sweeps):
        counts = np.zeros((levels, components))
        members = np.zeros(components)
        for i in range(rows):
            members[labels[i]] += 1
            for q in range(variables):
                counts[offsets[q] + codes[i, q], labels[i]] += 1
        total = 0.0
        for c in range(components):
            log_weights[c] = np.random.gamma(members[c] + alpha)
            total += log_weights[c]
        for c in range(components):
            log_weights[c] = math.log(log_weights[c] / total + 1e-300)
        for c in range(components):
            for q in range(variables):
                total = 0.0
                for j in range(offsets[q], offsets[q + 1]):
                    log_table[j, c] = np.random.gamma(counts[j, c] + beta)
                    total += log_table[j, c]
                for j in range(offsets[q], offsets[q + 1]):
                    log_table[j, c] = math.log(log_table[j, c] / total + 1e-300)
        for i in range(rows):
            largest = -1e300
            for c in range(components):
                log = log_weights[c]
                for q in range(variables):
                    log += log_table[offsets[q] + codes[i, q], c]
                logs[c] = log
                largest = max(largest, log)
            total = 0.0
            for c in range(components):
                logs[c] = math.exp(logs[c] - largest)
                total += logs[c]
            threshold = np.random.random() * total
            reached = 0.0
            label = components - 1
            for c in range(components):
                reached += logs[c]
                if threshold < reached:
                    label = c
                    break
            labels[i] = label


def no_kept(rows: int, components: int, levels: int) -> KeptDraws:
    return KeptDraws(
        np.zeros((0, rows), np.uint8),
        np.zeros((0, components), np.float32),
        np.zeros((0, components, levels), np.float32),
        np.zeros(0),
        np.zeros((0, components), np.int64),
    )


class Fast:
    """The package's sampler on one table, one thread."""

    def __init__(self, codes: np.ndarray, work: Workload) -> None:
        names = [Variable(f"x{q}", tuple(map(str, range(k)))) for q, k in enumerate(work.sizes)]
        shard = Shard(Schema(tuple(names)), codes)
        self.key, self.sweep = reference.chain_key(1, 0, 0), 0
        family = make_family(shard.schema, Prior(ALPHA, BETA))
        plan = prepare(shard, work.components, ALPHA, family)
        labels = CategoryChain.start(plan, self.key)
        self.chain = CategoryChain(plan, self.key, labels, 1)
        self.kept = no_kept(work.rows, work.components, sum(work.sizes))

    def run(self, sweeps: int) -> None:
        first, self.sweep = self.sweep + 1, self.sweep + sweeps
        todo, never = range(first, self.sweep + 1), Schedule(burn_in=10**12, thin=1)
        self.chain.advance(todo, never, self.kept, None)


def same_chain(codes: np.ndarray, work: Workload) -> bool:
    """Whether the fast kernel's first sweeps on the first rows are the definition's."""
    some, sizes = codes[:300], np.array(work.sizes)
    fast = Fast(some, Workload(work.name, len(some), *list(work.__dict__.values())[2:]))
    labels = reference.start(fast.key, len(some), work.components)
    for sweep in range(1, 4):
        fast.run(1)
        labels, *_ = reference.sweep(
            fast.key, sweep, some, sizes, labels, work.components, ALPHA, BETA
        )
    return bool((fast.chain.labels == labels).all())


def timed(call, sweeps: int) -> float:
    """Seconds of CPU a sweep."""
    began = time.process_time()
    call(sweeps)
    return (time.process_time() - began) / sweeps


def measure(work: Workload) -> dict[str, object]:
    codes = make_table(work, seed=0)
    sizes = np.array(work.sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    fast, labels = (
        Fast(codes, work),
        np.random.default_rng(0).integers(0, work.components, work.rows),
    )

    def slow(sweeps: int) -> None:
        log_space_sweeps(codes, sizes, offsets, labels, work.components, ALPHA, BETA, sweeps, 1)

    slow(work.slow_sweeps)
    fast.run(400)  # both have found the clusters: an early sweep is not a typical one
    pairs = [
        (timed(slow, work.slow_sweeps), timed(fast.run, work.fast_sweeps)) for _ in range(REPEATS)
    ]
    ratios = [one / two for one, two in pairs]
    slow_seconds, fast_seconds = np.median(pairs, axis=0)
    return {
        "workload": work.name,
        "rows": work.rows,
        "variables": len(work.sizes),
        "components": work.components,
        "same_chain_as_definition": same_chain(codes, work),
        "log_space_ns_per_row": round(slow_seconds / work.rows * 1e9, 1),
        "fast_ns_per_row": round(fast_seconds / work.rows * 1e9, 2),
        "ratio": round(float(np.median(ratios)), 1),
        "ratio_lowest": round(min(ratios), 1),
        "bar": work.bar,
        "seconds_for_50000_sweeps": round(fast_seconds * PAPER_ITERATIONS, 2),
    }


def measure_threads() -> dict[str, object]:
    """Two chains on one thread and on two: the same draws, and how much sooner (wall clock)."""
    work = WORKLOADS[1]
    names = [Variable(f"x{q}", tuple(map(str, range(k)))) for q, k in enumerate(work.sizes)]
    shard = Shard(Schema(tuple(names)), make_table(work, seed=0))
    job = Job(work.components, Prior(), Schedule(30_000, 29_000, 2, 10), silos=4, seed=1)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    results = {}
    for _ in range(5):
        for threads, taken in seconds.items():
            began = time.perf_counter()
            results[threads] = sample_shard(shard, job, threads=threads)
            taken.append(time.perf_counter() - began)
    return {
        "workload": f"{work.name}, 2 chains of 30,000 sweeps",
        "same_draws": bool(
            (results[1].labels == results[2].labels).all()
            and (results[1].probabilities == results[2].probabilities).all()
        ),
        "seconds_one_thread": round(float(np.median(seconds[1])), 3),
        "seconds_two_threads": round(float(np.median(seconds[2])), 3),
        "speed_up": round(float(np.median(np.array(seconds[1]) / np.array(seconds[2]))), 2),
        "bar": 1.7,
    }


def commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def main() -> None:
    rows = []
    for work in WORKLOADS:
        rows.append(measure(work))
        row = rows[-1]
        print(
            f"{row['workload']:>25}: {row['fast_ns_per_row']:6.2f} ns a row and sweep "
            f"(log space {row['log_space_ns_per_row']:7.1f}), {row['ratio']:5.1f} x "
            f"(lowest {row['ratio_lowest']}), bar {row['bar']}; 50,000 sweeps in "
            f"{row['seconds_for_50000_sweeps']} s; same chain: {row['same_chain_as_definition']}",
            flush=True,
        )
    threads = measure_threads()
    print(
        f"two threads: {threads['speed_up']} x the speed of one (bar {threads['bar']}, on an idle "
        f"machine), same draws: {threads['same_draws']}"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    record = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "repeats": REPEATS,
        "workloads": rows,
        "threads": threads,
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {RESULTS}")
    missed = [row["workload"] for row in rows if row["bar"] and row["ratio"] < row["bar"]]
    if threads["speed_up"] < threads["bar"]:
        missed.append("two threads")
    same = threads["same_draws"] and all(row["same_chain_as_definition"] for row in rows)
    if missed or not same:
        raise SystemExit(f"a bar was missed: {missed or 'the chain differs'}")


if __name__ == "__main__":
    main()
