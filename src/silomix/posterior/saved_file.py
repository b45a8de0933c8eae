"""Posterior <-> one file: arrays and one JSON document in safetensors, gzipped.

The document, in the tensor `DOCUMENT`, is the posterior with null in the place of every array; an
array has the path of its attribute for a name, and `ARRAYS` says what each must be. A silo's weight
or probability that is the shared one, bit for bit, is not written twice: nan stands in its place.
Draws are float32, memberships counted in parts of 10,000, and a row's label is its most probable
cluster. Safetensors does not compress, and gzip halves such a file; it also adds the checksum by
which damage is found. The same posterior always makes the same bytes.

Nothing in a file is believed. It is checked here, once. `make_datatree` gives the same to ArviZ.
"""

from __future__ import annotations

import json
import zlib
from collections import ChainMap
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import save as save_arrays

from silomix import messages
from silomix.errors import FileError, MessageError, MissingDependency, SettingsError
from silomix.kernels import arrays as short_names
from silomix.messages import container
from silomix.messages.container import Array, Arrays
from silomix.model import draws, reading
from silomix.model.draws import PARTS, from_parts, in_parts
from silomix.posterior import global_posterior, verdict
from silomix.posterior.characterise import spread_of
from silomix.study import Study, digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import xarray as xr

    from silomix.posterior.global_posterior import Posterior

HEAD = {"kind": "silomix posterior", "format": 4}
DOCUMENT = "posterior.json"
# What it is called in a folder of results.
SAVED = "posterior.silomix"
# What zlib calls a gzip file.
GZIP = 31
# Times its length, and bytes, that a file may unfold to: gzip could make a thousand of one.
UNFOLDS, ALWAYS = 100, 300_000_000
# Largest share: draws in float32 that were added up may be a little above one.
TOP = 1.001
SINGLES, DOUBLES = container.FLOATS[:1], container.FLOATS[1:]

# Arrays by attribute of the posterior, of which lists have one for each silo.
ARRAYS = {
    "weights": Array("draw cluster", SINGLES, 0, TOP),
    "weights_by_silo": Array("draw silo cluster", SINGLES, 0, TOP),
    "profile_draws": Array("draw cluster parameter", SINGLES, 0, TOP),
    "correspondence.groups": Array("own_cluster", container.INTEGERS, 0),
    "correspondence.sizes": Array("own_cluster", container.INTEGERS, 0),
    "correspondence.confidence": Array("local_cluster local_cluster", DOUBLES, 0, TOP),
    "silo_weights.weights": Array("silo", DOUBLES, 0, TOP),
    "silo_weights.profiles": Array("silo cluster", DOUBLES, 0, TOP),
    "silo_profiles.kappa": Array(
        "kappa_draw variable", DOUBLES, float(np.finfo(np.float64).tiny), np.inf
    ),
    "silo_profiles.parameters": Array("silo_draw silo cluster parameter", SINGLES, 0, TOP),
    "assignment.membership": Array("row cluster", ("uint16",), 0, PARTS),
    "assignment.silos": Array("row", container.INTEGERS, 0),
    "assignment.missing": Array("silo variable", container.INTEGERS, 0),
    "diagnostics.elbo": Array("step"),
    "diagnostics.polish.values.log_likelihood": Array("round"),
    "diagnostics.polish.values.movement": Array("check finding"),
}
# By array of the silos' own values, (draw, silo, …), that of the shared ones: (draw, …).
SHARED = {"weights_by_silo": "weights", "silo_profiles.parameters": "profile_draws"}
# Arrays that number what lies along an axis.
NUMBERED = {"correspondence.groups": "cluster", "assignment.silos": "silo"}
# What a document and arrays raise that were not written together.
MISFITS = (AttributeError, LookupError, TypeError, ValueError, SafetensorError, zlib.error)


class Document(BaseModel):
    """Model with which pydantic checks a posterior's records, and makes them."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)

    posterior: Posterior


# the records' modules import each other's names for annotations alone
MODULES = (short_names, messages, draws, reading, global_posterior, verdict)
Document.model_rebuild(_types_namespace=dict(ChainMap({"Study": Study}, *map(vars, MODULES))))
READER = TypeAdapter(Document)


def as_bytes(posterior: Posterior) -> bytes:
    """Content of the file of a posterior."""
    document, arrays = _separate(posterior)
    if "assignment.membership" in arrays:
        del arrays["assignment.labels"]
        arrays["assignment.membership"] = in_parts(arrays["assignment.membership"])
    for name, array in arrays.items():
        arrays[name] = array.astype(_declared(name).dtypes[0], copy=False)
    for name in SHARED.keys() & arrays.keys():
        values = arrays[name]
        arrays[name] = np.where(values == _shared(arrays, name), np.float32("nan"), values)
    text = json.dumps(HEAD | document, ensure_ascii=False, allow_nan=False).encode()
    content = save_arrays(arrays | {DOCUMENT: np.frombuffer(text, np.uint8)})
    return zlib.compress(content, wbits=GZIP)


def _separate(posterior: Posterior) -> tuple[dict[str, Any], Arrays]:
    """Return a posterior as plain values, null for arrays, and the arrays by path."""
    arrays: Arrays = {}
    plain: dict[str, Any] = {"study": posterior.study.model_dump(mode="json")}
    if posterior.assignment is not None:
        plain["assignment"] = replace(posterior.assignment, ids=None)  # a file is handed on
    stored = {part.name: getattr(posterior, part.name) for part in fields(posterior)}
    return container.split(stored | plain, "", arrays), arrays


def _declared(path: str) -> Array:
    return ARRAYS[container.PLACE_IN_LIST.sub("", path)]


def _shared(arrays: Arrays, name: str) -> NDArray[Any]:
    """Return the shared values that stand beside the silos' own; these are of the last draws."""
    return arrays[SHARED[name]][-len(arrays[name]) :, None]


