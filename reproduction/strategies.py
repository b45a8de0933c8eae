"""Which strategy for which constraint: exchanges, bytes, accuracy, and what a policy costs.

    python reproduction/strategies.py --datasets 5      # runs what is missing, appends, prints

Every strategy is a way to run one study under one constraint, from one trip of a memory stick to an
exchange for every sweep. "one trip: product, open" and "one trip: product, default policy" differ
in the silos' policy alone: their difference is what its rules cost. Each data set is one line per
strategy in results/strategies.csv; seeds start at 3000, so nothing here was tuned on them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from judging import (
    COVERAGE_COLUMNS,
    INNER_BANDS,
    PARTITION_COLUMNS,
    WIDTH_COLUMNS,
    Found,
    judge,
    judge_widths,
    ratio,
    share,
    timed,
)
from running import CELL_KEYS, CELLS, arguments, done_cases, read_lines, run_cases
from study import warm_up
from writing import as_markdown, with_error

import silomix
from silomix.paper import FewRounds
from silomix.study.policy import UNLIMITED, Exchanges

TABLES = Path(__file__).parent / "tables"
HEADINGS = {
    "pi": "coverage of π",
    "p0": "of p < .1",
    "p1": ".1 to .5",
    "p2": ".5 to .9",
    "p3": "p > .9",
}
BAND_HEADINGS = {what: words for what, words in HEADINGS.items() if what != "pi"}
FIRST_SEED = 3000
THREE_TRIPS = FewRounds(rounds=3, starts=100)
COURIER = {"tier": "summary", "oracle": "federated", "solver": THREE_TRIPS, "polish": 0}
ANSWERING = silomix.Policy(exchanges=Exchanges(sharing=1, gradients=UNLIMITED))
"""The rules of the default policy, and the courier's questions allowed."""
STRATEGIES = {
    "one trip: product, default policy": {
        "tier": "summary", "aggregation": "product", "polish": 0, "policy": "default",
    },
    "one trip: product, open": {"tier": "summary", "aggregation": "product", "polish": 0},
    "courier, default rules": COURIER | {"policy": ANSWERING},
    "courier, open": COURIER,
    "few rounds, draws, polish 3": {"oracle": "federated", "solver": THREE_TRIPS, "polish": 3},
    "federated gradients": {"oracle": "federated", "polish": 0},
    "contingency": {"polish": 0},
    "default: contingency, polish until": {},
    "exact": {"strategy": "exact", "iterations": 4000},
}  # fmt: skip
KEYS = ["strategy", *CELL_KEYS, "seed"]
COLUMNS = [
    "strategy", "exchanges", "bytes", *CELL_KEYS, "seed",
    *PARTITION_COLUMNS, *COVERAGE_COLUMNS, *WIDTH_COLUMNS, "seconds",
]  # fmt: skip


def run_one(strategy, design, separability, seed):
    """Run one strategy on one data set: a line of the results."""
    table, truth = silomix.simulate(design, separability=separability, seed=seed)
    settings = {"seed": seed, "threads": 1, "progress": False} | STRATEGIES[strategy]
    found, seconds = timed(partial(silomix.fit, table, silo="silo", **settings))
    sent, answered = found.provenance.sent, found.provenance.answered
    case = {
        "strategy": strategy,
        "exchanges": max(sum(kinds.values()) for kinds in answered.values()),
        "bytes": max(sum(kinds.values()) for kinds in sent.values()),
        "design": design,
        "separability": separability,
        "seed": seed,
        "seconds": round(seconds, 2),
    }
    result = Found.of(found)
    return [case | judge(result, table, truth) | judge_widths(result, truth)]


def missing_cases(path, datasets, strategies):
    """Return every data set and strategy that has no line yet, data set by data set."""
    done = done_cases(path, COLUMNS, KEYS)
    cases = [
        (strategy, *cell, FIRST_SEED + number)
        for number in range(datasets)
        for cell in CELLS
        for strategy in strategies
    ]
    return [case for case in cases if case not in done]


def summarise(lines, by):
    """One line per group, with standard errors over data sets."""
    rows = []
    for group, part in lines.groupby(by, sort=False):
        gap = part["best_ari"] - part["ari"]
        row = dict(zip(by, group, strict=True)) | {
            "data sets": len(part),
            "exchanges": part["exchanges"].median(),
            "kB per silo": part["bytes"].median() / 1000,
            "right K": (part["clusters"] == part["planted"]).mean(),
            "ARI": part["ari"].mean(),
            "below best": gap.mean(),
            "gap se": gap.std() / np.sqrt(len(part)),
            "CPU s": part["seconds"].mean(),
        }
        for what in ("pi", "p0", "p1", "p2", "p3"):
            row[what], row[f"{what} se"] = share(part, what)
        rows.append(row)
    return pd.DataFrame(rows)


