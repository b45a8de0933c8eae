"""A cohort straight to Parquet, a chunk of rows at a time: its size is the disk's, not memory's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from silomix.atomic import replace_file, whole_file
from silomix.cohort.calibrate import planted
from silomix.cohort.simulate import CONDITIONS, PUBLISHED_ROWS, as_table, draw_people
from silomix.errors import FileError, MissingDependency, SettingsError
from silomix.simulate import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable


def write_cohort(
    path: str | Path,
    *,
    rows: int = PUBLISHED_ROWS,
    seed: int = 0,
    chunk: int = 100_000,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Path, Path, Path]:
    """Write the cohort of `simulate_cohort` to Parquet files, and return their paths.

    The rows are the same whatever the chunk. Files that are there are replaced, each once it
    is complete.

    Parameters
    ----------
    path : the table, such as cohort.parquet. Beside it go cohort.truth.parquet, with the
        column cluster (from 0 on) of the same rows, and cohort.truth.json, with what they were
        drawn from: weights by cluster, chances and prevalence by cluster and condition.
    rows, seed : as for `simulate_cohort`.
    chunk : rows in memory at a time, and in a row group of the files.
    progress : a function of the rows that are done and of all rows, called after each chunk.

    Examples
    --------
    >>> from silomix.cohort import write_cohort
    >>> [file.name for file in write_cohort("cohort.parquet", rows=500, seed=1)]
    ['cohort.parquet', 'cohort.truth.parquet', 'cohort.truth.json']
    """
    target = Path(path)
    if target.suffix != ".parquet":
        raise SettingsError(f"{target} does not end in .parquet; give a name that does")
    check_whole("rows", rows, least=1)
    check_whole("seed", seed, least=0)
    check_whole("chunk", chunk, least=1)
    labels, truth = truth_files(target)
    try:
        _write_rows(target, labels, _chunks(rows, chunk), seed, progress)
        replace_file(truth, _truth_text(rows, seed).encode())
    except OSError as error:
        raise FileError(
            f"{target} cannot be written: {error.strerror or error}; choose a folder that "
            "exists, with enough space"
        ) from None
    return target, labels, truth


def truth_files(path: Path) -> tuple[Path, Path]:
    """Return where the labels and the parameters of a cohort go."""
    return path.with_suffix(".truth.parquet"), path.with_suffix(".truth.json")


def _chunks(rows: int, chunk: int) -> list[tuple[int, int]]:
    return [(start, min(start + chunk, rows)) for start in range(0, rows, chunk)]


def _write_rows(
    target: Path,
    labels: Path,
    chunks: list[tuple[int, int]],
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingDependency(
            "a Parquet file needs pyarrow: pip install 'silomix[data]', or draw the cohort in "
            "memory with simulate_cohort"
        ) from None
    kinds = [
        pa.Schema.from_pandas(frame, preserve_index=False) for frame in _frames(0, 1, seed=seed)
    ]
    with (
        whole_file(target) as table_file,
        whole_file(labels) as label_file,
        parquet.ParquetWriter(table_file, kinds[0]) as table_writer,
        parquet.ParquetWriter(label_file, kinds[1]) as label_writer,
    ):
        for start, stop in chunks:
            frames = _frames(start, stop, seed=seed)
            for writer, kind, frame in zip(
                (table_writer, label_writer), kinds, frames, strict=True
            ):
                group = pa.Table.from_pandas(frame, schema=kind, preserve_index=False)
                writer.write_table(group, row_group_size=len(frame))
            if progress is not None:
                progress(stop, chunks[-1][1])


def _frames(start: int, stop: int, *, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    people = draw_people(start, stop, seed)
    return as_table(people), pd.DataFrame({"cluster": people.labels})


def _truth_text(rows: int, seed: int) -> str:
    mixture = planted()
    content = {
        "rows": rows,
        "seed": seed,
        "conditions": CONDITIONS,
        "weights": mixture.weights.tolist(),
        "at_least_two": mixture.at_least_two.tolist(),
        "chances": mixture.chances.tolist(),
        "prevalence": mixture.prevalence.tolist(),
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
