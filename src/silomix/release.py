"""LocalPosterior -> Release: the only door out of a silo.

Whatever tells of a silo's rows in numbers that a policy changes goes through this module: its
posterior, the counts of its distinct rows, and how many of them each global cluster got. Whether a
question is answered at all, and how often, is counted in `silomix.silo.permit`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import betaincinv

from silomix.diagnostics import ESS_LIMIT, RHAT_LIMIT, fewest_draws, worst_rhat
from silomix.disclosure import (
    MIDDLE,
    check_distinct_rows,
    check_rows,
    check_tier,
    disclose,
    fold_small,
    folding_check,
    least_units,
    outgoing,
    round_counts,
    withhold_small,
)
from silomix.families.dirichlet import draw_levels
from silomix.relabel import PRIOR_DRAWS_ALLOWED
from silomix.study.policy import OPEN, Policy, echo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from silomix.disclosure import Check
    from silomix.types import Diagnostics, Draws, LocalPosterior, Prior

Tier = Literal["summary", "draws"]

SMALLEST_SHAPE = 1e-6
CERTAIN = 1e-9
"""How far a share may be from none or all, floating point being what it is."""
DOUBT_POWER = 3.0
"""Labels in doubt move together, and cost more than each by itself would: a rule of thumb, seen on
simulated silos and not derived."""
LARGEST_CONCENTRATION = 1e9
"""Draws that hardly move say no more than this many observations."""


@dataclass(frozen=True)
class ReleasedDiagnostics:
    """What a silo says of its own run.

    Attributes
    ----------
    verdict, trusted : as in `silomix.types.Diagnostics`.
    rhat, ess : by trace.
    prior_draws : largest share of draws in which a cluster had to take an empty component.
    agreement : adjusted Rand index of the partitions that its chains give each on its own
        (`silomix.partition.chain_agreement`); 1 for one chain or one cluster.
    full : share of draws in which every component held rows, so that there may be more clusters
        than components.
    sweeps : of each of its chains, burn-in included; 0 where the policy has rules, since how long
        an adaptive run took depends on the rows.
    """

    verdict: str
    trusted: bool
    rhat: Mapping[str, float]
    ess: Mapping[str, float]
    prior_draws: float
    agreement: float = 1.0
    full: float = 0.0
    sweeps: int = 0


@dataclass(frozen=True, eq=False)
class Release:
    """One silo's posterior, as the coordinator sees it.

    Attributes
    ----------
    silo, place : its name, and its place in the roster.
    rows : n_s, the sum of the sizes: under a policy that rounds, a rounded number.
    sizes : (cluster,), rows of each local cluster.
    medians : (cluster, level), posterior medians of the level probabilities; in tier "summary",
        those of the fitted Dirichlets.
    mean : (cluster, level), the levels' shares, without the prior.
    concentration : (cluster, variable), how many rows the draws are worth, without the prior: that
        of the Dirichlet fitted to the draws by moments, less the prior's. Doubt about who belongs
        counts as less data.
    effective_counts : (cluster, level): mean × concentration.
    tier : "draws", or "summary" where the draws stay in the silo and are re-made from the above.
    weights, probabilities : (draw, cluster) and (draw, cluster, level); None in tier "summary".
    diagnostics : what the silo says of its run.
    study : digest of the study it was made under.
    policy : the silo's policy, echoed: `silomix.study.policy.Policy(**policy)`.
    checks : what the policy's rules did, as far as that may be said outside.
    """

    silo: str
    place: int
    rows: int
    sizes: NDArray[np.int64]
    medians: NDArray[np.float64]
    mean: NDArray[np.float64]
    concentration: NDArray[np.float64]
    effective_counts: NDArray[np.float64]
    tier: Tier
    weights: NDArray[np.float32] | None
    probabilities: NDArray[np.float32] | None
    diagnostics: ReleasedDiagnostics
    study: str
    policy: Mapping[str, Any] = field(default_factory=lambda: echo(OPEN))
    checks: tuple[Check, ...] = ()

    @property
    def clusters(self) -> int:
        """Number of local clusters."""
        return len(self.sizes)


def make_release(
    local: LocalPosterior,
    *,
    silo: str,
    place: int,
    study: str,
    tier: Tier = "draws",
    policy: Policy = OPEN,
    most_draws: int | None = None,
    inside: bool = False,
) -> Release:
    """Hand over one silo's posterior, as far as its policy allows.

    Parameters
    ----------
    most_draws : in tier "draws", about how many leave, evenly spread; all when left out.
    inside : keep in the checks what only the silo may see: for its own eyes.

    Raises
    ------
    PolicyRefusal
        When the policy does not allow the tier, or the silo has too few rows.
    """
    check_rows(local.draws.shard.rows, policy, silo)
    check_tier(tier, policy, silo)
    folded = fold_small(local, policy.minimum_count)
    if policy.has_rules and len(folded.sizes) == 1:
        # where all rows are one cluster, components that come and go would tell of rare levels
        folded = replace(folded, memberships=np.ones_like(folded.memberships))
    offsets = local.draws.shard.schema.offsets
    _, beta = local.draws.prior.share(local.draws.silos)
    mean, concentration = without_prior(
        *fit_dirichlet(folded.probabilities, offsets), offsets, beta
    )
    counts = whole_counts(folded, offsets)
    known = np.add.reduceat(counts, offsets[:-1], axis=1)
    if policy.has_rules:
        mean = shares_of(counts, offsets)
        concentration = without_rare(folded, concentration, counts, offsets, policy)
    found = disclose(folded.sizes, mean, concentration, known, offsets, policy=policy)
    folding = (folding_check(local.sizes, folded.sizes, policy),) if policy.minimum_count else ()
    checks = (*folding, *found.checks)
    some = slice(None, None, -(-len(folded.weights) // (most_draws or len(folded.weights))))
    draws = folded.probabilities[some] if tier == "draws" else None
    diagnostics = released_diagnostics(
        local.draws.diagnostics,
        prior_draws=float(folded.prior_draws.max()),
        agreement=local.partition.agreement,
        full=share_full(local.draws),
        sweeps=local.draws.schedule.iterations,
    )
    return Release(
        silo=silo,
        place=place,
        rows=int(found.sizes.sum()),
        sizes=found.sizes,
        medians=release_medians(found.mean, found.concentration, offsets, beta, draws),
        mean=found.mean,
        concentration=found.concentration,
        effective_counts=effective_counts(found.mean, found.concentration, offsets),
        tier=tier,
        weights=folded.weights[some] if tier == "draws" else None,
        probabilities=draws,
        diagnostics=rounded(diagnostics) if policy.has_rules else diagnostics,
        study=study,
        policy=echo(policy),
        checks=checks if inside else outgoing(checks),
    )


def without_prior(
    mean: NDArray[np.float64],
    concentration: NDArray[np.float64],
    offsets: NDArray[np.int64],
    beta: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Take the prior out of fitted Dirichlets: what is left is what the rows said.

    Parameters
    ----------
    mean : (cluster, level); concentration : (cluster, variable)
    beta : the silo's prior concentration of a level.

    Returns
    -------
    mean : (cluster, level), uniform where nothing is left; concentration : (cluster, variable)
    """
    sizes = np.diff(offsets)
    counts = np.maximum(mean * np.repeat(concentration, sizes, axis=1) - beta, 0.0)
    return shares_of(counts, offsets), np.add.reduceat(counts, offsets[:-1], axis=1)


