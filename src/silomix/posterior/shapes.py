"""Whether the arrays of a saved posterior fit its settings and each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from silomix.errors import FileError
from silomix.posterior.format import DRAWS, type_of
from silomix.posterior.membership import PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from silomix.posterior.format import Manifest
    from silomix.study import Study

    Shape = tuple[int, ...]

SHARES = DRAWS | {"silo_weights", "silo_profiles", "correspondence_confidence"}
"""Arrays of probabilities."""
NEAR = 1e-3
"""How far one that was added up may be above 1."""


def check_shapes(manifest: Manifest, study: Study) -> None:
    """Refuse arrays that do not fit, before any is read."""
    found = {name: tuple(entry.shape) for name, entry in manifest.arrays.items()}
    if len(found.get("weights", ())) != 2 or 0 in found["weights"]:
        raise FileError("is damaged: it has no weights (draw, cluster)")
    expected = _expected(manifest, study, found)
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected or found.get(name) != expected[name]:
            raise FileError(
                f"is damaged: its array {name!r:.40} has the shape {found.get(name)}, and "
                f"{expected.get(name)} would fit the rest"
            )
        dtype = manifest.arrays[name].dtype
        if type_of(name) not in (None, dtype):
            raise FileError(f"is damaged: its array {name!r} cannot be of type {dtype}")


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
    if "membership" in found or "row_silos" in found:
        rows = _length(found, "membership")
        expected |= {"membership": (rows, clusters), "row_silos": (rows,)}
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
        "row_silos": silos,
    }.items():
        values: NDArray[np.integer] | None = arrays.get(name)
        if values is not None and values.size and not 0 <= values.min() <= values.max() < limit:
            raise FileError(
                f"is damaged: its array {name!r} goes from {values.min()} to {values.max()}, "
                f"and must stay within 0 to {limit - 1}"
            )
    most = arrays["membership"].max(initial=0) if "membership" in arrays else 0
    if most > PARTS:
        raise FileError(
            f"is damaged: its array 'membership' has {most}, and is in parts of {PARTS}"
        )
    for name in SHARES & arrays.keys():
        low, high = arrays[name].min(), arrays[name].max()
        if not (low >= 0 and high <= 1 + NEAR):  # nan fails both comparisons
            raise FileError(
                f"is damaged: its array {name!r} goes from {low} to {high}, and must stay within "
                "0 to 1"
            )
    if "kappa" in arrays and not arrays["kappa"].min() > 0:
        raise FileError(
            f"is damaged: its array 'kappa' has {arrays['kappa'].min()}, and must be positive"
        )
