"""Gibbs sweeps of tables whose variables are all categories, on the compiled kernels.

Fendler et al. (2026), section 3: weights ~ Dirichlet(α, …, α), and variable q of a component has
probabilities p^q ~ Dirichlet(β, …, β). `feature_sweeps` draws from the same conditional
distributions for any family; these do it ten times as fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silomix.kernels import gibbs_sweep
from silomix.kernels.compilation import ranges
from silomix.kernels.layout import BLOCK, make_workspace
from silomix.kernels.random_numbers import fold
from silomix.model.families.rows import Plan, prepare

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from silomix.kernels.arrays import Bytes
    from silomix.kernels.layout import KeptDraws, Workspace
    from silomix.model.draws import Schedule

__all__ = ["advance", "prepare", "resume", "start"]


@dataclass(frozen=True, eq=False)
class Chain:
    """One chain's labels, and the working memory that goes with them.

    Attributes
    ----------
    key : root of the chain's randomness; sweep i draws from (key, i) whatever ran before.
    """

    plan: Plan
    key: int
    labels: Bytes
    work: Workspace

    @property
    def state(self) -> Bytes:
        """What the chain goes on from: its labels."""
        return self.labels


def start(plan: Plan, key: int) -> Bytes:
    """Return random labels, every component equally likely, as the paper starts."""
    labels = np.empty(plan.rows.shard.rows, dtype=np.uint8)
    gibbs_sweep.start(np.uint64(key), labels, plan.components)
    return labels


def resume(plan: Plan, key: int, labels: Bytes, threads: int) -> Chain:
    """Return a chain that goes on from `labels`, with room for `threads` threads.

    The labels are the whole state: a chain rebuilt from them goes on as if never stopped.
    """
    work = make_workspace(plan.rows.layout, plan.components, threads)
    gibbs_sweep.count(work, labels)
    return Chain(plan, key, labels.copy(), work)


def advance(
    chain: Chain, sweeps: range, when: Schedule, kept: KeptDraws, pool: Executor | None
) -> None:
    """Run Gibbs sweeps on the chain in place and write the draws that are due into `kept`.

    Parameters given the labels, then labels given the parameters. With a `pool`, its threads
    share the rows of each sweep: randomness is keyed by row and the counts are integers, so
    the draws are the same.

    Parameters
    ----------
    sweeps : which ones to run, numbered from one.
    when : which of them to keep.
    """
    work, labels, plan = chain.work, chain.labels, chain.plan
    prior = plan.alpha, plan.rows.family.categories.beta
    if pool is None:
        due_at = sweeps[0], sweeps[-1], when.burn_in, when.thin
        gibbs_sweep.run(np.uint64(chain.key), *due_at, work, *prior, labels, kept)
        return
    bounds = ranges(len(labels), len(work.exact), BLOCK)
    for sweep in sweeps:
        late = sweep - when.burn_in
        due = late > 0 and late % when.thin == 0
        below = fold(chain.key, sweep)
        key = np.uint64(fold(below, gibbs_sweep.PARAMETERS))
        gibbs_sweep.draw_parameters(key, work, *prior)
        key = np.uint64(fold(below, gibbs_sweep.LABELS))
        parts = [
            pool.submit(gibbs_sweep.draw_labels, key, work, thread, first, last, labels, due)
            for thread, (first, last) in enumerate(bounds)
        ]
        for part in parts:
            part.result()
        gibbs_sweep.gather(work)
        if due:
            gibbs_sweep.keep(work, labels, kept, late // when.thin - 1)
