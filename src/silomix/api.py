"""The functions `silomix.fit` and `silomix.sample`."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.coordinator.pipeline import run_study
from silomix.errors import DataWarning, MissingDependency, SettingsError, as_note, warn
from silomix.messages.progress import Report, reporting
from silomix.model.reading import Table, backend_of, choose_variables, find_column
from silomix.model.sentences import at_least, cores, one_of
from silomix.model.table import expand, load
from silomix.posterior.global_posterior import Assignment
from silomix.silo.local import Silo, split_silos
from silomix.silo.partition import need_package
from silomix.silo.sampler import Job, sample_shard
from silomix.study import make_study
from silomix.study.keywords import check_keywords, show_keywords
from silomix.study.policy import OPEN, Policy, find_policy
from silomix.study.roster import Roster, random_shards, read_ids, read_roster
from silomix.transports.in_process import InProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from silomix.kernels.arrays import Ints
    from silomix.model.draws import Draws
    from silomix.model.schema import Missing, Schema
    from silomix.posterior import Posterior
    from silomix.transports.parallel import Joblib

TRANSPORTS = ("in-process", "joblib")
# A table with such a column and no `silo=` was probably meant to be split by it.
SILO_NAMES = {"silo", "site", "hospital", "centre", "center", "shard"}


def sample(
    table: Table,
    components: int = 15,
    silos: int = 1,
    iterations: int = 20_000,
    burn_in: int | None = None,
    chains: int = 2,
    thin: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    *,
    silo: int = 0,
    alpha: float = 0.5,
    beta: float = 0.5,
    fractionate: bool = True,
    variables: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: Mapping[str, int] | None = None,
    schema: Schema | None = None,
    missing: Missing = "marginalise",
    na_values: Any = None,
    frequency: str | None = None,
    progress: bool | Report | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
) -> Draws:
    """Sample the posterior of an over-fitted mixture on one silo's table.

    Parameters
    ----------
    table : any frame that narwhals reads (pandas, polars, Arrow), or a path to CSV or Parquet.
    components : C⁺, more than the clusters you expect; empty ones do no harm.
    silos : how many silos the study has: this one then takes the prior to the power 1/silos.
    iterations : sweeps of each chain, burn-in included.
    burn_in : sweeps dropped at the start of each chain; half of them when left out.
    chains : independent chains, side by side on the threads.
    thin : keep one sweep in `thin`; by default about 2,000 draws are kept over all chains.
    seed : same seed, same draws, on any machine and any number of threads.
    threads : cores to use; all when left out.
    silo : this silo's place among the silos, 0 for the first; sets its random stream.
    alpha, beta : concentrations of the priors of the weights and of the level probabilities.
    fractionate : False gives each silo the whole prior.
    variables, exclude : columns to use, or to leave out; all are used by default.
    kinds, bins, na_values : of columns, as for `fit`.
    schema : levels every silo agreed on; inferred from the table when left out.
    missing : "marginalise" leaves missing cells out; "level" makes them a level.
    frequency : a column of counts, for tables of patterns; its rows are repeated.
    progress : None shows a bar on a terminal; False never; or a function of a `Progress`.
    checkpoint : a folder; a run stopped in any way goes on from there, draw for draw the same.
    checkpoint_every : sweeps between checkpoints.

    Returns
    -------
    Draws
        Labels, weights, probabilities and log-likelihood of every kept draw, with diagnostics.

    Examples
    --------
    >>> import silomix
    >>> table, truth = silomix.simulate("homogeneous", rows=400, silos=2, seed=1)
    >>> rows = table[table["silo"] == "silo 1"].drop(columns="silo")
    >>> draws = silomix.sample(rows, components=8, silos=2, iterations=1000, seed=1)
    >>> draws.weights.shape, draws.labels.shape
    ((1000, 8), (1000, 200))
    """
    options: dict[str, Any] = {"variables": variables, "exclude": exclude, "kinds": kinds}
    options |= {"bins": bins, "missing": missing, "na_values": na_values}
    shard = load(table, schema=schema, frequency=frequency, **options)
    silos, silo = at_least("silos", silos, 1), at_least("silo", silo, 0)
    chosen: dict[str, Any] = {"burn_in": burn_in, "thin": thin}
    study = make_study(
        shard.schema,
        [f"silo {number}" for number in range(1, silos + 1)],
        seed=seed,
        components=components,
        iterations=iterations,
        adaptive=False,
        chains=chains,
        alpha=alpha,
        beta=beta,
        fractionate=fractionate,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    if silo >= silos:
        raise SettingsError(f"silo is {silo}; with {silos} silos it must be 0 to {silos - 1}")
    job = Job(study.model.components, study.prior, study.sampling, silos, silo, study.seed)
    with reporting(progress) as report:
        return sample_shard(
            shard,
            job,
            threads=cores(threads),
            progress=report,
            checkpoint=checkpoint,
            checkpoint_every=at_least("checkpoint_every", checkpoint_every, 1),
        )


@show_keywords
def fit(
    table: Table,
    silo: str | None = None,
    *,
    id: str | None = None,
    shards: int | None = None,
    preset: str | None = None,
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: Mapping[str, int] | None = None,
    missing: Missing = "marginalise",
    na_values: Any = None,
    frequency: str | None = None,
    progress: Report | bool | None = None,
    checkpoint: str | Path | None = None,
    transport: str = "in-process",
    policy: Policy | str | Path | None = None,
    **settings: Any,
) -> Posterior:
    """Fit one mixture to the rows of many silos, each silo sampling its own.

    Parameters
    ----------
    table : any frame that narwhals reads (pandas, polars, Arrow), or a path to CSV or Parquet.
    silo : the column that names each row's silo; without it, the table is one silo.
    id : the column that names each row: it is not clustered, only shown beside the labels; saved
        posteriors and reports do not have it.
    shards : split the table at random into this many silos, to go faster; they are alike, so drift
        is "none" unless it is given.
    preset : "paper" for the settings of Fendler et al. (2026), "files" for those of silos that
        answer by file, "network" for silos that are online; the other keywords override it.
    seed : same seed, same result, on any number of threads.
    threads : cores to use; all when left out.
    variables : columns to use; by default all but the silo, id and frequency columns.
    exclude : columns to leave out, instead of naming `variables`.
    kinds : by column, "categorical", "gaussian", "log-gaussian", "gaussian-full" (correlated),
        "student-t" (with outliers), "poisson" (counts) or "negative-binomial" (counts that vary
        more). Left out, numbers are "gaussian" unless they have ten or fewer distinct values, all
        whole.
    bins : by column of numbers, into how many levels to cut them, at quantiles: `{"age": 4}`.
    missing : "marginalise" leaves missing cells out; "level" makes them a level.
    na_values : codes for missing cells, as in pandas: -9 or [-9, "unknown"] for all columns,
        {"age": 99} for some, [-9, {"age": 99}] for both.
    frequency : a column of counts, for tables of patterns; its rows are repeated.
    progress : None shows a bar on a terminal; False never; or a function of a `Progress`.
    checkpoint : a folder; a run stopped in any way continues from there.
    transport : "in-process", or "joblib" for the workers of the caller's
        `joblib.parallel_config`, which may be a Dask cluster; the result is the same.
    policy : what each silo lets out: a `silomix.study.policy.Policy`, the name of a preset, or a
        policy file; by default anything may leave, since the rows are here already.
    **settings

    Returns
    -------
    Posterior
        Global draws, and the rows' labels in the order of the table.

    Examples
    --------
    >>> import silomix
    >>> table, truth = silomix.simulate("homogeneous", rows=400, silos=2, seed=1)
    >>> posterior = silomix.fit(table, silo="silo", components=8, iterations=1000, seed=1)
    >>> posterior.n_clusters
    5
    >>> posterior.diagnostics.trusted
    True
    """
    _check_call(settings, preset, transport)
    rules = OPEN if policy is None else find_policy(policy)
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = expand(table, frequency)
            if id is not None:
                find_column(frame, id, "to name its rows")
            used = choose_variables(frame, variables, exclude, silos=silo, rows=id)
            roster = _split(frame, silo, shards, seed, used)
            options: dict[str, Any] = {"variables": used, "kinds": kinds, "bins": bins}
            shard = load(frame, silo=silo, missing=missing, na_values=na_values, **options)
    finally:  # said at the caller's line; the result keeps those about the table
        for warning in caught:
            warn(warning.message)
    # not among the warnings that the result keeps: it may quote ids
    ids = None if id is None else read_ids(frame, id, is_repeated=frequency is not None)
    if shards is not None:
        settings = {"drift": "none", **settings}  # random shards of one table are alike
    if "most_bytes" not in getattr(settings.get("polish"), "model_fields_set", ()):
        settings = {"most_bytes": "any", **settings}  # nothing travels
    study = make_study(shard.schema, roster.names, preset=preset, seed=seed, **settings)
    with reporting(progress) as report:
        parts = split_silos(shard, roster, study, rules, checkpoint)
        with _open_transport(transport, parts, cores(threads), report) as silos:
            posterior = run_study(study, silos, threads=cores(threads), report=report)
    blanks = np.array([part.shard.missing for part in parts]) if policy is None else None
    assignment = replace(gather_assignment(silos.silos, roster.places), missing=blanks, ids=ids)
    name = Path(table).name if isinstance(table, str | Path) else ""
    notes = [as_note(warning.message) for warning in caught if warning.category is DataWarning]
    empty = np.setdiff1d(range(posterior.n_clusters), assignment.labels)
    notes += [f"Cluster {c} is not the most probable cluster of any row." for c in empty]
    return replace(
        posterior,
        provenance=replace(posterior.provenance, table=name),
        diagnostics=replace(posterior.diagnostics, notes=(*posterior.diagnostics.notes, *notes)),
        assignment=assignment,
        backend=backend_of(table),
    )


def _check_call(settings: Mapping[str, Any], preset: str | None, transport: str) -> None:
    """Refuse early what would only fail after the table is read, or the silos have sampled."""
    check_keywords(preset, settings, signature(fit).parameters)
    one_of("transport", transport, TRANSPORTS)
    need_package(settings.get("partition", "pam" if preset == "paper" else "linkage"))
    if transport == "joblib" and find_spec("joblib") is None:
        raise MissingDependency("{transport} needs joblib", "parallel", transport=transport)


def _split(
    frame: Any, silo: str | None, shards: int | None, seed: int, variables: Sequence[str]
) -> Roster:
    """Names of the silos, and index of each row's silo."""
    if silo is not None and shards is not None:
        text = "{silo} and {shards} both say how to split the table; give one of them"
        raise SettingsError(text, silo=None, shards=None)
    if silo is not None:
        return read_roster(frame, silo)
    if shards is not None:
        if at_least("shards", shards, 1) > len(frame):
            text = f"{{shards}} is {shards}, more than the {len(frame)} rows of the table"
            raise SettingsError(text, shards=None)
        return random_shards(len(frame), shards, seed)
    likely = [name for name in map(str, variables) if name.casefold() in SILO_NAMES]
    if likely:
        text = f"the table has a column {likely[0]!r}, which is taken for a variable"
        advice = "if it names the silos, give {silo}"
        warn(DataWarning(f"{text}; {advice}", silo=likely[0]))
    return read_roster(frame, None)


def gather_assignment(silos: Sequence[Silo], places: Ints) -> Assignment:
    """Memberships of all silos, in the order of the table."""
    parts = [silo.store.membership for silo in silos if silo.store.membership is not None]
    membership = np.empty((len(places), parts[0].shape[1]), dtype=np.float32)
    for place, part in enumerate(parts):
        membership[places == place] = part
    return Assignment(membership.argmax(axis=1), membership, places)


def _open_transport(
    transport: str, silos: Sequence[Silo], threads: int, report: Report | None
) -> AbstractContextManager[InProcess | Joblib]:
    """The silos behind a transport."""
    if transport == "in-process":
        return nullcontext(InProcess(silos, threads=threads, report=report))
    from silomix.transports.parallel import Joblib

    return Joblib(silos, jobs=threads, report=report)
