"""The global posterior: frames, membership of rows, words, numbering of clusters, DataTree."""

from __future__ import annotations

import logging
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from cases.kernel_twins import membership_definition
from cases.posteriors import SCHEMA, SILOS, make_diagnostics, make_posterior, with_drift
from numpy.testing import assert_allclose, assert_array_equal

from silomix.errors import DataError, DataWarning, MissingDependency, SettingsError, SilomixError
from silomix.messages.container import count_bytes
from silomix.model.draws import SiloProfiles
from silomix.model.metrics import highest_density_interval
from silomix.model.reading import backend_of
from silomix.model.table import encode
from silomix.posterior.global_posterior import Parts, ordered
from silomix.posterior.verdict import PolishTrace, make_provenance
from silomix.study import digest, make_study


def make_table(rng, rows=30):
    table = {
        variable.name: rng.choice([*variable.levels, None], rows) for variable in SCHEMA.variables
    }
    return pd.DataFrame({"hospital": rng.choice(SILOS, rows), **table})


class TestRecord:
    def test_names_what_it_holds(self, posterior):
        assert (posterior.n_clusters, posterior.n_draws, posterior.silos) == (3, 50, SILOS)
        named = [(v.name, level) for v in SCHEMA.variables for level in v.levels]
        assert posterior.levels == named
        assert_array_equal(posterior.labels, posterior.assignment.labels)
        with pytest.raises(FrozenInstanceError):
            posterior.backend = "polars"
        with pytest.raises(SilomixError, match=r"rows are elsewhere.*membership\(table, silo="):
            _ = replace(posterior, assignment=None).labels

    def test_five_lines(self, posterior, seed):
        noted = replace(posterior, diagnostics=make_diagnostics(notes=("One\n  two.",)))
        lines = str(noted).split("\n")
        assert lines[0] == "Posterior of 3 clusters in 2 silos: 50 draws, 3 variables, 7 levels"
        lower, upper = highest_density_interval(posterior.weights[:, 0])
        assert f" ({lower:.1%} to {upper:.1%}), " in lines[1]
        assert "evidence matching, 8 polish rounds, seed 7" in lines[3]
        assert lines[4:] == [f"{posterior.diagnostics.verdict} One two."]
        many = make_posterior(np.random.default_rng(seed), clusters=13)
        assert str(many).split("\n")[1].endswith(" and 3 more")


