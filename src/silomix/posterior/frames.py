"""Frames of a posterior, in the library that the table came in."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import narwhals as nw
import numpy as np

from silomix.errors import MissingDependency, SilomixError
from silomix.model.metrics import highest_density_interval
from silomix.model.reading import Backend, backend_of
from silomix.model.sentences import one_of
from silomix.posterior import characterise
from silomix.posterior.characterise import MARGIN, PROBABILITY, spread_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from silomix.kernels.arrays import Array, Reals
    from silomix.posterior.global_posterior import Posterior

    Columns = Mapping[Any, Array | list[Any]]

Layout = Literal["tidy", "wide"]


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


def summary(posterior: Posterior, level: float = 0.95, *, frame_like: object = None) -> Any:
    """Return a frame of all cluster sizes and profiles.

    Parameters
    ----------
    level : share of the draws inside the highest-density intervals.
    frame_like : "pandas", "polars", "pyarrow", or a frame of that library; by default the
        library of the table that was given.

    Returns
    -------
    frame
        Columns cluster, quantity ("size", "probability" or, of numbers, "parameter"),
        variable, level_name (of numbers the parameter, as in `profiles`), mean, sd, lower,
        upper, interval (such as "95% HDI").

    Examples
    --------
    >>> frame = posterior.summary(level=0.9)
    >>> len(frame), frame["interval"][0]
    (135, '90% HDI')
    """
    draws = np.concatenate([posterior.weights[:, :, None], posterior.parameters], axis=2)
    names = [(None, None), *posterior.parameter_names]
    columns = by_cluster(posterior, names) | estimates(draws, level)
    words = np.where(posterior.family.shares(), "probability", "parameter")
    quantity = ["size", *words.tolist()] * posterior.n_clusters
    leading = {"cluster": columns["cluster"], "quantity": quantity}
    return make_frame(leading | columns, frame_like, posterior)


def cluster_sizes(posterior: Posterior, level: float = 0.95, *, frame_like: object = None) -> Any:
    """Return a frame of the clusters' shares of all rows; arguments as for `summary`.

    Examples
    --------
    >>> posterior.cluster_sizes()["mean"].round(2).tolist()
    [0.22, 0.21, 0.21, 0.19, 0.17]
    """
    columns = {"cluster": np.arange(posterior.n_clusters)}
    return make_frame(columns | estimates(posterior.weights, level), frame_like, posterior)


def profiles(
    posterior: Posterior,
    level: float = 0.95,
    *,
    silo: str | None = None,
    layout: Layout = "tidy",
    frame_like: object = None,
) -> Any:
    """Return a frame of the clusters' profiles.

    Of a category it has the probabilities of the levels; of a number the "mean" and "sd", of a
    count the "rate", in the column `level_name`, in the units of the table; of a "log-gaussian"
    number the "mean of log" and "sd of log".

    Parameters
    ----------
    level : share of the draws inside the highest-density intervals.
    frame_like : "pandas", "polars", "pyarrow", or a frame of that library.
    silo : the silo whose own profiles these are; by default, the profiles that the silos
        share. Where a cluster has one profile everywhere, the two are the same.
    layout : "tidy" has a line per cluster and level or parameter, "wide" a line per level or
        parameter and the mean in a column per cluster.

    Examples
    --------
    >>> posterior.profiles(layout="wide").columns.tolist()[:4]
    ['variable', 'level_name', 'cluster 0', 'cluster 1']
    >>> posterior.profiles(silo="silo 2").shape
    (130, 8)
    """
    one_of("layout", layout, get_args(Layout))
    draws, named = posterior.profile_draws, posterior.parameter_names
    if silo is not None:
        one_of("silo", str(silo), posterior.silos)
        if posterior.silo_profiles is not None:
            draws = posterior.silo_profiles.parameters[:, posterior.silos.index(str(silo))]
    draws = posterior.family.describe(draws)
    if layout == "tidy":
        columns = by_cluster(posterior, named) | estimates(draws, level)
    else:
        variables, names = map(list, zip(*named, strict=True))
        means = enumerate(draws.mean(axis=0, dtype=np.float64))
        columns = {"variable": variables, "level_name": names}
        columns |= {f"cluster {posterior.cluster_names[c]}": mean for c, mean in means}
    return make_frame(columns, frame_like, posterior)


def contrast(
    posterior: Posterior,
    cluster: int | str | None = None,
    level: float = 0.95,
    *,
    margin: float = MARGIN,
    frame_like: object = None,
) -> Any:
    """Return a frame of differences between clusters and whole population, clearest first.

    Parameters
    ----------
    cluster : the only one to describe, by number or name; by default, all of them in turn.
    level, frame_like : as for `summary`; `level` is that of the interval of the difference.
    margin : smallest scaled difference to mention; 0 makes `probability` that of the sign.

    Returns
    -------
    frame
        A line for each cluster and level, the first of two left out, or mean of a number:

        - cluster, variable, level_name: as in `profiles`.
        - mean, whole: the level's probability, or the number's mean, in the cluster and in
          all rows, the cluster's included.
        - difference, lower, upper, interval: between the two, in the units of the table; of a
          "log-gaussian" number, of its logarithms.
        - scaled: the difference of a level over √(w(1 − w)), w its probability in the whole; of
          a number, over the standard deviation within clusters; of a rate, the logarithm of
          the ratio.
        - probability: that the scaled difference is on this side of zero, by more than
          `margin`.
        - sets_apart: whether this is at least 0.95, each line by itself.

    Examples
    --------
    >>> frame = posterior.contrast(cluster=3)
    >>> frame.shape, bool(frame["sets_apart"][0])
    ((22, 12), True)
    """
    chosen = [] if cluster is None else [posterior._find_cluster(cluster)]
    family, parameters = posterior.family, posterior.profile_draws
    contrasts = characterise.contrast(posterior.weights, parameters, family, margin)
    overall = family.describe(family.whole(parameters, posterior.weights))
    shown, names = np.flatnonzero(family.tells()), np.array(family.names(), dtype=object)
    sure = np.where(contrasts.scaled > 0, contrasts.high, contrasts.low)
    parts: list[Columns] = []
    for number in chosen or range(posterior.n_clusters):
        order = shown[np.argsort(-np.abs(contrasts.scaled[number, shown]), kind="stable")]
        inside = family.describe(parameters[:, number])[:, order]
        difference = estimates(inside.astype(np.float64) - overall[:, order], level)
        parts.append(
            {
                "cluster": np.full(len(order), number),
                "variable": names[order, 0],
                "level_name": names[order, 1],
                "mean": inside.mean(axis=0, dtype=np.float64),
                "whole": overall[:, order].mean(axis=0, dtype=np.float64),
                "difference": difference["mean"],
                **{name: difference[name] for name in ("lower", "upper", "interval")},
                "scaled": contrasts.scaled[number, order],
                "probability": sure[number, order],
                "sets_apart": sure[number, order] >= PROBABILITY,
            }
        )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return make_frame(columns, frame_like, posterior)


def drift(posterior: Posterior, level: float = 0.95, *, frame_like: object = None) -> Any:
    """Return a frame of the drift between silos in each variable, the largest first.

    A silo's profile of a cluster is Dirichlet(κ m) around the shared one, m, with one κ for
    each variable: the larger κ, the more alike the silos are; at infinity they are the same.
    A silo's mean of a number is N(m, σ²/(κ + 1)), its rate of a count r has the variance
    r/(κ + 1).

    Parameters
    ----------
    level, frame_like : as for `summary`; `level` is that of the interval of κ.

    Returns
    -------
    frame
        A line per variable, with these columns:

        - variable: its name.
        - same: the posterior probability that the silos are alike in it, κ = ∞.
        - spread: the standard deviation between silos of a probability of one half, at the
          median of κ: √(0.25/(κ + 1)), 0 where the silos are alike. Of numbers and counts,
          that of their mean, in standard deviations within a cluster: 1/√(κ + 1).
        - kappa, lower, upper: the median of κ and an interval; infinity is a value.
        - interval: such as "95% equal-tailed"; "point value" where no polish sampled κ, and
          `same`, `lower` and `upper` are nan.
        - cluster, level_name: where two silos differ most in this variable.
        - highest_silo, highest, lowest_silo, lowest: these two silos, and the posterior mean
          of the level's probability, or of the number's "mean" or "rate", in each; no names
          where all silos are the same.
        - difference: between the two.

    Raises
    ------
    SilomixError
        When a cluster has one profile everywhere, as with drift="none" or a single silo.

    Examples
    --------
    >>> posterior.drift()[["variable", "same", "spread"]].shape
    (10, 3)
    """
    drawn, family = posterior.silo_profiles, posterior.family
    if drawn is None:
        raise SilomixError(f"this posterior has no drift: {no_drift(posterior)}")
    # quantiles that are draws: between a finite one and infinity there is nothing to interpolate
    at = [0.5, (1 - level) / 2, (1 + level) / 2]
    kappa, lower, upper = np.quantile(drawn.kappa, at, axis=0, method="inverted_cdf")
    same, interval = np.isinf(drawn.kappa).mean(axis=0), f"{100 * level:g}% equal-tailed"
    if len(drawn.kappa) == 1:
        lower, upper, same = np.full((3, len(kappa)), np.nan)
        interval = "point value"
    means = drawn.parameters.mean(axis=0, dtype=np.float64)
    # where two silos differ most; a silo without rows in a cluster has the shared profile there
    tells, most = family.tells(), []
    for start, stop in pairwise(family.starts):
        columns_of = start + np.flatnonzero(tells[start:stop])
        gaps = np.ptp(means[:, :, columns_of], axis=0)
        number, place = np.unravel_index(gaps.argmax(), gaps.shape)
        # where nothing differs, the last one
        most.append((number, columns_of[place if gaps.any() else -1]))
    cluster, column = np.transpose(most)
    # in the units of the study, in which numbers can be compared with each other
    gap = np.ptp(means[:, cluster, column], axis=0)
    # (silo, variable): the probabilities of the level in which two silos differ most, or means
    apart = family.describe(means)[:, cluster, column]
    difference = np.ptp(apart, axis=0)
    # of silos that do not differ at all there are no two to name
    names = np.array([*posterior.silos, None], dtype=object)
    places = np.where(difference > 0, [apart.argmax(axis=0), apart.argmin(axis=0)], -1)
    highest, lowest = names[places]
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
    columns = {name: values[order] for name, values in columns.items()}
    return make_frame(columns, frame_like, posterior)


def correspondence_frame(posterior: Posterior, *, frame_like: object = None) -> Any:
    """Return a frame of the silos' local clusters and the clusters they belong to.

    Examples
    --------
    >>> frame = posterior.correspondence_frame()
    >>> frame.columns.tolist()
    ['silo', 'local_cluster', 'rows', 'cluster', 'confidence']
    >>> int(frame["rows"].sum())
    400
    """
    match = posterior.correspondence
    if match is None:
        raise SilomixError(
            "this posterior has no correspondence: its silos did not find clusters of their "
            "own that had to be matched"
        )
    counts = [len(group) for group in match.groups]
    columns = {
        "silo": np.repeat(match.silos, counts),
        "local_cluster": np.concatenate([np.arange(count) for count in counts]),
        "rows": np.concatenate(match.sizes),
        "cluster": np.concatenate(match.groups),
        "confidence": np.concatenate(match.pairs_confidence()),
    }
    return make_frame(columns, frame_like, posterior)


def silo_weights_frame(posterior: Posterior, *, frame_like: object = None) -> Any:
    """Return a frame of each silo's influence on the weights, and on each cluster's profile.

    Examples
    --------
    >>> posterior.silo_weights_frame().columns.tolist()
    ['silo', 'weight', 'cluster', 'profile']
    """
    influence = posterior.silo_weights
    if influence is None:
        raise SilomixError(
            "this posterior has no silo weights: its draws are not weighted means of the silos'"
        )
    silos, clusters = influence.profiles.shape
    columns = {
        "silo": np.repeat(influence.silos, clusters),
        "weight": np.repeat(influence.weights, clusters),
        "cluster": np.tile(np.arange(clusters), silos),
        "profile": influence.profiles.ravel(),
    }
    return make_frame(columns, frame_like, posterior)


def no_drift(posterior: Posterior) -> str:
    """Reason why the silos of a posterior have no profiles of their own, and advice."""
    if len(posterior.silos) == 1:
        return "it has a single silo, and no other to differ from"
    if posterior.study.model.drift == "none":
        return (
            "the study says drift = 'none', so that a cluster has one profile in all silos; "
            "fit again with drift 'learn' to see how the silos differ"
        )
    return "the silos' own profiles were not kept; fit again with drift 'learn'"
