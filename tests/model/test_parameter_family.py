"""Parameters known by their posterior: Gaussian integrals against quadrature, and transforms."""

from __future__ import annotations

import numpy as np
import pytest
from cases.families import Asked, posterior
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad
from scipy.special import logit

from silomix.families.parameter import Parameter
from silomix.model.schema import Variable

STATED = Variable("mu", (), "parameter", 10.0, 2.0, prior=(12.0, 3.0))
VAGUE = Variable("sd", (), "parameter", 0.5, 0.1, "log")


def log_likelihood(theta, n, total):
    return -0.5 * n * theta**2 + theta * total


def test_evidence_is_the_integral_over_the_prior():
    family, sums = Asked(Parameter((STATED, VAGUE))), np.array([7.0, 5.0, 3.0, -4.0])

    def integral(prior, n, total):
        return quad(lambda t: prior.pdf(t) * np.exp(log_likelihood(t, n, total)), -30, 30)[0]

    due = integral(stats.norm(1.0, 1.5), 7.0, 5.0), integral(stats.norm(0.0, 10.0), 3.0, -4.0)
    assert_allclose(family.log_evidence(sums), np.log(due), rtol=1e-8)


@pytest.mark.parametrize("kappa", [0.0, 6.0, np.inf])
def test_drift_integrates_the_silos_own_parameter_out(kappa):
    family, (n, total, theta) = Asked(Parameter((STATED,))), (7.0, 5.0, 0.3)
    sums, shared, k = np.array([n, total]), np.array([theta]), np.array([kappa])
    own = stats.norm(theta, (kappa + 1) ** -0.5)
    due = log_likelihood(theta, n, total)
    if np.isfinite(kappa):
        due = np.log(quad(lambda t: own.pdf(t) * np.exp(log_likelihood(t, n, total)), -9, 9)[0])
    assert_allclose(family.log_marginal(sums, shared, k)[0], due, rtol=1e-8)
    # what is discounted says the same of θ, but for the remainder
    fewer = family.discount(sums, k)
    assert_allclose(
        log_likelihood(theta, *fewer) + family.log_remainder(sums, k)[0], due, rtol=1e-8
    )


def test_moments_give_back_what_the_rows_said():
    """Less the prior; a false alarm, four standard errors, once in ten thousand."""
    family, rng = Asked(Parameter((STATED, VAGUE))), np.random.default_rng(1)
    sums = np.array([[7.0, 5.0, 30.0, -4.0], [50.0, 90.0, 8.0, 1.0]])
    draws = family.draw(np.tile(posterior(family, sums), (100_000, 1, 1)), rng)
    assert_allclose(family.fit(draws), sums, rtol=0.025, atol=0.15)
    still = np.zeros((10, 1, 2))
    assert np.isfinite(family.fit(still)).all()


def test_values_are_told_as_the_silos_know_them():
    odds = Variable("risk", (), "parameter", -1.0, 0.5, "logit")
    family = Asked(Parameter((STATED, VAGUE, odds)))
    values = np.array([[9.0, 0.3, 0.2], [14.0, 2.0, 0.9]])
    free = np.column_stack([values[:, 0], np.log(values[:, 1]), logit(values[:, 2])])
    units = (free - [10.0, 0.5, -1.0]) / [2.0, 0.1, 0.5]
    assert_allclose(family.describe(units), values)
    assert family.names() == [("mu", "value"), ("sd", "value"), ("risk", "value")]


def test_the_gradient_of_the_prior_is_its_slope():
    family, at, step = Asked(Parameter((STATED, VAGUE))), np.array([[0.4, -2.0]]), 1e-6
    _, value, slopes = family.log_prior(at)
    for place in range(2):
        moved = at + step * np.eye(2)[place]
        assert_allclose((family.log_prior(moved)[1] - value) / step, slopes[0, place], rtol=1e-3)
    due = stats.norm(1.0, 1.5).logpdf(0.4) + stats.norm(0, 10).logpdf(-2.0)
    assert_allclose(value, due)


def test_own_and_shared_parameters_are_drawn_from_their_conditionals():
    """What silos share leaves its prior as it is; false alarms are one in a million."""
    tight = Variable("mu", (), "parameter", 10.0, 2.0, prior=(12.0, 0.4))
    family, rng, chains = Asked(Parameter((tight,))), np.random.default_rng(2), 20_000
    theta = family.draw(np.tile(family.prior(), (chains, 1, 1)), rng)
    own = theta + rng.standard_normal((4, chains, 1, 1)) / np.sqrt(7.0)
    total = 50.0 * own + np.sqrt(50.0) * rng.standard_normal(own.shape)
    sums = np.concatenate([np.full(total.shape, 50.0), total], axis=-1)
    p_values = []
    for kappa in (6.0, np.inf):
        kappas = np.full((chains, 1), kappa)
        again = family.draw(family.shared_posterior(sums, theta, kappas, rng), rng)
        p_values.append(stats.kstest(again.ravel(), stats.norm(1.0, 0.2).cdf).pvalue)
    # a draw that ignores drift is too close to its own rows
    assert p_values[0] > 1e-6 > p_values[1]
    drawn = family.draw_own(sums, theta, np.full((chains, 1), 6.0), rng)
    assert stats.kstest((drawn - theta).ravel() * np.sqrt(7.0), stats.norm.cdf).pvalue > 1e-6
