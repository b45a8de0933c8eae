"""One silo, opened with its table and policy, and its own posterior: sample, partition, relabel."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from silomix.errors import DataError, SettingsError, StudyMismatch
from silomix.families.chains import Rows
from silomix.model.files import finishing
from silomix.model.reading import Table, read_cells, read_table
from silomix.model.spreadsheet import write_table
from silomix.model.table import expand, load
from silomix.posterior.membership import label_columns
from silomix.silo.cost import check_cost, sampling_cost
from silomix.silo.ledger import Account, Digests, note_left, open_account
from silomix.silo.ledger_file import FAILED
from silomix.silo.partition import need_package, partition
from silomix.silo.relabel import align_draws
from silomix.silo.release import arranged, make_release, without_rare_values
from silomix.silo.sampler import Job, sample_in_blocks, starting_labels
from silomix.silo.store import Kept, Store, digest_arrays, open_store
from silomix.study import Study, digest
from silomix.study.policy import OPEN, Policy
from silomix.study.roster import Roster, own_rows, read_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import narwhals as nw

    from silomix.kernels.arrays import Array, Ints
    from silomix.messages import Release
    from silomix.messages.progress import Report
    from silomix.model.draws import Draws, LocalPosterior, Partition
    from silomix.model.schema import Shard

# Draws, about, that a silo releases where a polish follows: they are only where it starts.
STARTING_DRAWS = 200
# Adjusted Rand index of its chains' partitions at which a silo need not sample longer.
ENOUGH_AGREEMENT = 0.85
# A column of our own: the number that a row has in its table.
ROW = "silomix: number of the row"


@dataclass(frozen=True, eq=False)
class Silo:
    """One silo: its rows, the study it takes part in, its own policy, and its store.

    Attributes
    ----------
    name, place : as in the study's roster.
    policy : what it lets out; nobody else can change it.
    threads : cores its answers may use; they do not change them.
    checkpoint : folder for its sampler's checkpoints, or None.
    progress : told how far its sampler is.
    account : its place in the silo's ledger of studies; None inside one process, where the rows
        are at hand.
    """

    name: str
    place: int
    shard: Shard
    study: Study
    store: Store = field(default_factory=Store)
    policy: Policy = OPEN
    threads: int = 1
    checkpoint: Path | None = None
    progress: Report | None = None
    account: Account | None = None

    def __post_init__(self) -> None:
        """Refuse what would fail after hours of sampling."""
        if self.study.strategy != "exact":
            need_package(self.study.local.partition)

    @cached_property
    def rows(self) -> Rows:
        """Its rows, ready to be asked about; what a kernel needs of them is made once."""
        return Rows(self.shard, self.study.pooled_model.family, self.store.prepared)


class Loaded(NamedTuple):
    """A silo's rows.

    Attributes
    ----------
    shard : in the study's levels.
    rows : (row,), the number that each has in its table.
    digests : what the table is recognised by, whatever the study looks at.
    ids : (row,), what each is called, where a column says so.
    """

    shard: Shard
    rows: Ints
    digests: Digests
    ids: Array | None = None


def load_rows(
    table: Table,
    study: Study,
    silo: str,
    *,
    column: str | None,
    frequency: str | None,
    id_column: str | None = None,
    failed: Callable[[Digests], None] | None = None,
) -> Loaded:
    """Silo's rows in the study's levels.

    Parameters
    ----------
    column : names each row's silo, where the table has the rows of several.
    frequency : a column of counts; its rows are repeated.
    id_column : names each row.
    failed : told where cells do not fit the study, which says something about them.
    """
    place_in(study, silo)
    frame = own_rows(read_table(table).with_row_index(ROW), column, silo, study)
    cells, columns = digest_cells(frame, without=(ROW, column))
    frame = expand(frame, frequency, where=silo)
    rows = frame.get_column(ROW).to_numpy().astype(np.int64) + 1
    repeated = {"is_repeated": frequency is not None}
    ids = None if id_column is None else read_ids(frame, id_column, **repeated)
    try:
        shard = load(frame.drop(ROW), schema=study.table_schema, where=silo)
    except DataError:
        needed = {variable.column for variable in study.table_schema.variables}
        if failed is not None and needed.issubset(frame.columns):
            failed(Digests(cells, "", columns))
        raise
    return Loaded(shard, rows, Digests(cells, digest_arrays(shard.cells), columns), ids)


def digest_cells(
    frame: nw.DataFrame[Any], without: tuple[str | None, ...] = ()
) -> tuple[str, dict[str, str]]:
    """Digest of a table's cells, the same for every kind of file that it is kept in.

    The second result has, by name of the column, one of its cells whatever the order of the rows.
    """
    whole, columns = hashlib.sha256(), {}
    for name in sorted(set(frame.columns) - set(without)):
        column = frame.get_column(name)
        try:
            cells = read_cells(column, name)
        except DataError:  # no levels; but it may tell two versions of a table apart
            texts = [*map(repr, column.to_list())]
            whole.update(json.dumps([name, *texts]).encode())
            tally: list[Any] = sorted(texts)
        else:
            whole.update(json.dumps([name, cells.texts]).encode() + cells.codes.tobytes())
            missing, *times = np.bincount(cells.codes + 1, minlength=1 + len(cells.texts)).tolist()
            tally = [missing, *sorted(zip(cells.texts, times, strict=True))]
        columns[name] = hashlib.sha256(json.dumps(tally).encode()).hexdigest()[:16]
    return whole.hexdigest(), columns


def open_site(
    data: Table,
    study: Study,
    name: str,
    *,
    policy: Policy = OPEN,
    store: Path | None = None,
    silo_column: str | None = None,
    frequency: str | None = None,
    id_column: str | None = None,
    is_counted: bool = True,
    **counted: Any,
) -> tuple[Silo, Loaded]:
    """Open the silo that answers from a table, and return it with its rows.

    Its store outlives the process. A policy that changes only what may be asked, or how often, or
    the tiers that may leave, keeps the store and what it has counted: these hold from then on.

    Parameters
    ----------
    data : the table; its path, where what leaves is counted.
    store : folder of what the silo keeps between questions; it keeps nothing when left out.
    silo_column, frequency, id_column : as `column` and so on of `load_rows`.
    is_counted : whether the silo's ledger is to count what leaves.
    counted : `ledger` and `table_name` of `open_account`.

    Raises
    ------
    StudyMismatch
        When the silo is not in the study's roster.
    PolicyRefusal
        When the ledger does not allow the study.
    CheckpointError
        When the store is of another silo, study, table, minimum count or rounding.
    """

    def account_of(digests: Digests) -> Account:
        assert isinstance(data, str | Path)
        return open_account(digests, study, name, policy, Path(data), column=silo_column, **counted)

    def failed(digests: Digests) -> None:
        note_left(account_of(digests), FAILED)

    columns = {"column": silo_column, "frequency": frequency, "id_column": id_column}
    loaded = load_rows(data, study, name, failed=failed if is_counted else None, **columns)
    account = account_of(loaded.digests) if is_counted else None
    place, memory, checkpoint = place_in(study, name), Store(), None
    if store is not None:
        identity = {
            "silo": name,
            "study": digest(study),
            "table": loaded.digests.rows,
            "minimum count or rounding": f"{policy.minimum_count}, {policy.round_to}",
        }
        memory, checkpoint = open_store(store, identity), store / "checkpoint"
    opened = Silo(name, place, loaded.shard, study, memory, policy, 1, checkpoint, account=account)
    return opened, loaded


def split_silos(
    shard: Shard,
    roster: Roster,
    study: Study,
    policy: Policy = OPEN,
    checkpoint: str | Path | None = None,
) -> list[Silo]:
    """Make the silos of a table whose rows are all here; each has its folder in `checkpoint`."""
    silos = []
    for place, name in enumerate(roster.names):
        folder = None if checkpoint is None else Path(checkpoint, name)
        rows = shard.some(roster.places == place)
        silos.append(Silo(name, place, rows, study, policy=policy, checkpoint=folder))
    return silos


def write_labels(silo: Silo, loaded: Loaded) -> Path | None:
    """Write the rows' clusters into the silo's store, once they are known; return the file."""
    membership, folder = silo.store.membership, silo.store.folder
    if membership is None or folder is None:
        return None
    silos = np.full(len(membership), silo.name, dtype=object)
    columns = label_columns(silos, membership, loaded.ids, probabilities=False)
    path = folder / "labels.csv"
    with finishing([path]):
        write_table(pd.DataFrame(columns | {"row": loaded.rows}), path, private=True)
    return path


def place_in(study: Study, name: str) -> int:
    """Silo's place in the roster; refuse one that is not there."""
    if name not in study.silos:
        raise StudyMismatch(
            f"the study has no silo {name!r}; its roster is "
            f"{', '.join(map(repr, study.silos))}: correct the name, or use the study file "
            "that this silo is part of"
        )
    return study.silos.index(name)


