"""What a site decides, its table, its policy, the study it agrees to -> its `Silo`."""

from __future__ import annotations

import hashlib
import json
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.errors import DataError, DataWarning, StudyMismatch
from silomix.model.files import replace_file
from silomix.model.reading import read_cells, read_table
from silomix.model.sentences import quoted
from silomix.model.table import expand, load
from silomix.silo.ledger import LEDGER, Account, check_account, read_ledger
from silomix.silo.local import Silo
from silomix.silo.store import digest_rows, open_store
from silomix.study import digest
from silomix.study.roster import own_rows

if TYPE_CHECKING:
    from pathlib import Path

    import narwhals as nw

    from silomix.kernels.arrays import Ints
    from silomix.model.reading import Table
    from silomix.model.schema import Shard
    from silomix.study import Study
    from silomix.study.policy import Policy

LABELS = "labels.csv"
ROW = "silomix: number of the row"


class Loaded(NamedTuple):
    """A silo's rows.

    Attributes
    ----------
    shard : in the study's levels.
    rows : (row,), the number that each has in its table.
    digest : of all cells of the table, whatever the study looks at.
    """

    shard: Shard
    rows: Ints
    digest: str


def load_rows(
    table: Table, study: Study, silo: str, *, column: str | None, frequency: str | None
) -> Loaded:
    """Return a silo's rows in the study's levels.

    Parameters
    ----------
    column : names each row's silo, where the table has the rows of several.
    frequency : a column of counts; its rows are repeated.
    """
    place_in(study, silo)
    frame = own_rows(read_table(table).with_row_index(ROW), column, silo, study)
    cells = digest_cells(frame, without=(ROW, column))
    frame = expand(frame, frequency, where=silo)
    rows = frame.get_column(ROW).to_numpy().astype(np.int64) + 1
    shard = load(frame.drop(ROW), schema=study.table_schema, where=silo)
    return Loaded(shard, rows, cells)


def digest_cells(frame: nw.DataFrame[Any], without: tuple[str | None, ...] = ()) -> str:
    """Return a digest of a table's cells, the same for every kind of file that it is kept in."""
    found = hashlib.sha256()
    for name in sorted(set(frame.columns) - set(without)):
        column = frame.get_column(name)
        try:
            cells = read_cells(column, name)
        except DataError:  # no levels; but it may tell two versions of a table apart
            found.update(json.dumps([name, *map(repr, column.to_list())]).encode())
        else:
            found.update(json.dumps([name, cells.texts]).encode() + cells.codes.tobytes())
    return found.hexdigest()


def open_account(
    loaded: Loaded,
    study: Study,
    silo: str,
    *,
    policy: Policy,
    data: Path,
    column: str | None = None,
    table: str | None = None,
    ledger: Path | None = None,
) -> Account:
    """Return the study's place in the silo's ledger, if the policy has one for it.

    Parameters
    ----------
    data : where the table is.
    column : names each row's silo, where the table has the rows of several.
    table : what its owner calls it; its path when left out.
    ledger : the file; beside the table when left out.

    Raises
    ------
    PolicyRefusal
        When the silo has answered as many studies as its policy allows, or the table has changed.
    FileError
        When the ledger is damaged, or cannot be written.
    """
    name = table or str(data.resolve())
    account = Account(
        path=ledger or data.resolve().parent / LEDGER,
        table=name if column is None else f"{name}, {column} = {silo}",
        digest=loaded.digest,
        rows=digest_rows(loaded.shard.codes),
        study=digest(study),
        title=study.title or "",
        silo=silo,
        policy=policy,
    )
    check_account(account)
    _warn_new(account, name)
    return account


def _warn_new(account: Account, name: str) -> None:
    """Warn where a table is new to a ledger that knows others: it may be one of them."""
    tables = read_ledger(account.path).tables
    others = [known.name for known in tables if not known.name.startswith(name)]
    if others and account.table not in {known.name for known in tables}:
        warnings.warn(
            f"{account.path} has no table {account.table!r} yet, and knows {quoted(others)}; if "
            "this is one of them with other rows, stop here and give its name with --table-name: "
            "what left from it counts",
            DataWarning,
            stacklevel=3,
        )


def open_silo(
    shard: Shard,
    study: Study,
    name: str,
    *,
    policy: Policy,
    store: Path,
    account: Account | None = None,
) -> Silo:
    """Return a silo with a store that outlives the process.

    A policy that changes only what may be asked, or how often, or the tiers that may leave, keeps
    the store and what it has counted: these hold from then on.

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
        account=account,
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


def write_labels(silo: Silo, rows: Ints) -> Path | None:
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
