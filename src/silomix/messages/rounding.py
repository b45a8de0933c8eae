"""What a rounded release can stand for: the sums behind it, drawn.

The law of rounding itself is that of each kind of variable: `silomix.model.families.rounded` says
where. Taken for exact, rounded numbers make intervals that are too short, and floors make rare
levels too common; so what is behind them is drawn, together with the profile that it comes from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from silomix.model.families.rounded import Said, least_units
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints, Reals, Rng
    from silomix.messages import Release
    from silomix.model.prior import PooledModel

# Stands for a count that the policy does not let out.
WITHHELD = -1
# Draws behind one silo's release by itself.
OWN_DRAWS = 500
STREAM = 0x726E64
FOLDED = "small clusters folded"


def has_rules(release: Release) -> bool:
    """Tell whether a policy changed counts of a release that has no draws."""
    return release.probabilities is None and Policy(**release.policy).has_rules


def read_said(release: Release) -> Said:
    """Return what the clusters of one release say."""
    policy, none = Policy(**release.policy), np.zeros(release.clusters, dtype=np.int64)
    base, least = policy.round_to, least_units(policy) * policy.round_to
    rules = (none + base, none + least) if has_rules(release) else (none, none)
    return Said(release.mean, release.concentration, release.sizes, *rules)


def join_said(parts: Sequence[Said]) -> Said:
    """Return what the clusters of several releases say, in one list."""
    return Said._make(map(np.concatenate, zip(*parts, strict=True)))


def own_draws(release: Release, count: int, model: PooledModel, silos: int, rng: Rng) -> Floats:
    """Draw the parameters of one silo's clusters, by themselves: (draw, cluster, parameter)."""
    family, said = model.shared_family(silos), read_said(release)
    each = [family.draw_behind(said.of(np.array([c])), count, rng) for c in range(release.clusters)]
    return np.stack(each, axis=1)


def with_effective_counts(release: Release, model: PooledModel, silos: int) -> Release:
    """Return a release with effective counts: mean × concentration, unless rounding hides more.

    Then they are those of a posterior with the moments of the draws behind the release, so that a
    floor counts as the doubt it is.
    """
    if not has_rules(release):
        said = release.mean * model.family.repeat(release.concentration)
        return replace(release, effective_counts=said)
    rng = np.random.default_rng([model.seed, STREAM, release.place])
    drawn = own_draws(release, OWN_DRAWS, model, silos, rng)
    return replace(release, effective_counts=_worth(drawn, model, silos))


def _worth(draws: Reals, model: PooledModel, silos: int) -> Floats:
    """Return the sums without the prior of posteriors with the moments of a silo's draws."""
    family = model.shared_family(silos)
    mean, concentration = family.means(family.valid(family.fit(draws)))
    return np.asarray(mean * family.repeat(concentration))


def with_own_counts(
    probabilities: Reals, release: Release, own: Reals, groups: Ints, model: PooledModel, silos: int
) -> Floats:
    """Return parameters that know a silo's own rows, where others know its release alone.

    For use inside the silo. What its rounded release said is taken out of the posteriors that fit
    the draws, and what its own draws say is put in. A cluster that the silo lacks stays as it is.

    Parameters
    ----------
    probabilities : (draw, cluster, parameter), made from the releases of all silos.
    release : the silo's own.
    own : (draw, local cluster, parameter), its own draws, which no rule has changed.
    groups : (local cluster,), the global cluster of each.
    silos : how many the study has.
    """
    family = model.family
    others = family.fit(probabilities)
    np.subtract.at(others, groups, with_effective_counts(release, model, silos).effective_counts)
    numbers = family.posterior(family.valid(others))
    for cluster, worth in zip(groups, _worth(own, model, silos), strict=True):
        numbers[cluster] = family.posterior(worth, numbers[cluster])
    rng = np.random.default_rng([model.seed, STREAM, release.place, len(probabilities)])
    drawn = family.draw(numbers, rng, len(probabilities))
    held = np.isin(np.arange(len(numbers)), groups)
    return np.where(held[:, None], drawn, probabilities)
