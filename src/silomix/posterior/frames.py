"""Posterior -> frames for people, in the library that their table came in."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import narwhals as nw
import numpy as np

from silomix.errors import MissingDependency, SettingsError, SilomixError
from silomix.metrics import highest_density_interval
from silomix.posterior.alike import silo_extremes, spread, summarise_kappa
from silomix.roster import did_you_mean
from silomix.words import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from silomix.posterior.record import Posterior
    from silomix.types import SiloProfiles

    Column = NDArray[Any] | list[Any]

Backend = Literal["pandas", "polars", "pyarrow"]
Layout = Literal["tidy", "wide"]

BACKENDS: dict[object, Backend] = {name: name for name in get_args(Backend)}


def backend_of(table: Any) -> Backend:
    """Return the library to answer in when someone gave this table: pandas for a path."""
    if isinstance(table, str | Path):
        return "pandas"
    library = nw.from_native(table).implementation.value
    return BACKENDS.get(library, "pandas")


def summary(posterior: Posterior, level: float, frame_like: object) -> Any:
    """Return every size and every level probability, cluster by cluster."""
    clusters, levels = posterior.n_clusters, posterior.levels
    columns = len(levels) + 1
    both = np.concatenate([posterior.weights[:, :, None], posterior.probabilities], axis=2)
    return make_frame(
        {
            "cluster": np.repeat(np.arange(clusters), columns),
            "quantity": ["size", *["probability"] * len(levels)] * clusters,
            "variable": [None, *(variable for variable, _ in levels)] * clusters,
            "level_name": [None, *(name for _, name in levels)] * clusters,
            **estimates(both, level),
        },
        frame_like,
        posterior,
    )


def cluster_sizes(posterior: Posterior, level: float, frame_like: object) -> Any:
    """Return one line per cluster: its share of all rows."""
    columns = {
        "cluster": np.arange(posterior.n_clusters),
        **estimates(posterior.weights, level),
    }
    return make_frame(columns, frame_like, posterior)


def profiles(
    posterior: Posterior, level: float, silo: str | None, layout: Layout, frame_like: object
) -> Any:
    """Return the level probabilities, a line each, or their means with a column per cluster."""
    clusters, levels = posterior.n_clusters, posterior.levels
    probabilities = posterior.probabilities if silo is None else _profiles_of(posterior, silo)
    names = {"variable": [v for v, _ in levels], "level_name": [name for _, name in levels]}
    if layout == "wide":
        means = probabilities.mean(axis=0, dtype=np.float64)
        wide = {f"cluster {cluster}": mean for cluster, mean in enumerate(means)}
        return make_frame({**names, **wide}, frame_like, posterior)
    if layout != "tidy":
        raise SettingsError(f"layout is {layout!r}; it must be one of {get_args(Layout)}")
    tidy = {
        "cluster": np.repeat(np.arange(clusters), len(levels)),
        **{name: values * clusters for name, values in names.items()},
        **estimates(probabilities, level),
    }
    return make_frame(tidy, frame_like, posterior)


def _profiles_of(posterior: Posterior, silo: str) -> NDArray[np.floating]:
    """Return the draws of a silo's own profiles: (draw, cluster, level)."""
    silo = str(silo)
    if silo not in posterior.silos:
        raise SettingsError(
            f"silo is {silo!r}{did_you_mean(silo, posterior.silos)}; it must be a silo of the "
            f"posterior: {quoted(posterior.silos)}"
        )
    own = posterior.silo_profiles
    if own is None:
        return posterior.probabilities
    return own.probabilities[:, posterior.silos.index(silo)]