def without(study: Study, silos: Sequence[str]) -> Study:
    """Study that goes on without these silos: another study, and its title says so.

    The roster deals the random streams and sets each silo's share of the prior, so nothing of
    the whole study's answers is used, and every silo that stays has to agree to it.
    """
    left_out = {place_in(study, name) for name in silos}
    if not left_out:
        return study
    staying = tuple(name for place, name in enumerate(study.silos) if place not in left_out)
    if not staying:
        raise SettingsError("no silo is left to go on with; leave out fewer")
    title = f"{study.title or 'Untitled'} (without {', '.join(sorted(silos))})"
    rows = study.rows and {name: rows for name, rows in study.rows.items() if name in staying}
    return study.model_copy(update={"silos": staying, "title": title, "rows": rows or None})


def sample_locally(silo: Silo) -> LocalPosterior:
    """Silo's own posterior: sample, partition, relabel.

    Raises
    ------
    PolicyRefusal
        When it would take more time or memory than the silo's policy allows, by an estimate.
    """
    check_cost(sampling_cost(silo), silo, "sampling this study")
    study, settings = silo.study, silo.study.local
    sizes = len(study.silos), silo.place, study.seed
    job = Job(study.model.components, study.prior, study.sampling, *sizes)
    shard = without_rare_values(silo.shard, silo.policy)
    running: dict[str, Any] = {"threads": silo.threads, "progress": silo.progress}
    if study.model.clusters is not None:
        running["start"] = starting_labels(shard, job, silo.threads)
    blocks = sample_in_blocks(shard, job, checkpoint=silo.checkpoint, **running)
    draws = next(blocks)
    options = settings.model_dump(include={"one_cluster", "threshold", "subsample"})
    while True:
        clusters = partition(draws, settings.partition, clusters=study.model.clusters, **options)
        longer = None if ran_enough(draws, clusters, study) else next(blocks, None)
        if longer is None:
            return align_draws(draws, clusters, settings.relabel)
        draws = longer


