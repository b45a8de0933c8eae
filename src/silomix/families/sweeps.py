"""Gibbs sweeps of one chain: parameters given labels, then labels given parameters.

Fendler et al. (2026), section 3: weights ~ Dirichlet(α, …, α), and variable q of a component has
probabilities p^q ~ Dirichlet(β, …, β). `CategoryChain` sweeps tables whose variables are all
categories on compiled kernels. `FeatureChain` sweeps any product of conjugate families on the rows'
features, drawing from the same conditional distributions at a tenth of the speed. Randomness is
keyed by (chain, sweep): a chain rebuilt from its state goes on as if it had never been stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.families.rows import Rows, draw_weights, stream
from silomix.kernels import feature_rows, gibbs_sweep
from silomix.kernels.gibbs_sweep import LABELS, PARAMETERS
from silomix.kernels.layout import BLOCK, KeptDraws, make_workspace
from silomix.kernels.reproducible import fold, ranges

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from silomix.families.product import Product
    from silomix.kernels.arrays import Bytes
    from silomix.model.draws import Schedule
    from silomix.model.schema import Shard


@dataclass(frozen=True, eq=False)
class Plan:
    """What all chains of a shard share: its rows, and the prior of the weights."""

    rows: Rows
    components: int
    alpha: float


def prepare(shard: Shard, components: int, alpha: float, family: Product) -> Plan:
    """Return the plan of sweeps over a shard, with the silo's share of the prior."""
    # made now: chains that run side by side would each make their own
    prepared = Rows(shard, family).prepared
    return Plan(Rows(shard, family, prepared), components, alpha)


class CategoryChain:
    """One chain's labels, which are its whole state, and the working memory that goes with them.

    Parameters
    ----------
    key : root of the chain's randomness; sweep i draws from (key, i) whatever ran before.
    labels : what the chain goes on from.
    threads : how many there is to be room for.
    """

    def __init__(self, plan: Plan, key: int, labels: Bytes, threads: int) -> None:
        self.plan, self.key, self.labels = plan, key, labels.copy()
        self.state = self.labels
        self.work = make_workspace(plan.rows.layout, plan.components, threads)
        gibbs_sweep.count(self.work, labels)

    @staticmethod
    def start(plan: Plan, key: int) -> Bytes:
        """Return random labels, every component equally likely, as the paper starts."""
        labels = np.empty(plan.rows.shard.rows, dtype=np.uint8)
        gibbs_sweep.start(np.uint64(key), labels, plan.components)
        return labels

    def advance(
        self, sweeps: range, when: Schedule, kept: KeptDraws, pool: Executor | None
    ) -> None:
        """Run sweeps in place and write the draws that are due into `kept`.

        With a `pool`, its threads share the rows of each sweep: randomness is keyed by row and the
        counts are integers, so the draws are the same.

        Parameters
        ----------
        sweeps : which ones to run, numbered from one.
        when : which of them to keep.
        """
        work, labels = self.work, self.labels
        prior = self.plan.alpha, self.plan.rows.family.categories.beta
        if pool is None:
            due_at = sweeps[0], sweeps[-1], when.burn_in, when.thin
            gibbs_sweep.run(np.uint64(self.key), *due_at, work, *prior, labels, kept)
            return
        bounds = ranges(len(labels), len(work.exact), BLOCK)
        for sweep in sweeps:
            late = sweep - when.burn_in
            due = late > 0 and late % when.thin == 0
            below = fold(self.key, sweep)
            gibbs_sweep.draw_parameters(np.uint64(fold(below, PARAMETERS)), work, *prior)
            key = np.uint64(fold(below, LABELS))
            parts = [
                pool.submit(gibbs_sweep.draw_labels, key, work, thread, first, last, labels, due)
                for thread, (first, last) in enumerate(bounds)
            ]
            for part in parts:
                part.result()
            gibbs_sweep.gather(work)
            if due:
                gibbs_sweep.keep(work, labels, kept, late // when.thin - 1)


class FeatureChain:
    """One chain's labels, (row,), what they add up to, and the features drawn of hidden rows.

    Parameters are drawn by the family, labels by a kernel. Of rows that hide something
    (`Family.hides`) labels are drawn in NumPy, with what is hidden summed out, and then the
    features given the labels: (hidden row, statistic). Parameters as for `CategoryChain`.
    """

    def __init__(self, plan: Plan, key: int, state: Bytes, _: int) -> None:
        rows, shape = plan.rows, (plan.components, plan.rows.features.shape[1])
        labels, rest = np.split(state, [len(rows.features)])
        self.plan, self.key, self.labels = plan, key, labels.copy()
        self.members, self.statistics = np.zeros(plan.components), np.zeros(shape)
        self.drawn = rest.copy().view(np.float64).reshape(rows.hidden.rows, shape[1])
        # in the order of `Rows.draw_chain`: sums must be the same to the last digit
        sums = self.members, self.statistics
        feature_rows.add_by_label(rows.visible, labels[rows.seen], *sums)
        feature_rows.add_by_label(self.drawn, labels[~rows.seen], *sums)

    @property
    def state(self) -> Bytes:
        """What the chain goes on from: its labels, and the bytes of the features drawn."""
        return np.concatenate([self.labels, self.drawn.ravel().view(np.uint8)])

    @staticmethod
    def start(plan: Plan, key: int) -> Bytes:
        """Return random labels, every component equally likely, and nothing drawn yet."""
        rng = stream(fold(key, 0), LABELS)
        labels = rng.integers(plan.components, size=len(plan.rows.features)).astype(np.uint8)
        drawn = plan.rows.features[~plan.rows.seen]
        return np.concatenate([labels, drawn.ravel().view(np.uint8)])

    def advance(self, sweeps: range, when: Schedule, kept: KeptDraws, _: Executor | None) -> None:
        """Run sweeps in place, as `CategoryChain` does; one thread takes all rows."""
        plan, family = self.plan, self.plan.rows.family
        prior = family.prior()
        for sweep in sweeps:
            below = fold(self.key, sweep)
            rng = stream(below, PARAMETERS)
            weights = draw_weights(plan.alpha + self.members, rng)
            parameters = family.draw(prior + family.conjugate(self.statistics), rng)
            out = self.labels, self.members, self.statistics
            found = plan.rows.draw_chain(fold(below, LABELS), np.log(weights), parameters, out)
            self.drawn[:], log_likelihood = found
            late = sweep - when.burn_in
            if late > 0 and late % when.thin == 0:
                draw = late // when.thin - 1
                kept.labels[draw], kept.members[draw] = self.labels, self.members
                kept.weights[draw], kept.probabilities[draw] = weights, parameters
                kept.log_likelihood[draw] = log_likelihood + plan.rows.log_base.sum()
