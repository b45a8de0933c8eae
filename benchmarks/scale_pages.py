"""From the lines of `scale.csv` to slopes, the tables and the figure of the page on scale."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scale_stages import STAGES, Size
from scipy.stats import linregress
from writing import as_markdown, with_error

from silomix.report.display import COLOURS, MARKERS
from silomix.report.plots import save_figure
from silomix.study.settings import LocalSettings

UPPER = 3
"""A slope is fitted to this many of the largest sizes."""
STEEPEST = 1.05
"""A slope in rows above this is more than linear."""
QUANTITIES = {"cpu_seconds": "time", "peak_mb": "memory"}
OTHERS = ("variables", "components", "silos", "draws")
STYLES = ("-", "--")


def upper(lines, stage, factor, quantity):
    """Return the largest sizes of a stage and their time or memory, by increasing size."""
    some = lines[(lines["stage"] == stage) & (lines["factor"] == factor)]
    x = STAGES[stage].against if factor == "rows" and quantity == "cpu_seconds" else factor
    some = some[some[quantity] > 0].sort_values(x).tail(UPPER)
    return some[x].to_numpy(float), some[quantity].to_numpy(float)


def slope(x, y):
    """Return the least-squares slope of log y on log x, and its standard error.

    Both are NaN with fewer than three points, which leave nothing to judge the fit by.
    """
    if len(x) < UPPER:
        return np.nan, np.nan
    found = linregress(np.log(x), np.log(y))
    return float(found.slope), float(found.stderr)


def slope_of(lines, stage, factor, quantity="cpu_seconds"):
    return slope(*upper(lines, stage, factor, quantity))


def quadratic(lines, stage):
    """Tell whether the slope of the local partition is still that of its row × row matrix."""
    rows, _ = upper(lines, stage, "rows", "cpu_seconds")
    return stage == "local" and (rows / Size().silos <= LocalSettings().threshold).any()


def verdict(value, *, judged=True):
    if not np.isfinite(value) or not judged:
        return "not judged"
    return "pass" if value <= STEEPEST else "**fail**"


def bars(lines):
    """Hold every stage's slopes in rows to the bar: a table."""
    rows = []
    for stage in dict.fromkeys(lines["stage"]):
        for quantity, word in QUANTITIES.items():
            value, error = slope_of(lines, stage, "rows", quantity)
            against = "distinct rows" if STAGES[stage].against == "distinct" else "rows"
            rows.append(
                {
                    "stage": STAGES[stage].title,
                    "slope of": f"{word} in {against if word == 'time' else 'rows'}",
                    "found": with_error(value, error, 2),
                    "bar": f"at most {STEEPEST}",
                    "verdict": verdict(value, judged=not quadratic(lines, stage)),
                }
            )
    return pd.DataFrame(rows)


def amount(value, unit):
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def rows_table(lines):
    """Time and memory of each stage by rows."""
    some = lines[lines["factor"] == "rows"]
    rows = []
    for stage, part in some.groupby("stage", sort=False):
        part = part.set_index("rows")
        for quantity, unit in (("cpu_seconds", "s"), ("peak_mb", "MB")):
            shown = {
                f"{n:,}": amount(part.at[n, quantity], unit) if n in part.index else "–"
                for n in sorted(some["rows"].unique())
            }
            slope_here = with_error(*slope_of(lines, stage, "rows", quantity), 2)
            title = f"{STAGES[stage].title}: {STAGES[stage].unit}" if unit == "s" else ""
            rows.append({"stage and unit": title, **shown, "slope": slope_here})
    return as_markdown(pd.DataFrame(rows))


def factors_table(lines):
    """Slope of the time of each stage in every other size."""
    rows = []
    for stage in dict.fromkeys(lines["stage"]):
        found = {
            factor: with_error(*slope_of(lines, stage, factor), 2)
            if factor in STAGES[stage].factors
            else ""
            for factor in OTHERS
        }
        rows.append({"stage": STAGES[stage].title, **found})
    return as_markdown(pd.DataFrame(rows))


ROW_PANELS = (("rows", "cpu_seconds"), ("rows", "peak_mb"))
OTHER_PANELS = tuple((factor, "cpu_seconds") for factor in OTHERS)


def draw(lines, panels, path):
    """Draw time or memory against a size in each panel, logarithms on both axes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 1.6 * len(panels) + 0.4), layout="constrained")
    axes = figure.subplots(len(panels) // 2, 2, squeeze=False)
    for ax, (factor, quantity) in zip(axes.flat, panels, strict=True):
        draw_panel(ax, lines[lines["factor"] == factor], factor, quantity)
    with mpl.rc_context({"svg.fonttype": "none"}):  # letters as curves would be most of the file
        return save_figure(axes[0, 0], path)


def draw_panel(ax, lines, factor, quantity):
    for number, stage in enumerate(STAGES):
        some = lines[(lines["stage"] == stage) & (lines[quantity] > 0)].sort_values("value")
        if len(some):
            value, _ = slope_of(lines, stage, factor, quantity)
            ax.plot(
                some["value"],
                some[quantity],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=STYLES[number // len(COLOURS)],
                markersize=4,
                label=stage if np.isnan(value) else f"{stage} {value:.2f}",
            )
    unit = "CPU seconds" if quantity == "cpu_seconds" else "MB"
    ax.set(xscale="log", yscale="log", xlabel=factor, ylabel=unit)
    ax.minorticks_off()
    if ax.lines:
        place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "handlelength": 3.5}
        ax.legend(fontsize=8, title="stage, slope", title_fontsize=8, frameon=False, **place)


def write_pages(lines, pages):
    """Write the tables and the figure, and return what to print."""
    for folder in (pages / "tables", pages / "images"):
        folder.mkdir(parents=True, exist_ok=True)
    held = bars(lines)
    texts = {
        "scale": rows_table(lines),
        "scale-bars": as_markdown(held),
        "scale-factors": factors_table(lines),
    }
    for name, text in texts.items():
        (pages / "tables" / f"{name}.md").write_text(text, encoding="utf-8")
    draw(lines, ROW_PANELS, pages / "images" / "scale.svg")
    draw(lines, OTHER_PANELS, pages / "images" / "scale-factors.svg")
    return "\n".join([held.to_string(index=False), "", texts["scale-factors"]])
