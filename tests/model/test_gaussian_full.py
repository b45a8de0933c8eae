"""Jointly normal variables against SciPy: densities, evidence, slopes, draws, drift, missing cells.

In one dimension the family is `gaussian`, method by method.
"""

from __future__ import annotations

import numpy as np
import pytest
from cases.families import Asked, posterior
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from silomix.families import KINDS, make_family
from silomix.families.disclosure import breach
from silomix.families.family import GRID
from silomix.families.product import Product
from silomix.model.schema import Prior, Schema, Shard, Variable
from silomix.study.policy import Policy

D, ROWS = 3, 8
NAMES = ("x", "y", "z")
# P(|z| > LIMIT) is 6e-7 for each of some hundred numbers
LIMIT = 5.0
PRIOR_MEANS, PRIOR_ROWS, DEGREES, SCALE = np.zeros(D), 0.01, D + 2.0, 0.5 * np.eye(D)


def family_of(variables=D, kind="gaussian-full"):
    names = NAMES[:variables]
    variables = tuple(Variable(name, kind=kind, location=5, scale=2) for name in names)
    return Asked(KINDS[kind](variables))


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def family():
    return family_of()


def some_rows(rng, rows=ROWS):
    return rng.standard_normal((rows, D)) @ rng.standard_normal((D, D)) + 1.0


def some_parameters(family, rng, clusters=4):
    """From the posterior of a few rows, which is proper and wide: (cluster, parameter)."""
    sums = [family.features(some_rows(rng)).sum(axis=0) for _ in range(clusters)]
    return family.draw(posterior(family, np.array(sums)), rng)


def law(parameters):
    """Mean and covariance of one cluster, from the layout that the module's docstring states."""
    x, y, z = parameters[:2], parameters[2:5], parameters[5:9]
    s = np.array([x[1], y[1], z[1]])
    correlations = np.array([[1, y[2], z[2]], [y[2], 1, z[3]], [z[2], z[3], 1]])
    return np.array([x[0], y[0], z[0]]), correlations * np.outer(s, s), s


def prior_density(m, covariance, s, numbers=(PRIOR_MEANS, PRIOR_ROWS, DEGREES, SCALE)):
    """Of a normal–inverse-Wishart law, in means, sds and correlations."""
    centre, size, degrees, scale = numbers
    normal = stats.multivariate_normal(centre, covariance / size).logpdf(m)
    wishart = stats.invwishart(degrees, scale).logpdf(covariance)
    return normal + wishart + D * (np.log(2) + np.log(s).sum())


def differences(function, at, step=1e-6):
    """Central differences of a function of (parameter,)."""
    steps = step * np.maximum(np.abs(at), 1e-2) * np.eye(len(at))
    rise = [function(at + e) - function(at - e) for e in steps]
    return np.array(rise) / (2 * steps.sum(axis=1))


def test_in_one_dimension_it_is_the_other_family(rng):
    full, plain = family_of(1), family_of(1, "gaussian")
    rows = rng.standard_normal((3, 6, 1))
    sums = np.array([plain.features(own).sum(axis=0) for own in rows])
    theta = plain.draw(posterior(plain, sums), rng)
    kappa = np.array([7.0])
    assert_allclose(full.prior(), plain.prior())
    assert_allclose(posterior(full, sums), posterior(plain, sums))
    for method in ("natural", "moments", "coordinates", "describe"):
        assert_allclose(getattr(full, method)(theta), getattr(plain, method)(theta), err_msg=method)
    for method in ("log_evidence", "expected_natural", "near", "known", "valid"):
        assert_allclose(getattr(full, method)(sums), getattr(plain, method)(sums), err_msg=method)
    assert_allclose(*(one.log_marginal(sums, theta, kappa) for one in (full, plain)))
    assert_allclose(full.score(theta, sums), plain.score(theta, sums))
    assert_allclose(full.log_affinity(theta, theta[::-1]), plain.log_affinity(theta, theta[::-1]))
    assert_allclose(full.discount(sums, kappa), plain.discount(sums, kappa))
    assert_allclose(full.log_remainder(sums, kappa), plain.log_remainder(sums, kappa))
    assert_allclose(full.medians(posterior(full, sums)), plain.medians(posterior(plain, sums)))
    for found, expected in zip(full.log_prior(theta), plain.log_prior(theta), strict=True):
        assert_allclose(found, np.sum(expected) if np.ndim(found) == 0 else expected)
    draws = plain.draw(np.tile(posterior(plain, sums), (50, 1, 1)), rng)
    assert_allclose(full.fit(draws), plain.fit(draws))
    by_silo, chain = np.stack([sums, 2 * sums])[:, None], kappa[None]
    both = [one.shared_posterior(by_silo, theta, chain, rng) for one in (full, plain)]
    assert_allclose(both[0], both[1])


