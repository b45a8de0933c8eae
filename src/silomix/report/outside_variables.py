"""Variables that were not clustered: differences between clusters, and odds of membership."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from silomix.errors import DataError, DataWarning, SettingsError, warn
from silomix.model import reading
from silomix.model.columns import MOST_LEVELS, like_missing
from silomix.model.metrics import cluster_numbers
from silomix.model.sentences import at_least, cores, did_you_mean, one_of, quoted
from silomix.model.table import encode, load
from silomix.posterior import outside_estimates as estimates
from silomix.posterior.frames import Layout, make_frame
from silomix.posterior.membership import ELSEWHERE, encoded_membership, silo_places
from silomix.posterior.outside_estimates import Comparison, Target
from silomix.report.cluster_sections import outside_view
from silomix.report.display import as_text

if TYPE_CHECKING:
    import narwhals as nw
    from numpy.typing import ArrayLike

    from silomix.kernels.arrays import Bools, Floats, Ints
    from silomix.posterior.global_posterior import Posterior

Method = Literal["averaged", "labels"]
# What to compare of a column; any other word is the single level whose share is compared.
KINDS = ("mean", "levels")
Columns: TypeAlias = "str | Sequence[str] | Mapping[str, str | None]"

# Reference group of each method.
AGAINST: Mapping[Method, str] = {"averaged": "rest", "labels": "whole"}
# Draws to average over: the effect of more is far below the standard errors.
DRAWS = 25
# Columns of the tidy frame.
TIDY = (
    *("variable", "level_name", "cluster", "rows", "estimate", "estimate_lower", "estimate_upper"),
    *("whole", "against", "difference", "lower", "upper", "interval", "p_value", "significant"),
    "method",
)


@dataclass(frozen=True, eq=False, repr=False)
class Outside:
    """Differences of the clusters in variables that were not clustered.

    Attributes
    ----------
    posterior : the posterior of the clusters.
    comparisons : one for each variable, or level of a variable.
    method : "averaged" or "labels".
    level : of the intervals, each by itself.
    rows : of the table.
    missing : rows without a value, which are left out, by variable.
    draws : of the posterior that were averaged over; 0 for labels.
    """

    posterior: Posterior
    comparisons: tuple[Comparison, ...]
    method: Method
    level: float
    rows: int
    missing: Mapping[str, int]
    draws: int

    @property
    def against(self) -> str:
        """Group of rows that each cluster is compared with: "rest" or "whole"."""
        return AGAINST[self.method]

    @property
    def error(self) -> float:
        """Accepted chance of one or more false alarms among all tests."""
        return round(1 - self.level, 12)

    @property
    def tests(self) -> int:
        """Number of p values."""
        return sum(int(np.isfinite(c.p_value).sum()) for c in self.comparisons)

    @property
    def threshold(self) -> float:
        """Bonferroni's threshold for p values of significant differences."""
        return self.error / max(self.tests, 1)

    def significant(self, found: Comparison) -> Bools:
        """Return whether the difference is significant in each cluster: (cluster,)."""
        return found.p_value <= self.threshold

    def frame(self, layout: Layout = "tidy", *, frame_like: object = None) -> Any:
        """Return the comparisons as a frame.

        Parameters
        ----------
        layout : "tidy" has a line for each variable, level and cluster; "wide" a line per
            cluster, and two columns, estimate and p value, for each variable or level.
        frame_like : "pandas", "polars", "pyarrow", or a frame of that library; by default the
            library of the table that was fitted.
        """
        one_of("layout", layout, get_args(Layout))
        items, clusters = self.comparisons, np.arange(self.posterior.n_clusters)
        if layout == "wide":
            wide: dict[str, Any] = {"cluster": clusters}
            for item in items:
                wide |= {item.name: item.estimate, f"{item.name}, p value": item.p_value}
            return make_frame(wide, frame_like, self.posterior)
        lines = pd.concat(pd.DataFrame(item._asdict() | {"cluster": clusters}) for item in items)
        lines = lines.rename(columns={"level": "level_name"}).assign(
            against=self.against,
            interval=f"{100 * self.level:g}% CI",
            significant=lines["p_value"] <= self.threshold,
            method=self.method,
        )
        return make_frame(lines[[*TIDY]].to_dict("list"), frame_like, self.posterior)

    def __repr__(self) -> str:
        return as_text(outside_view(self)).rstrip()


