"""A cohort the size of the paper's application: what each method finds of the planted clusters.

    python reproduction/cohort.py                        # runs what is missing, appends
    python reproduction/cohort.py --methods default,dask --rows 30000 --iterations 2000
    python reproduction/cohort.py --methods short --rows 1000000 --iterations 1000
    python reproduction/cohort.py --methods default --seed 2    # the same people, another chain

The people of `silomix.simulate_cohort`, split at random into 30 shards, 50 components. The paper
gives neither the components nor the iterations of its own run. Each method runs in a process of its
own, so its largest memory is its own; two cores. A run that is stopped samples on from the
checkpoints in --folder, where the cohort and the posteriors are kept too.
"""

from __future__ import annotations

import hashlib
import json
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import pandas as pd
from judging import quietly
from running import arguments, chosen_words, done_cases, run_cases

import silomix
from silomix import rivals
from silomix.messages.progress import StageClock, tell_seconds
from silomix.model.metrics import adjusted_rand_index, variation_of_information
from silomix.report.results_folder import write_posterior
from silomix.simulate.cohort import (
    CONDITIONS,
    PUBLISHED_ROWS,
    best_labels,
    truth_files,
    write_cohort,
)
from silomix.study import Vcmc
from silomix.study.roster import random_shards

SEED = 1
SHARDS = 30
COMPONENTS = 50
ITERATIONS = 50_000
FEDMERDEL_COMPONENTS = 50
STAGES = ("compiling", "sampling", "matching", "aggregating", "polishing", "assigning")
KEYS = ["rows", "iterations", "method", "seed"]
COLUMNS = [
    *KEYS, "planted", "clusters", "ari", "vi", "best_ari", "owned", "fragments", "minutes",
    "cpu_minutes", *[f"minutes_{stage}" for stage in STAGES], "memory_gb", "bytes", "digest",
    "verdict",
]  # fmt: skip
CLUSTER_KEYS = [*KEYS, "cluster"]
CLUSTER_COLUMNS = [*CLUSTER_KEYS, "people", "found_as", "people_found", "recall", "purity"]


class Result(NamedTuple):
    """What a method found, and what that took."""

    labels: np.ndarray
    clusters: int
    minutes: dict[str, float]
    bytes: int
    verdict: str
    digest: str


def ours(case, **settings):
    """Run `silomix.fit` on the shards, and keep its results."""
    clock = StageClock()
    found = silomix.fit(
        case.path,
        shards=SHARDS,
        components=COMPONENTS,
        iterations=case.iterations,
        variables=list(CONDITIONS),
        seed=case.seed,
        progress=clock,
        **settings,
    )
    seconds = clock.stop()
    print(*tell_seconds(seconds), flush=True)
    write_posterior(case.folder / case.method, found)
    sent = max(sum(kinds.values()) for kinds in found.provenance.sent.values())
    minutes = {stage: spent / 60 for stage, spent in seconds.items()}
    return Result(
        found.labels, found.n_clusters, minutes, sent, found.diagnostics.verdict, digest_of(found)
    )


def digest_of(found):
    """Return a digest of the draws: two runs with the same one gave the same bytes."""
    arrays = (found.weights, found.probabilities, found.labels)
    parts = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.sha256(parts).hexdigest()[:16]


def default(case, **settings):
    """Run with the defaults, or with others that change nothing of what the silos sample."""
    return ours(case, checkpoint=case.folder / f"checkpoints-{case.seed}", **settings)


def rival(function, case, **settings):
    """Run a rival on the same shards."""
    table = pd.read_parquet(case.path, columns=list(CONDITIONS))
    shards = random_shards(len(table), SHARDS, case.seed)
    table.insert(0, "shard", np.array(shards.names)[shards.places])
    began = time.monotonic()
    found = function(table, silo="shard", seed=case.seed, **settings)
    minutes = {"sampling": (time.monotonic() - began) / 60}
    sent = max(sum(kinds.values()) for kinds in found.bytes_sent.values())
    return Result(found.labels, found.n_clusters, minutes, sent, "; ".join(found.notes), "")


