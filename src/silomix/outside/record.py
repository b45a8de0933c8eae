"""What the comparison of outside variables returns, as a record, a frame and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from silomix.errors import SettingsError
from silomix.posterior.frames import Layout, make_frame
from silomix.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from silomix.posterior import Posterior
    from silomix.posterior.frames import Column

Method = Literal["averaged", "labels"]

AGAINST: Mapping[Method, str] = {"averaged": "rest", "labels": "whole"}
"""What each method compares a cluster with."""
MOST_TOLD = 6
"""Variables and levels that are printed; the frame has all."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """A variable's mean, or the share of one of its levels, in every cluster.

    Attributes
    ----------
    variable : name of the column.
    level : whose share it is; None for a mean.
    whole : mean or share over all rows that have a value.
    rows : (cluster,), rows with a value; expected numbers where memberships are averaged.
    estimate : (cluster,), mean or share in the cluster.
    difference : (cluster,), from the whole, or from the rest, as the method has it.
    lower, upper : (cluster,), its interval.
    p_value : (cluster,), of no difference; nan where there is nothing to compare.
    """

    variable: str
    level: str | None
    whole: float
    rows: NDArray[np.float64]
    estimate: NDArray[np.float64]
    difference: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    p_value: NDArray[np.float64]

    @property
    def name(self) -> str:
        """What is compared: "age", or "sex = female"."""
        return self.variable if self.level is None else f"{self.variable} = {self.level}"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Outside:
    """How the clusters differ in variables that were not clustered.

    Attributes
    ----------
    posterior : whose clusters they are.
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
    def error(self) -> float:
        """Accepted chance of one or more false alarms among all tests."""
        return round(1 - self.level, 12)

    @property
    def tests(self) -> int:
        """How many p values there are."""
        return sum(int(np.isfinite(found.p_value).sum()) for found in self.comparisons)

    @property
    def threshold(self) -> float:
        """Bonferroni's: the p value up to which a difference is called significant."""
        return self.error / max(self.tests, 1)

    def significant(self, found: Comparison) -> NDArray[np.bool_]:
        """Return in which clusters the difference is significant: (cluster,)."""
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
        if layout not in get_args(Layout):
            raise SettingsError(f"layout is {layout!r}; it must be one of {get_args(Layout)}")
        columns = _tidy(self) if layout == "tidy" else _wide(self)
        return make_frame(columns, frame_like, self.posterior)

    def __repr__(self) -> str:
        return "\n".join(_describe(self))


def _tidy(outside: Outside) -> dict[str, Column]:
    found, clusters = outside.comparisons, outside.posterior.n_clusters
    lines = clusters * len(found)
    return {
        "variable": [one.variable for one in found for _ in range(clusters)],
        "level_name": [one.level for one in found for _ in range(clusters)],
        "cluster": np.tile(np.arange(clusters), len(found)),
        "rows": np.concatenate([one.rows for one in found]),
        "estimate": np.concatenate([one.estimate for one in found]),
        "whole": np.repeat([one.whole for one in found], clusters),
        "against": [AGAINST[outside.method]] * lines,
        "difference": np.concatenate([one.difference for one in found]),
        "lower": np.concatenate([one.lower for one in found]),
        "upper": np.concatenate([one.upper for one in found]),
        "interval": [f"{100 * outside.level:g}% CI"] * lines,
        "p_value": np.concatenate([one.p_value for one in found]),
        "significant": np.concatenate([outside.significant(one) for one in found]),
        "method": [outside.method] * lines,
    }


def _wide(outside: Outside) -> dict[str, Column]:
    columns: dict[str, Column] = {"cluster": np.arange(outside.posterior.n_clusters)}
    for one in outside.comparisons:
        columns |= {one.name: one.estimate, f"{one.name}, p value": one.p_value}
    return columns


def _describe(outside: Outside) -> Iterator[str]:
    yield f"Outside variables of {plural(outside.posterior.n_clusters, 'cluster')}, {way(outside)}"
    for one in outside.comparisons[:MOST_TOLD]:
        left_out = outside.missing[one.variable]
        without = f", {left_out:,} of {plural(outside.rows, 'row')} missing" if left_out else ""
        yield f"\n{one.name} (whole: {value(one.whole, one)}{without})"
        yield from _lines(outside, one)
    more = len(outside.comparisons) - MOST_TOLD
    if more > 0:
        yield f"\n... and {more} more: see .frame()"
    yield f"\n{rule(outside)}"


def _lines(outside: Outside, one: Comparison) -> Iterator[str]:
    against = f"minus {AGAINST[outside.method]}"
    interval = f"{100 * outside.level:g}% interval"
    yield f"{'cluster':>7} {'rows':>10} {'estimate':>10} {against:>11} {interval:>20} {'p':>8}"
    for cluster, differs in enumerate(outside.significant(one)):
        span = f"{change(one.lower[cluster], one)} to {change(one.upper[cluster], one)}"
        yield (
            f"{cluster:>7} {one.rows[cluster]:>10,.0f} {value(one.estimate[cluster], one):>10} "
            f"{change(one.difference[cluster], one):>11} {span:>20} "
            f"{p_text(one.p_value[cluster]):>8}{' *' if differs else ''}"
        )


def way(outside: Outside) -> str:
    """Return how the rows were put into clusters."""
    if outside.method == "labels":
        return "each row in its most probable cluster"
    return f"memberships averaged over {plural(outside.draws, 'draw')}"


def rule(outside: Outside) -> str:
    """Return which differences are called significant, and why."""
    return (
        f"* differs from the {AGAINST[outside.method]}: p at most {outside.threshold:.2g}, which "
        f"keeps the chance of any false alarm in {plural(outside.tests, 'test')} at "
        f"{100 * outside.error:g}% (Bonferroni)"
    )


def value(number: float, one: Comparison) -> str:
    """Return a mean with about four digits, or a share in percent; "–" for nan."""
    if not np.isfinite(number):
        return "–"
    text = f"{number:,.{_decimals(one)}f}" if one.level is None else f"{100 * number:.1f}%"
    return text.replace("-", "−")


def change(number: float, one: Comparison) -> str:
    """Return a difference with its sign, of shares in percentage points; "–" for nan."""
    if not np.isfinite(number):
        return "–"
    text = f"{number:+,.{_decimals(one)}f}" if one.level is None else f"{100 * number:+.1f}"
    return text.replace("-", "−")


def _decimals(one: Comparison) -> int:
    """Return how many decimals show about four digits of the largest number."""
    numbers = np.abs([one.whole, *one.difference])
    largest = np.max(numbers, initial=0.0, where=np.isfinite(numbers))
    return int(np.clip(3 - np.floor(np.log10(largest)), 0, 6)) if largest > 0 else 0


def p_text(p_value: float) -> str:
    """Return a p value as tables print it: "<0.0001", "0.0132"; "–" for nan."""
    if not np.isfinite(p_value):
        return "–"
    return "<0.0001" if p_value < 0.0001 else f"{p_value:.4f}"