def compare_outside(
    posterior: Posterior,
    table: reading.Table,
    columns: Columns,
    silo: str | None = None,
    *,
    method: Method = "averaged",
    draws: int = DRAWS,
    labels: ArrayLike | None = None,
    level: float = 0.95,
    threads: int | None = None,
    na_values: Any = None,
) -> Outside:
    """Compare the clusters in variables that were not clustered, such as age or mortality.

    `method` "averaged" compares each cluster with the rest of the rows, and allows for rows whose
    cluster is uncertain: it regresses on their memberships (Bolck, Croon and Hagenaars, 2004;
    Vermunt, 2010) in several draws of the posterior, and pools these (Rubin, 1987). This is right
    if the clusters are, and if the variable does not depend on the clustered ones within a cluster.

    "labels" is table 11 of Fendler et al. (2026): each row in one cluster, which is compared with
    all rows, by a z-test for proportions with continuity correction, and by Welch's t-test for
    means. Rows in a wrong cluster make its differences too small.

    Rows without a value are left out, variable by variable, and counted.

    Parameters
    ----------
    posterior : whose clusters to compare.
    table : any frame or path with the study's variables and these columns; rows of the fit or new.
    columns : a name, names, or names with what to compare, as in {"age": "mean", "ward": "levels",
        "status": "died"}: the mean, all levels, or the one level named. By default numbers of more
        than two values have a mean, and everything else levels; of two levels the second is
        compared.
    silo : the column that names each row's silo, or the silo that all rows are of; without it all
        rows get the global weights.
    method : "averaged" or "labels".
    draws : of the posterior, evenly spaced, to average over.
    labels : (row,), the cluster of each row, from 0, for `method="labels"`; the most probable one
        when left out.
    level : of each interval; 1 − level is the accepted chance of any false alarm among all
        tests, for Bonferroni's threshold.
    threads : cores to use; all when left out. The result does not depend on it.
    na_values : codes for missing cells of these columns, as for `fit`.

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
    ['variable', 'level_name', 'cluster', 'rows', 'estimate', 'estimate_lower']
    >>> found.frame("wide").columns.tolist()
    ['cluster', 'age', 'age, p value']
    """
    one_of("method", method, AGAINST)
    check_level(level)
    if labels is not None and method != "labels":
        raise SettingsError('labels are for method="labels"; leave them out, or set it')
    if method == "averaged" and posterior.n_draws < 2:
        raise SettingsError("averaging needs two draws or more; give {method}", method="labels")
    frame, used, clusters = reading.read_table(table), 0, posterior.n_clusters
    targets = read_outside(frame, columns, na_values)
    missing = {target.variable: int(np.isnan(target.values).sum()) for target in targets}
    check_outside(posterior, missing, silo)
    if method == "labels":
        if labels is None:
            labels = posterior.membership(frame, silo, threads=threads).argmax(axis=1)
        numbers = cluster_numbers("labels", labels)
        if len(numbers) != len(frame) or numbers.max() >= clusters:
            raise DataError(
                f"labels has {len(numbers)} rows and goes up to {numbers.max()}; give one for each "
                f"of the table's {len(frame)} rows, from 0 to {clusters - 1}"
            )
        results = [estimates.compare_labels(target, numbers, clusters, level) for target in targets]
    else:
        used = min(at_least("draws", draws, 2), posterior.n_draws)
        places = silo_places(frame, silo, posterior)
        memberships = memberships_by_draw(posterior, frame, places, used, threads)
        results = estimates.compare_memberships(targets, memberships, level)
    return Outside(posterior, tuple(results), method, level, len(frame), missing, used)


