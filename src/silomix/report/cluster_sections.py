"""The page's sections on the clusters: how large and how many, what is typical, where they lie."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType, group
from rich.text import Text

from silomix.families import KINDS
from silomix.families.derived import spread
from silomix.model.metrics import INTERVAL, highest_density_interval
from silomix.model.sentences import amount, listing, number, percent, plural, printable
from silomix.posterior import Posterior, characterise
from silomix.report import display
from silomix.report.display import Cell, Picture, Table, from_lines, make_table
from silomix.report.run_sections import rows_by_silo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.schema import Variable
    from silomix.posterior.global_posterior import Assignment
    from silomix.posterior.outside_estimates import Comparison
    from silomix.report.outside_variables import Outside

# Probability from which a row's cluster is called clear.
CLEAR = 0.9
# Probability from which nobody doubts that a cluster is one.
SETTLED = 0.995
# Pairs of clusters that are listed: those nearest to being one.
MOST_PAIRS = 5
# Levels on each side of a cluster that are listed; others are counted.
MOST_TRAITS = 10
# Levels in the heat map: those that differ most between clusters.
MOST_LINES = 1000
# Numbers on the page: those that differ most between clusters.
MOST_NUMBERS = 200
# Numbers whose curves are drawn, likewise.
MOST_CURVES = 30
# Outside variables that are printed; the frame has all.
MOST_OUTSIDE = 6
# Places along a curve, and standard deviations that it shows of every cluster.
PLACES, REACH = 61, 3.0


def sizes_frame(posterior: Posterior, **_: object) -> pd.DataFrame:
    """Return one line per cluster: its share of all rows, how many are labelled so, and words.

    Where the rows are elsewhere, only how many are expected, by the share: no silo says more.
    """
    sizes: pd.DataFrame = posterior.cluster_sizes(INTERVAL, frame_like="pandas")
    place, silo_rows = list(sizes).index("mean"), rows_by_silo(posterior)
    if posterior.assignment is not None:
        sizes.insert(place, "rows", np.bincount(posterior.labels, minlength=len(sizes)))
    elif silo_rows is not None:
        sizes.insert(place, "expected_rows", (sizes["mean"] * sum(silo_rows)).round().astype(int))
    return sizes.assign(description=posterior.descriptions())


def clear_rows(rows: Assignment) -> tuple[float, Floats]:
    """Return the share of rows whose cluster has a probability of `CLEAR`, of all and by cluster.

    Of clusters, (cluster,), it is among the rows that are labelled so; nan where there are none.
    """
    clusters = rows.membership.shape[1]
    # kept in single precision, to four decimals
    sure = rows.membership.max(axis=1) > CLEAR - 1e-5
    counts = np.bincount(rows.labels, minlength=clusters)
    with np.errstate(invalid="ignore"):
        return float(sure.mean()), np.bincount(rows.labels, sure, clusters) / counts


def sizes_table(posterior: Posterior) -> Table:
    """Return the clusters' shares of all rows, with intervals and, where known, rows."""
    sizes, silo_rows = sizes_frame(posterior), rows_by_silo(posterior)
    match, names = posterior.correspondence, posterior.cluster_names
    near: list[list[str]] = [[] for _ in names]
    for a, b, *_ in characterise.nearly_same(match, posterior.profile_draws, posterior.family):
        near[a].append(names[b])
        near[b].append(names[a])
    scaled = sizes[["mean", "lower", "upper"]] / sizes["upper"].max()
    intervals = sizes["lower"].map(percent) + " to " + sizes["upper"].map(percent)
    notes = [f"perhaps {listing(others, 3)}" if others else "" for others in near]
    columns: dict[str, Any] = {"cluster": [*map(Cell, names, [""] * len(names), notes)]}
    caption = "Each cluster's share of the rows of all silos"
    if posterior.assignment is not None:
        columns["rows labelled"] = sizes["rows"].map("{:,}".format)
        columns["clear rows"] = map(percent, clear_rows(posterior.assignment)[1])
        caption += f"; a row is clear from a probability of {CLEAR:.0%}"
    columns["share"] = sizes["mean"].map(percent)
    columns[f"{INTERVAL:.0%} interval"] = intervals
    if silo_rows is not None:
        columns["expected rows"] = (sizes["mean"] * sum(silo_rows)).map("{:,.0f}".format)
    columns[""] = [display.bar(*line) for line in scaled.to_numpy()]
    return make_table(caption, columns)


