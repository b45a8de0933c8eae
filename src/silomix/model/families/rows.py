"""A silo's rows, ready for what the stages ask of them: draw labels, expect sums, find clusters.

Each is done by the kernels of `kernels.likelihood` and `kernels.gibbs_sweep` where all variables
are categories, and on the rows' features otherwise. What a kernel needs is made once, when asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_softmax, logsumexp, softmax

from silomix.kernels.distinct_rows import RowTable, distinct_rows, row_table
from silomix.kernels.feature_rows import expected_sums, share_features, sum_by_label
from silomix.kernels.layout import Layout, lay_out, level_counts
from silomix.kernels.likelihood import (
    RowMembership,
    expected_counts,
    log_weights,
    make_steps,
    share_rows,
)
from silomix.model.families import compiled_sweeps, feature_sweeps
from silomix.model.families.categorical import SMALLEST_PROBABILITY
from silomix.model.families.feature_sweeps import FeatureRows

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Floats, Ints, Reals
    from silomix.model.families.product import Product
    from silomix.model.schema import Shard

# numbers that are held at once where hidden rows are weighed under many draws
ROOM = 2**24


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
        return self._layout if self.family.is_categorical else self.features

    @cached_property
    def features(self) -> Floats:
        """T(x): (row, statistic)."""
        made = self.family.features(self.shard) if self.given is None else self.given
        return np.ascontiguousarray(made)

    @cached_property
    def _rows(self) -> FeatureRows:
        return FeatureRows.of(self.family, self.shard, self.features)

    @cached_property
    def log_base(self) -> Floats:
        """What log p(x) has beside T · η: (row,)."""
        return self.family.log_base(self.shard)

    @cached_property
    def _layout(self) -> Layout:
        if isinstance(self.given, Layout):
            return self.given
        return lay_out(self.shard.codes, self.shard.schema.sizes)

    @cached_property
    def _table(self) -> RowTable:
        return row_table(*distinct_rows(self.shard.codes), self.shard.schema.sizes)

    def draw_labels(
        self, key: int, given: tuple[Floats, Floats], alpha: float, sweeps: int, threads: int
    ) -> tuple[Array, Array, Floats, Floats]:
        """Draw the labels of many chains, as `compiled_sweeps.draw_given_parameters` does."""
        if self.family.is_categorical:
            how = alpha, sweeps, threads
            return compiled_sweeps.draw_given_parameters(self._layout, key, given, *how)
        found = feature_sweeps.draw_given_parameters(
            self._rows, key, given, alpha, sweeps, threads=threads
        )
        statistics, members, weights, log_likelihood = found
        return statistics, members, weights, log_likelihood + self.log_base.sum()

    def expected(
        self, weights: Floats, parameters: Floats, threads: int = 1
    ) -> tuple[Floats, Floats, Floats]:
        """Return the log-likelihood and what the rows are expected to add up to, by draw.

        Parameters
        ----------
        weights : (draw, cluster); parameters : (draw, cluster, parameter), both positive enough.

        Returns
        -------
        log_likelihood : (draw,); members : (draw, cluster); statistics : (draw, cluster, statistic)
        """
        if self.family.is_categorical:
            return expected_counts(weights, parameters, self._table, threads)
        rows, logs = self._rows, np.log(weights)
        natural = self.family.columns(parameters)
        value, members, statistics = expected_sums(rows.visible, natural, logs, threads)
        for draw, own in enumerate(parameters if rows.hidden.rows else ()):
            scores = self.family.log_density(rows.hidden, own) + logs[draw]
            shares = softmax(scores, axis=1)
            value[draw] += logsumexp(scores, axis=1).sum()
            members[draw] += shares.sum(axis=0)
            features = self.family.expected_features(rows.hidden, own)
            statistics[draw] += np.einsum("rc,rcf->cf", shares, features)
        return value + self.log_base.sum(), members, statistics

    def _log_densities(self, some: Ints, parameters: Reals) -> Floats:
        """Return log p of some rows, less log_base, draw by draw: (draw, row, cluster)."""
        shard = self.shard.some(some)
        return np.stack([self.family.log_density(shard, own) for own in parameters])

    def membership(self, weights: Reals, parameters: Reals, threads: int = 1) -> RowMembership:
        """Return P(cluster | row) and ln p(row), averaged over draws.

        Parameters
        ----------
        weights : (draw, cluster); zero for a cluster that cannot be.
        parameters : (draw, cluster, parameter)
        """
        if self.family.is_categorical:
            steps = make_steps(weights, parameters, self.shard.schema.offsets)
            return share_rows(self.shard.codes, steps, log_weights(weights), threads)
        logs = np.log(np.maximum(weights.astype(np.float64), SMALLEST_PROBABILITY))
        rows, natural = self._rows, self.family.columns(parameters)
        found = share_features(rows.visible, natural, logs, threads)
        if rows.hidden.rows:
            shares, densities = np.empty((len(rows.seen), logs.shape[1])), np.empty(len(rows.seen))
            shares[rows.seen], densities[rows.seen] = found
            hidden, at_once = np.flatnonzero(~rows.seen), max(ROOM // logs.size, 1)
            for first in range(0, len(hidden), at_once):
                some = hidden[first : first + at_once]
                scores = self._log_densities(some, parameters) + logs[:, None]
                shares[some] = softmax(scores, axis=2).mean(axis=0)
                densities[some] = logsumexp(scores, axis=(0, 2)) - np.log(len(scores))
            found = shares, densities
        return RowMembership(found[0], found[1] + self.log_base)

    def sum_statistics(self, labels: Ints, clusters: int) -> Array:
        """Return what the rows of each label add up to: (cluster, statistic)."""
        if self.family.is_categorical:
            return level_counts(self.shard.codes, self.shard.schema.sizes, labels, clusters)
        if self.family.always_hides:
            return self.family.settle(self.shard, self.features, np.eye(clusters)[labels])
        members, sums = np.zeros(clusters), np.zeros((clusters, self.features.shape[1]))
        sum_by_label(self.features, labels, members, sums)
        return sums

    def log_responsibilities(self, some: slice, weights: Floats, parameters: Floats) -> Floats:
        """Return log P(component | row) of some rows, draw by draw: (row, draw, component).

        Parameters
        ----------
        weights : (component,); parameters : (draw, component, parameter)
        """
        scores = np.tensordot(self.features[some], self.family.natural(parameters), axes=(1, 2))
        hides = np.flatnonzero(~self._rows.seen[some])
        if len(hides):
            apart = np.arange(self.shard.rows)[some][hides]
            scores[hides] = np.swapaxes(self._log_densities(apart, parameters), 0, 1)
        logs = np.log(np.maximum(weights, SMALLEST_PROBABILITY))
        return np.asarray(log_softmax(scores + logs, axis=2))