def test_density_features_and_names(family, rng):
    x, parameters = some_rows(rng), some_parameters(family, rng)
    found = family.features(x) @ family.natural(parameters).T + family.log_base(x)[:, None]
    for cluster, own in enumerate(parameters):
        m, covariance, _ = law(own)
        data = stats.multivariate_normal(5 + 2 * m, 4 * covariance).logpdf(5 + 2 * x)
        assert_allclose(found[:, cluster], data)
    assert len(family.names()) == parameters.shape[1] == family.parameter_counts().sum()
    assert family.names()[-1] == ("z", "correlation with y")
    assert family.problems(parameters) == family.problems(parameters.astype(np.float32)) == ""
    assert_allclose(family.from_moments(family.moments(parameters)), parameters)
    assert_allclose(family.back(family.coordinates(parameters)), parameters)


def test_evidence_is_that_of_rows_in_turn_and_of_variables_in_turn(family, rng):
    x = some_rows(rng)
    m, size, degrees, scale, expected = PRIOR_MEANS, PRIOR_ROWS, DEGREES, SCALE, 0.0
    for row in x:
        freedom = degrees - D + 1
        wide = scale * (size + 1) / (size * freedom)
        expected += stats.multivariate_t(m, wide, df=freedom).logpdf(row)
        scale = scale + size / (size + 1) * np.outer(row - m, row - m)
        m, size, degrees = (size * m + row) / (size + 1), size + 1, degrees + 1
    found = family.log_evidence(family.features(x).sum(axis=0))
    assert_allclose(found.sum(), expected)
    # the first variable alone has the evidence of a block without the others
    alone = family_of(1)
    first = alone.log_evidence(alone.features(x[:, :1]).sum(axis=0))
    assert_allclose(found[0], first[0])
    numbers = posterior(family, family.features(x[:5]).sum(axis=0))
    rest = family.log_evidence(family.features(x[5:]).sum(axis=0), numbers)
    begun = family.log_evidence(family.features(x[:5]).sum(axis=0))
    assert_allclose(begun + rest, found)


def test_slopes(family, rng):
    sums = family.features(some_rows(rng)).sum(axis=0)
    for own in some_parameters(family, rng):
        slopes = differences(lambda at: family.natural(at) @ sums, own)
        assert_allclose(family.score(own, sums), slopes, rtol=1e-5, atol=1e-4)
        constant, value, gradient = family.log_prior(own)
        m, covariance, s = law(own)
        assert_allclose(constant + value, prior_density(m, covariance, s))
        slopes = differences(lambda at: family.log_prior(at)[1], own)
        assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-4)


def test_draws_have_the_moments_of_the_posterior(family, rng):
    sums, draws = family.features(some_rows(rng, 40)).sum(axis=0), 40_000
    numbers = posterior(family, sums)
    found = family.draw(np.tile(numbers, (draws, 1)), rng)
    natural = family.natural(found)
    apart = natural.mean(axis=0) - family.expected_natural(sums)
    error = natural.std(axis=0) / np.sqrt(draws)
    assert_array_equal(error[[3, 7]], 0)  # the constant stands with the first variable
    assert (np.abs(apart) <= LIMIT * error).all()
    # as well as moments can tell
    again = family.fit(found[:, None])[0]
    assert_allclose(family.means(again)[0], family.means(sums)[0], atol=0.1)
    assert again[0] == pytest.approx(40, rel=0.1)