def cost_of_policy(lines):
    """What the default policy changes by file, cell by cell, on the same data sets."""
    keys = ["design", "separability", "seed"]
    ruled, free = (
        lines[lines["strategy"] == name].set_index(keys).sort_index()
        for name in ("one trip: product, default policy", "one trip: product, open")
    )
    both = ruled.index.intersection(free.index)
    ruled, free = ruled.loc[both], free.loc[both]
    rows = []
    for cell, part in ruled.groupby(["design", "separability"], sort=False):
        other = free.loc[part.index]
        change = part["ari"] - other["ari"]
        row = {
            "cell": " ".join(cell),
            "data sets": len(part),
            "ARI": part["ari"].mean(),
            "change of ARI": change.mean(),
            "se": change.std() / np.sqrt(len(part)),
        }
        for suffix, some in (("", part), (" open", other)):
            row[f"p{suffix}"], row[f"p se{suffix}"] = overall(some)
            for what in HEADINGS:
                row[f"{what}{suffix}"], row[f"{what} se{suffix}"] = share(some, what)
                row[f"{what} width{suffix}"] = some[f"{what}_width"].mean()
        rows.append(row)
    return pd.DataFrame(rows)


def overall(lines):
    """Return the coverage of p over all bands, and its standard error."""
    inside, total = (
        sum(lines[f"{band}_{part}"] for band in INNER_BANDS).to_numpy(dtype=np.float64)
        for part in ("covered", "total")
    )
    return ratio(inside, total)


def comparable(lines):
    """The data sets that every strategy was run on, in the strategies' order."""
    keys = [*CELL_KEYS, "seed"]
    times = lines.groupby(keys)["strategy"].transform("nunique")
    place = {name: number for number, name in enumerate(STRATEGIES)}
    return lines[times == len(STRATEGIES)].sort_values(
        "strategy", key=lambda names: names.map(place), kind="stable"
    )


def strategies_page(lines):
    """The table of strategies as the documentation shows it."""
    rows = []
    for strategy, part in lines.groupby("strategy", sort=False):
        row = {
            "strategy": strategy,
            "data sets": len(part),
            "exchanges": f"{part['exchanges'].median():,.0f}",
            "kB out of a silo": f"{part['bytes'].median() / 1000:,.0f}",
        }
        for separability in ("easy", "poor"):
            some = part[part["separability"] == separability]
            gap = some["best_ari"] - some["ari"]
            row[f"below best ARI, {separability}"] = with_error(gap.mean(), gap.sem())
        for what in ("pi", "p0", "p1", "p2", "p3"):
            row[HEADINGS[what]] = with_error(*share(part, what))
        rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def policy_page(lines):
    """What the default policy costs, as the documentation shows it."""
    rows = []
    for _, line in cost_of_policy(lines).iterrows():
        row = {
            "cell": line["cell"],
            "data sets": line["data sets"],
            "ARI": f"{line['ARI']:.3f}",
            "change": with_error(line["change of ARI"], line["se"], 4),
        }
        for what, heading in {"pi": "π", "p": "p"}.items():
            cover = with_error(line[what], line[f"{what} se"])
            row[f"coverage of {heading}"] = f"{cover} ({line[f'{what} open']:.3f})"
        for what, heading in BAND_HEADINGS.items():
            row[heading] = f"{line[what]:.3f} ({line[f'{what} open']:.3f})"
        rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def widths_page(lines):
    """How wide the intervals are under the default policy, and without."""
    rows = []
    for _, line in cost_of_policy(lines).iterrows():
        row = {"cell": line["cell"]}
        for what, heading in HEADINGS.items():
            width = f"{line[f'{what} width']:.3f} ({line[f'{what} width open']:.3f})"
            row[heading.removeprefix("coverage ").removeprefix("of ")] = width
        rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def main(words=None):
    options = {"strategies": ";".join(STRATEGIES)}
    chosen = arguments(__doc__, datasets=5, **options).parse_args(words)
    path = chosen.results / "strategies.csv"
    cases = missing_cases(path, chosen.datasets, chosen.strategies.split(";"))
    run_cases(path, COLUMNS, run_one, cases, chosen.jobs, prepare=warm_up)
    lines = read_lines(path, COLUMNS)
    tables = {
        "strategies_summary.csv": summarise(comparable(lines), ["strategy", "separability"]),
        "policy_cost.csv": cost_of_policy(lines),
    }
    for name, table in tables.items():
        with pd.option_context("display.width", 250, "display.max_columns", 30):
            print(f"\n{name}\n{table.round(3).to_string(index=False)}")
        table.round(4).to_csv(path.with_name(name), index=False)
    if len(lines):
        TABLES.mkdir(exist_ok=True)
        (TABLES / "strategies.md").write_text(strategies_page(comparable(lines)), encoding="utf-8")
        (TABLES / "policy-cost.md").write_text(policy_page(lines), encoding="utf-8")
        (TABLES / "policy-widths.md").write_text(widths_page(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
