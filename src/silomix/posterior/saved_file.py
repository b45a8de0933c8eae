"""Posterior <-> one file: arrays and one JSON document in safetensors, gzipped.

The document, in the metadata under `DOCUMENT`, is the posterior with null in the place of every
array; `ARRAYS` says what each array is. A silo's weight or probability that is the shared one, bit
for bit, is not written twice: nan stands in its place. Draws are float32, memberships counted in
parts of 10,000, and a row's label is its most probable cluster. Safetensors does not compress, and
gzip halves such a file; it also adds the checksum by which damage is found. The same posterior
always makes the same bytes.

Nothing in a file is believed. It is checked here, once. `make_datatree` gives the same to ArviZ.
"""

from __future__ import annotations

import json
import zlib
from collections import ChainMap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json, to_json
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from silomix import messages
from silomix.errors import FileError, MissingDependency, SettingsError
from silomix.kernels import arrays as short_names
from silomix.model import draws
from silomix.model.files import replace_file, writing
from silomix.posterior import global_posterior, verdict
from silomix.posterior.chains import find_chains
from silomix.posterior.membership import PARTS, from_parts, in_parts
from silomix.study import Study, digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import xarray as xr

    from silomix.posterior.global_posterior import Posterior

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


# Of a log-likelihood: one that is infinite cannot be drawn.
LARGEST = 1e300

# Arrays by attribute of the posterior, and those of `TRACES`.
# Groups and sizes are those of all silos, one after the other, `counts` of each silo.
ARRAYS = {
    "weights": Array("<f4", ("draw", "cluster"), 0, TOP),
    "weights_by_silo": Array("<f4", ("draw", "silo", "cluster"), 0, TOP),
    "probabilities": Array("<f4", ("draw", "cluster", "parameter"), 0, TOP),
    "correspondence.counts": Array("<i8", ("silo",), 1, 2**31),
    "correspondence.groups": Array("<i8", ("local cluster",), 0, "cluster"),
    "correspondence.sizes": Array("<i8", ("local cluster",)),
    "correspondence.confidence": Array("<f8", ("local cluster", "local cluster"), 0, TOP),
    "silo_weights.weights": Array("<f8", ("silo",), 0, TOP),
    "silo_weights.profiles": Array("<f8", ("silo", "cluster"), 0, TOP),
    "silo_profiles.kappa": Array("<f8", ("kappa draw", "variable"), np.finfo(np.float64).tiny),
    "silo_profiles.probabilities": Array(
        "<f4", ("silo draw", "silo", "cluster", "parameter"), 0, TOP
    ),
    "assignment.membership": Array("<u2", ("row", "cluster"), 0, PARTS),
    "assignment.silos": Array("<i8", ("row",), 0, "silo"),
    "assignment.missing": Array("<i8", ("silo", "variable"), 0),
    "diagnostics.elbo": Array("<f8", ("step",), -LARGEST, LARGEST),
    "polish.0": Array("<f8", ("round",), -LARGEST, LARGEST),
    "polish.1": Array("<f8", ("check", "finding")),
}
# By array of the silos' own values, (draw, silo, …), that of the shared ones: (draw, …).
SHARED = {"weights_by_silo": "weights", "silo_profiles.probabilities": "probabilities"}
# The polish's traces: name of the array, and of the trace.
TRACES = {"polish.0": "log_likelihood", "polish.1": "movement"}
# The attribute of the posterior that has another name in the file.
DRAWS, DRAWS_IN_FILE = "profile_draws", "probabilities"
# What a document and arrays raise that were not written together.
MISFITS = (AttributeError, LookupError, TypeError, ValueError, SafetensorError, zlib.error)


class Document(BaseModel):
    """What pydantic needs to check a posterior's records and to make them."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)

    posterior: Posterior


# the records' modules import each other's names for annotations alone
MODULES = (short_names, messages, draws, global_posterior, verdict)
Document.model_rebuild(_types_namespace=dict(ChainMap({"Study": Study}, *map(vars, MODULES))))


def save(posterior: Posterior, path: str | Path) -> Path:
    """Write a posterior to a file of its owner's alone, whole or not at all; return its path."""
    target = Path(path)
    parts = {DRAWS_IN_FILE if n == DRAWS else n: part for n, part in vars(posterior).items()}
    document = to_json(HEAD | parts, inf_nan_mode="strings", fallback=_without_arrays)
    metadata = {DOCUMENT: document.decode()}
    content = zlib.compress(save_arrays(_arrays(posterior), metadata=metadata), wbits=GZIP)
    with writing(target, FileError):
        replace_file(target, content, private=True)
    return target


def _without_arrays(value: NDArray[Any] | np.generic) -> object:
    return None if isinstance(value, np.ndarray) else value.item()


