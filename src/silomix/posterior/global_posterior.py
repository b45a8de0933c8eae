"""The global posterior: one frozen record, and the order of its draws."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import FileError, SettingsError, SilomixError
from silomix.model.files import replace_file, writing
from silomix.model.metrics import highest_density_interval
from silomix.model.sentences import check_mapping, listing, plural, quoted
from silomix.posterior import characterise, frames
from silomix.posterior.membership import labels_frame, log_predictive_density
from silomix.posterior.membership import membership as row_membership

if TYPE_CHECKING:
    import xarray as xr

    from silomix.families.product import Product
    from silomix.kernels.arrays import Array, Bools, Ints, Reals, Singles
    from silomix.model.draws import Correspondence, SiloProfiles, SiloWeights
    from silomix.model.reading import Backend
    from silomix.posterior.verdict import PosteriorDiagnostics, Provenance
    from silomix.report.outside_variables import Outside
    from silomix.study import Study


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of a posterior that are numbered by cluster; attributes as in `Posterior`."""

    weights: Reals
    weights_by_silo: Reals
    profile_draws: Reals
    correspondence: Correspondence | None
    silo_weights: SiloWeights | None
    silo_profiles: SiloProfiles | None = None


def ordered(parts: Parts) -> Parts:
    """Number the clusters by size, the largest first; draws become float32."""
    order = np.argsort(-parts.weights.mean(axis=0, dtype=np.float64), kind="stable")
    new = np.argsort(order)
    match, weighed, profiles = parts.correspondence, parts.silo_weights, parts.silo_profiles
    return Parts(
        weights=np.ascontiguousarray(parts.weights[:, order], np.float32),
        weights_by_silo=np.ascontiguousarray(parts.weights_by_silo[:, :, order], np.float32),
        profile_draws=np.ascontiguousarray(parts.profile_draws[:, order], np.float32),
        correspondence=match and replace(match, groups=tuple(new[g] for g in match.groups)),
        silo_weights=weighed and replace(weighed, profiles=weighed.profiles[:, order]),
        silo_profiles=profiles and replace(profiles, parameters=profiles.parameters[:, :, order]),
    )


