"""Releases + Correspondence -> the silos' draws in global terms, and their mixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import StudyMismatch
from silomix.release import release_draws
from silomix.rounding import has_rules, own_draws
from silomix.types import MatchedDraws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.release import Release
    from silomix.types import Correspondence, Prior, SiloWeights

STREAM = 0x616767
"""Sets the aggregation's draws apart from other draws of the same seed."""

SMALLEST = 1e-30
"""No global weight or probability is smaller: draws kept in float32 may be exactly zero."""


def matched_draws(
    releases: Sequence[Release],
    correspondence: Correspondence,
    count: int,
    prior: Prior,
    offsets: NDArray[np.int64],
    seed: int,
) -> MatchedDraws:
    """Return `count` draws of each silo in the global clusters' terms, in random order.

    Each silo draws from its own stream of (seed, place), so draw t of one silo has nothing to
    do with draw t of another. Where several clusters of a silo are one global cluster their
    weights add, and the profile is their mixture by weight, draw by draw.

    Parameters
    ----------
    releases : one of each silo, in the order of `correspondence.silos`.
    prior : of the pooled model.
    offsets : (variable + 1,), where each variable's levels start.
    """
    check_same_silos(releases, correspondence)
    held = correspondence.held
    silos, clusters = held.shape
    weights = np.zeros((silos, count, clusters))
    probabilities = np.zeros((silos, count, clusters, int(offsets[-1])))
    for s, (release, group) in enumerate(zip(releases, correspondence.groups, strict=True)):
        rng = np.random.default_rng([seed, release.place, STREAM])
        local_weights, profiles = release_draws(release, count, prior, silos, offsets, rng)
        if has_rules(release):
            profiles = own_draws(release, count, prior, silos, offsets, rng)
        for c in np.flatnonzero(held[s]):
            members = np.flatnonzero(group == c)
            shares = local_weights[:, members]
            weights[s, :, c] = shares.sum(axis=1)
            probabilities[s, :, c] = mixture(shares, profiles[:, members])
    return MatchedDraws(weights, probabilities, held)


def check_same_silos(releases: Sequence[Release], correspondence: Correspondence) -> None:
    """Refuse releases that are not those which were matched, in the same order."""
    names = tuple(release.silo for release in releases)
    if names != correspondence.silos:
        raise StudyMismatch(
            f"the releases are of {list(names)} but the clusters were matched for "
            f"{list(correspondence.silos)}; hand over the same silos in the same order"
        )
    for release, group in zip(releases, correspondence.groups, strict=True):
        if release.clusters != len(group):
            raise StudyMismatch(
                f"{release.silo}: the release has {release.clusters} clusters but {len(group)} "
                "were matched; match again with this release"
            )


def mixture(shares: NDArray[np.float64], profiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mix profiles (draw, part, level) by their shares (draw, part): (draw, level)."""
    if shares.shape[1] == 1:
        return profiles[:, 0]
    positive = np.maximum(shares, SMALLEST)
    parts = positive / positive.sum(axis=1, keepdims=True)
    return np.einsum("tk,tkd->td", parts, profiles)


def some_draws(matched: MatchedDraws, first: int, last: int) -> MatchedDraws:
    """Return the draws from `first` up to and without `last`: random ones, as their order is."""
    some = slice(first, last)
    return MatchedDraws(matched.weights[:, some], matched.probabilities[:, some], matched.held)


def combine(
    matched: MatchedDraws, silo_weights: SiloWeights
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the global draws, π̂ = Σ_s λ_s π^s and p̂_c = Σ_s μ_{s,c} p_c^s.

    Fendler et al. (2026), section 4.4, with V^s = λ^s I and W^s = diag(μ^s).

    Returns
    -------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    """
    return mix(matched, silo_weights.weights, silo_weights.profiles)


def mix(
    matched: MatchedDraws, weights: NDArray[np.float64], profiles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Do what `combine` does, at λ (silo,) and μ (silo, cluster)."""
    mixed_weights = np.tensordot(weights, matched.weights, axes=1)
    mixed = np.zeros(matched.probabilities.shape[1:])
    for share, probabilities in zip(profiles, matched.probabilities, strict=True):
        mixed += share[:, None] * probabilities
    return np.maximum(mixed_weights, SMALLEST), np.maximum(mixed, SMALLEST)


def mix_gradient(
    matched: MatchedDraws,
    by_weight: NDArray[np.float64],
    by_probability: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Carry a gradient in (π̂_t, p̂_t) over to one in (λ, μ), averaged over the draws.

    Parameters
    ----------
    by_weight : (draw, cluster); by_probability : (draw, cluster, level)

    Returns
    -------
    weights : (silo,); profiles : (silo, cluster)
    """
    draws = len(by_weight)
    weights = np.tensordot(matched.weights, by_weight, axes=2)
    profiles = [np.einsum("tcd,tcd->c", p, by_probability) for p in matched.probabilities]
    return weights / draws, np.array(profiles) / draws
