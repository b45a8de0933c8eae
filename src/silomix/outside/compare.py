"""Posterior and table → how the clusters differ in variables that were not clustered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from silomix.data import encode, read_table
from silomix.errors import DataError, SettingsError
from silomix.metrics import cluster_numbers
from silomix.outside.averaged import compare_memberships, draw_memberships
from silomix.outside.columns import read_outside
from silomix.outside.labelled import compare_labels
from silomix.outside.record import Method, Outside
from silomix.posterior.membership import silo_places
from silomix.sampler import at_least, cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    import narwhals as nw
    from numpy.typing import ArrayLike, NDArray

    from silomix.data.reading import Table
    from silomix.outside.columns import Columns, Target
    from silomix.posterior import Posterior

DRAWS = 25
"""Draws to average over: what a few more would change is far below the standard errors."""


def compare_outside(
    posterior: Posterior,
    table: Table,
    columns: Columns,
    silo: str | None = None,
    *,
    method: Method = "averaged",
    draws: int = DRAWS,
    labels: ArrayLike | None = None,
    level: float = 0.95,
    threads: int | None = None,
) -> Outside:
    """Compare the clusters in variables that were not clustered, such as age or mortality.

    `method` "averaged" compares each cluster with the rest of the rows, and allows for rows whose
    cluster is not sure: it regresses on their memberships (Bolck, Croon and Hagenaars, 2004;
    Vermunt, 2010) in several draws of the posterior, and pools these (Rubin, 1987). This is right
    if the clusters are, and if the variable does not depend on the clustered ones within a cluster.
    Where clusters overlap, a share may come out below 0 or above 1, with a wide interval.

    "labels" is table 11 of Fendler et al. (2026): each row in one cluster, which is compared with
    all rows, by a z-test for proportions with continuity correction, and by Welch's t-test for
    means. Rows in a wrong cluster make its differences too small.

    Rows without a value are left out, variable by variable, and counted.

    Parameters
    ----------
    posterior : whose clusters to compare.
    table : any frame or path with the study's variables and these columns; rows of the fit or new.
    columns : a name, names, or names with what to compare, as in {"age": "mean", "ward": "levels"}.
        By default numbers of more than two values have a mean, and everything else levels; of two
        levels the second is compared.
    silo : the column that names each row's silo, or the silo that all rows are of; without it all
        rows get the global weights.
    method : "averaged" or "labels".
    draws : of the posterior, evenly spaced, to average over.
    labels : (row,), the cluster of each row, from 0, for `method="labels"`; the most probable one
        when left out.
    level : of each interval; the rest of one is the accepted chance of any false alarm among all
        tests, for Bonferroni's threshold.
    threads : cores to use; all when left out. The result does not depend on it.

    Returns
    -------
    Outside
        `print` shows it; `frame()` has a line for each variable, level and cluster,
        `frame("wide")` a line for each cluster.

    Examples
    --------
    >>> rows = table.assign(age=40.0 + 10 * truth.labels + [0, 1, 2, 3] * 100)
    >>> found = silomix.compare_outside(posterior, rows, ["age"], silo="silo")
    >>> found.tests, found.threshold
    (5, 0.01)
    >>> found.frame().columns.tolist()[:6]
    ['variable', 'level_name', 'cluster', 'rows', 'estimate', 'whole']
    >>> found.frame("wide").columns.tolist()
    ['cluster', 'age', 'age, p value']
    """
    check_method(method)
    if not 0 < level < 1:
        raise SettingsError(f"level is {level}; give a share between 0 and 1, such as 0.95")
    if labels is not None and method != "labels":
        raise SettingsError("labels are for {method}; leave them out, or give it", method="labels")
    frame = read_table(table)
    targets = read_outside(frame, columns)
    _check_outside(posterior, {target.variable for target in targets}, silo)
    if method == "labels":
        given = _labels(posterior, frame, silo, labels, threads)
        chosen = np.empty(0, dtype=np.int64)
        found = [compare_labels(target, given, posterior.n_clusters, level) for target in targets]
    else:
        chosen = _spread(at_least("draws", draws, 2), posterior.n_draws)
        codes = encode(frame, posterior.study.table_schema).codes
        places = silo_places(frame, silo, posterior)
        memberships = draw_memberships(posterior, codes, places, chosen, cores(threads))
        found = compare_memberships(targets, memberships, level)
    return Outside(
        posterior=posterior,
        comparisons=tuple(found),
        method=method,
        level=level,
        rows=len(frame),
        missing=_missing(targets),
        draws=len(chosen),
    )


def check_method(method: str) -> None:
    """Refuse a word that is no method."""
    if method not in get_args(Method):
        text = f"{{method}} is {method!r}; it must be one of {get_args(Method)}"
        raise SettingsError(text, method=None)


def _check_outside(posterior: Posterior, names: set[str], silo: str | None) -> None:
    clustered = sorted(names & {variable.name for variable in posterior.study.variables})
    if clustered:
        raise SettingsError(
            f"column {clustered[0]!r} was clustered, so its clusters differ by construction; "
            "leave it out here: posterior.profiles() or profiles.csv describes it"
        )
    if silo in names:
        raise SettingsError(
            f"column {silo!r} names the silos, whose weights decide the memberships; compare it "
            "without {silo}, or leave it out",
            silo=None,
        )


def _spread(draws: int, available: int) -> NDArray[np.int64]:
    if available < 2:
        raise SettingsError(
            "the posterior has a single draw, and averaging needs two or more; give {method}",
            method="labels",
        )
    return np.unique(np.linspace(0, available - 1, draws).round().astype(np.int64))


def _labels(
    posterior: Posterior,
    frame: nw.DataFrame[Any],
    silo: str | None,
    given: ArrayLike | None,
    threads: int | None,
) -> NDArray[np.int64]:
    if given is None:
        return posterior.membership(frame, silo, threads=threads).argmax(axis=1)
    labels = cluster_numbers("labels", given)
    if labels.shape != (len(frame),):
        raise DataError(
            f"labels has shape {labels.shape}, and the table {len(frame)} rows; give one per row"
        )
    outside = labels >= posterior.n_clusters
    if outside.any():
        raise DataError(
            f"labels has {labels[outside][0]} in row {np.argmax(outside) + 1}; the clusters are "
            f"0 to {posterior.n_clusters - 1}"
        )
    return labels


def _missing(targets: Sequence[Target]) -> dict[str, int]:
    return {target.variable: int(np.isnan(target.values).sum()) for target in targets}
