"""Posterior <-> one file: arrays and one JSON document in safetensors, gzipped.

The document, `Document`, stands in the metadata under `DOCUMENT`; `ARRAYS` says what each array is.
A silo's weight or probability that is the shared one, bit for bit, is not written twice: nan stands
in its place. Draws are float32, memberships counted in parts of 10,000, and a row's label is its
most probable cluster. Safetensors does not compress, and gzip halves such a file; it also adds the
checksum by which damage is found. The same posterior always makes the same bytes.

Nothing in a file is believed. It is checked here, once.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from silomix.atomic import whole_file
from silomix.errors import FileError, SettingsError
from silomix.posterior.diagnosis import PolishTrace, PosteriorDiagnostics
from silomix.posterior.global_posterior import Assignment, Posterior
from silomix.posterior.membership import PARTS, from_parts, in_parts
from silomix.posterior.provenance import Provenance  # noqa: TC001 (pydantic reads annotations)
from silomix.release import ReleasedDiagnostics
from silomix.study import Study, digest
from silomix.types import Correspondence, SiloProfiles, SiloWeights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

HEAD = {"kind": "silomix posterior", "format": 3}
DOCUMENT = "posterior"
"""Key of the document in the container's metadata."""
GZIP = 31
"""What zlib calls a gzip file."""
UNFOLDS, ALWAYS = 200, 100_000_000
"""Times its length, and bytes, that a file may unfold to: gzip could make a thousand of one."""
TOP = 1.001
"""Largest share: draws in float32 that were added up may be a little above one."""


class Array(NamedTuple):
    """What an array must be: its type, its axes, and the least and the largest value.

    An axis of one name is as long in all arrays. A `high` that is an axis means: numbers of what
    lies along it.
    """

    dtype: str
    axes: tuple[str, ...]
    low: float | None = None
    high: float | str = np.inf


ARRAYS = {
    "weights": Array("<f4", ("draw", "cluster"), 0, TOP),
    "weights_by_silo": Array("<f4", ("draw", "silo", "cluster"), 0, TOP),
    "probabilities": Array("<f4", ("draw", "cluster", "level"), 0, TOP),
    "correspondence.groups": Array("<i8", ("local cluster",), 0, "cluster"),
    "correspondence.sizes": Array("<i8", ("local cluster",)),
    "correspondence.confidence": Array("<f8", ("local cluster", "local cluster"), 0, TOP),
    "silo_weights.weights": Array("<f8", ("weighed silo",), 0, TOP),
    "silo_weights.profiles": Array("<f8", ("weighed silo", "cluster"), 0, TOP),
    "silo_profiles.kappa": Array("<f8", ("kappa draw", "variable"), np.finfo(np.float64).tiny),
    "silo_profiles.probabilities": Array("<f4", ("silo draw", "silo", "cluster", "level"), 0, TOP),
    "assignment.membership": Array("<u2", ("row", "cluster"), 0, PARTS),
    "assignment.silos": Array("<i8", ("row",), 0, "silo"),
    "diagnostics.elbo": Array("<f8", ("step",)),
}
"""Arrays by attribute of the posterior; the polish's traces, `polish.0`, `polish.1`, …, besides.

Those of one record go together, but for the `OPTIONAL` ones.
"""
OPTIONAL = {"correspondence.confidence", "diagnostics.elbo"}
SHARED = {"weights_by_silo": "weights", "silo_profiles.probabilities": "probabilities"}
"""By array of the silos' own values, (draw, silo, …), that of the shared ones: (draw, …)."""
TRACES = {"movement": (4,), "log_likelihood": ()}
"""Shapes, after the first axis, of the traces that are read again."""


class Entry(BaseModel):
    """Base of the records in the document; nan and infinity are text there."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RunEntry(Entry):
    """A `silomix.release.ReleasedDiagnostics`."""

    verdict: str
    trusted: bool
    rhat: dict[str, float]
    ess: dict[str, float]
    prior_draws: float
    agreement: float
    full: float
    sweeps: int


class PolishEntry(Entry):
    """A `PolishTrace`, with the names of its arrays."""

    values: list[str]
    rounds: int
    still_moving: bool


class DiagnosticsEntry(Entry):
    """A `PosteriorDiagnostics` without its arrays."""

    silos: dict[str, RunEntry]
    polish: PolishEntry | None
    chains: RunEntry | None
    confidence: float | None
    smallest: float | None
    notes: tuple[str, ...]


class Document(Entry):
    """What a file says in words, besides its kind and format.

    Attributes
    ----------
    local_clusters : of each silo, how many; empty where none were matched.
    matching : the method that matched them.
    weighed_silos : those that `silo_weights` are of.
    """

    study: dict[str, Any]
    backend: Literal["pandas", "polars", "pyarrow"]
    local_clusters: dict[str, Annotated[int, Field(ge=1, le=2**31)]]
    matching: str
    weighed_silos: tuple[str, ...]
    diagnostics: DiagnosticsEntry
    provenance: Provenance


def save(posterior: Posterior, path: str | Path) -> Path:
    """Write a posterior to a file of its owner's alone, whole or not at all; return its path."""
    target = Path(path)
    metadata = {DOCUMENT: _document(posterior).decode()}
    content = zlib.compress(save_arrays(_arrays(posterior), metadata=metadata), wbits=GZIP)
    try:
        with whole_file(target, private=True) as file:
            file.write(content)
    except OSError as error:
        raise FileError(
            f"{target} cannot be written: {error.strerror}; choose a folder that exists, with "
            "enough space"
        ) from None
    return target


