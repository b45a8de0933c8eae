"""Results of commands for a person and for a program: of a posterior, and of one silo."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType, group
from rich.text import Text

from silomix.model.diagnostics import rhat_words
from silomix.model.metrics import INTERVAL
from silomix.model.sentences import number, plural, printable, span
from silomix.posterior.frames import estimates
from silomix.report import sections
from silomix.report.cluster_sections import sizes_frame
from silomix.report.display import as_view, frame_view, make_table
from silomix.report.run_sections import SHORTEST, about, rows_by_silo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.kernels.arrays import Floats, Reals
    from silomix.model.draws import LocalPosterior
    from silomix.posterior import Posterior

# Lines of a table, unless there are more clusters; the others are only counted.
MOST_LINES = 20
LOWER, UPPER = f"lower_{100 * INTERVAL:.0f}_hdi", f"upper_{100 * INTERVAL:.0f}_hdi"


def posterior_record(posterior: Posterior) -> dict[str, Any]:
    """Results of a posterior for a program, ready for JSON."""
    diagnostics = posterior.diagnostics
    match, weights = posterior.correspondence, posterior.silo_weights
    sizes = sizes_frame(posterior).rename(columns={"mean": "share"})
    columns = ["cluster", "rows", "share", "lower", "upper"]
    return {
        "clusters": json_lines(sizes.reindex(columns=columns)),
        "interval": INTERVAL,
        "correspondence": match and json_lines(posterior.correspondence_frame(frame_like="pandas")),
        "silo_weights": weights and dict(zip(weights.silos, weights.weights.tolist(), strict=True)),
        "level": diagnostics.level,
        "trusted": diagnostics.trusted,
        "verdict": diagnostics.verdict,
        "notes": list(diagnostics.notes),
        "polish_rounds": diagnostics.rounds,
        "still_moving": diagnostics.still_moving,
        **asdict(posterior.provenance),
    }


def json_lines(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the lines of a frame for JSON, which has no nan."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


@group()
def posterior_view(posterior: Posterior) -> Iterator[RenderableType]:
    """Return a posterior's sections, as far as a terminal shows them."""
    rows = rows_by_silo(posterior)
    counted = "" if rows is None else f", {about(posterior)}{plural(sum(rows), 'row')}"
    clusters = plural(posterior.n_clusters, "cluster")
    silos = plural(len(posterior.silos), "silo")
    variables = plural(len(posterior.study.variables), "variable")
    yield Text(f"{clusters} in {silos}{counted}, {variables}\n", style="bold")
    most = max(MOST_LINES, posterior.n_clusters)
    for section in sections(posterior):
        sentences = [Text(printable(sentence)) for sentence in section.sentences(posterior)]
        tables = [table for make in section.tables if (table := make(posterior))]
        views = [part for table in tables for part in (Text(table.caption), as_view(table, most))]
        if sentences or tables:
            end = [] if tables else [Text()]  # a table ends with an empty line
            yield Group(Text(section.title, style="bold"), *sentences, *views, *end)


def assigned_record(posterior: Posterior, labels: pd.DataFrame) -> dict[str, Any]:
    """Return for a program how many rows each cluster got, by `Posterior.labels_frame`."""
    others = ~labels["silo"].isin(posterior.silos)
    if len(posterior.silos) == 1:
        others &= labels["silo"].notna()  # who fitted one table has no silos to name
    return {
        "rows": len(labels),
        "clusters": posterior.n_clusters,
        "sizes": np.bincount(labels["cluster"], minlength=posterior.n_clusters).tolist(),
        "mean_probability": float(labels["probability"].mean()) if len(labels) else None,
        "rows_of_other_silos": int(others.sum()),
    }


def assigned_view(posterior: Posterior, labels: pd.DataFrame) -> RenderableType:
    """Return for a person how many rows each cluster got."""
    clusters = range(posterior.n_clusters)
    sure = labels.groupby("cluster")["probability"].agg(["size", "mean"]).reindex(clusters)
    sizes = sure["size"].fillna(0)
    columns = {
        "cluster": posterior.cluster_names,
        "rows": sizes.map("{:,.0f}".format),
        "share": (sizes / max(len(labels), 1)).map("{:.1%}".format),
        "mean probability": [number(mean, ".3f") for mean in sure["mean"]],
    }
    heading = f"{plural(len(labels), 'row')}, {plural(posterior.n_clusters, 'cluster')}"
    note = ""
    if others := assigned_record(posterior, labels)["rows_of_other_silos"]:
        note = f"Rows of silos that were not fitted, labelled by the overall weights: {others:,}."
        if labels["silo"].isna().all():
            note += " If a column names their silos, give it with --silo."
    return Group(Text(heading, style="bold"), as_view(make_table(heading, columns)), Text(note))


