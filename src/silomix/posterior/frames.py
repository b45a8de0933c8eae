"""Frames in the library that a table came in, and the DataTree that ArviZ reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import narwhals as nw
import numpy as np

from silomix.errors import MissingDependency, SettingsError, SilomixError
from silomix.model.metrics import highest_density_interval
from silomix.posterior.characterise import silo_extremes, spread, summarise_kappa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import xarray as xr
    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints
    from silomix.posterior.global_posterior import Posterior

    Columns = Mapping[str, NDArray[Any] | list[Any]]

Backend = Literal["pandas", "polars", "pyarrow"]
Layout = Literal["tidy", "wide"]

BACKENDS: dict[object, Backend] = {name: name for name in get_args(Backend)}


def backend_of(table: Any) -> Backend:
    """Return the library to answer in when someone gave this table: pandas for a path."""
    if isinstance(table, str | Path):
        return "pandas"
    return BACKENDS.get(nw.from_native(table).implementation.value, "pandas")


def check_choice(name: str, word: str, choices: Sequence[str]) -> None:
    """Refuse a word that is none of the choices."""
    if word not in choices:
        raise SettingsError(f"{name} is {word!r}; it must be one of {choices}")


def make_frame(columns: Columns, frame_like: object, posterior: Posterior) -> Any:
    """Return a frame of the library that `frame_like`, or else the posterior, names."""
    backend = posterior.backend if frame_like is None else _library(frame_like)
    try:
        import_module(backend)
    except ImportError:
        raise MissingDependency(
            f"this posterior answers in {backend} frames, and {backend} is not installed: "
            f"pip install {backend}, or ask with frame_like='pandas'"
        ) from None
    # as lists, whose types every library finds by itself
    lists = {name: c if isinstance(c, list) else c.tolist() for name, c in columns.items()}
    return nw.from_dict(lists, backend=backend).to_native()


def _library(frame_like: object) -> Backend:
    if isinstance(frame_like, str) and frame_like in BACKENDS:
        return BACKENDS[frame_like]
    try:
        return BACKENDS[nw.from_native(cast("Any", frame_like)).implementation.value]
    except (TypeError, KeyError):
        what = repr(frame_like) if isinstance(frame_like, str) else type(frame_like).__name__
        raise SettingsError(
            f"frame_like is {what:.60}; it must be one of {list(BACKENDS)}, or a frame of theirs"
        ) from None


def estimates(draws: NDArray[np.floating], level: float) -> dict[str, Any]:
    """Return columns that sum up draws (draw, …): mean, sd, and an interval that says its level."""
    lower, upper = highest_density_interval(draws, level)
    return {
        "mean": draws.mean(axis=0, dtype=np.float64).ravel(),
        "sd": draws.std(axis=0, dtype=np.float64).ravel(),
        "lower": lower.ravel(),
        "upper": upper.ravel(),
        "interval": [f"{100 * level:g}% HDI"] * lower.size,
    }


def drift_columns(posterior: Posterior, level: float) -> Columns:
    """Return one line per variable: how much the silos differ in it, and where most."""
    own, schema = posterior.silo_profiles, posterior.study.table_schema
    if own is None:
        raise SilomixError(f"this posterior has no drift: {no_drift(posterior)}")
    kappa = summarise_kappa(own.kappa, level)
    extremes = silo_extremes(own.probabilities, schema.offsets)
    cluster, column = _largest(extremes.difference, schema.offsets)
    # point values are often the same for all variables; nan sorts last, and is then everywhere
    order = np.lexsort([-extremes.difference[cluster, column], kappa.same, kappa.median])
    at = cluster[order], column[order]
    differ = extremes.difference[at] > 0
    # of silos that do not differ at all there are no two to name
    names = np.array([*posterior.silos, None], dtype=object)
    interval = f"{100 * level:g}% equal-tailed" if len(own.kappa) > 1 else "point value"
    return {
        "variable": [schema.variables[place].name for place in order],
        "same": kappa.same[order],
        "spread": spread(kappa.median[order]),
        "kappa": kappa.median[order],
        "lower": kappa.lower[order],
        "upper": kappa.upper[order],
        "interval": [interval] * len(order),
        "cluster": at[0],
        "level_name": [posterior.levels[place][1] for place in at[1]],
        "highest_silo": names[np.where(differ, extremes.highest[at], -1)],
        "highest": extremes.top[at],
        "lowest_silo": names[np.where(differ, extremes.lowest[at], -1)],
        "lowest": extremes.bottom[at],
        "difference": extremes.difference[at],
    }


def _largest(difference: Floats, offsets: Ints) -> tuple[Ints, Ints]:
    """Return the cluster and the level column of each variable's largest: (variable,) both."""
    found = []
    for start, stop in pairwise(offsets):
        cluster, column = divmod(int(difference[:, start:stop].argmax()), int(stop - start))
        # where nothing differs, the last level, as for a variable that differs
        silent = difference[cluster, start + column] == 0
        found.append((cluster, stop - 1 if silent else start + column))
    clusters, columns = np.array(found).T
    return clusters, columns


