"""Which local clusters of which silos are the same: [Release] -> Correspondence.

To add a matching: write a function beside these that returns the group of each local cluster, give
it a record in `silomix.study`, a branch in `match`, and a line in the contract tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.matching import greedy, paper_matchings
from silomix.coordinator.matching.evidence import (
    MOST_LOCAL_CLUSTERS,
    Profile,
    co_occurrence,
    group_under_drift,
    local_clusters,
)
from silomix.model.draws import Correspondence
from silomix.study.settings import Ball, Divergence, Hungarian, Matching

if TYPE_CHECKING:
    from silomix.kernels.arrays import Floats, Ints, Rng
    from silomix.messages import Release, Silos
    from silomix.model.prior import PooledModel

__all__ = ["match"]


def match(
    releases: list[Release],
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
    settings : the matching and its options.
    silos : asked by "divergence" only.
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
    clusters = local_clusters(releases)
    profile = Profile(model.family)
    for_matching, for_confidence = np.random.default_rng(model.seed).spawn(2)
    # the matchings of the paper know no drift: only what follows is judged under it
    groups = groups_of_paper(releases, settings, silos, model, for_matching)

    limit = greedy.folding_limit(settings.absorb)
    # a silo's stray rows are its own affair: how silos differ says nothing about them
    own = greedy.absorb_groups(
        clusters, np.arange(len(clusters.silo)), profile, limit=min(greedy.STRAY_ROWS, limit)
    )

    def find(evidence: Profile) -> Ints:
        return greedy.evidence_groups(clusters, evidence, own) if groups is None else groups

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


def groups_of_paper(
    given: list[Release], settings: Matching, silos: Silos, model: PooledModel, rng: Rng
) -> Ints | None:
    """Return the groups that one of the paper's matchings finds; None where evidence decides."""
    family = model.shared_family(len(given))
    if isinstance(settings, Ball):
        return paper_matchings.ball_groups(given, family, settings)
    if isinstance(settings, Hungarian):
        return paper_matchings.hungarian_groups(given, family)
    if isinstance(settings, Divergence):
        return paper_matchings.divergence_groups(given, settings, silos, rng)
    return None


def number_by_rows(groups: Ints, sizes: Ints) -> Ints:
    """Return groups, (local,), numbered by decreasing rows; of equal ones, the first seen first."""
    _, first, ids = np.unique(groups, return_index=True, return_inverse=True)
    rows = np.bincount(ids, weights=sizes)
    return np.argsort(np.lexsort((first, -rows)))[ids]
