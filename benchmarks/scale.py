"""What each stage of a fit costs in time and memory as one size grows. `make bench-scale`.

Every stage at every size runs in a process of its own, one after the other, on one thread. Time is
CPU time of warm kernels, the median of up to five calls. Memory is the most that was resident
during the calls, above what the process had once its kernels were loaded: the inputs of the stage
count, how they were made does not. A number for the quality of the result stands next to both.

A line of the results is written as soon as it is measured and not measured again: delete the file
to start anew. Slopes are those of log time and log memory on log size over the three largest sizes,
where constants no longer matter; whether they keep to their bars is printed, not enforced.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # Arrow's too
os.environ["MKL_NUM_THREADS"] = "1"
sys.path.append(str(Path(__file__).parents[1] / "reproduction"))

import numpy as np
from running import chosen_words, done_cases, read_lines, run_cases
from scale_pages import write_pages
from scale_stages import STAGES, Size, write_rows, write_tables

from silomix.errors import DataWarning, SamplingWarning

RESULTS = Path(__file__).parent / "results"
PAGES = Path(__file__).parents[1] / "reproduction"
FACTORS = {
    "rows": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    "variables": (12, 24, 47, 94, 188),
    "components": (5, 10, 20, 50, 100),
    "silos": (1, 3, 10, 30, 100),
    "draws": (0.5, 1, 2, 4, 8),
}
"""Values of each size; of `draws`, multiples of what the stage has at the base point."""
MORE_SILOS = (300,)
"""For matching alone: the local clusters of so many silos are more than it has a confidence for."""
SIZES = [field.name for field in fields(Size)]
KEYS = ["stage", *SIZES]
COLUMNS = [
    "stage", "factor", "value", *SIZES, "distinct", "local_clusters",
    "cpu_seconds", "calls", "peak_mb", "quality",
]  # fmt: skip
WARM_ROWS = 400
MOST_CALLS = 5
ENOUGH = 5.0
"""CPU seconds of calls after which there is no other."""


def base_of(stage):
    return replace(Size(), draws=STAGES[stage].draws)


def cases_of(stage, factors, largest):
    """Return the base point of a stage, and the points that differ from it in a factor."""
    base = base_of(stage)
    points = [base]
    for factor in factors:
        if factor in STAGES[stage].factors:
            more = MORE_SILOS if (stage, factor) == ("match", "silos") else ()
            times = base.draws if factor == "draws" else 1
            values = [int(times * value) for value in (*FACTORS[factor], *more)]
            points += [replace(base, **{factor: value}) for value in values]
    wanted = [
        point
        for point in dict.fromkeys(points)
        if point.rows <= largest and point.silos >= STAGES[stage].least_silos
    ]
    return [(stage, *astuple(point)) for point in wanted]


def factors_of(stage, size):
    """Return the factors that a point belongs to: one, or at the base point all of the stage."""
    base = base_of(stage)
    changed = [name for name in SIZES if getattr(size, name) != getattr(base, name)]
    return changed or list(STAGES[stage].factors)


def measure_apart(folder, stage, *sizes):
    """Measure a stage in a process of its own: lines of the results, one for each factor."""
    size = Size(*sizes)
    if stage == "load":
        apart(write_tables, folder, [small(size), size])
    found = apart(measure, folder, stage, size)
    shown = ", ".join(f"{key} {value}" for key, value in vars(size).items())
    print(f"{stage}: {shown}: {found['cpu_seconds']:.3g} s, {found['peak_mb']} MB", flush=True)
    return [
        {"stage": stage, "factor": factor, "value": getattr(size, factor), **vars(size), **found}
        for factor in factors_of(stage, size)
    ]


def apart(function, *values):
    """Call a function in a new process and return what it returns."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *values).result()


def small(size):
    """Return a size at which the same kernels are loaded, in no time."""
    return replace(size, rows=min(size.rows, WARM_ROWS), silos=min(size.silos, 2), draws=8)


def measure(folder, stage, size):
    """Return CPU seconds for one unit, peak memory and quality of a stage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        warnings.simplefilter("ignore", DataWarning)  # few people, so conditions that nobody has
        prepare = STAGES[stage].prepare
        prepare(folder, small(size)).call()
        start = resident()
        work = prepare(folder, size)
        forget_peak()
        result, seconds = timed(work.call)
    return {
        "distinct": work.distinct,
        "local_clusters": work.local_clusters,
        "cpu_seconds": float(f"{np.median(seconds) / work.units:.4g}"),
        "calls": len(seconds),
        "peak_mb": round((peak() - start) / 1e6, 1),
        "quality": round(float(work.quality(result)), 4),
    }


def timed(call):
    """Call once if that takes long, else a few times: the result, and CPU seconds of each."""
    seconds = []
    while not seconds or (len(seconds) < MOST_CALLS and sum(seconds) < ENOUGH):
        began = time.process_time()
        result = call()
        seconds.append(time.process_time() - began)
    return result, seconds


def status(word):
    """Return a figure of the kernel on this process, in bytes; None where there is no /proc."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(word)]
    return found[0] if found else None


def peak():
    """Return the most bytes that were resident.

    `ru_maxrss` is a second choice: on Linux a new process begins with that of its parent.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    return status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident():
    return status("VmRSS") or peak()


def forget_peak():
    """Let the peak begin again from what is resident, where the kernel can do that."""
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text("5")


def run(path, stages, factors, largest):
    """Measure what has no line yet."""
    done = done_cases(path, COLUMNS, KEYS)
    cases = [
        case for stage in stages for case in cases_of(stage, factors, largest) if case not in done
    ]
    if not cases:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apart(write_rows, folder, max(case[KEYS.index("rows")] for case in cases))
        run_cases(path, COLUMNS, partial(measure_apart, folder), cases, jobs=1)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factors", default="", help=f"some of {','.join(FACTORS)}")
    parser.add_argument("--stages", default="", help=f"some of {','.join(STAGES)}")
    parser.add_argument("--largest", type=int, default=FACTORS["rows"][-1], help="most rows")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--pages", type=Path, default=PAGES)
    chosen = parser.parse_args(words)
    stages = chosen_words(chosen.stages, STAGES)
    path = chosen.results / "scale.csv"
    run(path, stages, chosen_words(chosen.factors, FACTORS), chosen.largest)
    print(write_pages(read_lines(path, COLUMNS), chosen.pages))


if __name__ == "__main__":
    main()
