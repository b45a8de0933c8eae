from __future__ import annotations

import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from silomix import plots
from silomix.errors import DataError, MissingDependency, SettingsError, SilomixError
from silomix.plots.common import COLOURS
from silomix.posterior.characterise import cluster_map
from silomix.types import Schema, Variable
from unit.posteriors import SCHEMA, SILOS, make_diagnostics, make_posterior, with_drift

POSTERIOR_FIGURES = [
    plots.cluster_sizes,
    plots.drift,
    plots.mca_map,
    plots.number_of_clusters,
    plots.profile_heat_map,
    plots.scaled_difference,
    plots.silo_clusters,
    plots.silo_weights,
    plots.trace,
]
STUDY_FIGURES = [plots.agreement, plots.coverage]


@pytest.fixture
def posterior(seed):
    return make_posterior(np.random.default_rng(seed))


@pytest.fixture
def study():
    cells = ["easy", "poor"]
    return pd.DataFrame(
        {
            "cell": [cell for cell in cells for _ in range(2)],
            "method": ["pooled", "default"] * 2,
            "ARI": [0.96, 0.95, 0.66, 0.67],
            "ARI se": [0.01, 0.01, 0.02, 0.02],
            "pi": [0.95, 0.94, 0.90, 0.96],
            "pi se": [0.01, 0.02, 0.03, 0.02],
        }
    )


@pytest.fixture
def drifting(posterior, seed):
    return with_drift(posterior, np.random.default_rng(seed))


@pytest.fixture
def given(drifting, study):
    """What each figure is drawn from."""
    return dict.fromkeys(POSTERIOR_FIGURES, drifting) | dict.fromkeys(STUDY_FIGURES, study)


@pytest.mark.parametrize("draw", [*POSTERIOR_FIGURES, *STUDY_FIGURES], ids=lambda f: f.__name__)
def test_a_figure_is_drawn_on_the_axis_given_and_labelled(draw, given, tmp_path):
    ax = Figure(layout="constrained").add_subplot()
    assert draw(given[draw], ax) is ax
    assert ax.get_title()
    assert ax.get_xlabel() or draw in STUDY_FIGURES
    assert ax.get_ylabel() or ax.get_yticklabels()
    for name in ("figure.png", "figure.svg"):
        assert plots.save_figure(ax, tmp_path / name, dpi=30).stat().st_size > 1000


@pytest.mark.parametrize("draw", [*POSTERIOR_FIGURES, *STUDY_FIGURES], ids=lambda f: f.__name__)
def test_a_figure_makes_its_own_axis(draw, given):
    assert draw(given[draw]).get_figure() is not None


def test_no_figure_starts_a_window(posterior):
    backend = mpl.get_backend()
    plots.cluster_sizes(posterior)
    assert mpl.get_backend() == backend
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


def test_the_heat_map_shows_the_means(posterior):
    shown = plots.profile_heat_map(posterior, both_levels=True).images[0]
    means = posterior.probabilities.mean(axis=0)
    np.testing.assert_allclose(shown.get_array(), means.T, rtol=1e-6)
    assert shown.get_cmap().name == "cividis"


def test_the_first_of_two_levels_is_left_out(posterior):
    ax = plots.profile_heat_map(posterior)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["smoker = yes", "stage = I", "stage = II", "stage = III", "sex = m"]


def test_differences_have_a_scale_that_is_even_around_zero(posterior):
    shown = plots.scaled_difference(posterior).images[0]
    assert shown.norm.vmin == -shown.norm.vmax
    assert shown.get_cmap().name == "PuOr"


def test_sizes_are_means_with_intervals(posterior):
    ax = plots.cluster_sizes(posterior)
    line = ax.get_lines()[0]
    np.testing.assert_allclose(line.get_ydata(), posterior.weights.mean(axis=0), rtol=1e-6)


def test_a_name_is_no_formula(seed, tmp_path):
    schema = Schema((Variable("$\\frac$", ("a", "b_$")), *SCHEMA.variables))
    posterior = make_posterior(np.random.default_rng(seed), schema=schema)
    ax = plots.profile_heat_map(posterior)
    assert ax.get_yticklabels()[0].get_text() == r"\$\frac\$ = b_\$"
    plots.save_figure(ax, tmp_path / "figure.png")