def regress_membership(
    posterior: Posterior,
    table: reading.Table,
    covariates: Columns,
    *,
    reference: int = 0,
    draws: int = DRAWS,
    level: float = 0.95,
    threads: int | None = None,
    na_values: Any = None,
) -> Any:
    """Regress cluster membership on covariates, such as age or sex.

    A multinomial logistic regression that allows for rows whose cluster is uncertain, in several
    draws of the posterior, pooled. It is right if the clusters are, and if the covariates do not
    change the clustered variables within a cluster.

    Parameters
    ----------
    posterior : whose clusters they are.
    table : any frame or path with the study's variables and the covariates; a row that lacks a
        covariate is left out.
    covariates : as the columns of `compare_outside`. Of levels the first is what the others are
        compared with, unless one is named.
    reference : the cluster that the others are compared with.
    draws : of the posterior, evenly spaced, to pool.
    level : of each interval.
    threads : cores to use; all when left out. The result does not depend on it.
    na_values : codes for missing cells of the covariates, as for `fit`.

    Returns
    -------
    frame
        A line for each cluster but the reference, and covariate: cluster, reference, variable
        ("intercept" for the constant), level_name, log_odds, se, odds_ratio for one unit more, or
        for this level instead of the others, with lower, upper and interval, p_value, and the rows
        used.

    Examples
    --------
    >>> rows = table.assign(age=40.0 + 10 * truth.labels + [0, 1, 2, 3] * 100)
    >>> found = silomix.regress_membership(posterior, rows, ["age"])
    >>> found.shape, found["variable"].tolist()[:2]
    ((8, 12), ['intercept', 'age'])
    """
    check_level(level)
    clusters = posterior.n_clusters
    if clusters < 2 or at_least("reference", reference, 0) >= clusters:
        raise SettingsError(
            f"reference is {reference!r}; give a cluster's number, from 0 to {clusters - 1}; there "
            "must be two or more"
        )
    frame = reading.read_table(table)
    targets = read_outside(frame, covariates, na_values)
    groups = [list(group) for _, group in groupby(targets, lambda target: target.variable)]
    check_outside(posterior, [target.variable for target in targets], None)
    # of three or more levels the first is left out
    used = [target for group in groups for target in group[len(group) > 1 :]]
    values = np.column_stack([target.values for target in used])
    seen = ~np.isnan(values).any(axis=1)
    design = np.column_stack([np.ones(seen.sum()), values[seen]])
    if len(design) == 0 or np.linalg.matrix_rank(design) < design.shape[1]:
        raise DataError(
            "the covariates determine each other, or no row has all of them; leave some out"
        )
    # equal weights make memberships proportional to P(x | c)
    flat = replace(posterior, weights=np.ones_like(posterior.weights) / clusters)
    count, places = at_least("draws", draws, 2), np.full(len(frame), ELSEWHERE)
    evidence = memberships_by_draw(flat, frame, places, count, threads)
    fits = [estimates.fit_multinomial(design, e[seen], reference) for e in evidence]
    estimate, variance = (np.array(part) for part in zip(*fits, strict=True))
    error, freedom = estimates.pooled_error(estimate, variance, np.full_like(estimate, np.inf))
    middle = estimate.mean(axis=0)
    half = stdtrit(freedom, 0.5 + level / 2) * error
    # a constant far from the data may be beyond what floats hold
    ratio, low, high = np.exp(np.minimum([middle, middle - half, middle + half], 700.0))
    compared = [c for c in range(clusters) if c != reference]
    columns = {
        "cluster": np.repeat(compared, len(used) + 1),
        "reference": [reference] * len(middle),
        "variable": ["intercept", *(target.variable for target in used)] * len(compared),
        "level_name": [None, *(target.level for target in used)] * len(compared),
        "log_odds": middle,
        "se": error,
        "odds_ratio": ratio,
        "lower": low,
        "upper": high,
        "interval": [f"{100 * level:g}% CI"] * len(middle),
        "p_value": 2 * stdtr(freedom, -np.abs(middle) / error),
        "rows": np.full(len(middle), len(design)),
    }
    return make_frame(columns, None, posterior)


def memberships_by_draw(
    posterior: Posterior, frame: nw.DataFrame[Any], places: Ints, draws: int, threads: int | None
) -> Iterator[Floats]:
    """Yield the memberships of rows, (row, cluster), in evenly spaced draws."""
    shard = encode(frame, posterior.study.table_schema, look_for_codes=False)
    count = min(draws, posterior.n_draws)
    for draw in np.linspace(0, posterior.n_draws - 1, count).round().astype(np.int64):
        yield encoded_membership(posterior, shard, places, cores(threads), draw).membership


