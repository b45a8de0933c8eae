"""Products of categorical distributions: the paper's family.

Fendler et al. (2026), section 3: within a component the variables are independent, variable q
with probabilities p^q ~ Dirichlet(β, …, β); the weights are ~ Dirichlet(α, …, α). Missing cells
are left out of the likelihood, which marginalises them exactly.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from silomix.kernels import compiled
from silomix.kernels.layout import Layout, lay_out

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from silomix.families.base import Kept, Sweeps
    from silomix.types import Schema, Shard


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
    parameters: compiled.Parameters
    scratch: compiled.Scratch
    threads: int


class Categorical:
    """The categorical family on the compiled kernels; satisfies `silomix.families.base.Family`."""

    def columns(self, schema: Schema) -> int:
        """Return D = ΣK_q."""
        return int(schema.offsets[-1])

    def prepare(self, shard: Shard, components: int, alpha: float, beta: float) -> Plan:
        """Lay the shard out for the sweep, with the silo's share of the prior."""
        return Plan(lay_out(shard.codes, shard.schema.sizes), components, alpha, beta)

    def start(self, plan: Plan, key: int) -> NDArray[np.uint8]:
        """Return random labels, every component equally likely, as the paper starts."""
        labels = np.empty(len(plan.layout.codes), dtype=np.uint8)
        compiled.start(np.uint64(key), labels, plan.components)
        return labels

    def resume(self, plan: Plan, labels: NDArray[np.uint8], threads: int) -> Chain:
        """Return a chain that goes on from `labels`."""
        scratch = compiled.make_scratch(plan.layout, plan.components, threads)
        parameters = compiled.make_parameters(plan.layout, plan.components)
        chain = Chain(plan, labels.copy(), parameters, scratch, threads)
        compiled.count(plan.layout, chain.labels, scratch)
        return chain

    def advance(self, chain: Chain, sweeps: Sweeps, kept: Kept, pool: Executor | None) -> None:
        """Run Gibbs sweeps: parameters given the labels, then labels given the parameters."""
        if pool is not None:
            _advance_in_parts(chain, sweeps, kept, pool)
            return
        plan = chain.plan
        compiled.run(
            np.uint64(sweeps.key),
            sweeps.first,
            sweeps.last,
            sweeps.burn_in,
            sweeps.thin,
            plan.layout,
            chain.parameters,
            compiled.vectors_for(plan.components),
            chain.scratch,
            plan.alpha,
            plan.beta,
            chain.labels,
            kept,
        )

    def labels(self, chain: Chain) -> NDArray[np.uint8]:
        """Return the chain's current labels."""
        return chain.labels


def _advance_in_parts(chain: Chain, sweeps: Sweeps, kept: Kept, pool: Executor) -> None:
    """Run the sweeps of `compiled.run` with the rows of each shared out among a pool's threads.

    Randomness is keyed by row and the counts are integers, so the draws are the same.
    """
    plan, scratch = chain.plan, chain.scratch
    key, vectors = np.uint64(sweeps.key), compiled.vectors_for(plan.components)
    bounds = part_bounds(len(chain.labels), chain.threads)
    for sweep in range(sweeps.first, sweeps.last + 1):
        due = sweep > sweeps.burn_in and (sweep - sweeps.burn_in) % sweeps.thin == 0
        common = (key, sweep, plan.layout, chain.parameters, vectors, scratch)
        compiled.prepare_draw(*common, plan.alpha, plan.beta)
        parts = [
            pool.submit(compiled.draw_rows, *common, thread, first, last, chain.labels, due)
            for thread, (first, last) in enumerate(bounds)
        ]
        for part in parts:
            part.result()
        compiled.gather(plan.layout, scratch)
        if due:
            draw = (sweep - sweeps.burn_in) // sweeps.thin - 1
            compiled.keep(plan.layout, chain.parameters, scratch, chain.labels, kept, draw)


def part_bounds(rows: int, threads: int) -> list[tuple[int, int]]:
    """Cut `rows` into `threads` ranges that start at multiples of the kernels' block."""
    blocks = -(-rows // compiled.BLOCK)
    edges = [min(rows, blocks * t // threads * compiled.BLOCK) for t in range(threads)] + [rows]
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

    counts: NDArray[np.int64]
    members: NDArray[np.int64]
    weights: NDArray[np.float64]
    log_likelihood: NDArray[np.float64]


def draw_given_parameters(
    layout: Layout,
    key: int,
    weights: NDArray[np.float64],
    probabilities: NDArray[np.float64],
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

    def work(bounds: tuple[int, int]) -> None:
        compiled.draw_given_parameters(
            np.uint64(key),
            *bounds,
            layout,
            compiled.make_parameters(layout, clusters),
            compiled.vectors_for(clusters),
            compiled.make_scratch(layout, clusters),
            np.zeros(len(layout.codes), np.uint8),
            float(alpha),
            inner_sweeps,
            result.weights,
            probabilities,
            result.counts,
            result.members,
            result.log_likelihood,
        )

    edges = [chains * part // threads for part in range(threads + 1)]
    parts = list(pairwise(edges))
    if threads == 1:
        work(parts[0])
    else:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(work, parts))
    return result
