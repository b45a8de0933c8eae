"""Posteriors of numbers, and of numbers beside categories: units, frames, files, rows."""

from __future__ import annotations

import numpy as np
import pytest
from cases.posteriors import MIXED, NUMBERS, make_table, numbers_posterior, pack, unpack
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm, poisson

import silomix
from silomix.errors import FileError, SilomixError
from silomix.families import make_family
from silomix.model.metrics import adjusted_rand_index
from silomix.model.schema import Prior
from silomix.posterior.characterise import contrast, difference_map, nearly_same, traits

NAMES = {
    NUMBERS: [
        ("age", "mean"),
        ("age", "sd"),
        ("dose", "mean of log"),
        ("dose", "sd of log"),
        ("visits", "rate"),
    ],
    MIXED: [
        ("smoker", "no"),
        ("smoker", "yes"),
        ("stage", "I"),
        ("stage", "II"),
        ("stage", "III"),
        ("age", "mean"),
        ("age", "sd"),
        ("visits", "rate"),
    ],
}


@pytest.fixture(params=[NUMBERS, MIXED], ids=["numbers", "mixed"])
def posterior(request, seed):
    return numbers_posterior(np.random.default_rng(seed), request.param, drifts=True)


class TestParameters:
    def test_they_are_in_the_units_of_the_table(self, posterior):
        schema, drawn = posterior.study.table_schema, posterior.profile_draws.astype(np.float64)
        assert posterior.parameter_names == NAMES[schema]
        assert posterior.levels == [
            name for name in NAMES[schema] if name[0] in ("smoker", "stage")
        ]
        units = {v.name: (v.scale, v.location) for v in schema.variables if v.kind == "gaussian"}
        for column, (variable, word) in enumerate(NAMES[schema]):
            scale, location = units.get(variable, (1.0, 0.0))
            expected = drawn[..., column] * scale + (location if "mean" in word else 0.0)
            assert_allclose(posterior.parameters[..., column], expected)

    def test_probabilities_are_refused(self, posterior):
        with pytest.raises(SilomixError, match=r"\('age', .*posterior\.parameters.*profiles\(\)"):
            _ = posterior.probabilities
        assert f"variables, {len(posterior.parameter_names)} parameters" in repr(posterior)


class TestFrames:
    def test_summary_and_profiles(self, posterior):
        names, levels = posterior.parameter_names, len(posterior.levels)
        summary, tidy = posterior.summary(), posterior.profiles()
        words = ["size"] + ["probability"] * levels + ["parameter"] * (len(names) - levels)
        assert summary["quantity"].tolist() == words * 3
        found = summary[summary["quantity"] != "size"].drop(columns="quantity")
        assert found.reset_index(drop=True).equals(tidy)
        assert list(zip(tidy["variable"], tidy["level_name"], strict=True)) == names * 3
        assert_allclose(tidy["mean"], posterior.parameters.mean(axis=0).ravel())
        assert ((tidy["lower"] <= tidy["mean"]) & (tidy["mean"] <= tidy["upper"])).all()
        wide = posterior.profiles(layout="wide", silo="south")
        own = posterior.family.describe(posterior.silo_profiles.parameters[:, 1])
        assert_allclose(wide["cluster 2"], own[:, 2].mean(axis=0), rtol=1e-5)

    def test_drift_is_of_means_in_the_units_of_the_table(self, posterior):
        """The mean ages differ by a tenth of the scale in every cluster, others by their roots."""
        frame = posterior.drift().set_index("variable")
        assert sorted(frame.index) == sorted(v.name for v in posterior.family.variables)
        age, visits = frame.loc["age"], frame.loc["visits"]
        assert (age["level_name"], visits["level_name"]) == ("mean", "rate")
        assert age["difference"] == pytest.approx(1.0, rel=1e-3)
        assert (age["highest_silo"], age["lowest_silo"]) == ("south", "north")
        assert age["spread"] == pytest.approx(11**-0.5)
        means = posterior.parameters[
            -20:, age["cluster"], NAMES[posterior.study.table_schema].index(("age", "mean"))
        ]
        assert age["lowest"] == pytest.approx(means.mean())
        if posterior.levels:
            assert frame.loc["smoker", "spread"] == pytest.approx(0.5 * 11**-0.5)

    def test_datatree(self, posterior):
        tree = posterior.to_datatree()
        assert_array_equal(tree["posterior"]["parameters"].values[0], posterior.parameters)
        assert tree["last_draws"]["parameters_by_silo"].dims[-1] == "parameter"
        assert tree["posterior"]["parameter"].values[-1] == "visits rate"
        assert "probabilities" not in tree["posterior"]


class TestFile:
    @pytest.fixture
    def saved(self, posterior, tmp_path):
        return posterior.save(tmp_path / "posterior.silomix")

    def test_there_and_back(self, posterior, saved):
        again = silomix.load(saved)
        assert_array_equal(again.profile_draws, posterior.profile_draws)
        own = again.silo_profiles.parameters
        assert_array_equal(own, posterior.silo_profiles.parameters)
        assert again.parameter_names == posterior.parameter_names

    @pytest.mark.parametrize("name", ["profile_draws", "silo_profiles.parameters"])
    @pytest.mark.parametrize(
        ("column", "value", "reason"),
        [(-2, -0.1, "not positive"), (-1, -1.0, "below zero"), (-1, np.inf, "to inf, outside of")],
    )
    def test_values_that_cannot_be(self, saved, name, column, value, reason):
        document, arrays = unpack(saved)
        arrays[name][0, ..., column] = value
        pack(saved, document, arrays)
        with pytest.raises(FileError, match=f"its array '{name}' has .*{reason}"):
            silomix.load(saved)


