"""Covariates of membership: where labels are sure against scikit-learn, where not against truth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from cases.posteriors import make_posterior
from scipy import stats
from scipy.optimize import approx_fprime
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from statistical.exact import FALSE_ALARM

from silomix import regress_membership
from silomix.errors import DataError, SettingsError
from silomix.model.schema import Schema, Variable
from silomix.posterior.outside_estimates import fit_multinomial

SCHEMA = Schema(tuple(Variable(f"x{q}", ("0", "1")) for q in range(8)))
HAVING = np.array([[0.3] * 8, [0.7] * 4 + [0.4] * 4, [0.4] * 4 + [0.8] * 4])
TRUE = np.array([[0.0, 0.0], [-0.5, 0.8], [-1.0, -0.6]])
"""(cluster, term): an intercept, and the slope of one covariate."""


def planted(rng, rows, draws=10):
    """Rows of three clusters that overlap, by a covariate, and draws given their labels."""
    z = rng.normal(60, 10, rows)
    chances = softmax(np.column_stack([np.ones(rows), (z - 60) / 10]) @ TRUE.T, axis=1)
    labels = (rng.random(rows)[:, None] > chances.cumsum(axis=1)).sum(axis=1)
    codes = (rng.random((rows, 8)) < HAVING[labels]).astype(int)
    members = np.eye(3)[labels]
    own = rng.beta(members.T @ codes + 0.5, members.T @ (1 - codes) + 0.5, (draws, 3, 8))
    weights = rng.dirichlet(members.sum(axis=0) + 0.5, draws)
    posterior = make_posterior(
        rng,
        schema=SCHEMA,
        weights=weights,
        weights_by_silo=np.stack([weights, weights], axis=1),
        profile_draws=np.stack([1 - own, own], axis=3).reshape(draws, 3, 16),
    )
    table = pd.DataFrame(codes.astype(str), columns=[v.name for v in SCHEMA.variables])
    return posterior, table.assign(age=z), labels


def test_sure_rows_are_regressed_as_usual(rng):
    """Against scikit-learn without a penalty, and the standard errors against its Hessian."""
    rows = 400
    design = np.column_stack([np.ones(rows), rng.normal(50, 9, rows), rng.integers(0, 2, rows)])
    labels = rng.integers(0, 3, rows)
    found, squares = fit_multinomial(design, np.eye(3)[labels], 1)
    usual = LogisticRegression(C=np.inf, fit_intercept=False, max_iter=5000, tol=1e-10)
    scales = [1.0, 50.0, 1.0]
    theirs = usual.fit(design / scales, labels).coef_ / scales
    expected = np.delete(theirs - theirs[1], 1, axis=0).ravel()
    # the weak prior moves them by far less than a standard error
    assert np.all(np.abs(found - expected) < 0.02 * np.sqrt(squares))

    def slope(flat):
        scores = design @ np.insert(flat.reshape(2, 3), 1, 0.0, axis=0).T
        apart = np.eye(3)[labels] - softmax(scores, axis=1)
        return -np.delete(apart.T @ design, 1, axis=0).ravel()

    hessian = np.array([approx_fprime(found, lambda f, k=k: slope(f)[k], 1e-7) for k in range(6)])
    np.testing.assert_allclose(squares, np.diag(np.linalg.inv(hessian)), rtol=0.02)


def test_standard_errors_of_unsure_rows_are_the_curvature(rng):
    rows = 300
    design = np.column_stack([np.ones(rows), rng.normal(size=rows)])
    evidence = rng.dirichlet(np.full(3, 0.4), rows)
    found, squares = fit_multinomial(design, evidence, 0)

    def loss(flat):
        scores = np.column_stack([np.zeros(rows), design @ flat.reshape(2, 2).T])
        return -np.log((softmax(scores, axis=1) * evidence).sum(axis=1)).sum()

    def slope(flat):
        return np.array([loss(flat + step) - loss(flat - step) for step in 1e-4 * np.eye(4)]) / 2e-4

    assert np.abs(slope(found)).max() < 0.2  # that of the weak prior, and of the optimiser
    hessian = np.array([slope(found + step) - slope(found - step) for step in 1e-3 * np.eye(4)])
    np.testing.assert_allclose(squares, np.diag(np.linalg.inv(hessian / 2e-3)), rtol=0.05)


def test_a_planted_effect_is_found_and_labels_dilute_it(rng):
    """Within four standard errors; sure labels miss the slope of a cluster by more than that."""
    posterior, table, _ = planted(rng, 4000)
    frame = regress_membership(posterior, table, "age", threads=1)
    slopes = frame[frame["variable"] == "age"]
    assert slopes["cluster"].tolist() == [1, 2]
    apart = (slopes["log_odds"] - TRUE[1:, 1] / 10) / slopes["se"]
    assert np.abs(apart).max() < 4
    assert (slopes["p_value"] < 1e-6).all()
    assert np.all(slopes["lower"] < slopes["odds_ratio"])
    design = np.column_stack([np.ones(4000), table["age"]])
    most = posterior.membership(table[[v.name for v in SCHEMA.variables]]).argmax(axis=1)
    diluted, _ = fit_multinomial(design, np.eye(3)[most], 0)
    assert (np.abs(diluted[1::2] - TRUE[1:, 1] / 10) / slopes["se"]).max() > 4


def test_terms_are_named_and_rows_without_a_value_left_out(rng):
    posterior, table, _ = planted(rng, 200)
    table = table.assign(ward=np.array(["a", "b", "c"])[np.arange(200) % 3], sex=["f", "m"] * 100)
    table.loc[:9, "age"] = np.nan
    frame = regress_membership(posterior, table, {"age": None, "ward": None, "sex": "f"})
    assert frame["variable"].tolist()[:5] == ["intercept", "age", "ward", "ward", "sex"]
    assert frame["level_name"].fillna("").tolist()[:5] == ["", "", "b", "c", "f"]
    assert set(frame["rows"]) == {190}
    other = regress_membership(posterior, table, ["age"], reference=2)
    assert set(other["cluster"]) == {0, 1}


def test_a_covariate_that_separates_has_an_estimate(rng):
    design = np.column_stack([np.ones(60), np.r_[np.zeros(30), np.ones(30)]])
    found, squares = fit_multinomial(design, np.eye(2)[design[:, 1].astype(int)], 0)
    assert np.isfinite(found).all()
    assert np.all(squares > 0)


@pytest.mark.parametrize(
    ("covariates", "settings", "error"),
    [
        (["x1"], {}, SettingsError),
        (["age"], {"reference": 3}, SettingsError),
        (["age"], {"reference": True}, SettingsError),
        (["age"], {"reference": 1.0}, SettingsError),
        (["age"], {"level": 2}, SettingsError),
        (["age", "twice"], {}, DataError),
        (["nowhere"], {}, DataError),
    ],
)
def test_refusals(rng, covariates, settings, error):
    posterior, table, _ = planted(rng, 50)
    with pytest.raises(error):
        regress_membership(posterior, table.assign(twice=2 * table["age"]), covariates, **settings)


@pytest.mark.slow
@pytest.mark.statistical
def test_intervals_cover(rng):
    """Not below 95% in 100 tables, false alarms at FALSE_ALARM for each of four coefficients."""
    inside = []
    truth = np.column_stack([TRUE[1:, 0] - 6 * TRUE[1:, 1], TRUE[1:, 1] / 10]).ravel()
    for _ in range(100):
        posterior, table, _ = planted(rng, 800)
        frame = regress_membership(posterior, table, "age", draws=10, threads=1)
        ends = np.log(frame[["lower", "upper"]].to_numpy())
        inside.append((ends[:, 0] < truth) & (truth < ends[:, 1]))
    hits = np.sum(inside, axis=0)
    for count in hits:
        assert stats.binomtest(int(count), 100, 0.95, alternative="less").pvalue > FALSE_ALARM / 4
