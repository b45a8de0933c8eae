"""LocalPosterior -> Release: the only door out of a silo.

Every number derived from a silo's rows that a policy may alter goes through the rules of
`silomix.silo.disclosure`. Whether a question is answered at all, and how often, is decided in
`silomix.silo.answer.permit`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import PolicyRefusal
from silomix.messages import Check, Release, ReleasedDiagnostics, Tier
from silomix.messages.released_draws import release_medians
from silomix.model import diagnostics as limits
from silomix.silo.disclosure import check_tier, disclose, fold_small, folding_check, outgoing
from silomix.study.policy import OPEN, Policy, echo

if TYPE_CHECKING:
    from silomix.kernels.arrays import Floats, Ints, Singles
    from silomix.model.draws import LocalPosterior
    from silomix.model.families.product import Product


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
    folded = fold_small(local, policy.minimum_count)
    if policy.has_rules and len(folded.sizes) == 1:
        # where all rows are one cluster, components that come and go would tell of rare levels
        folded = replace(folded, memberships=np.ones_like(folded.memberships))
    family = local.draws.silo_family
    mean, concentration = family.means(family.valid(family.fit(folded.probabilities)))
    sizes = folded.sizes
    checks: tuple[Check, ...] = ()
    if policy.has_rules:
        sizes, mean, concentration, checks = disclose(folded, concentration, policy)
    if policy.minimum_count:
        checks = (folding_check(local.sizes, folded.sizes, policy), *checks)
    some = slice(None, None, -(-len(folded.weights) // (most_draws or len(folded.weights))))
    diagnostics = _diagnostics(local, folded)
    return fill_release(
        family,
        (sizes, mean, concentration),
        (folded.weights[some], folded.probabilities[some]) if tier == "draws" else None,
        silo=silo,
        diagnostics=rounded(diagnostics) if policy.has_rules else diagnostics,
        policy=echo(policy),
        checks=checks if inside else outgoing(checks),
        **about,
    )


def fill_release(
    family: Product,
    said: tuple[Ints, Floats, Floats],
    draws: tuple[Singles, Singles] | None,
    **about: Any,
) -> Release:
    """Return a release with all that follows from its numbers.

    Parameters
    ----------
    family : with the silo's share of the prior.
    said : its sizes, mean and concentration, as they may leave.
    draws : its weights and probabilities, in tier "draws".
    about : the other fields.
    """
    (sizes, mean, concentration), (weights, probabilities) = said, draws or (None, None)
    return Release(
        sizes=sizes,
        medians=release_medians(mean, concentration, family, probabilities),
        mean=mean,
        concentration=concentration,
        tier="summary" if draws is None else "draws",
        weights=weights,
        probabilities=probabilities,
        **about,
    )


def _diagnostics(local: LocalPosterior, folded: LocalPosterior) -> ReleasedDiagnostics:
    """Return what the silo says of its run."""
    occupied = local.draws.diagnostics.traces.get("occupied")
    return ReleasedDiagnostics.of(
        local.draws.diagnostics,
        prior_draws=float(folded.prior_draws.max()),
        agreement=local.partition.agreement,
        # share of the draws in which every component held rows
        full=float((occupied.values == local.draws.components).mean()) if occupied else 0.0,
        sweeps=local.draws.schedule.iterations,
    )


MIXED = "Trust it: its traces mixed."
NOT_MIXED = "Use with care: its traces had not mixed; run longer."
RHAT_STEPS = np.array([limits.RHAT_LIMIT, 1.5, np.inf])
ESS_STEPS = np.array([0.0, limits.ESS_LIMIT])
AGREEMENT_STEPS = np.array([-1.0, 0.5, 0.8])
FULL_STEPS = np.array([0.0, 0.95])
# Where a verdict changes, and little else: what is between two steps is a mark of the rows.
PRIOR_STEPS = np.array([0.2, 0.5, 1.0])


def rounded(found: ReleasedDiagnostics) -> ReleasedDiagnostics:
    """Keep what a person acts on, as bounds so wide that they say little of a single row.

    The study's seed is known to everybody: whoever can guess a silo's rows but for one can run its
    sampler, and would know the right guess by the digits of its diagnostics. The study sets how
    long to run, so even steps can be made to tell: they are few, and the same for every trace, by
    the worst of them.
    """
    rhat, ess = limits.worst_rhat(found.rhat.values()), limits.fewest_draws(found.ess.values())
    if np.isnan(rhat) and found.trusted:  # no trace moved
        rhat, ess = 1.0, np.inf
    few = found.prior_draws <= limits.PRIOR_DRAWS_ALLOWED
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


def _at_most(value: float, steps: Floats) -> float:
    return value if np.isnan(value) else float(steps[value <= steps].min(initial=steps[-1]))


def _at_least(value: float, steps: Floats) -> float:
    return value if np.isnan(value) else float(steps[value >= steps].max(initial=steps[0]))
