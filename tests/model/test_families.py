"""Every family against SciPy: densities, integrals, gradients, moments; alone and side by side."""

from __future__ import annotations

import numpy as np
import pytest
from cases.families import posterior
from cases.family_oracles import (
    Category,
    Count,
    Number,
    Overdispersed,
    log_evidence,
    log_integral,
    make_shard,
)
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from silomix.families import make_family
from silomix.model.schema import Prior, Schema, Shard, Variable

nan = np.nan
LEVELS = np.array([0, 1, 1, nan, 0, 1, 1])
VALUES = np.array([-0.4, 0.3, nan, 1.9, 0.2, -0.1, 0.6])
COUNTS = np.array([3, 0, 7, 2, nan, 1, 2])
# negative binomial to the eye of a fit: mean 26 and dispersion a third
SPREAD_COUNTS = np.array([6, 18, 23, nan, 23, 28, 57])
# kinds of the variables and their cells, in the units of a shard
TABLES = {
    "categorical": ((Category("a"), Category("b")), [LEVELS, LEVELS[::-1]]),
    "gaussian": ((Number("x", 54.0, 9.0), Number("y", -2.0, 0.1)), [VALUES, 3 - 0.2 * VALUES]),
    "poisson": ((Count("n", 3.0), Count("m", 40.0)), [COUNTS, 9 * COUNTS[::-1] + 1]),
    "negative-binomial": (
        (Overdispersed("n", 3.0), Overdispersed("m", 20.0)),
        [COUNTS, SPREAD_COUNTS],
    ),
    "mixed": ((Category("a"), Number("x", 54.0, 9.0), Count("n")), [LEVELS, VALUES, COUNTS]),
}
# P(|z| > LIMIT) is 6e-7 for each of some hundred numbers
LIMIT = 5.0


class Case:
    """A table of such kinds, and the package's family of it."""

    def __init__(self, kinds, columns):
        self.kinds, self.cells = kinds, np.column_stack(columns)
        self.shard = make_shard(kinds, self.cells)
        self.family = make_family(self.shard.schema, Prior())
        self.features = self.family.features(self.shard)
        self.sums = self.features.sum(axis=0)
        self.base = self.family.log_base(self.shard).sum()

    def draw_prior(self, seed, shape=()):
        """Parameters (..., parameter), from the oracles."""
        rng = np.random.default_rng(seed)
        return np.concatenate([kind.draw_prior(shape, rng) for kind in self.kinds], axis=-1)

    def split(self, parameters):
        """Kind, cells and parameters of each variable."""
        edges = np.cumsum([kind.size for kind in self.kinds])[:-1]
        parts = np.split(parameters, edges, axis=-1)
        return zip(self.kinds, self.cells.T, parts, strict=True)

    def posterior_means(self, of):
        """E of(parameters), posterior, of each variable by quadrature: (column,)."""
        means = []
        for place, (kind, cells) in enumerate(zip(self.kinds, self.cells.T, strict=True)):
            points, log_mass = kind.grid(cells)
            rows = sum(kind.log_cell(x, points) for x in cells[~np.isnan(cells)])
            mass = np.exp(log_mass + rows - (log_mass + rows).max())
            alone = make_family(make_shard([kind], cells[:, None]).schema, Prior())
            assert alone.variables[0] == self.family.variables[place]
            means.append(mass @ of(alone, points) / mass.sum())
        return np.concatenate(means)


@pytest.fixture(params=TABLES)
def case(request):
    return Case(*TABLES[request.param])


def differences(function, parameters, step=1e-6):
    """Central differences of a function of (parameter,)."""
    steps = step * np.maximum(np.abs(parameters), 1e-3) * np.eye(len(parameters))
    rise = [function(parameters + e) - function(parameters - e) for e in steps]
    return np.array(rise) / (2 * steps.sum(axis=1))


def test_the_density_is_that_of_the_data_in_their_own_units(case, seed):
    parameters = case.draw_prior(seed)
    found = case.features @ case.family.natural(parameters) + case.family.log_base(case.shard)
    expected = np.zeros(case.shard.rows)
    for kind, cells, own in case.split(parameters):
        known = ~np.isnan(cells)
        expected[known] += [kind.log_cell(x, own) for x in cells[known]]
    assert_allclose(found, expected, rtol=1e-9)


