"""Posterior → what to say of it, to a person and to a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from silomix.metrics import highest_density_interval
from silomix.posterior.diagnosis import sentences
from silomix.report.drift import drift_section
from silomix.report.silos import SURE, rows_by_silo, sent_kinds
from silomix.results.common import INTERVAL, or_none, table_view
from silomix.words import listing, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from rich.console import RenderableType
    from rich.table import Table

    from silomix.posterior import Posterior, PosteriorDiagnostics
    from silomix.types import Correspondence

MOST_LINES = 20
"""Silos with a line of their own; the others are summed up."""
MOST_NAMES = 8

KINDS = {
    "Release": "release",
    "DivergenceReply": "matching costs",
    "DistinctRows": "distinct rows",
    "LogLikelihoodReply": "gradients",
    "PolishReply": "counts",
    "AssignReply": "cluster sizes",
}
"""Headings for what a silo sends, by kind of reply, in the order of the method."""


def posterior_record(posterior: Posterior) -> dict[str, Any]:
    """Return what a program wants to know, ready for JSON."""
    diagnostics, made = posterior.diagnostics, posterior.provenance
    lower, upper = highest_density_interval(posterior.weights, INTERVAL)
    labelled, say = _labelled(posterior), posterior.silo_weights
    return {
        "clusters": [
            {
                "cluster": cluster,
                "rows": None if labelled is None else int(labelled[cluster]),
                "share": float(mean),
                "lower": float(lower[cluster]),
                "upper": float(upper[cluster]),
            }
            for cluster, mean in enumerate(posterior.weights.mean(axis=0, dtype=np.float64))
        ],
        "interval": INTERVAL,
        "silos": list(posterior.silos),
        "correspondence": _correspondence_record(posterior.correspondence),
        "silo_weights": say and dict(zip(say.silos, say.weights.tolist(), strict=True)),
        "level": diagnostics.level,
        "trusted": diagnostics.trusted,
        "verdict": diagnostics.verdict,
        "notes": list(diagnostics.notes),
        "polish_rounds": diagnostics.rounds,
        "still_moving": bool(diagnostics.still_moving),
        "sent": {silo: dict(kinds) for silo, kinds in made.sent.items()},
        "answered": {silo: dict(kinds) for silo, kinds in made.answered.items()},
        "study": made.study,
        "seed": made.seed,
        "version": made.version,
    }


def _correspondence_record(found: Correspondence | None) -> list[dict[str, Any]] | None:
    if found is None:
        return None
    parts = zip(found.silos, found.groups, found.sizes, found.pairs_confidence(), strict=True)
    return [
        {
            "silo": silo,
            "local_cluster": local,
            "rows": int(rows),
            "cluster": int(group),
            "confidence": or_none(sure),
        }
        for silo, groups, sizes, confidence in parts
        for local, (group, rows, sure) in enumerate(zip(groups, sizes, confidence, strict=True))
    ]


def posterior_view(posterior: Posterior) -> RenderableType:
    """Return what a person wants to know: the clusters, the silos, the verdict, what was sent."""
    return Group(*_parts(posterior))


def _parts(posterior: Posterior) -> Iterator[RenderableType]:
    silos, variables = len(posterior.silos), len(posterior.study.variables)
    rows = rows_by_silo(posterior)
    told = f", {plural(sum(rows), 'row')}" if rows is not None else ""
    heading = (
        f"{plural(posterior.n_clusters, 'cluster')} in {plural(silos, 'silo')}{told}, "
        f"{plural(variables, 'variable')}"
    )
    yield Text(heading, style="bold")
    yield clusters_view(posterior)
    yield verdict_view(posterior.diagnostics)
    yield Text()
    if posterior.correspondence is not None:
        yield Text("Which silos found which cluster on their own rows", style="bold")
        yield holders_view(posterior.correspondence)
    yield Text("The silos", style="bold")
    yield silos_view(posterior)
    differences = drift_section(posterior)
    if differences is not None and differences.variables is not None:
        yield Text("In which variables the silos differ", style="bold")
        yield Text("\n".join([*differences.sentences, ""]))
    yield Text("What left each silo, in bytes", style="bold")
    yield sent_view(posterior)
    if any("DistinctRows" in kinds for kinds in posterior.provenance.sent.values()):
        yield Text(
            "Distinct rows with their counts are the table but for its order. The oracle "
            '"federated" sends sums of log-likelihoods and gradients instead.\n'
        )
    yield Text(_made_by(posterior))


def verdict_view(diagnostics: PosteriorDiagnostics) -> Text:
    """Return the verdict, a line for each sentence: those of several silos then stay apart."""
    return Text("\n".join(sentences(diagnostics)))


def clusters_view(posterior: Posterior) -> Table:
    """Return a table of the clusters' sizes."""
    lower, upper = highest_density_interval(posterior.weights, INTERVAL)
    means = posterior.weights.mean(axis=0, dtype=np.float64)
    labelled = _labelled(posterior)
    table = table_view("cluster", "rows", "share", f"{INTERVAL:.0%} interval")
    for cluster, (mean, low, high) in enumerate(zip(means, lower, upper, strict=True)):
        rows = "" if labelled is None else f"{labelled[cluster]:,}"
        table.add_row(str(cluster), rows, f"{mean:.1%}", f"{low:.1%} to {high:.1%}")
    return table