def check_level(level: float) -> None:
    """Refuse a level that is not between 0 and 1."""
    if not 0 < level < 1:
        raise SettingsError(f"level is {level}; give a share between 0 and 1, such as 0.95")


def check_outside(posterior: Posterior, names: Collection[str], silo: str | None) -> None:
    """Refuse columns in which clusters differ by construction."""
    for variable in posterior.study.variables:
        if variable.name in names:
            raise SettingsError(
                f"column {variable.name!r} was clustered, so its clusters differ by construction; "
                "leave it out here: the profiles describe it"
            )
    if silo in names:
        raise SettingsError(
            f"column {silo!r} names the silos, whose weights decide the memberships; compare it "
            "without {silo}, or leave it out",
            silo=None,
        )


def read_outside(frame: nw.DataFrame[Any], columns: Columns, na_values: Any = None) -> list[Target]:
    """Quantities to compare, in the order of the columns.

    Numbers of more than two values have a mean, unless the type of the column declares levels;
    everything else has levels. Of two levels only the second is compared: the first mirrors it.

    Parameters
    ----------
    frame : a row per unit.
    columns : names, or names with "mean", "levels" or a level; with None the values decide.
    na_values : codes for missing cells, as for `missing_texts`.
    """
    names = [columns] if isinstance(columns, str) else columns
    kinds = names if isinstance(names, Mapping) else dict.fromkeys(names)
    if not kinds:
        raise SettingsError("columns is empty; name at least one column to compare")
    blanks = reading.missing_texts(na_values, frame.columns)
    return [target for name in kinds for target in _read_column(frame, name, kinds[name], blanks)]


def _read_column(
    frame: nw.DataFrame[Any], name: str, kind: str | None, blanks: Mapping[str, tuple[str, ...]]
) -> list[Target]:
    column, where = reading.find_column(frame, name, "to compare"), f"the table: column {name!r}"
    cells = reading.read_cells(column, where, blanks[name])
    if len(cells.texts) < 2:
        only = f"the one value {cells.texts[0]!r}" if cells.texts else "no value at all"
        raise DataError(f"{where} has {only}, so no cluster can differ in it; leave it out")
    words = [text for text in cells.texts if not reading.NUMBER.fullmatch(text)]
    declared = reading.declared_levels(frame, name) is not None
    if kind is None:
        kind = "levels" if words or declared or len(cells.texts) == 2 else "mean"
    if kind == "mean" and words:
        row = np.argmax(cells.codes == cells.texts.index(words[0])) + 1
        raise DataError(
            f"{where} has {words[0]!r} in data row {row}, which is not a number; correct it, or "
            "compare its levels"
        )
    if kind == "mean":
        return [_read_numbers(name, cells)]
    if len(cells.texts) > MOST_LEVELS:
        raise DataError(
            f"{where} has {len(cells.texts)} levels, more than the {MOST_LEVELS} that a table of "
            "clusters can show; group them, or leave it out"
        )
    shard = load(frame, variables=[name], kinds={name: "categorical"}, na_values=blanks)
    (variable,), codes = shard.schema.variables, shard.codes[:, 0]
    missing, chosen = codes == len(variable.levels), str(kind)
    if kind == "levels":
        chosen = variable.levels[1] if len(variable.levels) == 2 else ""
    elif chosen not in variable.levels:
        raise DataError(
            f"{where} has no level {chosen!r}{did_you_mean(chosen, variable.levels)}, only "
            f"{quoted(variable.levels)}; name one of them, or give {KINDS[0]!r} or {KINDS[1]!r}"
        )
    return [
        Target(name, level, np.where(missing, np.nan, codes == code))
        for code, level in enumerate(variable.levels)
        if level == (chosen or level)
    ]


def _read_numbers(name: str, cells: reading.Cells) -> Target:
    if odd := like_missing(name, cells, is_number=True):
        cure = "taken as they stand; if they mean a missing cell, give {na_values}"
        warn(DataWarning(f"the table: {odd}: {cure}", na_values=...))
    # a missing cell has the code −1, the last of these
    return Target(name, None, np.array([*map(float, cells.texts), np.nan])[cells.codes])
