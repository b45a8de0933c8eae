"""The gold standard: one sampler on the rows of all silos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.data import read_table
from silomix.rivals.federation import COMBINING, MATCHING, open_silos, refuse_unused
from silomix.rivals.record import RivalResult, Stopwatch
from silomix.roster import choose_variables, read_roster
from silomix.silo import sample_locally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from silomix.data.reading import Table
    from silomix.silo import Silo
    from silomix.types import Missing


class Pooled(NamedTuple):
    """All rows in one silo, and the bytes that left each of the silos they are from."""

    silo: Silo
    bytes_sent: Mapping[str, Mapping[str, int]]


def pooled_mcmc(
    table: Table,
    silo: str | None = None,
    *,
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    **settings: Any,
) -> RivalResult:
    """Sample the posterior of one mixture on all rows, as if there were no silos.

    The reference of Fendler et al. (2026), section 5.4 ("Full MCMC"): the sampler that a silo of
    silomix runs, under the whole prior, then one partition and the draws relabelled to it. Every
    row leaves its silo, which `bytes_sent` counts.

    Parameters
    ----------
    table, silo, seed, threads, variables, missing : as for `silomix.fit`.
    settings : of the sampler and the partition, as for `silomix.fit`; `preset="paper"` for the
        paper's.

    Examples
    --------
    >>> result = silomix.rivals.pooled_mcmc(table, "silo", iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    refuse_unused(settings, (*COMBINING, *MATCHING, "assign", "tier"))
    watch = Stopwatch()
    pooled = pool_rows(
        table,
        silo,
        seed=seed,
        threads=threads,
        variables=variables,
        missing=missing,
        **settings,
    )
    with watch.stage("sample"):
        local = sample_locally(pooled.silo)
    return RivalResult(
        name="pooled_mcmc",
        labels=local.partition.labels,
        weights=local.weights,
        probabilities=local.probabilities,
        levels=local.levels,
        seconds=watch.seconds,
        bytes_sent=pooled.bytes_sent,
        notes=(local.draws.diagnostics.verdict,),
    )


def pool_rows(
    table: Table,
    silo: str | None,
    *,
    seed: int,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    **settings: Any,
) -> Pooled:
    """Make one silo of a table, and count what its silos had to send for that."""
    frame = read_table(table)
    columns = choose_variables(frame, variables, silo)
    everyone = open_silos(
        frame,
        None,
        seed=seed,
        threads=threads,
        variables=columns,
        missing=missing,
        **settings,
    )
    (one,) = everyone.silos.silos
    width = one.shard.codes[0].nbytes
    names, places = everyone.tally.names, everyone.places
    if silo is not None:
        roster = read_roster(frame, silo)
        names, places = roster.names, roster.places
    sizes = np.bincount(places, minlength=len(names))
    sent = {name: {"rows": int(size) * width} for name, size in zip(names, sizes, strict=True)}
    return Pooled(one, sent)
