"""Figures as functions: each takes a posterior, or a study's table, and an axis, and returns it.

Needs matplotlib, in the extra "report". Colours are those of the report, safe for the colour-blind:
blues for shares, orange to purple for differences, and markers that differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import SettingsError, SilomixError
from silomix.messages.heat_map import draw_heat, height_of, name_ticks, new_axis
from silomix.model.reading import Table, read_table
from silomix.model.sentences import one_of
from silomix.model.table import encode
from silomix.posterior import Posterior, characterise
from silomix.posterior.characterise import spread
from silomix.report.display import COLOURS, MARKERS
from silomix.report.run_sections import TRACES, find_traces

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from silomix.kernels.arrays import Floats, Ints
    from silomix.report.outside_variables import Outside

# By the end of a file's name, what to leave out, so that one figure makes one file.
NO_STAMP = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
# Variables whose drift is drawn, the largest; with more, no name is legible.
MOST_VARIABLES = 40
# Standard errors each way.
ERRORS = 2.0


def cluster_sizes(posterior: Posterior, ax: Axes | None = None, *, level: float = 0.95) -> Axes:
    """Draw each cluster's share of all rows, with its highest-density interval.

    Examples
    --------
    >>> silomix.plots.cluster_sizes(posterior, level=0.9).get_title()
    'Cluster sizes, 90% HDI'
    """
    ax, sizes = new_axis(ax), posterior.cluster_sizes(level, frame_like="pandas")
    means, lower, upper = sizes[["mean", "lower", "upper"]].to_numpy().T
    reach = np.clip([means - lower, upper - means], 0.0, None)
    ax.errorbar(sizes["cluster"], means, reach, fmt="o", color=COLOURS[0], capsize=3)
    name_ticks(ax, posterior.cluster_names)
    ax.set_ylim(bottom=0.0)
    ax.set(xlabel="cluster", ylabel="share of all rows", title=f"Cluster sizes, {level:.0%} HDI")
    return ax


def number_of_clusters(
    posterior: Posterior, ax: Axes | None = None, *, at_least: float = characterise.SMALL
) -> Axes:
    """Draw how many of the clusters have at least a given share of the rows, over the draws.

    Examples
    --------
    >>> silomix.plots.number_of_clusters(posterior).get_title()
    'Of 5 clusters found'
    """
    if not 0 <= at_least < 1:
        raise SettingsError(f"at_least is {at_least}; give a share of the rows from 0 to below 1")
    ax, held = new_axis(ax), (posterior.weights >= at_least).sum(axis=1)
    numbers, draws = np.unique(held, return_counts=True)
    ax.bar(numbers, draws / len(held), color=COLOURS[0])
    ax.set(xticks=numbers, xlim=(numbers.min() - 1.5, numbers.max() + 1.5), ylim=(0.0, 1.0))
    ax.set_xlabel(f"clusters with at least {at_least:.1%} of all rows")
    ax.set(ylabel="share of the draws", title=f"Of {posterior.n_clusters} clusters found")
    return ax


def mca_map(posterior: Posterior, ax: Axes | None = None, *, table: Table | None = None) -> Axes:
    """Draw the clusters on the first two axes of a multiple correspondence analysis.

    Where some variables are numbers, the axes are the principal components of the clusters' scaled
    differences from the whole population, and no rows are drawn.

    Parameters
    ----------
    table : rows to draw beneath, if they are here: those of one's own silo. Each lies at the mean
        of its levels; missing cells are left out.

    Examples
    --------
    >>> silomix.plots.mca_map(posterior, table=table).get_title()
    'Clusters by correspondence analysis'
    """
    family, schema = posterior.family, posterior.study.table_schema
    if table is not None and not family.is_categorical:
        raise SilomixError(
            "rows are drawn on the map of a correspondence analysis, which needs categories only, "
            "and this posterior has numbers; leave out the table"
        )
    axes = characterise.map_of(posterior)
    if axes is None:
        raise SilomixError(
            f"there is no map of {posterior.n_clusters} cluster(s) and {len(family.variables)} "
            "variable(s): it needs two clusters that differ, and two variables"
        )
    ax = new_axis(ax, (5.5, 5.0))
    if table is not None:
        cells = family.features(encode(read_table(table), schema))
        x, y = (cells @ axes.columns).T / np.maximum(cells.sum(axis=1), 1)
        ax.scatter(x, y, s=4, color="0.75", linewidths=0, rasterized=True)
    shares = posterior.weights.mean(axis=0, dtype=np.float64)
    for cluster, (x, y) in enumerate(axes.centres):
        style = cluster % len(COLOURS)
        ax.scatter(x, y, s=60 + 900 * shares[cluster], color=COLOURS[style], alpha=0.6)
        ax.scatter(x, y, s=12, color="black", marker=MARKERS[style])
        name = posterior.cluster_names[cluster]
        ax.annotate(name, (x, y), textcoords="offset points", xytext=(6, 6), parse_math=False)
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    ax.axvline(0.0, color="0.8", linewidth=0.8, zorder=0)
    names = [f"axis {axis + 1} ({share:.0%})" for axis, share in enumerate(axes.shares)]
    method = "correspondence analysis" if family.is_categorical else "principal components"
    ax.set(xlabel=names[0], ylabel=names[1], title=f"Clusters by {method}")
    return ax


def profile_heat_map(
    posterior: Posterior, ax: Axes | None = None, *, both_levels: bool = False
) -> Axes:
    """Draw the probability of each level in each cluster; levels down, clusters across.

    `both_levels` shows the first level of two-level variables too, which the second mirrors.
    Numbers have no levels, and are left out; `scaled_difference` draws them too.

    Examples
    --------
    >>> silomix.plots.profile_heat_map(posterior).get_title()
    'Probability of each level'
    """
    if not posterior.levels:
        raise SilomixError(
            "all variables of this posterior are numbers, which have no levels to draw; "
            "plots.scaled_difference shows how the clusters differ in them, and "
            "posterior.profiles() has their means"
        )
    shown, names = _shown(posterior, both_levels=both_levels)
    shown = shown[posterior.family.shares()[shown]]
    means = posterior.profile_draws.mean(axis=0, dtype=np.float64)[:, shown].T
    words = ("probability", "Probability of each level")
    return draw_heat(ax, means, names[: len(shown)], posterior.cluster_names, words)


def scaled_difference(
    posterior: Posterior, ax: Axes | None = None, *, both_levels: bool = False
) -> Axes:
    """Draw the scaled difference of each level from the whole population, cluster by cluster.

    Fendler et al. (2026), section 6; `Categorical.scaled_difference` has the formula. Of numbers it
    is the difference of means in standard deviations within clusters, of counts the logarithm of
    the ratio of rates.

    Examples
    --------
    >>> silomix.plots.scaled_difference(posterior).get_title()
    'Scaled difference from the whole population'
    """
    shown, names = _shown(posterior, both_levels=both_levels)
    scaled = posterior.contrasts.scaled[:, shown].T
    words = ("scaled difference", "Scaled difference from the whole population")
    return draw_heat(ax, scaled, names, posterior.cluster_names, words)


def outside(found: Outside, ax: Axes | None = None, *, variable: str | None = None) -> Axes:
    """Draw an outside variable in each cluster, with intervals; the dashed line is over all rows.

    Parameters
    ----------
    found : what `silomix.compare_outside` returned.
    variable : the column, of which the mean or the shares of levels are drawn; the first if None.

    Examples
    --------
    >>> rows = table.assign(age=40.0 + 10 * truth.labels + [0, 1, 2, 3] * 100)
    >>> found = silomix.compare_outside(posterior, rows, ["age"], silo="silo")
    >>> silomix.plots.outside(found).get_title()
    'age in each cluster, 95% CI'
    """
    name = found.comparisons[0].variable if variable is None else variable
    one_of("variable", name, [*dict.fromkeys(item.variable for item in found.comparisons)])
    levels, ax = [item for item in found.comparisons if item.variable == name], new_axis(ax)
    at = np.arange(found.posterior.n_clusters)
    for place, item in enumerate(levels):
        middle, lower, upper = item.estimate, item.estimate_lower, item.estimate_upper
        reach = np.clip([middle - lower, upper - middle], 0.0, None)
        _beside(ax, (place, len(levels)), at, middle, reach, item.name)
        colour = COLOURS[place % len(COLOURS)]
        label = "all rows" if len(levels) == 1 else None
        ax.axhline(item.whole, color=colour, linewidth=0.8, linestyle="--", label=label)
    ax.legend(fontsize=8)
    name_ticks(ax, found.posterior.cluster_names)
    shown = "mean" if levels[0].level is None else "share of the cluster"
    title = f"{name} in each cluster, {100 * found.level:g}% CI"
    ax.set(xlabel="cluster", ylabel=shown, title=title)
    return ax


def _shown(posterior: Posterior, *, both_levels: bool) -> tuple[Ints, list[str]]:
    """Return the columns of the levels and numbers to show, and their names."""
    shares, names = posterior.family.shares(), posterior.parameter_names
    shown = np.flatnonzero(posterior.family.tells() | (shares & both_levels))
    return shown, [(" = " if shares[i] else " ").join(names[i]) for i in shown]


def silo_clusters(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw each cluster's share of each silo's rows; a dot marks what the silo found on its own.

    Examples
    --------
    >>> silomix.plots.silo_clusters(posterior).get_title()
    'Which silos hold which cluster'
    """
    shares = posterior.weights_by_silo.mean(axis=0, dtype=np.float64)
    words = ("share of the silo's rows", "Which silos hold which cluster")
    ax = draw_heat(ax, shares, posterior.silos, posterior.cluster_names, words)
    if posterior.correspondence is not None:
        silo, cluster = np.nonzero(posterior.correspondence.held)
        corner = (cluster + 0.38, silo - 0.33)
        ax.scatter(*corner, s=14, color=COLOURS[1], edgecolors="white", label="found by the silo")
        ax.legend(loc="lower left", bbox_to_anchor=(0, -0.35), fontsize=7, frameon=False)
    return ax


