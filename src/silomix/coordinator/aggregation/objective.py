"""The relaxed ELBO and its gradient in the aggregation weights.

Fendler et al. (2026), sections 4.3 and 4.4, after Rabinovich, Angelino and Jordan (2015). With
θ̂_t = (π̂_t, p̂_t), π̂ = Σ_s λ_s π^s and p̂_c = Σ_s μ_{s,c} p_c^s,

    L(λ, μ) = mean_t [ log p(X | θ̂_t) + log p(θ̂_t) ] + log-determinants.

The prior is the pooled model's, not the silos' share of it, with its normalising constants; the
constant min_s H of the paper is left out. The log-determinants are read in one of two ways, S_c
being the silos that hold cluster c and d = Σ_q (K_q − 1):

"coordinates"
    (G − 1)/S Σ_s log λ_s + Σ_c d/|S_c| Σ_{s ∈ S_c} log μ_{s,c}: one for each free coordinate, and
    for each cluster the mean over the silos that hold it, since a zero weight has no determinant.
"literal"
    G/S Σ_s log λ_s + Σ_q K_q/S Σ_c Σ_{s ∈ S_c} log μ_{s,c}: the paper's matrices as printed.

Where silos lack clusters neither is a bound: the Jacobians are then not square.

An oracle gives the data term for all silos together, and its gradient in (λ, μ), at any number of
points. Two of them, the same number to rounding: `contingency` asks every silo once how often each
distinct row occurs, `federated` asks every silo each time and adds up.

The space of the weights is a product of simplices over the silos. A point is (silo, block): block 0
is λ, over all silos; block 1 + c is μ_c, over the silos that hold cluster c. `held` (silo, block)
says which entries a block has; the others are zero. Several points at once are (start, silo,
block). With a floor, every entry that a block has is at least the floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from scipy.special import gammaln

from silomix.errors import PolicyRefusal
from silomix.kernels.arrays import Bools, Floats, Rng, distinct_rows
from silomix.kernels.layout import row_table
from silomix.kernels.likelihood import expected_counts
from silomix.messages import CountDistinctRows, LogLikelihood, LogLikelihoodReply
from silomix.messages.released_draws import mean_log_likelihood, mix, mix_gradient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from silomix.families.product import Product
    from silomix.messages import DistinctRows, Release, ShareReleases, Silos
    from silomix.messages.released_draws import Expected
    from silomix.model.draws import MatchedDraws

    # the draws, the place of the first among all, λ (start, silo) and μ (start, silo, cluster)
    Oracle = Callable[[MatchedDraws, int, Floats, Floats], LogLikelihoodReply]

# of a difference quotient, in an aggregation weight
STEP = 1e-5
# stands for zero under a logarithm
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Objective:
    """The relaxed ELBO, as a function of aggregation weights.

    Attributes
    ----------
    matched : the draws the mean is over, a fixed set: the objective is deterministic.
    oracle : gives the data term.
    alpha : concentration of the weights in the pooled model.
    family : under the prior of the pooled model.
    log_determinant : the reading of the log-determinants.
    first : place of the first of the draws among all that were matched.
    """

    matched: MatchedDraws
    oracle: Oracle
    alpha: float
    family: Product
    log_determinant: Literal["coordinates", "literal"] = "coordinates"
    first: int = 0

    @property
    def held(self) -> Bools:
        """Which entries the points have: (silo, block), as points have."""
        return blocks_held(self.matched.held)


class Evaluation(NamedTuple):
    """The objective at some points.

    Attributes
    ----------
    value : (start,)
    gradient : (start, silo, block), zero where a block has no entry.
    """

    value: Floats
    gradient: Floats


def evaluate(objective: Objective, points: Floats) -> Evaluation:
    """Relaxed ELBO and its gradient at points (start, silo, block)."""
    data = objective.oracle(objective.matched, objective.first, *split(points))
    prior = log_prior(objective, points)
    determinant = log_determinants(objective, points)
    gradient = join(data.weights, data.profiles) + prior.gradient + determinant.gradient
    return Evaluation(data.value + prior.value + determinant.value, gradient)


def log_prior(objective: Objective, points: Floats) -> Evaluation:
    """Mean over draws of log p(θ̂_t), of the weights and of every cluster, and its gradient."""
    matched, alpha, family = objective.matched, objective.alpha, objective.family
    clusters = matched.held.shape[1]
    values, gradients = [], []
    for weights, profiles in zip(*split(points), strict=True):
        shares, parameters = mix(matched, weights, profiles, family)
        each, logs, slopes = family.log_prior(parameters)
        constant = gammaln(clusters * alpha) - clusters * gammaln(alpha)
        constant += clusters * each
        logs = (alpha - 1) * np.log(shares).sum() + logs
        values.append(constant + logs / len(shares))
        gradients.append(join(*mix_gradient(matched, (alpha - 1) / shares, slopes)))
    return Evaluation(np.array(values), np.array(gradients))


def log_determinants(objective: Objective, points: Floats) -> Evaluation:
    """Log-determinant terms and their gradient."""
    held = objective.held
    factors = determinant_factors(objective)
    positive = np.where(held, points, 1.0)
    return Evaluation(np.sum(factors * np.log(positive), axis=(-2, -1)), factors * held / positive)


def determinant_factors(objective: Objective) -> Floats:
    """Coefficient of each block's sum of log weights: (block,)."""
    silos, clusters = objective.matched.held.shape
    family = objective.family
    if objective.log_determinant == "literal":
        return np.append(clusters / silos, np.full(clusters, family.parameters.sum() / silos))
    holders = objective.matched.held.sum(axis=0)
    return np.append((clusters - 1) / silos, family.free / holders)


