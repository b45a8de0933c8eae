"""Posterior <-> one file: arrays and one JSON document in safetensors, gzipped.

The document, in the metadata under `DOCUMENT`, is the posterior with null in the place of every
array; `ARRAYS` says what each array is. A silo's weight or probability that is the shared one, bit
for bit, is not written twice: nan stands in its place. Draws are float32, memberships counted in
parts of 10,000, and a row's label is its most probable cluster. Safetensors does not compress, and
gzip halves such a file; it also adds the checksum by which damage is found. The same posterior
always makes the same bytes.

Nothing in a file is believed. It is checked here, once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json, to_json
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from silomix.errors import FileError, SettingsError
from silomix.kernels.arrays import Bools, Floats, Ints
from silomix.messages import ReleasedDiagnostics
from silomix.model.draws import Correspondence, SiloProfiles, SiloWeights
from silomix.model.files import whole_file
from silomix.posterior.diagnosis import PosteriorDiagnostics
from silomix.posterior.frames import Backend
from silomix.posterior.global_posterior import Posterior
from silomix.posterior.membership import PARTS, from_parts, in_parts
from silomix.posterior.provenance import Provenance
from silomix.study import Study, digest

Arrays = dict[str, NDArray[Any]]

HEAD = {"kind": "silomix posterior", "format": 3}
# Key of the document in the container's metadata.
DOCUMENT = "posterior"
# What zlib calls a gzip file.
GZIP = 31
# Times its length, and bytes, that a file may unfold to: gzip could make a thousand of one.
UNFOLDS, ALWAYS = 200, 100_000_000
# Largest share: draws in float32 that were added up may be a little above one.
TOP = 1.001


class Array(NamedTuple):
    """What an array must be: its type, its axes, and the least and the largest value.

    An axis of one name is as long in all arrays. A `high` that is an axis means: numbers of what
    lies along it.
    """

    dtype: str
    axes: tuple[str, ...]
    low: float | None = None
    high: float | str = np.inf


# Arrays by attribute of the posterior; the polish's traces, `polish.0`, `polish.1`, …, besides.
# Groups and sizes are those of all silos, one after the other, `counts` of each silo.
ARRAYS = {
    "weights": Array("<f4", ("draw", "cluster"), 0, TOP),
    "weights_by_silo": Array("<f4", ("draw", "silo", "cluster"), 0, TOP),
    "probabilities": Array("<f4", ("draw", "cluster", "level"), 0, TOP),
    "correspondence.counts": Array("<i8", ("matched silo",), 1, 2**31),
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
# By array of the silos' own values, (draw, silo, …), that of the shared ones: (draw, …).
SHARED = {"weights_by_silo": "weights", "silo_profiles.probabilities": "probabilities"}
# Shapes, after the first axis, of the traces that are read again.
TRACES = {"movement": (4,), "log_likelihood": ()}


class Document(BaseModel):
    """What pydantic needs to check a posterior's records and to make them."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)

    posterior: Posterior


RECORDS = (
    *(Correspondence, PosteriorDiagnostics, Provenance, ReleasedDiagnostics),
    *(SiloProfiles, SiloWeights, Study, Mapping, Posterior),
)
# the records' modules import these for annotations alone
Document.model_rebuild(
    _types_namespace={
        **{record.__name__: record for record in RECORDS},
        "NDArray": NDArray,
        "Floats": Floats,
        "Ints": Ints,
        "Bools": Bools,
        "np": np,
        "Backend": Backend,
    }
)


def save(posterior: Posterior, path: str | Path) -> Path:
    """Write a posterior to a file of its owner's alone, whole or not at all; return its path."""
    target = Path(path)
    document = to_json(HEAD | vars(posterior), inf_nan_mode="strings", fallback=_without_arrays)
    metadata = {DOCUMENT: document.decode()}
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


def _without_arrays(value: NDArray[Any] | np.generic) -> object:
    return None if isinstance(value, np.ndarray) else value.item()


def _arrays(posterior: Posterior) -> Arrays:
    arrays: Arrays = {}
    for name, array in ARRAYS.items():
        value: Any = posterior
        for attribute in name.replace("counts", "groups").split("."):
            value = value and getattr(value, attribute)
        if value is None:
            continue
        if name == "assignment.membership":
            value = in_parts(value)
        if isinstance(value, tuple):
            value = list(map(len, value)) if name.endswith("counts") else np.concatenate(value)
        # safetensors writes memory as it lies, so every array must be in C order
        arrays[name] = np.asarray(value, array.dtype, order="C")
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
        sizes = _check_shapes(arrays)
        for name in SHARED.keys() & arrays.keys():
            np.copyto(arrays[name], _shared(arrays, name), where=np.isnan(arrays[name]))
        _check_ranges(arrays, sizes)
        posterior = _assemble(document, arrays)
        _check_records(posterior, sizes)
    except FileError as error:
        raise FileError(f"{source} {error}") from None
    except OSError as error:
        raise FileError(f"{source} cannot be read: {error.strerror}; check the path") from None
    return posterior


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


