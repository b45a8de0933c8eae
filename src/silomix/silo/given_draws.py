"""Draws of a mixture that somebody else sampled -> a release: read, align, sum up.

Nothing is known of the model but the weights and parameters of its components. These are put where
they can be any numbers (`silomix.families.parameter.TRANSFORMS`), and their labels, which a
sampler may switch between draws, are aligned there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from silomix.errors import DataError, MissingDependency, PolicyRefusal, SettingsError
from silomix.families.categorical import fit_dirichlet
from silomix.families.parameter import TRANSFORMS
from silomix.messages import Release, ReleasedDiagnostics, Tier
from silomix.messages.container import LARGEST
from silomix.model.diagnostics import judge_traces
from silomix.model.sentences import did_you_mean, quoted
from silomix.silo.release import check_tier
from silomix.study.policy import Policy, echo
from silomix.study.validation import quote

if TYPE_CHECKING:
    from silomix.families.product import Product
    from silomix.kernels.arrays import Floats, Ints

    # of each axis, what its entries are called
    Labels = Sequence[Iterable[object]]

# Draws below which a posterior cannot be summed up.
FEWEST_DRAWS = 20
# By how much the weights of a draw may miss one.
MISSED = 0.01
# Share of the draws in which a cluster must have weight.
MOST_DRAWS = 0.5
# Of a name, and of what another library says of a file.
LONGEST_SAID = 300
# Draws that are tried as the first reference of the alignment, and the most passes from each.
PIVOTS, PASSES = 3, 20


class Given(NamedTuple):
    """The draws of one silo: as they came, or aligned and in free coordinates.

    Attributes
    ----------
    names : of the parameters.
    weights : (chain, draw, component); values : (chain, draw, component, parameter)
    """

    names: tuple[str, ...]
    weights: Floats
    values: Floats

    @property
    def stacked(self) -> tuple[Floats, Floats]:
        """Weights and values, chains one after the other."""
        return tuple(part.reshape(-1, *part.shape[2:]) for part in self[1:])  # type: ignore[return-value]

    def by_name(self) -> Iterator[tuple[str, Floats]]:
        """Yield each parameter's name and values, (chain, draw, component)."""
        yield from zip(self.names, np.moveaxis(self.values, -1, 0), strict=True)

    @property
    def shares(self) -> Floats:
        """The mean weights: (component,)."""
        return np.asarray(self.weights.mean(axis=(0, 1)))


def read_draws(
    draws: Any, silo: str, weights: str, parameters: Sequence[str] | None, component: str | None
) -> Given:
    """Read a silo's draws: arrays by name, or what ArviZ has of a posterior.

    Parameters
    ----------
    draws : {"weights": (draw, component), "parameters": by name (draw, component, …)}, or one array
        of these, (draw, component, parameter), and their "names"; chains may come first. Or a
        DataTree or InferenceData with a group `posterior`, that group, or the path of its netCDF
        file.
    weights, parameters, component : of that group, the variables, and the dimension of components;
        all other variables that have it, and the dimension of the weights, by default.

    Raises
    ------
    DataError
        When something is missing, of another shape, or no number that it can be.
    """
    draws = open_file(Path(draws)) if isinstance(draws, str | Path) else draws
    group = getattr(draws, "posterior", draws)
    try:
        if hasattr(group, "data_vars"):
            return _read_arrays(*_read_group(group, weights, parameters, component))
        return _read_arrays(draws, {})
    except DataError as error:
        raise DataError(f"{silo}: {error.args[0]}", **error.settings) from None


def _check_values(draws: Given) -> None:
    """Refuse numbers that no draws can have."""
    sums = draws.weights.sum(axis=-1)
    every = (("weights", draws.weights), *draws.by_name())
    wrong = [name for name, part in every if not (np.abs(part) <= LARGEST).all()]
    if sums.size < FEWEST_DRAWS:
        raise DataError(f"there are fewer than {FEWEST_DRAWS} draws; give more")
    if wrong:
        text = f"{quoted(wrong)} is NaN or infinite in some draws, or beyond {LARGEST:g}"
        raise DataError(f"{text}; leave those out, or sample again")
    if (least := draws.weights.min()) < 0:
        raise DataError(f"a weight is {least:.3g}; if these are logarithms, give exp of them")
    if (np.abs(sums - 1) > MISSED).any():
        most = float(sums.flat[np.abs(sums - 1).argmax()])
        raise DataError(f"the weights of a draw add up to {most:.3g}; they must add up to 1")


