"""Gibbs sweeps for any product of conjugate families, on the rows' features.

Parameters given what the labels add up to, drawn by the family; labels given the parameters, drawn
by a kernel. Of rows that hide something (`Family.hides`) labels are drawn in NumPy, with what is
hidden summed out, and then the features given the labels. Randomness is keyed by (chain, sweep): a
chain rebuilt from its state goes on as if it had never been stopped. Where all variables are
categories, `compiled_sweeps` draws from the same conditional distributions, faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.kernels import feature_rows
from silomix.kernels.gibbs_sweep import LABELS, PARAMETERS
from silomix.kernels.random_numbers import fold
from silomix.model.families.rows import Plan, draw_weights, prepare, stream

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from silomix.kernels.arrays import Bytes, Floats
    from silomix.kernels.layout import KeptDraws
    from silomix.model.draws import Schedule

__all__ = ["advance", "prepare", "resume", "start"]


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


def start(plan: Plan, key: int) -> Bytes:
    """Return random labels, every component equally likely, and nothing drawn yet."""
    rng = stream(fold(key, 0), LABELS)
    labels = rng.integers(plan.components, size=len(plan.rows.features)).astype(np.uint8)
    drawn = plan.rows.features[~plan.rows.seen]
    return np.concatenate([labels, drawn.ravel().view(np.uint8)])


def resume(plan: Plan, key: int, state: Bytes, _: int) -> Chain:
    """Return a chain that goes on from its state."""
    rows = plan.rows
    labels, rest = np.split(state, [len(rows.features)])
    members, sums = np.zeros(plan.components), np.zeros((plan.components, rows.features.shape[1]))
    drawn = rest.copy().view(np.float64).reshape(rows.hidden.rows, rows.features.shape[1])
    # in the order of `Rows.draw_chain`: sums must be the same to the last digit
    feature_rows.add_by_label(rows.visible, labels[rows.seen], members, sums)
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
        rng = stream(below, PARAMETERS)
        weights = draw_weights(plan.alpha + chain.members, rng)
        parameters = family.draw(family.posterior(chain.statistics), rng)
        out = chain.labels, chain.members, chain.statistics
        found = plan.rows.draw_chain(fold(below, LABELS), np.log(weights), parameters, out)
        chain.drawn[:], log_likelihood = found
        late = sweep - when.burn_in
        if late > 0 and late % when.thin == 0:
            draw = late // when.thin - 1
            kept.labels[draw], kept.members[draw] = chain.labels, chain.members
            kept.weights[draw], kept.probabilities[draw] = weights, parameters
            kept.log_likelihood[draw] = log_likelihood + plan.rows.log_base.sum()
