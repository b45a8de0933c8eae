"""The paper's six cells: our defaults, the paper's preset and the pooled sampler, side by side.

    python reproduction/cells.py --datasets 40          # runs what is missing, appends, prints

Each data set is one line per method in results/cells.csv, written as it is done: stop it at any
time and start it again. Same data set, same numbers. Coverage counts a true cluster that no found
cluster was paired with as missed.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pandas as pd

import silomix
from silomix.data import load
from silomix.errors import SamplingWarning
from silomix.metrics import (
    adjusted_rand_index,
    highest_density_interval,
    pair_clusters,
    variation_of_information,
)

RESULTS = Path(os.environ.get("SILOMIX_CELLS", Path(__file__).parent / "results" / "cells.csv"))
CELLS = [
    (design, separability)
    for design in ("homogeneous", "nested", "non-nested")
    for separability in ("easy", "poor")
]
METHODS = ("default", "paper", "pooled")
BANDS = [(1e-4, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 0.9999)]
FIRST_SEED = 1000

COLUMNS = [
    "design", "separability", "seed", "method", "planted", "clusters", "ari", "vi", "best_ari",
    "pi_covered", "pi_total", *[f"p{b}_{what}" for b in range(4) for what in ("covered", "total")],
    "seconds", "rounds", "still_moving", "trusted",
]  # fmt: skip


def best_possible(table, truth):
    """ARI of the labels that the true parameters, with the true silo weights, would give."""
    shard = load(table.drop(columns="silo"))
    with np.errstate(divide="ignore"):
        logs = np.log(truth.probabilities)
    total = np.zeros((shard.rows, len(truth.weights)))
    for q, first in enumerate(shard.schema.offsets[:-1]):
        total += logs[:, first + shard.codes[:, q]].T
    places = table["silo"].map({name: place for place, name in enumerate(truth.silos)})
    with np.errstate(divide="ignore"):
        total += np.log(truth.weights_by_silo)[places.to_numpy()]
    return adjusted_rand_index(truth.labels, total.argmax(axis=1))


def estimate(method, table, seed):
    """Return labels, weights (draw, cluster), probabilities, and what the run says of itself."""
    if method == "pooled":
        draws = silomix.sample(table.drop(columns="silo"), seed=seed, threads=1, progress=False)
        local = silomix.local_posterior(draws)
        notes = {"rounds": 0, "still_moving": False, "trusted": draws.diagnostics.trusted}
        return local.partition.labels, local.weights, local.probabilities, notes
    preset = "paper" if method == "paper" else None
    found = silomix.fit(table, silo="silo", preset=preset, seed=seed, threads=1, progress=False)
    diagnostics = found.diagnostics
    notes = {
        "rounds": diagnostics.rounds,
        "still_moving": diagnostics.still_moving,
        "trusted": diagnostics.trusted,
    }
    return found.labels, found.weights, found.probabilities, notes


def covered(truth_values, draws, pairs):
    """Whether each true value is inside the 95 % highest-density interval of its pair."""
    lower, upper = highest_density_interval(draws, 0.95)
    inside = np.zeros(truth_values.shape, dtype=bool)
    for cluster, found in enumerate(pairs):
        if found >= 0:
            inside[cluster] = (lower[found] <= truth_values[cluster]) & (
                truth_values[cluster] <= upper[found]
            )
    return inside


def run_one(design, separability, seed, method):
    """Run one method on one data set: a line of the results."""
    table, truth = silomix.simulate(design, separability=separability, seed=seed)
    told = {}

    def call():
        *found, notes = estimate(method, table, seed)
        told.update(notes)
        return found

    line = judge(call, table, truth)
    case = {"design": design, "separability": separability, "seed": seed, "method": method}
    return case | line | told


def judge(call, table, truth):
    """Time a call that returns labels, weights and probabilities, and hold them to the truth."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        labels, weights, probabilities = call()
    seconds = time.process_time() - began
    pairs = pair_clusters(
        truth.labels, labels, true_clusters=len(truth.weights), clusters=weights.shape[1]
    )
    in_pi = covered(truth.weights, weights, pairs)
    in_p = covered(truth.probabilities, probabilities, pairs)
    line = {
        "planted": len(truth.weights),
        "clusters": weights.shape[1],
        "ari": round(adjusted_rand_index(truth.labels, labels), 5),
        "vi": round(variation_of_information(truth.labels, labels), 5),
        "best_ari": round(best_possible(table, truth), 5),
        "pi_covered": int(in_pi.sum()),
        "pi_total": in_pi.size,
        "seconds": round(seconds, 2),
    }
    for band, (low, high) in enumerate(BANDS):
        inside = (truth.probabilities >= low) & (truth.probabilities < high)
        line[f"p{band}_covered"] = int(in_p[inside].sum())
        line[f"p{band}_total"] = int(inside.sum())
    return line


