"""File -> Posterior; `silomix.posterior.format` says what is in it. Nothing in it is believed."""

from __future__ import annotations

import io
import json
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from silomix.errors import FileError, SettingsError
from silomix.posterior.diagnosis import PolishTrace, PosteriorDiagnostics
from silomix.posterior.format import (
    ALWAYS,
    FORMAT,
    KIND,
    LARGEST_MANIFEST,
    MANIFEST,
    UNFOLDS,
    Manifest,
    member_name,
    n_bytes,
)
from silomix.posterior.membership import from_parts
from silomix.posterior.provenance import Provenance
from silomix.posterior.record import Assignment, Posterior
from silomix.posterior.shapes import check_ranges, check_shapes
from silomix.release import ReleasedDiagnostics
from silomix.study import Study, digest
from silomix.study.validation import validate
from silomix.types import Correspondence, SiloProfiles, SiloWeights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from silomix.posterior.format import ArrayEntry, PolishEntry

    Arrays = Mapping[str, NDArray[Any]]

LONGEST_HEADER = 10_000
ENCRYPTED = 0x1

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

UNREADABLE = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    EOFError,
    struct.error,
    zlib.error,
)
"""What zipfile raises on archives that are damaged or made by something else."""


def load(path: str | Path) -> Posterior:
    """Read a posterior that `Posterior.save` wrote.

    Raises
    ------
    FileError
        When the file is missing, damaged, of another version, or no saved posterior.

    Examples
    --------
    >>> path = posterior.save("posterior.silomix")
    >>> again = silomix.load(path)
    >>> bool((again.weights == posterior.weights).all())
    True
    """
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive:
            members = _members(archive, source.stat().st_size)
            manifest = _read_manifest(archive, members)
            study = _read_study(manifest)
            check_shapes(manifest, study)
            arrays = _read_arrays(archive, members, manifest)
    except FileError as error:
        raise FileError(f"{source} {error}") from None
    except (*UNREADABLE, ValueError):
        raise FileError(
            f"{source} is no saved posterior, or is damaged or truncated; give a file that "
            "posterior.save or silomix fit wrote"
        ) from None
    except OSError as error:
        raise FileError(f"{source} cannot be read: {error.strerror}; check the path") from None
    return _assemble(study, manifest, arrays)


