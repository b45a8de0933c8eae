"""What a site decides, its table, its policy, the study it agrees to -> its `Silo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.atomic import replace_file
from silomix.data import expand, load, read_table
from silomix.errors import StudyMismatch
from silomix.roster import own_rows
from silomix.silo import Silo
from silomix.store import digest_rows, open_store
from silomix.study import digest

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.policy import Policy
    from silomix.study import Study
    from silomix.types import Shard

LABELS = "labels.csv"
ROW = "silomix: number of the row"


def load_rows(
    table: Table, study: Study, silo: str, *, column: str | None, frequency: str | None
) -> tuple[Shard, NDArray[np.int64]]:
    """Return a silo's rows in the study's levels, and the number that each has in its table.

    Parameters
    ----------
    column : names each row's silo, where the table has the rows of several.
    frequency : a column of counts; its rows are repeated.
    """
    place_in(study, silo)
    frame = own_rows(read_table(table).with_row_index(ROW), column, silo, study)
    if frequency is not None:
        frame = expand(frame, frequency, where=silo)
    rows = frame.get_column(ROW).to_numpy().astype(np.int64) + 1
    return load(frame, schema=study.table_schema, where=silo), rows


def open_silo(shard: Shard, study: Study, name: str, *, policy: Policy, store: Path) -> Silo:
    """Return a silo with a store that outlives the process.

    A policy that changes only what may be asked, or how often, or the tiers that may leave, or
    whether a release may be shown, keeps the store and its ledger: these hold from then on.

    Raises
    ------
    StudyMismatch
        When the silo is not in the study's roster.
    CheckpointError
        When the store is of another silo, study, table, minimum count or rounding.
    """
    place = place_in(study, name)
    identity = {
        "silo": name,
        "study": digest(study),
        "table": digest_rows(shard.codes),
        "minimum count or rounding": f"{policy.minimum_count}, {policy.round_to}",
    }
    opened = open_store(store, identity)
    return Silo(
        name=name,
        place=place,
        shard=shard,
        study=study,
        store=opened,
        policy=policy,
        checkpoint=opened.checkpoint,
    )


def place_in(study: Study, name: str) -> int:
    """Return a silo's place in the roster; refuse one that is not there."""
    if name not in study.silos:
        raise StudyMismatch(
            f"the study has no silo {name!r}; its roster is "
            f"{', '.join(map(repr, study.silos))}: correct the name, or use the study file "
            "that this silo is part of"
        )
    return study.silos.index(name)


def write_labels(silo: Silo, rows: NDArray[np.int64]) -> Path | None:
    """Write the rows' clusters into the silo's own store, once they are known."""
    membership, folder = silo.store.membership, silo.store.folder
    if membership is None or folder is None:
        return None
    labels = membership.argmax(axis=1)
    sure = membership[np.arange(len(labels)), labels]
    lines = ["row,cluster,probability"]
    lines += [
        f"{row},{label},{share}"
        for row, label, share in zip(rows.tolist(), labels.tolist(), sure.tolist(), strict=True)
    ]
    replace_file(folder / LABELS, ("\n".join(lines) + "\n").encode(), alone=True, private=True)
    return folder / LABELS