class TestContrast:
    """Clusters of 1/4 and 3/4, the same in every draw."""

    @pytest.fixture
    def found(self):
        family = make_family(NUMBERS, Prior())
        # age, log dose, visits: mean, sd, mean, sd, rate
        clusters = [[2.0, 1.0, 0.1, 1.0, 4.0], [0.0, 3.0, 0.1, 1.0, 0.5]]
        weights, parameters = np.tile([0.25, 0.75], (4, 1)), np.tile(clusters, (4, 1, 1))
        return contrast(weights, parameters, family), weights, family

    def test_by_hand(self, found):
        within = np.sqrt(0.25 * 1 + 0.75 * 9)
        rate = 0.25 * 4 + 0.75 * 0.5
        assert_allclose(found[0].whole, [55.0, 10 * within, 2.05, 0.5, rate])
        scaled = [1.5 / within, -np.log(within), 0.0, 0.0, np.log(4 / rate)]
        assert_allclose(found[0].scaled[0], scaled, atol=1e-12)
        assert_allclose(found[0].high[0, [0, 4]], 1.0)

    def test_traits_are_of_means_and_rates(self, found):
        (high, low), (higher, lower) = traits(found[0], found[2])
        assert (high.tolist(), low.tolist()) == ([4, 0], [])
        assert (higher.tolist(), lower.tolist()) == ([], [4])

    def test_two_clusters_lie_on_a_line_around_all_rows(self, found):
        placed = difference_map(found[1], found[0], found[2])
        assert_allclose(placed.shares, [1.0, 0.0], atol=1e-12)
        assert_allclose([0.25, 0.75] @ placed.centres, 0.0, atol=1e-12)
        apart = np.diff(found[0].scaled[:, [0, 2, 4]], axis=0)
        assert np.ptp(placed.centres[:, 0]) == pytest.approx(np.linalg.norm(apart))
        alike = found[0]._replace(scaled=np.zeros((2, 5)))
        assert difference_map(found[1], alike, found[2]) is None


@pytest.mark.parametrize(
    ("variables", "kinds"),
    [
        (["age", "dose", "visits"], {"dose": "log-gaussian", "visits": "poisson"}),
        (["smoker", "stage", "age", "visits"], {"visits": "poisson"}),
    ],
    ids=["numbers", "mixed"],
)
def test_a_fit_finds_the_clusters_and_those_of_new_rows(variables, kinds, rng):
    table, truth = make_table(rng)
    quick = {"iterations": 400, "threads": 1, "progress": False}
    found = silomix.fit(table, silo="silo", variables=variables, kinds=kinds, **quick)
    assert adjusted_rand_index(found.labels, truth) > 0.9
    wide = found.profiles(layout="wide").set_index(["variable", "level_name"])
    older = found.labels[truth == 1][0]
    assert wide.loc[("age", "mean"), f"cluster {older}"] == pytest.approx(66.0, abs=2.0)
    assert wide.loc[("age", "sd"), f"cluster {older}"] == pytest.approx(5.0, abs=1.0)
    new, labels = make_table(rng, 100)
    new.loc[0, ["age", "visits"]] = np.nan
    shares = found.membership(new, silo="silo")
    assert_allclose(shares.sum(axis=1), 1.0)
    assert adjusted_rand_index(shares.argmax(axis=1), labels) > 0.8
    assert np.isfinite(found.log_predictive_density(new, silo="silo")).all()
    table["outcome"] = truth
    outside = silomix.compare_outside(found, table, ["outcome"], silo="silo")
    shares = outside.comparisons[-1].estimate
    assert_allclose(np.sort(shares), [0.0, 1.0], atol=0.1)


def test_rows_are_judged_by_the_densities_in_the_units_of_the_table(rng):
    """A dose whose logarithm is modelled has the density of the dose: that of ln x, over x."""
    made, table = (
        numbers_posterior(rng, NUMBERS),
        make_table(rng, 6)[0].drop(columns="silo"),
    )
    table.loc[0, "age"] = np.nan
    columns = [table["age"], np.log(table["dose"]), table["visits"]]
    age, dose, visits = (np.asarray(column)[:, None, None] for column in columns)
    m, s, k, t, rate = np.moveaxis(made.parameters, -1, 0)
    logs = np.nan_to_num(norm.logpdf(age, m, s)) + norm.logpdf(dose, k, t) - dose
    joint = made.weights * np.exp(logs + poisson.logpmf(visits, rate))
    density = joint.sum(axis=2).mean(axis=1)
    assert_allclose(made.log_predictive_density(table), np.log(density), rtol=1e-4)
    expected = (joint / joint.sum(axis=2, keepdims=True)).mean(axis=1)
    assert_allclose(made.membership(table), expected, atol=1e-4)


def test_a_level_without_any_probability_beside_numbers(rng):
    """Of draws in single precision some are exactly zero."""
    made, table = numbers_posterior(rng), make_table(rng, 20)[0].drop(columns="silo")
    made.profile_draws[:, 0, :2] = [1.0, 0.0]
    found = made.membership(table)
    assert_allclose(found.sum(axis=1), 1.0)
    smokers = (table["smoker"] == "yes").to_numpy()
    assert_allclose(found[smokers, 0], 0.0, atol=1e-12)
    assert found[~smokers, 0].max() > 0.01


def test_clusters_that_nearly_coincide_are_named(seed):
    made = numbers_posterior(np.random.default_rng(seed), NUMBERS)
    twice = made.profile_draws.copy()
    twice[:, 1] = twice[:, 0]
    pairs = nearly_same(None, twice, made.family)
    assert pairs[0][:2] == (0, 1)
    assert pairs[0][3] == pytest.approx(1.0)
