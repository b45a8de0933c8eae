"""Two-stage Bayesian clustering: partitions in the silos, then whole clusters are grouped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from silomix.families.categorical import one_hot
from silomix.matching.profile import Profile
from silomix.messages import SampleLocally
from silomix.pipeline import assign_rows
from silomix.posterior import Parts
from silomix.rivals.blocks import Model, Sweeps, group_blocks, sum_up
from silomix.rivals.federation import COMBINING, MATCHING, open_silos, refuse_unused
from silomix.rivals.kmodes import Points, level_counts
from silomix.rivals.levels import Levels
from silomix.rivals.merging import largest_first
from silomix.rivals.odds import FiniteDirichlet, choose_odds
from silomix.rivals.record import RivalResult, Stopwatch
from silomix.silo import HANDLERS, answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.rivals.odds import Odds
    from silomix.silo import Silo
    from silomix.store import Kept
    from silomix.types import Missing

STREAM = 0x626C6F
DRAWS = 1000


@dataclass(frozen=True)
class CountBlocks:
    """Ask a silo for the sizes and counts of its clusters."""


@dataclass(frozen=True, eq=False)
class BlockCounts:
    """A silo's clusters: rows, (cluster,), and cells by level, (cluster, level)."""

    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]


def block_gibbs(
    table: Table,
    silo: str | None = None,
    *,
    odds: str | Odds = "dirichlet-process",
    sweeps: Sweeps | None = None,
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    **settings: Any,
) -> RivalResult:
    """Let each silo partition its rows, then sample which of the silos' clusters are the same.

    A silo sends the sizes and level counts of its clusters, once; Gibbs sampling over these blocks
    (`silomix.rivals.blocks`) groups them, and never splits one. `odds` says which rival this is:

    - "dirichlet-process", SNOB (Zuanetti et al., 2019);
    - "pitman-yor", SIGN (Ni et al., 2020), with more steps where blocks exceed the budget;
    - "finite", the same for the weights of a finite mixture, of the study's `components` and
      `alpha`;
    - "discgs", the master's step of DisCGS (Khoufache et al., 2024), as in its one-exchange
      version for multinomial data.

    Three readings. The silos' own partitions come from silomix's sampler, an over-fitted finite
    mixture under the whole prior, where the originals run Dirichlet-process samplers. The grouping
    that is kept is the least-squares one of the sampled ones (Dahl, 2006). Draws are conditional
    on it, and so know nothing of the doubt about members or merges: weights ~ Dirichlet(rows),
    level probabilities ~ Dirichlet(β + counts).

    Parameters
    ----------
    table, silo, seed, threads, variables, missing : as for `silomix.fit`.
    odds : the prior of partitions, by word or record (`silomix.rivals.odds`).
    sweeps : of the grouping; `Sweeps()` when left out.
    settings : of the silos' sampler and partition, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.block_gibbs(table, "silo", iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    refuse_unused(settings, (*COMBINING, *MATCHING, "assign", "kept_draws"))
    chosen, sweeps, watch = choose_odds(odds), sweeps or Sweeps(), Stopwatch()
    federation = open_silos(
        table,
        silo,
        seed=seed,
        threads=threads,
        variables=variables,
        missing=missing,
        **({"fractionate": False} | settings),
    )
    study = federation.study
    if odds == "finite":
        chosen = FiniteDirichlet(study.model.components, study.model.alpha)
    levels = Levels(study.table_schema.offsets, study.prior.beta)
    with watch.stage("sample"):
        found: list[BlockCounts] = federation.ask(CountBlocks())
    counts = np.concatenate([part.counts for part in found]).astype(np.float64)
    sizes = np.concatenate([part.sizes for part in found]).astype(np.float64)
    rng = np.random.default_rng([seed, STREAM])
    with watch.stage("group"):
        model = Model(chosen, Profile(levels.offsets, study.prior.beta))
        groups, steps = group_blocks(counts, sizes, model, sweeps, rng)
    groups = largest_first(groups, sizes)
    by_cluster, rows = sum_up(counts, sizes, groups)
    weights = rng.dirichlet(rows, DRAWS)
    probabilities = levels.draw(by_cluster, DRAWS, rng)
    with watch.stage("assign"):
        by_silo = np.broadcast_to(weights[:, None], (DRAWS, len(found), len(rows)))
        split = np.split(groups, np.cumsum([len(part.sizes) for part in found])[:-1])
        assign_rows(Parts(weights, by_silo, probabilities, None, None), federation.tally, split)
    return RivalResult(
        name="block_gibbs",
        labels=federation.labels(),
        weights=weights,
        probabilities=probabilities,
        levels=study.table_schema.levels,
        seconds=watch.seconds,
        bytes_sent=federation.bytes_sent,
        notes=(f"{type(chosen).__name__}: {len(sizes)} blocks; steps: {steps}.",),
    )


def _count(_: CountBlocks, silo: Silo) -> BlockCounts:
    clusters = answer(SampleLocally(), silo).clusters
    labels = cast("Kept", silo.store.kept).labels  # the answer above has put them there
    schema = silo.shard.schema
    ones = np.ones(silo.shard.rows, np.int64)
    points = Points(one_hot(silo.shard.codes, schema.offsets), ones, schema.offsets)
    counts = level_counts(points, labels, clusters)
    return BlockCounts(np.bincount(labels, minlength=clusters), counts.astype(np.int64))


HANDLERS.update({CountBlocks: _count})
