"""Membership P(cluster | row) and predictive density of old and new rows.

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
import pandas as pd

from silomix.errors import DataError, DataWarning, SettingsError, warn
from silomix.families.chains import Rows
from silomix.kernels.likelihood import RowMembership
from silomix.model.draws import to_four_decimals
from silomix.model.reading import Table, read_cells, read_table
from silomix.model.sentences import cores, did_you_mean, quoted
from silomix.model.table import encode
from silomix.posterior.frames import make_frame
from silomix.study.roster import read_ids, silo_columns

if TYPE_CHECKING:
    import narwhals as nw
    from numpy.typing import ArrayLike

    from silomix.kernels.arrays import Array, Floats, Ints, Reals
    from silomix.model.schema import Shard
    from silomix.posterior.global_posterior import Posterior

# Index of a silo that is not in the study.
ELSEWHERE = -1

logger = logging.getLogger("silomix")


def membership(
    posterior: Posterior, table: Table, silo: str | None = None, *, threads: int | None = None
) -> Floats:
    """Return P(cluster | row), averaged over draws, for old or new rows: (row, cluster).

    Parameters
    ----------
    table : any frame or path with the study's variables; missing cells are summed out.
    silo : the column that names each row's silo, or the silo that all rows are from: its own
        weights and its own profiles are used. Rows for which the column names an unknown silo,
        or none, get the global weights and the shared profiles, and so do all rows without
        `silo`.
    threads : cores to use; all when left out. The result does not depend on it.

    Examples
    --------
    >>> posterior.membership(table.head(3), silo="silo").shape
    (3, 5)
    """
    return _table_membership(posterior, table, silo, threads).membership


def log_predictive_density(
    posterior: Posterior, table: Table, silo: str | None = None, *, threads: int | None = None
) -> Floats:
    """Return the logarithm of p(row), averaged over draws: (row,); arguments as above.

    Examples
    --------
    >>> density = posterior.log_predictive_density(table, silo="silo")
    >>> density.shape, bool((density < 0).all())
    ((400,), True)
    """
    return _table_membership(posterior, table, silo, threads).log_density


def labels_frame(
    posterior: Posterior,
    table: Table | None = None,
    silo: str | None = None,
    *,
    id: ArrayLike | str | None = None,
    threads: int | None = None,
    probabilities: bool = False,
    frame_like: object = None,
) -> Any:
    """Return a frame of the rows: most probable cluster, its probability, and the next.

    Parameters
    ----------
    table, silo, threads : rows other than those that were fitted; as for `membership`.
    id : the column of `table` that names each row, or (row,), the names themselves. Those that
        `fit` was given are the default for the rows that were fitted; a saved posterior does
        not have them, since it may be handed on.
    probabilities : whether to add the probability of each cluster: p0, p1, …
    frame_like : as for `summary`.

    Returns
    -------
    frame
        A line per row of the table, in its order: row, from 1; id, if given; silo; cluster;
        probability; and second, the cluster that is most probable after it.

    Examples
    --------
    >>> posterior.labels_frame(id=table.index).columns.tolist()
    ['row', 'id', 'silo', 'cluster', 'probability', 'second']
    >>> new = posterior.labels_frame(table.head(3), silo="silo", probabilities=True)
    >>> new.columns.tolist()[2:]
    ['cluster', 'probability', 'second', 'p0', 'p1', 'p2', 'p3', 'p4']
    """
    if table is None and (silo is not None or threads is not None):
        raise SettingsError("silo and threads are for other rows; give their table, too")
    if table is None:
        membership, id = posterior._rows.membership, posterior._rows.ids if id is None else id
        silos = np.array(posterior.silos, dtype=object)[posterior._rows.silos]
    else:
        frame = read_table(table)
        id = read_ids(frame, id) if isinstance(id, str) else id
        silos = np.full(len(frame), None) if silo is None else row_silos(frame, silo, posterior)
        membership = to_four_decimals(posterior.membership(frame, silo, threads=threads))
    columns = label_columns(silos, membership, id, probabilities=probabilities)
    return make_frame(columns, frame_like, posterior)


def label_columns(
    silos: Array, membership: Reals, ids: ArrayLike | None, *, probabilities: bool
) -> dict[str, Any]:
    """Columns with a line per row: silo, cluster, its probability, and the next cluster.

    Parameters
    ----------
    silos : (row,), names.
    membership : (row, cluster)
    ids : (row,), identifiers of the rows, if any.
    probabilities : whether to add a column with the probability of each cluster.
    """
    labels, rows = membership.argmax(axis=1), np.arange(len(membership))
    rounded = membership.astype(np.float64).round(4)
    named = {} if ids is None else {"id": np.asarray(ids, dtype=object)}
    if ids is not None and named["id"].shape != rows.shape:
        problem = f"{named['id'].size} values; give"
        if named["id"].ndim == 0:
            problem = f"{ids!r}: for a column's name give table= too; for names themselves give"
        raise DataError(f"id is {problem} a value for each of {len(rows)} rows")
    masked = rounded.copy()
    masked[rows, labels] = -1.0
    second = masked.argmax(axis=1) if rounded.shape[1] > 1 else np.full(len(rows), None)
    columns = {"row": rows + 1, **named, "silo": silos, "cluster": labels}
    columns |= {"probability": rounded[rows, labels], "second": second}
    return columns | ({f"p{c}": p for c, p in enumerate(rounded.T)} if probabilities else {})


def _table_membership(
    posterior: Posterior, table: Table, silo: str | None, threads: int | None
) -> RowMembership:
    """Membership and predictive density of the rows of a table."""
    frame = read_table(table)
    places = silo_places(frame, silo, posterior)
    shard = encode(frame, posterior.study.table_schema)
    return encoded_membership(posterior, shard, places, cores(threads))


def encoded_membership(
    posterior: Posterior, shard: Shard, places: Ints, threads: int, draw: int | None = None
) -> RowMembership:
    """Membership and density of rows, averaged over draws or in a single one.

    Parameters
    ----------
    shard : the rows, coded by the study's schema.
    places : (row,), index of each row's silo, for its weights; `ELSEWHERE` for the global ones.
    threads : cores to use.
    draw : the only one to use, without the silos' own profiles, which only the last draws have.
    """
    own_profiles = posterior.silo_profiles if draw is None else None
    used = slice(draw, None if draw is None else draw + 1)
    overall, by_silo = posterior.weights[used], posterior.weights_by_silo[used]
    result = RowMembership(np.empty((shard.rows, posterior.n_clusters)), np.empty(shard.rows))
    for place in np.unique(places):
        rows = np.flatnonzero(places == place)
        weights = overall if place == ELSEWHERE else by_silo[:, place]
        parameters = posterior.profile_draws[used]
        if own_profiles is not None and place != ELSEWHERE:
            parameters = own_profiles.parameters[:, place]
            weights = weights[-len(parameters) :]
        part = Rows(shard.some(rows), posterior.family).membership(weights, parameters, threads)
        result.membership[rows], result.log_density[rows] = part
    return result


def silo_places(frame: nw.DataFrame[Any], silo: str | None, posterior: Posterior) -> Ints:
    """Index of each row's silo among those of the posterior: (row,).

    Unknown and missing silos are `ELSEWHERE`, with a log message; without `silo`, a column that
    names silos is worth a warning.
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
    names = row_silos(frame, silo, posterior)
    places = pd.Index(posterior.silos).get_indexer(pd.Index(names))
    unknown = places == ELSEWHERE
    if unknown.any():
        logger.warning(
            "%d rows are of silos that were not fitted (%s): overall weights and profiles are used",
            np.count_nonzero(unknown),
            quoted(sorted({*names[unknown]} - {None})) or "blank",
        )
    return places


def row_silos(frame: nw.DataFrame[Any], silo: str, posterior: Posterior) -> Array:
    """Name of each row's silo, from the column `silo`, or that silo for all rows: (row,).

    It is None where the cell is missing. A column that is a variable of the study names no silos.

    Raises
    ------
    DataError
        When it is neither: a misspelt column would otherwise change every probability.
    """
    silo = str(silo)
    columns = [name for name in frame.columns if name not in _variables(posterior)]
    if silo in columns:
        cells = read_cells(frame.get_column(silo), f"the silo column {silo!r}")
        # a missing cell has the code −1, the last of these
        return np.array([*cells.texts, None], dtype=object)[cells.codes]
    if silo in posterior.silos:
        return np.full(len(frame), silo, dtype=object)
    raise DataError(
        f"{silo!r} is neither a column of the table that names silos nor a silo of the posterior"
        f"{did_you_mean(silo, [*posterior.silos, *columns])}, whose silos are "
        f"{quoted(posterior.silos)}; correct the name; for rows of a new silo leave {{silo}} out, "
        "for the global weights, or give the column that names it",
        silo=None,
    )


def _variables(posterior: Posterior) -> set[str]:
    return {variable.name for variable in posterior.study.variables}
