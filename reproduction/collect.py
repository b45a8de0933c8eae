"""The paper's tables beside ours, from the results so far: as CSV, and as pages.

    python reproduction/collect.py

Writes results/tables/*.csv, tables/*.md and images/study-*.svg. What has no results yet
says so; nothing is run here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import drift_tables
import figures
from comparing import first_hundred, summarise
from drift_targets import drift_targets
from judging import relevel
from number_tables import cells_table, rivals_table
from own_tables import (
    costs,
    coverage_in_short,
    coverage_table,
    gains_table,
    methods_table,
    missed,
    targets,
    times,
)
from pages import Pages, not_run
from paper_tables import (
    BAND_WORDS,
    CLUSTER_WORDS,
    clustering_table,
    less_full_table,
    matching_tables,
    parameter_table,
    reproduced,
)
from real_numbers import optima, other_fits
from running import RESULTS
from side_tables import (
    fractionation_table,
    inference_table,
    pairing_table,
    shards_table,
    shares_table,
    thinning_table,
    thresholds,
    with_found,
)
from writing import as_markdown

PAGES = Path(__file__).parent
STUDY_PAGES = (
    "table-3", "less-full", "table-4-bias", "table-4-coverage", "table-5-bias", "table-5-coverage",
    "methods", "gains", "coverage", "coverage-in-short", "targets", "targets-missed", "times",
    "costs",
)  # fmt: skip


def collect_study(pages):
    every = pages.lines("study")
    if every is None:
        for name in STUDY_PAGES:
            pages.page(name, not_run("study"))
        return
    # data sets beyond those that every method has count in the targets of coverage alone
    study = first_hundred(every)
    summary = summarise(study)
    summary.round(5).to_csv(pages.results / "tables" / "methods.csv", index=False)
    pages.table("table-3", clustering_table(study))
    pages.page("less-full", less_full_table(study))
    for what in ("bias", "coverage"):
        pages.table(f"table-4-{what}", parameter_table(study, "4", what, CLUSTER_WORDS))
        pages.table(f"table-5-{what}", parameter_table(study, "5", what, BAND_WORDS))
    pages.page("methods", methods_table(summary))
    pages.page("gains", gains_table(study))
    pages.page("coverage", coverage_table(summary))
    aims = targets(every, summary)
    aims.to_csv(pages.results / "tables" / "targets.csv", index=False)
    pages.page("targets", as_markdown(aims))
    pages.page("targets-missed", missed(aims))
    pages.page("times", times(summary))
    pages.page("costs", costs(summary))
    pages.page("coverage-in-short", coverage_in_short(study))
    figures.overview(summary, pages.images)


def collect_matching(pages):
    lines = pages.lines("matching")
    for partition, number in (("estimated", "2"), ("true", "9")):
        if lines is None:
            pages.page(f"table-{number}", not_run("matching"))
        else:
            pages.table(f"table-{number}", matching_tables(lines, partition, number))
        some = None if lines is None else lines[lines["partition"] == partition]
        pages.figure(f"clusters-{partition}", figures.clusters_by_matching, some)


def collect_others(pages):
    solvers = pages.lines("solvers")
    pages.page("inference", not_run("solvers") if solvers is None else inference_table(solvers))
    pairing = pages.lines("pairing")
    pages.page("pairing", not_run("pairing") if pairing is None else pairing_table(pairing))
    for script, table, draw in (
        ("fractionation", fractionation_table, figures.fractionation),
        ("shards", shards_table, figures.clusters_by_shards),
    ):
        lines = pages.lines(script)
        pages.page(script, not_run(script) if lines is None else table(lines))
        pages.figure(script, draw, lines)
    lines = pages.lines("shares")
    pages.page("shares", not_run("shares") if lines is None else shares_table(lines))
    pages.page("thresholds", not_run("shares") if lines is None else thresholds(lines))
    found = None if lines is None else with_found(lines)
    pages.figure("shares", figures.found_by_share, found)


def relevelled(lines):
    """Return the lines judged by today's rule; None if there are none."""
    return lines if lines is None or not len(lines) else relevel(lines)


def collect_drift(pages):
    drift = drift_tables.with_kappa_words(relevelled(pages.lines("drift")))
    regimes = drift_tables.with_regime_words(relevelled(pages.lines("regimes")))
    matching = drift_tables.whole_lines(pages.lines("drift_matching"), "drifting")
    real = drift_tables.whole_lines(relevelled(pages.lines("real")), "seconds")
    for name, table, lines, script in (
        ("drift", drift_tables.drift_table, drift, "drift"),
        ("drift-numbers", drift_tables.numbers_table, drift, "drift"),
        ("drift-differences", drift_tables.differences_table, drift, "drift"),
        ("drift-coverage", drift_tables.coverage_table, drift, "drift"),
        ("drift-kappa", drift_tables.kappa_table, drift, "drift"),
        ("regimes", drift_tables.regimes_table, regimes, "regimes"),
        ("drift-matching", drift_tables.matching_table, matching, "drift_matching"),
        ("real", drift_tables.real_table, real, "real"),
        ("real-sizes", drift_tables.sizes_table, real, "real"),
    ):
        pages.rows(name, [] if lines is None else table(lines), script)
    pages.rows("trust", drift_tables.trust_table(drift, regimes), "drift")
    aims = drift_targets(drift, regimes, matching, real)
    pages.rows("drift-targets", aims, "drift")
    pages.page("drift-targets-missed", missed(aims) if len(aims) else not_run("drift"))


def collect_numbers(pages):
    for name, table, script in (
        ("number-cells", cells_table, "number_cells"),
        ("number-rivals", rivals_table, "number_rivals"),
        ("optima", optima, "real_numbers"),
        ("real-numbers", other_fits, "real_numbers"),
    ):
        lines = pages.lines(script)
        pages.rows(name, [] if lines is None else table(lines), script)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--pages", type=Path, default=PAGES)
    chosen = parser.parse_args(words)
    pages = Pages(chosen.results, chosen.pages)
    collect_study(pages)
    collect_matching(pages)
    collect_others(pages)
    collect_drift(pages)
    collect_numbers(pages)
    study, matching = pages.lines("study"), pages.lines("matching")
    if study is None or matching is None:
        missing = not_run("matching" if matching is None else "study")
        pages.page("reproduced", missing)
        pages.page("thinning", missing)
    else:
        pages.page("reproduced", reproduced(first_hundred(study), matching))
        pages.page("thinning", thinning_table(study, matching))


if __name__ == "__main__":
    main()