def _arrays(posterior: Posterior) -> Arrays:
    arrays: Arrays = {}
    for name in ARRAYS.keys() - TRACES.keys():
        value: Any = posterior
        path = DRAWS if name == DRAWS_IN_FILE else name.replace("counts", "groups")
        for attribute in path.split("."):
            value = value and getattr(value, attribute)
        if value is None:
            continue
        if name == "assignment.membership":
            value = in_parts(value)
        if isinstance(value, tuple):
            value = list(map(len, value)) if name.endswith("counts") else np.concatenate(value)
        # safetensors writes memory as it lies, so every array must be in C order
        arrays[name] = np.asarray(value, ARRAYS[name].dtype, order="C")
    for name in SHARED.keys() & arrays.keys():
        own = arrays[name]
        arrays[name] = np.where(own == _shared(arrays, name), np.float32("nan"), own)
    if polish := posterior.diagnostics.polish:
        arrays |= {name: np.asarray(polish.values[TRACES[name]], order="C") for name in TRACES}
    return arrays


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
        document, arrays = _unpack(source.read_bytes())
        for name in SHARED.keys() & arrays.keys():
            np.copyto(arrays[name], _shared(arrays, name), where=np.isnan(arrays[name]))
        study = document["study"] = Study(**document["study"])
        _check_arrays(arrays, study)
        posterior = _assemble(document, arrays)
        _check_records(posterior)
    except OSError as error:
        raise FileError(f"{source} cannot be read: {error.strerror}; check the path") from None
    except (FileError, SettingsError) as error:
        reason = str(error)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc'][1:]))!r:.80}: {first['msg']}"
    except MISFITS:
        reason = "its parts do not fit each other"
    else:
        return posterior
    raise FileError(
        f"{source} is no saved posterior, is damaged or truncated, or was saved by another version "
        f"of silomix: {reason}; give a file that posterior.save wrote"
    )


def _unpack(content: bytes) -> tuple[dict[str, Any], Arrays]:
    """Return the document and the arrays; refuse what unfolds to more than it should."""
    unfolding = zlib.decompressobj(wbits=GZIP)
    whole = unfolding.decompress(content, max(UNFOLDS * len(content), ALWAYS))
    if unfolding.unconsumed_tail or unfolding.unused_data or not unfolding.eof:
        raise FileError("it ends early, or claims to hold more than it does")
    arrays = load_arrays(whole)
    # `load_arrays` checked the header, and gives all of it but the metadata
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    document = from_json(header["__metadata__"][DOCUMENT])
    head = {name: document.pop(name, None) for name in HEAD}
    if head != HEAD:
        raise FileError(f"it calls itself {head!r:.80}, and this silomix reads {HEAD}")
    return document, arrays


def _check_arrays(arrays: Arrays, study: Study) -> None:
    """Refuse arrays that do not fit the study or each other, and impossible values."""
    family = study.pooled_model.family
    parameters, variables = int(family.offsets[-1]), len(family.variables)
    sizes = {"silo": len(study.silos), "parameter": parameters, "variable": variables, "finding": 4}
    # in the order of `ARRAYS`, which refuses what is not in it
    for name in sorted(arrays, key=list(ARRAYS).index):
        array, (dtype, axes, low, high) = arrays[name], ARRAYS[name]
        fits = tuple(map(sizes.setdefault, axes, array.shape))
        if (array.dtype.str, array.shape, array.ndim) != (dtype, fits, len(axes)):
            raise FileError(
                f"its array {name!r} is {array.dtype.str} of shape {array.shape}, and {dtype} "
                f"({', '.join(axes)}) would fit the rest: {sizes}"
            )
        if "parameter" in axes and not family.is_categorical:
            low, known = None, np.isfinite(array).all()
            problem = family.problems(array, together=False) if known else "has gaps or infinities"
            if problem:
                raise FileError(f"its array {name!r} {problem}")
        top = sizes[high] - 1 if isinstance(high, str) else high
        # nan fails both comparisons
        if low is not None and array.size and not (low <= array.min() and array.max() <= top):
            raise FileError(
                f"its array {name!r} goes from {array.min()} to {array.max()}, and must stay "
                f"within {low} to {top}"
            )
    draws, kappas, some = (sizes.get(f"{of}draw", 1) for of in ("", "kappa ", "silo "))
    local = arrays.get("correspondence.counts", np.zeros(0)).sum()
    possible = kappas in {1, draws} and 1 <= some <= draws and sizes["cluster"] > 0
    if not possible or local != sizes.get("local cluster", 0):
        raise FileError(f"its arrays cannot have the lengths {sizes}")


def _assemble(document: dict[str, Any], arrays: Arrays) -> Posterior:
    """Put the arrays in their places, and let pydantic check and make the records."""
    for name in arrays.keys() - TRACES.keys():
        record, _, attribute = name.rpartition(".")
        (document[record] if record else document)[attribute] = arrays[name]
    document[DRAWS] = document.pop(DRAWS_IN_FILE)
    if match := document["correspondence"]:
        ends = np.cumsum(match.pop("counts"))[:-1]
        for name in ("groups", "sizes"):  # from `arrays`: the document may say anything
            match[name] = np.split(arrays[f"correspondence.{name}"], ends)
    if rows := document["assignment"]:
        rows["membership"] = from_parts(arrays["assignment.membership"])
        rows["labels"] = rows["membership"].argmax(axis=1)
    if polish := document["diagnostics"]["polish"]:
        polish["values"] = {trace: arrays[name] for name, trace in TRACES.items()}
    return Document.model_validate({"posterior": document}).posterior


