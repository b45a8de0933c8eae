"""Methods side by side in one run: CPU time, bytes, agreement, coverage. `make bench`.

    python benchmarks/methods.py                         # six cells of the paper, two rounds
    python benchmarks/methods.py --cases ""              # and 36 silos, 100 silos, the cohort
    python benchmarks/methods.py --cases "nested poor" --methods default,fedmerdel --repeats 5

One process, one thread. CPU time is that of the whole call, with nothing to import or compile. The
machine may be busy, so times are also given as ratios to FedMerDel's in the same round: a round is
every method once on one data set, and the rounds are repeated. A repeated fit gives the same draws,
so how much its times differ is the machine's noise, which is printed too.

Latent class analysis and StepMix are told the number of clusters and run from ten starts each;
whoever does not know the number pays for several. They have no intervals. StepMix runs where it is
installed. Methods that take long on large tables are run there only if --methods names them.
Coverage here is of few data sets, whose values share their luck: `reproduction/` has many.

A line of the results is written as soon as it is measured, and not measured again at the same
commit. The bars are those of a default fit; whether it keeps to them is printed, not enforced.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
sys.path.append(str(Path(__file__).parents[1] / "reproduction"))

import numpy as np
import pandas as pd
from classes import PEER, installed, our_classes, stepmix_classes
from judging import best_labels, judge_fit, share, timed
from regimes import trial
from running import CELLS, chosen_words, done_cases, read_lines, run_cases
from study import STAGES, ours, rival, unsampled

import silomix
from silomix import rivals
from silomix.simulate.cohort import best_labels as best_of_cohort

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results"
FIRST_SEED = 23_000
COMPONENTS = 50
PEOPLE = 30_000
SHARDS = 3
"""Of the cohort: so many that each is as large as one of the paper's."""
YARDSTICK = "fedmerdel"
KEYS = ["commit", "case", "seed", "repeat", "method"]
SECONDS = [f"seconds_{stage}" for stage in STAGES]
COVERAGE = [f"{what}_{part}" for what in ("m", "pi") for part in ("covered", "total")]
COLUMNS = [
    *KEYS, "planted", "clusters", "ari", "best_ari", *COVERAGE, "seconds", *SECONDS, "bytes",
]  # fmt: skip


def in_one_place(fit, table, planted, common):
    """Run a latent class model, which is told the number of clusters."""
    found = fit(table, "silo", classes=planted, seed=common["seed"])
    return found, found.seconds, found.bytes_sent, None


METHODS = {
    "default": ours,
    "paper": partial(ours, preset="paper"),
    YARDSTICK: partial(unsampled, rivals.fedmerdel),
    "pooled": partial(rival, rivals.pooled_mcmc),
    "lca": partial(in_one_place, our_classes),
    PEER: partial(in_one_place, stepmix_classes),
}


def cell(design, separability, seed):
    table, truth = silomix.simulate(design, separability=separability, seed=seed)
    return table, truth, best_labels(table, truth)


def many_silos(seed):
    table, truth = silomix.simulate(
        "non-nested", separability="poor", rows=50_000, silos=100, seed=seed
    )
    return table, truth, best_labels(table, truth)


def unequal_silos(seed):
    table, truth = trial(seed)
    return table, truth, best_labels(table, truth)


def people(seed):
    """Draw a part of the cohort, in silos that differ by chance alone."""
    table, truth = silomix.simulate_cohort(PEOPLE, seed=seed)
    best = best_of_cohort(table, truth)
    table = table[list(truth.conditions)]
    silos = tuple(f"shard {number}" for number in range(1, SHARDS + 1))
    places = np.random.default_rng(seed).permutation(len(table)) % SHARDS
    table.insert(0, "silo", np.array(silos)[places])
    alike = SimpleNamespace(
        labels=truth.labels,
        weights=truth.weights,
        probabilities=truth.probabilities,
        silos=silos,
        weights_by_silo=np.tile(truth.weights, (SHARDS, 1)),
        probabilities_by_silo=np.tile(truth.probabilities, (SHARDS, 1, 1)),
    )
    return table, alike, best


