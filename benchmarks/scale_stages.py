"""The stages of a fit, one at a time, on rows of the simulated cohort: what `scale.py` measures.

The draws that are partitioned are sampled; those of the later stages are planted: a table's rows
are cut into clusters by random directions, and draws are taken from the posterior given those
clusters. So each stage has the sizes that were asked for, and does not wait for those before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from silomix.coordinator.aggregation import aggregate, size_weights
from silomix.coordinator.aggregation.objective import Objective, contingency, evaluate, of_rows
from silomix.coordinator.matching import match
from silomix.coordinator.polish import polish, starting_point
from silomix.families import make_family
from silomix.families.categorical import draw_levels
from silomix.families.chains import CategoryChain, prepare
from silomix.kernels.arrays import distinct_rows
from silomix.kernels.layout import KeptDraws, lay_out, level_counts, row_table
from silomix.kernels.likelihood import expected_counts
from silomix.kernels.reproducible import chain_key
from silomix.messages import AssignRows
from silomix.messages.released_draws import effective_counts, matched_draws
from silomix.model.draws import (
    Correspondence,
    Diagnostics,
    Draws,
    LocalPosterior,
    Partition,
    Schedule,
)
from silomix.model.schema import PooledModel, Prior, Schema, Shard, Variable
from silomix.model.table import load
from silomix.silo.answer import answer
from silomix.silo.local import Silo
from silomix.silo.partition import largest_first, partition, place
from silomix.silo.relabel import local_posterior
from silomix.silo.release import make_release
from silomix.silo.sampler import Job, sample_shard
from silomix.simulate.cohort import CONDITIONS, simulate_cohort
from silomix.study import Evidence, Lbfgs, Polish, Vcmc, make_study
from silomix.transports.in_process import InProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from silomix.families.product import Product

SEED = 1
PRIOR = Prior()
BLOCK = 100_000
BURN_IN = 50
"""Sweeps before any is timed: an early sweep is not a typical one."""
FLIPPED = 0.05
"""Share of the cells that differ between a condition and its copy."""
INNER_SWEEPS = 2
SOLVER_STEPS = 8


@dataclass(frozen=True)
class Size:
    """How large the inputs are; `rows` over all silos, `draws` those the stage works on."""

    rows: int = 10_000
    variables: int = len(CONDITIONS)
    components: int = 20
    silos: int = 4
    draws: int = 500


class Work(NamedTuple):
    """A stage ready to run.

    `call` does `units` units of it; `quality` makes a number of what it returns; `distinct` and
    `local_clusters` are sizes of the input that only the rows tell.
    """

    call: Callable[[], Any]
    quality: Callable[[Any], float]
    units: int = 1
    distinct: int | None = None
    local_clusters: int | None = None


class Planted(NamedTuple):
    """Silos of contiguous rows, and a posterior for each of them that follows planted clusters."""

    silos: list[Silo]
    releases: list[Any]
    correspondence: Correspondence
    rows: np.ndarray
    family: Product

    @property
    def model(self) -> PooledModel:
        return PooledModel(PRIOR, self.family, SEED)


def write_rows(folder: Path, rows: int) -> None:
    """Write the codes of the cohort: a smaller table is the beginning of the file."""
    table, _ = simulate_cohort(rows, seed=SEED)
    table[list(CONDITIONS)].to_numpy(np.uint8).tofile(folder / "rows.bin")


def read_rows(folder: Path, size: Size) -> Shard:
    """Return the first rows, with some of the conditions, or all and noisy copies of them."""
    count = size.rows * len(CONDITIONS)
    codes = np.fromfile(folder / "rows.bin", np.uint8, count).reshape(size.rows, -1)
    rng = np.random.default_rng(SEED)
    while codes.shape[1] < size.variables:
        copies = codes ^ (rng.random(codes.shape, np.float32) < FLIPPED)
        codes = np.concatenate([codes, copies], axis=1)
    if codes.shape[1] > size.variables:
        columns = np.linspace(0, codes.shape[1] - 1, size.variables).round().astype(int)
        codes = np.ascontiguousarray(codes[:, columns])
    variables = [Variable(f"x{q}", ("0", "1")) for q in range(size.variables)]
    return Shard(Schema(tuple(variables)), codes)


def table_file(folder: Path, size: Size) -> Path:
    return folder / f"{size.rows}.parquet"


def write_tables(folder: Path, sizes: list[Size]) -> None:
    """Write the Parquet files that are read."""
    for size in sizes:
        shard = read_rows(folder, size)
        names = [variable.name for variable in shard.schema.variables]
        pd.DataFrame(shard.codes, columns=names).to_parquet(table_file(folder, size))


def plant(shard: Shard, clusters: int) -> np.ndarray:
    """Put each row in the cluster whose random direction it goes farthest along: (row,).

    The first rows are put in one each, so that no cluster is empty.
    """
    rng = np.random.default_rng(SEED)
    directions = rng.standard_normal((shard.codes.shape[1], clusters), np.float32)
    blocks = [
        (shard.codes[start : start + BLOCK].astype(np.float32) @ directions).argmax(axis=1)
        for start in range(0, shard.rows, BLOCK)
    ]
    labels = np.concatenate(blocks)
    labels[:clusters] = np.arange(clusters)
    return largest_first(labels)[0]


def planted_draws(shard: Shard, labels: np.ndarray, size: Size) -> Draws:
    """Draw weights and probabilities given labels, none of whose clusters is empty."""
    rng = np.random.default_rng(SEED)
    alpha, beta = PRIOR.share(size.silos)
    members = np.bincount(labels)
    shapes = level_counts(shard.codes, shard.schema.sizes, labels, len(members)) + beta
    probabilities = draw_levels(shapes, shard.schema.offsets, rng, size.draws)
    return Draws(
        shard=shard,
        labels=np.zeros((0, shard.rows), np.uint8),
        weights=rng.dirichlet(members + alpha, size.draws).astype(np.float32),
        probabilities=probabilities.astype(np.float32),
        log_likelihood=np.zeros(size.draws),
        chain=np.zeros(size.draws, np.int64),
        last_states=labels[None].astype(np.uint8),
        prior=PRIOR,
        silos=size.silos,
        seed=SEED,
        schedule=Schedule(),
        diagnostics=Diagnostics({}, trusted=True, verdict="planted"),
    )


def planted_silos(shard: Shard, size: Size) -> Planted:
    """Cut the rows into silos of equal size, each with a release of the clusters it holds."""
    labels = plant(shard, size.components)
    names = tuple(f"silo {number}" for number in range(1, size.silos + 1))
    study = make_study(shard.schema, names, seed=SEED, components=size.components)
    silos, releases, groups = [], [], []
    for number, rows in enumerate(np.array_split(np.arange(shard.rows), size.silos)):
        own = Shard(shard.schema, shard.codes[rows[0] : rows[-1] + 1])
        held, local, sizes = np.unique(labels[rows], return_inverse=True, return_counts=True)
        draws = planted_draws(own, local, size)
        posterior = LocalPosterior(
            weights=draws.weights,
            probabilities=draws.probabilities,
            partition=Partition(local, sizes, "given"),
            relabel="match",
            prior_draws=np.zeros(len(held)),
            memberships=np.eye(len(held))[local],
            draws=draws,
        )
        name = names[number]
        releases.append(make_release(posterior, silo=name, place=number, study="planted"))
        silos.append(Silo(name, number, own, study))
        groups.append(held)
    correspondence = Correspondence(
        silos=names,
        groups=tuple(groups),
        sizes=tuple(release.sizes for release in releases),
        method="planted",
    )
    own_rows = np.array([release.rows for release in releases])
    return Planted(silos, releases, correspondence, own_rows, make_family(shard.schema, PRIOR))


def fresh(planted: Planted) -> InProcess:
    """Return the silos with nothing in their stores."""
    return InProcess([Silo(s.name, s.place, s.shard, s.study) for s in planted.silos])


def loading(folder: Path, size: Size) -> Work:
    return Work(lambda: load(table_file(folder, size)), lambda shard: shard.rows)


def laying_out(folder: Path, size: Size) -> Work:
    shard = read_rows(folder, size)
    return Work(
        lambda: lay_out(shard.codes, shard.schema.sizes), lambda layout: layout.fused.shape[1]
    )


def sampling(folder: Path, size: Size) -> Work:
    shard = read_rows(folder, size)
    family, key = make_family(shard.schema, PRIOR).share(size.silos), chain_key(SEED, 0, 0)
    alpha, _ = PRIOR.share(size.silos)
    plan = prepare(shard, size.components, alpha, family)
    labels = plant(shard, size.components).astype(np.uint8)
    chain = CategoryChain(plan, key, labels, 1)
    sweeps = max(10, 1_000_000 // size.rows)
    levels = shard.schema.offsets[-1]
    kept = KeptDraws(
        np.zeros((1, size.rows), np.uint8),
        np.zeros((1, size.components), np.float32),
        np.zeros((1, size.components, levels), np.float32),
        np.zeros(1),
        np.zeros((1, size.components), np.int64),
    )
    done = 0

    def call() -> KeptDraws:
        nonlocal done
        # the last sweep of a call, and no other, is kept
        todo = range(done + 1, done + sweeps + 1)
        when = Schedule(burn_in=done, thin=sweeps)
        chain.advance(todo, when, kept, None)
        done += sweeps
        return kept

    while done < BURN_IN:
        call()
    return Work(call, lambda kept: kept.log_likelihood[0] / size.rows, sweeps)


def clustering(folder: Path, size: Size) -> Work:
    whole = read_rows(folder, size)
    shard = Shard(whole.schema, whole.codes[: max(size.rows // size.silos, 3)].copy())
    schedule = Schedule(iterations=2 * size.draws, burn_in=size.draws, chains=1, thin=1)
    draws = sample_shard(shard, Job(size.components, PRIOR, schedule, size.silos, seed=SEED))
    nothing = np.zeros(1, np.int64)
    place(draws.labels[:1], nothing, nothing, size.components)  # loads what longer tables need

    def call() -> LocalPosterior:
        return local_posterior(draws, partition(draws))

    return Work(call, lambda posterior: posterior.partition.clusters)


def matching(folder: Path, size: Size) -> Work:
    planted = planted_silos(read_rows(folder, size), size)
    silos, model, sent = fresh(planted), planted.model, planted.releases
    counts = [effective_counts(release, model, len(sent)) for release in sent]

    def call() -> Correspondence:
        return match(sent, counts, Evidence(), silos, model, drift=False)[0]

    local = sum(release.clusters for release in planted.releases)
    return Work(call, lambda found: found.clusters, local_clusters=local)


def counting(folder: Path, size: Size) -> Work:
    shard = read_rows(folder, size)
    planted = planted_silos(shard, size)
    distinct = len(distinct_rows(shard.codes).counts)

    def call() -> object:
        return contingency(fresh(planted), planted.family)

    return Work(call, lambda _: distinct, distinct=distinct)


def evaluating(folder: Path, size: Size) -> Work:
    shard = read_rows(folder, size)
    planted = planted_silos(shard, size)
    rows = distinct_rows(shard.codes)
    table = row_table(rows.codes, rows.counts, shard.schema.sizes)
    matched = matched_draws(
        planted.releases, planted.correspondence.groups, size.draws, planted.model
    )
    oracle = of_rows(planted.family, partial(expected_counts, rows=table))
    objective = Objective(matched, oracle, PRIOR.alpha, planted.family)
    point = size_weights(planted.rows, planted.correspondence)[None]
    return Work(
        lambda: evaluate(objective, point),
        lambda found: found.value[0] / size.rows,
        distinct=len(rows.counts),
    )


def solving(folder: Path, size: Size) -> Work:
    shard = read_rows(folder, size)
    planted = planted_silos(shard, size)
    # as many steps at every size: how many it takes to the end is another matter
    solver = Lbfgs(starts=1, steps=SOLVER_STEPS, tolerance=1e-12)
    settings = Vcmc(draws=size.draws, solver=solver)

    def call() -> Any:
        return aggregate(
            planted.releases,
            planted.correspondence,
            settings,
            fresh(planted),
            planted.model,
            count=size.draws,
        )

    distinct = len(distinct_rows(shard.codes).counts)
    return Work(call, lambda found: len(found.elbo_trace), distinct=distinct)


def polishing(folder: Path, size: Size) -> Work:
    shard = read_rows(folder, size)
    planted = planted_silos(shard, size)
    for silo in planted.silos:  # once in a study, not once in a round
        silo.store.prepared = lay_out(silo.shard.codes, silo.shard.schema.sizes)
    silos = InProcess(planted.silos)
    matched = matched_draws(
        planted.releases, planted.correspondence.groups, size.draws, planted.model
    )
    holders = matched.held / matched.held.sum(axis=0)
    profiles = np.einsum("sc,stcl->tcl", holders, matched.parameters)
    start = starting_point(matched, profiles, planted.rows, planted.family)

    def call() -> Any:
        once = Polish(rounds=1, inner_sweeps=INNER_SWEEPS)
        return polish(start, silos, once, planted.model, kept_draws=1)

    return Work(call, lambda found: found.trace.values["log_likelihood"].mean() / size.rows)


def assigning(folder: Path, size: Size) -> Work:
    shard = read_rows(folder, size)
    draws = planted_draws(shard, plant(shard, size.components), size)
    study = make_study(shard.schema, ("all",), seed=SEED, components=size.components)
    silo = Silo("all", 0, shard, study)
    query = AssignRows(draws.weights, draws.probabilities, None)

    def call() -> np.ndarray:
        answer(query, silo)
        return silo.store.membership

    return Work(call, lambda membership: membership.max(axis=1).mean())


@dataclass(frozen=True)
class Stage:
    """A stage of a fit.

    Attributes
    ----------
    title, unit : what it is called, and what one time is of.
    quality : what the number stored next to the time is.
    prepare : makes its inputs.
    factors : the sizes that are varied.
    draws : how many at the base point.
    against : what its time is held against when the rows are varied.
    least_silos : the fewest it has work for.
    """

    title: str
    unit: str
    quality: str
    prepare: Callable[[Path, Size], Work]
    factors: tuple[str, ...]
    draws: int = 500
    against: str = "rows"
    least_silos: int = 1


ALL = ("rows", "variables", "components", "silos", "draws")
STAGES = {
    "load": Stage(
        "read and code the table", "the Parquet file", "rows", loading, ("rows", "variables")
    ),
    "layout": Stage(
        "lay rows out for the kernels", "all rows", "groups of variables", laying_out, ALL[:2]
    ),
    "sample": Stage(
        "sample", "an iteration over all rows", "log-likelihood per row", sampling, ALL[:3]
    ),
    "local": Stage(
        "partition and relabel", "one silo of a quarter of the rows", "clusters found",
        clustering, ALL,
    ),
    "match": Stage("match", "all silos", "clusters found", matching, ALL[:4], draws=50),
    "distinct": Stage(
        "count distinct rows", "all silos, and laid out together", "distinct rows", counting,
        ("rows", "variables", "silos"), draws=8,
    ),
    "evaluate": Stage(
        "objective and gradient", "one evaluation on 16 draws", "objective per row", evaluating,
        ALL, draws=16, against="distinct",
    ),
    "solve": Stage(
        "aggregate", "8 steps from one start, on 8 draws", "evaluations", solving,
        ("rows", "silos"), draws=8, against="distinct", least_silos=2,
    ),
    "polish": Stage(
        "polish", "one round of 16 chains", "log-likelihood per row", polishing, ALL, draws=16
    ),
    "assign": Stage(
        "assign rows", "all rows, 64 draws", "mean largest membership", assigning,
        ("rows", "variables", "components", "draws"), draws=64,
    ),
}  # fmt: skip