def done_lines():
    if not RESULTS.exists():
        return pd.DataFrame(columns=COLUMNS)
    return pd.read_csv(RESULTS)


def run_missing(datasets, methods, cells, jobs):
    """Run every data set that has no line yet, `jobs` at a time, data set by data set."""
    done = set(done_lines()[["design", "separability", "seed", "method"]].itertuples(index=False))
    todo = [
        (design, separability, FIRST_SEED + number, method)
        for number in range(datasets)
        for design, separability in CELLS
        if not cells or f"{design} {separability}" in cells
        for method in methods
        if (design, separability, FIRST_SEED + number, method) not in {tuple(d) for d in done}
    ]
    if not todo:
        return
    RESULTS.parent.mkdir(exist_ok=True)
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file, ProcessPoolExecutor(jobs) as pool:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        running = [pool.submit(run_one, *case) for case in todo]
        for number, finished in enumerate(as_completed(running), 1):
            writer.writerow(finished.result())
            file.flush()
            if number % 20 == 0 or number == len(todo):
                print(f"{number} of {len(todo)} runs done", flush=True)


def share(lines, what):
    """Coverage over data sets, and its standard error clustered by data set."""
    inside, total = lines[f"{what}_covered"].to_numpy(), lines[f"{what}_total"].to_numpy()
    if total.sum() == 0:
        return np.nan, np.nan
    rate = inside.sum() / total.sum()
    return rate, np.sqrt(((inside - rate * total) ** 2).sum()) / total.sum()


def summarise(lines):
    """One line per cell and method, with standard errors."""
    rows = []
    for (design, separability, method), part in lines.groupby(
        ["design", "separability", "method"], sort=False
    ):
        gap = part["best_ari"] - part["ari"]
        row = {
            "cell": f"{design} {separability}",
            "method": method,
            "data sets": len(part),
            "right K": (part["clusters"] == part["planted"]).mean(),
            "ARI": part["ari"].mean(),
            "ARI se": part["ari"].std() / np.sqrt(len(part)),
            "below best": gap.mean(),
            "gap se": gap.std() / np.sqrt(len(part)),
            "VI": part["vi"].mean(),
            "CPU s": part["seconds"].mean(),
        }
        for what in ("pi", "p0", "p1", "p2", "p3"):
            row[what], row[f"{what} se"] = share(part, what)
        rows.append(row)
    return pd.DataFrame(rows)


def against_pooled(lines):
    """Coverage of the defaults less the pooled sampler's on the same data sets, cell by cell.

    Standard errors are of the paired difference, clustered by data set.
    """
    keys = ["design", "separability", "seed"]
    ours, pooled = (
        lines[lines["method"] == method].set_index(keys).sort_index()
        for method in ("default", "pooled")
    )
    both = ours.index.intersection(pooled.index)
    rows = []
    for cell, part in ours.loc[both].groupby(["design", "separability"], sort=False):
        other = pooled.loc[part.index]
        row = {"cell": " ".join(cell), "data sets": len(part)}
        for what in ("pi", "p0", "p1", "p2", "p3"):
            total = part[f"{what}_total"]
            more = part[f"{what}_covered"] - other[f"{what}_covered"]
            row[what] = more.sum() / total.sum()
            row[f"{what} se"] = np.sqrt(((more - row[what] * total) ** 2).sum()) / total.sum()
        rows.append(row)
    return pd.DataFrame(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=40)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--cells", default="", help='for example "nested poor,non-nested easy"')
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    cells = [cell for cell in chosen.cells.split(",") if cell]
    run_missing(chosen.datasets, chosen.methods.split(","), cells, chosen.jobs)
    lines = done_lines()
    tables = {
        "cells_summary.csv": summarise(lines),
        "cells_against_pooled.csv": against_pooled(lines),
    }
    for name, table in tables.items():
        with pd.option_context("display.width", 250, "display.max_columns", 30):
            print(f"\n{name}\n{table.round(3).to_string(index=False)}")
        table.round(4).to_csv(RESULTS.with_name(name), index=False)


if __name__ == "__main__":
    main()