@dataclass(frozen=True)
class Case:
    """Data to run the methods on.

    Attributes
    ----------
    draw : a function of a seed that returns a table, its truth, and the best possible labels.
    ratio, seconds, sent : the most that a default fit should take: CPU time as a multiple of
        FedMerDel's and in seconds, kB out of a silo.
    settings : by method, where its defaults are for smaller tables.
    slow : methods that take long here.
    """

    draw: Callable[[int], tuple[Any, ...]]
    ratio: float = np.inf
    seconds: float = np.inf
    sent: float = np.inf
    settings: dict[str, dict[str, Any]] | None = None
    slow: tuple[str, ...] = ()


CASES = {" ".join(each): Case(partial(cell, *each), 4.0, 1.5, 1000.0) for each in CELLS} | {
    "36 silos": Case(unequal_silos, 6.0, 40.0, slow=("paper", PEER)),
    "100 silos": Case(many_silos, slow=("paper", "lca", PEER)),
    "cohort": Case(
        people,
        settings={
            "default": {"components": COMPONENTS},
            "paper": {"components": COMPONENTS},
            "pooled": {"components": COMPONENTS},
            YARDSTICK: {"search": rivals.Search(components=COMPONENTS)},
        },
        slow=("paper", "lca", PEER),
    ),
}
QUICK = ",".join(" ".join(each) for each in CELLS)


def run_one(commit, case, seed, repeat, method):
    """Run one method on one data set: a line of the results."""
    table, truth, best = CASES[case].draw(seed)
    settings = (CASES[case].settings or {}).get(method, {})
    call = partial(METHODS[method], table, len(truth.weights), {"seed": seed, "threads": 1})
    (found, by_stage, sent, _), seconds = timed(partial(call, **settings))
    line = dict(zip(KEYS, (commit, case, seed, repeat, method), strict=True))
    line |= judge_fit(found, truth, best)
    line |= {
        f"seconds_{stage}": round(sum(by_stage.get(word, 0.0) for word in words), 3)
        for stage, words in STAGES.items()
    }
    line["seconds"] = round(seconds, 3)
    line["bytes"] = max(sum(kinds.values()) for kinds in sent.values())
    print(f"{case}, seed {seed}, round {repeat}: {method} {seconds:.2f} s", flush=True)
    return [line]


def warm_up(methods):
    """Call every method once on a small table, so that no time has its imports and compiling."""
    table, truth = silomix.simulate("nested", rows=400, seed=0)
    for method in methods:
        # rows beyond the threshold are placed by a kernel of their own
        settings = {"threshold": 100, "subsample": 100} if method == "pooled" else {}
        common = {"seed": 0, "threads": 1}
        timed(partial(METHODS[method], table, len(truth.weights), common, **settings))


def missing_cases(path, commit, cases, methods, chosen):
    """Return what has no line at this commit yet, round by round."""
    done = done_cases(path, COLUMNS, KEYS)
    wanted = [
        (commit, case, seed, repeat, method)
        for case in cases
        for repeat in range(chosen.repeats)
        for seed in range(FIRST_SEED, FIRST_SEED + chosen.datasets)
        for method in methods
        if chosen.methods or method not in CASES[case].slow
    ]
    return [case for case in wanted if case not in done]


def with_ratios(lines):
    """Return the lines with each time as a multiple of FedMerDel's in the same round."""
    round_of = ["case", "seed", "repeat"]
    yardstick = lines[lines["method"] == YARDSTICK].set_index(round_of)["seconds"]
    return lines.join(yardstick.rename("yardstick"), on=round_of).assign(
        ratio=lambda found: found["seconds"] / found["yardstick"]
    )