def _read_document(text: str) -> dict[str, Any]:
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
    return found


def _check_shapes(arrays: Arrays) -> dict[str, int]:
    """Refuse arrays that do not fit each other; return how long each axis is."""
    sizes: dict[str, int] = {}
    if not arrays.keys() >= {*SHARED.values(), "weights_by_silo"}:
        raise FileError("is damaged: it lacks weights or probabilities")
    for name in filter(arrays.__contains__, ARRAYS):
        array, (dtype, axes, *_) = arrays[name], ARRAYS[name]
        fits = tuple(map(sizes.setdefault, axes, array.shape))
        if (array.dtype.str, array.shape, array.ndim) != (dtype, fits, len(axes)):
            raise FileError(
                f"is damaged: its array {name!r} is {array.dtype.str} of shape {array.shape}, and "
                f"{dtype} ({', '.join(axes)}) would fit the rest: {sizes}"
            )
    draws, kappas, some = (sizes.get(f"{of}draw", 1) for of in ("", "kappa ", "silo "))
    if not (kappas in {1, draws} and 1 <= some <= draws and sizes.get("cluster")):
        raise FileError(f"is damaged: arrays cannot have the lengths {sizes}")
    return sizes


def _check_ranges(arrays: Arrays, sizes: Mapping[str, int]) -> None:
    """Refuse what is no probability, and numbers of clusters and silos that do not exist."""
    for name in arrays.keys() & ARRAYS.keys():
        array, (_, _, low, high) = arrays[name], ARRAYS[name]
        top = sizes[high] - 1 if isinstance(high, str) else high
        # nan fails both comparisons
        if low is not None and array.size and not (low <= array.min() and array.max() <= top):
            raise FileError(
                f"is damaged: its array {name!r} goes from {array.min()} to {array.max()}, and "
                f"must stay within {low} to {top}"
            )
    counts = arrays.get("correspondence.counts", np.zeros(0))
    if counts.sum() != sizes.get("local cluster", 0):
        raise FileError("is damaged: its local clusters are not as many as its silos'")


def _assemble(document: dict[str, Any], arrays: Arrays) -> Posterior:
    """Put the arrays in their places, and let pydantic check and make the records."""
    try:
        document["study"] = Study(**document["study"])
        _place(document, arrays)
        return Document.model_validate({"posterior": document}).posterior
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"][1:]))
        raise FileError(f"is damaged: {place!r:.80}: {first['msg']}") from None
    except SettingsError as error:
        raise FileError(f"is damaged, or of another version: {error}") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # a record that is not there, or is something else
        raise FileError("is damaged: its document and its arrays do not fit") from None


def _place(document: dict[str, Any], arrays: Arrays) -> None:
    for name in arrays.keys() & ARRAYS.keys():
        record, _, attribute = name.rpartition(".")
        (document[record] if record else document)[attribute] = arrays[name]
    if match := document["correspondence"]:
        ends = np.cumsum(match.pop("counts"))[:-1]
        for name in ("groups", "sizes"):  # from `arrays`: the document may say anything
            match[name] = np.split(arrays[f"correspondence.{name}"], ends)
    if rows := document["assignment"]:
        rows["membership"] = from_parts(arrays["assignment.membership"])
        rows["labels"] = rows["membership"].argmax(axis=1)
    polish = document["diagnostics"]["polish"]
    traces = {f"polish.{i}": name for i, name in enumerate(polish["values"] if polish else ())}
    if polish:
        polish["values"] = {trace: arrays[name] for name, trace in traces.items()}
    for name in arrays.keys() - ARRAYS.keys() - traces.keys():
        raise FileError(f"is damaged: it should not have the array {name!r:.60}")


def _check_records(posterior: Posterior, sizes: Mapping[str, int]) -> None:
    """Refuse records that do not fit the arrays, traces of other shapes, and another study."""
    schema, made = posterior.study.table_schema, posterior.provenance
    known = {"silo": made.silos, "level": schema.levels, "variable": schema.variables}
    if posterior.correspondence:
        known["matched silo"] = posterior.correspondence.silos
    if posterior.silo_weights:
        known["weighed silo"] = posterior.silo_weights.silos
    for axis, names in known.items():
        if not names or sizes.get(axis, len(names)) != len(names):
            have = sizes.get(axis)
            raise FileError(f"is damaged: it has arrays of {have} {axis}s, and names {len(names)}")
    if digest(posterior.study) != made.study:
        raise FileError(
            f"is damaged: its study has the digest {digest(posterior.study)[:12]}, and its "
            f"provenance says {made.study[:12]!r}"
        )
    polish = posterior.diagnostics.polish
    for name, trace in (polish.values if polish else {}).items():
        rest = trace.shape[1:] if trace.ndim else None
        if trace.dtype.kind not in "fiub" or TRACES.get(name, rest) != rest:
            raise FileError(f"is damaged: its trace {name!r:.60} is {trace.dtype} {trace.shape}")