def drift(posterior: Posterior, level: float, frame_like: object) -> Any:
    """Return one line per variable: how much the silos differ in it, and where most."""
    own = silo_profiles_of(posterior)
    schema = posterior.study.table_schema
    kappa = summarise_kappa(own.kappa, level)
    extremes = silo_extremes(own.probabilities, schema.offsets)
    cluster, column = _largest(extremes.difference, schema.offsets)
    difference = extremes.difference[cluster, column]
    # point values are often the same for all variables; nan sorts last, and is then everywhere
    order = np.lexsort([-difference, kappa.same, kappa.median])
    cluster, column = cluster[order], column[order]

    def names(places: NDArray[np.int64]) -> list[str | None]:
        # of silos that do not differ at all there are no two to name
        picked = zip(places[cluster, column], difference[order], strict=True)
        return [posterior.silos[place] if gap > 0 else None for place, gap in picked]

    interval = f"{100 * level:g}% equal-tailed" if len(own.kappa) > 1 else "point value"
    columns: dict[str, Column] = {
        "variable": [schema.variables[place].name for place in order],
        "same": kappa.same[order],
        "spread": spread(kappa.median[order]),
        "kappa": kappa.median[order],
        "lower": kappa.lower[order],
        "upper": kappa.upper[order],
        "interval": [interval] * len(order),
        "cluster": cluster,
        "level_name": [posterior.levels[place][1] for place in column],
        "highest_silo": names(extremes.highest),
        "highest": extremes.top[cluster, column],
        "lowest_silo": names(extremes.lowest),
        "lowest": extremes.bottom[cluster, column],
        "difference": difference[order],
    }
    return make_frame(columns, frame_like, posterior)


def _largest(
    difference: NDArray[np.float64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the cluster and the level column of each variable's largest: (variable,) both."""
    clusters, columns = [], []
    for start, stop in pairwise(offsets):
        cluster, column = divmod(int(difference[:, start:stop].argmax()), int(stop - start))
        # where nothing differs, the last level, as for a variable that differs
        silent = difference[cluster, start + column] == 0
        clusters.append(cluster)
        columns.append(stop - 1 if silent else start + column)
    return np.array(clusters), np.array(columns)


def silo_profiles_of(posterior: Posterior) -> SiloProfiles:
    """Return the silos' own profiles.

    Raises
    ------
    SilomixError
        When a cluster has one profile everywhere; the message says why.
    """
    if posterior.silo_profiles is not None:
        return posterior.silo_profiles
    raise SilomixError(f"this posterior has no drift: {no_drift(posterior)}")


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


def correspondence_frame(posterior: Posterior, frame_like: object) -> Any:
    """Return one line per silo and local cluster: its rows, global cluster and confidence."""
    found = posterior.correspondence
    if found is None:
        raise SilomixError(
            "this posterior has no correspondence: its silos did not find clusters of their "
            "own that had to be matched"
        )
    counts = [len(group) for group in found.groups]
    columns: dict[str, Column] = {
        "silo": [name for name, n in zip(found.silos, counts, strict=True) for _ in range(n)],
        "local_cluster": np.concatenate([np.arange(count) for count in counts]),
        "rows": np.concatenate(found.sizes),
        "cluster": np.concatenate(found.groups),
        "confidence": np.concatenate(found.pairs_confidence()),
    }
    return make_frame(columns, frame_like, posterior)


def silo_weights_frame(posterior: Posterior, frame_like: object) -> Any:
    """Return one line per silo and cluster: the silo's say in the weights and in the profile."""
    found = posterior.silo_weights
    if found is None:
        raise SilomixError(
            "this posterior has no silo weights: its draws are not weighted means of the silos'"
        )
    silos, clusters = found.profiles.shape
    columns: dict[str, Column] = {
        "silo": [name for name in found.silos for _ in range(clusters)],
        "weight": np.repeat(found.weights, clusters),
        "cluster": np.tile(np.arange(clusters), silos),
        "profile": found.profiles.ravel(),
    }
    return make_frame(columns, frame_like, posterior)


def estimates(draws: NDArray[np.floating], level: float) -> dict[str, Column]:
    """Return columns that sum up draws (draw, …): mean, sd, and an interval that says its level."""
    lower, upper = highest_density_interval(draws, level)
    return {
        "mean": draws.mean(axis=0, dtype=np.float64).ravel(),
        "sd": draws.std(axis=0, dtype=np.float64).ravel(),
        "lower": lower.ravel(),
        "upper": upper.ravel(),
        "interval": [f"{100 * level:g}% HDI"] * lower.size,
    }


def make_frame(columns: Mapping[str, Column], frame_like: object, posterior: Posterior) -> Any:
    """Return a frame of the library that `frame_like`, or else the posterior, names."""
    backend = posterior.backend if frame_like is None else _library(frame_like)
    lists = {
        name: column if isinstance(column, list) else column.tolist()
        for name, column in columns.items()
    }
    try:
        import_module(backend)
    except ImportError:
        raise MissingDependency(
            f"this posterior answers in {backend} frames, and {backend} is not installed: "
            f"pip install {backend}, or ask with frame_like='pandas'"
        ) from None
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