def in_order(lines):
    """Return the lines by case and method, in the order of both."""
    kinds = {"case": list(CASES), "method": list(METHODS)}
    return lines.assign(**{name: pd.Categorical(lines[name], kinds[name]) for name in kinds})


def summarise(lines):
    """One line for each case and method: agreement, coverage, time and bytes."""
    rows = []
    for (case, method), part in in_order(lines).groupby(["case", "method"], observed=True):
        once = part.drop_duplicates("seed")
        row = {"case": case, "method": method, "sets": len(once), "rounds": len(part)}
        row["right K"] = (once["clusters"] == once["planted"]).mean()
        row["ARI"], row["best"] = once["ari"].mean(), once["best_ari"].mean()
        for what in ("m", "pi"):
            row[f"{what} covered"] = share(once, what)[0]
        row["CPU s"] = part["seconds"].median()
        row["ratio"], row["lowest"], row["highest"] = part["ratio"].quantile([0.5, 0, 1])
        rows.append(row | {"kB out": once["bytes"].mean() / 1000})
    return pd.DataFrame(rows)


def stage_shares(lines):
    """Percent of a default fit's CPU time in each stage; what is left reads the table."""
    some = in_order(lines[lines["method"] == "default"])
    totals = some.groupby("case", observed=True)[["seconds", *SECONDS]].sum()
    shares = 100 * totals[SECONDS].div(totals["seconds"], axis=0)
    shares.columns = list(STAGES)
    return shares


def noise(lines):
    """Return how far times of the same fit are apart, as max / min: the median and the largest."""
    times = lines.groupby(["case", "seed", "method"])["seconds"]
    spread = (times.max() / times.min())[times.size() > 1]
    return (spread.median(), spread.max()) if len(spread) else (np.nan, np.nan)


def held_bars(summary):
    """Hold the default fits to their bars: a table."""
    rows = []
    for row in summary[summary["method"] == "default"].to_dict("records"):
        case = CASES[row["case"]]
        for what, bar in (("CPU s", case.seconds), ("ratio", case.ratio), ("kB out", case.sent)):
            if np.isfinite(bar):
                verdict = "kept" if row[what] <= bar else "missed"
                found = {"found": round(row[what], 2), "bar": bar, "verdict": verdict}
                rows.append({"case": row["case"], "default fit": what, **found})
    return pd.DataFrame(rows)


def print_tables(lines):
    """Print the methods side by side, the stages of a default fit, the noise and the bars."""
    summary, (usual, worst) = summarise(lines), noise(lines)
    with pd.option_context("display.width", 250, "display.max_columns", 30):
        print(f"\n{summary.round(3).to_string(index=False)}")
    shares, held = stage_shares(lines), held_bars(summary)
    if len(shares):
        print(f"\nPercent of a default fit:\n{shares.round(1).to_string()}")
    if usual > 0:
        print(f"\nThe same fit again: max / min of CPU times {usual:.2f}, at worst {worst:.2f}")
    if len(held):
        print(f"\n{held.to_string(index=False)}")


def describe_commit():
    """Return the commit as a word, since digits alone would be read as a number."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return f"git {found.stdout.strip() or 'unknown'}"


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=QUICK, help=f"some of {','.join(CASES)}; all in ''")
    parser.add_argument("--methods", default="", help=f"some of {','.join(METHODS)}")
    parser.add_argument("--datasets", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2, help="rounds on each data set")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args(words)
    cases = chosen_words(chosen.cases, CASES)
    methods = installed(chosen_words(chosen.methods, METHODS))
    path, commit = chosen.results / "methods.csv", describe_commit()
    missing = missing_cases(path, commit, cases, methods, chosen)
    run_cases(path, COLUMNS, run_one, missing, 1, prepare=partial(warm_up, methods))
    lines = read_lines(path, COLUMNS)
    lines = with_ratios(lines[(lines["commit"] == commit) & lines["case"].isin(cases)])
    if len(lines):
        print_tables(lines)


if __name__ == "__main__":
    main()