def ran_enough(draws: Draws, clusters: Partition, study: Study) -> bool:
    """Whether a silo's chains need not go on.

    They agree on the clusters. Where other silos and a polish follow, that is all these need to
    begin with; otherwise the draws are the answer, and their traces must have mixed too.
    """
    if clusters.agreement < ENOUGH_AGREEMENT:
        return False
    only_begin = study.polish.rounds != 0 and len(study.silos) > 1
    return only_begin or draws.diagnostics.trusted


def release_of(silo: Silo, sampled: LocalPosterior, **options: Any) -> Release:
    """Release that a silo's policy allows of its posterior; `options` of `make_release`."""
    return make_release(
        sampled,
        silo=silo.name,
        place=silo.place,
        study=digest(silo.study),
        tier=silo.study.tier,
        policy=silo.policy,
        **options,
    )


def kept_posterior(silo: Silo) -> Kept:
    """Kept part of the silo's posterior, sampled if the store has nothing."""
    with silo.store.lock:
        if silo.store.kept is None:
            sampled = sample_locally(silo)
            silo.store.verdict = sampled.draws.diagnostics.verdict
            local = arranged(sampled, silo.policy)
            most = STARTING_DRAWS if silo.study.polish.rounds != 0 else None
            release = release_of(silo, local, most_draws=most)
            kept = Kept(release, local.weights, local.probabilities, local.partition.labels)
            silo.store.keep(kept)
            return kept
        return silo.store.kept