def kinds_sentences(posterior: Posterior) -> Iterator[str]:
    """Yield the names and kinds of the variables that are numbers."""
    schema = posterior.study.table_schema
    if schema.numbers and not schema.of_parameters:
        named = listing([f"{display.shown_name(v)} ({v.kind})" for v in schema.numbers])
        others = "; the others as categories" if schema.categories else ""
        yield f"Taken as numbers: {named}{others}."


def number_sentences(posterior: Posterior) -> Iterator[str]:
    """Yield the evidence for this number of clusters, and for one fewer and one more."""
    match, names = posterior.correspondence, posterior.cluster_names
    small = int((posterior.weights.mean(axis=0, dtype=np.float64) < characterise.SMALL).sum())
    rare = f", {small} of them with less than {characterise.SMALL:.0%} of all rows" if small else ""
    yield f"{plural(len(names), 'cluster')}{rare}."
    pairs = characterise.nearest_pairs(match, posterior.profile_draws, posterior.family)
    for a, b, joint, overlap in pairs[:1]:
        sure = "" if np.isnan(joint) else f"the probability that they are one is {joint:.2f}, and "
        yield (
            f"One fewer: clusters {names[a]} and {names[b]} are the closest to being one; {sure}"
            f"their profiles overlap by {overlap:.2f}."
        )
    if match is None or match.confidence is None:
        yield "One more: the probability that a cluster is really two was not computed."
        return
    # a cluster that was found in one piece cannot be two
    pieces = np.array([[(group == c).sum() for c in range(len(names))] for group in match.groups])
    together = np.where(pieces.sum(axis=0) > 1, match.cluster_confidence(), 1.0)
    least = int(together.argmin())
    if together[least] >= SETTLED:
        yield "One more: no cluster looks like two; each one's parts belong together across silos."
    else:
        split = int((pieces[:, least] > 1).sum())
        who = plural(split, "silo") if split else "no silo"
        yield (
            f"One more: cluster {names[least]} is the most likely to be two; the probability that "
            f"the silos' parts of it belong together is {together[least]:.2f}, and {who} split it."
        )


def pairs_table(posterior: Posterior) -> Table | None:
    """Return the pairs of clusters that are nearest to being one; None of a single cluster."""
    if posterior.n_clusters == 1:
        return None
    match, names = posterior.correspondence, posterior.cluster_names
    pairs = characterise.nearest_pairs(match, posterior.profile_draws, posterior.family)
    pairs = pairs[:MOST_PAIRS]
    columns: dict[str, Any] = {
        "clusters": [f"{names[a]} and {names[b]}" for a, b, *_ in pairs],
        "probability that they are one": [number(one) for _, _, one, _ in pairs],
        "overlap of their profiles": [f"{overlap:.2f}" for *_, overlap in pairs],
    }
    if match is not None:  # silos that told the two apart on their own rows
        both = [int(match.held[:, [a, b]].all(axis=1).sum()) for a, b, *_ in pairs]
        columns["silos that found both"] = both
    return make_table("The pairs of clusters that are closest to being one", columns)


def profile_means(posterior: Posterior) -> Floats:
    """Return the posterior means of the shared profiles, in the table's units.

    They are (cluster, parameter).
    """
    means = posterior.profile_draws.mean(axis=0, dtype=np.float64)
    return np.asarray(posterior.family.describe(means))


