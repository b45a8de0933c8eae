"""Products of categorical distributions: the paper's family.

Fendler et al. (2026), section 3: within a component the variables are independent, variable q
with probabilities p^q ~ Dirichlet(β, …, β); the weights are ~ Dirichlet(α, …, α). Missing cells
are left out of the likelihood, which marginalises them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_softmax

from silomix.kernels import gibbs_sweep
from silomix.kernels.compilation import split_work
from silomix.kernels.layout import BLOCK, Layout, lay_out, make_workspace
from silomix.kernels.random_numbers import fold

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints
    from silomix.kernels.layout import Workspace
    from silomix.model.families.base import Kept, Sweeps
    from silomix.model.schema import Schema, Shard


# stands for zero under a logarithm
SMALLEST_PROBABILITY = 1e-300


@dataclass(frozen=True, eq=False)
class Plan:
    """What all chains of a shard share."""

    layout: Layout
    components: int
    alpha: float
    beta: float


@dataclass(frozen=True, eq=False)
class Chain:
    """One chain's labels, and the working memory that goes with them."""

    plan: Plan
    labels: NDArray[np.uint8]
    work: Workspace
    threads: int


class Categorical:
    """The categorical family on the compiled kernels; satisfies `model.families.base.Family`."""

    def columns(self, schema: Schema) -> int:
        """Return D = ΣK_q."""
        return int(schema.offsets[-1])

    def prepare(self, shard: Shard, components: int, alpha: float, beta: float) -> Plan:
        """Lay the shard out for the sweep, with the silo's share of the prior."""
        return Plan(lay_out(shard.codes, shard.schema.sizes), components, alpha, beta)

    def start(self, plan: Plan, key: int) -> NDArray[np.uint8]:
        """Return random labels, every component equally likely, as the paper starts."""
        labels = np.empty(len(plan.layout.codes), dtype=np.uint8)
        gibbs_sweep.start(np.uint64(key), labels, plan.components)
        return labels

    def resume(self, plan: Plan, labels: NDArray[np.uint8], threads: int) -> Chain:
        """Return a chain that goes on from `labels`."""
        work = make_workspace(plan.layout, plan.components, threads)
        chain = Chain(plan, labels.copy(), work, threads)
        gibbs_sweep.count(work, chain.labels)
        return chain

    def advance(self, chain: Chain, sweeps: Sweeps, kept: Kept, pool: Executor | None) -> None:
        """Run Gibbs sweeps: parameters given the labels, then labels given the parameters."""
        if pool is not None:
            _advance_in_parts(chain, sweeps, kept, pool)
            return
        key, alpha, beta = np.uint64(sweeps.key), chain.plan.alpha, chain.plan.beta
        schedule = sweeps.first, sweeps.last, sweeps.burn_in, sweeps.thin
        gibbs_sweep.run(key, *schedule, chain.work, alpha, beta, chain.labels, kept)

    def labels(self, chain: Chain) -> NDArray[np.uint8]:
        """Return the chain's current labels."""
        return chain.labels


def _advance_in_parts(chain: Chain, sweeps: Sweeps, kept: Kept, pool: Executor) -> None:
    """Run the sweeps of `gibbs_sweep.run` with the rows of each split among a pool's threads.

    Randomness is keyed by row and the counts are integers, so the draws are the same.
    """
    work, labels = chain.work, chain.labels
    bounds = part_bounds(len(labels), chain.threads)
    for sweep in range(sweeps.first, sweeps.last + 1):
        late = sweep - sweeps.burn_in
        due = late > 0 and late % sweeps.thin == 0
        below = fold(sweeps.key, sweep)
        key = np.uint64(fold(below, gibbs_sweep.PARAMETERS))
        gibbs_sweep.draw_parameters(key, work, chain.plan.alpha, chain.plan.beta)
        key = np.uint64(fold(below, gibbs_sweep.LABELS))
        parts = [
            pool.submit(gibbs_sweep.draw_labels, key, work, thread, first, last, labels, due)
            for thread, (first, last) in enumerate(bounds)
        ]
        for part in parts:
            part.result()
        gibbs_sweep.gather(work)
        if due:
            gibbs_sweep.keep(work, labels, kept, late // sweeps.thin - 1)


def part_bounds(rows: int, threads: int) -> list[tuple[int, int]]:
    """Cut `rows` into `threads` ranges that start at multiples of the kernels' block."""
    blocks = -(-rows // BLOCK)
    edges = [min(rows, blocks * t // threads * BLOCK) for t in range(threads)] + [rows]
    return list(pairwise(edges))


@dataclass(frozen=True, eq=False)
class GivenParameters:
    """What many chains' labels, drawn given their parameters, add up to.

    Attributes
    ----------
    counts : (chain, cluster, level); members : (chain, cluster)
    weights : (chain, cluster), drawn given `members`, or those received.
    log_likelihood : (chain,), at the parameters received.
    """

    counts: Ints
    members: Ints
    weights: Floats
    log_likelihood: Floats


def draw_given_parameters(
    layout: Layout,
    key: int,
    weights: Floats,
    probabilities: Floats,
    *,
    alpha: float,
    inner_sweeps: int,
    threads: int = 1,
) -> GivenParameters:
    """Draw the rows' labels for many chains at once, given each chain's parameters.

    Chains are shared out among the threads; each has its own key, so the draws are the same for
    any number of them.

    Parameters
    ----------
    weights : (chain, cluster); probabilities : (chain, cluster, level)
    alpha : the weights are drawn again ~ Dirichlet(alpha + members) after each label draw; zero
        leaves them as they are.
    """
    chains, clusters = weights.shape
    result = GivenParameters(
        counts=np.zeros(probabilities.shape, np.int64),
        members=np.zeros((chains, clusters), np.int64),
        weights=np.array(weights, dtype=np.float64),
        log_likelihood=np.zeros(chains),
    )
    probabilities = np.ascontiguousarray(probabilities, dtype=np.float64)

    def draw(first: int, last: int) -> None:
        gibbs_sweep.draw_given_parameters(
            np.uint64(key),
            first,
            last,
            make_workspace(layout, clusters),
            np.zeros(len(layout.codes), np.uint8),
            float(alpha),
            inner_sweeps,
            result.weights,
            probabilities,
            (result.counts, result.members, result.log_likelihood),
        )

    split_work(chains, threads, draw)
    return result


def one_hot(codes: NDArray[np.unsignedinteger], offsets: Ints) -> Floats:
    """Return (row, level), one where the row has the level; a missing cell has none."""
    sizes = np.diff(offsets)
    present = np.zeros((len(codes), int(offsets[-1])))
    row, variable = np.nonzero(codes < sizes)
    present[row, offsets[variable] + codes[row, variable]] = 1.0
    return present


def log_responsibilities(present: Floats, weights: Floats, probabilities: Floats) -> Floats:
    """Return log P(component | row), draw by draw: (row, draw, component).

    Parameters
    ----------
    present : (row, level)
    weights : (component,)
    probabilities : (draw, component, level)
    """
    logs = np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))
    scores = np.tensordot(present, logs, axes=(1, 2)) + np.log(
        np.maximum(weights, SMALLEST_PROBABILITY)
    )
    return log_softmax(scores, axis=2)
