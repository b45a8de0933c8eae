from __future__ import annotations

import sys
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from cases.posteriors import SCHEMA, make_diagnostics, make_posterior
from matplotlib.figure import Figure

from silomix import plots
from silomix.errors import MissingDependency, SettingsError, SilomixError
from silomix.messages.heat_map import LIGHT
from silomix.model.schema import Schema, Variable
from silomix.posterior.characterise import cluster_map
from silomix.report.outside_variables import compare_outside

STUDY_FIGURES, OUTSIDE = {"agreement", "coverage"}, "outside"
FIGURES = sorted({*dir(plots)} - {"save_figure"})


@pytest.fixture
def study():
    lines = [("easy", "pooled", 0.96), ("easy", "default", 0.95), ("poor", "pooled", 0.66)]
    frame = pd.DataFrame(lines, columns=["cell", "method", "ARI"])
    return frame.assign(**{"ARI se": 0.01, "pi": 0.95, "pi se": 0.02})


@pytest.fixture
def compared(posterior, rng):
    """Ages and wards, of which the labels of 60 rows tell nothing."""
    table = pd.DataFrame({v.name: rng.choice(v.levels, 60) for v in SCHEMA.variables})
    table["age"], table["ward"] = rng.normal(60, 9, 60), rng.choice([*"abc"], 60)
    labels = np.arange(60) % posterior.n_clusters
    return compare_outside(posterior, table, ["age", "ward"], method="labels", labels=labels)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_on_the_axis_given_and_labelled(
    name, drifting, study, compared, tmp_path
):
    others = dict.fromkeys(STUDY_FIGURES, study) | {OUTSIDE: compared}
    draw, given = getattr(plots, name), others.get(name, drifting)
    backend = mpl.get_backend()
    ax = Figure(layout="constrained").add_subplot()
    assert draw(given, ax) is ax
    assert ax.get_title()
    assert ax.get_xlabel() or name in STUDY_FIGURES
    assert ax.get_ylabel() or ax.get_yticklabels()
    assert plots.save_figure(ax, tmp_path / "f.png", dpi=30).stat().st_size > 1000
    assert draw(given).get_figure() is not None
    # no figure starts a window
    assert mpl.get_backend() == backend
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_outside_variables_are_drawn_with_their_intervals(compared):
    frame = compared.frame()
    ages = frame[frame["variable"] == "age"]
    ax = plots.outside(compared)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), ages["estimate"])
    ends = np.array([line[:, 1] for line in ax.collections[0].get_segments()])
    np.testing.assert_allclose(ends, ages[["estimate_lower", "estimate_upper"]])
    shares = plots.outside(compared, variable="ward")
    assert [text.get_text() for text in shares.get_legend().get_texts()] == [
        "ward = a",
        "ward = b",
        "ward = c",
    ]
    with pytest.raises(SettingsError, match="ward"):
        plots.outside(compared, variable="wards")


def test_figures_show_the_means_in_the_colours_of_the_report(posterior):
    means = posterior.probabilities.mean(axis=0)
    shown = plots.profile_heat_map(posterior, both_levels=True).images[0]
    np.testing.assert_allclose(shown.get_array(), means.T, rtol=1e-6)
    assert [mpl.colors.to_hex(shown.cmap(end)) for end in (0.0, 1.0)] == [*LIGHT["p"][::3]]
    # the first of two levels is left out
    names = [label.get_text() for label in plots.profile_heat_map(posterior).get_yticklabels()]
    assert names == ["smoker = yes", "stage = I", "stage = II", "stage = III", "sex = m"]
    differences = plots.scaled_difference(posterior).images[0]
    assert differences.norm.vmin == -differences.norm.vmax
    assert mpl.colors.to_hex(differences.cmap(0.5)) == LIGHT["d"][3]
    sizes = plots.cluster_sizes(posterior).get_lines()[0].get_ydata()
    np.testing.assert_allclose(sizes, posterior.weights.mean(axis=0), rtol=1e-6)


def test_a_name_is_no_formula(seed, tmp_path):
    schema = Schema((Variable("$\\frac$", ("a", "b_$")), *SCHEMA.variables))
    posterior = make_posterior(np.random.default_rng(seed), schema=schema)
    ax = plots.profile_heat_map(posterior)
    assert ax.get_yticklabels()[0].get_text() == r"$\frac$ = b_$"
    plots.save_figure(ax, tmp_path / "figure.png")


def test_rows_lie_at_the_mean_of_their_levels(posterior):
    table = pd.DataFrame({"smoker": ["no", None], "stage": ["II", "II"], "sex": ["m", None]})
    ax = plots.mca_map(posterior, table=table)
    found = cluster_map(posterior.weights, posterior.probabilities, np.array([0, 2, 5, 7]))
    expected = [found.columns[[0, 3, 6]].mean(axis=0), found.columns[3]]
    np.testing.assert_allclose(ax.collections[0].get_offsets(), expected)


def test_the_variable_in_which_silos_differ_most_is_at_the_top(drifting):
    ax = plots.drift(drifting, level=0.5)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["smoker", "sex", "stage"]
    assert ax.yaxis.get_inverted()
    assert ax.get_title() == "In which variables the silos differ, 50% intervals"
    intervals, dots = ax.collections
    expected = 100 * np.sqrt(0.25 / (np.array([5.0, 200.0, np.inf]) + 1))
    np.testing.assert_allclose(dots.get_offsets()[:, 0], expected)
    # κ was infinite in a tenth of the draws
    np.testing.assert_allclose(dots.get_array(), [0.1, 0.0, 1.0])
    np.testing.assert_allclose([path[0, 0] for path in intervals.get_segments()], expected)
    own = drifting.silo_profiles
    point = replace(drifting, silo_profiles=replace(own, kappa=own.kappa[-1:]))
    assert len(plots.drift(point).collections) == 1  # no interval, no probability


def test_what_is_not_there_cannot_be_drawn(posterior, seed, monkeypatch):
    bare = {"silo_weights": None, "diagnostics": make_diagnostics(elbo=None, polish=None)}
    bare = make_posterior(np.random.default_rng(seed), clusters=1, **bare)
    for draw in (plots.drift, plots.mca_map, plots.silo_weights, plots.trace):
        with pytest.raises(SilomixError, match=r"this posterior|no map|has no"):
            draw(bare)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"pip install 'silomix\[report\]'"):
        plots.cluster_sizes(posterior)


def test_a_trace_is_named(posterior):
    values = plots.trace(posterior, which="log_likelihood").get_lines()[0].get_ydata()
    np.testing.assert_allclose(values, np.arange(8.0))
    with pytest.raises(SettingsError, match=r"which is 'rhat'; .* 'elbo', 'log_likelihood'"):
        plots.trace(posterior, which="rhat")


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_figure_makes_the_same_file(posterior, tmp_path, kind):
    files = [tmp_path / f"{name}.{kind}" for name in "ab"]
    first, second = (plots.save_figure(plots.cluster_sizes(posterior), file) for file in files)
    assert first.read_bytes() == second.read_bytes()


def test_a_figure_of_another_kind_is_refused(posterior, tmp_path):
    ax = plots.cluster_sizes(posterior)
    with pytest.raises(SettingsError, match=r"must end in one of \.png, \.svg"):
        plots.save_figure(ax, tmp_path / "figure.pdf")
    ax.remove()
    with pytest.raises(SettingsError, match="no longer belongs to a figure"):
        plots.save_figure(ax, tmp_path / "figure.png")