def _document(posterior: Posterior) -> bytes:
    match, weighed = posterior.correspondence, posterior.silo_weights
    found, polish = posterior.diagnostics, posterior.diagnostics.polish
    counts = map(len, match.groups) if match else ()
    document = {
        **HEAD,
        "study": posterior.study.model_dump(mode="json"),
        "backend": posterior.backend,
        "local_clusters": dict(zip(match.silos if match else (), counts, strict=True)),
        "matching": match.method if match else "",
        "weighed_silos": weighed.silos if weighed else (),
        "diagnostics": {
            **{name: getattr(found, name) for name in DiagnosticsEntry.model_fields},
            "polish": polish and {**vars(polish), "values": list(polish.values)},
        },
        "provenance": posterior.provenance,
    }
    return to_json(document, inf_nan_mode="strings", fallback=np.generic.item)


def _arrays(posterior: Posterior) -> Arrays:
    arrays: Arrays = {}
    for name, array in ARRAYS.items():
        value: Any = posterior
        for attribute in name.split("."):
            value = value and getattr(value, attribute)
        if name == "assignment.membership" and value is not None:
            value = in_parts(value)
        if value is not None:
            joined = np.concatenate(value) if isinstance(value, tuple) else value
            # safetensors writes memory as it lies, so every array must be in C order
            arrays[name] = np.asarray(joined, array.dtype, order="C")
    for name in SHARED.keys() & arrays.keys():
        own = arrays[name]
        arrays[name] = np.where(own == _shared(arrays, name), np.float32("nan"), own)
    polish = posterior.diagnostics.polish
    traces = enumerate(polish.values.values() if polish else ())
    return arrays | {f"polish.{i}": np.asarray(trace, order="C") for i, trace in traces}


def _shared(arrays: Arrays, name: str) -> NDArray[Any]:
    """Return the shared values that stand beside the silos' own; these are of the last draws."""
    return arrays[SHARED[name]][-len(arrays[name]) :, None]


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
        text, arrays = _unpack(source.read_bytes())
        document = _read_document(text)
        study = _read_study(document)
        _check_shapes(arrays, document, study)
        for name in SHARED.keys() & arrays.keys():
            np.copyto(arrays[name], _shared(arrays, name), where=np.isnan(arrays[name]))
        _check_ranges(arrays, len(document.provenance.silos))
    except FileError as error:
        raise FileError(f"{source} {error}") from None
    except OSError as error:
        raise FileError(f"{source} cannot be read: {error.strerror}; check the path") from None
    return _assemble(study, document, arrays)


def _unpack(content: bytes) -> tuple[str, Arrays]:
    """Return the document as text, and the arrays; refuse what unfolds to more than it should."""
    try:
        unfolding = zlib.decompressobj(wbits=GZIP)
        whole = unfolding.decompress(content, max(UNFOLDS * len(content), ALWAYS))
        if unfolding.unconsumed_tail:
            raise FileError("claims to hold more than it does; get it from its source again")
        if unfolding.eof and not unfolding.unused_data:
            arrays = load_arrays(whole)
            # `load` checked the header, and gives all of it but the metadata
            header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
            return header["__metadata__"][DOCUMENT], arrays
    except (zlib.error, SafetensorError, KeyError, TypeError, ValueError):
        pass
    raise FileError(
        "is no saved posterior, is damaged or truncated, or was saved by an older silomix; give a "
        "file that posterior.save wrote"
    )


def _read_document(text: str) -> Document:
    try:
        found = from_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise FileError("is no saved posterior: its document is no JSON object")
    head = {name: found.pop(name, None) for name in HEAD}
    if head != HEAD:
        raise FileError(
            f"is {head['kind']!r:.40} of format {head['format']!r:.20}, and this silomix reads "
            f"{HEAD['kind']!r} of format {HEAD['format']}; use the version that it was saved with"
        )
    try:
        return Document.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise FileError(f"is damaged: {place!r:.80}: {first['msg']}") from None


def _read_study(document: Document) -> Study:
    try:
        study = Study(**document.study)
    except SettingsError as error:
        raise FileError(f"is damaged, or of another version: {error}") from None
    if digest(study) != document.provenance.study:
        raise FileError(
            f"is damaged: its study has the digest {digest(study)[:12]}, and its provenance says "
            f"{document.provenance.study[:12]!r}"
        )
    return study


