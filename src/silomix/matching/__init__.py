"""Which local clusters of which silos are the same: [Release] -> Correspondence.

To add a matching: write a function beside these that returns the group of each local cluster
and a `MatchingInfo`, give it a record in `silomix.study`, a line in `METHODS`, and a line in the
contract tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.matching.absorb import absorb_groups, folding_limit
from silomix.matching.ball import ball_groups
from silomix.matching.confidence import MOST_LOCAL_CLUSTERS, SWEEPS, co_occurrence
from silomix.matching.divergence import divergence_cost, divergence_groups
from silomix.matching.evidence import evidence_groups
from silomix.matching.hungarian import hungarian_groups
from silomix.matching.kappa import group_under_drift
from silomix.matching.profile import Profile
from silomix.matching.records import (
    Absorption,
    LocalClusters,
    MatchingInfo,
    check_releases,
    local_clusters,
)
from silomix.types import Correspondence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from silomix.messages import Silos
    from silomix.release import Release
    from silomix.study.settings import Ball, Divergence, Hungarian, Matching
    from silomix.types import Prior

    Found = tuple[NDArray[np.int64], MatchingInfo]
    Grouped = tuple[NDArray[np.int64], MatchingInfo, Profile]

__all__ = ["METHODS", "Absorption", "MatchingInfo", "divergence_cost", "match"]


@dataclass(frozen=True, eq=False)
class Problem:
    """All that a matching may look at.

    Attributes
    ----------
    releases : one from each silo, in the order of the roster.
    clusters : their local clusters in one list.
    silos : to ask, if the matching has questions.
    prior : of the pooled model.
    profile : how counts become evidence without drift.
    drift : whether clusters may differ between silos.
    rng : for the matching.
    """

    releases: Sequence[Release]
    clusters: LocalClusters
    silos: Silos
    prior: Prior
    profile: Profile
    drift: bool
    rng: np.random.Generator


def _hungarian(problem: Problem, _: Hungarian) -> Found:
    return hungarian_groups(problem.releases)


def _divergence(problem: Problem, settings: Divergence) -> Found:
    return divergence_groups(problem.releases, settings, problem.silos, problem.rng)


def _ball(problem: Problem, settings: Ball) -> Found:
    return ball_groups(
        problem.releases,
        problem.profile.offsets,
        exponent=settings.exponent,
        radius=settings.radius,
    )


METHODS: dict[str, Callable[[Problem, Any], Found]] = {
    "hungarian": _hungarian,
    "divergence": _divergence,
    "ball": _ball,
}
"""The matchings of the paper, which know no drift."""


def _group(problem: Problem, settings: Matching) -> Grouped:
    """Return the groups, and the evidence that judges them from here on."""
    clusters, profile = problem.clusters, problem.profile
    find: Callable[[Profile], Found] = partial(evidence_groups, clusters)
    if settings.method != "evidence":
        found = METHODS[settings.method](problem, settings)
        find = lambda _: found  # noqa: E731
    if not problem.drift:
        return *find(profile), profile
    return group_under_drift(clusters, profile.offsets, profile.beta, find)


def match(
    releases: Sequence[Release],
    settings: Matching,
    silos: Silos,
    *,
    prior: Prior,
    offsets: NDArray[np.int64],
    seed: int,
    drift: bool = False,
) -> tuple[Correspondence, MatchingInfo]:
    """Find which local clusters are the same global cluster, and how sure that is.

    Parameters
    ----------
    releases : one from each silo, in the order of the roster.
    settings : the matching and its options.
    silos : asked by "divergence" only.
    prior : of the pooled model: profiles are scored under its beta as it stands, for a global
        cluster is one of that model.
    offsets : (variable + 1,), where each variable's levels start.
    seed : same seed, same answer.
    drift : whether a cluster's profile may differ between silos.

    Returns
    -------
    correspondence : global clusters by decreasing rows; of equal ones, the one whose first
        local cluster comes first in the roster. Its confidence is left out above
        `MOST_LOCAL_CLUSTERS` local clusters.
    info : what happened.
    """
    check_releases(releases, offsets)
    clusters = local_clusters(releases)
    profile = Profile(offsets, prior.beta)
    for_matching, for_confidence = np.random.default_rng(seed).spawn(2)
    several = len(releases) > 1
    problem = Problem(releases, clusters, silos, prior, profile, drift and several, for_matching)
    groups, info, profile = _group(problem, settings)
    if settings.absorb:
        limit = folding_limit(settings.absorb)
        groups, absorbed = absorb_groups(clusters, groups, profile, limit=limit)
        info = replace(info, absorbed=absorbed)
    confidence = None
    if len(groups) <= MOST_LOCAL_CLUSTERS:
        confidence = co_occurrence(clusters, groups, profile, for_confidence)
        info = replace(info, sweeps=SWEEPS)
    groups = number_by_rows(groups, clusters.sizes)
    correspondence = Correspondence(
        silos=clusters.names,
        groups=tuple(groups[clusters.silo == silo] for silo in range(len(releases))),
        sizes=tuple(release.sizes for release in releases),
        method=settings.method,
        confidence=confidence,
    )
    return correspondence, info


def number_by_rows(groups: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return groups, (local,), numbered by decreasing rows; of equal ones, the first seen first."""
    _, first, ids = np.unique(groups, return_index=True, return_inverse=True)
    rows = np.bincount(ids, weights=sizes)
    return np.argsort(np.lexsort((first, -rows)))[ids]
