"""What a rounded release can stand for: draws of the counts behind it, and of the profiles.

A release under a policy is a known function of counts. Taken for exact, rounded counts make
intervals that are too short, and floors make rare levels too common. Here the counts are sampled
on the set that would have been released so, together with the profile that they come from
(`silomix.kernels.rounded_counts`). A stand-in profile says nothing of its cluster and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from silomix.kernels.rounded_counts import draw_behind
from silomix.messages.release_record import effective_counts, fit_dirichlet, without_prior
from silomix.messages.rounding import CLUSTER, least_units, profile_basis
from silomix.model.families.dirichlet import draw_levels
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints
    from silomix.messages.release_record import Release
    from silomix.model.schema import Prior

BURN_IN = 300
THIN = 2
# Sweeps dropped, sweeps between draws, and sweeps more to drop for each silo.
BURN_IN_BY_SILO = 100
# Draws behind one silo's release by itself.
OWN_DRAWS = 500
STREAM = 0x726E64


@dataclass(frozen=True, eq=False)
class Sources:
    """What local clusters say of one profile, variable by variable.

    Attributes
    ----------
    released : (source, level), units; start : (source, level), counts that are released so.
    base, least : (source,), of the policy; 0 where nothing was rounded.
    worth : (source, variable), how much of a row a row is worth; 0 where a profile stands in.
    """

    released: Ints
    start: Floats
    base: Ints
    least: Ints
    worth: Floats

    def of(self, clusters: Ints) -> Sources:
        """Return some of the sources."""
        return Sources(*(getattr(self, name)[clusters] for name in vars(self)))


def has_rules(release: Release) -> bool:
    """Tell whether a policy changed counts of a release that has no draws."""
    return release.probabilities is None and Policy(**release.policy).has_rules


def read_sources(release: Release, offsets: Ints) -> Sources:
    """Return what the clusters of one release can stand for."""
    clusters, levels = release.mean.shape
    if not has_rules(release):
        return Sources(
            np.zeros((clusters, levels), dtype=np.int64),
            effective_counts(release.mean, release.concentration, offsets),
            np.zeros(clusters, dtype=np.int64),
            np.zeros(clusters, dtype=np.int64),
            np.ones((clusters, len(offsets) - 1)),
        )
    policy = Policy(**release.policy)
    rows = release.sizes[:, None].astype(np.float64)
    released = np.rint(release.mean * rows / policy.round_to).astype(np.int64)
    own = profile_basis(release.sizes, np.diff(offsets), policy) == CLUSTER
    return Sources(
        released,
        np.float64(policy.round_to) * released,
        np.full(clusters, policy.round_to),
        np.full(clusters, least_units(policy)),
        np.where(own, np.minimum(release.concentration / rows, 1.0), 0.0),
    )


def join_sources(parts: Sequence[Sources]) -> Sources:
    """Return the sources of several releases in one list."""
    names = vars(parts[0])
    return Sources(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def draw_profile(
    sources: Sources, beta: float, offsets: Ints, draws: int, rng: np.random.Generator
) -> Floats:
    """Draw a profile that all sources share, given what they released: (draw, level)."""
    profile = np.empty((draws, int(offsets[-1])))
    for variable, (first, last) in enumerate(pairwise(offsets)):
        known = sources.worth[:, variable] > 0
        columns = slice(first, last)
        profile[:, columns], _ = draw_behind(
            np.ascontiguousarray(sources.released[known, columns]),
            np.ascontiguousarray(sources.start[known, columns]),
            sources.base[known],
            sources.least[known],
            sources.worth[known, variable],
            beta,
            BURN_IN + BURN_IN_BY_SILO * int(known.sum()),
            THIN,
            draws,
            rng,
        )
    return profile


def own_draws(
    release: Release, count: int, prior: Prior, silos: int, offsets: Ints, rng: np.random.Generator
) -> Floats:
    """Draw the profiles of one silo's clusters, by themselves: (draw, cluster, level)."""
    _, beta = prior.share(silos)
    sources = read_sources(release, offsets)
    each = [
        draw_profile(sources.of(np.array([c])), beta, offsets, count, rng)
        for c in range(release.clusters)
    ]
    return np.stack(each, axis=1)


def allow_for_rounding(
    release: Release, prior: Prior, silos: int, offsets: Ints, seed: int
) -> Release:
    """Return a release whose effective counts know what rounding hides.

    They are those of a Dirichlet with the moments of the draws behind the release, so that a floor
    counts as the doubt it is. A release without rules comes back as it is.
    """
    if not has_rules(release):
        return release
    rng = np.random.default_rng([seed, STREAM, release.place])
    drawn = own_draws(release, OWN_DRAWS, prior, silos, offsets, rng)
    _, beta = prior.share(silos)
    mean, concentration = without_prior(*fit_dirichlet(drawn, offsets), offsets, beta)
    return replace(release, effective_counts=effective_counts(mean, concentration, offsets))


def with_own_counts(
    probabilities: NDArray[np.floating],
    release: Release,
    own: NDArray[np.floating],
    groups: Ints,
    *,
    prior: Prior,
    silos: int,
    offsets: Ints,
    seed: int,
) -> Floats:
    """Return profiles that know a silo's own counts, where others know its release alone.

    For use inside the silo. What its rounded release said is taken out of the Dirichlets that fit
    the draws, and what its own draws say is put in. A cluster that the silo lacks stays as it is.

    Parameters
    ----------
    probabilities : (draw, cluster, level), made from the releases of all silos.
    release : the silo's own.
    own : (draw, local cluster, level), its own draws, which no rule has changed.
    groups : (local cluster,), the global cluster of each.
    silos, seed : of the study.
    """
    _, beta = prior.share(silos)
    said = allow_for_rounding(release, prior, silos, offsets, seed).effective_counts
    known = effective_counts(*without_prior(*fit_dirichlet(own, offsets), offsets, beta), offsets)
    mean, concentration = fit_dirichlet(probabilities, offsets)
    others = effective_counts(mean, concentration, offsets) - prior.beta
    np.subtract.at(others, groups, said)
    shapes = prior.beta + np.maximum(others, 0.0)
    np.add.at(shapes, groups, known)
    rng = np.random.default_rng([seed, STREAM, release.place, len(probabilities)])
    drawn = draw_levels(shapes, offsets, rng, len(probabilities))
    held = np.isin(np.arange(len(shapes)), groups)
    return np.where(held[:, None], drawn, probabilities)