def whole_counts(local: LocalPosterior, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how often each level occurs in each cluster, in whole numbers: (cluster, level).

    The counts are means over the draws of who belongs, not those of the one partition, which are
    biased where clusters overlap.
    """
    sizes, codes = np.diff(offsets), local.draws.shard.codes
    by_variable = [
        np.array([np.bincount(column, member, size + 1)[:size] for member in local.memberships.T])
        for size, column in zip(sizes, codes.T, strict=True)
    ]
    return np.rint(np.concatenate(by_variable, axis=1))


def without_rare(
    local: LocalPosterior,
    concentration: NDArray[np.float64],
    counts: NDArray[np.float64],
    offsets: NDArray[np.int64],
    policy: Policy,
) -> NDArray[np.float64]:
    """Return concentrations to which counts under the policy's minimum did not contribute.

    Draws of a rare level spread the more the more rows that are in doubt have it, so moments tell
    those whom nobody has from the others. A variable with such a level takes what a row is worth
    from the cluster's other variables, the median of them; where all have one, from the doubt
    about its rows. Where no draw doubts who belongs, rows are worth what they are: moments would
    say the same but for noise, which with few draws or a strong prior comes to more than a step.

    Parameters
    ----------
    concentration : (cluster, variable); counts : (cluster, level), of `whole_counts`.
    """
    member, shard = local.memberships, local.draws.shard
    known = np.rint(member.T @ (shard.codes < shard.schema.sizes))
    least = least_units(policy) * policy.round_to
    rare = np.logical_or.reduceat(counts < least, offsets[:-1], axis=1)
    shown = np.where(rare, np.nan, concentration / np.maximum(known, 1.0))
    doubt = (member * (1 - member)).sum(axis=0) / np.maximum(member.sum(axis=0), 1.0)
    worth = (1 + doubt) ** -DOUBT_POWER
    some = ~rare.all(axis=1)
    worth[some] = np.nanmedian(shown[some], axis=1)
    certain = np.asarray((np.abs(member - np.rint(member)) < CERTAIN).all(axis=0))
    worth[certain] = 1.0
    return np.where(rare | certain[:, None], worth[:, None] * known, concentration)


def shares_of(counts: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each level's share of its variable's counts; equal shares of none."""
    sizes = np.diff(offsets)
    totals = np.repeat(np.add.reduceat(counts, offsets[:-1], axis=1), sizes, axis=1)
    equal = np.broadcast_to(1.0 / np.repeat(sizes, sizes), counts.shape)
    return np.divide(counts, totals, out=equal.copy(), where=totals > 0)


def same_draws(one: Release, other: Release) -> bool:
    """Tell whether whoever makes draws of two releases makes the same.

    Effective counts, which a refined matching scales, are no part of that, nor is the policy, of
    which the silo may since have changed what else can be asked.
    """
    parts = ("sizes", "mean", "concentration", "weights", "probabilities")
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)