def open_file(path: Path) -> Any:
    """Group `posterior` of a netCDF file, or its root; extra "arviz"."""
    try:
        import h5py
        import xarray as xr
    except ImportError:
        raise MissingDependency("draws in a file need xarray, h5netcdf and h5py", "arviz") from None
    try:
        with h5py.File(path) as file:
            group = "posterior" if "posterior" in file else None
        with xr.open_dataset(path, group=group, engine="h5netcdf") as data:
            return data.load()
    except Exception as error:  # a damaged file can raise anything
        problem = "".join(sign if sign.isprintable() else " " for sign in str(error))[:LONGEST_SAID]
    raise DataError(f"{path} cannot be read as netCDF: {problem}; check the path")


def _read_arrays(arrays: Any, labels: Mapping[str, Labels]) -> Given:
    """Draws by name; `labels` are those of a parameter's further axes, where it has any."""
    _check_mapping(arrays)
    weights, parameters = _as_numbers(arrays["weights"], "weights"), arrays["parameters"]
    if weights.ndim not in {2, 3}:
        text = f"the weights have {weights.ndim} axes"
        raise DataError(f"{text}; give (draw, cluster), or (chain, draw, cluster)")
    if not isinstance(parameters, Mapping):
        parameters = _by_name(parameters, arrays.get("names"), weights.ndim)
    columns: dict[str, Floats] = {}
    for name, values in parameters.items():
        array = _as_numbers(values, str(name))
        if array.shape[: weights.ndim] != weights.shape:
            raise DataError(
                f"{quote(str(name))} has the shape {array.shape}, and must begin with that of the "
                f"weights, {weights.shape}; leave out what does not describe each cluster"
            )
        along = labels.get(name) or [range(size) for size in array.shape[weights.ndim :]]
        columns |= _columns(str(name), array, along)
    wrong = [name for name in columns if not name.isprintable() or len(name) > LONGEST_SAID]
    if wrong or not columns:
        problem = f"cannot be called {quote(wrong[0])}" if wrong else "are none"
        raise DataError(f"parameters {problem}; give each a name of one line that prints")
    values = np.stack(list(columns.values()), axis=-1)
    if weights.ndim == 2:
        weights, values = weights[None], values[None]
    draws = Given(tuple(columns), weights, values)
    _check_values(draws)
    return draws._replace(weights=weights / weights.sum(axis=-1, keepdims=True))


def _check_mapping(arrays: Any) -> None:
    """Refuse what is no mapping, or has no draws."""
    if not isinstance(arrays, Mapping):
        raise DataError(
            f"its draws are of type {type(arrays).__name__}; give a mapping with 'weights' and "
            "'parameters', or a DataTree or InferenceData with a group 'posterior'"
        )
    if lacking := quoted([name for name in ("weights", "parameters") if name not in arrays]):
        text = f"the mapping of its draws has no {lacking}, only {quoted(list(arrays))}"
        raise DataError(f"{text}; give both 'weights' and 'parameters'")


def _by_name(parameters: Any, names: Any, axes: int) -> dict[str, Floats]:
    """Array of parameters by name; the weights have so many axes."""
    array = _as_numbers(parameters, "parameters")
    if array.ndim != axes + 1:
        text = f"the parameters have {array.ndim} axes, and the weights {axes}"
        raise DataError(f"{text}; give the parameters one more, the last")
    if names is None:
        names = [f"parameter {k + 1}" for k in range(array.shape[-1])]
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise DataError(f"'names' is {quote(names)}; give a list of texts")
    names = list(map(str, names))
    if len(names) != array.shape[-1]:
        text = f"there are {len(names)} 'names' for {array.shape[-1]} parameters"
        raise DataError(f"{text}; give a name for each")
    if len(set(names)) < len(names):
        raise DataError(f"two of the 'names' {quoted(names)} are the same; change one")
    return {name: array[..., place] for place, name in enumerate(names)}


def _as_numbers(values: Any, name: str) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except Exception:  # whatever an array's own library raises
        raise DataError(f"{quote(name)} is not an array of numbers; give one") from None
    if not array.size:
        raise DataError(f"{quote(name)} has the shape {array.shape}, and no numbers")
    return array