def no_drift(posterior: Posterior) -> str:
    """Return why the silos of a posterior have no profiles of their own, and what to do."""
    if len(posterior.silos) == 1:
        return "it has a single silo, and no other to differ from"
    if posterior.study.model.drift == "none":
        return (
            "its study says drift = 'none', so that a cluster has one profile in all silos; "
            "fit again with drift='learn' to see how the silos differ"
        )
    return "the silos' own profiles were not kept; fit again with drift='learn'"


def make_datatree(posterior: Posterior) -> xr.DataTree:
    """Return draws, traces and provenance in the shape that ArviZ reads; extra "arviz".

    - ``posterior``: weights, weights_by_silo and probabilities; where silos have profiles of their
      own, kappa. All draws form one chain: those of one index come from different silos and have no
      order in time.
    - ``last_draws``: probabilities_by_silo, the silos' own profiles, kept for the last draws alone;
      the coordinate ``draw`` says which of the posterior's.
    - ``sample_stats``: traces with one value for each draw.
    - ``traces``: the other traces, such as the objective along the aggregation's steps.
    - ``constant_data``: how much each silo counts, and kappa where it is a point value.

    Provenance stands in the attributes of the root and of every group.
    """
    try:
        import xarray as xr
    except ImportError:
        raise MissingDependency("to_datatree needs xarray: pip install 'silomix[arviz]'") from None
    made = asdict(posterior.provenance)
    attrs = {
        "inference_library": "silomix",
        "inference_library_version": made.pop("version"),
        **{name: v if isinstance(v, str | int) else json.dumps(v) for name, v in made.items()},
        "trusted": int(posterior.diagnostics.trusted),
        "verdict": posterior.diagnostics.verdict,
    }
    levels, schema = posterior.levels, posterior.study.table_schema
    coords = {
        "chain": ("chain", [0]),
        "cluster": ("cluster", np.arange(posterior.n_clusters)),
        "silo": ("silo", list(posterior.silos)),
        "level": ("level", [f"{variable}={name}" for variable, name in levels]),
        "variable": ("level", [variable for variable, _ in levels]),
        "level_name": ("level", [name for _, name in levels]),
        # the name "variable" is taken: it says whose a level is
        "variable_name": ("variable_name", [variable.name for variable in schema.variables]),
    }
    datasets = {"/": xr.Dataset(attrs=attrs)}
    for group, variables in _groups(posterior).items():
        data = xr.Dataset(variables, attrs=attrs)
        # the silos' own profiles are of the last draws
        first = posterior.n_draws - data.sizes.get("draw", 0)
        named = coords | {"draw": ("draw", np.arange(first, posterior.n_draws))}
        here = {name: coord for name, coord in named.items() if coord[0] in data.dims}
        if variables:
            datasets[group] = data.assign_coords(here)
    return xr.DataTree.from_dict(datasets)


def _groups(posterior: Posterior) -> dict[str, dict[str, Any]]:
    """Return the variables of the tree, (axes, values), by group and name."""
    draw, own, diagnostics = ["chain", "draw"], posterior.silo_profiles, posterior.diagnostics
    draws: dict[str, Any] = {
        "weights": ([*draw, "cluster"], posterior.weights[None]),
        "weights_by_silo": ([*draw, "silo", "cluster"], posterior.weights_by_silo[None]),
        "probabilities": ([*draw, "cluster", "level"], posterior.probabilities[None]),
    }
    last: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    if own is not None:
        axes = [*draw, "silo", "cluster", "level"]
        last["probabilities_by_silo"] = (axes, own.probabilities[None])
        if len(own.kappa) == posterior.n_draws:
            draws["kappa"] = ([*draw, "variable_name"], own.kappa[None])
        else:
            constants["kappa"] = (["variable_name"], own.kappa[0])
    weighed = posterior.silo_weights
    if weighed is not None and weighed.silos == posterior.silos:
        constants["silo_weights"] = (["silo"], weighed.weights)
        constants["silo_profiles"] = (["silo", "cluster"], weighed.profiles)
    polish = diagnostics.polish.values if diagnostics.polish else {}
    traces = {f"polish_{name}": trace for name, trace in polish.items()}
    if diagnostics.elbo is not None:
        traces["elbo"] = diagnostics.elbo
    stats = {name for name, trace in traces.items() if trace.shape == (posterior.n_draws,)}
    return {
        "posterior": draws,
        "last_draws": last,
        "sample_stats": {name: (draw, traces[name][None]) for name in traces if name in stats},
        "traces": {
            name: ([f"{name}_dim_{axis}" for axis in range(trace.ndim)], trace)
            for name, trace in traces.items()
            if name not in stats
        },
        "constant_data": constants,
    }
