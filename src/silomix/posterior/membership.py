"""P(cluster | row) for old and new rows, and how well the posterior predicts them.

A row of a known silo has that silo's weights and, where silos differ in their profiles, the silo's
own profiles; both are of the same draws, the last ones. A row of an unknown silo has the global
weights and the shared profiles m. That is exact: given m, the unknown silo's profiles p have mean m
and are independent between variables, so the expectation over p of a row's probability, a product
over variables, is the product at m. Missing cells are summed out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import DataError, DataWarning, warn
from silomix.families.rows import Rows
from silomix.kernels.likelihood import RowMembership
from silomix.model.reading import Cells, Table, read_cells, read_table
from silomix.model.sentences import did_you_mean, quoted
from silomix.model.table import encode
from silomix.study.roster import silo_columns
from silomix.study.validation import cores

if TYPE_CHECKING:
    import narwhals as nw
    from numpy.typing import ArrayLike, NDArray

    from silomix.kernels.arrays import Array, Ints, Reals, Singles
    from silomix.model.schema import Shard
    from silomix.posterior.global_posterior import Posterior

# Place of a silo that is not in the study.
ELSEWHERE = -1

# Parts of a whole that a kept membership is counted in.
PARTS = 10_000

logger = logging.getLogger("silomix")


def to_four_decimals(membership: Reals) -> Singles:
    """Return probabilities as they are kept: the draws' own error is larger than what is lost."""
    return from_parts(in_parts(membership))


def in_parts(membership: Reals) -> NDArray[np.uint16]:
    """Return probabilities in parts of `PARTS`."""
    return np.rint(membership.astype(np.float64) * PARTS).astype(np.uint16)


def from_parts(parts: Array) -> Singles:
    """Return the probabilities that these parts of `PARTS` are."""
    return np.divide(parts, PARTS, dtype=np.float32)


def label_columns(
    silos: Array, membership: Reals, ids: ArrayLike | None, *, probabilities: bool
) -> dict[str, Any]:
    """Return columns with a line per row: its silo, its cluster, how sure that is, and the next.

    Parameters
    ----------
    silos : (row,), names.
    membership : (row, cluster)
    ids : (row,), what each row is called, if anything.
    probabilities : whether to add a column with the probability of each cluster.
    """
    labels, rows = membership.argmax(axis=1), np.arange(len(membership))
    sure = membership.astype(np.float64).round(4)
    named = {} if ids is None else {"id": np.asarray(ids, dtype=object)}
    if ids is not None and named["id"].shape != rows.shape:
        found = f"{named['id'].size} values; give"
        if named["id"].ndim == 0:
            found = f"{ids!r}: for a column's name give table= too; for names themselves give"
        raise DataError(f"id is {found} a value for each of {len(rows)} rows")
    others = sure.copy()
    others[rows, labels] = -1.0
    second = others.argmax(axis=1) if sure.shape[1] > 1 else np.full(len(rows), None)
    columns = {"row": rows + 1, **named, "silo": silos, "cluster": labels}
    columns |= {"probability": sure[rows, labels], "second": second}
    return columns | ({f"p{c}": own for c, own in enumerate(sure.T)} if probabilities else {})


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
    places = silo_places(frame, silo, posterior)
    shard = encode(frame, posterior.study.table_schema)
    return encoded_membership(posterior, shard, places, cores(threads))


def encoded_membership(
    posterior: Posterior, shard: Shard, places: Ints, threads: int, draw: int | None = None
) -> RowMembership:
    """Return the membership of rows, averaged over draws or in a single one.

    Parameters
    ----------
    shard : the rows, as the study's schema has them.
    places : (row,), of each row's silo, whose own weights count; `ELSEWHERE` for the global ones.
    threads : cores to use.
    draw : the only one to use. The silos' own profiles, of the last draws alone, are then left out.
    """
    family = posterior.family
    own = posterior.silo_profiles if draw is None else None
    used = slice(draw, None if draw is None else draw + 1)
    overall, by_silo = posterior.weights[used], posterior.weights_by_silo[used]
    found = RowMembership(np.empty((shard.rows, posterior.n_clusters)), np.empty(shard.rows))
    for place in np.unique(places):
        rows = np.flatnonzero(places == place)
        weights = overall if place == ELSEWHERE else by_silo[:, place]
        parameters = posterior.profile_draws[used]
        if own is not None and place != ELSEWHERE:
            parameters = own.parameters[:, place]
            weights = weights[-len(parameters) :]
        part = Rows(shard.some(rows), family).membership(weights, parameters, threads)
        found.membership[rows], found.log_density[rows] = part
    return found


def silo_places(frame: nw.DataFrame[Any], silo: str | None, posterior: Posterior) -> Ints:
    """Return the place of each row's silo among those of the posterior: (row,).

    A silo that the posterior does not know, and a row that does not say whose it is, are
    `ELSEWHERE`; a log message says so, and a warning if a column says whose the rows are.
    """
    if silo is None:
        variables = _variables(posterior)
        # the weights of a single silo are the global ones
        named = silo_columns(frame, posterior.silos, variables) if len(posterior.silos) > 1 else ()
        for name in named:
            text = (
                f"the column {name!r} names silos of the posterior, and is not used: all "
                f"{len(frame)} rows get the weights and profiles over all silos; to use their own, "
                "give {silo}"
            )
            warn(DataWarning(text, silo=name))
        return np.full(len(frame), ELSEWHERE)
    cells = row_silos(frame, silo, posterior)
    known = {name: place for place, name in enumerate(posterior.silos)}
    # a missing cell has the code −1, the last of these
    places = np.array([*(known.get(text, ELSEWHERE) for text in cells.texts), ELSEWHERE])
    found = places[cells.codes]
    if (found == ELSEWHERE).any():
        unknown = sorted(text for text in cells.texts if text not in known)
        logger.warning(
            "%d rows are of silos that were not fitted (%s): overall weights and profiles are used",
            np.count_nonzero(found == ELSEWHERE),
            quoted(unknown) or "blank",
        )
    return found


def row_silos(frame: nw.DataFrame[Any], silo: str, posterior: Posterior) -> Cells:
    """Return what each row says of its silo: by the column `silo`, or all rows are of that silo.

    A column that is a variable of the study names no silos.

    Raises
    ------
    DataError
        When it is neither: a misspelt column would otherwise change every probability.
    """
    silo = str(silo)
    columns = [name for name in frame.columns if name not in _variables(posterior)]
    if silo in columns:
        return read_cells(frame.get_column(silo), f"the silo column {silo!r}")
    if silo in posterior.silos:
        return Cells([silo], np.zeros(len(frame), dtype=np.int64))
    raise DataError(
        f"{silo!r} is neither a column of the table that names silos nor a silo of the posterior"
        f"{did_you_mean(silo, [*posterior.silos, *columns])}, whose silos are "
        f"{quoted(posterior.silos)}; correct the name; for rows of a new silo leave {{silo}} out, "
        "for the global weights, or give the column that names it",
        silo=None,
    )


def _variables(posterior: Posterior) -> set[str]:
    return {variable.name for variable in posterior.study.variables}