def _read_group(
    group: Any, weights: str, parameters: Sequence[str] | None, component: str | None
) -> tuple[Mapping[str, Any], dict[str, Labels]]:
    """Arrays of ArviZ's group, and the labels along the further axes of parameters."""
    known = list(map(str, group.data_vars))
    for name in (weights, *(parameters or ())):
        if name not in known:
            text = f"its posterior has no variable {name!r}{did_you_mean(name, known)}, only "
            text += f"{quoted(known)}; name the variables with {{weights}} and {{parameters}}"
            raise DataError(text, weights=None, parameters=None)
    shares = group[weights]
    if not {"chain", "draw"} < set(shares.dims):
        text = f"{weights!r} has the dimensions {quoted(list(map(str, shares.dims)))}"
        raise DataError(f"{text}; it needs 'chain', 'draw', and one of components")
    along = component or str(shares.dims[-1])
    chosen = parameters or [n for n in known if n != weights and along in group[n].dims]
    if not chosen:
        text = f"no variable but {weights!r} has the dimension {along!r}; name those of the "
        raise DataError(text + "components with {parameters}", parameters=None)
    values, labels = dict[str, Any](), dict[str, "Labels"]()
    for name in chosen:
        dims = group[name].dims
        # ArviZ gives each variable dimensions of its own, unless they were named
        of_components = along if along in dims else ("chain", *dims)[-1]
        if of_components in {"chain", "draw"} or not {"chain", "draw"} < set(dims):
            text = f"{name!r} has the dimensions {', '.join(map(str, dims))}, and not {along!r}, "
            text += "that of the weights; leave it out of {parameters}"
            raise DataError(text, parameters=None)
        values[name] = group[name].transpose("chain", "draw", of_components, ...)
        labels[name] = [group[name][dim].values.tolist() for dim in values[name].dims[3:]]
    return {"weights": shares.transpose("chain", "draw", ...), "parameters": values}, labels


def _columns(name: str, array: Floats, labels: Labels) -> dict[str, Floats]:
    """Numbers of a parameter by name: "mu", or "mu[age]" where it has several."""
    named = [",".join(map(str, each)) for each in product(*labels)]
    parts = np.moveaxis(array.reshape(*array.shape[: array.ndim - len(labels)], -1), -1, 0)
    names = [f"{name}[{label}]" for label in named] if labels else [name]
    return dict(zip(names, parts, strict=True))


def guess_transform(values: Sequence[Floats]) -> str:
    """Transform that frees a parameter, by where all its draws lie."""
    low, high = min(map(np.min, values)), max(map(np.max, values))
    return "none" if low <= 0 else "log" if high >= 1 else "logit"


def transform(given: Given, words: Mapping[str, str], smallest: float, silo: str) -> Given:
    """Draws in free coordinates, their labels aligned.

    Components with a weight below `smallest` are as good as empty: they go where there is room.
    """
    if given.weights.max() < smallest:
        raise _too_light(silo, smallest)
    free = np.empty(given.values.shape)
    for place, name in enumerate(given.names):
        with np.errstate(divide="ignore", invalid="ignore"):
            free[..., place] = TRANSFORMS[words[name]][0](given.values[..., place])
        if not np.isfinite(free[..., place]).all():
            raise DataError(
                f"{silo}: {name!r} has values without a {words[name]}; give another of "
                f"{', '.join(map(repr, TRANSFORMS))} in {{transforms}}",
                transforms={name: words[name]},
            )
    weights, points = given._replace(values=free).stacked
    order = align(np.where(weights < smallest, 0.0, weights), points).reshape(given.weights.shape)
    aligned = np.take_along_axis(free, order[..., None], axis=2)
    return Given(given.names, np.take_along_axis(given.weights, order, axis=2), aligned)


def align(weights: Floats, points: Floats) -> Ints:
    """Component of each draw that is cluster 0, 1, …: (draw, cluster).

    Draw by draw, components are assigned to the clusters of a reference so that the squared
    distances, in standard deviations within clusters and weighted by the components' weights, are
    least; the reference is then the mean of all draws so aligned, until nothing changes (Celeux,
    1998; Stephens, 2000). Of a few draws to begin with, the one counts that ends with the least
    spread within clusters.

    Parameters
    ----------
    weights : (draw, component); points : (draw, component, coordinate)
    """
    # the weights tell components apart, too; their arcsine has about the same spread everywhere
    arcs = np.arcsin(np.sqrt(np.minimum(weights, 1.0)))
    points = np.concatenate([points, arcs[..., None]], axis=2)
    pivots = np.unique(np.linspace(0, len(points) - 1, PIVOTS).astype(int))
    return min((_settle(weights, points, points[pivot]) for pivot in pivots), key=lambda f: f[1])[0]


