"""The global posterior: one frozen record, and its summaries.

Frames come in the library that the table came in.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from silomix.errors import SettingsError, SilomixError
from silomix.model.metrics import highest_density_interval
from silomix.model.reading import Table, read_table
from silomix.model.sentences import check_mapping, listing, one_of, plural, quoted
from silomix.posterior.characterise import MARGIN, Contrast, contrast, describe_clusters
from silomix.posterior.frames import (
    Backend,
    Layout,
    by_cluster,
    contrast_columns,
    drift_columns,
    estimates,
    make_frame,
)
from silomix.posterior.membership import (
    label_columns,
    row_silos,
    table_membership,
    to_four_decimals,
)
from silomix.study.roster import read_ids

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import xarray as xr
    from numpy.typing import ArrayLike

    from silomix.families.product import Product
    from silomix.kernels.arrays import Array, Floats, Ints, Reals, Singles
    from silomix.model.draws import Correspondence, SiloProfiles, SiloWeights
    from silomix.posterior.outside_variables import Outside
    from silomix.posterior.verdict import PosteriorDiagnostics, Provenance
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
        mapping = check_mapping("names", names, "cluster")
        names = {self._known(cluster): str(name).strip() for cluster, name in mapping.items()}
        if not all(names.values()) or len({*names.values()}) < len(names):
            raise SettingsError("a name is empty or used twice; give each cluster its own name")
        return replace(self, names=names)

    def _known(self, cluster: Any) -> int:
        """Number of a cluster that is given by name or number, which may be text."""
        numbers: dict[int | str, int] = {}
        for number in range(self.n_clusters):
            numbers |= {number: number, str(number): number}
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
    def contrasts(self) -> Contrast:
        """How the clusters differ from the whole population, over the draws."""
        return contrast(self.weights, self.profile_draws, self.family)

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
        if self.assignment is None and self.study.table_schema.of_parameters:
            raise SilomixError(
                "this posterior has no labels: it was combined from draws of parameters, and knows "
                "no model of a row. Compute P(cluster | row) with the density of your own model, "
                "at posterior.weights and posterior.parameters"
            )
        if self.assignment is None:
            raise SilomixError(
                "this posterior has no labels: its rows are elsewhere. Where they are, call "
                "posterior.membership(table, silo=...).argmax(axis=1), or run `silomix assign`"
            )
        return self.assignment

    def membership(
        self, table: Table, silo: str | None = None, *, threads: int | None = None
    ) -> Floats:
        """Return P(cluster | row), averaged over draws, for old or new rows: (row, cluster).

        Parameters
        ----------
        table : any frame or path with the study's variables; missing cells are summed out.
        silo : the column that names each row's silo, or the silo that all rows are from: its own
            weights and its own profiles are used. Rows for which the column names an unknown silo,
            or none, get the global weights and the shared profiles, and so do all rows without
            `silo`.
        threads : cores to use; all when left out. The result does not depend on it.

        Examples
        --------
        >>> posterior.membership(table.head(3), silo="silo").shape
        (3, 5)
        """
        return table_membership(self, table, silo, threads).membership

    def log_predictive_density(
        self, table: Table, silo: str | None = None, *, threads: int | None = None
    ) -> Floats:
        """Return the logarithm of p(row), averaged over draws: (row,); arguments as above.

        Examples
        --------
        >>> density = posterior.log_predictive_density(table, silo="silo")
        >>> density.shape, bool((density < 0).all())
        ((400,), True)
        """
        return table_membership(self, table, silo, threads).log_density

    def summary(self, level: float = 0.95, *, frame_like: object = None) -> Any:
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
        draws = np.concatenate([self.weights[:, :, None], self.parameters], axis=2)
        columns = by_cluster(self, [(None, None), *self.parameter_names]) | estimates(draws, level)
        words = np.where(self.family.shares(), "probability", "parameter")
        quantity = ["size", *words.tolist()] * self.n_clusters
        leading = {"cluster": columns["cluster"], "quantity": quantity}
        return make_frame(leading | columns, frame_like, self)

    def cluster_sizes(self, level: float = 0.95, *, frame_like: object = None) -> Any:
        """Return a frame of the clusters' shares of all rows; arguments as for `summary`.

        Examples
        --------
        >>> posterior.cluster_sizes()["mean"].round(2).tolist()
        [0.22, 0.21, 0.21, 0.19, 0.17]
        """
        columns = {"cluster": np.arange(self.n_clusters)}
        return make_frame(columns | estimates(self.weights, level), frame_like, self)

    def profiles(
        self,
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
        draws, named = self.profile_draws, self.parameter_names
        if silo is not None:
            one_of("silo", str(silo), self.silos)
            if self.silo_profiles is not None:
                draws = self.silo_profiles.parameters[:, self.silos.index(str(silo))]
        draws = self.family.describe(draws)
        if layout == "tidy":
            columns = by_cluster(self, named) | estimates(draws, level)
        else:
            variables, names = map(list, zip(*named, strict=True))
            means = enumerate(draws.mean(axis=0, dtype=np.float64))
            columns = {"variable": variables, "level_name": names}
            columns |= {f"cluster {self.cluster_names[c]}": mean for c, mean in means}
        return make_frame(columns, frame_like, self)

    def contrast(
        self,
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
        clusters = range(self.n_clusters) if cluster is None else [self._known(cluster)]
        return make_frame(contrast_columns(self, clusters, level, margin), frame_like, self)

    def descriptions(self) -> list[str]:
        """Describe each cluster in words: up to five distinctive variables, clearest first.

        Examples
        --------
        >>> len(posterior.descriptions())
        5
        """
        return describe_clusters(self)

    def labels_frame(
        self,
        table: Table | None = None,
        silo: str | None = None,
        *,
        id: ArrayLike | str | None = None,
        threads: int | None = None,
        probabilities: bool = False,
        frame_like: object = None,
    ) -> Any:
        """Return a frame of the rows: most probable cluster, its probability, and the next.

        Parameters
        ----------
        table, silo, threads : rows other than those that were fitted; as for `membership`.
        id : the column of `table` that names each row, or (row,), the names themselves. Those that
            `fit` was given are the default for the rows that were fitted; a saved posterior does
            not have them, since it may be handed on.
        probabilities : whether to add the probability of each cluster: p0, p1, …
        frame_like : as for `summary`.

        Returns
        -------
        frame
            A line per row of the table, in its order: row, from 1; id, if given; silo; cluster;
            probability; and second, the cluster that is most probable after it.

        Examples
        --------
        >>> posterior.labels_frame(id=table.index).columns.tolist()
        ['row', 'id', 'silo', 'cluster', 'probability', 'second']
        >>> new = posterior.labels_frame(table.head(3), silo="silo", probabilities=True)
        >>> new.columns.tolist()[2:]
        ['cluster', 'probability', 'second', 'p0', 'p1', 'p2', 'p3', 'p4']
        """
        if table is None and (silo is not None or threads is not None):
            raise SettingsError("silo and threads are for other rows; give their table, too")
        if table is None:
            membership, id = self._rows.membership, self._rows.ids if id is None else id
            silos = np.array(self.silos, dtype=object)[self._rows.silos]
        else:
            frame = read_table(table)
            id = read_ids(frame, id) if isinstance(id, str) else id
            silos = np.full(len(frame), None, dtype=object)
            if silo is not None:
                cells = row_silos(frame, silo, self)
                silos = np.array([*cells.texts, None], dtype=object)[cells.codes]
            membership = to_four_decimals(self.membership(frame, silo, threads=threads))
        columns = label_columns(silos, membership, id, probabilities=probabilities)
        return make_frame(columns, frame_like, self)

    def drift(self, level: float = 0.95, *, frame_like: object = None) -> Any:
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
        return make_frame(drift_columns(self, level), frame_like, self)

    def correspondence_frame(self, *, frame_like: object = None) -> Any:
        """Return a frame of the silos' local clusters and the clusters they belong to.

        Examples
        --------
        >>> frame = posterior.correspondence_frame()
        >>> frame.columns.tolist()
        ['silo', 'local_cluster', 'rows', 'cluster', 'confidence']
        >>> int(frame["rows"].sum())
        400
        """
        match = self.correspondence
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
        return make_frame(columns, frame_like, self)

    def silo_weights_frame(self, *, frame_like: object = None) -> Any:
        """Return a frame of each silo's influence on the weights, and on each cluster's profile.

        Examples
        --------
        >>> posterior.silo_weights_frame().columns.tolist()
        ['silo', 'weight', 'cluster', 'profile']
        """
        influence = self.silo_weights
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
        return make_frame(columns, frame_like, self)

    def save(self, path: str | Path) -> Path:
        """Save everything to one file, atomically; `silomix.load` reads it.

        Examples
        --------
        >>> posterior.save("posterior.silomix").name
        'posterior.silomix'
        """
        from silomix.posterior.saved_file import save  # which makes posteriors, too

        return save(self, path)

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
