"""Gibbs sweeps for any product of conjugate families, on the rows' features.

Parameters given what the labels add up to, drawn by the family; labels given the parameters, drawn
by a kernel. Of rows that hide something (`Family.hides`) labels are drawn in NumPy, with what is
hidden summed out, and then the features given the labels. Randomness is keyed by (chain, sweep): a
chain rebuilt from its state goes on as if it had never been stopped. Where all variables are
categories, `compiled_sweeps` draws from the same conditional distributions, faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from scipy.special import logsumexp

from silomix.kernels import feature_rows
from silomix.kernels.compilation import split_work
from silomix.kernels.gibbs_sweep import LABELS, PARAMETERS
from silomix.kernels.random_numbers import fold
from silomix.model.families.dirichlet import SMALLEST_GAMMA

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from silomix.kernels.arrays import Bools, Bytes, Floats, Reals, Rng
    from silomix.kernels.layout import KeptDraws
    from silomix.model.draws import Schedule
    from silomix.model.families.product import Product
    from silomix.model.schema import Shard

# the branch of a key that what rows hide is drawn from
HIDDEN = 3


@dataclass(frozen=True, eq=False)
class Plan:
    """What all chains of a shard share.

    Attributes
    ----------
    base : Σ log_base of the rows.
    """

    rows: FeatureRows
    components: int
    alpha: float
    base: float


@dataclass(frozen=True, eq=False)
class Chain:
    """One chain's labels, (row,), and what they add up to.

    Attributes
    ----------
    key : root of the chain's randomness; sweep i draws from (key, i) whatever ran before.
    drawn : (hidden row, statistic), the features that were drawn.
    """

    plan: Plan
    key: int
    labels: Bytes
    drawn: Floats
    members: Floats
    statistics: Floats

    @property
    def state(self) -> Bytes:
        """What the chain goes on from: its labels, and the bytes of the features drawn."""
        return np.concatenate([self.labels, self.drawn.ravel().view(np.uint8)])


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Rows as features, those that hide something apart.

    Attributes
    ----------
    features : (row, statistic), contiguous; seen : (row,), which rows hide nothing.
    visible : (seen row, statistic); hidden : the other rows.
    """

    family: Product
    features: Floats
    seen: Bools
    visible: Floats
    hidden: Shard

    @classmethod
    def of(cls, family: Product, shard: Shard, features: Floats | None = None) -> Self:
        """Return a shard's rows, their features at hand or made."""
        made = family.features(shard) if features is None else features
        seen, made = ~family.hides(shard), np.ascontiguousarray(made)
        return cls(family, made, seen, made if seen.all() else made[seen], shard.some(~seen))

    def draw(
        self, key: int, log_weights: Floats, parameters: Floats, out: tuple[Bytes, Floats, Floats]
    ) -> tuple[Floats, float]:
        """Draw all labels and hidden features given the parameters of one chain.

        Parameters
        ----------
        log_weights : (cluster,); parameters : (cluster, parameter)
        out : labels, (row,); members, (cluster,); statistics, (cluster, statistic).

        Returns
        -------
        The hidden rows' features, and the log-likelihood without log_base.
        """
        labels, members, statistics = out
        natural = np.ascontiguousarray(self.family.natural(parameters).T)
        given = np.uint64(key), self.visible, natural, log_weights
        if not self.hidden.rows:
            return self.features[:0], feature_rows.draw_labels(*given, *out)
        some, rng = np.empty(len(self.visible), np.uint8), _stream(key, HIDDEN)
        log_likelihood = feature_rows.draw_labels(*given, some, members, statistics)
        scores = self.family.log_density(self.hidden, parameters) + log_weights
        chosen = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        drawn = self.family.complete(self.hidden, parameters, chosen, rng)
        labels[self.seen], labels[~self.seen] = some, chosen
        feature_rows.add_by_label(drawn, chosen, members, statistics)
        return drawn, log_likelihood + float(logsumexp(scores, axis=1).sum())


def prepare(shard: Shard, components: int, alpha: float, family: Product) -> Plan:
    """Turn a shard's rows into features, with the silo's share of the prior."""
    base = float(family.log_base(shard).sum())
    return Plan(FeatureRows.of(family, shard), components, alpha, base)