def silo_weights(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw λ, the silos' influence on the clusters' sizes, and μ, that on each profile.

    Examples
    --------
    >>> silomix.plots.silo_weights(posterior).get_title()
    'Silo weights'
    """
    frame, silos = posterior.silo_weights_frame(frame_like="pandas"), posterior.silos
    weights, profiles = (frame[k].to_numpy().reshape(len(silos), -1) for k in ("weight", "profile"))
    both = np.column_stack([weights[:, 0], np.where(profiles > 0, profiles, np.nan)])
    columns = ["λ", *(f"μ {name}" for name in posterior.cluster_names)]
    ax = draw_heat(ax, both, silos, columns, ("influence of the silo", "Silo weights"))
    ax.axvline(0.5, color="white", linewidth=4)
    ax.set_xlabel("λ, and μ by cluster")
    return ax


def drift(posterior: Posterior, ax: Axes | None = None, *, level: float = 0.95) -> Axes:
    """Draw how much the silos differ in each variable, the largest difference at the top.

    A dot is the spread: the standard deviation between silos of a probability of one half, in
    percentage points, at the posterior median of κ; a line is its interval. The colour is the
    probability that the silos are alike. Point values, of a run without polish, have neither.
    Where some variables are numbers, the spread of each variable, categories included, is in
    standard deviations within a cluster: twice that of a probability of one half.

    Examples
    --------
    >>> silomix.plots.drift(posterior).get_title()
    'In which variables the silos differ, 95% intervals'
    """
    frame = posterior.drift(level, frame_like="pandas").head(MOST_VARIABLES)
    ax = new_axis(ax, (6.4, max(2.4, height_of(len(frame)))))
    lines, title = np.arange(len(frame)), "In which variables the silos differ"
    # the larger κ, the smaller the spread
    unit, words, least = 100, "a probability of one half between silos, percentage points", 1.0
    if not posterior.family.is_categorical:
        unit, least = 2, 0.02
        words = "the mean or share between silos, standard deviations within a cluster"
    middle, near, far = (unit * spread(frame[k].to_numpy()) for k in ("kappa", "upper", "lower"))
    if frame["same"].notna().all():
        title += f", {level:.0%} intervals"
        ax.hlines(lines, near, far, color="0.6", linewidth=1.5, zorder=1)
        dots = ax.scatter(
            middle, lines, c=frame["same"], cmap="cividis", vmin=0.0, vmax=1.0, edgecolors="0.3"
        )
        ax.figure.colorbar(dots, ax=ax, label="P(silos alike)", pad=0.02)
    else:
        ax.scatter(middle, lines, color=COLOURS[0])
    ax.set_yticks(lines, frame["variable"], fontsize=8, parse_math=False)
    # silos that are all alike need a scale too, and dots at zero some room
    edge = 1.05 * max(np.nanmax([middle, far]), least)
    ax.set(title=title, xlim=(-0.02 * edge, edge), ylim=(len(frame) - 0.5, -0.5))
    ax.set_xlabel(f"spread of {words}")
    return ax


def trace(posterior: Posterior, ax: Axes | None = None, *, which: str = "elbo") -> Axes:
    """Draw a trace: "elbo", the aggregation's objective, or "log_likelihood", over the polish.

    Examples
    --------
    >>> silomix.plots.trace(posterior, which="log_likelihood").get_xlabel()
    'polish round'
    """
    traces = find_traces(posterior.diagnostics)
    if which not in traces:
        known = ", ".join(map(repr, traces)) or "none"
        raise SettingsError(f"which is {which!r}; the traces of this posterior are: {known}")
    ax, (_, along, value) = new_axis(ax), TRACES[which]
    ax.plot(np.arange(len(traces[which])) + 1, traces[which], color=COLOURS[0], marker=".")
    ax.set(xlabel=along, ylabel=value, title=f"{value} by {along}")
    return ax


def agreement(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the adjusted Rand index of each method in each cell, ± two standard errors.

    Parameters
    ----------
    summary : a line for each cell and method of a simulation study; its columns are `cell`,
        `method`, `ARI` and `ARI se`.

    Examples
    --------
    >>> import pandas as pd
    >>> line = {"cell": "nested", "method": "default", "ARI": 0.9, "ARI se": 0.01}
    >>> silomix.plots.agreement(pd.DataFrame([line])).get_ylabel()
    'adjusted Rand index'
    """
    ax = _compare_methods(ax, summary, "ARI")
    ax.set(ylabel="adjusted Rand index", title="Agreement with the true clusters")
    ax.set_ylim(top=1.0)
    return ax


def coverage(
    summary: pd.DataFrame, ax: Axes | None = None, *, parameter: str = "pi", level: float = 0.95
) -> Axes:
    """Draw how often intervals hold the true value, ± two standard errors, and the nominal level.

    Parameters
    ----------
    summary : as for `agreement`, with the columns of the parameter, such as `pi` and `pi se`.
    parameter : "pi" for the weights, or "p0" to "p3" for level probabilities by their size.
    level : of the intervals.

    Examples
    --------
    >>> import pandas as pd
    >>> line = {"cell": "nested", "method": "default", "pi": 0.94, "pi se": 0.01}
    >>> silomix.plots.coverage(pd.DataFrame([line])).get_title()
    'Coverage of 95% intervals: weights'
    """
    ax = _compare_methods(ax, summary, parameter)
    ax.axhline(level, color="black", linewidth=0.8, linestyle="--", label=f"{level:.0%} wanted")
    ax.legend(fontsize=8)
    named = "weights" if parameter == "pi" else f"level probabilities, {parameter}"
    ax.set(ylabel="coverage", title=f"Coverage of {level:.0%} intervals: {named}")
    return ax


def _compare_methods(ax: Axes | None, summary: pd.DataFrame, value: str) -> Axes:
    """Draw a value and its standard error, side by side for the methods in each cell."""
    ax = new_axis(ax, (7.2, 4.0))
    cells, methods = summary["cell"].unique().tolist(), summary["method"].unique()
    for place, method in enumerate(methods):
        lines = summary[summary["method"] == method]
        reach = ERRORS * lines[f"{value} se"].to_numpy()
        at = np.array([cells.index(cell) for cell in lines["cell"]])
        _beside(ax, (place, len(methods)), at, lines[value].to_numpy(), reach, str(method))
    ax.set_xticks(range(len(cells)), cells, rotation=20, ha="right", fontsize=8)
    ax.legend(fontsize=8)
    return ax


def save_figure(ax: Axes, path: str | Path, *, dpi: int = 150) -> Path:
    """Write the figure of an axis as PNG or SVG, according to the extension, and return the path.

    The same figure makes the same file: no date and no version of a program is written.

    Examples
    --------
    >>> ax = silomix.plots.cluster_sizes(posterior)
    >>> silomix.plots.save_figure(ax, "sizes.png", dpi=60).name
    'sizes.png'
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in NO_STAMP:
        raise SettingsError(f"{target} must end in one of {', '.join(NO_STAMP)}")
    import matplotlib as mpl

    figure = ax.get_figure(root=True)
    if figure is None:
        raise SettingsError("the axis no longer belongs to a figure; draw it again before saving")
    with mpl.rc_context({"svg.hashsalt": "silomix"}):
        figure.savefig(target, dpi=dpi, metadata=NO_STAMP[kind])
    return target


def _beside(
    ax: Axes, place: tuple[int, int], at: Ints, values: Floats, reach: Floats, label: str
) -> None:
    """Draw one of several series of values with their intervals, side by side at each place."""
    number, series = place
    ax.errorbar(
        at + (number - (series - 1) / 2) * 0.6 / series,
        values,
        reach,
        fmt=MARKERS[number % len(MARKERS)],
        color=COLOURS[number % len(COLOURS)],
        capsize=3,
        label=label,
    )


def __dir__() -> list[str]:
    figures = (name for name, f in globals().items() if getattr(f, "__module__", "") == __name__)
    return sorted(name for name in figures if not name.startswith("_"))
