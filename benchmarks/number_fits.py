"""Time of a default fit of numbers, beside scikit-learn's variational mixture on the pooled rows.

    python benchmarks/number_fits.py --datasets 3

Four silos of 1,000 rows with ten normal variables (`silomix.simulate`). CPU seconds with one thread
each, in the same process, and quality beside them: the adjusted Rand index, and how many clusters
were found of how many.
"""

from __future__ import annotations

import os

# before NumPy is imported: a CPU second must mean one core
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import time
import warnings

import numpy as np
import pandas as pd
from sklearn.mixture import BayesianGaussianMixture

import silomix
from silomix.model.metrics import adjusted_rand_index

FEWEST_ROWS = 0.01
"""A component with a smaller share of the rows is none of the clusters found."""


def ours(table, truth, seed):
    """Fit over the silos, by default."""
    found = silomix.fit(table, silo="silo", kinds=truth.kinds, seed=seed, threads=1)
    return found.labels, found.n_clusters


def theirs(table, truth, seed):
    """Fit the pooled rows, standardised."""
    x = table[list(truth.kinds)].to_numpy()
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    mixture = BayesianGaussianMixture(
        n_components=15, n_init=5, covariance_type="diag", random_state=seed
    )
    labels = mixture.fit_predict(x)
    return labels, int((np.bincount(labels) >= FEWEST_ROWS * len(x)).sum())


def measure(datasets):
    """Return a line for each cell and method: means over data sets."""
    lines = []
    for separability in ("easy", "poor"):
        for seed in range(datasets):
            table, truth = silomix.simulate(
                "nested", separability=separability, variables="gaussian", seed=seed
            )
            for name, fit in (("silomix", ours), ("scikit-learn", theirs)):
                began = time.process_time()
                labels, clusters = fit(table, truth, seed)
                line = {"cell": f"nested {separability}", "method": name}
                line |= {"CPU s": time.process_time() - began, "clusters": clusters}
                line |= {"planted": len(truth.weights)}
                lines.append(line | {"ARI": adjusted_rand_index(truth.labels, labels)})
    return pd.DataFrame(lines).groupby(["cell", "method"], sort=False).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=3)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    table, truth = silomix.simulate("nested", variables="gaussian", rows=400)
    ours(table, truth, 0)  # compiles the kernels
    found = measure(chosen.datasets)
    print(found.round(3).to_string())
    seconds = found["CPU s"].unstack()
    print("\nCPU ratio, ours over theirs")
    print((seconds["silomix"] / seconds["scikit-learn"]).round(2).to_string())


if __name__ == "__main__":
    main()