@dataclass(frozen=True, eq=False)
class Assignment:
    """Clusters of the rows, where the rows are at hand.

    Attributes
    ----------
    labels : (row,), the most probable cluster of each row, from 0, in the order of the table.
    membership : (row, cluster), P(cluster | row), float32, to four decimals.
    silos : (row,), index of each row's silo.
    missing : (silo, variable), missing cells; None where a policy withholds them.
    ids : (row,), identifiers of the rows, if a column has them; not in saved files, which may be
        shared.
    """

    labels: Ints
    membership: Singles
    silos: Ints
    missing: Ints | None = None
    ids: Array | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Posterior(Parts):
    """Draws of the global clusters, with diagnostics and provenance.

    Clusters are numbered from 0, the largest first. Draws are float32: average them in float64.

    Attributes
    ----------
    study : its settings.
    weights : (draw, cluster), each cluster's share of the rows of all silos.
    weights_by_silo : (draw, silo, cluster), its share of each silo's rows.
    profile_draws : (draw, cluster, parameter), the profiles that the silos share, numbers in
        the units of the study. `parameters` has them in those of the table.
    correspondence : which local clusters make up each cluster; None if none were matched.
    silo_weights : each silo's influence; None if the draws are not weighted means.
    diagnostics : whether to trust it.
    provenance : its origin, and the bytes that left each silo.
    silo_profiles : each silo's own profiles; None where a cluster has one profile everywhere.
    assignment : the rows' clusters; None where the rows are elsewhere.
    backend : library of its frames: "pandas", "polars" or "pyarrow".
    names : by number, names of clusters; `with_names` sets them.

    Examples
    --------
    >>> print(posterior)  # doctest: +ELLIPSIS
    Posterior of 5 clusters in 2 silos: 2,048 draws, 10 variables, 26 levels
    ...
    >>> posterior.weights.shape, posterior.weights_by_silo.shape, posterior.probabilities.shape
    ((2048, 5), (2048, 2, 5), (2048, 5, 26))
    >>> posterior.silos, posterior.levels[0], len(posterior.labels)
    (('silo 1', 'silo 2'), ('x1', '1'), 400)
    """

    study: Study
    diagnostics: PosteriorDiagnostics
    provenance: Provenance
    assignment: Assignment | None = None
    backend: Backend = "pandas"
    names: Mapping[int, str] = field(default_factory=dict)

    def with_names(self, names: Mapping[Any, str]) -> Posterior:
        """Return the posterior with named clusters, for frames, files and figures.

        Parameters
        ----------
        names : a mapping from a cluster, by number (1 or "1") or current name, to its new name; the
            others keep only their number.

        Examples
        --------
        >>> named = posterior.with_names({1: "frail"})
        >>> named.cluster_names[:2], named.cluster_sizes()["name"].tolist()[:2]
        (['0', '1: frail'], ['', 'frail'])
        """
        pairs = check_mapping("names", names, "cluster").items()
        names = {self._find_cluster(cluster): str(name).strip() for cluster, name in pairs}
        if not all(names.values()) or len({*names.values()}) < len(names):
            raise SettingsError("a name is empty or used twice; give each cluster its own name")
        return replace(self, names=names)

    def _find_cluster(self, cluster: Any) -> int:
        """Number of a cluster that is given by name or number, which may be text."""
        all_numbers = range(self.n_clusters)
        numbers = {key: number for number in all_numbers for key in (number, str(number))}
        # the shell and R have texts alone; a name that is a number comes first
        numbers |= {name: number for number, name in self.names.items()}
        if not isinstance(cluster, Hashable) or cluster not in numbers:
            by_name = f", or by name: {quoted([*self.names.values()])}" if self.names else ""
            advice = f"they go from 0 to {self.n_clusters - 1}{by_name}"
            raise SettingsError(f"there is no cluster {cluster!r}; {advice}")
        return numbers[cluster]

    @property
    def cluster_names(self) -> list[str]:
        """Number of each cluster, with its name if it has one."""
        names = self.names
        return [f"{c}: {names[c]}" if c in names else f"{c}" for c in range(self.n_clusters)]

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.weights.shape[1])

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return len(self.weights)

    @property
    def levels(self) -> list[tuple[str, str]]:
        """(variable, level) of each place of the last axis of `probabilities`.

        If there are numbers too, these are the first of the parameters.
        """
        return self.study.table_schema.levels

    @property
    def probabilities(self) -> Reals:
        """The profiles that the silos share, where all variables are categories.

        Their axes are (draw, cluster, level), the columns those of `levels`.

        Raises
        ------
        SilomixError
            When some variables are numbers, which have no levels.
        """
        if numbers := self.study.table_schema.numbers:
            names = listing([repr(variable.name) for variable in numbers])
            raise SilomixError(
                f"this posterior has numbers ({names}), whose profiles are not probabilities: "
                "posterior.parameters has the draws of all variables, "
                "posterior.parameter_names says which they are, and posterior.profiles() sums "
                "them up"
            )
        return self.profile_draws

    @property
    def parameters(self) -> Reals:
        """The profiles that the silos share, in the units of the table.

        Their axes are (draw, cluster, parameter), the columns those of `parameter_names`.

        Examples
        --------
        >>> posterior.parameters.shape, posterior.parameter_names[0]
        ((2048, 5, 26), ('x1', '1'))
        """
        return self.family.describe(self.profile_draws)

    @property
    def parameter_names(self) -> list[tuple[str, str]]:
        """(variable, word) of each place of the last axis of `parameters`.

        The word is a level, for its probability; "mean" and "sd" of a number, "mean of log" and
        "sd of log" where its logarithm is modelled; "rate", the mean of a count; or "value", of a
        parameter given to `combine`.
        """
        return self.family.names()

    @cached_property
    def contrasts(self) -> characterise.Contrast:
        """How the clusters differ from the whole population, over the draws."""
        return characterise.contrast(self.weights, self.profile_draws, self.family)

    @property
    def family(self) -> Product:
        """Distributions of the variables within a cluster."""
        return self.study.pooled_model.family

    @property
    def silos(self) -> tuple[str, ...]:
        """Names of the silos that took part, in the order of every silo axis."""
        return self.provenance.silos

    @property
    def labels(self) -> Ints:
        """The cluster of each row of the table, from 0, in its order: (row,).

        A table of patterns with counts has a label for each repeated row.
        """
        return self._rows.labels

    @property
    def _rows(self) -> Assignment:
        """The assignment; an error where the rows are elsewhere."""
        if self.assignment is not None:
            return self.assignment
        advice = (
            "its rows are elsewhere. Where they are, call "
            "posterior.membership(table, silo=...).argmax(axis=1), or run `silomix assign`"
        )
        if self.study.table_schema.of_parameters:
            advice = (
                "it was combined from draws of parameters, and knows no model of a row. Compute "
                "P(cluster | row) with the density of your own model, at posterior.weights and "
                "posterior.parameters"
            )
        raise SilomixError(f"this posterior has no labels: {advice}")

    summary = frames.summary
    cluster_sizes = frames.cluster_sizes
    profiles = frames.profiles
    contrast = frames.contrast
    descriptions = characterise.descriptions
    drift = frames.drift
    correspondence_frame = frames.correspondence_frame
    silo_weights_frame = frames.silo_weights_frame
    membership = row_membership
    log_predictive_density = log_predictive_density
    labels_frame = labels_frame

    def save(self, path: str | Path) -> Path:
        """Save everything to one file of its owner's alone, atomically; `silomix.load` reads it.

        Examples
        --------
        >>> posterior.save("posterior.silomix").name
        'posterior.silomix'
        """
        from silomix.posterior.saved_file import as_bytes  # which makes posteriors, too

        target = Path(path)
        with writing(target, FileError):
            replace_file(target, as_bytes(self), private=True)
        return target

    def to_datatree(self) -> xr.DataTree:
        """Return the draws, by chain, traces and provenance as an xarray DataTree, for ArviZ.

        Examples
        --------
        >>> tree = posterior.to_datatree()
        >>> dict(tree["posterior"]["weights"].sizes)
        {'chain': 64, 'draw': 32, 'cluster': 5}
        """
        from silomix.posterior.saved_file import make_datatree

        return make_datatree(self)

    def report(self, path: str | Path, *, outside: Outside | None = None) -> Path:
        """Write one HTML page, which opens offline, and return its path.

        Parameters
        ----------
        path : such as report.html; an existing file is replaced.
        outside : result of `silomix.compare_outside`, for a section on other variables.

        Examples
        --------
        >>> posterior.report("report.html").name
        'report.html'
        """
        from silomix.report import write_report  # looks upward

        return write_report(self, path, outside=outside)

    def _repr_html_(self) -> str:
        """View for notebooks: the verdict, and the clusters as a small heat map."""
        from silomix.report import notebook_view  # looks upward

        return notebook_view(self)

    def __repr__(self) -> str:
        """Summary in five lines: dimensions, sizes, silos, origin, verdict."""
        study, made, numbers = self.study, self.provenance, self.study.table_schema.numbers
        means = self.weights.mean(axis=0, dtype=np.float64)
        sized = zip(means, *highest_density_interval(self.weights, 0.95), strict=True)
        sizes = [f"{mean:.1%} ({low:.1%} to {high:.1%})" for mean, low, high in sized]
        counts = (
            f"Posterior of {plural(self.n_clusters, 'cluster')} in "
            f"{plural(len(self.silos), 'silo')}: {plural(self.n_draws, 'draw')}, "
            f"{plural(len(study.variables), 'variable')}, "
            f"{plural(len(self.parameter_names), 'parameter' if numbers else 'level')}"
        )
        origin = (
            f"made by silomix {made.version}, {study.strategy}, {study.matching.method} matching, "
            f"{plural(self.diagnostics.rounds, 'polish round')}, seed {made.seed}, "
            f"study {made.study[:12]}"
        )
        size_line = f"sizes (95% HDI): {listing(sizes)}"
        silos = f"silos: {listing(self.silos)}"
        lines = (counts, size_line, silos, origin, self.diagnostics.verdict)
        return "\n".join(" ".join(line.split()) for line in lines)


