"""Figures of the study, from its results: numbers of clusters, shards and shares."""

from __future__ import annotations

from comparing import in_cell
from running import CELLS, SEPARABILITIES

from silomix.report.display import COLOURS, MARKERS
from silomix.report.plots import agreement, coverage, save_figure

SHOWN = ("default", "no-polish", "paper", "fedmerdel", "block-gibbs", "pooled")
"""Methods on the figures of agreement and coverage: as many as there are colours."""


def new_axes(rows, columns, size):
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure.subplots(rows, columns, squeeze=False)


def save(axes, path):
    """Write a figure with its text as text: outlines of letters would be most of the file."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        return save_figure(axes, path)


def clusters_by_matching(lines, path):
    """Draw how often each matching found how many clusters, cell by cell."""
    axes = new_axes(2, 3, (9.0, 5.0))
    words = list(dict.fromkeys(lines["matching"]))
    fewest, most = lines["clusters"].min(), lines["clusters"].max()
    for place, cell in enumerate(CELLS):
        ax = axes[place % 2, place // 2]
        part = in_cell(lines, *cell)
        for number, word in enumerate(words):
            counts = part[part["matching"] == word]["clusters"].value_counts(normalize=True)
            shift = (number - (len(words) - 1) / 2) * 0.8 / len(words)
            colour = COLOURS[number % len(COLOURS)]
            ax.bar(counts.index + shift, counts, 0.8 / len(words), color=colour, label=word)
        for planted in part["planted"].unique():
            ax.axvline(planted, color="black", linewidth=0.8, linestyle="--")
        ax.set(title=" ".join(cell), xlabel="clusters", ylabel="share of data sets", ylim=(0, 1))
        ax.set_xlim(fewest - 0.6, most + 0.6)
    axes[0, 0].legend(fontsize=8)
    return save(axes[0, 0], path)


def draw_lines(ax, lines, x, y, by):
    """Draw means with two standard errors against x, a line for each value of `by`."""
    for number, (name, part) in enumerate(lines.groupby(by, sort=False)):
        means = part.groupby(x)[y].agg(["mean", "sem"])
        ax.errorbar(
            means.index,
            means["mean"],
            2 * means["sem"].fillna(0.0),
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            capsize=3,
            label=str(name),
        )
    ax.set_xscale("log")
    ticks = sorted(lines[x].unique())
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()


def fractionation(lines, path):
    """Draw clusters and agreement against the number of shards, local and matched."""
    prior = lines["fractionate"].map({1: "fractionated", 0: "whole"}) + ", " + lines["partition"]
    excess = lines["clusters"] - lines["planted"]
    lines = lines.assign(prior=prior, excess=excess)
    axes = new_axes(2, 2, (8.0, 6.0))
    panels = [
        ("local_excess", "local: clusters found less true"),
        ("local_ari", "local: adjusted Rand index"),
        ("excess", "matched: clusters found less true"),
        ("ari", "matched: adjusted Rand index"),
    ]
    for ax, (column, title) in zip(axes.flat, panels, strict=True):
        draw_lines(ax, lines, "shards", column, "prior")
        ax.set(title=title, xlabel="shards")
        if "excess" in column:
            ax.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
    axes[0, 0].legend(fontsize=8)
    return save(axes[0, 0], path)


def clusters_by_shards(lines, path):
    """Draw the number of clusters found against the number of shards."""

    def draw(ax, part):
        draw_lines(ax, part, "shards", "clusters", "method")
        ax.axhline(part["planted"].iloc[0], color="black", linewidth=0.8, linestyle="--")

    return by_separability(lines, path, draw, xlabel="shards", ylabel="clusters found")


def found_by_share(lines, path):
    """Draw how often a cluster was found against its share of the one silo that has it."""

    def draw(ax, part):
        draw_lines(ax, part, "share", "found", "method")

    labels = {"xlabel": "share of the silo", "ylabel": "found", "ylim": (-0.05, 1.05)}
    return by_separability(lines, path, draw, **labels)


def by_separability(lines, path, draw, **labels):
    """Draw the lines of easy and of poor separability side by side."""
    axes = new_axes(1, 2, (8.0, 3.5))
    for ax, separability in zip(axes.flat, SEPARABILITIES, strict=True):
        part = lines[lines["separability"] == separability]
        if len(part):
            draw(ax, part)
        ax.set(title=separability, **labels)
    axes[0, 0].legend(fontsize=8)
    return save(axes[0, 0], path)


def overview(summary, folder):
    """Draw agreement, and coverage of the smallest probabilities, of six methods."""
    some = summary[summary["method"].isin(SHOWN)]
    save(agreement(some), folder / "study-agreement.svg")
    save(coverage(some, parameter="p0"), folder / "study-coverage.svg")
