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
    type_of,
)
from silomix.posterior.membership import in_parts
from silomix.posterior.ordering import in_float32

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
    arrays = {name: _portable(name, array) for name, array in _arrays(posterior).items()}
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
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_info(MANIFEST), manifest.model_dump_json(indent=1))
        for name, array in arrays.items():
            with archive.open(_info(member_name(name)), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)


def _info(member: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(member, EARLIEST)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _portable(name: str, array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, dtype=type_of(name) or array.dtype.newbyteorder("<"), order="C")


def _arrays(posterior: Posterior) -> dict[str, NDArray[Any]]:
    weights, probabilities = in_float32(posterior.weights), in_float32(posterior.probabilities)
    arrays: dict[str, NDArray[Any] | None] = {
        "weights": weights,
        "weights_by_silo": leave_out(in_float32(posterior.weights_by_silo), weights),
        "probabilities": probabilities,
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
        last = probabilities[-len(own.probabilities) :]
        arrays["kappa"] = own.kappa
        arrays["silo_probabilities"] = leave_out(in_float32(own.probabilities), last)
    if rows:
        arrays |= {"membership": in_parts(rows.membership), "row_silos": rows.silos}
    traces = posterior.diagnostics.polish.values if posterior.diagnostics.polish else {}
    arrays |= {f"polish_{place}": trace for place, trace in enumerate(traces.values())}
    return {name: array for name, array in arrays.items() if array is not None}


def leave_out(own: NDArray[np.float32], shared: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the silos' own values, (draw, silo, …), nan where they are the shared: (draw, …)."""
    return np.where(own == shared[:, None], np.float32(np.nan), own)


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
