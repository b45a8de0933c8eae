"""Release -> folder; `silomix.airlock.format` says what is in it."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silomix.airlock.format import (
    BASES,
    CHECKS,
    CHECKS_HEADING,
    LARGEST_FILE,
    MANIFEST,
    MOST_LINES,
    NOT_INCLUDED,
    PICTURE,
    PROBABILITIES,
    PROFILE,
    PROFILE_HEADING,
    README,
    SIZES,
    SIZES_HEADING,
    WEIGHTS,
    DiagnosticsEntry,
    FileEntry,
    Manifest,
    part_name,
    probabilities_heading,
    weights_heading,
)
from silomix.airlock.picture import draw_profiles
from silomix.airlock.words import NOT_INCLUDED_TEXT, readme
from silomix.disclosure import UNIFORM, profile_basis, profile_rows
from silomix.errors import FileError
from silomix.spreadsheet import for_spreadsheet
from silomix.study.policy import Policy, policy_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from silomix.release import Release
    from silomix.types import Schema

    Rows = Iterable[Sequence[object]]


def write_release(
    release: Release, folder: str | Path, schema: Schema, *, force: bool = False
) -> list[Path]:
    """Write a release folder, whole or not at all, and return its files.

    Parameters
    ----------
    folder : must not exist, or be empty.
    schema : the study's, for the names of variables and levels.
    force : whether to replace another release folder that is in the way.
    """
    target = Path(folder)
    check_target(target, force=force)
    files = release_files(release, schema)
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir()
        for name, content in files.items():
            _write(scratch / name, content)
        _put(scratch, target)
    except OSError as error:
        raise FileError(
            f"{target} cannot be written: {error.strerror}; choose another folder, with enough "
            "space"
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [target / name for name in files]


def release_files(release: Release, schema: Schema) -> dict[str, bytes]:
    """Return the files of a release folder: their contents by name, the same every time."""
    tables = dict(_tables(release, schema))
    files = {name: content for name, (content, _) in tables.items()}
    picture = draw_profiles(release.mean, release.sizes, schema)
    if picture is not None:
        files[PICTURE] = picture
    files[NOT_INCLUDED] = NOT_INCLUDED_TEXT.encode()
    files[README] = readme(release, schema, [*files, MANIFEST]).encode()
    entries = {
        name: FileEntry(
            sha256=hashlib.sha256(content).hexdigest(),
            bytes=len(content),
            rows=tables[name][1] if name in tables else None,
        )
        for name, content in sorted(files.items())
    }
    files[MANIFEST] = (_manifest(release, entries).model_dump_json(indent=1) + "\n").encode()
    return files


def _tables(release: Release, schema: Schema) -> Iterator[tuple[str, tuple[bytes, int]]]:
    """Yield each table's files: name, content, and rows."""
    yield SIZES, _one_file(SIZES_HEADING, enumerate(release.sizes))
    yield CHECKS, _one_file(CHECKS_HEADING, _check_rows(release))
    yield from _parts(PROFILE, PROFILE_HEADING, _profile_rows(release, schema))
    if release.weights is not None and release.probabilities is not None:
        yield from _parts(WEIGHTS, weights_heading(release.clusters), _weight_rows(release.weights))
        yield from _parts(
            PROBABILITIES,
            probabilities_heading(schema.levels),
            _probability_rows(release.probabilities),
        )


def _check_rows(release: Release) -> Rows:
    for check in release.checks:
        changed = "" if check.changed is None else check.changed
        yield (check.rule, check.where, check.threshold, check.cells, changed, check.result)


def _profile_rows(release: Release, schema: Schema) -> Rows:
    policy = Policy(**release.policy)
    basis = profile_basis(release.sizes, schema.sizes, policy)
    rows = profile_rows(release.sizes, schema.sizes, policy)
    variable_of = np.repeat(np.arange(len(schema.sizes)), schema.sizes)
    for cluster in range(release.clusters):
        for column, (variable, level) in enumerate(schema.levels):
            where = basis[cluster, variable_of[column]]
            mean = release.mean[cluster, column]
            of = int(rows[cluster, variable_of[column]])
            counted = policy.has_rules and where != UNIFORM
            yield (
                cluster,
                variable,
                level,
                BASES[where],
                round(mean * of) if counted else "",
                of if where != UNIFORM else "",
                _exact(mean),
                _exact(release.concentration[cluster, variable_of[column]]),
            )


def _weight_rows(draws: NDArray[np.floating]) -> Rows:
    for draw, weights in enumerate(draws):
        yield (draw, *map(_exact, weights))


def _probability_rows(draws: NDArray[np.floating]) -> Rows:
    for draw, clusters in enumerate(draws):
        for cluster, levels in enumerate(clusters):
            yield (draw, cluster, *map(_exact, levels))


def _exact(number: np.floating) -> float:
    """Return a number that is written as the shortest text that reads back the same."""
    return float(number)


def _one_file(heading: Sequence[str], rows: Rows) -> tuple[bytes, int]:
    (content,) = _split(heading, rows)
    return content


def _parts(
    table: str, heading: Sequence[str], rows: Rows
) -> Iterator[tuple[str, tuple[bytes, int]]]:
    for number, content in enumerate(_split(heading, rows), start=1):
        yield part_name(table, number), content


def _split(heading: Sequence[str], rows: Rows) -> Iterator[tuple[bytes, int]]:
    """Yield files of as many rows as fit: each file's content, and its rows."""
    top = _line(heading)
    lines, length = [top], len(top)
    for row in rows:
        line = _line(row)
        full = length + len(line) > LARGEST_FILE or len(lines) == MOST_LINES
        if len(lines) > 1 and full:
            yield b"".join(lines), len(lines) - 1
            lines, length = [top], len(top)
        lines.append(line)
        length += len(line)
    yield b"".join(lines), len(lines) - 1


def _line(row: Sequence[object]) -> bytes:
    text = io.StringIO()
    cells = [
        for_spreadsheet(cell, first=place == 0) if isinstance(cell, str) else cell
        for place, cell in enumerate(row)
    ]
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _manifest(release: Release, files: Mapping[str, FileEntry]) -> Manifest:
    return Manifest(
        silomix=metadata.version("silomix"),
        study=release.study,
        silo=release.silo,
        place=int(release.place),
        tier=release.tier,
        rows=int(release.rows),
        clusters=release.clusters,
        draws=None if release.weights is None else len(release.weights),
        policy=dict(release.policy),
        policy_digest=policy_digest(Policy(**release.policy)),
        diagnostics=DiagnosticsEntry(**asdict(release.diagnostics)),
        files=dict(files),
    )


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a folder with anything in it, unless a release may be replaced.

    Raises
    ------
    FileError
        When it is taken, or cannot be looked at.
    """
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
        replaceable = taken and (target / MANIFEST).is_file()
    except OSError as error:
        raise FileError(f"{target} cannot be read: {error.strerror}") from None
    if taken and not (force and replaceable):
        advice = "give another folder" + (", or --force to replace it" if replaceable else "")
        raise FileError(f"{target} exists already; {advice}")


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _put(scratch: Path, target: Path) -> None:
    """Rename the finished folder; one that is in the way steps aside first."""
    old = target.with_name(f"{scratch.name}.old")
    if target.exists():
        target.rename(old)
    try:
        scratch.rename(target)
    except OSError:
        with suppress(OSError):
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
