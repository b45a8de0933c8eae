"""Two-stage Bayesian clustering: partitions in the silos, then grouping of their clusters.

The second stage of SNOB (Zuanetti et al., 2019) and SIGN (Ni et al., 2020), and the master's step
of DisCGS (Khoufache et al., 2024): sums over a block's rows, such as cells by level, are
sufficient. With block b removed, of m rows and sums n_b, it joins cluster j, of N_j rows, or
opens one with odds

    join: A(N_j, m) exp[g(n_j + n_b) − g(n_j)],    open: B(m, k) exp[g(n_b)],

g the family's evidence, of categories the Dirichlet-multinomial one, k the number of clusters, A
and B those of the prior of partitions. Blocks never split.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import numpy as np
from pydantic import Field
from scipy.special import gammaln

from silomix.coordinator.pipeline import assign_rows
from silomix.kernels.arrays import Floats, Ints, Rng, by_appearance, sum_by
from silomix.messages import SampleLocally
from silomix.model.sentences import one_of
from silomix.posterior.global_posterior import Parts
from silomix.rivals.federation import Options, RivalResult, merge_clusters, open_silos, sum_clusters
from silomix.silo.answer import answer
from silomix.study.methods import Count, CountFromZero, Positive

if TYPE_CHECKING:
    from silomix.families.product import Product
    from silomix.model.reading import Table
    from silomix.rivals.federation import ClusterSums
    from silomix.silo.local import Silo
    from silomix.silo.store import Kept

STREAM = 0x626C6F
DRAWS = 1000


def log_rising(x: Floats | float, m: float) -> Floats:
    """Rising factorial: ln Γ(x + m)/Γ(x)."""
    return np.asarray(gammaln(x + m) - gammaln(x))


class DirichletProcess(Options):
    """Join with Γ(N + m)/Γ(N), open with α Γ(m): SNOB (Zuanetti et al., 2019).

    Examples
    --------
    >>> silomix.rivals.DirichletProcess(concentration=2.0).concentration
    2.0
    """

    concentration: Positive = 1.0

    def log_odds(self, rows: Floats, m: float) -> Floats:
        """Log odds that m rows join each cluster, and last, that they open one."""
        return np.append(log_rising(rows, m), np.log(self.concentration) + gammaln(m))


class PitmanYor(Options):
    """Join with Γ(N − σ + m)/Γ(N − σ), open with (θ + σk) Γ(m − σ)/Γ(1 − σ).

    SIGN (Ni et al., 2020).

    Attributes
    ----------
    discount : σ, from 0 (a Dirichlet process) to below 1.
    strength : θ, above 0.

    Examples
    --------
    >>> silomix.rivals.PitmanYor(discount=0.5)
    PitmanYor(discount=0.5, strength=1.0)
    """

    discount: Annotated[float, Field(ge=0, lt=1)] = 0.25
    strength: Positive = 1.0

    def log_odds(self, rows: Floats, m: float) -> Floats:
        """Log odds that m rows join each cluster, and last, that they open one."""
        opened = np.log(self.strength + self.discount * len(rows))
        opened += log_rising(1 - self.discount, m - 1)
        return np.append(log_rising(rows - self.discount, m), opened)


class FiniteDirichlet(Options):
    """Join with Γ(a + N + m)/Γ(a + N), open with (C − k) Γ(a + m)/Γ(a): C components.

    Attributes
    ----------
    components : C, empty ones included.
    concentration : a, of their weights.

    Examples
    --------
    >>> silomix.rivals.FiniteDirichlet(components=10)
    FiniteDirichlet(components=10, concentration=0.5)
    """

    components: Count = 15
    concentration: Positive = 0.5

    def log_odds(self, rows: Floats, m: float) -> Floats:
        """Log odds that m rows join each cluster, and last, that they open one."""
        empty = self.components - len(rows)
        # an empty component, if there is one, is joined like the others
        odds = log_rising(np.append(rows, 0.0) + self.concentration, m)
        odds[-1] += np.log(empty) if empty > 0 else -np.inf
        return odds


class MasterOdds(Options):
    """Join with N + 1, open with α: the master of DisCGS (Khoufache et al., 2024).

    A block counts as one row, so these are the odds of no prior: the step is an approximation.
    It starts from all blocks together. The multinomial version of DisCGS has α = 0.1 blocks a
    silo, which is the default here when a silo has five.

    Examples
    --------
    >>> silomix.rivals.MasterOdds()
    MasterOdds(concentration=0.5)
    """

    concentration: Positive = 0.5

    def log_odds(self, rows: Floats, _m: float) -> Floats:
        """Log odds of joining each cluster, and last, of opening one."""
        return np.log(np.append(rows + 1.0, self.concentration))


Odds = DirichletProcess | PitmanYor | FiniteDirichlet | MasterOdds


class Sweeps(Options):
    """Length of the sampling.

    Attributes
    ----------
    burn_in, kept : sweeps dropped, and sweeps kept.
    budget : the most blocks that are sampled at once. With more, they are first shuffled into
        parts of this size, each part's clusters become blocks, and so on: the steps of SIGN.

    Examples
    --------
    >>> silomix.rivals.Sweeps(kept=100)
    Sweeps(burn_in=50, kept=100, budget=2000)
    """

    burn_in: CountFromZero = 50
    kept: Count = 200
    budget: Annotated[int, Field(ge=2)] = 2000


class Model(NamedTuple):
    """Prior of partitions, family, and length of the sampling."""

    odds: Odds
    family: Product
    sweeps: Sweeps


def block_gibbs(
    table: Table,
    silo: str | None = None,
    *,
    odds: str | Odds = "dirichlet-process",
    sweeps: Sweeps | None = None,
    **settings: Any,
) -> RivalResult:
    """Sample partitions in the silos, then which of the silos' clusters are the same.

    A silo sends the sizes and sums (level counts; of numbers Σx and Σx²) of its clusters, once;
    Gibbs sampling over these blocks groups them, and never splits one. `odds` says which rival this
    is:

    - "dirichlet-process", SNOB (Zuanetti et al., 2019);
    - "pitman-yor", SIGN (Ni et al., 2020), with more steps where blocks exceed the budget;
    - "finite", the same for the weights of a finite mixture, of the study's `components` and
      `alpha`;
    - "discgs", the master's step of DisCGS (Khoufache et al., 2024), as in its one-exchange
      version for multinomial data; its Gaussian version takes turns with the silos.

    Three readings. The silos' own partitions come from silomix's sampler, an over-fitted finite
    mixture under the whole prior, where the originals run Dirichlet-process samplers. The grouping
    that is kept is the least-squares one of the sampled ones (Dahl, 2006). Draws are conditional
    on it, and so ignore uncertainty about members or merges: weights ~ Dirichlet(rows),
    the rest from its posterior given the sums, of level probabilities Dirichlet(β + counts).

    Parameters
    ----------
    table, silo : as for `silomix.fit`.
    odds : the prior of partitions, by word or record, such as `PitmanYor(discount=0.5)`.
    sweeps : of the grouping; `Sweeps()` when left out.
    settings : seed, threads, variables, kinds, bins, missing, and those of the silos' sampler and
        partition, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.block_gibbs(table, "silo", iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    unused = ("combine", "match", "assign", "kept_draws")
    settings = {"fractionate": False, **settings}
    federation = open_silos(table, silo, unused=unused, **settings)
    study, mixture = federation.study, federation.study.model
    if isinstance(odds, str):
        by_name: dict[str, Odds] = {
            "dirichlet-process": DirichletProcess(),
            "pitman-yor": PitmanYor(),
            "finite": FiniteDirichlet(components=mixture.components, concentration=mixture.alpha),
            "discgs": MasterOdds(),
        }
        one_of("odds", odds, by_name)
        odds = by_name[odds]
    family = study.pooled_model.family
    with federation.stage("sample"):
        blocks: list[ClusterSums] = federation.ask(partial(count_blocks))
    counts = np.concatenate([part.statistics for part in blocks]).astype(np.float64)
    sizes = np.concatenate([part.sizes for part in blocks]).astype(np.float64)
    rng = np.random.default_rng([study.seed, STREAM])
    with federation.stage("group"):
        model = Model(odds, family, sweeps or Sweeps())
        groups, steps = group_blocks(counts, sizes, model, rng)
    groups, rows, sums = merge_clusters(groups, sizes, counts)
    weights = rng.dirichlet(rows, DRAWS)
    parameters = family.draw(family.prior() + family.conjugate(sums), rng, DRAWS)
    with federation.stage("assign"):
        by_silo = np.broadcast_to(weights[:, None], (DRAWS, len(blocks), len(rows)))
        split = np.split(groups, np.cumsum([len(part.sizes) for part in blocks])[:-1])
        assign_rows(Parts(weights, by_silo, parameters, None, None), federation.tally, split)
    note = f"{type(odds).__name__}: {len(sizes)} blocks; steps: {steps}."
    return federation.result("block_gibbs", weights, parameters, note)


def count_blocks(silo: Silo) -> ClusterSums:
    """Sample in a silo, and sum up the rows of each cluster of its partition."""
    clusters = answer(SampleLocally(), silo).clusters
    labels = cast("Kept", silo.store.kept).labels  # the answer above has put them there
    return sum_clusters(silo, labels, clusters)


def group_blocks(counts: Floats, sizes: Floats, model: Model, rng: Rng) -> tuple[Ints, int]:
    """Group blocks into clusters, in as many steps as the budget requires.

    Parameters
    ----------
    counts : (block, statistic); sizes : (block,), rows.

    Returns
    -------
    groups : (block,), numbered as they appear.
    steps : number of steps.
    """
    groups, steps, budget = np.arange(len(sizes)), 1, model.sweeps.budget
    while True:
        n_blocks = 1 + int(groups.max())
        summed, rows = sum_by(groups, counts, n_blocks), sum_by(groups, sizes, n_blocks)
        merged = np.arange(n_blocks)
        if n_blocks > budget:
            for part in np.array_split(rng.permutation(n_blocks), -(-n_blocks // budget)):
                draws = sample_groupings(summed[part], rows[part], model, rng)
                merged[part] = part[least_squares(draws, rows[part])]
            merged = by_appearance(merged)
        if merged.max() + 1 == n_blocks:
            final = least_squares(sample_groupings(summed, rows, model, rng), rows)
            return by_appearance(final[groups]), steps
        groups, steps = merged[groups], steps + 1


def least_squares(draws: Ints, sizes: Floats) -> Ints:
    """Draw with the least squared distance to the posterior similarity (Dahl, 2006).

    Parameters
    ----------
    draws : (draw, block), groups; sizes : (block,), rows, over all pairs of which is summed.
    """
    together = sum(np.equal.outer(groups, groups) for groups in draws)
    # (1[same] − P)² up to a constant
    pairs = np.outer(sizes, sizes) * (1 - 2 * together / len(draws))
    losses = [pairs[np.equal.outer(groups, groups)].sum() for groups in draws]
    return np.asarray(draws[np.argmin(losses)])


def sample_groupings(counts: Floats, sizes: Floats, model: Model, rng: Rng) -> Ints:
    """Gibbs sampler over blocks: (draw, block), groups numbered as they appear."""
    n_blocks, sweeps = len(sizes), model.sweeps
    together = isinstance(model.odds, MasterOdds)  # where its authors start
    group = np.zeros(n_blocks, np.int64) if together else np.arange(n_blocks)
    draws = np.empty((sweeps.kept, n_blocks), dtype=np.int64)
    # as many groups as blocks, many of them empty; sums of whole numbers stay exact in place, and
    # others nearly so
    blocks = np.column_stack([np.ones(n_blocks), sizes, counts])
    sums = sum_by(group, blocks, n_blocks)
    gains = np.full((n_blocks, n_blocks), np.nan)  # (block, group); nan where a group has changed
    for sweep in range(-sweeps.burn_in, sweeps.kept):
        for block, uniform in enumerate(rng.random(n_blocks)):
            source = group[block]
            sums[source] -= blocks[block]
            target = draw_group(sums, source, blocks[block], gains[block], model, uniform)
            sums[target] += blocks[block]
            if target != source:
                # its own gains are with the *other* blocks of a group, and stay as they are
                own_gains, group[block] = gains[block].copy(), target
                gains[:, [source, target]] = np.nan
                gains[block] = own_gains
        if sweep >= 0:
            draws[sweep] = by_appearance(group)
    return draws


def draw_group(
    sums: Floats, current: int, block: Floats, gains: Floats, model: Model, uniform: float
) -> int:
    """Draw the group of one block given the others': an occupied one, or an empty one.

    Parameters
    ----------
    sums : (group, 2 + statistic), blocks, rows and sums of each group, without this block.
    current : the group that the block was in.
    block : (2 + statistic,), the same of the block.
    gains : (group,), g(n + n_b) − g(n), n those sums; those that are nan are filled in.
    uniform : a uniform random number.
    """
    occupied = np.flatnonzero(sums[:, 0])
    choices = np.append(occupied[occupied != current], current)
    if sums[current, 0] > 0:
        choices = np.append(choices, sums[:, 0].argmin())
    stale = choices[np.isnan(gains[choices])]
    if len(stale):
        counts = sums[stale, 2:]
        evidence = model.family.log_evidence(np.stack([counts + block[2:], counts]))
        joined, separate = evidence.sum(axis=-1)
        gains[stale] = joined - separate
    # the last one is empty: of groups without blocks, one stands for all
    scores = model.odds.log_odds(sums[choices[:-1], 1], block[1]) + gains[choices]
    masses = np.exp(scores - scores.max()).cumsum()
    return int(choices[masses.searchsorted(uniform * masses[-1], side="right")])
