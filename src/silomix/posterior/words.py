"""Posterior -> a few lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.metrics import highest_density_interval
from silomix.words import listing, plural

if TYPE_CHECKING:
    from silomix.posterior.record import Posterior

MOST_NAMES = 6
LEVEL = 0.95


def describe(posterior: Posterior) -> str:
    """Return five lines: what it is, the sizes, the silos, how it was made, the verdict."""
    study, made = posterior.study, posterior.provenance
    counts = (
        f"Posterior of {plural(posterior.n_clusters, 'cluster')} in "
        f"{plural(len(posterior.silos), 'silo')}: {plural(posterior.n_draws, 'draw')}, "
        f"{plural(len(study.variables), 'variable')}, {plural(len(posterior.levels), 'level')}"
    )
    made_by = (
        f"made by silomix {made.version}, {study.strategy}, {study.matching.method} matching, "
        f"{plural(posterior.diagnostics.rounds, 'polish round')}, seed {made.seed}, "
        f"study {made.study[:12]}"
    )
    lines = [
        counts,
        f"sizes ({LEVEL:.0%} HDI): {_sizes(posterior)}",
        f"silos: {listing(posterior.silos, MOST_NAMES)}",
        made_by,
        posterior.diagnostics.verdict,
    ]
    return "\n".join(" ".join(line.split()) for line in lines)


def _sizes(posterior: Posterior) -> str:
    lower, upper = highest_density_interval(posterior.weights, LEVEL)
    means = posterior.weights.mean(axis=0, dtype=np.float64)
    told = [
        f"{mean:.1%} ({low:.1%} to {high:.1%})"
        for mean, low, high in zip(means, lower, upper, strict=True)
    ]
    return listing(told, MOST_NAMES)