def _check_shapes(arrays: Arrays, document: Document, study: Study) -> None:
    """Refuse arrays that do not fit the document or each other."""
    sizes = {
        "silo": len(document.provenance.silos),
        "level": len(study.table_schema.levels),
        "variable": len(study.table_schema.variables),
        "local cluster": sum(document.local_clusters.values()),
        "weighed silo": len(document.weighed_silos),
    }
    traces = _trace_names(document)
    there = {"", *(_record(name) for name in arrays)}
    needed = {name for name in ARRAYS.keys() - OPTIONAL if _record(name) in there} | traces.keys()
    for name in (needed - arrays.keys()) | (arrays.keys() - needed - ARRAYS.keys()):
        raise FileError(f"is damaged: it lacks, or should not have, the array {name!r:.60}")
    for name in filter(arrays.__contains__, ARRAYS):
        array, (dtype, axes, *_) = arrays[name], ARRAYS[name]
        fits = tuple(map(sizes.setdefault, axes, array.shape))
        if (array.dtype.str, array.shape, array.ndim) != (dtype, fits, len(axes)):
            raise FileError(
                f"is damaged: its array {name!r} is {array.dtype.str} of shape {array.shape}, and "
                f"{dtype} ({', '.join(axes)}) would fit the rest: {sizes}"
            )
    draws, kappas, some = (sizes.get(f"{of}draw", 1) for of in ("", "kappa ", "silo "))
    if not (kappas in {1, draws} and 1 <= some <= draws and sizes["cluster"] and sizes["silo"]):
        raise FileError(f"is damaged: arrays cannot have the lengths {sizes}")
    for name, trace in traces.items():
        rest = arrays[name].shape[1:] if arrays[name].ndim else None
        if arrays[name].dtype.kind not in "fiub" or TRACES.get(trace, rest) != rest:
            raise FileError(f"is damaged: its array {name!r} cannot be the trace {trace!r:.60}")


def _record(name: str) -> str:
    """Return which record of the posterior an array is of; "" for the posterior itself."""
    return name.rpartition(".")[0]


def _trace_names(document: Document) -> dict[str, str]:
    """Return which trace of the polish each array is."""
    polish = document.diagnostics.polish
    return {f"polish.{i}": name for i, name in enumerate(polish.values if polish else [])}


def _check_ranges(arrays: Arrays, silos: int) -> None:
    """Refuse what is no probability, and numbers of clusters and silos that do not exist."""
    last = {"cluster": arrays["weights"].shape[1] - 1, "silo": silos - 1}
    for name in arrays.keys() & ARRAYS.keys():
        array, (_, _, low, high) = arrays[name], ARRAYS[name]
        top = last[high] if isinstance(high, str) else high
        # nan fails both comparisons
        if low is not None and array.size and not (low <= array.min() and array.max() <= top):
            raise FileError(
                f"is damaged: its array {name!r} goes from {array.min()} to {array.max()}, and "
                f"must stay within {low} to {top}"
            )


def _assemble(study: Study, document: Document, arrays: Arrays) -> Posterior:
    def of(record: str) -> dict[str, Any]:
        """Return the arrays of a record by attribute; none where there is no such record."""
        return {n.rpartition(".")[2]: array for n, array in arrays.items() if _record(n) == record}

    told = dict(document.diagnostics) | of("diagnostics")
    told["silos"] = {name: ReleasedDiagnostics(**dict(run)) for name, run in told["silos"].items()}
    if told["chains"]:
        told["chains"] = ReleasedDiagnostics(**dict(told["chains"]))
    if told["polish"]:
        values = {trace: arrays[name] for name, trace in _trace_names(document).items()}
        told["polish"] = PolishTrace(**{**dict(told["polish"]), "values": values})
    weighed, own = of("silo_weights"), of("silo_profiles")
    rows, match, counts = of("assignment"), of("correspondence"), document.local_clusters
    if rows:
        rows["membership"] = from_parts(rows["membership"])
        rows["labels"] = rows["membership"].argmax(axis=1)
    if match:
        match |= {"silos": tuple(counts), "method": document.matching}
        ends = np.cumsum(list(counts.values()))[:-1]
        match |= {name: tuple(np.split(match[name], ends)) for name in ("groups", "sizes")}
    return Posterior(
        **of(""),
        study=study,
        correspondence=Correspondence(**match) if match and counts else None,
        silo_weights=SiloWeights(document.weighed_silos, **weighed) if weighed else None,
        diagnostics=PosteriorDiagnostics(**told),
        provenance=document.provenance,
        silo_profiles=SiloProfiles(**own) if own else None,
        assignment=Assignment(**rows) if rows else None,
        backend=document.backend,
    )
