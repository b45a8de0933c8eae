"""Disclosure rules: what happens to a silo's numbers before they leave it.

A release is treated as a frequency table: how often each level occurs in each cluster, on average
over the draws of who belongs to it, in whole numbers. The prior has no part in it, so no study can
use it to lift counts over a minimum. Small clusters are folded into their neighbours, counts are
rounded, and no released number stands for fewer rows than the policy's minimum. Rules are pure
functions; each says what it did in a `Check`, and `outgoing` takes from the checks what only the
silo may know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import PolicyRefusal
from silomix.kernels.rounded_counts import release_units
from silomix.partition import largest_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from silomix.study.policy import Policy
    from silomix.types import LocalPosterior

MIDDLE = 2**-0.25
"""Of a step of half an octave, as a share of its upper end."""

WITHHELD = -1
"""Stands for a count that the policy does not let out."""

CLUSTER, SILO, UNIFORM = 0, 1, 2
"""What a released profile is of: the cluster, those of the silo that show theirs, or nothing."""


@dataclass(frozen=True)
class Check:
    """What one rule did.

    Attributes
    ----------
    rule, where : the rule, and the numbers it was applied to.
    threshold : the policy's number.
    cells : how many numbers it was applied to.
    changed : how many it changed; None where that would say something about a number.
    result : "applied", "not needed" or "passed".
    inside : details that only the silo may see; empty in a release.
    """

    rule: str
    where: str
    threshold: int
    cells: int
    changed: int | None
    result: str
    inside: str = ""


@dataclass(frozen=True, eq=False)
class Disclosed:
    """Numbers that may leave.

    Attributes
    ----------
    sizes : (cluster,)
    mean : (cluster, level)
    concentration : (cluster, variable)
    checks : what the rules did, details included.
    """

    sizes: NDArray[np.int64]
    mean: NDArray[np.float64]
    concentration: NDArray[np.float64]
    checks: tuple[Check, ...]


def outgoing(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks without what only the silo may see.

    How many counts rounding changed is left out too: "none" would say that all were exact. So is
    how many clusters were folded, each of which was small, and whether any was: a condition that
    makes a cluster of its own would be told from one that nobody has.
    """
    return tuple(
        replace(
            check,
            inside="",
            changed=check.changed if check.rule in STAND_INS else None,
            result="applied" if check.rule == FOLDED else check.result,
        )
        for check in checks
    )


FOLDED = "small clusters folded"
STAND_INS = ("pooled profile", "uniform profile")
"""Rules that put another profile in the place of a cluster's own. They may say how often they were
needed: the released sizes say as much."""


def fold_small(local: LocalPosterior, minimum: int) -> LocalPosterior:
    """Fold clusters of fewer than `minimum` rows into their nearest ones, smallest first.

    Labels and sizes follow; draw by draw weights add, and profiles are mixed by weight. Clusters
    are numbered anew, largest first. The same posterior comes back where no cluster is small.
    """
    groups = fold_groups(local.sizes, local.probabilities.mean(axis=0), minimum)
    if len(np.unique(groups)) == len(groups):
        return local
    labels, sizes = largest_first(groups[local.partition.labels])
    new = np.zeros(len(groups), dtype=np.int64)
    new[local.partition.labels] = labels
    clusters = len(sizes)
    weights = np.zeros((len(local.weights), clusters))
    mixed = np.zeros((len(weights), clusters, local.probabilities.shape[2]))
    memberships = np.zeros((len(labels), clusters))
    prior_draws = np.ones(clusters)
    for old, cluster in enumerate(new):
        weight = np.maximum(local.weights[:, old].astype(np.float64), np.finfo(np.float32).tiny)
        weights[:, cluster] += weight
        mixed[:, cluster] += weight[:, None] * local.probabilities[:, old]
        memberships[:, cluster] += local.memberships[:, old]
        prior_draws[cluster] = min(prior_draws[cluster], local.prior_draws[old])
    return replace(
        local,
        weights=weights.astype(np.float32),
        probabilities=(mixed / weights[:, :, None]).astype(np.float32),
        partition=replace(local.partition, labels=labels, sizes=sizes),
        prior_draws=prior_draws,
        memberships=memberships,
    )


