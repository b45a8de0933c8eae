"""Posterior -> file; `silomix.posterior.format` says what is in it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.atomic import whole_file
from silomix.errors import FileError
from silomix.posterior.format import (
    MANIFEST,
    ArrayEntry,
    CorrespondenceEntry,
    DiagnosticsEntry,
    Manifest,
    PolishEntry,
    ProvenanceEntry,
    SiloEntry,
    SiloWeightsEntry,
    member_name,
)

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

    from silomix.posterior.diagnosis import PolishTrace, PosteriorDiagnostics
    from silomix.posterior.record import Posterior
    from silomix.types import Correspondence

EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The date of every member: the same posterior makes the same file."""


def save(posterior: Posterior, path: str | Path) -> Path:
    """Write a posterior to a file of its owner's alone, whole or not at all; return its path."""
    target = Path(path)
    arrays = {name: _portable(array) for name, array in _arrays(posterior).items()}
    try:
        with whole_file(target, private=True) as file:
            _write(file, _manifest(posterior, arrays), arrays)
    except OSError as error:
        raise FileError(
            f"{target} cannot be written: {error.strerror}; choose a folder that exists, with "
            "enough space"
        ) from None
    return target


def _write(file: BinaryIO, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(MANIFEST, EARLIEST), manifest.model_dump_json(indent=1))
        for name, array in arrays.items():
            info = zipfile.ZipInfo(member_name(name), EARLIEST)
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)


def _portable(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _arrays(posterior: Posterior) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any] | None] = {
        "weights": posterior.weights,
        "weights_by_silo": posterior.weights_by_silo,
        "probabilities": posterior.probabilities,
        "elbo": posterior.diagnostics.elbo,
    }
    match, say, rows = posterior.correspondence, posterior.silo_weights, posterior.assignment
    if match:
        arrays["correspondence_groups"] = np.concatenate(match.groups)
        arrays["correspondence_sizes"] = np.concatenate(match.sizes)
        arrays["correspondence_confidence"] = match.confidence
    if say:
        arrays |= {"silo_weights": say.weights, "silo_profiles": say.profiles}
    if own := posterior.silo_profiles:
        arrays |= {"kappa": own.kappa, "silo_probabilities": own.probabilities}
    if rows:
        arrays |= {"labels": rows.labels, "membership": rows.membership, "row_silos": rows.silos}
    traces = posterior.diagnostics.polish.values if posterior.diagnostics.polish else {}
    arrays |= {f"polish_{place}": trace for place, trace in enumerate(traces.values())}
    return {name: array for name, array in arrays.items() if array is not None}


def _manifest(posterior: Posterior, arrays: Mapping[str, NDArray[Any]]) -> Manifest:
    match, say, made = posterior.correspondence, posterior.silo_weights, posterior.provenance
    return Manifest(
        study=posterior.study.model_dump(mode="json"),
        backend=posterior.backend,
        correspondence=_correspondence(match) if match else None,
        silo_weights=SiloWeightsEntry(silos=list(say.silos)) if say else None,
        diagnostics=_diagnostics(posterior.diagnostics),
        provenance=ProvenanceEntry(**_plain(vars(made))),
        arrays={
            name: ArrayEntry(dtype=array.dtype.str, shape=list(array.shape))
            for name, array in arrays.items()
        },
    )


def _correspondence(match: Correspondence) -> CorrespondenceEntry:
    counts = [len(group) for group in match.groups]
    return CorrespondenceEntry(silos=list(match.silos), counts=counts, method=match.method)


def _diagnostics(diagnostics: PosteriorDiagnostics) -> DiagnosticsEntry:
    return DiagnosticsEntry(
        silos={name: SiloEntry(**_plain(asdict(silo))) for name, silo in diagnostics.silos.items()},
        polish=_polish(diagnostics.polish) if diagnostics.polish else None,
        chains=SiloEntry(**_plain(asdict(diagnostics.chains))) if diagnostics.chains else None,
        confidence=diagnostics.confidence,
        smallest=diagnostics.smallest,
        notes=list(diagnostics.notes),
    )


def _polish(trace: PolishTrace) -> PolishEntry:
    return PolishEntry(
        names=list(trace.values),
        rounds=int(trace.rounds),
        still_moving=bool(trace.still_moving),
    )


def _plain(value: Any) -> Any:
    """Return mappings as dicts, tuples as lists and NumPy's numbers as Python's, for JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