def contingency(silos: Silos, family: Product, threads: int = 1) -> Oracle:
    """Ask every silo for its distinct rows, once, and return an oracle on all of them."""
    replies: Mapping[str, DistinctRows] = silos.ask(CountDistinctRows())
    ordered = [replies[name] for name in silos.names]
    rows = np.concatenate([reply.rows for reply in ordered])
    counts = np.concatenate([reply.counts for reply in ordered])
    table = row_table(*distinct_rows(rows, counts), family.statistics)
    return of_rows(family, partial(expected_counts, rows=table, threads=threads))


def of_rows(family: Product, expected: Expected) -> Oracle:
    """Oracle on rows that are all here, by their `expected` sums."""
    return lambda matched, _, weights, profiles: LogLikelihoodReply(
        *mean_log_likelihood(matched, weights, profiles, family, expected)
    )


def by_differences(
    matched: MatchedDraws,
    weights: Floats,
    profiles: Floats,
    family: Product,
    value: Callable[[Floats, Floats], float],
) -> LogLikelihoodReply:
    """Mean log-likelihood at points, and its gradient by difference quotients.

    The aggregation weights are few, so that no derivative is asked of whoever wrote it.

    Parameters
    ----------
    weights, profiles : (start, silo), λ, and (start, silo, cluster), μ.
    value : of weights (draw, cluster) and parameters (draw, cluster, parameter), the mean over
        draws.
    """

    def at(point: Floats) -> float:
        return value(*mix(matched, *split(point), family))

    points = join(weights, profiles)
    values, gradient = np.array([at(point) for point in points]), np.zeros(points.shape)
    for start, *place in np.argwhere(np.broadcast_to(blocks_held(matched.held), points.shape)):
        moved = points[start].copy()
        moved[*place] += STEP
        gradient[start, *place] = (at(moved) - values[start]) / STEP
    return LogLikelihoodReply(values, *split(gradient))


def federated(silos: Silos, share: ShareReleases) -> Oracle:
    """Oracle that asks every silo each time: sums over rows move, and no row.

    The silos are shown the releases once; the questions then carry points alone.
    """
    why = 'which the federated oracle needs; choose aggregation "product", "cmc" or "uniform"'
    check_exchange(share.releases, "sharing", why)
    silos.ask(share)

    def ask(
        matched: MatchedDraws, first: int, weights: Floats, profiles: Floats
    ) -> LogLikelihoodReply:
        last = first + matched.weights.shape[1]
        query = LogLikelihood(share.key, first, last, weights, profiles)
        replies: Mapping[str, LogLikelihoodReply] = silos.ask(query)
        ordered = [replies[name] for name in silos.names]
        parts = zip(*(vars(reply).values() for reply in ordered), strict=True)
        return LogLikelihoodReply(*(np.sum(part, axis=0) for part in parts))

    return ask


def check_exchange(releases: Sequence[Release], kind: str, why: str) -> None:
    """Refuse an exchange that the policy of a silo does not allow."""
    for release in releases:
        if not release.policy["exchanges"][kind]:
            text = f"{release.silo}: its policy does not let its release be shown to other silos"
            raise PolicyRefusal(f"{text}, {why}, or let the policy's owner allow exchanges.{kind}")