def fold_groups(
    sizes: NDArray[np.int64], mean: NDArray[np.floating], minimum: int
) -> NDArray[np.int64]:
    """Return the cluster that each ends up in, (cluster,).

    Nearest by Hellinger distance between mean profiles, taken over all variables at once.

    Parameters
    ----------
    sizes : (cluster,)
    mean : (cluster, level)
    minimum : rows from which a cluster stands for itself.
    """
    groups = np.arange(len(sizes))
    rows = sizes.astype(np.float64)
    totals = rows[:, None] * mean
    alive = sizes >= 0
    while alive.sum() > 1:
        small = np.flatnonzero(alive & (rows < minimum))
        if not len(small):
            break
        one = small[np.argmin(rows[small])]
        others = np.flatnonzero(alive & (np.arange(len(sizes)) != one))
        roots = np.sqrt(totals / np.maximum(rows, 1.0)[:, None])
        gaps = ((roots[others] - roots[one]) ** 2).sum(axis=1)
        into = others[np.argmin(gaps)]
        groups[groups == one] = into
        rows[into] += rows[one]
        totals[into] += totals[one]
        alive[one] = False
    return groups


def disclose(
    sizes: NDArray[np.int64],
    mean: NDArray[np.float64],
    concentration: NDArray[np.float64],
    known: NDArray[np.float64],
    offsets: NDArray[np.int64],
    *,
    policy: Policy,
) -> Disclosed:
    """Apply the policy to one silo's sizes and profiles, small clusters folded already.

    Parameters
    ----------
    sizes : (cluster,), rows.
    mean : (cluster, level), shares of whole counts, without the prior.
    concentration : (cluster, variable), how many rows the draws are worth, without the prior.
    known : (cluster, variable), how many rows the shares are of: those with a level, on average
        over the draws of who belongs. Fewer than the minimum say nothing.
    offsets : (variable + 1,), where each variable's levels start.
    """
    if not policy.has_rules:
        return Disclosed(sizes, mean, concentration, ())
    released = np.maximum(round_counts(sizes, policy), policy.round_to)
    levels = np.diff(offsets)
    basis = profile_basis(released, levels, policy)
    profile = np.empty_like(mean)
    for variable, (start, end) in enumerate(pairwise(offsets)):
        own = basis[:, variable] == CLUSTER
        for cluster in np.flatnonzero(own):
            profile[cluster, start:end] = round_profile(
                mean[cluster, start:end], known[cluster, variable], int(released[cluster]), policy
            )
        profile[~own, start:end] = pool(profile[own, start:end], released[own])
    full = np.broadcast_to(released[:, None], concentration.shape).astype(np.float64)
    enough = known >= policy.minimum_count
    coarse = np.select(
        [(basis == CLUSTER) & enough, basis == SILO],
        [coarse_concentration(concentration, full), np.float64(policy.minimum_count)],
        0.0,
    )
    checks = (
        *_size_checks(sizes, released, policy),
        *_profile_checks(mean, profile, basis, known, levels, policy),
        _concentration_check(concentration, coarse, policy),
    )
    return Disclosed(released, profile, coarse, checks)


