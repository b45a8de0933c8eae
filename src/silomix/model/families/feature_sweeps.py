"""Gibbs sweeps for any product of conjugate families, on the rows' features.

Parameters given what the labels add up to, drawn by the family; labels given the parameters, drawn
by a kernel. Randomness is keyed by (chain, sweep): a chain rebuilt from its labels goes on as if it
had never been stopped. Where all variables are categories, `compiled_sweeps` draws from the same
conditional distributions, faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.kernels import feature_rows
from silomix.kernels.compilation import split_work
from silomix.kernels.gibbs_sweep import LABELS, PARAMETERS
from silomix.kernels.random_numbers import fold
from silomix.model.families.dirichlet import SMALLEST_GAMMA

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from silomix.kernels.arrays import Bytes, Floats, Reals, Rng
    from silomix.kernels.layout import KeptDraws
    from silomix.model.draws import Schedule
    from silomix.model.families.product import Product
    from silomix.model.schema import Shard


@dataclass(frozen=True, eq=False)
class Plan:
    """What all chains of a shard share.

    Attributes
    ----------
    features : (row, statistic); base : Σ log_base of the rows.
    """

    family: Product
    components: int
    alpha: float
    features: Floats
    base: float


@dataclass(frozen=True, eq=False)
class Chain:
    """One chain's labels, (row,), and what they add up to.

    Attributes
    ----------
    key : root of the chain's randomness; sweep i draws from (key, i) whatever ran before.
    """

    plan: Plan
    key: int
    labels: Bytes
    members: Floats
    statistics: Floats


def prepare(shard: Shard, components: int, alpha: float, family: Product) -> Plan:
    """Turn a shard's rows into features, with the silo's share of the prior."""
    base = float(family.log_base(shard).sum())
    return Plan(family, components, alpha, family.features(shard), base)


def start(plan: Plan, key: int) -> Bytes:
    """Return random labels, every component equally likely."""
    rng = _stream(fold(key, 0), LABELS)
    return rng.integers(plan.components, size=len(plan.features)).astype(np.uint8)


def resume(plan: Plan, key: int, labels: Bytes, _: int) -> Chain:
    """Return a chain that goes on from `labels`."""
    members, sums = np.zeros(plan.components), np.zeros((plan.components, plan.features.shape[1]))
    feature_rows.sum_by_label(plan.features, labels, members, sums)
    return Chain(plan, key, labels.copy(), members, sums)


def advance(
    chain: Chain, sweeps: range, when: Schedule, kept: KeptDraws, _: Executor | None
) -> None:
    """Run Gibbs sweeps on the chain in place and write the draws that are due into `kept`.

    Parameters as in `compiled_sweeps.advance`; one thread takes all rows.
    """
    plan, family = chain.plan, chain.plan.family
    for sweep in sweeps:
        below = fold(chain.key, sweep)
        rng = _stream(below, PARAMETERS)
        weights = draw_weights(plan.alpha + chain.members, rng)
        parameters = family.draw(family.posterior(chain.statistics), rng)
        natural = np.ascontiguousarray(family.natural(parameters).T)
        given = np.uint64(fold(below, LABELS)), plan.features, natural, np.log(weights)
        out = chain.labels, chain.members, chain.statistics
        log_likelihood = feature_rows.draw_labels(*given, *out)
        late = sweep - when.burn_in
        if late > 0 and late % when.thin == 0:
            draw = late // when.thin - 1
            kept.labels[draw], kept.members[draw] = chain.labels, chain.members
            kept.weights[draw], kept.probabilities[draw] = weights, parameters
            kept.log_likelihood[draw] = log_likelihood + plan.base


def draw_given_parameters(
    family: Product,
    features: Floats,
    key: int,
    given: tuple[Reals, Reals],
    alpha: float,
    sweeps: int,
    *,
    threads: int,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Draw the rows' labels for many chains at once, given each chain's parameters.

    As `compiled_sweeps.draw_given_parameters`, for any family.

    Parameters
    ----------
    features : (row, statistic)
    given : weights, (chain, cluster), and parameters, (chain, cluster, parameter).

    Returns
    -------
    statistics : (chain, cluster, statistic); members : (chain, cluster)
    weights : (chain, cluster); log_likelihood : (chain,), without log_base.
    """
    weights = np.array(given[0], dtype=np.float64)
    natural, _ = feature_rows.in_vectors(family.columns(given[1]), weights)
    chains, clusters = weights.shape
    statistics = np.zeros((chains, clusters, features.shape[1]))
    members, likelihood = np.zeros((chains, clusters)), np.zeros(chains)

    def draw(begin: int, end: int) -> None:
        task = np.uint64(key), begin, end, features, natural, float(alpha), sweeps
        feature_rows.draw_chains(*task, weights, members, statistics, likelihood)

    split_work(chains, threads, draw)
    return statistics, members, weights, likelihood


def draw_weights(shapes: Floats, rng: Rng) -> Floats:
    """Draw weights from their Dirichlet: (cluster,)."""
    gammas = np.maximum(rng.standard_gamma(shapes), SMALLEST_GAMMA)
    return np.maximum(gammas / gammas.sum(), SMALLEST_GAMMA)


def _stream(key: int, branch: int) -> Rng:
    return np.random.Generator(np.random.Philox(key=np.array([key, branch], dtype=np.uint64)))
