"""Real tables with silos: how far clusters follow a label, and how far they follow the silo.

    SILOMIX_DATA=folder python reproduction/real.py      # runs what is missing, appends, prints

Every CSV file of the folder with a column "silo" is used; a column "label", if there is one, is
what the clusters are held to, and no method sees it. A number with more than twelve values is cut
at its quartiles over all rows; an empty cell is missing. What the label is, and what it can show:

- heart_disease_4sites: a diagnosis, coronary disease seen by angiography, of patients of four
  hospitals. Clusters of symptoms and tests should go with it more than with the hospital, which
  decided what was measured: in some hospitals whole columns are missing. (heart_disease_mixed has
  the same patients, and is left out.)
- penguins: the species, on three islands. Two of the species live on one island each, so clusters
  that follow the island are not wrong.
- nmes1988_mixed: none; people of four regions, so only agreement with the region is told.

A label is not the truth about clusters: a table may fall into other groups than doctors make. A
high index with the label is good news; a high index with the silo is bad news where every silo has
every label.

`lca` is latent class analysis by maximum likelihood on the pooled rows, the number of classes with
the smallest BIC; it takes all rows to one place, as `pooled` does. `stepmix` is the same by the
package StepMix, where it is installed. Each seed is one line for each method in results/real.csv.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from classes import PEER, best_classes, installed, our_classes, stepmix_classes
from drift import METHODS, without_sampler
from judging import VERDICT_COLUMNS, mean_error, relevel, timed, verdict
from running import arguments, chosen_words, done_cases, keep_apart, read_lines, run_cases
from study import warm_up

from silomix.model.metrics import adjusted_rand_index

ITERATIONS = 20_000
MOST_LEVELS = 12
"""A column of numbers with more values is cut at its quartiles."""
SAME_PATIENTS = {"heart_disease_mixed": "heart_disease_4sites"}
"""Files with the same rows as another, which is used instead where it is there."""
KEYS = ["table", "seed", "method"]
COLUMNS = [
    *KEYS, "iterations", "rows", "silos", "variables", "labels", "clusters",
    "ari_label", "ari_silo", *VERDICT_COLUMNS, "seconds",
]  # fmt: skip


REAL_METHODS = {name: run for name, run in METHODS.items() if name != "truth"} | {
    "lca": partial(without_sampler, partial(best_classes, our_classes)),
    PEER: partial(without_sampler, partial(best_classes, stepmix_classes)),
}


def tables_with_silos(folder):
    """Return the files of a folder that have a silo column, by name."""
    found = {
        path.stem: path
        for path in sorted(folder.glob("*.csv"))
        if "silo" in pd.read_csv(path, nrows=0).columns
    }
    return {name: path for name, path in found.items() if SAME_PATIENTS.get(name) not in found}


def read_table(path):
    """Read a table: its variables and silo column, and the labels, None if it has none."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False).replace("", None)
    label = table.pop("label") if "label" in table else None
    for name in table.columns.drop("silo"):
        numbers = pd.to_numeric(table[name], errors="coerce")
        if numbers.notna().equals(table[name].notna()) and numbers.nunique() > MOST_LEVELS:
            # where most values are the same, such as no visit, quartiles are too, and fewer cuts
            edges = np.unique(numbers.quantile([0.25, 0.5, 0.75]))
            cut = pd.cut(numbers, [-np.inf, *edges, np.inf])
            table[name] = cut.astype(str).where(cut.notna(), None)
    return table, label


def run_one(path, seed, method, iterations=ITERATIONS):
    """Run one method on one table: a line of the results."""
    table, label = read_table(path)
    common = {"silo": "silo", "iterations": iterations, "seed": seed, "threads": 1}
    found, seconds = timed(partial(REAL_METHODS[method], table, **common))
    of_label = "" if label is None else round(adjusted_rand_index(label, found.labels), 5)
    line = {"table": path.stem, "seed": seed, "method": method, "iterations": iterations}
    line |= {
        "rows": len(table),
        "silos": table["silo"].nunique(),
        "variables": table.shape[1] - 1,
        "labels": "" if label is None else label.nunique(),
        "clusters": found.n_clusters,
        "ari_label": of_label,
        "ari_silo": round(adjusted_rand_index(table["silo"], found.labels), 5),
        "seconds": round(seconds, 2),
    }
    return [line | verdict(found)]


def missing_cases(path, seeds, tables, methods):
    """Return every table, seed and method that has no line yet."""
    done = done_cases(path, COLUMNS, KEYS)
    return [
        (table, seed, method)
        for seed in range(seeds)
        for table in tables
        for method in methods
        if (table.stem, seed, method) not in done
    ]


def summarise(lines):
    """One line for each table and method: means over seeds, with standard errors."""
    rows = []
    for (table, method), part in lines.groupby(["table", "method"], sort=False):
        row = {"table": table, "method": method, "seeds": len(part)}
        row |= {"clusters": part["clusters"].median()}
        for name in ("ari_label", "ari_silo"):
            row[name], row[f"{name} se"] = mean_error(part[name])
        row |= {"trusted": mean_error(part["trusted"])[0], "CPU s": part["seconds"].mean()}
        rows.append(row)
    return pd.DataFrame(rows)


def main(words=None):
    options = {"tables": "", "methods": "", "iterations": ITERATIONS}
    chosen = arguments(__doc__, datasets=10, **options).parse_args(words)
    keep_apart(chosen, iterations=ITERATIONS)
    folder = os.environ.get("SILOMIX_DATA")
    if not folder:
        raise SystemExit("set SILOMIX_DATA to the folder of published data sets")
    known = tables_with_silos(Path(folder))
    tables = [known[name] for name in chosen_words(chosen.tables, known)]
    path = chosen.results / "real.csv"
    methods = installed(chosen_words(chosen.methods, REAL_METHODS))
    missing = missing_cases(path, chosen.datasets, tables, methods)
    cases = [(*case, chosen.iterations) for case in missing]
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs, prepare=warm_up)
    lines = read_lines(path, COLUMNS)
    if len(lines):
        lines = relevel(lines)
        with pd.option_context("display.width", 250, "display.max_columns", 30):
            print(summarise(lines).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
