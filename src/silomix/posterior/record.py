"""The global posterior as one frozen record; its methods only call the functions next to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from silomix.errors import SilomixError
from silomix.posterior import frames
from silomix.posterior.datatree import make_datatree
from silomix.posterior.membership import table_membership
from silomix.posterior.saving import save
from silomix.posterior.words import describe

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import xarray as xr
    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.outside import Outside
    from silomix.posterior.diagnosis import PosteriorDiagnostics
    from silomix.posterior.frames import Backend, Layout
    from silomix.posterior.provenance import Provenance
    from silomix.study import Study
    from silomix.types import Correspondence, SiloProfiles, SiloWeights


@dataclass(frozen=True, eq=False)
class Assignment:
    """The rows' clusters, where the rows are at hand.

    Attributes
    ----------
    labels : (row,), the most probable cluster of each row, from 0, in the order of the table.
    membership : (row, cluster), P(cluster | row), float32, to four decimals.
    silos : (row,), the place of each row's silo.
    """

    labels: NDArray[np.int64]
    membership: NDArray[np.float32]
    silos: NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Posterior:
    """Draws of the global clusters, and all that is known about them.

    Clusters are numbered from 0, the largest first. Draws are float32: average them in float64.

    Attributes
    ----------
    study : the settings it was made under.
    weights : (draw, cluster), each cluster's share of the rows of all silos.
    weights_by_silo : (draw, silo, cluster), its share of each silo's rows.
    probabilities : (draw, cluster, level), the profiles that the silos share, columns as in
        `levels`.
    correspondence : which local clusters make up each cluster; None if none were matched.
    silo_weights : how much each silo counts; None if the draws are not weighted means.
    diagnostics : whether to trust it.
    provenance : where it comes from, and what left each silo.
    silo_profiles : each silo's own profiles; None where a cluster has one profile everywhere.
    assignment : the rows' clusters; None where the rows are elsewhere.
    backend : the library of the frames it makes: "pandas", "polars" or "pyarrow".

    Examples
    --------
    >>> print(posterior)  # doctest: +ELLIPSIS
    Posterior of 5 clusters in 2 silos: 1,024 draws, 10 variables, 26 levels
    ...
    >>> posterior.weights.shape, posterior.weights_by_silo.shape, posterior.probabilities.shape
    ((1024, 5), (1024, 2, 5), (1024, 5, 26))
    >>> posterior.silos, posterior.levels[0], len(posterior.labels)
    (('silo 1', 'silo 2'), ('x1', '1'), 400)
    """

    study: Study
    weights: NDArray[np.floating]
    weights_by_silo: NDArray[np.floating]
    probabilities: NDArray[np.floating]
    correspondence: Correspondence | None
    silo_weights: SiloWeights | None
    diagnostics: PosteriorDiagnostics
    provenance: Provenance
    silo_profiles: SiloProfiles | None = None
    assignment: Assignment | None = None
    backend: Backend = "pandas"

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
        """What the last axis of `probabilities` stands for: (variable, level)."""
        return self.study.table_schema.levels

    @property
    def silos(self) -> tuple[str, ...]:
        """Names of the silos that took part, in the order of every silo axis."""
        return self.provenance.silos

    @property
    def labels(self) -> NDArray[np.int64]:
        """The cluster of each row of the table, from 0, in its order: (row,).

        A table of patterns with counts has a label for each repeated row.
        """
        if self.assignment is None:
            raise SilomixError(
                "this posterior has no labels: its rows are elsewhere. Where they are, call "
                "posterior.membership(table, silo=...).argmax(axis=1), or run `silomix assign`"
            )
        return self.assignment.labels

    def membership(
        self, table: Table, silo: str | None = None, *, threads: int | None = None
    ) -> NDArray[np.float64]:
        """Return P(cluster | row), averaged over draws, for old or new rows: (row, cluster).

        Parameters
        ----------
        table : any frame or path with the study's variables; missing cells are summed out.
        silo : the column that names each row's silo, or the silo that all rows are of: its own
            weights and its own profiles count. Rows for which the column names an unknown silo,
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
    ) -> NDArray[np.float64]:
        """Return the logarithm of p(row), averaged over draws: (row,); arguments as above.

        Examples
        --------
        >>> density = posterior.log_predictive_density(table, silo="silo")
        >>> density.shape, bool((density < 0).all())
        ((400,), True)
        """
        return table_membership(self, table, silo, threads).log_density

    def summary(self, level: float = 0.95, *, frame_like: object = None) -> Any:
        """Return a frame of all cluster sizes and level probabilities.

        Parameters
        ----------
        level : share of the draws inside the highest-density intervals.
        frame_like : "pandas", "polars", "pyarrow", or a frame of that library; by default the
            library of the table that was given.

        Returns
        -------
        frame
            Columns cluster, quantity ("size" or "probability"), variable, level_name, mean,
            sd, lower, upper, interval (such as "95% HDI").

        Examples
        --------
        >>> frame = posterior.summary(level=0.9)
        >>> len(frame), frame["interval"][0]
        (135, '90% HDI')
        """
        return frames.summary(self, level, frame_like)

    def cluster_sizes(self, level: float = 0.95, *, frame_like: object = None) -> Any:
        """Return a frame of the clusters' shares of all rows; arguments as for `summary`.

        Examples
        --------
        >>> posterior.cluster_sizes()["mean"].round(2).tolist()
        [0.22, 0.21, 0.21, 0.19, 0.17]
        """
        return frames.cluster_sizes(self, level, frame_like)

    def profiles(
        self,
        level: float = 0.95,
        *,
        silo: str | None = None,
        layout: Layout = "tidy",
        frame_like: object = None,
    ) -> Any:
        """Return a frame of level probabilities.

        Parameters
        ----------
        level, frame_like : as for `summary`.
        silo : the silo whose own profiles these are; left out, the profiles that the silos
            share. Where a cluster has one profile everywhere, the two are the same.
        layout : "tidy" has a line per cluster and level, "wide" a line per level and the mean in
            a column per cluster.

        Examples
        --------
        >>> posterior.profiles(layout="wide").columns.tolist()[:4]
        ['variable', 'level_name', 'cluster 0', 'cluster 1']
        >>> posterior.profiles(silo="silo 2").shape
        (130, 8)
        """
        return frames.profiles(self, level, silo, layout, frame_like)

    def drift(self, level: float = 0.95, *, frame_like: object = None) -> Any:
        """Return a frame of how much the silos differ in each variable, the largest first.

        A silo's profile of a cluster is Dirichlet(κ m) around the shared one, m, with one κ for
        each variable: the larger κ, the more alike the silos are; at infinity they are the same.

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
              median of κ: √(0.25/(κ + 1)), 0 where the silos are alike.
            - kappa, lower, upper: the median of κ and an interval; infinity is a value.
            - interval: such as "95% equal-tailed"; "point value" where no polish sampled κ, and
              `same`, `lower` and `upper` are nan.
            - cluster, level_name: where two silos differ most in this variable.
            - highest_silo, highest, lowest_silo, lowest: these two silos, and the posterior mean
              of the level's probability in each; no names where all silos are the same.
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
        return frames.drift(self, level, frame_like)

    def correspondence_frame(self, *, frame_like: object = None) -> Any:
        """Return a frame of the silos' local clusters and the clusters they belong to.

        Examples
        --------
        >>> found = posterior.correspondence_frame()
        >>> found.columns.tolist()
        ['silo', 'local_cluster', 'rows', 'cluster', 'confidence']
        >>> int(found["rows"].sum())
        400
        """
        return frames.correspondence_frame(self, frame_like)

    def silo_weights_frame(self, *, frame_like: object = None) -> Any:
        """Return a frame of each silo's say in the weights, and in each cluster's profile.

        Examples
        --------
        >>> posterior.silo_weights_frame().columns.tolist()
        ['silo', 'weight', 'cluster', 'profile']
        """
        return frames.silo_weights_frame(self, frame_like)

    def save(self, path: str | Path) -> Path:
        """Write everything to one file, whole or not at all; `silomix.load` reads it.

        Examples
        --------
        >>> posterior.save("posterior.silomix").name
        'posterior.silomix'
        """
        return save(self, path)

    def to_datatree(self) -> xr.DataTree:
        """Return the draws, traces and provenance as an xarray DataTree, for ArviZ.

        Examples
        --------
        >>> tree = posterior.to_datatree()
        >>> dict(tree["posterior"]["weights"].sizes)
        {'chain': 1, 'draw': 1024, 'cluster': 5}
        """
        return make_datatree(self)

    def report(self, path: str | Path, *, outside: Outside | None = None) -> Path:
        """Write one HTML page, which opens offline, and return its path.

        Parameters
        ----------
        path : such as report.html; a file that is there is replaced.
        outside : what `silomix.compare_outside` found, for a section on other variables.

        Examples
        --------
        >>> posterior.report("report.html").name
        'report.html'
        """
        from silomix.report import write_report  # looks upward

        return write_report(self, path, outside=outside)

    def __repr__(self) -> str:
        return describe(self)
