"""LocalPosterior → files and words for people: tables as CSV, a summary, the draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Group
from rich.text import Text

from silomix.atomic import private_folder, whole_file
from silomix.diagnostics import rhat_words
from silomix.metrics import highest_density_interval
from silomix.results.common import (
    INTERVAL,
    SUMMARY,
    as_text,
    or_none,
    table_view,
    write_table,
    write_text,
    writing,
)
from silomix.words import plural

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.console import RenderableType
    from rich.table import Table

    from silomix.types import Draws, LocalPosterior

LOWER, UPPER = f"lower_{INTERVAL * 100:.0f}_hdi", f"upper_{INTERVAL * 100:.0f}_hdi"
"""Columns of the highest-density interval; their names say how much it holds."""

DRAWS = "draws.npz"
FILES = ("cluster_sizes.csv", "profiles.csv", "labels.csv")


def sizes_table(posterior: LocalPosterior) -> pd.DataFrame:
    """Return one line per cluster: its rows, and its weight with an interval.

    `prior_draws` is the share of the draws in which the cluster had no component of its own.
    """
    return pd.DataFrame(
        {
            "cluster": np.arange(len(posterior.sizes)),
            "rows": posterior.sizes,
            "share": posterior.sizes / posterior.sizes.sum(),
            **_estimate("weight", posterior.weights),
            "prior_draws": posterior.prior_draws,
        }
    )


def profile_table(posterior: LocalPosterior) -> pd.DataFrame:
    """Return one line per cluster and level: its probability with an interval."""
    clusters, levels = len(posterior.sizes), posterior.levels
    return pd.DataFrame(
        {
            "cluster": np.repeat(np.arange(clusters), len(levels)),
            "variable": [variable for variable, _ in levels] * clusters,
            "level": [level for _, level in levels] * clusters,
            **_estimate("mean", posterior.probabilities),
        }
    )


def _estimate(name: str, draws: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    lower, upper = highest_density_interval(draws, INTERVAL)
    mean = draws.mean(axis=0, dtype=np.float64)
    return {name: mean.ravel(), LOWER: lower.ravel(), UPPER: upper.ravel()}


def as_record(name: str, posterior: LocalPosterior) -> dict[str, Any]:
    """Return what a program wants to know of one silo's run, ready for JSON."""
    draws = posterior.draws
    return {
        "silo": name,
        "rows": draws.shard.rows,
        "clusters": len(posterior.sizes),
        "sizes": posterior.sizes.tolist(),
        "trusted": draws.diagnostics.trusted,
        "verdict": draws.diagnostics.verdict,
        "traces": {
            trace: {"rhat": or_none(found.rhat), "ess": or_none(found.ess)}
            for trace, found in draws.diagnostics.traces.items()
        },
        "partition": posterior.partition.method,
        "relabel": posterior.relabel,
        "subsample": posterior.partition.subsample,
    }


def describe(name: str, posterior: LocalPosterior) -> RenderableType:
    """Return what a person wants to know of one silo's run."""
    draws = posterior.draws
    sizes = len(posterior.sizes)
    heading = (
        f"{name}: {draws.shard.rows:,} rows, {len(draws.shard.schema.variables)} variables, "
        f"{plural(sizes, 'cluster')}"
    )
    return Group(
        Text(heading, style="bold"),
        _sizes_view(sizes_table(posterior)),
        Text(draws.diagnostics.verdict),
        _traces_view(draws),
        Text(_provenance(posterior)),
    )


def _sizes_view(sizes: pd.DataFrame) -> Table:
    table = table_view("cluster", "rows", "share", "weight", f"{INTERVAL:.0%} interval")
    for line in sizes.to_dict("records"):
        interval = f"{line[LOWER]:.3f} to {line[UPPER]:.3f}"
        table.add_row(
            str(line["cluster"]),
            f"{line['rows']:,}",
            f"{line['share']:.1%}",
            f"{line['weight']:.3f}",
            interval,
        )
    return table


def _traces_view(draws: Draws) -> Table:
    table = table_view("trace", "R-hat", "effective draws")
    for name, trace in draws.diagnostics.traces.items():
        words = name.replace("_", " ")
        if math.isnan(trace.rhat):
            table.add_row(words, "constant", "")
        else:
            table.add_row(words, rhat_words(trace.rhat, 3), f"{trace.ess:,.0f}")
    return table


def _provenance(posterior: LocalPosterior) -> str:
    draws, schedule, found = posterior.draws, posterior.draws.schedule, posterior.partition
    kept = "all" if schedule.thin == 1 else f"one in {schedule.thin}"
    subsample = f" on a subsample of {found.subsample:,} rows" if found.subsample else ""
    chains = plural(schedule.chains, "chain")
    silos = f", one of {draws.silos} silos" if draws.silos > 1 else ""
    return (
        f"Sampled with {draws.components} components, {chains} of {schedule.iterations:,} "
        f"sweeps ({schedule.burn_in:,} burn-in, then {kept} kept), seed "
        f"{draws.seed}{silos}. Partition by {found.method}{subsample}; draws relabelled by "
        f"{posterior.relabel}. An interval holds {INTERVAL:.0%} of the draws, and is the "
        "shortest that does."
    )


def silo_files(folder: Path, *, keep_draws: bool) -> list[Path]:
    """Return the files that `write_silo` writes."""
    return [folder / name for name in (*FILES, SUMMARY, *([DRAWS] if keep_draws else []))]


def write_silo(
    folder: Path, name: str, posterior: LocalPosterior, *, keep_draws: bool = False
) -> list[Path]:
    """Write one silo's results into a folder, and return the files.

    Parameters
    ----------
    folder : made where there is none, its owner's alone; so are labels and draws anywhere.
    name : what the summary calls the silo.
    keep_draws : whether to write `draws.npz` too, of about draws × rows bytes.
    """
    labels = posterior.partition.labels
    rows = np.arange(1, len(labels) + 1)
    with writing(folder):
        private_folder(folder)
        write_table(sizes_table(posterior), folder / "cluster_sizes.csv")
        write_table(profile_table(posterior), folder / "profiles.csv")
        own = pd.DataFrame({"row": rows, "cluster": labels})
        write_table(own, folder / "labels.csv", private=True)
        write_text(as_text(describe(name, posterior)), folder / SUMMARY)
        if keep_draws:
            write_draws(posterior.draws, folder / DRAWS)
    return silo_files(folder, keep_draws=keep_draws)


def write_draws(draws: Draws, path: Path) -> None:
    """Write the draws as arrays of numbers and text, which NumPy reads without pickle.

    `labels` (draw, row), `weights` (draw, component), `probabilities` (draw, component, level),
    `log_likelihood` and `chain` (draw,), and `levels` (level, 2): variable and level.
    """
    with writing(path), whole_file(path, private=True) as file:
        np.savez(
            file,
            labels=draws.labels,
            weights=draws.weights,
            probabilities=draws.probabilities,
            log_likelihood=draws.log_likelihood,
            chain=draws.chain,
            levels=np.array(draws.levels, dtype=np.str_),
        )