class TestFrames:
    def test_summary_by_hand(self, seed):
        """Four draws whose numbers can be added up in the head."""
        made = make_posterior(np.random.default_rng(seed), draws=4, clusters=2)
        first, smoker = np.array([0.5, 0.6, 0.7, 0.8]), np.array([0.1, 0.1, 0.3, 0.5])
        probabilities = made.probabilities.astype(np.float64)
        probabilities[:, 1, :2] = np.stack([1 - smoker, smoker], axis=1)
        weights = np.stack([first, 1 - first], axis=1)
        frame = replace(made, weights=weights, profile_draws=probabilities).summary(level=0.5)
        assert list(frame.columns) == [
            *("cluster", "quantity", "variable", "level_name"),
            *("mean", "sd", "lower", "upper", "interval"),
        ]
        assert frame["cluster"].tolist() == [0] * 8 + [1] * 8
        assert set(frame["interval"]) == {"50% HDI"}
        size, yes = frame.iloc[0], frame.iloc[8 + 2]
        assert size["quantity"] == "size"
        assert size[["variable", "level_name"]].isna().all()
        # of four draws, the shortest window that holds more than half has three
        found = [size[name] for name in ("mean", "sd", "lower", "upper")]
        assert_allclose(found, [0.65, np.sqrt(0.0125), 0.5, 0.7], rtol=1e-12)
        named = ("probability", "smoker", "yes")
        assert (yes["quantity"], yes["variable"], yes["level_name"]) == named
        assert_allclose([yes["mean"], yes["lower"], yes["upper"]], [0.25, 0.1, 0.3], rtol=1e-12)

    def test_sizes_and_profiles_are_the_lines_of_the_summary(self, posterior):
        summary = posterior.summary(0.8)
        numbers = ["cluster", "mean", "sd", "lower", "upper", "interval"]
        sizes = summary[summary["quantity"] == "size"][numbers].reset_index(drop=True)
        pd.testing.assert_frame_equal(posterior.cluster_sizes(0.8), sizes)
        profiles = summary[summary["quantity"] == "probability"].drop(columns="quantity")
        profiles = profiles.reset_index(drop=True)
        pd.testing.assert_frame_equal(posterior.profiles(0.8), profiles)
        wide = posterior.profiles(layout="wide")
        assert list(zip(wide["variable"], wide["level_name"], strict=True)) == posterior.levels
        means = wide[["cluster 0", "cluster 1", "cluster 2"]].to_numpy().T
        assert means.ravel().tolist() == profiles["mean"].tolist()

    def test_profiles_of_a_silo_are_its_own(self, posterior, drifting):
        own = drifting.silo_profiles.parameters[:, 1]
        as_if_shared = replace(posterior, profile_draws=own)
        for layout in ("tidy", "wide"):
            found = drifting.profiles(0.8, silo="south", layout=layout)
            pd.testing.assert_frame_equal(found, as_if_shared.profiles(0.8, layout=layout))
        # without drift they are the shared ones
        pd.testing.assert_frame_equal(posterior.profiles(silo="south"), posterior.profiles())

    def test_correspondence_and_silo_weights(self, posterior):
        match, frame = posterior.correspondence, posterior.correspondence_frame()
        assert frame["silo"].tolist() == ["north"] * 4 + ["south"] * 4
        assert frame["cluster"].tolist() == [0, 1, 2, 0] * 2
        assert_array_equal(frame["rows"], np.concatenate(match.sizes))
        assert_array_equal(frame["confidence"], np.concatenate(match.pairs_confidence()))
        frame = posterior.silo_weights_frame()
        assert frame["weight"].tolist() == [0.25] * 3 + [0.75] * 3
        assert_array_equal(frame["profile"], posterior.silo_weights.profiles.ravel())

    def test_frames_come_in_the_library_of_the_table_or_that_asked_for(self, posterior, tmp_path):
        in_polars = replace(posterior, backend="polars").summary()
        assert in_polars["variable"].null_count() == 3
        assert (in_polars.schema["mean"], in_polars.schema["cluster"]) == (pl.Float64, pl.Int64)
        assert in_polars["upper"].to_list() == posterior.summary()["upper"].tolist()
        assert isinstance(replace(posterior, backend="pyarrow").silo_weights_frame(), pa.Table)
        for like in ("polars", pl.DataFrame({"a": [1]})):
            assert isinstance(posterior.cluster_sizes(frame_like=like), pl.DataFrame)
        for table in (tmp_path / "table.csv", "table.csv", pd.DataFrame()):
            assert backend_of(table) == "pandas"
        assert backend_of(pl.DataFrame()) == backend_of(pl.LazyFrame()) == "polars"
        assert backend_of(pa.table({"a": [1]})) == "pyarrow"

    def test_frames_that_cannot_be(self, posterior):
        bare = replace(posterior, correspondence=None, silo_weights=None)
        for ask, settings, word in (
            ("profiles", {"layout": "long"}, "layout='long'"),
            ("profiles", {"silo": "North"}, "did you mean 'north'"),
            ("summary", {"frame_like": "spark"}, "spark"),
            ("summary", {"frame_like": np.zeros(3)}, "ndarray"),
            ("correspondence_frame", {}, "no correspondence"),
            ("silo_weights_frame", {}, "no silo weights"),
        ):
            with pytest.raises(SettingsError if settings else SilomixError, match=word):
                getattr(bare, ask)(**settings)


class TestDrift:
    def made(self, posterior, kappa):
        """Two silos that differ in smoker in cluster 1, in stage a little, in sex not at all."""
        shared = np.tile(np.array([0.5, 0.5, 0.2, 0.3, 0.5, 0.5, 0.5]), (4, 2, 3, 1))
        shared[:, 0, 1, :2] = [0.9, 0.1]
        shared[:, 1, 1, :2] = [0.25, 0.75]
        shared[:, 1, 2, 2:5] = [0.1, 0.5, 0.4]
        own = SiloProfiles(np.array(kappa), shared.astype(np.float32))
        return replace(posterior, silo_profiles=own)

    def test_a_line_per_variable_by_hand(self, posterior):
        # five draws: medians, and intervals that hold three of them
        kappa = [[np.inf, 50, 9], [np.inf, 60, 3], [np.inf, np.inf, 24], [90, 70, 5], [80, 80, 7]]
        made = self.made(posterior, [[line[2], line[1], line[0]] for line in kappa])
        frame = made.drift(level=0.6)
        expected = {
            "variable": ["smoker", "stage", "sex"],
            "same": [0.0, 0.2, 0.6],
            "spread": np.sqrt([0.25 / 8, 0.25 / 71, 0.0]),
            "kappa": [7.0, 70.0, np.inf],
            "lower": [3.0, 50.0, 80.0],
            "upper": [9.0, 80.0, np.inf],
            "interval": ["60% equal-tailed"] * 3,
            "cluster": [1, 2, 0],
            # of two levels the second is shown
            "level_name": ["yes", "II", "m"],
            "highest_silo": ["south", "south", None],
            "highest": [0.75, 0.5, 0.5],
            "lowest_silo": ["north", "north", None],
            "lowest": [0.1, 0.3, 0.5],
            "difference": [0.65, 0.2, 0.0],
        }
        pd.testing.assert_frame_equal(frame, pd.DataFrame(expected), rtol=1e-6)
        assert made.drift(0.6, frame_like="polars")["kappa"].to_list() == expected["kappa"]

    def test_point_values(self, posterior):
        """One κ for all variables: the differences give the order, and there are no intervals."""
        frame = self.made(posterior, [[50.0, 50.0, 50.0]]).drift()
        assert frame["variable"].tolist() == ["smoker", "stage", "sex"]
        assert set(frame["interval"]) == {"point value"}
        assert frame[["same", "lower", "upper"]].isna().all(axis=None)
        assert_array_equal(frame["kappa"], 50.0)

    def test_what_was_not_asked_for_is_explained(self, posterior):
        for settings, word in (
            ({"silos": SILOS, "drift": "none"}, "drift = 'none'"),
            ({"silos": ["one"]}, "a single silo"),
            ({"silos": SILOS}, "were not kept"),
        ):
            study = make_study(SCHEMA, **settings)
            bare = replace(posterior, study=study, provenance=make_provenance(study, [], {}, {}))
            with pytest.raises(SilomixError, match=word):
                bare.drift()


