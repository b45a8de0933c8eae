"""Which local clusters of which silos are the same: [Release] -> Correspondence.

A matching is a function that returns the group of each local cluster of a `MatchingProblem`; it is
registered in `silomix.study.MATCHINGS`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.matching import greedy
from silomix.coordinator.matching.evidence import (
    MOST_LOCAL_CLUSTERS,
    MatchingProblem,
    Profile,
    co_occurrence,
    group_under_drift,
    local_clusters,
)
from silomix.model.draws import Correspondence
from silomix.study.methods import MATCHINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints
    from silomix.messages import Release, Silos
    from silomix.model.prior import PooledModel
    from silomix.study.methods import Matching

__all__ = ["MatchingProblem", "match"]


def match(
    releases: Sequence[Release],
    counts: Sequence[Floats],
    settings: Matching,
    silos: Silos,
    model: PooledModel,
    *,
    drift: bool,
    polishes: bool = False,
) -> tuple[Correspondence, Floats | None]:
    """Find which local clusters are the same global cluster, and how sure that is.

    Parameters
    ----------
    releases : one from each silo, in the order of the roster.
    counts : the effective counts of each (`silomix.messages.released_draws.effective_counts`).
    settings : the matching and its options.
    silos : asked by matchings that have questions.
    model : profiles are scored under its beta as it stands, not a silo's share of it, for a global
        cluster is one of that model.
    drift : whether a cluster's profile may differ between silos.
    polishes : whether a polish follows, which can sort the rows of a cluster that is two in one.

    Returns
    -------
    correspondence : global clusters by decreasing rows; of equal ones, the one whose first
        local cluster comes first in the roster. Its confidence is left out above
        `MOST_LOCAL_CLUSTERS` local clusters.
    kappa : (variable,), how alike the silos' profiles are; None without drift.
    """
    clusters = local_clusters(releases, counts)
    profile = Profile(model.family)
    for_matching, for_confidence = np.random.default_rng(model.seed).spawn(2)
    limit = greedy.folding_limit(settings.absorb)
    # a silo's stray rows are its own affair: how silos differ says nothing about them
    own = greedy.absorb_groups(
        clusters, np.arange(len(clusters.silo)), profile, limit=min(greedy.STRAY_ROWS, limit)
    )

    solve = MATCHINGS.function(settings)
    problem = MatchingProblem(releases, clusters, profile, own, silos, for_matching)
    # a matching that knows no drift is asked once: only what follows is judged under it
    groups = None if settings.by_evidence else solve(problem, settings)

    def find(evidence: Profile) -> Ints:
        if groups is not None:
            return groups
        return np.asarray(solve(replace(problem, evidence=evidence), settings))

    if drift and len(releases) > 1:
        found, profile = group_under_drift(clusters, profile, find)
    else:
        found = find(profile)
    if settings.absorb:
        found = greedy.absorb_groups(clusters, found, profile, limit=limit)
    confidence = None
    if len(found) <= MOST_LOCAL_CLUSTERS:
        confidence = co_occurrence(clusters, found, profile, for_confidence)
    if settings.absorb and polishes:
        found, confidence = greedy.split_unions(clusters, found, profile, confidence)
    found = number_by_rows(found, clusters.sizes)
    correspondence = Correspondence(
        silos=clusters.names,
        groups=tuple(found[clusters.silo == silo] for silo in range(len(releases))),
        sizes=tuple(release.sizes for release in releases),
        method=settings.method,
        confidence=confidence,
    )
    return correspondence, profile.kappa


def number_by_rows(groups: Ints, sizes: Ints) -> Ints:
    """Return groups, (local,), numbered by decreasing rows; of equal ones, the first seen first."""
    _, first, ids = np.unique(groups, return_index=True, return_inverse=True)
    rows = np.bincount(ids, weights=sizes)
    return np.argsort(np.lexsort((first, -rows)))[ids]
