"""Time of a default fit of numbers, beside scikit-learn's variational mixture on the pooled rows.

    python benchmarks/number_fits.py --datasets 3
    python benchmarks/number_fits.py --large

Four silos of 1,000 rows with ten normal variables (`silomix.simulate`). CPU seconds with one thread
each, in the same process, and quality beside them: the adjusted Rand index, and how many clusters
were found of how many. scikit-learn's mixture has full covariances, its default, and diagonal ones.

`--large` fits one mixed table of 290,000 rows and 20 variables in 30 shards on all cores, and says
minutes, memory and quality.
"""

from __future__ import annotations

import os

# before NumPy is imported: a CPU second must mean one core
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import resource
import time
import warnings
from functools import partial

import numpy as np
import pandas as pd
from sklearn.mixture import BayesianGaussianMixture

import silomix
from silomix.model.metrics import adjusted_rand_index

# a component with a smaller share of the rows is none of the clusters found
FEWEST_ROWS = 0.01
# times the CPU of scikit-learn's mixture as it is by default
BAR = 3.0
KINDS = {"category": "categorical", "number": "gaussian", "count": "poisson"}


def ours(table, truth, seed):
    """Fit over the silos, by default."""
    found = silomix.fit(table, silo="silo", kinds=truth.kinds, seed=seed, threads=1)
    return found.labels, found.n_clusters


def theirs(covariance, table, truth, seed):
    """Fit the pooled rows, standardised."""
    x = table[list(truth.kinds)].to_numpy()
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    mixture = BayesianGaussianMixture(
        n_components=15, n_init=5, covariance_type=covariance, random_state=seed
    )
    labels = mixture.fit_predict(x)
    return labels, int((np.bincount(labels) >= FEWEST_ROWS * len(x)).sum())


METHODS = {
    "silomix": ours,
    "scikit-learn, full": partial(theirs, "full"),
    "scikit-learn, diagonal": partial(theirs, "diag"),
}


def measure(datasets):
    """Return a line for each cell and method: means over data sets."""
    lines = []
    for separability in ("easy", "poor"):
        for seed in range(datasets):
            table, truth = silomix.simulate(
                "nested", separability=separability, variables="gaussian", seed=seed
            )
            for name, fit in METHODS.items():
                began = time.process_time()
                labels, clusters = fit(table, truth, seed)
                line = {"cell": f"nested {separability}", "method": name}
                line |= {"CPU s": time.process_time() - began, "clusters": clusters}
                line |= {"planted": len(truth.weights)}
                lines.append(line | {"ARI": adjusted_rand_index(truth.labels, labels)})
    return pd.DataFrame(lines).groupby(["cell", "method"], sort=False).mean()


def draw_large(rng, rows=290_000, clusters=12):
    """Return a table of ten categories, eight numbers and two counts, a tenth empty; and labels."""
    labels = rng.choice(clusters, rows, p=rng.dirichlet(np.full(clusters, 5.0)))
    table = {}
    for place in range(10):
        limits = rng.dirichlet(np.full(3, 0.7), clusters).cumsum(axis=1)[labels]
        level = (rng.random((rows, 1)) > limits[:, :2]).sum(axis=1)
        table[f"category {place}"] = np.array(["low", "middle", "high"], dtype=object)[level]
    for place in range(8):
        means, spreads = rng.normal(50, 10, clusters), rng.uniform(6, 14, clusters)
        table[f"number {place}"] = rng.normal(means[labels], spreads[labels])
    for place in range(2):
        rates = rng.gamma(2.0, 2.5, clusters)
        table[f"count {place}"] = rng.poisson(rates[labels]).astype(float)
    frame = pd.DataFrame(table)
    return frame.mask(rng.random(frame.shape) < 0.1), labels


def measure_large():
    """Fit one large mixed table in 30 shards."""
    table, labels = draw_large(np.random.default_rng(1))
    kinds = {name: KINDS[name.split()[0]] for name in table}
    began, cpu = time.perf_counter(), time.process_time()
    found = silomix.fit(table, shards=30, kinds=kinds, seed=1)
    minutes, cpu = (time.perf_counter() - began) / 60, (time.process_time() - cpu) / 60
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    ari = adjusted_rand_index(labels, found.labels)
    print(f"{len(table):,} rows, {len(kinds)} variables: {minutes:.1f} minutes, {cpu:.1f} of CPU;")
    print(
        f"{memory:.1f} GB with the table; {found.n_clusters} clusters of {labels.max() + 1}, ",
        end="",
    )
    print(f"ARI {ari:.4f}; {found.diagnostics.polish.rounds} rounds.\n{found.diagnostics.verdict}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=3)
    parser.add_argument("--large", action="store_true")
    chosen = parser.parse_args()
    if chosen.large:
        measure_large()
        return
    warnings.simplefilter("ignore")
    table, truth = silomix.simulate("nested", variables="gaussian", rows=400)
    ours(table, truth, 0)  # compiles the kernels
    found = measure(chosen.datasets)
    print(found.round(3).to_string())
    seconds = found["CPU s"].unstack()
    print("\nCPU ratio, ours over theirs")
    theirs_too = seconds.drop(columns="silomix")
    ratios = 1 / theirs_too.div(seconds["silomix"], axis=0)
    print(ratios.round(2).to_string())
    raise SystemExit(bool((ratios["scikit-learn, full"] > BAR).any()))


if __name__ == "__main__":
    main()