def load(path: str | Path) -> Posterior:
    """Read a posterior that `Posterior.save` wrote, or that is in a folder of results.

    Raises
    ------
    FileError
        When the file is missing, damaged, of another version, or not a saved posterior.

    Examples
    --------
    >>> path = posterior.save("posterior.silomix")
    >>> again = silomix.load(path)
    >>> bool((again.weights == posterior.weights).all())
    True
    """
    source = Path(path, SAVED) if Path(path).is_dir() else Path(path)
    try:
        document, arrays = _unpack(source.read_bytes())
        for name in SHARED.keys() & arrays.keys():
            np.copyto(arrays[name], _shared(arrays, name), where=np.isnan(arrays[name]))
        study = document["study"] = Study(**document["study"])
        _check_arrays(arrays, study)
        if "assignment.membership" in arrays:
            membership = from_parts(arrays["assignment.membership"])
            labels = {"assignment.labels": membership.argmax(axis=1)}
            arrays |= labels | {"assignment.membership": membership}
        parts = {"posterior": container.join(document, "", arrays)}
        posterior: Posterior = container.validate(READER, parts).posterior
        _check_records(posterior, arrays)
    except OSError as error:
        raise FileError(f"{source} cannot be read: {error.strerror}; check the path") from None
    except (FileError, MessageError, SettingsError) as error:
        reason = str(error)
    except MISFITS:
        reason = "its parts do not fit each other"
    else:
        return posterior
    raise FileError(
        f"{source} is not a saved posterior, is damaged or truncated, or was saved by another "
        f"version of silomix: {reason}; give a file that posterior.save wrote"
    )


def _unpack(content: bytes) -> tuple[dict[str, Any], Arrays]:
    """Return the document and the arrays; refuse what unfolds to more than it should."""
    unfolding = zlib.decompressobj(wbits=GZIP)
    most = min(max(UNFOLDS * len(content), ALWAYS), container.LARGEST_MESSAGE)
    whole = unfolding.decompress(content, most)
    if unfolding.unconsumed_tail or unfolding.unused_data or not unfolding.eof:
        raise FileError("it ends early, or claims to hold more than it does")
    arrays = container.load_arrays(whole)
    document = container.read_json(arrays.pop(DOCUMENT).tobytes())
    head = {name: document.pop(name, None) for name in HEAD}
    if head != HEAD:
        raise FileError(f"it calls itself {head!r:.80}, and this silomix reads {HEAD}")
    return document, arrays


def _check_arrays(arrays: Arrays, study: Study) -> None:
    """Refuse arrays that do not fit the study or each other, and impossible values."""
    family = study.pooled_model.family
    sizes = {"silo": len(study.silos), "parameter": int(family.starts[-1]), "finding": 4}
    sizes |= {"variable": len(family.variables), "cluster": arrays["weights"].shape[1]}
    for name, array in arrays.items():
        declared, field = _declared(name), container.PLACE_IN_LIST.sub("", name)
        is_number = "parameter" in declared.axes and not family.is_categorical
        if is_number:
            declared = replace(declared, least=Array.least, most=Array.most)
        elif field in NUMBERED:
            declared = replace(declared, most=sizes[NUMBERED[field]] - 1)
        try:
            declared.check(np.zeros_like(array) if name.endswith(".movement") else array)
        except ValueError as error:
            raise FileError(f"its array {name!r} {error}") from None
        axes = [axis + name.removeprefix(field) for axis in declared.axes]
        fits = tuple(map(sizes.setdefault, axes, array.shape))
        problem = family.problems(array, together=False) if is_number else ""
        if problem or array.shape != fits:
            shape = f"has the shape {array.shape}, and {fits} would fit the rest: {sizes}"
            raise FileError(f"its array {name!r} {problem or shape}")
    draws, kappas, some = (sizes.get(f"{of}draw", 1) for of in ("", "kappa_", "silo_"))
    counts = [length for axis, length in sizes.items() if axis.startswith("own_cluster")]
    possible = kappas in {1, draws} and 1 <= some <= draws and sizes["cluster"] > 0 and all(counts)
    if not possible or sum(counts) != sizes.get("local_cluster", sum(counts)):
        raise FileError(f"its arrays cannot have the lengths {sizes}")


