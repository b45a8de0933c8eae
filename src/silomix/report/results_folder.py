"""Results as files: of the whole method and of one silo, and the clusters of other rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from silomix.errors import SettingsError
from silomix.model.files import private_folder, replace_file, unfinished, whole_file, writing
from silomix.model.sentences import listing
from silomix.model.spreadsheet import from_spreadsheet, write_table
from silomix.posterior.saved_file import SAVED
from silomix.report import LABELS, PROFILES, SECTIONS, SIZES, write_report
from silomix.report.display import as_text
from silomix.report.summary import posterior_view, silo_profiles, silo_sizes, silo_view
from silomix.study import Study, read_study, write_study

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from silomix.model.draws import LocalPosterior
    from silomix.posterior import Posterior

SUMMARY, PAGE, STUDY = "summary.txt", "report.html", "study.toml"
DRAWS = "draws.npz"
# Arrays in the file of the draws, beside `levels`, (parameter, 2): variable and level, or what the
# parameter of a number is called. The "probabilities" of numbers are in the table's units.
DRAWN = ("labels", "weights", "probabilities", "log_likelihood", "chain")
FRAMES = {name: frame for section in SECTIONS for name, frame in section.files}
# Tables beside the page, which are made from other columns of the rows.
OUTSIDE, ODDS = "outside.csv", "odds.csv"
# Files in the way that a message names; the others are only counted.
MOST_NAMED = 3


def posterior_files(folder: Path) -> list[Path]:
    """Return the files that `write_posterior` may write or remove."""
    return [folder / name for name in (*FRAMES, OUTSIDE, ODDS, SUMMARY, PAGE, STUDY, SAVED)]


def write_posterior(folder: Path, posterior: Posterior) -> list[Path]:
    """Write a posterior's results into a folder, made where there is none; return the files.

    A new folder is its owner's alone, and so are labels and the saved posterior, which say of each
    row where it belongs. A table that this posterior does not have is removed: it would be
    another's. Of the rows' ids only `labels.csv` knows.
    """
    tables = _tables(posterior)
    with writing(folder):
        _write_tables(folder, tables, posterior_view(posterior))
        for name in {*FRAMES, OUTSIDE, ODDS} - {*tables}:
            (folder / name).unlink(missing_ok=True)
        write_report(posterior, folder / PAGE)
        write_study(posterior.study, folder / STUDY)
        posterior.save(folder / SAVED)
    return [path for path in posterior_files(folder) if path.exists()]


def write_names(folder: Path, posterior: Posterior) -> None:
    """Put the names of clusters into all files; labels and other tables keep their cells."""
    with writing(folder):
        _write_tables(folder, _tables(posterior, LABELS), posterior_view(posterior))
        for name in filter(lambda name: (folder / name).exists(), (LABELS, OUTSIDE, ODDS)):
            cells = pd.read_csv(folder / name, dtype=str, keep_default_na=False)
            table = cells.map(from_spreadsheet).drop(columns="name", errors="ignore")
            names = table["cluster"].astype(int).map(posterior.names).fillna("")
            table.insert([*table].index("cluster") + 1, "name", names)
            write_table(table, folder / name, private=name == LABELS)
        posterior.save(folder / SAVED)


def _write_tables(folder: Path, tables: dict[str, pd.DataFrame], view: RenderableType) -> None:
    """Write tables by the names of their files, and what the summary shows."""
    private_folder(folder)
    for name, table in tables.items():
        write_table(table, folder / name, private=name == LABELS)
    write_text(as_text(view), folder / SUMMARY)


def _tables(posterior: Posterior, but: str = "") -> dict[str, pd.DataFrame]:
    """Return the tables that a posterior has, but one, by the names of their files."""
    return {
        name: make(posterior, frame_like="pandas")
        for name, (needed, make) in FRAMES.items()
        if name != but and getattr(posterior, needed) is not None
    }


def silo_files(folder: Path, *, keep_draws: bool) -> list[Path]:
    """Return the files that `write_silo` writes."""
    names = (SIZES, PROFILES, LABELS, SUMMARY, *([DRAWS] if keep_draws else []))
    return [folder / name for name in names]


def write_silo(
    folder: Path, name: str, posterior: LocalPosterior, *, keep_draws: bool = False
) -> list[Path]:
    """Write one silo's results into a folder, and return the files.

    Parameters
    ----------
    folder : made where there is none, its owner's alone; so are labels and draws anywhere.
    name : what the summary calls the silo.
    keep_draws : whether to write `draws.npz` too, of about draws × rows bytes: arrays of numbers
        and text, which NumPy reads without pickle.
    """
    draws, labels = posterior.draws, posterior.partition.labels
    rows = pd.DataFrame({"row": np.arange(1, len(labels) + 1), "cluster": labels})
    tables = {SIZES: silo_sizes(posterior), PROFILES: silo_profiles(posterior), LABELS: rows}
    with writing(folder):
        _write_tables(folder, tables, silo_view(name, posterior))
        if keep_draws:
            arrays = {array: getattr(draws, array) for array in DRAWN}
            arrays["probabilities"] = draws.family.describe(draws.probabilities)
            with whole_file(folder / DRAWS, private=True) as file:
                np.savez(file, levels=np.array(draws.family.names(), dtype=np.str_), **arrays)
    return silo_files(folder, keep_draws=keep_draws)


def has_results(folder: Path, study: Study) -> bool:
    """Whether a folder has the finished results of a study."""
    files = posterior_files(folder)
    is_whole = (folder / SAVED).exists() and (folder / STUDY).exists() and not unfinished(files)
    return is_whole and read_study(folder / STUDY) == study


def check_free(paths: Sequence[Path], *, force: bool, instead: str = "another --out") -> None:
    """Refuse to replace files that exist, unless forced. Call it before the work.

    Files that the same command left unfinished are no obstacle.

    Parameters
    ----------
    instead : of replacing them, what to give.
    """
    existing = [path for path in paths if path.exists()]
    left = unfinished(paths) if existing else []
    taken = [path for path in existing if path not in left]
    if taken and not force:
        named = listing([str(path) for path in taken], MOST_NAMED)
        raise SettingsError(f"already there: {named}; give --force to replace, or {instead}")


def write_text(text: str, path: Path) -> None:
    """Write text as UTF-8."""
    with writing(path):
        replace_file(path, text.encode())