def traits_table(posterior: Posterior) -> Table:
    """Levels and numbers that are high and low in each cluster."""
    means, contrast = profile_means(posterior), posterior.contrasts
    traits = characterise.traits(contrast, posterior.family)
    names, shares = posterior.parameter_names, posterior.family.shares()

    def trait(cluster: int, column: int) -> str:
        variable, word = names[column]
        mean, scaled = means[cluster, column], number(contrast.scaled[cluster, column], "+.2f")
        if shares[column]:
            return f"{variable} = {word} ({percent(mean)}, {scaled})"
        return f"{variable} ({word} {amount(mean)}, {scaled})"

    def listed(cluster: int, columns: Ints) -> str:
        lines = [trait(cluster, column) for column in columns[:MOST_TRAITS]]
        if len(columns) > MOST_TRAITS:
            lines.append(f"and {len(columns) - MOST_TRAITS} more")
        return "\n".join(lines) or "nothing specific"

    both = [(listed(c, high), listed(c, low)) for c, (high, low) in enumerate(traits)]
    first = zip(posterior.cluster_names, posterior.descriptions(), both, strict=True)
    lines = [(name, words, *lists) for name, words, lists in first]
    heads = ("cluster", "in words", "higher than overall", "lower than overall")
    return from_lines("What each cluster is like", heads, lines, left=range(4), narrow=2)


def heat_map(posterior: Posterior) -> dict[str, Any]:
    """Lines of a heat map, and their numbers for the script that sorts them."""
    order = characterise.likeness_order(posterior.contrasts, posterior.family)
    strength = np.abs(posterior.contrasts.scaled[:, : len(posterior.levels)]).max(axis=0)
    largest = float(np.clip(strength.max(), 0.5, display.LARGEST))
    shown = np.sort(np.argsort(-strength, kind="stable")[:MOST_LINES])
    whole, scaled, above, high, low = (part[..., shown] for part in posterior.contrasts)
    differs = np.maximum(high, low).max(axis=0) >= characterise.PROBABILITY
    # of two levels, the first mirrors the second, and is shown when asked for
    mirrors, draws = ~posterior.family.tells()[shown], posterior.profile_draws[:, :, shown]
    mean = draws.mean(axis=0, dtype=np.float64)
    lower, upper = highest_density_interval(draws, INTERVAL)
    by_cluster = {"lower": lower, "upper": upper, "mean": mean, "above": above}
    silo_rows, weights = rows_by_silo(posterior), posterior.weights.mean(axis=0, dtype=np.float64)

    def cell(mean: float, scaled: float) -> tuple[str, str]:
        return _short(mean), f"{display.heat_class(mean)} {display.apart_class(scaled, largest)}"

    return {
        "lines": [
            {
                "name": posterior.levels[column],
                "kind": "mirror " * int(mirrors[line]) + "differs" * int(differs[line]),
                "whole": _short(whole[line]),
                "cells": list(map(cell, mean[order, line], scaled[order, line])),
            }
            for line, column in enumerate(shown)
        ],
        "largest": largest,
        "data": {
            "draws": posterior.n_draws,
            "names": [posterior.cluster_names[cluster] for cluster in order],
            "rows": None if silo_rows is None else _rounded(weights[order], sum(silo_rows)),
            "scaled": _rounded(scaled[order].T, 1e2),
            "whole": _rounded(whole, 1e4),
            **{name: _rounded(part[order].T, 1e4) for name, part in by_cluster.items()},
        },
    }


