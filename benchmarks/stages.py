"""What a whole fit costs, stage by stage: sampling against everything after it.

The paper's size, four silos of 1000 rows at 50,000 iterations, and 100 silos of 500 rows at the
default schedule. One process, one thread, CPU time. Sampling is timed by itself, silo by silo, with
the same seeds and no early stop; what the fit takes beyond that is partition, relabelling,
matching, aggregation, polish and the assignment of rows. Beside it the default fit, whose silos
stop early.
Quality stands next to time: clusters found, and ARI.

At the paper's size the rest must take less than the sampling; with 100 silos it is shown only.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path

import silomix
from silomix.errors import SamplingWarning
from silomix.model.metrics import adjusted_rand_index

RESULTS = Path(__file__).parent / "results" / "stages.json"
PAPER_SIZE = "four silos of 1000, 50,000 iterations"
CASES = {
    PAPER_SIZE: {"iterations": 50_000, "seeds": [1, 2, 3]},
    "100 silos of 500, 20,000 iterations": {
        "iterations": 20_000,
        "seeds": [1],
        "rows": 50_000,
        "silos": 100,
    },
}


def cpu(call, *values, **settings):
    """Return what a call returns, and its CPU seconds."""
    began = time.process_time()
    found = call(*values, **settings)
    return found, time.process_time() - began


def time_one(case, seed):
    """Time one data set: sampling alone, and the whole fit."""
    size = {name: case[name] for name in ("rows", "silos") if name in case}
    table, truth = silomix.simulate("non-nested", separability="poor", seed=seed, **size)
    settings = {"iterations": case["iterations"], "seed": seed, "threads": 1, "progress": False}
    names = truth.silos
    sampling = 0.0
    for place, name in enumerate(names):
        rows = table[table["silo"] == name].drop(columns="silo")
        sampling += cpu(silomix.sample, rows, silos=len(names), silo=place, **settings)[1]
    found, whole = cpu(silomix.fit, table, silo="silo", adaptive=False, **settings)
    _, default = cpu(silomix.fit, table, silo="silo", **settings)
    return {
        "seed": seed,
        "sampling": round(sampling, 2),
        "after sampling": round(whole - sampling, 2),
        "after / sampling": round((whole - sampling) / sampling, 3),
        "whole, stopping early": round(default, 2),
        "polish rounds": found.diagnostics.rounds,
        "planted": len(truth.weights),
        "clusters": found.n_clusters,
        "ARI": round(adjusted_rand_index(truth.labels, found.labels), 4),
    }


def main():
    warnings.simplefilter("ignore", SamplingWarning)
    table, _ = silomix.simulate("nested", rows=400, silos=2, seed=0)
    silomix.fit(table, silo="silo", iterations=400, threads=1, progress=False)  # compile first
    lines = {}
    for name, case in CASES.items():
        print(f"\n{name}: CPU seconds, one thread")
        lines[name] = [time_one(case, seed) for seed in case["seeds"]]
        for line in lines[name]:
            print("  " + ", ".join(f"{key} {value}" for key, value in line.items()), flush=True)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    record = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "unit": "CPU seconds, one thread",
        "cases": lines,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    worst = max(line["after / sampling"] for line in lines[PAPER_SIZE])
    print(f"\neverything after sampling, over sampling, at the paper's size: at most {worst}")
    raise SystemExit(worst >= 1)


if __name__ == "__main__":
    main()