def _settle(weights: Floats, points: Floats, reference: Floats) -> tuple[Ints, float]:
    """Align all draws, beginning with a reference (cluster, coordinate); return the spread, too."""
    order = np.tile(np.arange(weights.shape[1]), (len(weights), 1))
    centre = np.average(points, axis=(0, 1), weights=weights)
    variance = np.average((points - centre) ** 2, axis=(0, 1), weights=weights)
    for _ in range(PASSES):
        scale = np.sqrt(np.maximum(variance, 1e-300))
        own, there = points / scale, reference / scale
        apart = (own**2).sum(axis=2)[:, None] - 2 * np.einsum("jp,tkp->tjk", there, own)
        cost = weights[:, None] * (apart + (there**2).sum(axis=1)[:, None])
        found = np.array([linear_sum_assignment(each)[1] for each in cost])
        aligned = np.take_along_axis(points, found[..., None], axis=1)
        heavy = np.take_along_axis(weights, found, axis=1) + 1e-12
        reference = np.einsum("tj,tjp->jp", heavy / heavy.sum(axis=0), aligned)
        variance = np.average((aligned - reference) ** 2, axis=(0, 1), weights=heavy)
        settled, order = np.array_equal(found, order), found
        if settled:
            break
    return order, float(np.log(np.maximum(variance, 1e-300)).sum())


def drop_empty(given: Given, smallest: float, silo: str) -> Given:
    """Components with a weight of `smallest` in most draws, the heaviest first.

    Where a draw has one of them empty, its parameters are the prior's, and say nothing of the
    cluster: those of other draws take their place.
    """
    weights, values = given.stacked
    held = weights >= smallest
    order = np.argsort(-given.shares, kind="stable")
    kept = order[held.mean(axis=0)[order] >= MOST_DRAWS]
    if not len(kept):
        raise _too_light(silo, smallest)
    values = values.copy()
    for component in kept:
        own = held[:, component]
        values[~own, component] = np.resize(values[own, component], ((~own).sum(), values.shape[2]))
    shares = given.weights[:, :, kept]
    shares = shares / shares.sum(axis=-1, keepdims=True)
    return Given(given.names, shares, values.reshape(given.values.shape)[:, :, kept])


def _too_light(silo: str, smallest: float) -> SettingsError:
    text = f"{silo}: no component has a weight of {{smallest}}; give a smaller number"
    return SettingsError(text, smallest=smallest)


def count_rows(given: Given, alpha: float, silo: str) -> int:
    """Effective number of rows behind weights that vary so: of a Dirichlet, by moments."""
    clusters = len(given.shares)
    if clusters == 1:
        text = f"{silo}: it has a single cluster, whose weight does not tell how many rows it has"
        raise SettingsError(f"{text}; give {{rows}}", rows={silo: ...})
    _, concentration = fit_dirichlet(given.stacked[0][:, None, :], np.array([0, clusters]))
    return max(clusters, round(float(concentration.sum()) - clusters * alpha))


def release_given(
    given: Given, family: Product, rows: int, silo: str, *, tier: Tier, policy: Policy, **about: Any
) -> Release:
    """Release of a silo, as if it had sampled here.

    Parameters
    ----------
    given : aligned, in free coordinates.
    rows : of the silo.
    silo : its name.
    about : its place in the roster, and the digest of the study.

    Raises
    ------
    PolicyRefusal
        When the policy does not allow the tier, or has rules: none can be held against draws.
    """
    check_tier(tier, policy, silo)
    if policy.has_rules:
        raise PolicyRefusal(
            f"{silo}: its policy {policy.name!r} has a minimum count or rounds, and nobody can "
            "tell how much one row moves a posterior that was sampled elsewhere; let the policy's "
            "owner choose one without rules, such as --policy open, or fit the rows with silomix "
            "(`silomix study --preset files`)"
        )
    (block,) = family.blocks
    weights, free = given.stacked
    draws = (free - block.locations) / block.scales
    mean, concentration = family.means(family.valid(family.fit(draws)))
    traces = {
        f"{name} of cluster {cluster}": part[:, :, cluster]
        for cluster in range(len(given.shares))
        for name, part in (("weight", given.weights), *given.by_name())
    }
    sizes = np.maximum(np.rint(rows * given.shares), 1).astype(np.int64)
    is_drawn = tier == "draws"
    return Release(
        silo=silo,
        sizes=sizes,
        known=np.repeat(sizes[:, None], concentration.shape[1], axis=1),
        mean=mean,
        concentration=concentration,
        tier=tier,
        weights=weights.astype(np.float32) if is_drawn else None,
        parameters=draws.astype(np.float32) if is_drawn else None,
        diagnostics=ReleasedDiagnostics.of(
            judge_traces(traces), prior_draws=0.0, sweeps=given.weights.shape[1]
        ),
        policy=echo(policy),
        **about,
    )
