"""Words in, the method called: what `import silomix` offers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from silomix.data import load
from silomix.errors import SettingsError
from silomix.progress import reporting
from silomix.sampler import Job, sample_shard
from silomix.study import make_study

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from silomix.data.reading import Table
    from silomix.sampler import Progress
    from silomix.types import Draws, Missing, Schema


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
    schema: Schema | None = None,
    missing: Missing = "marginalise",
    frequency: str | None = None,
    progress: bool | Callable[[Progress], None] | None = None,
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
    thin : keep one sweep in `thin`; left out, about 2,000 draws are kept over all chains.
    seed : same seed, same draws, on any machine and any number of threads.
    threads : cores to use; all when left out.
    silo : this silo's place among the silos, 0 for the first; sets its random stream.
    alpha, beta : concentrations of the priors of the weights and of the level probabilities.
    fractionate : False gives each silo the whole prior.
    variables : columns to use; all when left out.
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
    """
    shard = load(table, schema=schema, variables=variables, frequency=frequency, missing=missing)
    silos, silo = _at_least("silos", silos, 1), _at_least("silo", silo, 0)
    given: dict[str, object] = {"burn_in": burn_in, "thin": thin}
    study = make_study(
        shard.schema,
        [f"silo {place}" for place in range(1, silos + 1)],
        seed=seed,
        components=components,
        iterations=iterations,
        chains=chains,
        alpha=alpha,
        beta=beta,
        fractionate=fractionate,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    if silo >= silos:
        raise SettingsError(f"silo is {silo}; with {silos} silos it must be 0 to {silos - 1}")
    job = Job(
        components=study.model.components,
        prior=study.prior,
        schedule=study.sampling,
        silos=silos,
        silo=silo,
        seed=study.seed,
    )
    with reporting(progress) as report:
        return sample_shard(
            shard,
            job,
            threads=_threads(threads),
            progress=report,
            checkpoint=checkpoint,
            checkpoint_every=_at_least("checkpoint_every", checkpoint_every, 1),
        )


def _threads(threads: int | None) -> int:
    if threads is None:
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    return _at_least("threads", threads, 1)


def _at_least(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise SettingsError(f"{name} is {value!r}; it must be a whole number, at least {least}")
    return int(value)