@pytest.mark.parametrize("kappa", [3.0, 100.0, np.inf])
def test_the_marginal_integrates_a_silos_own_means_out(family, rng, kappa):
    x, parameters = some_rows(rng), some_parameters(family, rng, 1)[0]
    m, covariance, _ = law(parameters)
    between = 0.0 if np.isinf(kappa) else 1 / (kappa + 1)
    together = np.kron(np.eye(ROWS), covariance) + np.kron(
        np.ones((ROWS, ROWS)), between * covariance
    )
    expected = stats.multivariate_normal(np.tile(m, ROWS), together).logpdf(x.ravel())
    sums = family.features(x).sum(axis=0)
    found = family.log_marginal(sums, parameters, np.full(D, kappa))
    assert_allclose(found.sum(), expected)
    assert_allclose(family.discount(sums, np.full(D, kappa))[0], ROWS / (1 + between * ROWS))


def test_shared_numbers_are_the_posterior_of_all_silos_marginals(family, rng):
    """Up to a constant, at any parameters; and one κ is drawn for the block, by these marginals."""
    kappa = np.full((1, D), 6.0)
    sums = np.array([family.features(some_rows(rng, rows)).sum(axis=0) for rows in (5, 9, 4)])
    by_silo, points = sums[:, None, None], some_parameters(family, rng, 6)
    numbers = family.shared_posterior(by_silo, points[None, :1], kappa, rng)[0, 0]
    x, y, z = numbers[:4], numbers[4:9], numbers[9:]
    squares = np.array([[x[3], y[4], z[4]], [y[4], y[3], z[5]], [z[4], z[5], z[3]]])
    mean = np.array([x[2], y[2], z[2]]) / x[1]
    stated = mean, x[1], x[0], squares - x[1] * np.outer(mean, mean)
    gaps = []
    for own in points:
        marginal = sum(family.log_marginal(one, own, kappa[0]).sum() for one in sums)
        gaps.append(family.log_prior(own)[1] + marginal - prior_density(*law(own), stated))
    assert_allclose(gaps, gaps[0])
    chains, at = 4000, points[:1]
    many = np.broadcast_to(by_silo, (3, chains, 1, sums.shape[1]))
    given = np.broadcast_to(at, (chains, 1, at.shape[1])), np.zeros((chains, D), int)
    drawn = family.draw_kappa(many, *given, np.zeros(chains), rng)
    assert (drawn == drawn[:, :1]).all()
    logs = [sum(family.log_marginal(s, at[0], np.full(D, k)).sum() for s in sums) for k in GRID]
    logs = np.array(logs) - np.r_[np.full(len(GRID) - 1, np.log(len(GRID) - 1)), 0]
    expected = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    share = np.bincount(drawn[:, 0], minlength=len(GRID)) / chains
    assert (np.abs(share - expected) <= LIMIT * np.sqrt(expected / chains) + 1e-3).all()


def test_own_means_are_drawn_from_their_posterior(family, rng):
    x, at, kappa, chains = some_rows(rng), some_parameters(family, rng, 1), 6.0, 20_000
    sums = np.broadcast_to(family.features(x).sum(axis=0), (1, chains, 1, 12))
    given = np.broadcast_to(at, (chains, 1, 9)), np.full((chains, D), kappa)
    own = family.draw_own(sums, *given, rng)[0, :, 0]
    m, covariance, s = law(at[0])
    size = kappa + 1 + ROWS
    means = own[:, [0, 2, 5]]
    expected = ((kappa + 1) * m + x.sum(axis=0)) / size
    assert (np.abs(means.mean(axis=0) - expected) <= LIMIT * s / np.sqrt(size * chains)).all()
    assert_allclose(np.cov(means.T) * size, covariance, atol=0.1 * np.outer(s, s).max())
    assert_array_equal(own[:, [1, 3, 6]], np.tile(s, (chains, 1)))
    alike = family.draw_own(sums, given[0], np.full((chains, D), np.inf), rng)
    assert_array_equal(alike[0], given[0])