def _check_records(posterior: Posterior, arrays: Arrays) -> None:
    """Refuse parts that are of another study, and arrays that are no part."""
    study, made, match = posterior.study, posterior.provenance, posterior.correspondence
    if digest(study) != made.study:
        raise FileError("its study has another digest than its provenance says")
    for part in (made, match, posterior.silo_weights):
        if part and part.silos != study.silos:
            raise FileError(f"its study has other silos than its {type(part).__name__} names")
    if match and not len(match.groups) == len(match.sizes) == len(study.silos):
        raise FileError("its correspondence has clusters of other silos than its study's")
    if _separate(posterior)[1].keys() != arrays.keys():
        raise FileError(f"it has arrays that no posterior has, among {', '.join(arrays)!r:.300}")
    posterior.with_names(posterior.names)


def make_datatree(posterior: Posterior) -> xr.DataTree:
    """Return draws, traces and provenance in the shape that ArviZ reads; extra "arviz".

    - ``posterior``: weights, weights_by_silo and probabilities; where silos have profiles of their
      own, spread: how much they differ in each variable, as in `Posterior.drift`. Chains are those
      of the polish or of the exact strategy; without either, all draws form one, which has no order
      in time.
    - ``last_draws``: probabilities_by_silo, the silos' own profiles, kept for some draws alone, in
      one chain; ``of_chain`` and ``of_draw`` say which of the posterior's.
    - Where some variables are numbers, parameters and parameters_by_silo stand in their place, in
      the units of the table.
    - ``traces``: such as the objective along the aggregation's steps.
    - ``constant_data``: how much each silo counts, and spread where it is a point value.

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
    coords: dict[str, Any] = {
        "cluster": posterior.cluster_names if posterior.names else range(posterior.n_clusters),
        "silo": list(posterior.silos),
        axis: [("=" if i < levels else " ").join(name) for i, name in enumerate(names)],
        "variable_name": [v.name for v in posterior.family.variables],
    }
    places = global_posterior.find_chains(posterior)
    groups: dict[str, dict[str, Any]] = {}
    for group, name, axes, values in _variables(posterior, axis):
        by_chain = values[places] if group == "posterior" else values[None]
        groups.setdefault(group, {})[name] = (axes, by_chain if "draw" in axes else values)
    datasets = {"/": xr.Dataset(attrs=attrs)}
    for group, variables in groups.items():
        data = xr.Dataset(variables, attrs=attrs)
        counted = {axis: range(data.sizes.get(axis, 0)) for axis in ("chain", "draw")}
        named = {axis: names for axis, names in (coords | counted).items() if axis in data.dims}
        if group == "last_draws":
            last = np.argsort(places, axis=None)[-data.sizes["draw"] :]
            of_chain, of_draw = np.unravel_index(last, places.shape)
            named |= {"of_chain": ("draw", of_chain), "of_draw": ("draw", of_draw)}
        datasets[group] = data.assign_coords(named)
    return xr.DataTree.from_dict(datasets)


def _variables(
    posterior: Posterior, axis: str
) -> Iterator[tuple[str, str, list[str], NDArray[Any]]]:
    """Yield the variables of the tree: group, name, axes, and values without the axis of chains."""
    draw, drifting, weighed = ["chain", "draw"], posterior.silo_profiles, posterior.silo_weights
    # the variable with all axes first: arviz-stats 0.8 mixes up the lines of a summary of several
    # variables if their axes first appear in another order
    yield "posterior", "weights_by_silo", [*draw, "silo", "cluster"], posterior.weights_by_silo
    yield "posterior", "weights", [*draw, "cluster"], posterior.weights
    profiles = "probabilities" if axis == "level" else "parameters"
    yield "posterior", profiles, [*draw, "cluster", axis], posterior.parameters
    if drifting is not None:
        axes, described = [*draw, "silo", "cluster", axis], posterior.family.describe
        yield "last_draws", f"{profiles}_by_silo", axes, described(drifting.parameters)
        # κ itself is infinite where silos are alike, which no figure can show
        spread = spread_of(drifting.kappa, posterior.family)
        if len(spread) == posterior.n_draws:
            yield "posterior", "spread", [*draw, "variable_name"], spread
        else:
            yield "constant_data", "spread", ["variable_name"], spread[0]
    if weighed is not None:
        yield "constant_data", "silo_weights", ["silo"], weighed.weights
        yield "constant_data", "silo_profiles", ["silo", "cluster"], weighed.profiles
    polish = posterior.diagnostics.polish
    traces = {f"polish_{name}": trace for name, trace in polish.values.items()} if polish else {}
    if posterior.diagnostics.elbo is not None:
        traces["elbo"] = posterior.diagnostics.elbo
    for name, trace in traces.items():
        yield "traces", name, [f"{name}_dim_{axis}" for axis in range(trace.ndim)], trace
