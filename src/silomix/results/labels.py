"""Rows → their clusters as a table: those of a fit, or any rows under a saved posterior."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Group
from rich.text import Text

from silomix.data import expand, read_table
from silomix.data.cells import read_cells
from silomix.errors import DataError
from silomix.posterior.membership import row_silos, to_four_decimals
from silomix.results.common import table_view
from silomix.roster import did_you_mean
from silomix.words import plural

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from silomix.data.reading import Table
    from silomix.posterior import Assignment, Posterior


def labels_table(
    posterior: Posterior, assignment: Assignment, ids: NDArray[np.object_] | None = None
) -> pd.DataFrame:
    """Return one line per row of the table that was fitted, in its order.

    Parameters
    ----------
    ids : (row,), what each row is called, if anything.
    """
    silos = np.array(posterior.silos, dtype=object)[assignment.silos]
    return with_ids(_lines(silos, assignment.labels, assignment.membership), ids)


def read_ids(table: Table, column: str, frequency: str | None = None) -> NDArray[np.object_]:
    """Return what a column calls each row, spelled as in the table: (row,).

    Parameters
    ----------
    frequency : a column of counts; its rows are repeated.
    """
    frame = read_table(table)
    if column not in frame.columns:
        raise DataError(
            f"the table has no column {column!r} to name its rows"
            f"{did_you_mean(column, frame.columns)}; correct the name"
        )
    frame = frame if frequency is None else expand(frame, frequency)
    cells = read_cells(frame.get_column(column), f"the column {column!r}")
    return np.array([*cells.texts, None], dtype=object)[cells.codes]


def with_ids(labels: pd.DataFrame, ids: NDArray[np.object_] | None) -> pd.DataFrame:
    """Return the lines with what each row is called, if anything, next to its number."""
    if ids is not None:
        labels.insert(1, "id", ids)
    return labels


def assign_rows(
    posterior: Posterior, table: Table, silo: str | None, threads: int | None = None
) -> pd.DataFrame:
    """Return one line per row: its silo, its most probable cluster, and how probable that is.

    Parameters
    ----------
    table : old or new rows, with the study's variables.
    silo : the column that names each row's silo, or the silo that all rows are of; rows of a
        silo outside the study, or of none, get the weights over all silos.
    threads : cores to use; all when left out.
    """
    frame = read_table(table)
    silos = np.full(len(frame), None, dtype=object)
    if silo is not None:
        cells = row_silos(frame, silo, posterior)
        silos = np.array([*cells.texts, None], dtype=object)[cells.codes]
    membership = to_four_decimals(posterior.membership(frame, silo, threads=threads))
    return _lines(silos, membership.argmax(axis=1), membership)


def assigned_record(posterior: Posterior, labels: pd.DataFrame) -> dict[str, Any]:
    """Return for a program how many rows each cluster got."""
    sizes = np.bincount(labels["cluster"], minlength=posterior.n_clusters)
    return {
        "rows": len(labels),
        "clusters": posterior.n_clusters,
        "sizes": sizes.tolist(),
        "mean_probability": float(labels["probability"].mean()) if len(labels) else None,
        "rows_of_other_silos": int((~labels["silo"].isin(posterior.silos)).sum()),
    }


def assigned_view(posterior: Posterior, labels: pd.DataFrame) -> RenderableType:
    """Return for a person how many rows each cluster got."""
    told = assigned_record(posterior, labels)
    table = table_view("cluster", "rows", "share", "mean probability")
    for cluster, size in enumerate(told["sizes"]):
        sure = labels.loc[labels["cluster"] == cluster, "probability"].mean()
        share = size / max(len(labels), 1)
        table.add_row(str(cluster), f"{size:,}", f"{share:.1%}", f"{sure:.3f}" if size else "")
    heading = f"{plural(len(labels), 'row')}, {plural(posterior.n_clusters, 'cluster')}"
    return Group(Text(heading, style="bold"), table, *_strangers(labels, told))


def _strangers(labels: pd.DataFrame, told: dict[str, Any]) -> list[Text]:
    strangers = told["rows_of_other_silos"]
    if not strangers:
        return []
    text = f"Rows of no silo of the study, to which its overall weights apply: {strangers:,}."
    if labels["silo"].isna().all():
        text += " If a column names their silos, give --silo and its name."
    return [Text(text)]


def _lines(
    silos: NDArray[np.object_], labels: NDArray[np.int64], membership: NDArray[np.floating]
) -> pd.DataFrame:
    rows = np.arange(len(labels))
    return pd.DataFrame(
        {
            "row": rows + 1,
            "silo": silos,
            "cluster": labels,
            "probability": membership[rows, labels].astype(np.float64).round(4),
        }
    )
