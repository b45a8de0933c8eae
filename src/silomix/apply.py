"""One silo under a study: its table in, its local posterior out.

The apply step of Fendler et al. (2026), section 4.2: sample, partition, relabel.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from silomix.data import load
from silomix.progress import reporting
from silomix.sampler import cores
from silomix.silo import Silo, sample_locally
from silomix.site import place_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.data.reading import Table
    from silomix.sampler import Progress
    from silomix.study import Study
    from silomix.types import LocalPosterior, Shard


def apply_study(
    table: Table,
    study: Study,
    silo: str,
    *,
    frequency: str | None = None,
    threads: int | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
) -> LocalPosterior:
    """Return the local posterior of one silo, with the settings of a study.

    Parameters
    ----------
    table : the silo's rows, and no others; columns that the study does not name are ignored.
    study : which settings to use.
    silo : the silo's name in the roster; its place there sets its random stream.
    frequency, threads, checkpoint, progress : as for `silomix.sample`.
    """
    place_in(study, silo)
    shard = load(table, schema=study.table_schema, frequency=frequency, where=silo)
    return apply_to(shard, study, silo, threads=threads, checkpoint=checkpoint, progress=progress)


def apply_to(
    shard: Shard,
    study: Study,
    silo: str,
    *,
    threads: int | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
) -> LocalPosterior:
    """Return the local posterior of rows that are in the study's levels already."""
    with reporting(progress) as report:
        return sample_locally(
            Silo(
                name=silo,
                place=place_in(study, silo),
                shard=shard,
                study=study,
                threads=cores(threads),
                checkpoint=Path(checkpoint) if checkpoint is not None else None,
                progress=report,
            )
        )
