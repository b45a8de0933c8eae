"""Posterior → files: tables as CSV, a summary, the study, and the posterior itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.atomic import private_folder
from silomix.report import write_report
from silomix.results.common import INTERVAL, SUMMARY, as_text, write_table, write_text, writing
from silomix.results.labels import labels_table
from silomix.results.words import posterior_view
from silomix.study import write_study

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from silomix.posterior import Posterior

PAGE, STUDY, SAVED = "report.html", "study.toml", "posterior.silomix"
LABELS = "labels.csv"
TABLES = (
    "cluster_sizes.csv",
    "profiles.csv",
    LABELS,
    "correspondence.csv",
    "silo_weights.csv",
    "drift.csv",
)


def posterior_files(folder: Path) -> list[Path]:
    """Return the files that `write_posterior` may write."""
    return [folder / name for name in (*TABLES, SUMMARY, PAGE, STUDY, SAVED)]


def posterior_tables(
    posterior: Posterior, ids: NDArray[np.object_] | None = None
) -> dict[str, pd.DataFrame]:
    """Return the tables of a posterior by the names of their files, those that it has.

    Parameters
    ----------
    ids : (row,), what each row is called, if anything.
    """
    tables = {
        "cluster_sizes.csv": sizes_table(posterior),
        "profiles.csv": posterior.profiles(INTERVAL, frame_like="pandas"),
    }
    if posterior.assignment is not None:
        tables[LABELS] = labels_table(posterior, posterior.assignment, ids)
    if posterior.correspondence is not None:
        tables["correspondence.csv"] = posterior.correspondence_frame(frame_like="pandas")
    if posterior.silo_weights is not None:
        tables["silo_weights.csv"] = posterior.silo_weights_frame(frame_like="pandas")
    if posterior.silo_profiles is not None:
        tables["drift.csv"] = posterior.drift(INTERVAL, frame_like="pandas")
    return tables


def sizes_table(posterior: Posterior) -> pd.DataFrame:
    """Return one line per cluster: its share of all rows, and how many rows are labelled so."""
    sizes: pd.DataFrame = posterior.cluster_sizes(INTERVAL, frame_like="pandas")
    if posterior.assignment is not None:
        rows = np.bincount(posterior.labels, minlength=posterior.n_clusters)
        sizes.insert(1, "rows", rows)
    return sizes


def write_posterior(
    folder: Path, posterior: Posterior, ids: NDArray[np.object_] | None = None
) -> list[Path]:
    """Write a posterior's results into a folder, made where there is none; return the files.

    A new folder is its owner's alone, and so are labels and the saved posterior, which say of each
    row where it belongs. A table that this posterior does not have is removed: it would be
    another's.

    Parameters
    ----------
    ids : (row,), what each row is called, if anything: only `labels.csv` has it.
    """
    with writing(folder):
        private_folder(folder)
        tables = posterior_tables(posterior, ids)
        for name in TABLES:
            if name in tables:
                write_table(tables[name], folder / name, private=name == LABELS)
            else:
                (folder / name).unlink(missing_ok=True)
        write_text(as_text(posterior_view(posterior)), folder / SUMMARY)
        write_report(posterior, folder / PAGE)
        write_study(posterior.study, folder / STUDY)
        posterior.save(folder / SAVED)
    return [path for path in posterior_files(folder) if path.name not in {*TABLES} - {*tables}]
