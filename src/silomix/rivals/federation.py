"""A table as silos that a rival may ask, through the seam that every transport implements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.data import load, read_table
from silomix.errors import SettingsError
from silomix.pipeline import Tally
from silomix.roster import Roster, choose_variables, read_roster
from silomix.sampler import cores
from silomix.silo import Silo
from silomix.study import make_study
from silomix.transports.in_process import InProcess
from silomix.types import Shard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.study import Study
    from silomix.types import Missing


@dataclass(frozen=True, eq=False)
class Federation:
    """The silos of a table.

    Attributes
    ----------
    study : what they agreed on; a rival's own settings come with its questions.
    silos : each with its own rows.
    tally : asks them, and counts the bytes of the replies.
    places : (row,), the place of each row's silo.
    threads : cores to use.
    """

    study: Study
    silos: InProcess
    tally: Tally
    places: NDArray[np.int64]
    threads: int

    def ask(self, query: Any) -> list[Any]:
        """Ask every silo one question, or each its own by name; replies in roster order."""
        replies = self.tally.ask(query)
        return [replies[name] for name in self.tally.names]

    def labels(self) -> NDArray[np.int64]:
        """Return the clusters that the silos keep for their rows, in the table's order: (row,)."""
        labels = np.empty(len(self.places), dtype=np.int64)
        for silo in self.silos.silos:
            if silo.store.membership is not None:
                labels[self.places == silo.place] = silo.store.membership.argmax(axis=1)
        return labels

    @property
    def bytes_sent(self) -> Mapping[str, Mapping[str, int]]:
        """What left each silo, by kind of reply."""
        return {name: dict(kinds) for name, kinds in self.tally.sent.items()}


COMBINING = ("aggregation", "oracle", "log_determinant", "solver", "polish", "strategy")
"""Settings of what silomix does with the silos' draws, which a rival does in its own way."""
MATCHING = ("matching", "absorb", "refine")


def refuse_unused(settings: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse settings that a method would take no notice of."""
    for name in names:
        if name in settings:
            raise SettingsError(f"{name} has no part in this method; leave it out")


def open_silos(
    table: Table,
    silo: str | None,
    *,
    seed: int,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    **settings: Any,
) -> Federation:
    """Split a table into its silos.

    Parameters
    ----------
    table, silo, variables, missing, seed, threads : as for `silomix.fit`; without a silo column
        the table is one silo.
    settings : of the study, for what the rival shares with silomix.
    """
    frame = read_table(table)
    roster = Roster(("all",), np.zeros(len(frame), dtype=np.int64))
    if silo is not None:
        roster = read_roster(frame, silo)
    names, places = roster.names, roster.places
    columns = choose_variables(frame, variables, silo)
    shard = load(frame, variables=columns, missing=missing)
    # no polish follows a rival, and its own paper fixes the number of sweeps
    settings = {"adaptive": False, "polish": 0} | settings
    study = make_study(shard.schema, names, seed=seed, **settings)
    used = cores(threads)
    silos = InProcess(
        [
            Silo(
                name=name,
                place=place,
                shard=Shard(shard.schema, shard.codes[places == place]),
                study=study,
            )
            for place, name in enumerate(names)
        ],
        threads=used,
    )
    return Federation(study, silos, Tally(silos), places, used)


@dataclass(frozen=True, eq=False)
class ClusterSizes:
    """How many rows of a silo are in each cluster: (cluster,)."""

    sizes: NDArray[np.int64]


def keep_labels(silo: Silo, labels: NDArray[np.int64], clusters: int) -> ClusterSizes:
    """Have a silo keep its rows' clusters, (row,), where every method keeps them."""
    membership = np.zeros((len(labels), clusters), dtype=np.float32)
    membership[np.arange(len(labels)), labels] = 1.0
    silo.store.assign(membership)
    return ClusterSizes(np.bincount(labels, minlength=clusters))