def holders_view(found: Correspondence) -> Table:
    """Return a table of who holds which cluster; `sure` is the least sure of its matches."""
    confidence = found.pairs_confidence()
    table = table_view("cluster", "silos", "sure", "found by", left=["found by"])
    for cluster in range(found.clusters):
        names, least = [], np.inf
        for silo, group, sure in zip(found.silos, found.groups, confidence, strict=True):
            if (group == cluster).any():
                here = sure[group == cluster].min()
                least = min(least, here)
                names.append(silo if not here < SURE else f"{silo} ({here:.2f})")
        known = f"{least:.2f}" if np.isfinite(least) else ""
        many = f"{len(names)} of {len(found.silos)}"
        table.add_row(str(cluster), many, known, listing(names, MOST_NAMES))
    return table


def silos_view(posterior: Posterior) -> Table:
    """Return a table of the silos: rows, clusters found, and weight in the aggregation."""
    rows, found, say = rows_by_silo(posterior), posterior.correspondence, posterior.silo_weights
    table = table_view("silo", "rows", "clusters found", "weight")
    for place, silo in enumerate(posterior.silos[:MOST_LINES]):
        table.add_row(
            silo,
            "" if rows is None else f"{rows[place]:,}",
            "" if found is None else str(len(found.groups[place])),
            "" if say is None else f"{say.weights[place]:.3f}",
        )
    if len(posterior.silos) > MOST_LINES:
        table.add_row(f"{len(posterior.silos) - MOST_LINES} more")
    return table


def sent_view(posterior: Posterior) -> Table:
    """Return a table of what left each silo: bytes, by kind of reply."""
    sent, silos = posterior.provenance.sent, posterior.silos
    kinds = [kind for kind in sent_kinds(posterior) if any(s.get(kind) for s in sent.values())]
    table = table_view("silo", *(KINDS.get(kind, kind) for kind in kinds), "total")
    sizes = np.array([[sent.get(silo, {}).get(kind, 0) for kind in kinds] for silo in silos])
    sizes = np.column_stack([sizes, sizes.sum(axis=1)])
    shown = dict(zip(silos[:MOST_LINES], sizes[:MOST_LINES], strict=True))
    if silos[MOST_LINES:]:
        shown[f"{len(silos) - MOST_LINES} more, at most"] = sizes[MOST_LINES:].max(axis=0)
    for name, line in shown.items():
        table.add_row(name, *(f"{size:,}" for size in line))
    return table


def _made_by(posterior: Posterior) -> str:
    study, made, schedule = posterior.study, posterior.provenance, posterior.study.schedule
    sampled = (
        f"{study.model.components} components, {plural(schedule.chains, 'chain')} of "
        f"{'at most ' if schedule.adaptive else ''}{schedule.iterations:,} sweeps"
    )
    if study.strategy == "exact":
        how = f"Sampled over all silos at once: {sampled}."
    else:
        how = (
            f"Each silo sampled: {sampled}. Matched by {study.matching.method}, aggregated by "
            f"{study.aggregation.method}, {plural(posterior.diagnostics.rounds, 'polish round')}."
        )
    return (
        f"{how} Seed {made.seed}, study {made.study[:12]}, silomix {made.version}. An interval "
        f"holds {INTERVAL:.0%} of the draws, and is the shortest that does."
    )


def _labelled(posterior: Posterior) -> NDArray[np.int64] | None:
    """Return how many rows are labelled with each cluster; None where the rows are elsewhere."""
    if posterior.assignment is None:
        return None
    return np.bincount(posterior.labels, minlength=posterior.n_clusters)