# Minimum number of kept draws of the silos' own profiles, if there are as many.
SILO_DRAWS = 500
# In each round every second chain, alternately, keeps the silos' own profiles: they are large, and
# those of consecutive rounds of a chain are similar.
ONE_CHAIN_IN = 2


def kept_rounds(rounds: int) -> int:
    """Number of rounds whose draws are kept: the second half."""
    return rounds - rounds // 2


def rounds_with_own(chains: int) -> int:
    """Largest number of last rounds that keep the silos' own profiles."""
    return -(-SILO_DRAWS // (chains // ONE_CHAIN_IN))


def keeps_own(number: Ints | int, chains: int) -> Bools:
    """Whether a chain keeps the silos' own profiles in rounds counted from 1: (…, chain)."""
    return np.arange(chains) % ONE_CHAIN_IN == np.asarray(number)[..., None] % ONE_CHAIN_IN


def own_last(rounds: int, chains: int) -> Ints:
    """Order of the kept draws, (round, chain) in one list, with own profiles last."""
    number = np.arange(rounds // 2, rounds) + 1
    late = number > rounds - rounds_with_own(chains)
    return np.argsort((keeps_own(number, chains) & late[:, None]).ravel(), kind="stable")


def find_chains(posterior: Posterior) -> Ints:
    """Indices of the draws of each chain in the posterior's list: (chain, draw)."""
    polish, every = posterior.diagnostics.polish, np.arange(posterior.n_draws)
    rounds = polish.rounds if polish else 0
    if posterior.study.strategy == "exact":
        return every.reshape(posterior.study.schedule.chains, -1)
    chains = polish.chains if polish and rounds else 1
    one_part = kept_rounds(rounds) * chains
    if one_part == 0 or len(every) % one_part or len(every) == one_part:
        return every[None]
    parts = every.reshape(-1, kept_rounds(rounds), chains)
    if posterior.silo_profiles is not None:
        parts[-1].flat[own_last(rounds, chains)] = parts[-1].ravel().copy()
    # the draws of a round stand side by side, its own first
    return np.concatenate([parts[-1:], parts[:-1]]).transpose(2, 1, 0).reshape(chains, -1)