class TestMembership:
    @pytest.mark.parametrize("silo", [None, "south"])
    @pytest.mark.parametrize("drifts", [False, True])
    def test_is_that_of_the_definition(self, posterior, rng, silo, drifts):
        """Global weights and shared profiles, or a named silo's own weights and own profiles."""
        table, plain = make_table(rng).drop(columns="hospital"), posterior
        weights, profiles = posterior.weights, posterior.probabilities
        if drifts:
            posterior = with_drift(posterior, rng)
        if silo:
            weights = posterior.weights_by_silo[:, 1]
        if silo and drifts:
            weights, profiles = weights[-20:], posterior.silo_profiles.parameters[:, 1]
        codes = encode(table, SCHEMA).codes
        expected = membership_definition(codes, SCHEMA.sizes, weights, profiles)
        found = posterior.membership(table, silo=silo)
        # the two add up in different orders
        assert_allclose(found, expected.membership, rtol=1e-10)
        density = posterior.log_predictive_density(table, silo=silo)
        # the logarithm of a row without any cell is zero up to the rounding of a sum
        assert_allclose(density, expected.log_density, rtol=1e-12, atol=1e-12)
        assert np.allclose(found, plain.membership(table, silo=silo)) == (not (silo and drifts))
        assert not np.allclose(found, posterior.membership(table, silo="north"))

    @pytest.mark.parametrize("drifts", [False, True])
    def test_each_row_as_its_silo_says(self, posterior, rng, caplog, drifts):
        """Those of no silo of the study get the global weights and the shared profiles."""
        shared, table = posterior, make_table(rng)
        posterior = with_drift(posterior, rng) if drifts else posterior
        table.loc[:4, "hospital"] = "east"
        table.loc[5, "hospital"] = None
        with caplog.at_level(logging.WARNING, logger="silomix"):
            found = posterior.membership(table, silo="hospital")
            density = posterior.log_predictive_density(table, silo="hospital")
        for name in SILOS:
            rows = (table["hospital"] == name).to_numpy()
            assert_array_equal(found[rows], posterior.membership(table[rows], silo=name))
            alone = posterior.log_predictive_density(table[rows], silo=name)
            assert_array_equal(density[rows], alone)
        nameless = table[:6].drop(columns="hospital")
        assert_array_equal(found[:6], shared.membership(nameless))
        assert_array_equal(density[:6], shared.log_predictive_density(nameless))
        assert "6 rows are of silos that were not fitted ('east')" in caplog.messages[0]
        with pytest.warns(DataWarning, match="all 24 rows get the weights") as warned:
            posterior.membership(table[6:])
            posterior.labels_frame(table=table[6:])
        assert {told.filename for told in warned} == {__file__}

    def test_a_column_of_silos_that_is_not_used_is_warned_of(self, posterior, seed):
        table = make_table(np.random.default_rng(seed))
        with pytest.warns(DataWarning, match="give silo='hospital'"):
            posterior.membership(table.assign(hospital="north"))
        posterior.membership(table.assign(hospital="west"))

    def test_a_variable_of_the_study_is_no_column_of_silos(self, posterior, seed):
        table = make_table(np.random.default_rng(seed))
        new = "of a new silo leave silo out"
        for silo, word in (("elsewhere", new), ("hospitl", "'hospital'"), ("sex", "nor")):
            for method in (posterior.membership, posterior.log_predictive_density):
                with pytest.raises(DataError, match=word):
                    method(table, silo=silo)

        # and a silo called like one is a silo
        provenance = replace(posterior.provenance, silos=("sex", "south"))
        found = replace(posterior, provenance=provenance).membership(table, silo="sex")
        assert_array_equal(found, posterior.membership(table, silo="north"))