def test_the_density_of_a_logarithm_is_that_of_the_number_itself():
    """Beside a number that is as it is, and in rows with a missing one."""
    variables = (
        Variable("x", kind="gaussian", location=2.0, scale=0.7, transform="log"),
        Variable("y", kind="gaussian", location=54.0, scale=9.0),
    )
    cells = np.column_stack([VALUES, VALUES[::-1]])
    shard = Shard(Schema(variables), np.empty((len(cells), 0), np.uint8), cells)
    family, (m, s, other, spread) = make_family(shard.schema, Prior()), np.array([0.3, 0.5, -1, 2])
    x, y = np.exp(2 + 0.7 * cells[:, 0]), 54 + 9 * cells[:, 1]
    logs = stats.lognorm(0.7 * s, scale=np.exp(2 + 0.7 * m)).logpdf(x)
    expected = np.nan_to_num(logs) + np.nan_to_num(stats.norm(54 + 9 * other, 9 * spread).logpdf(y))
    found = family.features(shard) @ family.natural(np.array([m, s, other, spread]))
    assert_allclose(found + family.log_base(shard), expected, rtol=1e-12)


def test_draws_in_single_precision_have_the_density_of_their_rounded_values(case, seed):
    single = case.draw_prior(seed, (50,)).astype(np.float32)
    expected = case.family.natural(single.astype(np.float64))
    assert_allclose(case.family.columns(single[None])[0].T, expected, rtol=1e-12)


def test_a_row_among_narrow_clusters_survives_single_precision():
    """ln p = −½z² − ln s is left of terms that are as large as (m/s)²."""
    case = Case((Number("x"),), [np.array([10.001])])
    narrow = np.array([10.0, 1e-3], dtype=np.float32)
    found = case.features @ case.family.natural(narrow)
    expected = case.kinds[0].log_cell(10.001, narrow.astype(np.float64))
    assert_allclose(found, expected, rtol=1e-6)


def test_no_level_of_a_draw_in_single_precision_is_impossible():
    case = Case(*TABLES["mixed"])
    draw = np.array([0.0, 1.0, 0.2, 0.5, 3.0], dtype=np.float32)
    assert np.isfinite(case.family.columns(draw[None, None])).all()


def test_evidence_is_the_integral(case):
    found = case.family.log_evidence(case.sums).sum() + case.base
    by_quadrature = sum(
        log_integral(kind, cells, kind.grid(cells))
        for kind, cells in zip(case.kinds, case.cells.T, strict=True)
    )
    assert_allclose(found, by_quadrature, rtol=1e-8)
    assert_allclose(found, log_evidence(case.kinds, case.cells), rtol=1e-10)
    assert_array_equal(case.family.log_evidence(0 * case.sums), np.zeros(len(case.kinds)))
    none = np.zeros((0, len(case.sums)))
    assert case.family.log_evidence(none).shape == (0, len(case.kinds))
    assert posterior(case.family, none).shape == (0, len(case.family.prior()))


@pytest.mark.parametrize(("location", "cell"), [(1e6, 0.3), (0.0, 1e6 + 0.3)])
def test_a_row_far_from_zero_loses_no_digits(location, cell):
    """In the units of the study, or in others: sums of squares are differences."""
    case = Case((Number("x", location, 1.0),), [np.array([cell])])
    m, size, a, b = 0.0, 0.01, 1.5, 0.25
    scale = np.sqrt(b * (size + 1) / (a * size))
    assert_allclose(
        case.family.log_evidence(case.sums), stats.t(2 * a, m, scale).logpdf(cell), rtol=1e-9
    )
    found = case.family.blocks[0].numbers(posterior(case.family, case.sums))
    left = 0.5 * size / (size + 1) * cell**2
    assert_allclose(np.ravel(found), [cell / (size + 1), size + 1, a + 0.5, b + left], rtol=1e-9)


def test_a_posterior_is_the_prior_of_what_comes_next(case):
    first, rest = case.features[:3].sum(axis=0), case.features[3:].sum(axis=0)
    family = case.family
    updated = posterior(family, first)
    assert_allclose(posterior(family, rest, updated), posterior(family, case.sums), rtol=1e-12)
    in_turn = family.log_evidence(first) + family.log_evidence(rest, updated)
    assert_allclose(in_turn, family.log_evidence(case.sums), rtol=1e-10)
    assert_array_equal(posterior(family, 0 * first), family.prior())


