"""scikit-learn's own checks, and the estimator against `silomix.fit`."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer
from sklearn.utils.estimator_checks import check_estimator

from silomix import api, simulate
from silomix.errors import SettingsError
from silomix.estimator import PASSED_ON, FederatedMixture
from silomix.model.metrics import adjusted_rand_index
from silomix.paper import Divergence

SHORT = {"components": 5, "iterations": 200, "chains": 1, "polish": 2}


@pytest.fixture(scope="module")
def table():
    return simulate("homogeneous", separability="easy", rows=400, silos=2, seed=3)


@pytest.fixture(scope="module")
def fitted(table):
    return FederatedMixture(silo="silo", random_state=1, **SHORT).fit(table[0])


def test_checks_of_scikit_learn():
    estimator = FederatedMixture(components=3, iterations=20, chains=1, polish=0)
    results = check_estimator(estimator, on_skip=None, on_fail="raise")
    assert [result["status"] for result in results].count("passed") > 40


def test_a_known_number_of_clusters(table):
    given = SHORT | {"components": None, "clusters": 5}
    found = FederatedMixture(silo="silo", random_state=1, **given).fit(table[0])
    assert found.n_clusters_ == 5
    assert found.posterior_.study.model.components == 5


def test_is_silomix_fit(fitted, table):
    posterior = api.fit(table[0], silo="silo", seed=1, progress=False, **SHORT)
    assert_array_equal(fitted.posterior_.weights, posterior.weights)
    assert_array_equal(fitted.labels_, posterior.labels)
    assert fitted.n_clusters_ == posterior.n_clusters
    assert adjusted_rand_index(fitted.labels_, table[1].labels) > 0.8
    assert fitted.n_features_in_ == table[0].shape[1]
    assert_array_equal(fitted.feature_names_in_, table[0].columns)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_new_rows_need_not_have_columns_that_were_left_out(table, library):
    rows = table[0].assign(died="no", ward=range(len(table[0])))
    model = FederatedMixture(silo="silo", exclude=["died", "ward"], **SHORT).fit(rows)
    new = rows.drop(columns=["died", "ward"]).head(5)
    given = pl.from_pandas(new) if library == "polars" else new
    assert_array_equal(model.predict_proba(given), model.predict_proba(rows.head(5)))
    with pytest.raises(ValueError, match="missing:\n- x1"):
        model.predict(given.drop(columns="x1") if library == "pandas" else given.drop("x1"))
    with pytest.raises(ValueError, match="unseen at fit time:\n- more"):
        model.predict(new.assign(more=1))


def test_methods_are_those_of_the_posterior(fitted, table):
    membership = fitted.posterior_.membership(table[0], "silo")
    assert_array_equal(fitted.predict_proba(table[0]), membership)
    assert_array_equal(fitted.transform(table[0]), membership)
    assert_array_equal(fitted.predict(table[0]), membership.argmax(axis=1))
    assert_array_equal(fitted.predict(table[0]), fitted.labels_)
    density = fitted.posterior_.log_predictive_density(table[0], "silo")
    assert fitted.score(table[0]) == density.mean()


def test_a_polars_frame_gives_the_same_fit(fitted, table):
    frame = pl.from_pandas(table[0])
    other = clone(fitted).fit(frame)
    assert_array_equal(other.posterior_.weights, fitted.posterior_.weights)
    assert_array_equal(other.posterior_.probabilities, fitted.posterior_.probabilities)
    assert_array_equal(other.labels_, fitted.labels_)
    assert_array_equal(other.predict(frame), fitted.labels_)
    assert isinstance(other.posterior_.summary(), pl.DataFrame)


def test_feature_names_and_output(fitted, table):
    names = [f"cluster{cluster}" for cluster in range(fitted.n_clusters_)]
    assert fitted.get_feature_names_out().tolist() == names
    frame = clone(fitted).set_output(transform="pandas").fit_transform(table[0])
    assert_array_equal(frame.to_numpy().argmax(axis=1), fitted.labels_)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == names
    assert_allclose(frame.sum(axis=1), 1.0, rtol=1e-12)


def test_arrays_take_the_silo_by_its_index(fitted, table):
    array = table[0].to_numpy(dtype=object)
    place = list(table[0].columns).index("silo")
    other = FederatedMixture(silo=place, random_state=1, **SHORT).fit(array)
    assert_array_equal(other.labels_, fitted.labels_)
    assert_array_equal(other.predict_proba(array), fitted.predict_proba(table[0]))
    assert not hasattr(other, "feature_names_in_")


def test_numbers_strings_and_missing_cells():
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2, (40, 3)).astype(float)
    numbers[0, 0] = np.nan
    texts = np.where(np.isnan(numbers), None, np.where(numbers == 1, "1", "0"))
    of_numbers = FederatedMixture(**SHORT).fit(numbers)
    of_texts = FederatedMixture(**SHORT).fit(texts)
    assert_array_equal(of_numbers.labels_, of_texts.labels_)
    assert_array_equal(of_numbers.predict_proba(numbers), of_texts.predict_proba(texts))


def test_works_in_a_pipeline():
    rng = np.random.default_rng(0)
    centres = rng.choice([-4.0, 4.0], (3, 6))
    truth = np.repeat([0, 1, 2], 40)
    bins = KBinsDiscretizer(3, encode="ordinal", strategy="uniform")
    steps = make_pipeline(bins, FederatedMixture(**SHORT))
    steps.fit(centres[truth] + rng.normal(size=(120, 6)))
    assert adjusted_rand_index(steps[-1].labels_, truth) > 0.8
    assert steps.get_feature_names_out()[0] == "cluster0"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("n_components", "components"), ("n_init", "chains"), ("seed", "random_state")],
)
def test_parameters_of_other_estimators_are_answered_with_its_own(theirs, ours):
    with pytest.raises(TypeError, match=f"{theirs}.*{ours}"):
        FederatedMixture(**{theirs: 3})


@pytest.mark.parametrize("silo", ["silo", 9, -1, 1.0])
def test_an_array_wants_an_index_and_a_frame_a_name(silo, table):
    estimator = FederatedMixture(silo=silo, **SHORT)
    with pytest.raises(SettingsError, match=r"array of 3 columns: .*set_output"):
        estimator.fit(np.zeros((4, 3)))
    with pytest.raises(SettingsError, match="silo is 0 and X is a frame: give the column's name"):
        FederatedMixture(silo=0, **SHORT).fit(table[0])


class TestWhatIsPassedOn:
    @pytest.fixture
    def calls(self, monkeypatch, fitted):
        """Record the keywords of `silomix.fit` instead of running it."""
        calls = []

        def fake(table, **keywords):
            calls.append(keywords)
            return fitted.posterior_

        monkeypatch.setattr(api, "fit", fake)
        return calls

    def test_nothing_that_was_left_out(self, calls):
        FederatedMixture().fit(np.zeros((4, 3)))
        expected = {"silo": None, "seed": 0, "progress": False}
        assert calls == [expected]

    def test_everything_that_was_given(self, calls):
        given = {name: f"value of {name}" for name in PASSED_ON}
        FederatedMixture(components=3, verbose=True, **given).fit(np.zeros((4, 3)))
        assert calls == [{"silo": None, "components": 3, "seed": 0, "progress": None, **given}]

    def test_false_zero_and_records_are_values(self, calls):
        given = {"fractionate": False, "polish": 0, "matching": Divergence(restarts=5)}
        clone(FederatedMixture(**given)).fit(np.zeros((4, 3)))
        assert {name: calls[0][name] for name in given} == given

    def test_a_random_state_gives_a_seed(self, calls):
        for state in (np.random.RandomState(5), np.random.RandomState(5), np.int64(8)):
            FederatedMixture(random_state=state).fit(np.zeros((4, 3)))
        first, second, third = (call["seed"] for call in calls)
        assert first == second
        assert first > 0
        assert third == 8
        assert type(third) is int

    def test_its_parameters_are_the_keywords_of_fit(self):
        of_fit = inspect.signature(api.fit).parameters.keys()
        own = {"random_state", "verbose"}
        others = {"table", "seed", "progress", "variables", "frequency", "checkpoint"}
        assert FederatedMixture().get_params().keys() == of_fit - others | own
        with pytest.raises(TypeError, match="no parameter iteration"):
            FederatedMixture(iteration=3)
