"""Outside variables: what the clusters were not made from, and how they differ in it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from silomix.errors import SettingsError
from silomix.posterior.outside import AGAINST, change, p_text, value
from silomix.report.records import Cell, Table, cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.posterior import Posterior
    from silomix.posterior.outside import Outside
    from silomix.posterior.outside_estimates import Comparison


@dataclass(frozen=True)
class OutsideSection:
    """What the section says.

    Attributes
    ----------
    found : the comparison, for its settings.
    threshold : p value up to which a difference is called significant, written.
    tables : one for each variable.
    """

    found: Outside
    threshold: str
    tables: tuple[Table, ...]


def outside_section(posterior: Posterior, found: Outside | None) -> OutsideSection | None:
    """Return the section of the outside variables; None where nobody asked for it."""
    if found is None:
        return None
    clusters = found.posterior.n_clusters
    if clusters != posterior.n_clusters:
        raise SettingsError(
            f"outside compares {clusters} clusters, and the posterior has {posterior.n_clusters}; "
            "call compare_outside with this posterior"
        )
    groups = [list(group) for _, group in groupby(found.comparisons, lambda one: one.variable)]
    tables = tuple(
        _one(found, *group) if len(group) == 1 else _many(found, group) for group in groups
    )
    return OutsideSection(found, f"{found.threshold:.2g}", tables)


def _one(found: Outside, one: Comparison) -> Table:
    """Return the table of a mean, or of the one level that is compared."""
    against = _against(found)
    points = "" if one.level is None else ", points"
    heads = (
        "cluster",
        "rows",
        "mean" if one.level is None else "share",
        f"less the {against}{points}",
        f"{found.level:.0%} interval",
        "p value",
        f"differs from the {against}",
    )
    lines = [
        cells(
            str(cluster),
            f"{one.rows[cluster]:,.0f}",
            value(one.estimate[cluster], one),
            change(one.difference[cluster], one),
            f"{change(one.lower[cluster], one)} to {change(one.upper[cluster], one)}",
            p_text(one.p_value[cluster]),
            "yes" if differs else "",
        )
        for cluster, differs in enumerate(found.significant(one))
    ]
    lines.append(cells("all", f"{_known(found, one):,}", value(one.whole, one), "", "", "", ""))
    return Table(_caption(found, one, one.name), heads, tuple(lines))


def _many(found: Outside, levels: Sequence[Comparison]) -> Table:
    """Return the table of a variable of many levels, a column for each."""
    first = levels[0]
    lines = [
        (
            Cell(str(cluster)),
            Cell(f"{first.rows[cluster]:,.0f}"),
            *(_cell(found, one, cluster) for one in levels),
        )
        for cluster in range(found.posterior.n_clusters)
    ]
    whole = [value(one.whole, one) for one in levels]
    lines.append(cells("all", f"{_known(found, first):,}", *whole))
    heads = ("cluster", "rows", *(one.level or "" for one in levels))
    name = (
        f"{first.variable}; below each share: less the {_against(found)}, in points, with its "
        f"{found.level:.0%} interval"
    )
    return Table(_caption(found, first, name), heads, tuple(lines))


def _cell(found: Outside, one: Comparison, cluster: int) -> Cell:
    """Return a share; in its note the difference, that one's interval, and the p value."""
    differs = ", differs" if found.significant(one)[cluster] else ""
    lower, upper = change(one.lower[cluster], one), change(one.upper[cluster], one)
    return Cell(
        value(one.estimate[cluster], one),
        note=f"{change(one.difference[cluster], one)} ({lower} to {upper})\n"
        f"p {p_text(one.p_value[cluster])}{differs}",
    )


def _against(found: Outside) -> str:
    return AGAINST[found.method]


def _known(found: Outside, one: Comparison) -> int:
    return found.rows - found.missing[one.variable]


def _caption(found: Outside, one: Comparison, name: str) -> str:
    missing = found.missing[one.variable]
    return (
        f"{name}; {missing:,} of {found.rows:,} rows left out without a value" if missing else name
    )