def join(weights: Floats, profiles: Floats) -> Floats:
    """Make points of λ (…, silo) and μ (…, silo, cluster)."""
    return np.concatenate([weights[..., None], profiles], axis=-1)


def split(points: Floats) -> tuple[Floats, Floats]:
    """Weights λ (…, silo) and μ (…, silo, cluster) of points."""
    return np.ascontiguousarray(points[..., 0]), np.ascontiguousarray(points[..., 1:])


def blocks_held(held: Bools) -> Bools:
    """Entries of the blocks, given which silo holds which cluster: (silo, block)."""
    return np.concatenate([np.ones((len(held), 1), dtype=bool), held], axis=1)


def room(held: Bools, floor: float) -> Floats:
    """Remainder of each block above the floor: (block,)."""
    return 1.0 - floor * held.sum(axis=0)


def project(points: Floats, held: Bools, floor: float = 0.0) -> Floats:
    """Nearest points of the space, block by block.

    By sorting: Duchi, Shalev-Shwartz, Singer and Chandra (2008), figure 1. A floor moves the
    origin and leaves a smaller simplex.
    """
    ranks = np.arange(1, len(held) + 1)[:, None]
    present = ranks <= held.sum(axis=0)
    above = np.where(held, points - floor, -np.inf)
    descending = np.where(present, -np.sort(-above, axis=-2), 0.0)
    excess = np.cumsum(descending, axis=-2) - room(held, floor)
    positive = np.sum(present & (descending * ranks > excess), axis=-2, keepdims=True)
    threshold = np.take_along_axis(excess, positive - 1, axis=-2) / positive
    return np.where(held, np.maximum(above - threshold, 0.0) + floor, 0.0)


def softmax(logs: Floats, held: Bools, floor: float = 0.0) -> Floats:
    """Points floor + (1 − n floor) softmax(logs), n the entries of a block."""
    masked = np.where(held, logs, -np.inf)
    masses = np.exp(masked - masked.max(axis=-2, keepdims=True))
    shares = masses / masses.sum(axis=-2, keepdims=True)
    return np.where(held, floor + room(held, floor) * shares, 0.0)


def softmax_inverse(points: Floats, held: Bools, floor: float = 0.0) -> Floats:
    """Logs that `softmax` turns into these points; zero where a block has no entry."""
    shares = np.where(held, (points - floor) / room(held, floor), 1.0)
    return np.log(np.maximum(shares, TINY))


def softmax_gradient(gradient: Floats, points: Floats, held: Bools, floor: float = 0.0) -> Floats:
    """Carry a gradient in the points over to one in their logs: J^T g, J = (diag p − p p^T)."""
    left = room(held, floor)
    shares = np.where(held, (points - floor) / left, 0.0)
    mean = np.sum(shares * gradient, axis=-2, keepdims=True)
    return left * shares * (gradient - mean)


def hypercube(count: int, held: Bools, rng: Rng) -> Floats:
    """Points spread evenly over the space: (start, silo, block).

    A Latin hypercube (McKay, Beckman and Conover, 1979), pushed through the Rosenblatt map in
    closed form of Fendler et al. (2026), section 4.4: a block of n entries takes n − 1
    coordinates, and each point alone is uniform on its simplices.
    """
    from scipy.stats import qmc  # late: it takes half a second to import

    entries = held.sum(axis=0)
    points = np.zeros((count, *held.shape))
    coordinates = int((entries - 1).sum())
    design = np.zeros((count, 0))
    if coordinates:
        design = qmc.LatinHypercube(coordinates, seed=rng).random(count)
    parts = np.split(design, np.cumsum(entries - 1)[:-1], axis=1)
    for block, part in enumerate(parts):
        points[:, held[:, block], block] = rosenblatt(part)
    return points


def rosenblatt(uniforms: Floats) -> Floats:
    """Turn uniforms (point, n − 1) into points of a simplex of n entries, uniform on it.

    m_i = (1 − m_1 − … − m_{i−1}) (1 − (1 − u_i)^{1/(n − i)}); the last takes the rest.
    """
    count, free = uniforms.shape
    kept = (1.0 - uniforms) ** (1.0 / np.arange(free, 0, -1))
    left = np.concatenate([np.ones((count, 1)), np.cumprod(kept, axis=1)], axis=1)
    return np.concatenate([left[:, :-1] * (1.0 - kept), left[:, -1:]], axis=1)