def pool(profiles: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what released profiles, (cluster, level), come to: (level,); uniform for none.

    It is what stands in for a profile that is not released. Were it of the whole silo, the
    released ones could be subtracted, and the one that is not would be left.
    """
    if not len(profiles):
        return np.full(profiles.shape[1], 1.0 / profiles.shape[1])
    return np.asarray(sizes @ profiles / sizes.sum())


def round_counts(counts: NDArray[np.int64], policy: Policy) -> NDArray[np.int64]:
    """Round counts to the policy's base, and to no less than its minimum: same axes."""
    base = policy.round_to
    return np.maximum((counts + base // 2) // base, least_units(policy)) * base


def withhold_small(counts: NDArray[np.int64], policy: Policy) -> NDArray[np.int64]:
    """Round counts that reach the policy's minimum; the others are withheld, zeros too.

    The sum of all counts is known from elsewhere, and so is that of the withheld ones. So where
    one is withheld the next smallest are too, until there are two at least, their sum reaches
    the minimum, and the smallest might be zero for all that the others, none of them larger
    than any released, tell.
    """
    released = round_counts(counts, policy)
    order = np.argsort(counts, kind="stable")
    ascending, sums = counts[order], np.cumsum(counts[order])
    withheld = int((counts < policy.minimum_count).sum())
    if withheld:
        withheld = max(withheld, 2)
        while withheld < len(counts) and not (
            policy.minimum_count <= sums[withheld - 1] <= (withheld - 1) * ascending[withheld]
        ):
            withheld += 1
    released[order[:withheld]] = WITHHELD
    return released


def least_units(policy: Policy) -> int:
    """Return the smallest multiple of the base that reaches the minimum, in units of the base."""
    return -(-policy.minimum_count // policy.round_to)


def profile_basis(
    sizes: NDArray[np.int64], levels: NDArray[np.int64], policy: Policy
) -> NDArray[np.int64]:
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


def profile_rows(
    sizes: NDArray[np.int64], levels: NDArray[np.int64], policy: Policy
) -> NDArray[np.int64]:
    """Return how many rows each released profile stands for, (cluster, variable); 0 for none.

    Parameters as in `profile_basis`.
    """
    own = profile_basis(sizes, levels, policy) == CLUSTER
    return np.where(own, sizes[:, None], sizes @ own)


def round_profile(
    mean: NDArray[np.float64], known: float, rows: int, policy: Policy
) -> NDArray[np.float64]:
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


def coarse_concentration(
    concentration: NDArray[np.float64], full: NDArray[np.float64]
) -> NDArray[np.float64]:
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


def check_rows(rows: int, policy: Policy, silo: str) -> None:
    """Refuse a release of fewer rows than the policy's minimum."""
    if rows < policy.minimum_count:
        raise PolicyRefusal(
            f"{silo}: it has {rows} rows and its policy {policy.name!r} lets nothing out that "
            f"stands for fewer than {policy.minimum_count}; leave this silo out of the study, or "
            "let the policy's owner lower minimum_count",
            code="too-few-rows",
        )


def check_tier(tier: str, policy: Policy, silo: str) -> None:
    """Refuse a tier that the policy does not allow."""
    if tier not in policy.tiers:
        raise PolicyRefusal(
            f"{silo}: the study asks for a release of tier {tier!r} and its policy "
            f"{policy.name!r} allows {' and '.join(map(repr, policy.tiers))}; set the study's tier "
            "to that (`silomix study --preset files` does), or let the policy's owner allow more"
        )


def check_distinct_rows(counts: NDArray[np.int64], policy: Policy, silo: str) -> Check:
    """Refuse to hand over distinct rows unless each occurs often enough.

    Parameters
    ----------
    counts : (distinct row,), how often each occurs.
    """
    low = int((counts < policy.minimum_count).sum())
    if low:
        unique = (counts == 1).sum() / counts.sum()
        raise PolicyRefusal(
            f"{silo}: {low} of its {len(counts)} distinct rows occur fewer than "
            f"{policy.minimum_count} times, and {unique:.1%} of its rows are unique, so its policy "
            f"{policy.name!r} does not let the distinct rows out; use the oracle 'federated', or "
            "fewer variables"
        )
    return Check("distinct rows", "counts", policy.minimum_count, len(counts), 0, "passed")


def folding_check(before: NDArray[np.int64], after: NDArray[np.int64], policy: Policy) -> Check:
    """Say how many clusters were folded, of sizes `before` (cluster,) and `after` (cluster,)."""
    folded, least = len(before) - len(after), policy.minimum_count
    small = ", ".join(map(str, before[before < least]))
    inside = f"clusters of {small} rows went into their nearest ones" if folded else ""
    return Check(FOLDED, "clusters", least, len(after), folded, _applied(folded), inside)


def _size_checks(
    sizes: NDArray[np.int64], released: NDArray[np.int64], policy: Policy
) -> Iterator[Check]:
    base, changed = policy.round_to, int((sizes != released).sum())
    inside = ", ".join(f"{old} to {new}" for old, new in zip(sizes, released, strict=True))
    where, cells = "cluster sizes", len(sizes)
    yield Check("counts rounded", where, base, cells, changed, _applied(base > 1), inside)
    yield Check("minimum count", where, policy.minimum_count, cells, 0, "passed")


def _profile_checks(
    mean: NDArray[np.float64],
    profile: NDArray[np.float64],
    basis: NDArray[np.int64],
    known: NDArray[np.float64],
    levels: NDArray[np.int64],
    policy: Policy,
) -> Iterator[Check]:
    own = np.repeat(basis == CLUSTER, levels, axis=1)
    counts = np.rint(mean * np.repeat(known, levels, axis=1))
    low = int((own & (counts < least_units(policy) * policy.round_to)).sum())
    moved = np.abs(profile - mean)[own].max(initial=0.0)
    changed = int((own & (profile != mean)).sum())
    where, cells, least = "profiles", int(own.sum()), policy.minimum_count
    inside = f"no probability moved by more than {moved:.3f}"
    yield Check("counts rounded", where, policy.round_to, cells, changed, "applied", inside)
    inside = f"{low} levels were under it and were raised to it"
    yield Check("minimum count", where, least, cells, low, _applied(least), inside)
    for rule, kind in zip(STAND_INS, (SILO, UNIFORM), strict=True):
        used = int((basis == kind).sum())
        yield Check(rule, where, least, basis.size, used, _applied(used))


def _concentration_check(
    concentration: NDArray[np.float64], coarse: NDArray[np.float64], policy: Policy
) -> Check:
    ratio = coarse / np.maximum(concentration, 1.0)
    changed = int((coarse != concentration).sum())
    inside = f"multiplied by {ratio.min():.2f} to {ratio.max():.2f}"
    rule, where = "steps of half octaves", "concentrations"
    return Check(rule, where, policy.round_to, concentration.size, changed, "applied", inside)


def _applied(number: int) -> str:
    return "applied" if number else "not needed"
