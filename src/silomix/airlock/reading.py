"""Folder -> Release; `silomix.airlock.format` says what is in it. Nothing in it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silomix.airlock.checks import (
    check_draws,
    check_levels,
    check_profile,
    check_sizes,
    number,
    whole,
)
from silomix.airlock.folder import check_files, read_manifest, read_table
from silomix.airlock.format import (
    CHECKS,
    CHECKS_HEADING,
    LARGEST_FOLDER,
    MANIFEST,
    PART,
    PROBABILITIES,
    PROFILE,
    PROFILE_HEADING,
    SIZES,
    SIZES_HEADING,
    WEIGHTS,
    part_name,
    probabilities_heading,
    weights_heading,
)
from silomix.disclosure import Check
from silomix.errors import FileError, SettingsError, StudyMismatch
from silomix.release import Release, ReleasedDiagnostics, effective_counts, release_medians
from silomix.study import digest
from silomix.study.names import has_controls
from silomix.study.policy import Policy, echo, policy_digest
from silomix.study.validation import validate
from silomix.types import Schema, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from silomix.airlock.format import Manifest
    from silomix.study import Study


@dataclass(frozen=True, eq=False)
class Contents:
    """What a release folder says by itself, without the study it was made for.

    Attributes
    ----------
    manifest : its `manifest.json`.
    policy : the silo's, as echoed.
    schema : variables and levels, as its profile names them.
    sizes : (cluster,)
    mean : (cluster, level); concentration : (cluster, variable)
    checks : what the policy's rules did.
    weights, probabilities : (draw, cluster) and (draw, cluster, level); None in tier "summary".
    """

    manifest: Manifest
    policy: Policy
    schema: Schema
    sizes: NDArray[np.int64]
    mean: NDArray[np.float64]
    concentration: NDArray[np.float64]
    checks: tuple[Check, ...]
    weights: NDArray[np.float32] | None
    probabilities: NDArray[np.float32] | None

    def release(self, beta: float = 0.0) -> Release:
        """Return the release.

        `beta` is the silo's prior concentration of a level, which its medians need.
        """
        entry, offsets = self.manifest, self.schema.offsets
        return Release(
            silo=entry.silo,
            place=entry.place,
            rows=entry.rows,
            sizes=self.sizes,
            medians=release_medians(
                self.mean, self.concentration, offsets, beta, self.probabilities
            ),
            mean=self.mean,
            concentration=self.concentration,
            effective_counts=effective_counts(self.mean, self.concentration, offsets),
            tier=entry.tier,
            weights=self.weights,
            probabilities=self.probabilities,
            diagnostics=ReleasedDiagnostics(**dict(entry.diagnostics)),
            study=entry.study,
            policy=echo(self.policy),
            checks=self.checks,
        )


def read_release(
    folder: str | Path, study: Study, silo: str | None = None, *, largest: int = LARGEST_FOLDER
) -> Release:
    """Read a release that `write_release` wrote, for this study.

    Parameters
    ----------
    silo : the silo it must be of; any of the roster when left out.
    largest : bytes of all its files together, the most that are read.

    Raises
    ------
    FileError
        When a file is missing, damaged, too large, or says what cannot be.
    StudyMismatch
        When the release is of another study or another silo.
    """
    source = Path(folder)
    manifest = read_manifest(source)
    if manifest.study != digest(study):
        raise StudyMismatch(
            f"{source / MANIFEST} is a release for the study {manifest.study[:12]!r} and this is "
            f"{digest(study)[:12]!r}; release again with this study file"
        )
    if manifest.silo not in study.silos or silo not in {None, manifest.silo}:
        wanted = repr(silo) if silo is not None else f"one of {', '.join(study.silos)}"
        raise StudyMismatch(
            f"{source / MANIFEST} is a release of the silo {manifest.silo!r}, and it must be of "
            f"{wanted}; put each silo's release in its own place"
        )
    if study.silos.index(manifest.silo) != manifest.place or manifest.tier != study.tier:
        raise StudyMismatch(
            f"{source / MANIFEST} says place {manifest.place} and tier {manifest.tier!r}; the "
            f"study has {manifest.silo!r} in place {study.silos.index(manifest.silo)} and tier "
            f"{study.tier!r}"
        )
    levels = study.table_schema.levels
    # what is listed first: nothing is read that the study has no use for
    if _listed(PROFILE, manifest) > manifest.clusters * len(levels):
        raise _other_levels(source)
    contents = _read_contents(source, manifest, largest)
    if contents.schema.levels != levels:
        raise _other_levels(source)
    return contents.release(study.prior.share(len(study.silos))[1])


def read_contents(folder: str | Path) -> Contents:
    """Read a release folder by itself.

    Raises
    ------
    FileError
        When a file is missing, damaged, too large, or says what cannot be.
    """
    source = Path(folder)
    return _read_contents(source, read_manifest(source), LARGEST_FOLDER)


def _other_levels(folder: Path) -> StudyMismatch:
    return StudyMismatch(
        f"{folder / part_name(PROFILE, 1)} has other variables or levels than the study; "
        "release again with this study file"
    )


def _read_contents(folder: Path, manifest: Manifest, largest: int) -> Contents:
    policy = _read_policy(folder / MANIFEST, manifest)
    check_files(folder, manifest, largest)
    sizes = _read_sizes(folder, manifest)
    check_sizes(folder / SIZES, sizes, manifest.rows, policy)
    parts = _parts(folder, PROFILE, manifest, PROFILE_HEADING)
    profile = [row for _, rows in parts for row in rows]
    source = folder / part_name(PROFILE, 1)
    schema = _read_schema(source, profile, manifest.clusters)
    mean, concentration = check_profile(source, profile, sizes, schema, policy)
    weights, probabilities = (
        _read_draws(folder, manifest, schema) if manifest.tier == "draws" else (None, None)
    )
    return Contents(
        manifest=manifest,
        policy=policy,
        schema=schema,
        sizes=sizes,
        mean=mean,
        concentration=concentration,
        checks=_read_checks(folder, manifest),
        weights=weights,
        probabilities=probabilities,
    )


def _read_policy(path: Path, manifest: Manifest) -> Policy:
    try:
        policy = validate(Policy, manifest.policy, source="its policy", complete=True)
    except SettingsError as error:
        raise FileError(f"{path} is damaged, or of another version: {error}") from None
    if manifest.policy_digest != policy_digest(policy):
        raise FileError(
            f"{path} is damaged: its policy has the digest {policy_digest(policy)}, and it says "
            f"{manifest.policy_digest!r:.40}"
        )
    if manifest.tier not in policy.tiers:
        raise FileError(f"{path} has a release of tier {manifest.tier!r} that its policy forbids")
    if (manifest.draws is None) != (manifest.tier == "summary"):
        raise FileError(f"{path} is damaged: tier {manifest.tier!r}, draws {manifest.draws!r}")
    return policy


def _listed(table: str, manifest: Manifest) -> int:
    """Return how many rows the files of a table have, as the manifest says."""
    return sum(manifest.files[name].rows or 0 for name in _files_of(table, manifest))


def _files_of(table: str, manifest: Manifest) -> list[str]:
    parts = {name: PART.fullmatch(name) for name in manifest.files}
    return [name for name, part in parts.items() if part and part[1] == table]


def _parts(
    folder: Path, table: str, manifest: Manifest, heading: list[str]
) -> Iterator[tuple[Path, list[list[str]]]]:
    """Yield the files of a table, one after the other: path, and rows without the heading."""
    for place in range(len(_files_of(table, manifest))):
        name = part_name(table, place + 1)
        if name not in manifest.files:
            raise FileError(f"{folder / name} is missing; get the folder again")
        yield folder / name, read_table(folder, name, manifest, heading)


def _read_sizes(folder: Path, manifest: Manifest) -> NDArray[np.int64]:
    path = folder / SIZES
    rows = read_table(folder, SIZES, manifest, SIZES_HEADING)
    if [row[0] for row in rows] != [str(c) for c in range(manifest.clusters)]:
        raise FileError(
            f"{path} must have a row for each of {manifest.clusters} clusters, in order"
        )
    return np.array([whole(path, row[1]) for row in rows], dtype=np.int64)


def _read_schema(path: Path, rows: list[list[str]], clusters: int) -> Schema:
    """Return the schema that a profile names, the same for every cluster."""
    if not rows or len(rows) % clusters:
        raise FileError(f"{path} has {len(rows)} rows, which {clusters} clusters cannot share")
    names = [(row[1], row[2]) for row in rows]
    levels = names[: len(rows) // clusters]
    check_levels(path, levels)
    if any(has_controls(text) for level in levels for text in level):
        raise FileError(f"{path} is damaged: a name has control characters, which no study allows")
    for place, row in enumerate(rows):
        cluster, column = divmod(place, len(levels))
        if row[0] != str(cluster) or names[place] != levels[column]:
            raise FileError(
                f"{path} is damaged: row {place + 1} is not of the cluster or level due"
            )
    return Schema(
        tuple(
            Variable(name, tuple(level for _, level in run))
            for name, run in groupby(levels, key=lambda level: level[0])
        )
    )


def _read_checks(folder: Path, manifest: Manifest) -> tuple[Check, ...]:
    path = folder / CHECKS
    return tuple(
        Check(
            rule=_line(path, row[0]),
            where=_line(path, row[1]),
            threshold=whole(path, row[2]),
            cells=whole(path, row[3]),
            changed=whole(path, row[4]) if row[4] else None,
            result=_line(path, row[5]),
        )
        for row in read_table(folder, CHECKS, manifest, CHECKS_HEADING)
    )


def _line(path: Path, text: str) -> str:
    if not text.isprintable() or len(text) > 100:
        raise FileError(f"{path} is damaged: {text!r:.60} is no short line of text")
    return text


def _read_draws(
    folder: Path, manifest: Manifest, schema: Schema
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    clusters, levels, draws = manifest.clusters, schema.levels, manifest.draws or 0
    path, other = folder / part_name(WEIGHTS, 1), folder / part_name(PROBABILITIES, 1)
    listed = _listed(WEIGHTS, manifest), _listed(PROBABILITIES, manifest)
    if listed != (draws, draws * clusters):
        raise FileError(f"{path} and {other.name} must have {draws} draws, as {MANIFEST} says")
    parts = _parts(folder, WEIGHTS, manifest, weights_heading(clusters))
    shares = _numbers(parts, ((str(draw),) for draw in range(draws)))
    parts = _parts(folder, PROBABILITIES, manifest, probabilities_heading(levels))
    due = ((str(draw), str(cluster)) for draw in range(draws) for cluster in range(clusters))
    profiles = _numbers(parts, due).reshape(draws, clusters, len(levels))
    check_draws(path, shares, np.array([0, clusters]))
    check_draws(other, profiles, schema.offsets)
    return shares, profiles


def _numbers(
    parts: Iterator[tuple[Path, list[list[str]]]], due: Iterator[tuple[str, ...]]
) -> NDArray[np.float32]:
    """Return the numbers of a table, (row, column), each row after the first cells due.

    A file becomes numbers before the next is read: as text they would be many times as large.
    """
    found = []
    for path, rows in parts:
        numbers = []
        for row, first in zip(rows, due, strict=False):
            if tuple(row[: len(first)]) != first:
                raise FileError(f"{path} must have a row for each draw and cluster, in order")
            numbers.append([number(path, cell) for cell in row[len(first) :]])
        if numbers:
            found.append(np.array(numbers, np.float32))
    return np.concatenate(found)