def test_what_a_silo_found_is_marked(posterior):
    ax = plots.silo_clusters(posterior)
    marks = ax.collections[0].get_offsets()
    assert len(marks) == posterior.correspondence.held.sum()


def test_silos_that_found_nothing_are_not_marked(seed):
    posterior = make_posterior(np.random.default_rng(seed), correspondence=None)
    assert len(plots.silo_clusters(posterior).collections) == 0


def test_rows_lie_at_the_mean_of_their_levels(posterior):
    table = pd.DataFrame(
        {"smoker": ["no", None], "stage": ["II", "II"], "sex": ["m", None], "silo": SILOS}
    )
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
    wide = plots.drift(drifting).collections[0].get_segments()
    np.testing.assert_allclose(wide[0][:, 0], [0.0, expected[0]])


def test_point_values_have_no_interval_and_no_probability(posterior, seed):
    ax = plots.drift(with_drift(posterior, np.random.default_rng(seed), point=True))
    assert len(ax.collections) == 1
    assert ax.get_title() == "In which variables the silos differ"


def test_silos_that_do_not_drift_cannot_be_drawn(posterior):
    with pytest.raises(SilomixError, match="this posterior has no drift"):
        plots.drift(posterior)


def test_one_cluster_has_no_map(seed):
    posterior = make_posterior(np.random.default_rng(seed), clusters=1)
    with pytest.raises(SilomixError, match=r"no map of 1 cluster\(s\) and 3 variable\(s\)"):
        plots.mca_map(posterior)


def test_weights_that_are_not_there_cannot_be_drawn(seed):
    posterior = make_posterior(np.random.default_rng(seed), silo_weights=None)
    with pytest.raises(SilomixError, match="has no silo weights"):
        plots.silo_weights(posterior)


def test_a_trace_is_named(posterior):
    values = plots.trace(posterior, which="log_likelihood").get_lines()[0].get_ydata()
    np.testing.assert_allclose(values, np.arange(8.0))
    with pytest.raises(SettingsError, match=r"which is 'rhat'; .* 'elbo', 'log_likelihood'"):
        plots.trace(posterior, which="rhat")


def test_a_posterior_without_traces_says_so(seed):
    diagnostics = make_diagnostics(elbo=None, polish=None)
    posterior = make_posterior(np.random.default_rng(seed), diagnostics=diagnostics)
    with pytest.raises(SettingsError, match="the traces of this posterior are: none"):
        plots.trace(posterior)


def test_methods_differ_by_colour_and_marker(study):
    first, second = (box[0] for box in plots.agreement(study).containers)
    assert (first.get_color(), second.get_color()) == COLOURS[:2]
    assert first.get_marker() != second.get_marker()
    np.testing.assert_allclose(first.get_ydata(), [0.96, 0.66])


def test_coverage_shows_what_is_wanted(study):
    ax = plots.coverage(study, level=0.9)
    assert any(list(line.get_ydata()) == [0.9, 0.9] for line in ax.get_lines())


def test_a_study_without_its_columns_is_refused(study):
    with pytest.raises(DataError, match="has no column 'p0', 'p0 se'; it needs 'cell'"):
        plots.coverage(study, parameter="p0")


def test_the_same_figure_makes_the_same_file(posterior, tmp_path):
    for kind in ("png", "svg"):
        first, second = (
            plots.save_figure(plots.cluster_sizes(posterior), tmp_path / f"{name}.{kind}")
            for name in "ab"
        )
        assert first.read_bytes() == second.read_bytes()


def test_a_figure_of_another_kind_is_refused(posterior, tmp_path):
    with pytest.raises(SettingsError, match=r"figure.pdf must end in one of .png, .svg"):
        plots.save_figure(plots.cluster_sizes(posterior), tmp_path / "figure.pdf")


def test_an_axis_of_no_figure_cannot_be_saved(posterior, tmp_path):
    ax = plots.cluster_sizes(posterior)
    ax.remove()
    with pytest.raises(SettingsError, match="the axis is on no figure any more"):
        plots.save_figure(ax, tmp_path / "figure.png")


def test_a_figure_names_its_extra(posterior, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"pip install 'silomix\[report\]'"):
        plots.cluster_sizes(posterior)