def silo_sizes(posterior: LocalPosterior) -> pd.DataFrame:
    """Return one line per cluster: its rows, and its weight with an interval.

    `prior_draws` is the share of the draws in which the cluster had no component of its own.
    """
    sizes = posterior.sizes
    return pd.DataFrame(
        {
            "cluster": np.arange(len(sizes)),
            "rows": sizes,
            "share": sizes / sizes.sum(),
            **_estimate("weight", posterior.weights),
            "prior_draws": posterior.prior_draws,
        }
    )


def silo_profiles(posterior: LocalPosterior) -> pd.DataFrame:
    """Return one line per cluster and level: its probability with an interval.

    Of a number the lines are its "mean" and "sd", of a count its "rate", in the table's units.
    """
    clusters, family = range(len(posterior.sizes)), posterior.draws.family
    lines = [(cluster, *name) for cluster in clusters for name in family.names()]
    names = pd.DataFrame(lines, columns=["cluster", "variable", "level"])
    return names.assign(**_estimate("mean", family.describe(posterior.probabilities)))


def _estimate(name: str, draws: Reals) -> dict[str, Floats]:
    columns = estimates(draws, INTERVAL)
    return {name: columns["mean"], LOWER: columns["lower"], UPPER: columns["upper"]}


def silo_record(name: str, posterior: LocalPosterior) -> dict[str, Any]:
    """Results of one silo's run for a program, ready for JSON."""
    draws, diagnostics = posterior.draws, posterior.draws.diagnostics
    return {
        "silo": name,
        "rows": draws.shard.rows,
        "clusters": len(posterior.sizes),
        "sizes": posterior.sizes.tolist(),
        "trusted": diagnostics.trusted,
        "verdict": diagnostics.verdict,
        "traces": {
            word: {"rhat": _or_none(trace.rhat), "ess": _or_none(trace.ess)}
            for word, trace in diagnostics.traces.items()
        },
        "partition": posterior.partition.method,
        "relabel": posterior.relabel,
        "subsample": posterior.partition.subsample,
    }


def _or_none(value: float) -> float | None:
    """Return the number for JSON, which has no nan and no infinity."""
    return float(value) if math.isfinite(value) else None


def silo_view(name: str, posterior: LocalPosterior) -> RenderableType:
    """Results of one silo's run for a person."""
    draws, schedule, partition = posterior.draws, posterior.draws.schedule, posterior.partition
    shard, diagnostics, sizes = draws.shard, draws.diagnostics, silo_sizes(posterior)
    kept = "all" if schedule.thin == 1 else f"one in {schedule.thin}"
    subsample = f" on a subsample of {partition.subsample:,} rows" if partition.subsample else ""
    silos = f", one of {draws.silos} silos" if draws.silos > 1 else ""
    heading = f"{name}: {shard.rows:,} rows, {len(shard.schema.variables)} variables, "
    shown = sizes[["cluster", "rows", "share", "weight"]].copy()
    ends = sizes[[LOWER, UPPER]].to_numpy()
    shown[f"{INTERVAL:.0%} interval"] = [span(low, high, ".1%") for low, high in ends]
    traced = diagnostics.traces.values()
    traces = {
        "trace": [trace.replace("_", " ") for trace in diagnostics.traces],
        "R-hat": ["constant" if math.isnan(t.rhat) else rhat_words(t.rhat, 3) for t in traced],
        "effective draws": ["" if math.isnan(t.rhat) else f"{t.ess:,.0f}" for t in traced],
    }
    return Group(
        Text(heading + plural(len(sizes), "cluster"), style="bold"),
        frame_view(shown),
        Text(diagnostics.verdict),
        as_view(make_table("traces", traces)),
        Text(
            f"Sampled with {draws.components} components, {plural(schedule.chains, 'chain')} of "
            f"{schedule.iterations:,} sweeps ({schedule.burn_in:,} burn-in, then {kept} kept), "
            f"seed {draws.seed}{silos}. Partition by {partition.method}{subsample}; draws "
            f"relabelled by {posterior.relabel}. {SHORTEST}"
        ),
    )