def test_a_release_that_claims_rules_is_refused_in_words(family):
    """No rule lets these sums out, so a site cannot have applied one."""
    sizes, worth = np.array([20]), np.full((1, D), 20.0)
    said = breach(Product((family.family,)), family.nothing()[None], worth, sizes, Policy())
    assert said == "has numbers that leave only where no rule is set"


@pytest.fixture
def gaps(rng):
    """Rows with every pattern of missing cells but none."""
    x = np.repeat(some_rows(rng, 7), 2, axis=0)
    for row, pattern in enumerate(range(1, 8)):
        x[2 * row : 2 * row + 2, [bool(pattern >> q & 1) for q in range(D)]] = np.nan
    return x


def test_a_row_with_missing_cells_says_what_its_known_cells_say(family, rng, gaps):
    parameters = some_parameters(family, rng)
    assert family.hides(gaps).all()
    assert not family.features(gaps).any()
    found = family.log_density(gaps, parameters)
    for cluster, own in enumerate(parameters):
        m, covariance, _ = law(own)
        for row, cells in enumerate(gaps):
            known = ~np.isnan(cells)
            if known.any():
                marginal = stats.multivariate_normal(m[known], covariance[np.ix_(known, known)])
                assert_allclose(found[row, cluster], marginal.logpdf(cells[known]))
            else:
                assert found[row, cluster] == 0


def test_missing_cells_are_drawn_given_the_known_ones(family, rng, gaps):
    parameters, draws = some_parameters(family, rng, 2), 20_000
    expected = family.expected_features(gaps, parameters)
    for cluster in range(2):
        labels = np.full(draws, cluster)
        for row, cells in enumerate(gaps[::2]):
            many = np.tile(cells, (draws, 1))
            drawn = family.complete(many, parameters, labels, rng)
            apart = drawn.mean(axis=0) - expected[2 * row, cluster]
            error = drawn.std(axis=0) / np.sqrt(draws) + 1e-9
            assert (np.abs(apart) <= LIMIT * error).all()
            # known cells are as they were
            known = np.flatnonzero(~np.isnan(cells))
            assert_allclose(drawn[:, np.array([1, 4, 8])[known]], np.tile(cells[known], (draws, 1)))


def test_a_product_asks_each_block_of_its_rows(rng, gaps):
    level = Variable("a", ("no", "yes"))
    joint = [Variable(name, kind="gaussian-full") for name in NAMES]
    schema = Schema((level, *joint))
    codes = rng.integers(3, size=(len(gaps), 1)).astype(np.uint8)
    shard = Shard(schema, codes, gaps)
    family = make_family(schema, Prior())
    assert_array_equal(family.leads, [True, True, False, False])
    prior = np.tile(posterior(family, np.zeros(family.statistics.sum()) + 0.0), (3, 1))
    parameters = family.draw(prior, rng)
    alone = make_family(Schema((level,)), Prior())
    part = alone.features(Shard(Schema((level,)), codes)) @ alone.natural(parameters[:, :2]).T
    joint_part = KINDS["gaussian-full"](tuple(joint)).log_density(gaps, parameters[:, 2:])
    assert_allclose(family.log_density(shard, parameters), part + joint_part)
    assert family.expected_features(shard, parameters).shape == (len(gaps), 3, 14)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({1: -1.0}, "standard deviations"),
        ({4: 1.5}, "beyond one"),
        ({4: 0.99, 7: 0.99, 8: -0.99}, "that no numbers have"),
    ],
)
def test_parameters_from_elsewhere_are_checked(family, rng, spoil, said):
    parameters = some_parameters(family, rng)
    for place, value in spoil.items():
        parameters[0, place] = value
    assert said in family.problems(parameters)
    mean = family.moments(some_parameters(family, rng))
    assert family.mean_problems(mean) == ""
    mean[0, 2] = mean[0, 1] ** 2 - 1.0
    assert "no numbers have" in family.mean_problems(mean)