@pytest.mark.parametrize("kappa", [3.0, 100.0, 3000.0, np.inf])
def test_the_marginal_integrates_a_silos_own_parameters_out(case, kappa, rng):
    # not far from the rows, where all is rounding
    parameters = case.family.draw(posterior(case.family, case.sums), rng)
    found = case.family.log_marginal(case.sums, parameters, np.full(len(case.kinds), kappa))
    total = 0.0
    for kind, cells, shared in case.split(parameters):
        n = (~np.isnan(cells)).sum()
        if np.isinf(kappa):
            total += sum(kind.log_cell(x, shared) for x in cells[~np.isnan(cells)])
        else:
            total += log_integral(kind, cells, kind.own_grid(shared, kappa))
            if isinstance(kind, Category):  # left out: the same for all parameters
                total += np.log(kappa + np.arange(n)).sum()
    assert_allclose(found.sum() + case.base, total, rtol=1e-7)


def test_the_prior_is_a_density_and_its_slopes_are_its_slopes(case, seed):
    parameters = case.draw_prior(seed)
    constant, value, slopes = case.family.log_prior(parameters)
    expected = sum(kind.log_prior(own) for kind, _, own in case.split(parameters))
    assert_allclose(constant + value, expected, rtol=1e-9)
    for kind in case.kinds:
        assert_allclose(np.exp(kind.grid(np.array([]))[1]).sum(), 1.0, rtol=1e-5)
    by_differences = differences(lambda at: case.family.log_prior(at)[1], parameters)
    assert_allclose(slopes, by_differences, rtol=1e-5, atol=1e-6)


def test_the_constant_of_the_prior_is_for_each_cluster(case, seed):
    clusters = case.draw_prior(seed, (3,))
    constant, value, slopes = case.family.log_prior(clusters)
    each = [case.family.log_prior(cluster) for cluster in clusters]
    assert_allclose(3 * constant + value, sum(c + v for c, v, _ in each), rtol=1e-12)
    assert_allclose(slopes, [slope for *_, slope in each], rtol=1e-12)


def test_the_score_is_the_slope_of_the_likelihood(case, rng):
    parameters = case.family.draw(posterior(case.family, case.sums), rng)
    expected = differences(lambda at: case.sums @ case.family.natural(at), parameters)
    assert_allclose(case.family.score(parameters, case.sums), expected, rtol=1e-5, atol=1e-4)


def test_expected_natural_parameters_are_the_integral(case):
    expected = case.posterior_means(lambda family, points: family.natural(points))
    assert_allclose(case.family.expected_natural(case.sums), expected, rtol=1e-5)


def test_draws_have_the_moments_of_the_posterior(case, rng):
    draws = case.family.draw(posterior(case.family, case.sums), rng, 20_000)
    for power in (1, 2):
        expected = case.posterior_means(lambda family, p, a=power: family.coordinates(p) ** a)
        assert_within_error(case.family.coordinates(draws) ** power, expected)
    one_by_one = case.family.draw(posterior(case.family, np.tile(case.sums, (20_000, 1))), rng)
    expected = case.posterior_means(lambda family, points: family.coordinates(points))
    assert_within_error(case.family.coordinates(one_by_one), expected)


def assert_within_error(draws, expected):
    """Means of independent draws (draw, ...) are as expected within `LIMIT` of their errors."""
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - expected) < LIMIT * error + 1e-9).all()


def test_half_of_the_draws_are_below_the_medians(case, seed):
    updated = posterior(case.family, case.sums)
    draws = case.family.draw(updated, np.random.default_rng(seed), 20_000)
    medians, error = case.family.medians(updated), LIMIT * 0.5 / np.sqrt(len(draws))
    # a dispersion may be the median itself
    assert ((draws < medians).mean(axis=0) < 0.5 + error).all()
    assert ((draws <= medians).mean(axis=0) > 0.5 - error).all()


def test_draws_say_what_rows_they_saw(case, seed):
    """By moments: within some per cent, of rows enough that a prior hardly counts."""
    rows = 40 * case.sums
    draws = case.family.draw(posterior(case.family, rows), np.random.default_rng(seed), 40_000)
    found = case.family.valid(case.family.fit(draws[:, None]))[0]
    mean, n = case.family.means(found)
    expected, wanted = case.family.means(rows)
    assert_allclose(n, wanted, rtol=0.06)
    assert_allclose(mean, expected, rtol=0.02, atol=0.02)


