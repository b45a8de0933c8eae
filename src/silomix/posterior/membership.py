"""P(cluster | row) for old and new rows, and how well the posterior predicts them.

Profiles are the global ones, weights those of the row's own silo; a row of an unknown silo gets
the global weights. Missing cells are summed out.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.data import encode, read_table
from silomix.data.cells import read_cells
from silomix.kernels.membership import TILE, add_membership, log_weights, make_steps

if TYPE_CHECKING:
    import narwhals as nw
    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.kernels.membership import Steps
    from silomix.posterior.record import Posterior
    from silomix.types import Shard

BLOCK = 256
"""Rows that one thread takes at a time."""

ELSEWHERE = -1
"""Place of a silo that is not in the study."""

MOST_LISTED = 5

logger = logging.getLogger("silomix")


@dataclass(frozen=True, eq=False)
class RowMembership:
    """What the draws say of each row.

    Attributes
    ----------
    membership : (row, cluster), the mean over draws of P(cluster | row, draw).
    log_density : (row,), the logarithm of the mean over draws of p(row | draw).
    """

    membership: NDArray[np.float64]
    log_density: NDArray[np.float64]


def row_membership(
    shard: Shard,
    weights: NDArray[np.floating],
    probabilities: NDArray[np.floating],
    threads: int | None = None,
) -> RowMembership:
    """Return the membership of the rows of one silo.

    Parameters
    ----------
    shard : its rows.
    weights : (draw, cluster), its own weights.
    probabilities : (draw, cluster, level)
    threads : cores to use; all when left out. The result does not depend on it.
    """
    steps = make_steps(weights, probabilities, shard.schema.offsets)
    return _share_rows(shard.codes, steps, log_weights(weights), threads)


def table_membership(
    posterior: Posterior, table: Table, silo: str | None = None, threads: int | None = None
) -> RowMembership:
    """Return the membership of the rows of a table.

    Parameters
    ----------
    table : any frame or path; its columns must agree with the study's schema.
    silo : the column that names each row's silo, or the silo that all rows are of.
    threads : cores to use; all when left out. The result does not depend on it.
    """
    frame = read_table(table)
    codes = encode(frame, posterior.study.table_schema).codes
    places = silo_places(frame, silo, posterior)
    offsets = posterior.study.table_schema.offsets
    steps = make_steps(posterior.weights, posterior.probabilities, offsets)
    membership = np.empty((len(codes), posterior.n_clusters))
    log_density = np.empty(len(codes))
    for place in np.unique(places):
        rows = np.flatnonzero(places == place)
        known = place != ELSEWHERE
        weights = posterior.weights_by_silo[:, place] if known else posterior.weights
        part = _share_rows(codes[rows], steps, log_weights(weights), threads)
        membership[rows], log_density[rows] = part.membership, part.log_density
    return RowMembership(membership, log_density)


def silo_places(
    frame: nw.DataFrame[Any], silo: str | None, posterior: Posterior
) -> NDArray[np.int64]:
    """Return the place of each row's silo among those of the posterior: (row,).

    A column that is a variable of the study names no silos. A silo that the posterior does not
    know, and a row that does not say whose it is, are `ELSEWHERE`; a log message says so.
    """
    known = {name: place for place, name in enumerate(posterior.silos)}
    variables = {variable.name for variable in posterior.study.variables}
    if silo is None:
        return np.full(len(frame), ELSEWHERE)
    if silo in frame.columns and silo not in variables:
        cells = read_cells(frame.get_column(silo), f"the silo column {silo!r}")
        texts, codes = cells.texts, cells.codes
    else:
        texts, codes = [silo], np.zeros(len(frame), dtype=np.int64)
    places = np.array([*(known.get(text, ELSEWHERE) for text in texts), ELSEWHERE])[codes]
    _tell_of_strangers([text for text in texts if text not in known], places)
    return places


def _tell_of_strangers(names: list[str], places: NDArray[np.int64]) -> None:
    rows = np.count_nonzero(places == ELSEWHERE)
    if rows:
        shown = ", ".join(repr(name) for name in sorted(names)[:MOST_LISTED]) or "blank"
        more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
        text = "%d rows are of silos outside the study (%s%s); they get its global weights"
        logger.warning(text, rows, shown, more)


def _share_rows(
    codes: NDArray[np.unsignedinteger],
    steps: Steps,
    weights: NDArray[np.float64],
    threads: int | None,
) -> RowMembership:
    """Run the kernel on blocks of rows, side by side; no row depends on another."""
    membership = np.empty((len(codes), weights.shape[1] // TILE))
    log_density = np.empty(len(codes))

    def compute(first: int) -> None:
        some = slice(first, first + BLOCK)
        add_membership(codes[some], steps, weights, membership[some], log_density[some])

    with ThreadPoolExecutor(max_workers=threads or os.cpu_count() or 1) as pool:
        for _ in pool.map(compute, range(0, len(codes), BLOCK)):
            pass
    return RowMembership(membership, log_density)