def _members(archive: zipfile.ZipFile, length: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, once it is sure that none unfolds to more than it should."""
    infos = archive.infolist()
    members = {info.filename: info for info in infos}
    if MANIFEST not in members:
        raise FileError(f"is no saved posterior: it has no {MANIFEST}")
    for info in infos:
        if info.compress_type not in METHODS or info.flag_bits & ENCRYPTED:
            raise FileError(
                f"has the member {info.filename!r} encrypted, or compressed in another way than a "
                "saved posterior is; give the file as it was written"
            )
    packed = sum(info.compress_size for info in infos)
    unpacked = sum(info.file_size for info in infos)
    if len(members) < len(infos) or packed > length or unpacked > max(UNFOLDS * length, ALWAYS):
        raise FileError("claims to hold more than it does; get it from its source again")
    return members


def _read_manifest(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> Manifest:
    info = members[MANIFEST]
    if info.file_size > LARGEST_MANIFEST:
        limit = f"{LARGEST_MANIFEST // 1_000_000} MB"
        raise FileError(f"has a {MANIFEST} larger than {limit}, too large for settings")
    content = archive.read(info)
    try:
        document = json.loads(content)
    except RecursionError:
        raise FileError(f"has a {MANIFEST} nested too deeply for settings") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise FileError(f"is no saved posterior: its {MANIFEST} does not say {KIND!r}")
    version = document.get("format")
    if version != FORMAT:
        raise FileError(
            f"is a saved posterior of format {version!r:.20}, and this silomix reads format "
            f"{FORMAT}; use the version of silomix that it was saved with"
        )
    try:
        # from the text: there, characters that no file can hold are refused
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "its text"
        raise FileError(f"is damaged: {MANIFEST}, {place}: {first['msg']}") from None


def _read_study(manifest: Manifest) -> Study:
    try:
        study = validate(Study, manifest.study, source="its study", complete=True)
    except SettingsError as error:
        raise FileError(f"is damaged, or of another version: {error}") from None
    if digest(study) != manifest.provenance.study:
        raise FileError(
            f"is damaged: its study has the digest {digest(study)[:12]}, and its provenance "
            f"says {manifest.provenance.study[:12]!r}"
        )
    return study


def _read_arrays(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], manifest: Manifest
) -> Arrays:
    expected = {member_name(name) for name in manifest.arrays} | {MANIFEST}
    for name in members.keys() ^ expected:
        state = "has the unknown member" if name in members else "lacks the member"
        raise FileError(f"is damaged: it {state} {name!r:.60}")
    for name, entry in manifest.arrays.items():
        held = members[member_name(name)].file_size
        if not n_bytes(entry) < held <= n_bytes(entry) + LONGEST_HEADER:
            raise FileError(
                f"is damaged: {member_name(name)} has {held:,} bytes for an array of "
                f"{n_bytes(entry):,}"
            )
    arrays = {
        name: _read_array(archive.read(member_name(name)), name, entry)
        for name, entry in manifest.arrays.items()
    }
    _put_back(arrays)
    check_ranges(arrays, manifest)
    return arrays


def _put_back(arrays: dict[str, NDArray[Any]]) -> None:
    """Put the shared values where silos have no others, in place."""
    for own, shared in {
        "weights_by_silo": "weights",
        "silo_probabilities": "probabilities",
    }.items():
        if own in arrays:
            last = arrays[shared][-len(arrays[own]) :, None]
            np.copyto(arrays[own], last, where=np.isnan(arrays[own]))


def _read_array(content: bytes, name: str, entry: ArrayEntry) -> NDArray[Any]:
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        shape, in_columns, dtype = np.lib.format.read_array_header_1_0(file, LONGEST_HEADER)
    except (ValueError, MemoryError, RecursionError, tokenize.TokenError):  # NumPy parses Python
        raise FileError(f"is damaged: {member_name(name)} is no array") from None
    found = (version, list(shape), in_columns, dtype.str)
    if found != ((1, 0), entry.shape, False, entry.dtype):
        raise FileError(
            f"is damaged: {member_name(name)} is of type {dtype.str} and shape {shape}, and "
            f"{MANIFEST} says {entry.dtype} and {tuple(entry.shape)}"
        )
    if len(content) - file.tell() != n_bytes(entry):
        raise FileError(
            f"is damaged: {member_name(name)} has {len(content) - file.tell():,} bytes for an "
            f"array of {n_bytes(entry):,}"
        )
    return np.frombuffer(content, dtype, offset=file.tell()).reshape(shape).copy()


def _assemble(study: Study, manifest: Manifest, arrays: Arrays) -> Posterior:
    return Posterior(
        study=study,
        weights=arrays["weights"],
        weights_by_silo=arrays["weights_by_silo"],
        probabilities=arrays["probabilities"],
        correspondence=_correspondence(manifest, arrays),
        silo_weights=_silo_weights(manifest, arrays),
        diagnostics=_diagnostics(manifest, arrays),
        provenance=Provenance(
            **{**dict(manifest.provenance), "silos": tuple(manifest.provenance.silos)}
        ),
        silo_profiles=SiloProfiles(arrays["kappa"], arrays["silo_probabilities"])
        if "kappa" in arrays
        else None,
        assignment=_assignment(arrays) if "membership" in arrays else None,
        backend=manifest.backend,
    )


def _assignment(arrays: Arrays) -> Assignment:
    membership = from_parts(arrays["membership"])
    return Assignment(membership.argmax(axis=1), membership, arrays["row_silos"])


def _correspondence(manifest: Manifest, arrays: Arrays) -> Correspondence | None:
    entry = manifest.correspondence
    if entry is None:
        return None
    ends = np.cumsum(entry.counts)[:-1]
    return Correspondence(
        silos=tuple(entry.silos),
        groups=tuple(np.split(arrays["correspondence_groups"], ends)),
        sizes=tuple(np.split(arrays["correspondence_sizes"], ends)),
        method=entry.method,
        confidence=arrays.get("correspondence_confidence"),
    )


def _silo_weights(manifest: Manifest, arrays: Arrays) -> SiloWeights | None:
    if manifest.silo_weights is None:
        return None
    silos = tuple(manifest.silo_weights.silos)
    return SiloWeights(silos, arrays["silo_weights"], arrays["silo_profiles"])


def _diagnostics(manifest: Manifest, arrays: Arrays) -> PosteriorDiagnostics:
    entry = manifest.diagnostics
    return PosteriorDiagnostics(
        silos={name: ReleasedDiagnostics(**dict(silo)) for name, silo in entry.silos.items()},
        elbo=arrays.get("elbo"),
        polish=_polish(entry.polish, arrays) if entry.polish else None,
        chains=ReleasedDiagnostics(**dict(entry.chains)) if entry.chains else None,
        confidence=entry.confidence,
        smallest=entry.smallest,
        notes=tuple(entry.notes),
    )


def _polish(entry: PolishEntry, arrays: Arrays) -> PolishTrace:
    values = {name: arrays[f"polish_{place}"] for place, name in enumerate(entry.names)}
    return PolishTrace(values, entry.rounds, entry.still_moving)