def test_there_and_back(case, seed):
    parameters = case.draw_prior(seed, (20,))
    family = case.family
    assert_allclose(family.from_moments(family.moments(parameters)), parameters, rtol=1e-6)
    assert_allclose(family.back(family.coordinates(parameters)), parameters, rtol=1e-9)


def test_moments_are_those_of_rows(case, rng):
    # not so far from the rows that some level or count is hardly ever drawn
    parameters = case.family.draw(posterior(case.family, case.sums), rng)
    split = case.split(np.tile(parameters, (20_000, 1)))
    shard = make_shard(case.kinds, np.column_stack([k.draw_cells(p, rng) for k, _, p in split]))
    assert_within_error(case.family.features(shard), case.family.moments(parameters))


def test_without_drift_nothing_is_discounted(case):
    same = np.full(len(case.kinds), np.inf)
    assert_allclose(case.family.discount(case.sums, same), case.sums, rtol=1e-15)
    assert_allclose(case.family.log_remainder(case.sums, same), 0.0, atol=1e-10)
    some = np.full(len(case.kinds), 10.0)
    assert (case.family.known(case.family.discount(case.sums, some)) < 6).all()


def test_sums_over_silos_are_those_of_pooled_rows(case, rng, seed):
    """Silos that do not differ: the shared parameters' posterior is that of all rows."""
    halves = np.array([case.features[:4].sum(axis=0), case.features[4:].sum(axis=0)])
    sums = halves[:, None, None].astype(np.float64)
    given = sums, case.draw_prior(seed, (1, 1)), np.full((1, len(case.kinds)), np.inf)
    found = case.family.shared_posterior(*given, rng)
    assert_allclose(found[0, 0], posterior(case.family, case.sums), rtol=1e-12)
    own = case.family.draw_own(*given, rng)
    assert_array_equal(own, np.broadcast_to(given[1], own.shape))


def test_shared_numbers_have_the_posterior_of_all_silos_marginals(seed):
    """Prior times marginals, at any parameters, is the density that the numbers stand for."""
    case = Case(*TABLES["gaussian"])
    halves = np.array([case.features[:3].sum(axis=0), case.features[3:].sum(axis=0)])
    parameters, kappa = case.draw_prior(seed, (30,)), np.array([5.0, 300.0])
    family, rng = case.family, np.random.default_rng(seed)
    numbers = family.shared_posterior(
        halves[:, None, None], parameters[:1, None], kappa[None], rng
    )[0, 0]
    expected = family.log_marginal(halves[:, None], parameters, kappa).sum(axis=(0, 2))
    expected += [family.log_prior(each)[1] for each in parameters]
    spread, size, total, square = numbers.reshape(2, 4).T
    m, a, b = total / size, spread / 2, (square - total**2 / size) / 2
    mean, s = np.moveaxis(parameters.reshape(-1, 2, 2), -1, 0)
    found = stats.norm(m, s / np.sqrt(size)).logpdf(mean)
    found += stats.invgamma(a, scale=b).logpdf(s**2) + np.log(2 * s)
    assert_allclose(np.ptp(found.sum(axis=1) - expected), 0.0, atol=1e-7 * np.ptp(expected))


def test_silos_own_parameters_are_drawn_from_their_posterior(case, rng):
    kappa, chains = 30.0, 20_000
    shared = case.family.draw(posterior(case.family, case.sums), rng)
    sums = np.tile(np.float64(case.sums), (1, chains, 1, 1))
    given = np.tile(shared, (chains, 1, 1)), np.full((chains, len(case.kinds)), kappa)
    own = case.family.draw_own(sums, *given, rng)[0, :, 0]
    expected = []
    for kind, cells, parameters in case.split(shared):
        points, log_mass = kind.own_grid(parameters, kappa)
        log_mass = log_mass + sum(kind.log_cell(x, points) for x in cells[~np.isnan(cells)])
        mass = np.exp(log_mass - log_mass.max())
        expected.append((mass @ points / mass.sum(), mass @ points**2 / mass.sum()))
    first, second = (np.concatenate(part) for part in zip(*expected, strict=True))
    assert_within_error(own, first)
    assert_within_error(own**2, second)
