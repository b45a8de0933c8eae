"""What sets clusters apart as a frame and in words, rows as a frame, names of clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from cases.posteriors import MIXED, SCHEMA, SILOS, make_posterior, numbers_posterior
from numpy.testing import assert_allclose

import silomix
from silomix.errors import DataError, FileError, SettingsError, SilomixError
from silomix.model.metrics import highest_density_interval
from silomix.report import make_report, plots, results_folder
from silomix.report.display import as_text
from silomix.report.summary import posterior_view

NAMES = {1: "frail <b>", 2: "well"}


def fixed(rng, weights, profiles, schema=SCHEMA):
    """A posterior of the same clusters in every draw; profiles are (cluster, level)."""
    made = make_posterior(rng, draws=4, clusters=len(weights), schema=schema)
    draws = np.tile(np.array(profiles, dtype=np.float32), (4, 1, 1))
    return replace(made, weights=np.tile(weights, (4, 1)), profile_draws=draws)


class TestContrast:
    def test_by_hand(self, rng):
        """Half of all rows smoke: all of one cluster, none of the other; stage differs less."""
        made = fixed(
            rng,
            [0.5, 0.5],
            [[1.0, 0.0, 0.3, 0.3, 0.4, 0.5, 0.5], [0.0, 1.0, 0.5, 0.3, 0.2, 0.5, 0.5]],
        )
        frame = made.contrast(cluster=1)
        assert frame[["variable", "level_name"]].to_numpy().tolist() == [
            ["smoker", "yes"],
            ["stage", "III"],
            ["stage", "I"],
            ["stage", "II"],
            ["sex", "m"],
        ]
        first = frame.iloc[0]
        assert first[["mean", "whole", "difference"]].tolist() == [1.0, 0.5, 0.5]
        assert first[["lower", "upper", "scaled", "probability"]].tolist() == [0.5, 0.5, 1.0, 1.0]
        # 0.2 − 0.3 over √(0.3 · 0.7) is −0.218; 0.5 − 0.4 over √(0.4 · 0.6) is +0.204
        assert_allclose(frame["scaled"][1:3], [-0.21822, 0.20412], rtol=1e-4)
        assert frame["sets_apart"].tolist() == [True, True, True, False, False]
        strict = made.contrast(cluster=1, margin=0.21)
        assert strict["sets_apart"].tolist() == [True, True, False, False, False]
        both = made.contrast()
        assert both["cluster"].tolist() == [0] * 5 + [1] * 5
        pd.testing.assert_frame_equal(both[5:].reset_index(drop=True), frame)

    def test_intervals_are_of_the_draws_in_the_units_of_the_table(self, rng):
        made = numbers_posterior(rng, MIXED)
        frame = made.contrast(cluster=2, level=0.8).set_index(["variable", "level_name"])
        column = made.parameter_names.index(("age", "mean"))
        ages = made.parameters[:, :, column].astype(np.float64)
        differences = ages[:, 2] - (ages * made.weights).sum(axis=1)
        found = frame.loc[("age", "mean")]
        assert_allclose(found["difference"], differences.mean(), rtol=1e-5)
        interval = highest_density_interval(differences, 0.8)
        assert_allclose(found[["lower", "upper"]].astype(float), interval, rtol=1e-4)
        side = np.sign(found["scaled"])
        share = (side * differences > 0).mean()
        sign = made.contrast(cluster=2, margin=0.0).set_index(["variable", "level_name"])
        assert sign.loc[("age", "mean"), "probability"] == pytest.approx(share)
        assert ("age", "sd") not in frame.index

    @pytest.mark.parametrize("cluster", [3, [1]])
    def test_refuses_a_cluster_that_is_not_there(self, rng, cluster):
        with pytest.raises(SettingsError):
            make_posterior(rng).contrast(cluster=cluster)


class TestWords:
    def test_levels(self, rng):
        made = fixed(
            rng,
            [0.4, 0.4, 0.2],
            [
                [0.95, 0.05, 0.04, 0.04, 0.92, 0.8, 0.2],
                [0.20, 0.80, 0.60, 0.20, 0.20, 0.5, 0.5],
                [0.40, 0.60, 0.45, 0.45, 0.10, 0.1, 0.9],
            ],
        )
        first, second, third = made.descriptions()
        assert first == "nearly always stage = III, rarely smoker, mostly sex = f"
        assert second == "mostly smoker, less often stage = III"
        assert third.startswith("mostly sex = m")
        # one of a variable's levels speaks for it
        assert all(text.count("stage") == 1 for text in (first, second, third))

    def test_numbers(self, rng):
        made = numbers_posterior(rng, MIXED, clusters=2)
        draws, family = made.profile_draws.copy(), made.family
        names = family.names()
        age, visits = names.index(("age", "mean")), names.index(("visits", "rate"))
        draws[:, 0, age], draws[:, 1, age] = -1.0, 3.0
        draws[:, 0, visits], draws[:, 1, visits] = 6.0, 1.0
        even = np.full((made.n_draws, 2), 0.5)
        said = replace(made, profile_draws=draws, weights=even).descriptions()
        assert {"low age", "high visits"} <= {*said[0].split(", ")}
        assert {"high age", "low visits"} <= {*said[1].split(", ")}

    def test_nothing_and_many(self, rng):
        alike = fixed(rng, [0.5, 0.5], [[0.5, 0.5, 0.2, 0.3, 0.5, 0.5, 0.5]] * 2)
        assert len({*alike.descriptions()}) == 1
        schema = silomix.Schema(tuple(silomix.Variable(f"x{q}", ("no", "yes")) for q in range(8)))
        many = fixed(rng, [0.5, 0.5], [[1.0, 0.0] * 8, [0.0, 1.0] * 8], schema)
        assert many.descriptions()[1].endswith(" and 3 more")


class TestLabels:
    def test_a_line_per_row(self, rng):
        made = make_posterior(rng, rows=30)
        rows = made.assignment
        frame = made.labels_frame(id=[f"p{row}" for row in range(30)], probabilities=True)
        assert frame["id"].tolist()[:2] == ["p0", "p1"]
        assert frame["silo"].tolist() == [SILOS[place] for place in rows.silos]
        assert frame["cluster"].tolist() == rows.labels.tolist()
        by_size = np.argsort(-rows.membership, axis=1, kind="stable")
        assert frame["second"].tolist() == by_size[:, 1].tolist()
        assert_allclose(frame[["p0", "p1", "p2"]], rows.membership, atol=1e-6)
        assert_allclose(frame["probability"], rows.membership.max(axis=1), atol=1e-6)
        assert list(made.labels_frame()) == ["row", "silo", "cluster", "probability", "second"]
        named = replace(made, assignment=replace(rows, ids=np.arange(30)))
        assert named.labels_frame()["id"].tolist() == list(range(30))
        in_polars = made.labels_frame(id=pl.Series(range(30)), frame_like="polars")
        assert in_polars["id"].to_list() == list(range(30))

    def test_one_cluster_has_no_second(self, rng):
        assert make_posterior(rng, clusters=1).labels_frame()["second"].isna().all()

    def test_refusals(self, rng):
        made = make_posterior(rng)
        with pytest.raises(DataError, match="id is 2 values; give a value for each of"):
            made.labels_frame(id=[1, 2])
        with pytest.raises(DataError, match=r"'patient': .* give table="):
            made.labels_frame(id="patient")
        with pytest.raises(SilomixError, match="silo and threads are for other rows"):
            made.labels_frame(silo="silo")
        with pytest.raises(SilomixError):
            replace(made, assignment=None).labels_frame()


class TestNames:
    def test_stand_everywhere(self, rng, tmp_path):
        made = make_posterior(rng).with_names(NAMES)
        assert made.cluster_names == ["0", "1: frail <b>", "2: well"]
        for frame in (
            made.cluster_sizes(),
            made.summary(),
            made.profiles(),
            made.contrast(),
            made.labels_frame(),
            made.correspondence_frame(),
        ):
            expected = [NAMES.get(cluster, "") for cluster in frame["cluster"]]
            assert frame["name"].tolist() == expected
        assert "cluster 2: well" in made.profiles(layout="wide")
        results_folder.write_posterior(tmp_path, made)
        for file in ("cluster_sizes.csv", "labels.csv", "contrast.csv"):
            assert "well" in (tmp_path / file).read_text()
        page = make_report(made)
        assert page.count("1: frail &lt;b&gt;") > 3
        assert "frail <b>" not in page.replace('"1: frail \\u003cb\\u003e"', "")
        assert "1: frail <b>" in as_text(posterior_view(made))
        ticks = plots.silo_clusters(made).get_xticklabels()
        assert [tick.get_text() for tick in ticks] == made.cluster_names

    def test_a_cluster_is_found_by_its_name(self, rng):
        made = make_posterior(rng).with_names(NAMES)
        assert made.contrast(cluster="well")["cluster"].unique().tolist() == [2]
        assert made.with_names({"well": "fit"}).names == {2: "fit"}
        with pytest.raises(SettingsError, match=r"'wel'.*0 to 2.*'well'"):
            made.contrast(cluster="wel")

    def test_a_number_may_be_text_unless_it_is_a_name(self, rng):
        made = make_posterior(rng).with_names({"2": "well", 1: "0"})
        assert made.names == {2: "well", 1: "0"}
        assert made.contrast(cluster="2")["cluster"].unique().tolist() == [2]
        assert made.contrast(cluster="0")["cluster"].unique().tolist() == [1]

    def test_are_kept_in_the_file_and_checked_there(self, rng, tmp_path):
        made = make_posterior(rng)
        path = made.with_names(NAMES).save(tmp_path / "a.silomix")
        assert silomix.load(path).names == NAMES
        assert silomix.load(made.save(path)).names == {}
        replace(made, names={7: "nobody"}).save(path)
        with pytest.raises(FileError):
            silomix.load(path)

    @pytest.mark.parametrize("names", [{3: "a"}, {"3": "a"}, {-1: "a"}, {0: " "}, {0: "a", 1: "a"}])
    def test_refusals(self, rng, names):
        with pytest.raises(SettingsError):
            make_posterior(rng).with_names(names)
