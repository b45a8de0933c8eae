"""Products of categorical distributions: the paper's family.

Fendler et al. (2026), section 3: within a component the variables are independent, variable q
with probabilities p^q ~ Dirichlet(β, …, β); the weights are ~ Dirichlet(α, …, α). Missing cells
are left out of the likelihood, which marginalises them exactly.

Section 4.4: global draws are linear combinations of the silos', π̂ = Σ_s λ_s π^s and
p̂_c = Σ_s μ_{s,c} p_c^s, which is the paper's V^s = λ^s I and W^s = diag(μ^s).

To add a family: write a module beside this one with a class that has the methods of `Categorical`,
give its kernels a readable twin in `tests/cases`, list it in the contract tests, and say in its
docstring which conditional distributions it draws from. The sampler is not touched: it knows
chains, schedules, storage and interruption, and nothing of likelihoods.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_softmax

from silomix.kernels import gibbs_sweep
from silomix.kernels.compilation import split_work
from silomix.kernels.layout import BLOCK, KeptDraws, Layout, lay_out, make_workspace
from silomix.kernels.likelihood import expected_counts
from silomix.kernels.random_numbers import fold
from silomix.model.draws import MatchedDraws, Schedule

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from silomix.kernels.arrays import Bytes, Codes, Floats, Ints
    from silomix.kernels.distinct_rows import RowTable
    from silomix.kernels.layout import Workspace
    from silomix.model.schema import Shard

# stands for zero under a logarithm
SMALLEST_PROBABILITY = 1e-300
# no global weight or probability is smaller: draws kept in float32 may be exactly zero
SMALLEST = 1e-30


@dataclass(frozen=True, eq=False)
class Plan:
    """What all chains of a shard share."""

    layout: Layout
    components: int
    alpha: float
    beta: float


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


class Categorical:
    """The categorical family on the compiled kernels: what the sampler needs of a family."""

    def prepare(self, shard: Shard, components: int, alpha: float, beta: float) -> Plan:
        """Lay the shard out for the sweep, with the silo's share of the prior."""
        return Plan(lay_out(shard.codes, shard.schema.sizes), components, alpha, beta)

    def start(self, plan: Plan, key: int) -> Bytes:
        """Return random labels, every component equally likely, as the paper starts."""
        labels = np.empty(len(plan.layout.codes), dtype=np.uint8)
        gibbs_sweep.start(np.uint64(key), labels, plan.components)
        return labels

    def resume(self, plan: Plan, key: int, labels: Bytes, threads: int) -> Chain:
        """Return a chain that goes on from `labels`, with room for `threads` threads.

        The labels are the whole state: a chain rebuilt from them goes on as if never stopped.
        """
        work = make_workspace(plan.layout, plan.components, threads)
        gibbs_sweep.count(work, labels)
        return Chain(plan, key, labels.copy(), work)

    def advance(
        self, chain: Chain, sweeps: range, when: Schedule, kept: KeptDraws, pool: Executor | None
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
        work, labels, prior = chain.work, chain.labels, (chain.plan.alpha, chain.plan.beta)
        if pool is None:
            due_at = sweeps[0], sweeps[-1], when.burn_in, when.thin
            gibbs_sweep.run(np.uint64(chain.key), *due_at, work, *prior, labels, kept)
            return
        bounds = part_bounds(len(labels), len(work.exact))
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


def part_bounds(rows: int, threads: int) -> list[tuple[int, int]]:
    """Cut `rows` into `threads` ranges that start at multiples of the kernels' block."""
    blocks = -(-rows // BLOCK)
    edges = [min(rows, blocks * t // threads * BLOCK) for t in range(threads)] + [rows]
    return list(pairwise(edges))


def draw_given_parameters(
    layout: Layout, key: int, given: tuple[Floats, Floats], alpha: float, sweeps: int, threads: int
) -> tuple[Ints, Ints, Floats, Floats]:
    """Draw the rows' labels for many chains at once, given each chain's parameters.

    Chains are shared out among the threads; each has its own key, so the draws are the same for
    any number of them.

    Parameters
    ----------
    given : weights, (chain, cluster), and probabilities, (chain, cluster, level).
    alpha : the weights are drawn again ~ Dirichlet(alpha + members) after each label draw; zero
        leaves them as they are.
    sweeps : how many label draws.

    Returns
    -------
    counts : (chain, cluster, level); members : (chain, cluster), what the labels add up to.
    weights : (chain, cluster), drawn given `members`, or those received.
    log_likelihood : (chain,), at the parameters received.
    """
    weights = np.array(given[0], dtype=np.float64)
    probabilities = np.ascontiguousarray(given[1], dtype=np.float64)
    chains, clusters = weights.shape
    counts = np.zeros(probabilities.shape, np.int64)
    members = np.zeros((chains, clusters), np.int64)
    log_likelihood = np.zeros(chains)

    def draw(first: int, last: int) -> None:
        work, labels = make_workspace(layout, clusters), np.zeros(len(layout.codes), np.uint8)
        task = np.uint64(key), first, last, work, labels, float(alpha), sweeps
        out = counts, members, log_likelihood
        gibbs_sweep.draw_given_parameters(*task, weights, probabilities, out)

    split_work(chains, threads, draw)
    return counts, members, weights, log_likelihood


def one_hot(codes: Codes, offsets: Ints) -> Floats:
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
    log_weights = np.log(np.maximum(weights, SMALLEST_PROBABILITY))
    return log_softmax(np.tensordot(present, logs, axes=(1, 2)) + log_weights, axis=2)


def some_draws(matched: MatchedDraws, first: int, last: int) -> MatchedDraws:
    """Return the draws from `first` up to and without `last`: random ones, as their order is."""
    some = slice(first, last)
    return MatchedDraws(matched.weights[:, some], matched.probabilities[:, some], matched.held)


def mix(matched: MatchedDraws, weights: Floats, profiles: Floats) -> tuple[Floats, Floats]:
    """Return the global draws at λ (silo,) and μ (silo, cluster).

    Returns
    -------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    """
    mixed_weights = np.tensordot(weights, matched.weights, axes=1)
    mixed = np.zeros(matched.probabilities.shape[1:])
    for share, probabilities in zip(profiles, matched.probabilities, strict=True):
        mixed += share[:, None] * probabilities
    return np.maximum(mixed_weights, SMALLEST), np.maximum(mixed, SMALLEST)


def mix_gradient(
    matched: MatchedDraws, by_weight: Floats, by_probability: Floats
) -> tuple[Floats, Floats]:
    """Carry a gradient in (π̂_t, p̂_t) over to one in (λ, μ), averaged over the draws.

    Parameters
    ----------
    by_weight : (draw, cluster); by_probability : (draw, cluster, level)

    Returns
    -------
    weights : (silo,); profiles : (silo, cluster)
    """
    draws = len(by_weight)
    weights = np.tensordot(matched.weights, by_weight, axes=2)
    profiles = [np.einsum("tcd,tcd->c", p, by_probability) for p in matched.probabilities]
    return weights / draws, np.array(profiles) / draws


def mean_log_likelihood(
    matched: MatchedDraws, weights: Floats, profiles: Floats, rows: RowTable, threads: int = 1
) -> tuple[Floats, Floats, Floats]:
    """Return the mean over draws of log p(rows | θ̂_t), and its gradient in (λ, μ).

    With N̂_{t,c} and n̂_{t,c,k} the expected rows and cells at θ̂_t, ∂/∂λ_s is the mean over
    draws of Σ_c N̂_c π_c^s / π̂_c, and ∂/∂μ_{s,c} that of Σ_k n̂_{c,k} p_{c,k}^s / p̂_{c,k}.

    Parameters
    ----------
    weights : (start, silo), λ; profiles : (start, silo, cluster), μ.

    Returns
    -------
    (start,), and as `weights` and `profiles`.
    """
    values, by_weights, by_profiles = [], [], []
    # point by point: the global draws of all of them would fill the memory
    for point in zip(weights, profiles, strict=True):
        shares, probabilities = mix(matched, *point)
        expected = expected_counts(shares, probabilities, rows, threads)
        gradient = mix_gradient(matched, expected.members / shares, expected.cells / probabilities)
        values.append(expected.log_likelihood.mean())
        by_weights.append(gradient[0])
        by_profiles.append(gradient[1])
    return np.array(values), np.array(by_weights), np.array(by_profiles)
