"""Whether the arrays of a saved posterior fit its settings and each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from silomix.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from silomix.posterior.format import Manifest
    from silomix.study import Study

    Shape = tuple[int, ...]

WHOLE = {"correspondence_groups", "correspondence_sizes", "labels", "row_silos"}
"""Arrays of whole numbers; the others are floats, but for traces, which may be anything."""

SHARES = {
    "weights",
    "weights_by_silo",
    "probabilities",
    "membership",
    "silo_probabilities",
    "silo_weights",
    "silo_profiles",
    "correspondence_confidence",
}
"""Arrays of probabilities."""
NEAR = 1e-3
"""How far one that was added up may be above 1."""

TRACE = re.compile(r"elbo|polish_\d+")


def check_shapes(manifest: Manifest, study: Study) -> None:
    """Refuse arrays that do not fit, before any is read."""
    found = {name: tuple(entry.shape) for name, entry in manifest.arrays.items()}
    if len(found.get("weights", ())) != 2 or 0 in found["weights"]:
        raise FileError("is damaged: it has no weights (draw, cluster)")
    expected = _expected(manifest, study, found)
    for name in expected.keys() | found.keys():
        if name not in expected or found.get(name) != expected[name]:
            raise FileError(
                f"is damaged: its array {name!r:.40} has the shape {found.get(name)}, and "
                f"{expected.get(name)} would fit the rest"
            )
        if manifest.arrays[name].dtype[1] not in _kinds(name):
            raise FileError(
                f"is damaged: its array {name!r} cannot be of type {manifest.arrays[name].dtype}"
            )


def _kinds(name: str) -> str:
    """Return NumPy's letters for the types an array may have."""
    if TRACE.fullmatch(name):
        return "fiub"
    return "iu" if name in WHOLE else "f"


def _expected(manifest: Manifest, study: Study, found: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shape each array must have, given the weights' and the settings."""
    draws, clusters = found["weights"]
    silos, levels = len(manifest.provenance.silos), len(study.table_schema.levels)
    expected: dict[str, Shape] = {
        "weights": (draws, clusters),
        "weights_by_silo": (draws, silos, clusters),
        "probabilities": (draws, clusters, levels),
    }
    if manifest.correspondence:
        local = sum(manifest.correspondence.counts)
        expected |= {"correspondence_groups": (local,), "correspondence_sizes": (local,)}
        if "correspondence_confidence" in found:
            expected["correspondence_confidence"] = (local, local)
    if manifest.silo_weights:
        weighed = len(manifest.silo_weights.silos)
        expected |= {"silo_weights": (weighed,), "silo_profiles": (weighed, clusters)}
    if "labels" in found:
        rows = _length(found, "labels")
        expected |= {"labels": (rows,), "membership": (rows, clusters), "row_silos": (rows,)}
    if "kappa" in found or "silo_probabilities" in found:
        kappas = _length(found, "kappa")
        expected["kappa"] = (1 if kappas == 1 else draws, len(study.table_schema.variables))
        own = min(max(_length(found, "silo_probabilities"), 1), draws)
        expected["silo_probabilities"] = (own, silos, clusters, levels)
    return expected | _free(manifest, found)


def _length(found: Mapping[str, Shape], name: str) -> int:
    """Return how long the first axis of an array is; 0 where there is none."""
    return (found.get(name) or (0,))[0]


def _free(manifest: Manifest, found: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shapes of the traces: as long as they are, and else any but for those we read."""
    names = manifest.diagnostics.polish.names if manifest.diagnostics.polish else []
    traces = {f"polish_{place}": found.get(f"polish_{place}", ()) for place in range(len(names))}
    for place, name in enumerate(names):
        if name == "movement":
            traces[f"polish_{place}"] = (_length(found, f"polish_{place}"), 4)
        if name == "log_likelihood":
            traces[f"polish_{place}"] = (_length(found, f"polish_{place}"),)
    if "elbo" in found:
        traces["elbo"] = (_length(found, "elbo"),)
    return traces


def check_ranges(arrays: Mapping[str, NDArray[Any]], manifest: Manifest) -> None:
    """Refuse numbers of clusters and silos that do not exist, and what is no probability."""
    clusters, silos = arrays["weights"].shape[1], len(manifest.provenance.silos)
    for name, limit in {
        "correspondence_groups": clusters,
        "labels": clusters,
        "row_silos": silos,
    }.items():
        values: NDArray[np.integer] | None = arrays.get(name)
        if values is not None and values.size and not 0 <= values.min() <= values.max() < limit:
            raise FileError(
                f"is damaged: its array {name!r} goes from {values.min()} to {values.max()}, "
                f"and must stay within 0 to {limit - 1}"
            )
    for name in SHARES & arrays.keys():
        share = arrays[name]
        # nan fails both comparisons
        if share.size and not (share.min() >= 0 and share.max() <= 1 + NEAR):
            raise FileError(
                f"is damaged: its array {name!r} goes from {share.min()} to {share.max()}, "
                "and must stay within 0 to 1"
            )
    if "kappa" in arrays and not arrays["kappa"].min() > 0:
        least = arrays["kappa"].min()
        raise FileError(f"is damaged: its array 'kappa' has {least}, and must be positive")
