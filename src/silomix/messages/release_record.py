"""A silo's release: what the coordinator sees of its posterior, and draws remade from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import betaincinv

from silomix.messages.rounding import MIDDLE
from silomix.model.families.dirichlet import draw_levels
from silomix.study.policy import OPEN, Policy, echo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints
    from silomix.messages.rounding import Check
    from silomix.model.draws import Diagnostics
    from silomix.model.schema import Prior

Tier = Literal["summary", "draws"]

SMALLEST_SHAPE = 1e-6
# Draws that hardly move say no more than this many observations.
LARGEST_CONCENTRATION = 1e9


@dataclass(frozen=True)
class ReleasedDiagnostics:
    """What a silo says of its own run.

    Attributes
    ----------
    verdict, trusted : as in `silomix.model.draws.Diagnostics`.
    rhat, ess : by trace.
    prior_draws : largest share of draws in which a cluster had to take an empty component.
    agreement : adjusted Rand index of the partitions that its chains give each on its own
        (`silomix.silo.partition.chain_agreement`); 1 for one chain or one cluster.
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
    sizes: Ints
    medians: Floats
    mean: Floats
    concentration: Floats
    effective_counts: Floats
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


def without_prior(
    mean: Floats, concentration: Floats, offsets: Ints, beta: float
) -> tuple[Floats, Floats]:
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


def shares_of(counts: Floats, offsets: Ints) -> Floats:
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
    mean: Floats,
    concentration: Floats,
    offsets: Ints,
    beta: float,
    draws: NDArray[np.floating] | None,
) -> Floats:
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


def effective_counts(mean: Floats, concentration: Floats, offsets: Ints) -> Floats:
    """Return mean × concentration: (cluster, level)."""
    return mean * np.repeat(concentration, np.diff(offsets), axis=1)


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


def fit_dirichlet(probabilities: NDArray[np.floating], offsets: Ints) -> tuple[Floats, Floats]:
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
    release: Release, count: int, prior: Prior, silos: int, offsets: Ints, rng: np.random.Generator
) -> tuple[Floats, Floats]:
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


def weight_shapes(release: Release, alpha: float) -> Floats:
    """Return the shapes of the Dirichlet that stands for a silo's weights: (cluster,).

    α_s + sizes, as if every label were certain, less what doubt about them takes away. How sure
    a cluster's labels are shows in its released concentrations, which then fall short of its
    size; the rows that the weights are worth fall with about the square of that. The square is
    a rule of thumb, seen on simulated silos and not derived. Variables that say nothing, whose
    concentration is 0, say nothing of doubt either. Under rules a full concentration stands for
    a whole step (`messages.rounding_law.coarse_concentration`), and its middle is taken; and
    variables with rare levels, which doubt costs most, show what the others are worth
    (`without_rare`), so that the power is a little more than two.
    """
    telling = np.where(release.concentration > 0, release.concentration, np.nan)
    telling[np.isnan(telling).all(axis=1)] = np.inf
    most, power = (MIDDLE, 2.2) if Policy(**release.policy).has_rules else (1.0, 2.0)
    sure = np.minimum(np.nanmedian(telling, axis=1) / release.sizes, most)
    worth = np.average(sure**power, weights=release.sizes)
    return np.asarray((release.sizes + alpha) * worth)


def random_order(available: int, count: int, rng: np.random.Generator) -> Ints:
    """Return `count` places in random order; all before any twice."""
    rounds = [rng.permutation(available) for _ in range(-(-count // available))]
    return np.concatenate(rounds)[:count]
