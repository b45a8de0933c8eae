"""What each method found of the cohort's planted clusters, as tables.

    python reproduction/cohort_tables.py

Reads results/cohort.csv and results/cohort_clusters.csv, writes tables/cohort-*.md; nothing is
run here. What has no results yet says so.
"""

from __future__ import annotations

import pandas as pd
from cohort import CLUSTER_COLUMNS, COLUMNS, METHODS, SEED, STAGES
from collect import PAGES
from running import RESULTS, read_lines
from writing import as_markdown

from silomix.simulate.cohort import PUBLISHED_ROWS

NOT_RUN = "*Not run yet.*\n"


def of_full_run(lines):
    """Return the lines of the paper's number of people, the longest of each method, in order."""
    full = lines[lines["rows"] == PUBLISHED_ROWS]
    longest = full.groupby("method")["iterations"].transform("max")
    full = full[full["iterations"] == longest]
    order = full["method"].map(list(METHODS).index)
    return full.assign(order=order).sort_values(["order", "seed"]).drop(columns="order")


def methods_table(lines):
    """A line for each method: how many clusters, how right, and at what price."""
    return pd.DataFrame(
        {
            "method": lines["method"],
            "seed": lines["seed"],
            "iterations": lines["iterations"]
            .map("{:,}".format)
            .where(lines["method"] != "fedmerdel", "–"),
            "clusters": lines["clusters"],
            "planted clusters found": lines["owned"],
            "fragments": lines["fragments"],
            "ARI": lines["ari"].map("{:.4f}".format),
            "best possible": lines["best_ari"].map("{:.3f}".format),
            "minutes": lines["minutes"].map("{:.1f}".format),
            "CPU minutes": lines["cpu_minutes"].map("{:.1f}".format),
            "GB": lines["memory_gb"].map("{:.1f}".format),
        }
    )


def sizes_table(lines):
    """A line for each run on fewer or more people, with the digest of its draws."""
    other = lines[lines["rows"] != PUBLISHED_ROWS].sort_values(["rows", "method"])
    table = methods_table(other).assign(digest=other["digest"])
    table.insert(0, "people", other["rows"].map("{:,}".format))
    return table


def stages_table(lines):
    """Minutes of each stage, of the methods that have stages."""
    later = [f"minutes_{stage}" for stage in STAGES[2:]]
    staged = lines[lines[later].sum(axis=1) > 0]
    columns = {stage: staged[f"minutes_{stage}"].map("{:.1f}".format) for stage in STAGES[1:]}
    return pd.DataFrame({"method": staged["method"], **columns})


def clusters_table(clusters):
    """For each planted cluster, by size, the share of its people that each method finds."""
    found = clusters.assign(
        text=[
            "–" if pd.isna(recall) else f"{recall:.2f} ({purity:.2f})"
            for recall, purity in zip(clusters["recall"], clusters["purity"], strict=True)
        ]
    )
    wide = found.pivot_table(
        index=["cluster", "people"], columns="method", values="text", aggfunc="first"
    )
    wide = wide[[method for method in METHODS if method in wide.columns]].reset_index()
    wide = wide.sort_values("people", ascending=False)
    wide.insert(2, "share", (wide["people"] / PUBLISHED_ROWS).map("{:.2%}".format))
    return wide.assign(people=wide["people"].map("{:,}".format))


def main():
    every_size = read_lines(RESULTS / "cohort.csv", COLUMNS)
    lines = of_full_run(every_size)
    clusters = of_full_run(read_lines(RESULTS / "cohort_clusters.csv", CLUSTER_COLUMNS))
    clusters = clusters[clusters["seed"] == SEED]
    pieces = {
        "cohort-methods": methods_table(lines),
        "cohort-sizes": sizes_table(every_size),
        "cohort-stages": stages_table(lines[lines["seed"] == SEED]),
        "cohort-clusters": clusters_table(clusters) if len(clusters) else clusters,
    }
    for name, table in pieces.items():
        text = as_markdown(table) if len(table) else NOT_RUN
        (PAGES / "tables" / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
