"""The law of rounding: what a policy makes of counts, and what a rounded release can stand for.

Anybody who knows the policy can compute the first. For the second, the counts behind a release are
sampled: taken for exact, rounded counts make intervals that are too short, and floors make rare
levels too common. Here they are drawn on the set that would have been released so, together with
the profile that they come from (`silomix.kernels.rounded_counts`). A stand-in profile says nothing
of its cluster and is left out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from silomix.kernels.rounded_counts import Sources, draw_behind, release_units
from silomix.model.families import dirichlet
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints, Reals, Rng
    from silomix.messages import Release
    from silomix.model.prior import PooledModel

# Of a step of half an octave, as a share of its upper end.
MIDDLE = 2**-0.25

# Stands for a count that the policy does not let out.
WITHHELD = -1

# What a released profile is of: the cluster, those of the silo that show theirs, or nothing.
CLUSTER, SILO, UNIFORM = 0, 1, 2


# Sweeps of `draw_behind` that are dropped, more of them for each silo, and sweeps between draws.
BURN_IN, BURN_IN_BY_SILO, THIN = 300, 100, 2
# Draws behind one silo's release by itself.
OWN_DRAWS = 500
STREAM = 0x726E64


FOLDED = "small clusters folded"
# Rules that put another profile in the place of a cluster's own. They may say how often they were
# needed: the released sizes say as much.
STAND_INS = ("pooled profile", "uniform profile")


def pool(profiles: Floats, sizes: Ints) -> Floats:
    """Return what released profiles, (cluster, level), come to: (level,); uniform for none.

    It is what stands in for a profile that is not released. Were it of the whole silo, the
    released ones could be subtracted, and the one that is not would be left.
    """
    if not len(profiles):
        return np.full(profiles.shape[1], 1.0 / profiles.shape[1])
    return np.asarray(sizes @ profiles / sizes.sum())


def round_counts(counts: Ints, policy: Policy) -> Ints:
    """Round counts to the policy's base, and to no less than its minimum: same axes."""
    base = policy.round_to
    return np.maximum((counts + base // 2) // base, least_units(policy)) * base


def least_units(policy: Policy) -> int:
    """Return the smallest multiple of the base that reaches the minimum, in units of the base."""
    return -(-policy.minimum_count // policy.round_to)


def profile_basis(sizes: Ints, levels: Ints, policy: Policy) -> Ints:
    """Say what each released profile is of: `CLUSTER`, `SILO` or `UNIFORM`, (cluster, variable).

    A cluster with too few rows for every level to reach the minimum has no profile of its own
    to release. What those that have one come to stands in, if there are any. It depends on
    released numbers alone, so everyone can tell.

    Parameters
    ----------
    sizes : (cluster,), as released.
    levels : (variable,), how many each has.
    """
    own = sizes[:, None] >= levels * least_units(policy) * policy.round_to
    return np.where(own, CLUSTER, np.where(own.any(axis=0), SILO, UNIFORM))


def profile_rows(sizes: Ints, levels: Ints, policy: Policy) -> Ints:
    """Return how many rows each released profile stands for, (cluster, variable); 0 for none.

    Parameters as in `profile_basis`.
    """
    own = profile_basis(sizes, levels, policy) == CLUSTER
    return np.where(own, sizes[:, None], sizes @ own)


def round_profile(mean: Floats, known: float, rows: int, policy: Policy) -> Floats:
    """Return a profile whose levels, times the rows, are rounded counts: (level,).

    Multiples of round_to/rows, each at least the minimum, summing to one. Levels under the
    minimum are raised to it, the others share the rest in proportion, and what rounding leaves
    over goes to the largest remainders. Where every level is under it, all get the same.

    It is how often a level was seen that must reach the minimum. Where cells are missing, or it is
    in doubt who belongs, its share of the rows may do so when that does not.

    Parameters
    ----------
    mean : (level,), sums to one.
    known : how many rows the mean is of.
    rows : a multiple of the base, enough for every level to reach the minimum.
    """
    units, least = rows // policy.round_to, least_units(policy)
    low = np.rint(mean * known) < least * policy.round_to
    seen = np.ones(len(mean)) if low.all() else np.where(low, 0.0, mean)
    released = np.empty(len(mean), dtype=np.int64)
    release_units(seen, units, least, released)
    return released / units


def coarse_concentration(concentration: Floats, full: Floats) -> Floats:
    """Round concentrations to half octaves below that of a cluster whose members are certain.

    With certain members the concentration is the cluster's exact size, up to the noise of a
    finite number of draws: rounded finely, its average over the variables would give the size
    back. So whatever is near the full weight of the released size becomes it, and
    the rest the middle of its step.

    Parameters
    ----------
    concentration : (cluster, variable)
    full : (cluster, variable), released size.
    """
    some = np.maximum(concentration, 1.0)
    steps = np.maximum(np.floor(2 * np.log2(full / some)), 0)
    return full * np.where(steps == 0, 1.0, MIDDLE * 2 ** (-steps / 2))


def has_rules(release: Release) -> bool:
    """Tell whether a policy changed counts of a release that has no draws."""
    return release.probabilities is None and Policy(**release.policy).has_rules


def read_sources(release: Release, offsets: Ints) -> Sources:
    """Return what the clusters of one release can stand for."""
    clusters = release.clusters
    if not has_rules(release):
        known = dirichlet.effective_counts(release.mean, release.concentration, offsets)
        none = np.zeros(clusters, dtype=np.int64)
        worth = np.ones(release.concentration.shape)
        return Sources(np.zeros(known.shape, dtype=np.int64), known, none, none, worth)
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
    return Sources._make(map(np.concatenate, zip(*parts, strict=True)))


def draw_profile(sources: Sources, beta: float, offsets: Ints, draws: int, rng: Rng) -> Floats:
    """Draw a profile that all sources share, given what they released: (draw, level)."""
    profile = np.empty((draws, int(offsets[-1])))
    for variable, (first, last) in enumerate(pairwise(offsets)):
        known = sources.of(sources.worth[:, variable] > 0)
        given = known._replace(
            released=np.ascontiguousarray(known.released[:, first:last]),
            start=np.ascontiguousarray(known.start[:, first:last]),
            worth=np.ascontiguousarray(known.worth[:, variable]),
        )
        burn_in = BURN_IN + BURN_IN_BY_SILO * len(known.worth)
        profile[:, first:last], _ = draw_behind(given, beta, burn_in, THIN, draws, rng)
    return profile


def own_draws(release: Release, count: int, model: PooledModel, silos: int, rng: Rng) -> Floats:
    """Draw the profiles of one silo's clusters, by themselves: (draw, cluster, level)."""
    _, beta = model.prior.share(silos)
    sources = read_sources(release, model.offsets)
    each = [
        draw_profile(sources.of(np.array([c])), beta, model.offsets, count, rng)
        for c in range(release.clusters)
    ]
    return np.stack(each, axis=1)


def allow_for_rounding(release: Release, model: PooledModel, silos: int) -> Release:
    """Return a release whose effective counts know what rounding hides.

    They are those of a Dirichlet with the moments of the draws behind the release, so that a floor
    counts as the doubt it is. A release without rules comes back as it is.
    """
    if not has_rules(release):
        return release
    rng = np.random.default_rng([model.seed, STREAM, release.place])
    drawn = own_draws(release, OWN_DRAWS, model, silos, rng)
    return replace(release, effective_counts=_worth(drawn, model, silos))


def _worth(draws: Reals, model: PooledModel, silos: int) -> Floats:
    """Return the counts without the prior of Dirichlets with the moments of a silo's draws."""
    _, beta = model.prior.share(silos)
    fitted = dirichlet.fit_dirichlet(draws, model.offsets)
    return dirichlet.effective_counts(
        *dirichlet.without_prior(*fitted, model.offsets, beta), model.offsets
    )


def with_own_counts(
    probabilities: Reals, release: Release, own: Reals, groups: Ints, model: PooledModel, silos: int
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
    silos : how many the study has.
    """
    prior, offsets, seed = model.prior, model.offsets, model.seed
    said = allow_for_rounding(release, model, silos).effective_counts
    mean, concentration = dirichlet.fit_dirichlet(probabilities, offsets)
    others = dirichlet.effective_counts(mean, concentration, offsets) - prior.beta
    np.subtract.at(others, groups, said)
    shapes = prior.beta + np.maximum(others, 0.0)
    np.add.at(shapes, groups, _worth(own, model, silos))
    rng = np.random.default_rng([seed, STREAM, release.place, len(probabilities)])
    drawn = dirichlet.draw_levels(shapes, offsets, rng, len(probabilities))
    held = np.isin(np.arange(len(shapes)), groups)
    return np.where(held[:, None], drawn, probabilities)
