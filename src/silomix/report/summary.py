"""What a command says of its results, to a person and to a program: of a posterior and a silo."""

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
from silomix.model.sentences import listing, number, plural, printable, span
from silomix.posterior.frames import estimates
from silomix.posterior.verdict import sentences
from silomix.report import run_sections as run
from silomix.report.cluster_sections import CLEAR, number_sentences, sizes_frame, sizes_table
from silomix.report.display import (
    as_view,
    frame_view,
    from_lines,
    make_table,
    shown_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table as TerminalTable

    from silomix.kernels.arrays import Floats, Reals
    from silomix.model.draws import LocalPosterior
    from silomix.posterior import Posterior, PosteriorDiagnostics

# Silos with a line of their own; the others are summed up.
MOST_SILOS = 20
LOWER, UPPER = f"lower_{100 * INTERVAL:.0f}_hdi", f"upper_{100 * INTERVAL:.0f}_hdi"
SHORTEST = f"Each interval is the shortest that contains {INTERVAL:.0%} of the draws."


def posterior_record(posterior: Posterior) -> dict[str, Any]:
    """Return what a program wants to know, ready for JSON."""
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
    """Return what a person wants to know: the clusters, the silos, the verdict, what was sent."""
    rows, made = run.rows_by_silo(posterior), posterior.provenance
    counted = "" if rows is None else f", {run.about(posterior)}{plural(sum(rows), 'row')}"
    found = f"{plural(posterior.n_clusters, 'cluster')} in {plural(len(posterior.silos), 'silo')}"
    variables = plural(len(posterior.study.variables), "variable")
    yield Text(f"{found}{counted}, {variables}", style="bold")
    schema = posterior.study.table_schema
    if schema.numbers and not schema.of_parameters:
        taken = listing(
            [f"{shown_name(variable)} ({variable.kind})" for variable in schema.numbers]
        )
        others = "; the others as categories" if schema.categories else ""
        yield Text(f"Taken as numbers: {taken}{others}.")
    yield _clusters_view(posterior)
    yield verdict_view(posterior.diagnostics)
    yield Text()
    several = len(posterior.silos) > 1
    if several and posterior.correspondence is not None:
        yield Text("Which silos found which cluster in their own rows", style="bold")
        yield _holders_view(posterior)
    yield Text("How many clusters", style="bold")
    yield Text("\n".join([*number_sentences(posterior), ""]))
    if several:
        yield _silos_view(posterior)
    if several and posterior.silo_profiles is not None:
        yield Text("In which variables the silos differ", style="bold")
        yield Text("\n".join([*run.drift_sentences(posterior), ""]))
    missing = run.missing_shares(posterior)
    if missing is not None and len(missing):
        shown = as_view(run.missing_table(missing.iloc[:, :5]), MOST_SILOS)
        yield Group(Text("Missing cells", style="bold"), shown)
    yield Text("What left each silo, in bytes of its messages", style="bold")
    yield as_view(run.sent_table(posterior), MOST_SILOS)
    if any("DistinctRows" in kinds for kinds in made.sent.values()):
        yield Text(
            "Distinct rows with their counts are the table, except for its order. The oracle "
            '"federated" sends sums of log-likelihoods and gradients instead.\n'
        )
    yield Text(
        " ".join(sentence for _, sentence, _ in run.steps(posterior))
        + f" Seed {made.seed}, study {made.study[:12]}, silomix {made.version}. {SHORTEST}"
    )


def _clusters_view(posterior: Posterior) -> RenderableType:
    """Return how large the clusters are, and what each is like in words."""
    clear = f"Clear rows belong to their cluster with a probability of at least {CLEAR:.0%}.\n"
    said = zip(posterior.cluster_names, posterior.descriptions(), strict=True)
    words = "".join(f"Cluster {name}: {printable(words)}.\n" for name, words in said)
    legend = "" if posterior.assignment is None else f"{clear}\n"
    return Group(as_view(sizes_table(posterior)), Text(legend + words))


def _silos_view(posterior: Posterior) -> RenderableType:
    silos = run.silos_table(posterior)
    return Group(Text(silos.caption, style="bold"), as_view(silos, MOST_SILOS))


def verdict_view(diagnostics: PosteriorDiagnostics) -> Text:
    """Return the verdict, a line for each sentence: those of several silos then stay apart."""
    return Text("\n".join(sentences(diagnostics)))


def _holders_view(posterior: Posterior) -> TerminalTable:
    """Return who holds which cluster; `confidence` is that of the least certain match."""
    lines = []
    for cluster, found in run.match_confidence(posterior).groupby("cluster"):
        silos = zip(found.index.get_level_values("silo"), found, strict=True)
        named = [f"{silo} ({sure:.2f})" if sure < run.SURE else silo for silo, sure in silos]
        known, many = "" if found.isna().all() else f"{found.min():.2f}", len(posterior.silos)
        name = posterior.cluster_names[int(str(cluster))]
        lines.append((name, f"{len(named)} of {many}", known, listing(named)))
    heads = ("cluster", "silos", "confidence", "found by")
    return as_view(from_lines("", heads, lines, left=(0, 3)))


def assigned_record(posterior: Posterior, labels: pd.DataFrame) -> dict[str, Any]:
    """Return for a program how many rows each cluster got, by `Posterior.labels_frame`."""
    sizes = np.bincount(labels["cluster"], minlength=posterior.n_clusters)
    others = ~labels["silo"].isin(posterior.silos)
    if len(posterior.silos) == 1:
        others &= labels["silo"].notna()  # who fitted one table has no silos to name
    return {
        "rows": len(labels),
        "clusters": posterior.n_clusters,
        "sizes": sizes.tolist(),
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
    found = estimates(draws, INTERVAL)
    return {name: found["mean"], LOWER: found["lower"], UPPER: found["upper"]}


def silo_record(name: str, posterior: LocalPosterior) -> dict[str, Any]:
    """Return what a program wants to know of one silo's run, ready for JSON."""
    draws, diagnostics = posterior.draws, posterior.draws.diagnostics
    return {
        "silo": name,
        "rows": draws.shard.rows,
        "clusters": len(posterior.sizes),
        "sizes": posterior.sizes.tolist(),
        "trusted": diagnostics.trusted,
        "verdict": diagnostics.verdict,
        "traces": {
            trace: {"rhat": _or_none(found.rhat), "ess": _or_none(found.ess)}
            for trace, found in diagnostics.traces.items()
        },
        "partition": posterior.partition.method,
        "relabel": posterior.relabel,
        "subsample": posterior.partition.subsample,
    }


def _or_none(value: float) -> float | None:
    """Return the number for JSON, which has no nan and no infinity."""
    return float(value) if math.isfinite(value) else None


def silo_view(name: str, posterior: LocalPosterior) -> RenderableType:
    """Return what a person wants to know of one silo's run."""
    shard, diagnostics = posterior.draws.shard, posterior.draws.diagnostics
    sizes = silo_sizes(posterior)
    heading = f"{name}: {shard.rows:,} rows, {len(shard.schema.variables)} variables, "
    shown = sizes[["cluster", "rows", "share"]].copy()
    shown["weight"] = sizes["weight"].map("{:.3f}".format)
    ends = sizes[[LOWER, UPPER]].to_numpy()
    shown[f"{INTERVAL:.0%} interval"] = [span(low, high, ".3f") for low, high in ends]
    found = diagnostics.traces.values()
    traces = {
        "trace": [trace.replace("_", " ") for trace in diagnostics.traces],
        "R-hat": ["constant" if math.isnan(t.rhat) else rhat_words(t.rhat, 3) for t in found],
        "effective draws": ["" if math.isnan(t.rhat) else f"{t.ess:,.0f}" for t in found],
    }
    return Group(
        Text(heading + plural(len(sizes), "cluster"), style="bold"),
        frame_view(shown),
        Text(diagnostics.verdict),
        as_view(make_table("traces", traces)),
        Text(_provenance(posterior)),
    )


def _provenance(posterior: LocalPosterior) -> str:
    draws, schedule, found = posterior.draws, posterior.draws.schedule, posterior.partition
    kept = "all" if schedule.thin == 1 else f"one in {schedule.thin}"
    subsample = f" on a subsample of {found.subsample:,} rows" if found.subsample else ""
    silos = f", one of {draws.silos} silos" if draws.silos > 1 else ""
    return (
        f"Sampled with {draws.components} components, {plural(schedule.chains, 'chain')} of "
        f"{schedule.iterations:,} sweeps ({schedule.burn_in:,} burn-in, then {kept} kept), seed "
        f"{draws.seed}{silos}. Partition by {found.method}{subsample}; draws relabelled by "
        f"{posterior.relabel}. {SHORTEST}"
    )