def start(plan: Plan, key: int) -> Bytes:
    """Return random labels, every component equally likely, and nothing drawn yet."""
    rng = _stream(fold(key, 0), LABELS)
    labels = rng.integers(plan.components, size=len(plan.rows.features)).astype(np.uint8)
    drawn = plan.rows.features[~plan.rows.seen]
    return np.concatenate([labels, drawn.ravel().view(np.uint8)])


def resume(plan: Plan, key: int, state: Bytes, _: int) -> Chain:
    """Return a chain that goes on from its state."""
    rows = plan.rows
    labels, rest = np.split(state, [len(rows.features)])
    members, sums = np.zeros(plan.components), np.zeros((plan.components, rows.features.shape[1]))
    drawn = rest.copy().view(np.float64).reshape(rows.hidden.rows, rows.features.shape[1])
    # in the order of `FeatureRows.draw`: sums must be the same to the last digit
    feature_rows.sum_by_label(rows.visible, labels[rows.seen], members, sums)
    feature_rows.add_by_label(drawn, labels[~rows.seen], members, sums)
    return Chain(plan, key, labels.copy(), drawn, members, sums)


def advance(
    chain: Chain, sweeps: range, when: Schedule, kept: KeptDraws, _: Executor | None
) -> None:
    """Run Gibbs sweeps on the chain in place and write the draws that are due into `kept`.

    Parameters as in `compiled_sweeps.advance`; one thread takes all rows.
    """
    plan, family = chain.plan, chain.plan.rows.family
    for sweep in sweeps:
        below = fold(chain.key, sweep)
        rng = _stream(below, PARAMETERS)
        weights = draw_weights(plan.alpha + chain.members, rng)
        parameters = family.draw(family.posterior(chain.statistics), rng)
        out = chain.labels, chain.members, chain.statistics
        found = plan.rows.draw(fold(below, LABELS), np.log(weights), parameters, out)
        chain.drawn[:], log_likelihood = found
        late = sweep - when.burn_in
        if late > 0 and late % when.thin == 0:
            draw = late // when.thin - 1
            kept.labels[draw], kept.members[draw] = chain.labels, chain.members
            kept.weights[draw], kept.probabilities[draw] = weights, parameters
            kept.log_likelihood[draw] = log_likelihood + plan.base


def draw_given_parameters(
    rows: FeatureRows,
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
    given : weights, (chain, cluster), and parameters, (chain, cluster, parameter).

    Returns
    -------
    statistics : (chain, cluster, statistic); members : (chain, cluster)
    weights : (chain, cluster); log_likelihood : (chain,), without log_base.
    """
    weights = np.array(given[0], dtype=np.float64)
    chains, clusters = weights.shape
    statistics = np.zeros((chains, clusters, rows.features.shape[1]))
    members, likelihood = np.zeros((chains, clusters)), np.zeros(chains)
    if rows.hidden.rows:
        labels, parameters = (
            np.empty(len(rows.features), np.uint8),
            np.asarray(given[1], dtype=np.float64),
        )
        for chain, sweep in np.ndindex(chains, sweeps):
            below = fold(fold(key, chain), sweep)
            out = labels, members[chain], statistics[chain]
            logs = np.log(np.maximum(weights[chain], SMALLEST_GAMMA))
            _, found = rows.draw(fold(below, LABELS), logs, parameters[chain], out)
            likelihood[chain] = likelihood[chain] if sweep else found
            if alpha > 0.0:
                weights[chain] = draw_weights(alpha + members[chain], _stream(below, PARAMETERS))
        return statistics, members, weights, likelihood
    natural, _ = feature_rows.in_vectors(rows.family.columns(given[1]), weights)

    def draw(begin: int, end: int) -> None:
        task = np.uint64(key), begin, end, rows.features, natural, float(alpha), sweeps
        feature_rows.draw_chains(*task, weights, members, statistics, likelihood)

    split_work(chains, threads, draw)
    return statistics, members, weights, likelihood


def draw_weights(shapes: Floats, rng: Rng) -> Floats:
    """Draw weights from their Dirichlet: (cluster,)."""
    gammas = np.maximum(rng.standard_gamma(shapes), SMALLEST_GAMMA)
    return np.maximum(gammas / gammas.sum(), SMALLEST_GAMMA)


def _stream(key: int, branch: int) -> Rng:
    return np.random.Generator(np.random.Philox(key=np.array([key, branch], dtype=np.uint64)))
