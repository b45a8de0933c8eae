"""Frames of a posterior, in the library that the table came in, and the columns of some."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import narwhals as nw
import numpy as np

from silomix.errors import MissingDependency, SilomixError
from silomix.model.metrics import highest_density_interval
from silomix.model.sentences import one_of
from silomix.posterior.characterise import PROBABILITY, contrast, spread_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from silomix.families.product import Product
    from silomix.kernels.arrays import Array, Floats, Ints, Reals
    from silomix.posterior.global_posterior import Posterior

    Columns = Mapping[str, Array | list[Any]]

Backend = Literal["pandas", "polars", "pyarrow"]
Layout = Literal["tidy", "wide"]


def backend_of(table: Any) -> Backend:
    """Return the library to answer in when someone gave this table: pandas for a path."""
    library = getattr(nw.from_native(table, pass_through=True), "implementation", None)
    return next((name for name in get_args(Backend) if library and library.value == name), "pandas")


def make_frame(columns: Columns, frame_like: object, posterior: Posterior) -> Any:
    """Return a frame of the library that `frame_like`, or else the posterior, names."""
    backend: Any = posterior.backend if frame_like is None else frame_like
    if not isinstance(backend, str):
        backend = backend_of(backend) if hasattr(backend, "columns") else type(backend).__name__
    one_of("frame_like", backend, get_args(Backend))
    # as lists, whose types every library finds by itself
    lists = {}
    for name, column in columns.items():
        lists[name] = column if isinstance(column, list) else column.tolist()
        if name == "cluster" and posterior.names:
            lists["name"] = [posterior.names.get(cluster, "") for cluster in lists[name]]
    try:
        return nw.from_dict(lists, backend=backend).to_native()
    except ImportError:
        raise MissingDependency(
            f"this posterior answers in {backend} frames, and {backend} is not installed: "
            f"pip install {backend}, or ask with frame_like='pandas'"
        ) from None


def by_cluster(posterior: Posterior, names: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Return columns that name lines: all of these parameters in each cluster."""
    clusters = posterior.n_clusters
    return {
        "cluster": np.repeat(np.arange(clusters), len(names)),
        "variable": [variable for variable, _ in names] * clusters,
        "level_name": [name for _, name in names] * clusters,
    }


def estimates(draws: Reals, level: float) -> dict[str, Any]:
    """Return columns that sum up draws (draw, …): mean, sd, and an interval that says its level."""
    lower, upper = highest_density_interval(draws, level)
    return {
        "mean": draws.mean(axis=0, dtype=np.float64).ravel(),
        "sd": draws.std(axis=0, dtype=np.float64).ravel(),
        "lower": lower.ravel(),
        "upper": upper.ravel(),
        "interval": [f"{100 * level:g}% HDI"] * lower.size,
    }


def contrast_columns(
    posterior: Posterior, clusters: Iterable[int], level: float, margin: float
) -> dict[str, Any]:
    """Return columns with a line for each cluster and parameter, the clearest first."""
    family = posterior.family
    found = contrast(posterior.weights, posterior.profile_draws, family, margin)
    overall = family.describe(family.whole(posterior.profile_draws, posterior.weights))
    shown, names = np.flatnonzero(family.tells()), np.array(family.names(), dtype=object)
    parts = []
    for cluster in clusters:
        order = shown[np.argsort(-np.abs(found.scaled[cluster, shown]), kind="stable")]
        own = family.describe(posterior.profile_draws[:, cluster])[:, order]
        differences = own.astype(np.float64) - overall[:, order]
        lower, upper = highest_density_interval(differences, level)
        scaled = found.scaled[cluster, order]
        sure = np.where(scaled > 0, found.high[cluster, order], found.low[cluster, order])
        parts.append(
            {
                "cluster": np.full(len(order), cluster),
                "variable": names[order, 0],
                "level_name": names[order, 1],
                "mean": own.mean(axis=0, dtype=np.float64),
                "whole": overall[:, order].mean(axis=0, dtype=np.float64),
                "difference": differences.mean(axis=0),
                "lower": lower,
                "upper": upper,
                "interval": np.full(len(order), f"{100 * level:g}% HDI"),
                "scaled": scaled,
                "probability": sure,
                "sets_apart": sure >= PROBABILITY,
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def drift_columns(posterior: Posterior, level: float) -> Columns:
    """Return one line per variable: how much the silos differ in it, and where most."""
    own, family = posterior.silo_profiles, posterior.family
    if own is None:
        raise SilomixError(f"this posterior has no drift: {no_drift(posterior)}")
    # quantiles that are draws: between a finite one and infinity there is nothing to interpolate
    at = [0.5, (1 - level) / 2, (1 + level) / 2]
    kappa, lower, upper = np.quantile(own.kappa, at, axis=0, method="inverted_cdf")
    same, interval = np.isinf(own.kappa).mean(axis=0), f"{100 * level:g}% equal-tailed"
    if len(own.kappa) == 1:
        lower, upper, same = np.full((3, len(kappa)), np.nan)
        interval = "point value"
    means = own.parameters.mean(axis=0, dtype=np.float64)
    cluster, column = _most_apart(means, family)
    # in the units of the study, in which numbers can be compared with each other
    gap = np.ptp(means[:, cluster, column], axis=0)
    # (silo, variable): the probabilities of the level in which two silos differ most, or means
    apart = family.describe(means)[:, cluster, column]
    difference = np.ptp(apart, axis=0)
    # of silos that do not differ at all there are no two to name
    names = np.array([*posterior.silos, None], dtype=object)
    highest, lowest = (
        names[np.where(difference > 0, place, -1)]
        for place in (apart.argmax(axis=0), apart.argmin(axis=0))
    )
    # point values are often the same for all variables; nan sorts last, and is then everywhere
    order = np.lexsort([-gap, same, kappa])
    columns = {
        "variable": np.array([variable.name for variable in family.variables], dtype=object),
        "same": same,
        "spread": spread_of(kappa, family),
        "kappa": kappa,
        "lower": lower,
        "upper": upper,
        "interval": np.full(len(kappa), interval),
        "cluster": cluster,
        "level_name": np.array([family.names()[place][1] for place in column], dtype=object),
        "highest_silo": highest,
        "highest": apart.max(axis=0),
        "lowest_silo": lowest,
        "lowest": apart.min(axis=0),
        "difference": difference,
    }
    return {name: values[order] for name, values in columns.items()}


def _most_apart(means: Floats, family: Product) -> tuple[Ints, Ints]:
    """Return the cluster and the column of each variable in which two silos differ most.

    A silo without rows in a cluster needs no exception: its profile is then the shared one.

    Parameters
    ----------
    means : (silo, cluster, parameter), posterior means.
    """
    tells, found = family.tells(), []
    for start, stop in pairwise(family.starts):
        columns = start + np.flatnonzero(tells[start:stop])
        gaps = np.ptp(means[:, :, columns], axis=0)
        cluster, place = np.unravel_index(gaps.argmax(), gaps.shape)
        # where nothing differs, the last one
        found.append((cluster, columns[place if gaps.any() else -1]))
    return tuple(np.transpose(found))


def no_drift(posterior: Posterior) -> str:
    """Return why the silos of a posterior have no profiles of their own, and what to do."""
    if len(posterior.silos) == 1:
        return "it has a single silo, and no other to differ from"
    if posterior.study.model.drift == "none":
        return (
            "the study says drift = 'none', so that a cluster has one profile in all silos; "
            "fit again with drift 'learn' to see how the silos differ"
        )
    return "the silos' own profiles were not kept; fit again with drift 'learn'"