def _check_records(posterior: Posterior) -> None:
    """Refuse parts that are of another study."""
    study, made = posterior.study, posterior.provenance
    if digest(study) != made.study:
        raise FileError("its study has another digest than its provenance says")
    for part in (made, posterior.correspondence, posterior.silo_weights):
        if part and part.silos != study.silos:
            raise FileError(f"its study has other silos than its {type(part).__name__} names")
    posterior.with_names(posterior.names)


def make_datatree(posterior: Posterior) -> xr.DataTree:
    """Return draws, traces and provenance in the shape that ArviZ reads; extra "arviz".

    - ``posterior``: weights, weights_by_silo and probabilities; where silos have profiles of their
      own, kappa. Chains are those of the polish or of the exact strategy; without either, all draws
      form one, which has no order in time.
    - ``last_draws``: probabilities_by_silo, the silos' own profiles, kept for some draws alone, in
      one chain; ``of_chain`` and ``of_draw`` say which of the posterior's.
    - Where some variables are numbers, parameters and parameters_by_silo stand in their place, in
      the units of the table.
    - ``traces``: such as the objective along the aggregation's steps.
    - ``constant_data``: how much each silo counts, and kappa where it is a point value.

    Provenance stands in the attributes of the root and of every group.
    """
    try:
        import xarray as xr
    except ImportError:
        raise MissingDependency("to_datatree needs xarray", extra="arviz") from None
    made = asdict(posterior.provenance)
    attrs = {
        "inference_library": "silomix",
        "inference_library_version": made.pop("version"),
        **{name: v if isinstance(v, str | int) else json.dumps(v) for name, v in made.items()},
        "trusted": int(posterior.diagnostics.trusted),
        "verdict": posterior.diagnostics.verdict,
    }
    names, levels = posterior.parameter_names, len(posterior.levels)
    axis = "level" if posterior.family.is_categorical else "parameter"
    coords: dict[str, tuple[str, Any]] = {
        "cluster": ("cluster", np.arange(posterior.n_clusters)),
        "silo": ("silo", list(posterior.silos)),
        axis: (axis, [("=" if i < levels else " ").join(name) for i, name in enumerate(names)]),
        "variable_name": ("variable_name", [v.name for v in posterior.family.variables]),
    }
    places = find_chains(posterior)
    groups: dict[str, dict[str, Any]] = {}
    for group, name, axes, values in _variables(posterior, axis):
        by_chain = values[places] if group == "posterior" else values[None]
        groups.setdefault(group, {})[name] = (axes, by_chain if "draw" in axes else values)
    datasets = {"/": xr.Dataset(attrs=attrs)}
    for group, variables in groups.items():
        data = xr.Dataset(variables, attrs=attrs)
        counted = {name: (name, np.arange(data.sizes.get(name, 0))) for name in ("chain", "draw")}
        if group == "last_draws":
            last = np.argsort(places, axis=None)[-data.sizes["draw"] :]
            of_chain, of_draw = np.unravel_index(last, places.shape)
            counted |= {"of_chain": ("draw", of_chain), "of_draw": ("draw", of_draw)}
        named = coords | counted
        here = {name: coord for name, coord in named.items() if coord[0] in data.dims}
        datasets[group] = data.assign_coords(here)
    return xr.DataTree.from_dict(datasets)


def _variables(
    posterior: Posterior, axis: str
) -> Iterator[tuple[str, str, list[str], NDArray[Any]]]:
    """Yield the variables of the tree: group, name, axes, and values without the axis of chains."""
    draw, own, weighed = ["chain", "draw"], posterior.silo_profiles, posterior.silo_weights
    yield "posterior", "weights", [*draw, "cluster"], posterior.weights
    yield "posterior", "weights_by_silo", [*draw, "silo", "cluster"], posterior.weights_by_silo
    profiles = "probabilities" if axis == "level" else "parameters"
    yield "posterior", profiles, [*draw, "cluster", axis], posterior.parameters
    if own is not None:
        axes, described = [*draw, "silo", "cluster", axis], posterior.family.describe
        yield "last_draws", f"{profiles}_by_silo", axes, described(own.probabilities)
        if len(own.kappa) == posterior.n_draws:
            yield "posterior", "kappa", [*draw, "variable_name"], own.kappa
        else:
            yield "constant_data", "kappa", ["variable_name"], own.kappa[0]
    if weighed is not None:
        yield "constant_data", "silo_weights", ["silo"], weighed.weights
        yield "constant_data", "silo_profiles", ["silo", "cluster"], weighed.profiles
    polish = posterior.diagnostics.polish
    traces = {f"polish_{name}": trace for name, trace in polish.values.items()} if polish else {}
    if posterior.diagnostics.elbo is not None:
        traces["elbo"] = posterior.diagnostics.elbo
    for name, trace in traces.items():
        yield "traces", name, [f"{name}_dim_{axis}" for axis in range(trace.ndim)], trace
