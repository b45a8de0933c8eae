"""Our own tables: every method in every cell, and what we want of our defaults."""

from __future__ import annotations

import numpy as np
import pandas as pd
from comparing import (
    PARAMETERS,
    PUBLISHED,
    against_rivals,
    by_method,
    gains,
    in_cell,
    paired_coverage,
)
from judging import INNER_BANDS, ratio, share
from paper_tables import BAND_WORDS
from running import CELLS, in_cell_order
from writing import as_markdown, signed, with_error

PARAMETER_WORDS = {"pi": "π", **BAND_WORDS}


def methods_table(summary):
    """Every method in every cell: clusters, agreement, cost."""
    rows = [
        {
            "cell": line["cell"],
            "method": line["method"],
            "data sets": line["data sets"],
            "right number": with_error(line["right K"], line["right K se"], 2),
            "clusters": f"{line['K']:.2f}",
            "ARI": with_error(line["ARI"], line["ARI se"]),
            "below best": with_error(line["below best"], line["below best se"]),
            "VI": f"{line['VI']:.3f}",
            "CPU s": f"{line['CPU s']:.2f}",
            "kB out of a silo": f"{line['kB']:,.1f}",
        }
        for _, line in summary.iterrows()
    ]
    return as_markdown(pd.DataFrame(rows))


def gains_table(study):
    """Our defaults' ARI less every other method's, cell by cell; bold beyond two errors."""
    rows = []
    for method, by_cell in gains(study):
        row = {"method": method}
        for cell in map(" ".join, CELLS):
            value, error = by_cell.get(cell, (np.nan, np.nan))
            text = signed(value, error) if np.isfinite(value) else "–"
            row[cell] = f"**{text}**" if abs(value) > 2 * error else text
        rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def coverage_table(summary):
    """Coverage of highest-density intervals of every method in every cell."""
    rows = [
        {"cell": line["cell"], "method": line["method"]}
        | {
            words: with_error(line[what], line[f"{what} se"])
            for what, words in PARAMETER_WORDS.items()
        }
        for _, line in summary.iterrows()
    ]
    return as_markdown(pd.DataFrame(rows))


def coverage_in_short(study):
    """Coverage of π, and of p in all inner bands together, by method and cell."""
    rows = []
    for method, lines in by_method(study):
        row = {"method": method}
        for cell in CELLS:
            part = in_cell(lines, *cell)
            covered = part[[f"{band}_covered" for band in INNER_BANDS]].sum(axis=1, skipna=False)
            total = part[[f"{band}_total" for band in INNER_BANDS]].sum(axis=1)
            p = ratio(covered.to_numpy(float), total.to_numpy(float))
            row[" ".join(cell)] = f"{with_error(*share(part, 'pi'))}; {with_error(*p)}"
        if "–; –" not in row.values():
            rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def targets(study, summary):
    """Hold our defaults to what we want of them: a table."""
    rows = rival_targets(study)
    for _, line in summary[summary["method"] == "default"].iterrows():
        rows += default_targets(line) + coverage_targets(study, line["cell"])
    rows += pooled_targets(summary)
    page = pd.DataFrame(rows, columns=["cell", "target", "ours", "reached"])
    return in_cell_order(page)


def rival_targets(study):
    """Hold the agreement of our defaults to the best federated rival's: rows."""
    rows = []
    for cell, best, value, error in against_rivals(study):
        aim = f"ARI not below the best federated rival ({best}) by two errors"
        rows.append((cell, aim, signed(value, error), yes_or_no(not value < -2 * error)))
    return rows


def default_targets(line):
    """Hold number of clusters, agreement and time of our defaults in a cell to limits: rows."""
    cell, right, gap, seconds = line[["cell", "right K", "below best", "CPU s"]]
    least = 0.95 if cell.endswith("easy") else 0.9
    below = with_error(gap, line["below best se"])
    held = [
        (f"right number in at least {least:.0%}", f"{right:.0%}", right >= least),
        ("ARI within .01 of the best possible", below, gap <= 0.01),
        ("at most 15 CPU s", f"{seconds:.1f}", seconds <= 15),
    ]
    return [(cell, aim, ours, yes_or_no(reached)) for aim, ours, reached in held]


def coverage_targets(study, cell):
    """Hold the coverage of our defaults in a cell to the pooled sampler's: rows."""
    rows = []
    part = in_cell(study, *cell.split())
    for what in PARAMETERS:
        value, error = paired_coverage(part, "default", "pooled", what)
        if np.isfinite(value):
            words = PARAMETER_WORDS[what]
            words = f"p {words}" if words.startswith("to") else words
            aim = f"coverage of {words} within .02 of the pooled sampler's"
            rows.append((cell, aim, signed(value, error), within(value, 0.02)))
    return rows


def pooled_targets(summary):
    """Hold the time of the pooled sampler to a five-hundredth of the paper's fastest: rows."""
    rows = []
    limit = published_seconds().min() / 500
    for _, line in summary[summary["method"] == "pooled-paper"].iterrows():
        aim = f"`pooled-paper` under {limit:.2f} CPU s, a five-hundredth of the paper's fastest"
        reached = yes_or_no(line["CPU s"] < limit)
        rows.append((line["cell"], aim, f"{line['CPU s']:.2f}", reached))
    return rows


def yes_or_no(reached):
    return "yes" if reached else "**no**"


def within(value, margin):
    """Say whether a difference is within a margin, and on which side of it if not."""
    if abs(value) <= margin:
        return "yes"
    return "**no (above)**" if value > 0 else "**no (below)**"


def missed(page):
    """Say how many targets were reached: a sentence, and those that were not."""
    away = page[page["reached"] != "yes"]
    text = f"{len(page) - len(away)} of {len(page)} targets are reached.\n"
    return text + (f"\n{as_markdown(away)}" if len(away) else "")


def costs(summary):
    """Kilobytes that leave a silo, by method and cell, beside those of its rows."""
    kept = summary.pivot_table(index="cell", columns="method", values="kB", sort=False)
    wanted = [name for name in ("default", "paper", "product", "fedmerdel") if name in kept]
    page = kept[wanted].map("{:,.1f}".format)
    if "pooled" in kept:
        page["the rows themselves"] = kept["pooled"].map("{:,.1f}".format)
    return as_markdown(page.reset_index())


def published_seconds():
    """Return the paper's running time of full MCMC by cell."""
    published = pd.read_csv(PUBLISHED)
    lines = published[(published["quantity"] == "seconds") & (published["method"] == "Full MCMC")]
    cells = lines["design"] + " " + lines["separability"]
    return pd.Series(lines["value"].to_numpy(float), index=cells)


def times(summary):
    """CPU seconds of our defaults, FedMerDel and the pooled sampler, and ratios."""
    by_method = summary.pivot_table(index="cell", columns="method", values="CPU s", sort=False)
    wanted = [name for name in ("default", "fedmerdel", "pooled-paper") if name in by_method]
    page = by_method[wanted].map("{:.2f}".format)
    if {"default", "fedmerdel"} <= set(wanted):
        page["default / fedmerdel"] = (by_method["default"] / by_method["fedmerdel"]).map(
            "{:.1f}".format
        )
    if "pooled-paper" in wanted:
        ratio_to_paper = published_seconds() / by_method["pooled-paper"]
        page["the paper's full MCMC / pooled-paper"] = ratio_to_paper.map("{:.0f}".format)
    return as_markdown(page.reset_index())
