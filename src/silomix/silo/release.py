"""LocalPosterior -> Release: every rule of a policy that alters a number.

Whether a question is answered at all, and how often, is decided in `silomix.silo.answer.permit`:
no rule rounds the sums that answer the other questions, so a policy allows these one by one.

A release is treated as a frequency table: how often each level occurs in each cluster, on average
over the draws of who belongs to it, in whole numbers. The prior has no part in it, so no study can
use it to lift counts over a minimum. Small clusters are folded into their neighbours, counts are
rounded, and no released number stands for fewer rows than the policy's minimum. Rules are pure
functions; each says what it did in a `Check`, and `outgoing` takes from the checks what only the
silo may know.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import PolicyRefusal
from silomix.families import disclosure
from silomix.families.disclosure import top_code
from silomix.families.release_rounding import CLUSTER, STAND_INS, applied, least_units, round_counts
from silomix.kernels.arrays import Floats, Ints, Reals, sum_by
from silomix.messages import Check, Release, ReleasedDiagnostics, Tier
from silomix.silo.partition import largest_first
from silomix.study.policy import OPEN, Policy, echo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from silomix.families.product import Product
    from silomix.families.release_rounding import Rounded
    from silomix.model.draws import LocalPosterior
    from silomix.model.schema import Shard

FOLDED = "small clusters folded"


def make_release(
    local: LocalPosterior,
    *,
    silo: str,
    tier: Tier = "draws",
    policy: Policy = OPEN,
    most_draws: int | None = None,
    inside: bool = False,
    **about: Any,
) -> Release:
    """Hand over one silo's posterior, as far as its policy allows.

    Parameters
    ----------
    most_draws : in tier "draws", about how many leave, evenly spread; all when left out.
    inside : keep in the checks what only the silo may see: for its own eyes.
    about : the silo's place in the roster, and the digest of the study.

    Raises
    ------
    PolicyRefusal
        When the policy does not allow the tier, or the silo has too few rows.
    """
    rows = local.draws.shard.rows
    if rows < policy.minimum_count:
        raise PolicyRefusal(
            f"{silo}: it has {rows} rows and its policy {policy.name!r} lets nothing out that "
            f"stands for fewer than {policy.minimum_count}; leave this silo out of the study, or "
            "let the policy's owner lower minimum_count",
            code="too-few-rows",
        )
    check_tier(tier, policy, silo)
    folded = arranged(local, policy)
    if policy.has_rules and len(folded.sizes) == 1:
        # where all rows are one cluster, components that come and go would tell of rare levels
        folded = replace(folded, memberships=np.ones_like(folded.memberships))
    family = local.draws.silo_family
    mean, concentration = family.means(family.valid(family.fit(folded.probabilities)))
    sizes, known = folded.sizes, np.repeat(folded.sizes[:, None], concentration.shape[1], axis=1)
    checks: tuple[Check, ...] = ()
    if policy.has_rules:
        sizes, (mean, concentration, known, _), checks = disclose(folded, concentration, policy)
    if policy.minimum_count:
        checks = (folding_check(local.sizes, folded.sizes, policy), *checks)
    some = slice(None, None, -(-len(folded.weights) // (most_draws or len(folded.weights))))
    is_drawn = tier == "draws"
    return Release(
        silo=silo,
        sizes=sizes,
        known=known,
        mean=mean,
        concentration=concentration,
        tier=tier,
        weights=folded.weights[some] if is_drawn else None,
        parameters=folded.probabilities[some] if is_drawn else None,
        diagnostics=NOT_TOLD if policy.has_rules and not inside else _diagnostics(local, folded),
        policy=echo(policy),
        checks=checks if inside else outgoing(checks),
        **about,
    )


def _diagnostics(local: LocalPosterior, folded: LocalPosterior) -> ReleasedDiagnostics:
    """Diagnostics of the run, as the silo releases them."""
    occupied = local.draws.diagnostics.traces.get("occupied")
    return ReleasedDiagnostics.of(
        local.draws.diagnostics,
        prior_draws=float(folded.prior_draws.max()),
        agreement=local.partition.agreement,
        # share of the draws in which every component held rows
        full=float((occupied.values == local.draws.components).mean()) if occupied else 0.0,
        sweeps=local.draws.schedule.iterations,
    )


# What a silo with rules says of its run: nothing. Any figure of it can be made to depend on a few
# rows, or on one, by whoever sets the number of components, the prior and the schedule.
NOT_TOLD = ReleasedDiagnostics(
    verdict="How the run went is not told, by the silo's policy; its own user was told.",
    trusted=True,
    rhat={},
    ess={},
    prior_draws=0.0,
)


def outgoing(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Checks without what only the silo may see.

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


def without_rare_values(shard: Shard, policy: Policy) -> Shard:
    """Rows as they are sampled under a policy with rules, without what is rare.

    Levels of fewer rows than the minimum count as the commonest one, and numbers are top-coded by
    rank, so that neither makes clusters, or decides how many there are.
    """
    if not policy.has_rules:
        return shard
    least, codes = least_units(policy) * policy.round_to, shard.codes.copy()
    for column, size in zip(codes.T, shard.schema.sizes, strict=True):
        counts = np.bincount(column, minlength=size + 1)[:size]
        rare = (counts > 0) & (counts < least)
        column[np.append(rare, False)[column]] = counts.argmax()
    numbers = shard.numbers
    if numbers is not None:
        numbers, _ = top_code(numbers, np.ones(len(numbers)), least)
    return replace(shard, codes=codes, numbers=numbers)


def fold_small(local: LocalPosterior, minimum: int) -> LocalPosterior:
    """Fold clusters of fewer than `minimum` rows into their nearest ones, smallest first.

    Labels and sizes follow; draw by draw weights add, and profiles are mixed by weight. Clusters
    are numbered anew, largest first. The same posterior comes back where no cluster is small.
    """
    if len(local.sizes) == 1 or (local.sizes >= minimum).all():
        return local
    family = local.draws.family
    moments = family.moments(local.probabilities)
    groups = fold_groups(local.sizes, moments.mean(axis=0), minimum, family)
    labels, sizes = largest_first(groups[local.partition.labels])
    new = np.zeros(len(groups), dtype=np.int64)
    new[local.partition.labels] = labels

    def total(values: Floats) -> Floats:
        """Sums over the clusters that become one, (item, cluster, …)."""
        return sum_by(new, values.swapaxes(0, 1), len(sizes)).swapaxes(0, 1).copy("C")

    shares = np.maximum(local.weights.astype(np.float64), np.finfo(np.float32).tiny)
    weights, mixed = total(shares), total(shares[:, :, None] * moments)
    prior_draws = np.ones(len(sizes))
    np.minimum.at(prior_draws, new, local.prior_draws)
    return replace(
        local,
        weights=weights.astype(np.float32),
        probabilities=family.from_moments(mixed / weights[:, :, None]).astype(np.float32),
        partition=replace(local.partition, labels=labels, sizes=sizes),
        prior_draws=prior_draws,
        memberships=total(local.memberships),
    )


def fold_groups(sizes: Ints, mean: Reals, minimum: int, family: Product) -> Ints:
    """Cluster that each ends up in, (cluster,).

    Nearest by the family's distance, taken over all variables at once.

    Parameters
    ----------
    sizes : (cluster,)
    mean : (cluster, statistic), of a row.
    minimum : rows from which a cluster stands for itself.
    """
    groups = np.arange(len(sizes))
    rows = sizes.astype(np.float64)
    totals = rows[:, None] * mean
    alive = np.ones(len(sizes), dtype=bool)
    while alive.sum() > 1:
        smallest = np.argmin(np.where(alive, rows, np.inf))
        if rows[smallest] >= minimum:
            break
        alive[smallest] = False
        places = family.places(totals / np.maximum(rows, 1.0)[:, None])
        gaps = ((places - places[smallest]) ** 2).sum(axis=1)
        into = np.argmin(np.where(alive, gaps, np.inf))
        groups[groups == smallest] = into
        rows[into] += rows[smallest]
        totals[into] += totals[smallest]
    return groups


def disclose(
    local: LocalPosterior, concentration: Floats, policy: Policy
) -> tuple[Ints, Rounded, tuple[Check, ...]]:
    """Apply the policy to one silo's sizes and profiles, small clusters folded already.

    Parameters
    ----------
    concentration : (cluster, variable), how many rows the draws are worth, without the prior.

    Returns
    -------
    sizes, profiles : as they may leave.
    checks : what the rules did, with the details that only the silo may see.
    """
    sizes, draws = local.sizes, local.draws
    released = np.maximum(round_counts(sizes, policy), policy.round_to)
    given = draws.shard, local.memberships, concentration, released, policy
    rounded = disclosure.disclose(draws.silo_family, *given)
    known = known_beside_spikes(draws.silo_family, rounded, policy)
    if (known != rounded.known).any():
        rounded = disclosure.disclose(draws.silo_family, *given, known)
    checks = *size_checks(sizes, released, policy), *(Check(*deed) for deed in rounded.deeds)
    return released, rounded, checks


def known_beside_spikes(family: Product, release: Rounded, policy: Policy) -> Ints:
    """Known cells of numbers whose frequent value is a variable of its own: (cluster, variable).

    They are the cells that do not have it, as its own released profile says. Rounded by themselves
    they would tell how many rows have the value, by subtraction.
    """
    known, variables = release.known.copy(), family.variables
    starts = np.cumsum(family.statistics) - family.statistics
    basis = disclosure.basis(family, release.known, release.concentration, policy)
    twins = {one.source: place for place, one in enumerate(variables) if one.source}
    for place, variable in enumerate(variables):
        twin = twins.get(variable.name) if variable.spike is not None else None
        if twin is not None and twin != place:
            others = np.rint(release.known[:, twin] * release.mean[:, starts[twin]])
            known[:, place] = np.where(basis[:, twin] == CLUSTER, others, 0).astype(np.int64)
    return known


def arranged(local: LocalPosterior, policy: Policy) -> LocalPosterior:
    """Fold small clusters, and number the others by what will be released of them.

    Numbered by their exact sizes, two clusters of one rounded size would tell which is larger.
    """
    folded = fold_small(local, policy.minimum_count)
    if not policy.has_rules or len(folded.sizes) == 1:
        return folded
    family = folded.draws.silo_family
    _, concentration = family.means(family.valid(family.fit(folded.probabilities)))
    sizes, profiles, _ = disclose(folded, concentration, policy)
    order = np.lexsort([*profiles.mean.T[::-1], -sizes])
    place = np.argsort(order)
    partition = folded.partition
    return replace(
        folded,
        weights=folded.weights[:, order],
        probabilities=folded.probabilities[:, order],
        memberships=folded.memberships[:, order],
        prior_draws=folded.prior_draws[order],
        partition=replace(partition, labels=place[partition.labels], sizes=partition.sizes[order]),
    )


def check_tier(tier: str, policy: Policy, silo: str) -> None:
    """Refuse a tier that the policy does not allow."""
    if tier not in policy.tiers:
        raise PolicyRefusal(
            f"{silo}: the study asks for a release of tier {tier!r} and its policy "
            f"{policy.name!r} allows {' and '.join(map(repr, policy.tiers))}; set the study's tier "
            "to that (`silomix study --preset files` does), or let the policy's owner allow more"
        )


def release_row_counts(counts: Ints, policy: Policy, silo: str) -> Ints:
    """Hand over how often each distinct row occurs, (distinct row,), if each does often enough.

    Raises
    ------
    PolicyRefusal
        When one occurs less often than the policy's minimum.
    """
    low = int((counts < policy.minimum_count).sum())
    if low:
        raise PolicyRefusal(
            f"{silo}: {low} of its {len(counts)} distinct rows occur fewer than "
            f"{policy.minimum_count} times, so its policy {policy.name!r} does not let them out; "
            "use the oracle 'federated', or fewer variables"
        )
    return round_counts(counts, policy) if policy.has_rules else counts


def folding_check(before: Ints, after: Ints, policy: Policy) -> Check:
    """Number of clusters that were folded, of sizes `before` (cluster,) and `after` (cluster,)."""
    folded, least = len(before) - len(after), policy.minimum_count
    small = ", ".join(map(str, before[before < least]))
    inside = f"clusters of {small} rows went into their nearest ones" if folded else ""
    return Check(FOLDED, "clusters", least, len(after), folded, applied(folded), inside)


def size_checks(sizes: Ints, released: Ints, policy: Policy) -> Iterator[Check]:
    """Changes of cluster sizes by the rules, (cluster,)."""
    base, least = policy.round_to, policy.minimum_count
    inside = ", ".join(f"{old} to {new}" for old, new in zip(sizes, released, strict=True))
    where, cells, changed = "cluster sizes", len(sizes), int((sizes != released).sum())
    yield Check("counts rounded", where, base, cells, changed, applied(base > 1), inside)
    yield Check("minimum count", where, least, cells, 0, "passed")