def _short(share: float) -> str:
    """Return a percentage in at most four characters, without its sign."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"


def _rounded(values: Floats, scale: float) -> list[Any]:
    return np.round(values * scale).astype(int).tolist()


def find_numbers(posterior: Posterior, most: int) -> list[tuple[Variable, Floats, Floats]]:
    """Return the numbers that differ most between clusters, in the order of the table.

    Returns
    -------
    For each, the variable; its parameters in the units of the table, of all rows and then of each
    cluster, (1 + cluster, parameter); and the scaled differences of its means, (cluster,).
    """
    contrast = posterior.contrasts
    means = np.vstack([contrast.whole, profile_means(posterior)])
    family, shares = posterior.family, posterior.family.shares()
    numbers = [
        (variable, means[:, start:stop], contrast.scaled[:, start])
        for variable, (start, stop) in zip(family.variables, pairwise(family.starts), strict=True)
        if not shares[start]
    ]
    strength = [-np.abs(scaled).max() for _, _, scaled in numbers]
    return [numbers[place] for place in np.sort(np.argsort(strength, kind="stable")[:most])]


def densities(variable: Variable, parameters: Floats) -> tuple[Floats, Floats]:
    """Return places that hold all clusters, (place,), and densities: (cluster, place).

    Parameters
    ----------
    parameters : (cluster, parameter), in the units of the table.
    """
    family = KINDS[variable.kind]((variable,))
    means, spreads = parameters[:, :1], spread(family, parameters)
    shown = means + spreads * [-REACH, -1.0, 0.0, 1.0, REACH]
    if family.support == "counts":
        top = np.ceil(max(shown.max(), 1.0))
        # of few counts, each of them
        x = np.linspace(0.0, top, int(min(top + 1, PLACES)))
    else:
        # narrow peaks lie between even places
        x = np.unique([*np.linspace(shown.min(), shown.max(), PLACES), *shown.ravel()])
        x = x[x > 0] if family.support == "positive" else x
    if family.units == "scaled" and not family.always_hides:
        return x, np.exp(-0.5 * ((x - means) / spreads) ** 2) / spreads
    logs = family.log_density(x[:, None], parameters) + family.log_base(x[:, None])[:, None]
    return x, np.exp(logs).T


def numbers_table(posterior: Posterior) -> Table:
    """Return mean and spread of each number in each cluster, coloured by the scaled difference."""

    def line(variable: Variable, parameters: Floats, scaled: Floats) -> Iterator[Cell]:
        yield Cell(display.shown_name(variable))
        family = KINDS[variable.kind]((variable,))
        placed = [0, *(order + 1)]
        means, spreads = parameters[placed, 0], spread(family, parameters)[placed, 0]
        heat = ["", *map(display.apart_class, scaled[order])]
        for mean, sd, colour in zip(means, spreads, heat, strict=True):
            # where the mean is all there is, the spread follows from it
            note = f"sd {amount(sd)}" if len(family.parameter_words) > 1 else ""
            yield Cell(amount(mean), colour, note)

    caption = "Means, and in small print standard deviations; similar clusters are side by side"
    if posterior.study.table_schema.of_parameters:
        caption = "Posterior means; parameters down, clusters across, similar ones side by side"
    order = characterise.likeness_order(posterior.contrasts, posterior.family)
    heads = ["variable", "whole", *(posterior.cluster_names[cluster] for cluster in order)]
    lines = (line(*each) for each in find_numbers(posterior, MOST_NUMBERS))
    return from_lines(caption, heads, lines, kind="grid tall differences")


def curves_table(posterior: Posterior) -> Table:
    """Return a small curve of each number in each cluster."""
    sizes, lines = posterior.weights.mean(axis=0, dtype=np.float64), []
    order = characterise.likeness_order(posterior.contrasts, posterior.family)
    for variable, parameters, _ in find_numbers(posterior, MOST_CURVES):
        x, heights = densities(variable, parameters[1:])
        name = Cell(display.shown_name(variable), note=f"{amount(x[0])} to {amount(x[-1])}")
        lines.append([name, *(display.curve(x, heights[c], sizes @ heights) for c in order)])
    caption = "Distributions of the numbers in each cluster, in front of that of all rows"
    heads = ["variable", *(posterior.cluster_names[c] for c in order)]
    return from_lines(caption, heads, lines, kind="grid tall")


def map_picture(posterior: Posterior) -> Picture | None:
    """Return the clusters in the plane; None if there is no such map."""
    plane = characterise.map_of(posterior)
    method = "principal components of their scaled differences from the whole"
    what = "the variance between clusters"
    if posterior.family.is_categorical:
        method, what = "multiple correspondence analysis", "the association between variables"
    if plane is None:
        return None
    shares = posterior.weights.mean(axis=0, dtype=np.float64)
    caption = (
        f"Clusters by {method}. Axis 1 explains {percent(plane.shares[0])} of {what}, axis 2 "
        f"{percent(plane.shares[1])}. Larger discs are clusters with more rows."
    )
    x, y = ([number(place, "+.2f") for place in places] for places in plane.centres.T)
    names = posterior.cluster_names
    places = {"cluster": names, "axis 1": x, "axis 2": y}
    drawing = display.map_chart(plane, shares, names, caption)
    return Picture(drawing, caption, make_table("Where the clusters lie", places))


def outside_tables(outside: Outside) -> list[Table]:
    """Table of each outside variable, by cluster."""
    groups = groupby(outside.comparisons, lambda item: item.variable)
    return [_outside_table(outside, list(items)) for _, items in groups]


def _outside_table(outside: Outside, items: Sequence[Comparison]) -> Table:
    """Table of a variable's mean, or of its levels, in each cluster and then in all rows."""
    first, interval = items[0], f"({100 * outside.level:g}% interval)"
    points = "" if first.level is None else ", points"
    named = ("cluster",) if len(items) == 1 else ("cluster", "level")
    heads = (
        *named,
        "rows",
        f"{'mean' if first.level is None else 'share'} {interval}",
        f"minus the {outside.against}{points} {interval}",
        "",
        "p value",
    )
    lines: list[tuple[object, ...]] = []
    ends = np.abs([[item.lower, item.upper] for item in items])
    reach = np.max(ends, initial=0.0, where=np.isfinite(ends)) or 1.0
    missing = outside.missing[first.variable]
    for item in items:
        for cluster, name in enumerate(outside.posterior.cluster_names):
            limits = item.estimate_lower[cluster], item.estimate_upper[cluster]
            mean, least, most = (_outside_text(x, item) for x in (item.estimate[cluster], *limits))
            marks = item.difference[cluster], item.lower[cluster], item.upper[cluster]
            change, lower, upper = (_outside_text(value, item, "+") for value in marks)
            picture = display.whisker(*marks, reach) if np.isfinite(marks).all() else ""
            p = item.p_value[cluster]
            star = " *" if p <= outside.threshold else ""
            p_value = ("<0.0001" if p < 0.0001 else number(p, ".4f")) + star
            shown = f"{mean} ({least} to {most})", f"{change} ({lower} to {upper})", picture
            rows = f"{item.rows[cluster]:,.0f}"
            lines.append((*(name, item.level)[: len(named)], rows, *shown, p_value))
        whole = f"{outside.rows - missing:,}", _outside_text(item.whole, item)
        lines.append((*("all", item.level)[: len(named)], *whole, "", "", ""))
    caption = first.name if len(items) == 1 else first.variable
    if missing:
        caption += f"; {missing:,} of {outside.rows:,} rows left out: no value"
    return from_lines(caption, heads, lines, left=range(len(named)), kind="outside tall")


