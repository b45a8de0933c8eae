"""The page, figures and files of posteriors with numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cases.posteriors import MIXED, NUMBERS, SILOS, make_table, numbers_posterior

from silomix.errors import SilomixError
from silomix.families import KINDS
from silomix.model.schema import Variable
from silomix.model.table import encode
from silomix.report import cluster_sections, make_report, plots
from silomix.report import results_folder as files
from silomix.report.cluster_sections import curves_table, densities, numbers_table, traits_table
from silomix.report.run_sections import drift_table, sent_table
from silomix.silo.local import Silo, sample_locally
from silomix.study import make_study


@pytest.fixture(params=[NUMBERS, MIXED], ids=["numbers", "mixed"])
def posterior(request, seed):
    return numbers_posterior(np.random.default_rng(seed), request.param, drifts=True)


def test_the_page_has_what_the_kinds_need(posterior):
    page = make_report(posterior)
    assert ('id="heat"' in page) == bool(posterior.levels)
    assert ("These are the levels" in page) == bool(posterior.levels)
    assert "Means, and in small print standard deviations" in page
    count = len(posterior.study.table_schema.numbers)
    assert page.count('class="curve"') == count * posterior.n_clusters
    assert "principal components of their scaled differences" in page
    assert "only sums travelled" in page
    assert not re.search(r"\bnan\b", page)


def test_what_left_are_sums_and_no_empty_replies(posterior):
    sent = {silo: {"Received": 0, "PolishReply": 9} for silo in posterior.silos}
    made = replace(posterior.provenance, sent=sent, answered={})
    told = replace(posterior, provenance=made)
    assert sent_table(told).heads == ("silo", "sums", "total")
    assert "Sums: over the cells of each cluster" in make_report(told)


def test_means_spreads_and_colours(posterior, monkeypatch):
    table = numbers_table(posterior)
    assert table.heads == ("variable", "whole", "0", "1", "2")
    named = {row[0].text: row for row in table.rows}
    assert ("log dose" in named) == (not posterior.levels)
    frame = posterior.profiles(layout="wide").set_index(["variable", "level_name"])
    age, visits = named["age"][2], named["visits"][2]
    assert float(age.text) == pytest.approx(frame.loc[("age", "mean"), "cluster 0"], rel=1e-3)
    spread = frame.loc[("age", "sd"), "cluster 0"]
    assert float(age.note.removeprefix("sd ")) == pytest.approx(spread, rel=1e-3)
    assert visits.note == ""
    assert re.fullmatch(r"d\d+", age.heat)
    monkeypatch.setattr(cluster_sections, "MOST_CURVES", 1)
    assert len(curves_table(posterior).rows) == 1


@pytest.mark.parametrize(
    ("variable", "means", "spreads", "edges"),
    [
        (Variable("x", kind="gaussian"), [0.0, 8.0], [1.0, 1e-4], (-3.0, 8.0003)),
        (Variable("n", kind="poisson"), [0.0, 4.0], [0.0, 2.0], (0.0, 10.0)),
        (Variable("n", kind="poisson"), [900.0, 900.0], [30.0, 30.0], (0.0, 990.0)),
    ],
)
def test_a_curve_shows_all_of_every_cluster(variable, means, spreads, edges):
    count = len(KINDS[variable.kind].parameter_words)
    x, heights = densities(variable, np.transpose([means, spreads])[:, :count])
    assert (x[0], x[-1]) == pytest.approx(edges)
    assert len(x) <= cluster_sections.PLACES + 10
    assert np.isfinite(heights).all()
    # however narrow, the peak is there
    peaks = x[heights.argmax(axis=1)]
    assert np.abs(peaks - means).max() <= max(spreads)


def test_traits_and_differences_name_the_numbers(seed):
    made = numbers_posterior(np.random.default_rng(seed), NUMBERS, drifts=True)
    made.profile_draws[:, 2, 2] += 9.0
    high = traits_table(made).rows[2][2].text
    assert re.search(r"^dose \(mean of log [\d.]+, \+\d", high)
    table = drift_table(made)
    assert table.heads[2] == "spread"
    lines = {row[0].text: [cell.text for cell in row] for row in table.rows}
    assert lines["age"][2:4] == ["0.30 sd", "0.00 to 0.30"]
    assert re.search(r"^mean in cluster \d: [\d.]+ in south, [\d.]+ in north$", lines["age"][5])
    mixed = drift_table(numbers_posterior(np.random.default_rng(seed), MIXED, drifts=True))
    assert {row[2].text for row in mixed.rows} == {"15.1 points", "0.30 sd"}


def test_figures_draw_numbers_or_say_what_they_do_not_draw(posterior):
    names = [" ".join(name) for name in posterior.parameter_names]
    drawn = [text.get_text() for text in plots.scaled_difference(posterior).get_yticklabels()]
    assert [name for name in drawn if " = " not in name] == [
        name for name in names if " mean" in name or name.endswith(" rate")
    ]
    both = plots.scaled_difference(posterior, both_levels=True).get_yticklabels()
    assert len(both) == len(names) - sum(" sd" in name for name in names)
    assert plots.mca_map(posterior).get_title() == "Clusters by principal components"
    with pytest.raises(SilomixError, match="leave out the table"):
        plots.mca_map(posterior, table=pd.DataFrame())
    assert "standard deviations" in plots.drift(posterior).get_xlabel()
    if posterior.levels:
        assert len(plots.profile_heat_map(posterior).get_yticklabels()) == 4
    else:
        with pytest.raises(SilomixError, match=r"no levels to draw; plots\.scaled_difference"):
            plots.profile_heat_map(posterior)


def test_the_folder_of_the_whole_result(posterior, tmp_path):
    written = files.write_posterior(tmp_path / "out", posterior)
    assert {path.name for path in written} >= {"profiles.csv", "drift.csv", "report.html"}
    profiles = pd.read_csv(tmp_path / "out/profiles.csv")
    pd.testing.assert_frame_equal(profiles, posterior.profiles(), rtol=1e-5, check_dtype=False)


def test_the_folder_of_one_silo(seed, tmp_path):
    table, _ = make_table(np.random.default_rng(seed), 120)
    study = make_study(MIXED, SILOS, seed=7, iterations=300)
    local = sample_locally(Silo("north", 0, encode(table, MIXED), study))
    files.write_silo(tmp_path / "out", "north", local, keep_draws=True)
    profiles = pd.read_csv(tmp_path / "out/profiles.csv").set_index(["variable", "level"])
    ages = profiles.loc[("age", "mean"), "mean"].to_numpy()
    assert np.sort(ages) == pytest.approx([50.0, 66.0], abs=2.0)
    with np.load(tmp_path / "out/draws.npz") as kept:
        assert kept["levels"].tolist()[-3:] == [["age", "mean"], ["age", "sd"], ["visits", "rate"]]
        assert kept["probabilities"][..., -3].max() > 40