def on_dask(case):
    """Run the defaults on a cluster of two processes of this machine, nothing sampled before."""
    from distributed import Client

    cluster = Client(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, joblib.parallel_config(backend="dask"):
        return ours(case, transport="joblib")


def pooled(case):
    return rival(
        rivals.pooled_mcmc, case, components=COMPONENTS, iterations=case.iterations, chains=2
    )


def fedmerdel(case):
    return rival(rivals.fedmerdel, case, search=rivals.Search(components=FEDMERDEL_COMPONENTS))


METHODS = {
    "default": default,
    "ball": partial(default, matching="ball", absorb=0, aggregation="uniform", polish=0),
    "exact": partial(ours, strategy="exact"),
    "paper": partial(
        ours,
        preset="paper",
        kept=500,
        threshold=2_000,
        subsample=2_000,
        aggregation=Vcmc(draws=8),
        solver=silomix.Psgd(starts=1, steps=50),
    ),
    "fedmerdel": fedmerdel,
    "pooled": pooled,
    "dask": on_dask,
    "short": partial(ours, polish=3, solver=silomix.Lbfgs(starts=1, steps=20)),
}
"""`ball` is the paper's matching on the local draws of the defaults, and no more. `paper` is the
preset cut short: PAM on 2,000 of a shard's people, 500 draws, weights learned on 8 of them in 50
steps, each of which looks at all people. `dask` is the defaults on a cluster of local processes,
which must give the same digest. `short` is the defaults cut short, to see what memory more people
need."""

FULL = ("default", "ball", "exact", "paper", "fedmerdel", "pooled")
"""What is run when no method is named."""


class Case(NamedTuple):
    """Which run, and where its files are. The seed is the fit's; the cohort has its own."""

    folder: Path
    rows: int
    iterations: int
    method: str
    seed: int

    @property
    def path(self):
        return self.folder / "cohort.parquet"


def run_method(case):
    """Run one method: its line, and one for each planted cluster."""
    began, cpu = time.monotonic(), time.process_time()
    found = quietly(partial(METHODS[case.method], case))
    minutes_all = (time.monotonic() - began) / 60
    cpu_minutes = (time.process_time() - cpu) / 60
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kilobytes on Linux
    truth, best = read_truth(case)
    key = dict(zip(KEYS, case[1:], strict=True))
    owners = owners_of(truth, found.labels)
    line = key | {
        "planted": len(np.unique(truth)),
        "clusters": found.clusters,
        "ari": round(adjusted_rand_index(truth, found.labels), 4),
        "vi": round(variation_of_information(truth, found.labels), 4),
        "best_ari": round(adjusted_rand_index(truth, best), 4),
        "owned": len(set(owners.values())),
        "fragments": len(owners) - len(set(owners.values())),
        "minutes": round(minutes_all, 2),
        "cpu_minutes": round(cpu_minutes, 2),
        "memory_gb": round(memory, 2),
        "bytes": found.bytes,
        "digest": found.digest,
        "verdict": found.verdict,
    }
    line |= {f"minutes_{stage}": round(found.minutes.get(stage, 0.0), 2) for stage in STAGES}
    return line, [key | cluster for cluster in clusters_found(truth, found.labels)]


def read_truth(case):
    """Return the planted labels, and the best possible ones: (row,), (row,)."""
    truth = pd.read_parquet(truth_files(case.path)[0])["cluster"].to_numpy()
    kept = case.folder / "best.npy"
    if not kept.exists():
        _, facts = silomix.simulate_cohort(rows=1000, seed=SEED)
        np.save(kept, best_labels(case.path, facts))
    return truth, np.load(kept)


def owners_of(truth, labels):
    """Return for each found cluster the planted one that most of its rows are from.

    Two found clusters with one owner are fragments of it.
    """
    return {
        int(found): int(np.bincount(truth[labels == found]).argmax()) for found in np.unique(labels)
    }


def clusters_found(truth, labels):
    """Yield for each planted cluster the largest found one that it owns, if there is one."""
    owners = owners_of(truth, labels)
    for planted in np.unique(truth):
        own = [found for found, owner in owners.items() if owner == planted]
        line = {"cluster": int(planted) + 1, "people": int((truth == planted).sum())}
        if own:
            largest = max(own, key=lambda found: (labels == found).sum())
            both = int(((truth == planted) & (labels == largest)).sum())
            size = int((labels == largest).sum())
            line |= {
                "found_as": largest,
                "people_found": size,
                "recall": round(both / line["people"], 4),
                "purity": round(both / size, 4),
            }
        yield line


def in_own_process(case):
    """Run a method in a new process, so that its largest memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(run_method, case).result()


def main(words=None):
    options = {
        "methods": "", "rows": PUBLISHED_ROWS, "iterations": ITERATIONS, "folder": "cohort-output",
        "seed": SEED,
    }  # fmt: skip
    chosen = arguments(__doc__, datasets=1, **options).parse_args(words)
    folder = Path(chosen.folder) / f"{chosen.rows}-{chosen.iterations}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "cohort.parquet").exists():
        write_cohort(folder / "cohort.parquet", rows=chosen.rows, seed=SEED)
    path, by_cluster = chosen.results / "cohort.csv", chosen.results / "cohort_clusters.csv"
    done = done_cases(path, COLUMNS, KEYS)
    for method in chosen_words(chosen.methods or ",".join(FULL), METHODS):
        case = Case(folder, chosen.rows, chosen.iterations, method, chosen.seed)
        if case[1:] in done:
            continue
        print(f"{method}:", flush=True)
        line, clusters = in_own_process(case)
        run_cases(by_cluster, CLUSTER_COLUMNS, lambda lines=clusters: lines, [()], jobs=1)
        run_cases(path, COLUMNS, lambda line=line: [line], [()], jobs=1)
        print(json.dumps(line, indent=1), flush=True)


if __name__ == "__main__":
    main()