def _outside_text(value: float, item: Comparison, sign: str = "") -> str:
    """Format a mean with about four digits, or a share in percent; "–" for nan.

    With the sign "+" it is a difference: of shares, in percentage points.
    """
    if item.level is not None:
        return number(100 * value, f"{sign}.1f") if sign else number(value, ".1%")
    numbers = np.abs([item.whole, *item.difference])
    largest = np.max(numbers, initial=0.0, where=np.isfinite(numbers))
    decimals = int(np.clip(3 - np.floor(np.log10(largest)), 0, 6)) if largest > 0 else 0
    return number(value, f"{sign},.{decimals}f")


@group()
def outside_view(outside: Outside) -> Iterator[RenderableType]:
    """Comparison in outside variables, as a terminal shows it."""
    way = "each row in its most probable cluster"
    if outside.method == "averaged":
        way = f"memberships averaged over {plural(outside.draws, 'draw')}"
    yield Text(f"Outside variables of {plural(outside.posterior.n_clusters, 'cluster')}, {way}\n")
    tables = outside_tables(outside)
    for table in tables[:MOST_OUTSIDE]:
        yield Text(printable(table.caption))
        yield display.as_view(table)
    if len(tables) > MOST_OUTSIDE:
        yield Text(f"... and {len(tables) - MOST_OUTSIDE} more: see .frame()\n")
    yield Text(
        f"* differs from the {outside.against}: p at most {outside.threshold:.2g}, "
        "which keeps the chance of any false alarm in "
        f"{plural(outside.tests, 'test')} at {100 * outside.error:g}% (Bonferroni)"
    )