def release_medians(
    mean: NDArray[np.float64],
    concentration: NDArray[np.float64],
    offsets: NDArray[np.int64],
    beta: float,
    draws: NDArray[np.floating] | None,
) -> NDArray[np.float64]:
    """Return the medians of the level probabilities, (cluster, level).

    Of the draws, (draw, cluster, level), where they are released; else of the Beta distributions
    that are the margins of Dirichlet(β + mean × concentration). Both sides of the door compute
    them so.
    """
    if draws is not None:
        return np.median(draws, axis=0).astype(np.float64)
    own = np.maximum(beta + effective_counts(mean, concentration, offsets), SMALLEST_SHAPE)
    totals = np.repeat(np.add.reduceat(own, offsets[:-1], axis=1), np.diff(offsets), axis=1)
    return np.asarray(betaincinv(own, np.maximum(totals - own, SMALLEST_SHAPE), 0.5))


def effective_counts(
    mean: NDArray[np.float64],
    concentration: NDArray[np.float64],
    offsets: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return mean × concentration: (cluster, level)."""
    return mean * np.repeat(concentration, np.diff(offsets), axis=1)


def release_row_counts(counts: NDArray[np.int64], policy: Policy, silo: str) -> NDArray[np.int64]:
    """Hand over how often each distinct row occurs, (distinct row,), if each does often enough.

    Raises
    ------
    PolicyRefusal
        When one occurs less often than the policy's minimum.
    """
    check_distinct_rows(counts, policy, silo)
    return round_counts(counts, policy)


def release_sizes(sizes: NDArray[np.int64], policy: Policy) -> NDArray[np.int64]:
    """Hand over how many rows each global cluster got, (cluster,); −1 where that is withheld."""
    return withhold_small(sizes, policy)


def share_full(draws: Draws) -> float:
    """Return the share of the draws in which every component held rows."""
    occupied = draws.diagnostics.traces.get("occupied")
    return 0.0 if occupied is None else float((occupied.values == draws.components).mean())


def released_diagnostics(
    found: Diagnostics,
    *,
    prior_draws: float,
    agreement: float = 1.0,
    full: float = 0.0,
    sweeps: int = 0,
) -> ReleasedDiagnostics:
    """Say what may be said of a run: its verdict and numbers, not its traces."""
    return ReleasedDiagnostics(
        verdict=found.verdict,
        trusted=found.trusted,
        rhat={name: trace.rhat for name, trace in found.traces.items()},
        ess={name: trace.ess for name, trace in found.traces.items()},
        prior_draws=prior_draws,
        agreement=agreement,
        full=full,
        sweeps=sweeps,
    )


MIXED = "Trust it: its traces mixed."
NOT_MIXED = "Use with care: its traces had not mixed; run longer."
RHAT_STEPS = np.array([RHAT_LIMIT, 1.5, np.inf])
ESS_STEPS = np.array([0.0, ESS_LIMIT])
AGREEMENT_STEPS = np.array([-1.0, 0.5, 0.8])
FULL_STEPS = np.array([0.0, 0.95])
PRIOR_STEPS = np.array([0.2, 0.5, 1.0])
"""Where a verdict changes, and little else: what is between two steps is a mark of the rows."""


def rounded(found: ReleasedDiagnostics) -> ReleasedDiagnostics:
    """Keep what a person acts on, as bounds so wide that they say little of a single row.

    The study's seed is known to everybody: whoever can guess a silo's rows but for one can run its
    sampler, and would know the right guess by the digits of its diagnostics. The study sets how
    long to run, so even steps can be made to tell: they are few, and the same for every trace, by
    the worst of them.
    """
    rhat, ess = worst_rhat(found.rhat.values()), fewest_draws(found.ess.values())
    if np.isnan(rhat) and found.trusted:  # no trace moved
        rhat, ess = 1.0, np.inf
    few = found.prior_draws <= PRIOR_DRAWS_ALLOWED
    return replace(
        found,
        verdict=MIXED if found.trusted else NOT_MIXED,
        rhat=dict.fromkeys(found.rhat, _at_most(rhat, RHAT_STEPS)),
        ess=dict.fromkeys(found.ess, _at_least(ess, ESS_STEPS)),
        prior_draws=0.0 if few else _at_most(found.prior_draws, PRIOR_STEPS),
        agreement=_at_least(found.agreement, AGREEMENT_STEPS),
        full=_at_least(found.full, FULL_STEPS),
        sweeps=0,
    )


def _at_most(value: float, steps: NDArray[np.float64]) -> float:
    return value if np.isnan(value) else float(steps[value <= steps].min(initial=steps[-1]))


def _at_least(value: float, steps: NDArray[np.float64]) -> float:
    return value if np.isnan(value) else float(steps[value >= steps].max(initial=steps[0]))


def fit_dirichlet(
    probabilities: NDArray[np.floating], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a Dirichlet to draws of each cluster's and variable's probabilities, by moments.

    The concentration is the geometric mean over the levels of m(1 − m)/v − 1 (Minka, 2000,
    equation 23).

    Parameters
    ----------
    probabilities : (draw, cluster, level)
    offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    mean : (cluster, level)
    concentration : (cluster, variable)
    """
    draws = probabilities.astype(np.float64)
    mean = draws.mean(axis=0)
    variance = np.maximum(draws.var(axis=0), 1e-300)
    each = np.clip(mean * (1 - mean) / variance - 1, 1e-3, LARGEST_CONCENTRATION)
    logs = np.add.reduceat(np.log(each), offsets[:-1], axis=-1)
    return mean, np.exp(logs / np.diff(offsets))


def release_draws(
    release: Release,
    count: int,
    prior: Prior,
    silos: int,
    offsets: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return `count` draws of a silo's weights and probabilities, in random order.

    Tier "draws": its own, permuted, drawn again where it has fewer. Tier "summary": fresh ones,
    weights ~ Dirichlet(`weight_shapes`) and probabilities ~ Dirichlet(β_s + mean ×
    concentration).

    Returns
    -------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    """
    if release.weights is not None and release.probabilities is not None:
        order = random_order(len(release.weights), count, rng)
        return (
            release.weights[order].astype(np.float64),
            release.probabilities[order].astype(np.float64),
        )
    alpha, beta = prior.share(silos)
    weights = rng.dirichlet(weight_shapes(release, alpha), size=count)
    shapes = beta + effective_counts(release.mean, release.concentration, offsets)
    return weights, draw_levels(shapes, offsets, rng, count)


def weight_shapes(release: Release, alpha: float) -> NDArray[np.float64]:
    """Return the shapes of the Dirichlet that stands for a silo's weights: (cluster,).

    α_s + sizes, as if every label were certain, less what doubt about them takes away. How sure
    a cluster's labels are shows in its released concentrations, which then fall short of its
    size; the rows that the weights are worth fall with about the square of that. The square is
    a rule of thumb, seen on simulated silos and not derived. Variables that say nothing, whose
    concentration is 0, say nothing of doubt either. Under rules a full concentration stands for
    a whole step (`silomix.disclosure.coarse_concentration`), and its middle is taken; and
    variables with rare levels, which doubt costs most, show what the others are worth
    (`without_rare`), so that the power is a little more than two.
    """
    telling = np.where(release.concentration > 0, release.concentration, np.nan)
    telling[np.isnan(telling).all(axis=1)] = np.inf
    most, power = (MIDDLE, 2.2) if Policy(**release.policy).has_rules else (1.0, 2.0)
    sure = np.minimum(np.nanmedian(telling, axis=1) / release.sizes, most)
    worth = np.average(sure**power, weights=release.sizes)
    return np.asarray((release.sizes + alpha) * worth)


def random_order(available: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` places in random order; all before any twice."""
    rounds = [rng.permutation(available) for _ in range(-(-count // available))]
    return np.concatenate(rounds)[:count]
