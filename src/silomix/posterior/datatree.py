"""Posterior -> xarray DataTree, in the shape that ArviZ reads.

- ``posterior``: weights (chain, draw, cluster), weights_by_silo (chain, draw, silo, cluster) and
  probabilities (chain, draw, cluster, level); where silos have profiles of their own, kappa (chain,
  draw, variable_name). All draws form one chain: those of one index come from different silos and
  have no order in time.
- ``last_draws``: probabilities_by_silo (chain, draw, silo, cluster, level), the silos' own
  profiles, kept for the last draws alone; the coordinate ``draw`` says which of the posterior's.
- ``sample_stats``: traces with one value for each draw.
- ``traces``: the other traces, such as the objective along the aggregation's steps.
- ``constant_data``: the silos' say in the aggregation, and kappa (variable_name) where it is a
  point value.

Provenance stands in the attributes of the root and of every group.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import MissingDependency

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

    from silomix.posterior.record import Posterior

    Variable = tuple[list[str], NDArray[Any]]


def make_datatree(posterior: Posterior) -> xr.DataTree:
    """Return draws, traces and provenance as one tree; extra "arviz"."""
    try:
        import xarray as xr
    except ImportError:
        raise MissingDependency("to_datatree needs xarray: pip install 'silomix[arviz]'") from None
    coords = _coords(posterior)
    groups = {
        "posterior": _draws(posterior),
        "last_draws": _last_draws(posterior),
        "sample_stats": _sample_stats(posterior),
        "traces": _traces(posterior),
        "constant_data": _constants(posterior),
    }
    attrs = _attributes(posterior)
    own = {"last_draws": {"draw": _last(posterior)}}
    datasets = {
        f"/{name}": _dataset(xr, variables, coords | own.get(name, {}), attrs)
        for name, variables in groups.items()
        if variables
    }
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attrs), **datasets})


def _dataset(
    xr: Any, variables: dict[str, Variable], coords: dict[str, Variable], attrs: dict[str, Any]
) -> Any:
    used = {dim for dims, _ in variables.values() for dim in dims}
    own = {name: coord for name, coord in coords.items() if coord[0][0] in used}
    return xr.Dataset(variables, coords=own, attrs=attrs)


def _coords(posterior: Posterior) -> dict[str, Variable]:
    levels = posterior.levels
    return {
        "chain": (["chain"], np.arange(1)),
        "draw": (["draw"], np.arange(posterior.n_draws)),
        "cluster": (["cluster"], np.arange(posterior.n_clusters)),
        "silo": (["silo"], np.array(posterior.silos)),
        "level": (["level"], np.array([f"{variable}={name}" for variable, name in levels])),
        "variable": (["level"], np.array([variable for variable, _ in levels])),
        "level_name": (["level"], np.array([name for _, name in levels])),
        # the name "variable" is taken: it says whose a level is
        "variable_name": (
            ["variable_name"],
            np.array([variable.name for variable in posterior.study.table_schema.variables]),
        ),
    }


def _last(posterior: Posterior) -> Variable:
    """Return which of the draws have the silos' own profiles."""
    own = posterior.silo_profiles
    kept = 0 if own is None else len(own.probabilities)
    return ["draw"], np.arange(posterior.n_draws - kept, posterior.n_draws)


def _draws(posterior: Posterior) -> dict[str, Variable]:
    own = posterior.silo_profiles
    kappa: dict[str, Variable] = {}
    if own is not None and len(own.kappa) == posterior.n_draws:
        kappa["kappa"] = (["chain", "draw", "variable_name"], own.kappa[None])
    return kappa | {
        "weights": (["chain", "draw", "cluster"], posterior.weights[None]),
        "weights_by_silo": (
            ["chain", "draw", "silo", "cluster"],
            posterior.weights_by_silo[None],
        ),
        "probabilities": (["chain", "draw", "cluster", "level"], posterior.probabilities[None]),
    }


def _last_draws(posterior: Posterior) -> dict[str, Variable]:
    own = posterior.silo_profiles
    if own is None:
        return {}
    axes = ["chain", "draw", "silo", "cluster", "level"]
    return {"probabilities_by_silo": (axes, own.probabilities[None])}


def _all_traces(posterior: Posterior) -> dict[str, NDArray[Any]]:
    diagnostics = posterior.diagnostics
    elbo = {} if diagnostics.elbo is None else {"elbo": diagnostics.elbo}
    polish = diagnostics.polish.values if diagnostics.polish else {}
    return elbo | {f"polish_{name}": trace for name, trace in polish.items()}


def _sample_stats(posterior: Posterior) -> dict[str, Variable]:
    return {
        name: (["chain", "draw"], trace[None])
        for name, trace in _all_traces(posterior).items()
        if trace.shape == (posterior.n_draws,)
    }


def _traces(posterior: Posterior) -> dict[str, Variable]:
    return {
        name: ([f"{name}_dim_{axis}" for axis in range(trace.ndim)], trace)
        for name, trace in _all_traces(posterior).items()
        if trace.shape != (posterior.n_draws,)
    }


def _constants(posterior: Posterior) -> dict[str, Variable]:
    found, own = posterior.silo_weights, posterior.silo_profiles
    constants: dict[str, Variable] = {}
    if found is not None and found.silos == posterior.silos:
        constants["silo_weights"] = (["silo"], found.weights)
        constants["silo_profiles"] = (["silo", "cluster"], found.profiles)
    if own is not None and len(own.kappa) != posterior.n_draws:
        constants["kappa"] = (["variable_name"], own.kappa[0])
    return constants


def _attributes(posterior: Posterior) -> dict[str, Any]:
    made = posterior.provenance
    return {
        "inference_library": "silomix",
        "inference_library_version": made.version,
        "study": made.study,
        "seed": made.seed,
        "silos": json.dumps(made.silos),
        "releases": json.dumps(dict(made.releases)),
        "sent": json.dumps({silo: dict(kinds) for silo, kinds in made.sent.items()}),
        "answered": json.dumps({silo: dict(kinds) for silo, kinds in made.answered.items()}),
        "trusted": int(posterior.diagnostics.trusted),
        "verdict": posterior.diagnostics.verdict,
    }
