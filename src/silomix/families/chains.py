"""A silo's rows, ready for what the stages ask of them, and the Gibbs sweeps of chains over them.

Each is done by the kernels of `kernels.likelihood` and `kernels.gibbs_sweep` where all variables
are categories, and on the rows' features otherwise. What a kernel needs is made once, when asked
for.

A sweep draws parameters given labels, then labels given parameters (Fendler et al., 2026, section
3: weights ~ Dirichlet(α, …, α), and variable q of a component has probabilities p^q ~ Dirichlet(β,
…, β)). `CategoryChain` sweeps tables of such categories on compiled kernels. `FeatureChain` sweeps
any product of conjugate families on the rows' features, drawing from the same conditional
distributions at a tenth of the speed. Randomness is keyed by (chain, sweep): a chain rebuilt from
its state goes on as if it had never been stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_softmax, logsumexp, softmax

from silomix.families.categorical import SMALLEST_GAMMA, SMALLEST_PROBABILITY
from silomix.kernels import feature_rows, gibbs_sweep, layout, likelihood
from silomix.kernels.arrays import RowCounts, distinct_rows
from silomix.kernels.gibbs_sweep import LABELS, PARAMETERS
from silomix.kernels.layout import KeptDraws, Layout, RowTable
from silomix.kernels.likelihood import RowMembership
from silomix.kernels.reproducible import fold, ranges, split_work

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from silomix.families.product import Product
    from silomix.kernels.arrays import Array, Bools, Bytes, Floats, Ints, Reals, Rng
    from silomix.model.draws import Schedule
    from silomix.model.schema import Shard

# numbers that are held at once where hidden rows are weighed under many draws
ROOM = 2**24
# the branch of a key that what rows hide is drawn from
HIDDEN = 3


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a shard, under a family.

    Attributes
    ----------
    given : the form in which labels are drawn, where it was prepared before.
    """

    shard: Shard
    family: Product
    given: Layout | Floats | None = None

    @property
    def prepared(self) -> Layout | Floats:
        """The form in which labels are drawn."""
        return self.laid_out if self.family.is_categorical else self.features

    @cached_property
    def features(self) -> Floats:
        """T(x): (row, statistic), contiguous."""
        given = isinstance(self.given, np.ndarray)
        return np.ascontiguousarray(self.given if given else self.family.features(self.shard))

    @cached_property
    def seen(self) -> Bools:
        """Which rows hide nothing: (row,)."""
        return ~self.family.hides(self.shard)

    @cached_property
    def visible(self) -> Floats:
        """Features of the rows that hide nothing: (seen row, statistic)."""
        return self.features if self.seen.all() else self.features[self.seen]

    @cached_property
    def hidden(self) -> Shard:
        """The other rows."""
        return self.shard.some(~self.seen)

    @cached_property
    def log_base(self) -> Floats:
        """What log p(x) has beside T · η: (row,)."""
        return self.family.log_base(self.shard)

    @cached_property
    def laid_out(self) -> Layout:
        """The rows as the compiled sweep reads them, where all variables are categories."""
        if isinstance(self.given, Layout):
            return self.given
        return layout.lay_out(self.shard.codes, self.shard.schema.sizes)

    @cached_property
    def distinct(self) -> RowCounts:
        """The distinct rows, where all variables are categories, and how often each occurs."""
        return distinct_rows(self.shard.codes)

    @cached_property
    def _table(self) -> RowTable:
        return layout.row_table(*self.distinct, self.shard.schema.sizes)

    def draw_chain(
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
        natural = feature_rows.in_vectors(self.family.natural(parameters).T, log_weights)
        given = np.uint64(key), self.visible, *natural
        if not self.hidden.rows:
            return self.features[:0], feature_rows.draw_labels(*given, out)
        some, rng = np.empty(len(self.visible), np.uint8), stream(key, HIDDEN)
        log_likelihood = feature_rows.draw_labels(*given, (some, members, statistics))
        scores = self.family.log_density(self.hidden, parameters) + log_weights
        chosen = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        drawn = self.family.complete(self.hidden, parameters, chosen, rng)
        labels[self.seen], labels[~self.seen] = some, chosen
        feature_rows.add_by_label(drawn, chosen, members, statistics)
        return drawn, log_likelihood + float(logsumexp(scores, axis=1).sum())

    def draw_labels(
        self, key: int, given: tuple[Reals, Reals], alpha: float, sweeps: int, threads: int
    ) -> tuple[Array, Array, Floats, Floats]:
        """Draw the labels of many chains at once, given each chain's parameters.

        Chains are shared out among the threads; each has its own key, so the draws are the same for
        any number of them.

        Parameters
        ----------
        given : weights, (chain, cluster), and parameters, (chain, cluster, parameter).
        alpha : the weights are drawn again ~ Dirichlet(alpha + members) after each label draw; zero
            leaves them as they are.
        sweeps : how many label draws.

        Returns
        -------
        statistics : (chain, cluster, statistic); members : (chain, cluster), what labels add up to.
        weights : (chain, cluster), drawn given `members`, or those received.
        log_likelihood : (chain,), at the parameters received.
        """
        weights = np.array(given[0], dtype=np.float64)
        parameters = np.ascontiguousarray(given[1], dtype=np.float64)
        family, (chains, clusters), rows = self.family, weights.shape, self.shard.rows
        kind: type = np.int64 if family.is_categorical else np.float64
        statistics: Array = np.zeros((chains, clusters, family.statistics.sum()), kind)
        members: Array = np.zeros((chains, clusters), kind)
        log_likelihood = np.zeros(chains)
        how = float(alpha), sweeps
        if family.is_categorical:
            laid_out = self.laid_out

            def draw(first: int, last: int) -> None:
                work, labels = layout.make_workspace(laid_out, clusters), np.zeros(rows, np.uint8)
                task, sums = (np.uint64(key), first, last), (statistics, members, log_likelihood)
                gibbs_sweep.draw_given_parameters(
                    *task, work, labels, *how, weights, parameters, sums
                )

            split_work(chains, threads, draw)
        elif self.hidden.rows:
            labels = np.empty(rows, np.uint8)
            for chain, sweep in np.ndindex(chains, sweeps):
                below = fold(fold(key, chain), sweep)
                own = labels, members[chain], statistics[chain]
                logs = np.log(np.maximum(weights[chain], SMALLEST_GAMMA))
                _, found = self.draw_chain(fold(below, LABELS), logs, parameters[chain], own)
                log_likelihood[chain] = log_likelihood[chain] if sweep else found
                if alpha > 0.0:
                    weights[chain] = draw_weights(alpha + members[chain], stream(below, PARAMETERS))
        else:
            natural, _ = feature_rows.in_vectors(family.columns(parameters), weights)
            task = self.features, natural, (np.uint64(key), *how), weights
            out = log_likelihood, members, statistics
            split_work(chains, threads, partial(feature_rows.draw_chains, *task, out))
        return statistics, members, weights, log_likelihood + self.log_base.sum()

    def expected(
        self, weights: Floats, parameters: Floats, threads: int = 1
    ) -> tuple[Floats, Floats, Floats]:
        """Log-likelihood and what the rows are expected to add up to, by draw.

        Parameters
        ----------
        weights : (draw, cluster); parameters : (draw, cluster, parameter), both positive enough.

        Returns
        -------
        log_likelihood : (draw,); members : (draw, cluster); statistics : (draw, cluster, statistic)
        """
        if self.family.is_categorical:
            return likelihood.expected_counts(weights, parameters, self._table, threads)
        logs, natural = np.log(weights), self.family.columns(parameters)
        found = feature_rows.expected_sums(self.visible, natural, logs, threads)
        value, members, statistics = found
        for draw, own in enumerate(parameters if self.hidden.rows else ()):
            scores = self.family.log_density(self.hidden, own) + logs[draw]
            shares = softmax(scores, axis=1)
            value[draw] += logsumexp(scores, axis=1).sum()
            members[draw] += shares.sum(axis=0)
            features = self.family.expected_features(self.hidden, own)
            statistics[draw] += np.einsum("rc,rcf->cf", shares, features)
        return value + self.log_base.sum(), members, statistics

    def _log_densities(self, some: Ints, parameters: Reals) -> Floats:
        """Log p of some rows, less log_base, draw by draw: (draw, row, cluster)."""
        shard = self.shard.some(some)
        return np.stack([self.family.log_density(shard, own) for own in parameters])

    def membership(self, weights: Reals, parameters: Reals, threads: int = 1) -> RowMembership:
        """P(cluster | row) and ln p(row), averaged over draws.

        Parameters
        ----------
        weights : (draw, cluster); zero for a cluster that cannot be.
        parameters : (draw, cluster, parameter)
        """
        if self.family.is_categorical:
            steps = likelihood.make_steps(weights, parameters, self.shard.schema.offsets)
            tiles = likelihood.log_weights(weights)
            return likelihood.share_rows(self.shard.codes, steps, tiles, threads)
        logs = np.log(np.maximum(weights.astype(np.float64), SMALLEST_PROBABILITY))
        natural, rows = self.family.columns(parameters), self.shard.rows
        found = feature_rows.share_features(self.visible, natural, logs, threads)
        if self.hidden.rows:
            shares, densities = np.empty((rows, logs.shape[1])), np.empty(rows)
            shares[self.seen], densities[self.seen] = found
            hidden, at_once = np.flatnonzero(~self.seen), max(ROOM // logs.size, 1)
            for first in range(0, len(hidden), at_once):
                some = hidden[first : first + at_once]
                scores = self._log_densities(some, parameters) + logs[:, None]
                shares[some] = softmax(scores, axis=2).mean(axis=0)
                densities[some] = logsumexp(scores, axis=(0, 2)) - np.log(len(scores))
            found = shares, densities
        return RowMembership(found[0], found[1] + self.log_base)

    def sum_statistics(self, labels: Ints, clusters: int) -> Array:
        """Sums of the rows of each label: (cluster, statistic)."""
        if self.family.is_categorical:
            return layout.level_counts(self.shard.codes, self.shard.schema.sizes, labels, clusters)
        if self.family.always_hides:
            return self.family.settle(self.shard, self.features, np.eye(clusters)[labels])
        members, sums = np.zeros(clusters), np.zeros((clusters, self.features.shape[1]))
        feature_rows.add_by_label(self.features, labels, members, sums)
        return sums

    def log_responsibilities(self, some: slice, weights: Floats, parameters: Floats) -> Floats:
        """Log P(component | row) of some rows, draw by draw: (row, draw, component).

        Parameters
        ----------
        weights : (component,); parameters : (draw, component, parameter)
        """
        scores = np.tensordot(self.features[some], self.family.natural(parameters), axes=(1, 2))
        hides = np.flatnonzero(~self.seen[some])
        if len(hides):
            apart = np.arange(self.shard.rows)[some][hides]
            scores[hides] = np.swapaxes(self._log_densities(apart, parameters), 0, 1)
        logs = np.log(np.maximum(weights, SMALLEST_PROBABILITY))
        return np.asarray(log_softmax(scores + logs, axis=2))


def draw_weights(shapes: Floats, rng: Rng) -> Floats:
    """Draw weights from their Dirichlet: (cluster,)."""
    gammas = np.maximum(rng.standard_gamma(shapes), SMALLEST_GAMMA)
    return np.maximum(gammas / gammas.sum(), SMALLEST_GAMMA)


def stream(key: int, branch: int) -> Rng:
    """Random numbers of a branch below a key."""
    return np.random.Generator(np.random.Philox(key=np.array([key, branch], dtype=np.uint64)))


@dataclass(frozen=True, eq=False)
class Plan:
    """What all chains of a shard share: its rows, and the prior of the weights."""

    rows: Rows
    components: int
    alpha: float


def prepare(shard: Shard, components: int, alpha: float, family: Product) -> Plan:
    """Plan of sweeps over a shard, with the silo's share of the prior."""
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
        self.work = layout.make_workspace(plan.rows.laid_out, plan.components, threads)
        gibbs_sweep.count(self.work, labels)

    @staticmethod
    def start(plan: Plan, key: int) -> Bytes:
        """Random labels, every component equally likely, as the paper starts."""
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
        prior = self.plan.alpha, self.plan.rows.family.beta
        if pool is None:
            due_at = sweeps[0], sweeps[-1], when.burn_in, when.thin
            gibbs_sweep.run(np.uint64(self.key), *due_at, work, *prior, labels, kept)
            return
        bounds = ranges(len(labels), len(work.exact), layout.BLOCK)
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
    (`family.hides`) labels are drawn in NumPy, with what is hidden summed out, and then the
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
        """Random labels, every component equally likely, and nothing drawn yet."""
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