class TestNumbering:
    def test_largest_first_in_every_part(self, drifting):
        posterior, order = drifting, np.array([2, 0, 1])
        match, weighed, own = (
            getattr(posterior, name) for name in ("correspondence", "silo_weights", "silo_profiles")
        )
        mixed = Parts(
            posterior.weights[:, order],
            posterior.weights_by_silo[:, :, order],
            posterior.probabilities[:, order],
            replace(match, groups=tuple(np.argsort(order)[g] for g in match.groups)),
            replace(weighed, profiles=weighed.profiles[:, order]),
            replace(own, parameters=own.parameters[:, :, order]),
        )
        parts = ordered(mixed)
        for name in ("weights", "weights_by_silo", "profile_draws"):
            assert_array_equal(getattr(parts, name), getattr(posterior, name))
        assert_array_equal(parts.correspondence.groups, match.groups)
        assert_array_equal(parts.silo_weights.profiles, weighed.profiles)
        assert_array_equal(parts.silo_profiles.parameters, own.parameters)


def test_bytes_are_those_of_the_content():
    assert count_bytes(("é", 1, 2.5, None, {"a": np.zeros((3, 2), np.float32)})) == 2 + 16 + 1 + 24


class TestDataTree:
    def test_groups_and_axes(self, posterior, drifting, seed):
        pytest.importorskip("xarray", reason="needs the extra 'arviz'")
        traces = {"log_likelihood": np.arange(50.0), "movement": np.ones((2, 3))}
        diagnostics = make_diagnostics(polish=PolishTrace(traces, 10, False, 64))
        tree = replace(drifting, diagnostics=diagnostics).to_datatree()
        draws = tree["posterior"]
        said = {"study": digest(posterior.study), "seed": 7, "silos": '["north", "south"]'}
        assert said.items() <= draws.attrs.items()
        # too few for a polish: test_chains.py has which draws are whose
        assert dict(draws["weights"].sizes) == {"chain": 1, "draw": 50, "cluster": 3}
        picked = draws["weights_by_silo"].sel(silo="south", cluster=2)
        assert_array_equal(np.sort(picked, axis=None), np.sort(posterior.weights_by_silo[:, 1, 2]))
        level = draws["probabilities"].sel(level="stage=II", cluster=1)
        named = drifting.with_names({2: "frail"}).to_datatree()["posterior"]
        assert_array_equal(named["weights_by_silo"].sel(silo="south", cluster="2: frail"), picked)
        assert_array_equal(np.sort(level, axis=None), np.sort(posterior.probabilities[:, 1, 3]))
        # numbers that figures can show: zero where the silos are alike
        assert_array_equal(draws["spread"].sel(variable_name="stage"), 0.0)
        medians = draws["spread"].median(["chain", "draw"])
        told = drifting.drift().set_index("variable")["spread"]
        assert_allclose(medians, told[medians["variable_name"].values])
        # profiles of each silo are of the last draws
        own = tree["last_draws"]["probabilities_by_silo"]
        last = draws["weights"].values[own["of_chain"], own["of_draw"]]
        assert_array_equal(last, posterior.weights[30:])
        picked = own.sel(silo="south", cluster=2, level="stage=II")
        assert_array_equal(picked[0], drifting.silo_profiles.parameters[:, 1, 2, 3])
        names = ["elbo", "polish_log_likelihood", "polish_movement"]
        assert sorted(tree["traces"].data_vars) == names
        point = with_drift(posterior, np.random.default_rng(seed), point=True).to_datatree()
        sex = point["constant_data"]["spread"].sel(variable_name="sex").item()
        assert sex == pytest.approx(np.sqrt(0.25 / 201))

    def test_arviz_reads_it_from_disk(self, posterior, tmp_path):
        xarray = pytest.importorskip("xarray", reason="needs the extra 'arviz'")
        pytest.importorskip("h5netcdf", reason="needs the extra 'arviz'")
        arviz_stats = pytest.importorskip("arviz_stats", reason="needs the extra 'arviz'")
        pytest.importorskip("arviz_base", reason="needs the extra 'arviz'")
        posterior.to_datatree().to_netcdf(tmp_path / "posterior.nc", engine="h5netcdf")
        with xarray.open_datatree(tmp_path / "posterior.nc", engine="h5netcdf") as tree:
            summary = arviz_stats.summary(tree, var_names=["weights"], round_to="none")
        means = posterior.weights.mean(axis=0, dtype=np.float64)
        # the draws are float32
        assert_allclose(summary["mean"].to_numpy(dtype=float), means, rtol=1e-5)

    def test_without_xarray(self, posterior, monkeypatch):
        monkeypatch.setitem(sys.modules, "xarray", None)
        with pytest.raises(MissingDependency, match=r"pip install 'silomix\[arviz\]'"):
            posterior.to_datatree()
