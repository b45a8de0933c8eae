"""Numbers with outliers against SciPy: densities, weights, slopes, evidence, comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from cases.families import Asked, posterior
from cases.family_oracles import Tailed, log_evidence, make_shard
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad

from silomix.families import make_family
from silomix.families.chains import Rows
from silomix.families.disclosure import breach
from silomix.families.gaussian import Gaussian
from silomix.families.product import Product
from silomix.families.student_t import StudentT
from silomix.model.schema import Prior, Variable
from silomix.study.policy import Policy

nan = np.nan
KINDS = (Tailed("x", 5.0, 2.0), Tailed("y"))
CELLS = np.array([[-0.4, 3.0], [0.3, nan], [nan, 1.9], [25.0, 2.2], [0.2, 2.0], [nan, nan]])
# P(|z| > LIMIT) is 6e-7 for each of some hundred numbers
LIMIT = 5.0


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def family():
    return Asked(StudentT(tuple(kind.variable for kind in KINDS)))


def some_parameters(rng, clusters=4):
    """Mean and scale of x, then of y: (cluster, parameter)."""
    m, s = rng.normal(0, 3, (clusters, 2)), rng.gamma(2.0, 0.5, (clusters, 2))
    return np.stack([m, s], axis=-1).reshape(clusters, 4)


def t_logpdf(cells, parameters):
    """By SciPy, in the units of the study, 0 for a missing cell: (row, cluster, variable)."""
    found = stats.t(4, parameters[:, ::2], parameters[:, 1::2]).logpdf(cells[:, None])
    return np.where(np.isnan(cells)[:, None], 0.0, found)


def test_every_row_hides_its_weights_and_has_the_density_of_its_known_cells(family, rng):
    parameters = some_parameters(rng)
    assert family.hides(CELLS).all()
    found = family.log_density(CELLS, parameters)
    assert_allclose(found, t_logpdf(CELLS, parameters).sum(axis=2))
    data = stats.t(4, 5 + 2 * parameters[:, 0], 2 * parameters[:, 1]).logpdf(5 + 2 * CELLS[3, 0])
    assert_allclose(
        found[3] + family.log_base(CELLS)[3] - t_logpdf(CELLS, parameters)[3, :, 1], data
    )
    assert family.names() == [("x", "mean"), ("x", "scale"), ("y", "mean"), ("y", "scale")]


def test_many_far_cells_do_not_overflow():
    wide = StudentT(tuple(Variable(f"x{q}", kind="student-t") for q in range(300)))
    cells, parameters = np.full((2, 300), 1e9), np.tile([0.0, 1e-3], (3, 300))
    expected = 300 * stats.t(4, 0, 1e-3).logpdf(1e9)
    assert_allclose(wide.log_density(cells, parameters), np.full((2, 3), expected))


def test_completed_rows_have_the_density_that_they_were_completed_at(family, rng):
    """T · η is log p(x) there, whether weights were drawn or expected, and below it elsewhere."""
    parameters = some_parameters(rng, 3)
    natural, known = family.natural(parameters), t_logpdf(CELLS, parameters).sum(axis=2)
    for cluster in range(3):
        drawn = family.complete(CELLS, parameters, np.full(len(CELLS), cluster), rng)
        assert_allclose(drawn @ natural[cluster], known[:, cluster])
        assert not drawn[-1].any()
    expected = family.expected_features(CELLS, parameters)
    values = np.einsum("rcf,df->rcd", expected, natural)
    assert_allclose(np.einsum("rcc->rc", values), known)
    assert (values <= known[:, None] + 1e-9).all()


def test_weights_are_drawn_given_cell_and_cluster(family, rng):
    """By Kolmogorov and Smirnov; the normal sums given weights are those of weighted rows."""
    parameters, draws = some_parameters(rng, 2), 5000
    for cell in (0.3, 25.0):
        cells = np.tile([cell, nan], (draws, 1))
        drawn = family.complete(cells, parameters, np.ones(draws, int), rng)
        n, v, w, _, total, square = drawn[:, :6].T
        w, total, square = np.array([w, total, square]) * 5 / 7
        z = (cell - parameters[1, 0]) / parameters[1, 1]
        assert stats.kstest(w, stats.gamma(2.5, scale=2 / (4 + z * z)).cdf).pvalue > 1e-6
        assert_allclose([n, v * 4 / 7], 1)
        assert_allclose([total, square], [w * cell, w * cell**2])
        mean = family.expected_features(cells[:1], parameters)[0, 1, 2] * 5 / 7
        assert abs(w.mean() - mean) <= LIMIT * w.std() / np.sqrt(draws)


def test_given_weights_of_one_it_is_gaussian(family, rng):
    """Method by method, but for the rows that a release stands for."""
    normal = Asked(Gaussian(family.variables))
    sums, theirs = (one.features(CELLS[:5]).sum(axis=0) for one in (family, normal))
    sums[3::6] = sums[::6]  # h says nothing
    parameters = some_parameters(rng, 1)[0]
    kappa = np.array([7.0, np.inf])
    both = family.numbers(posterior(family, sums)), normal.numbers(posterior(normal, theirs))
    assert_allclose(*both)
    for name in ("log_evidence", "near", "known"):
        assert_allclose(getattr(family, name)(sums), getattr(normal, name)(theirs), err_msg=name)
    assert_allclose(family.score(parameters, sums), normal.score(parameters, theirs))
    pair = [one.log_marginal(s, parameters, kappa) for one, s in ((family, sums), (normal, theirs))]
    assert_allclose(*pair)
    pair = [one.log_remainder(s, kappa) for one, s in ((family, sums), (normal, theirs))]
    assert_allclose(*pair, atol=1e-10)  # without drift nothing remains
    found = [one.from_moments(one.means(s)[0]) for one, s in ((family, sums), (normal, theirs))]
    assert_allclose(*found)
    # E η · T is the same, however η is split
    values = [one.expected_natural(s) @ s for one, s in ((family, sums), (normal, theirs))]
    assert_allclose(*values, rtol=1e-6)  # by differences


def test_the_marginal_integrates_a_silos_own_mean_out(family, rng):
    """Given weights, by quadrature."""
    x, w, (m, s), kappa = rng.normal(size=5), rng.gamma(2.0, 0.5, 5), (0.4, 1.3), 6.0
    weighted = np.array([w.sum(), 0, (w * x).sum(), (w * x * x).sum()]) * 7 / 5
    sums = np.array([5, 5 * 7 / 4, *weighted])
    sums[3] = 5

    def joint(own):
        rows = stats.norm(own, s / np.sqrt(w)).logpdf(x).sum() - 0.5 * np.log(w).sum()
        return np.exp(rows + stats.norm(m, s / np.sqrt(kappa + 1)).logpdf(own))

    alone = Asked(StudentT(family.variables[:1]))
    found = alone.log_marginal(sums, np.array([m, s]), np.array([kappa]))
    assert_allclose(found, np.log(quad(joint, m - 12 * s, m + 12 * s)[0]), rtol=1e-7)


def test_the_score_of_expected_sums_is_the_slope_of_the_likelihood(rng):
    """Fisher's identity: of the whole mixture, by central differences of SciPy's densities."""
    shard = make_shard(KINDS, CELLS)
    product = make_family(shard.schema, Prior())
    weights, parameters = np.array([[0.3, 0.7]]), some_parameters(rng, 2)

    def log_likelihood(at):
        masses = np.exp(t_logpdf(CELLS, at.reshape(2, 4)).sum(axis=2)) @ weights[0]
        return np.log(masses).sum()

    value, _, statistics = Rows(shard, product).expected(weights, parameters[None])
    assert_allclose(value - product.log_base(shard).sum(), log_likelihood(parameters))
    steps = 1e-6 * np.eye(8)
    flat = parameters.ravel()
    rise = [log_likelihood(flat + e) - log_likelihood(flat - e) for e in steps]
    slopes = product.score(parameters, statistics[0]).ravel()
    assert_allclose(slopes, np.array(rise) / 2e-6, rtol=1e-5, atol=1e-6)


def test_the_evidence_of_rows_is_a_close_bound(rng):
    """Of rows without parameters, weights settle where the bound is within half a unit or so."""
    cells = np.vstack([CELLS, rng.standard_t(4, (30, 2))])
    shard = make_shard(KINDS, cells)
    product = make_family(shard.schema, Prior())
    sums = Rows(shard, product).sum_statistics(np.zeros(len(cells), int), 1)
    found = product.log_evidence(sums).sum() + product.log_base(shard).sum()
    exact = log_evidence(KINDS, cells)
    assert exact - 1.5 < found < exact
    # rows that all weigh one, as if there were no tails, are far off
    normal = Asked(Gaussian(product.variables))
    without = normal.log_evidence(normal.features(cells).sum(axis=0)).sum()
    assert without + product.log_base(shard).sum() < exact - 20


def _weighing(weigh):
    """A method that gives rows these weights of z, how far a cell is from its mean."""

    def complete(family, cells, parameters, labels, rng):
        z = (cells - parameters[labels, ::2]) / parameters[labels, 1::2]
        return family._from_weights(cells, z, weigh(z, rng))

    return complete


def _rows_for_weights(family, statistics, right=StudentT.sums):
    n, _, total, square = right(family, statistics)
    return n, n, total, square


BUGS = {
    "weights are not drawn": ("complete", _weighing(lambda z, _: np.ones(z.shape))),
    "weights at their mean": ("complete", _weighing(lambda z, _: 5 / (4 + z * z))),
    "weights of any row": ("complete", _weighing(lambda z, rng: rng.gamma(2, 0.5, z.shape))),
    "rows for weights": ("sums", _rows_for_weights),
}


@pytest.mark.parametrize("bug", [None, *BUGS])
def test_weights_and_parameters_in_turn_keep_the_posterior(bug, family, rng, monkeypatch):
    """Of one cluster, on a fine grid; false alarms are one in a million. Bugs are caught."""
    if bug:
        monkeypatch.setattr(StudentT, *BUGS[bug])
    x, chains = np.array([-0.7, 0.2, 0.4, 1.1, nan, 6.0]), 6000
    points, log_mass = KINDS[1].grid(x)
    logs = log_mass + sum(KINDS[1].log_cell(cell, points) for cell in x[~np.isnan(x)])
    masses = np.exp(logs - logs.max())
    masses /= masses.sum()
    alone, labels = StudentT(family.variables[1:]), np.repeat(np.arange(chains), len(x))
    parameters = points[rng.choice(len(points), chains, p=masses)]
    for _ in range(4):
        drawn = alone.complete(np.tile(x, chains)[:, None], parameters, labels, rng)
        sums = drawn.reshape(chains, len(x), 6).sum(axis=1)
        parameters = alone.draw(posterior(alone, sums), rng)
    p_values = []
    for place in range(2):
        order = np.argsort(points[:, place])
        reached = np.cumsum(masses[order])
        uniform = np.interp(parameters[:, place], points[order, place], reached)
        p_values.append(stats.kstest(uniform, "uniform").pvalue)
    assert (min(p_values) > 1e-6) == (bug is None)


def test_moments_are_those_of_rows_and_their_weights(family, rng):
    parameters, rows = some_parameters(rng, 1), 40_000
    cells = parameters[0, ::2] + parameters[0, 1::2] * rng.standard_t(4, (rows, 2))
    drawn = family.complete(cells, parameters, np.zeros(rows, int), rng)
    apart = drawn.mean(axis=0) - family.moments(parameters)[0]
    telling = np.arange(12) % 6 != 3  # h says nothing of parameters
    assert (np.abs(apart) <= LIMIT * drawn.std(axis=0) / np.sqrt(rows) + 1e-12)[telling].all()
    assert_allclose(family.from_moments(family.moments(parameters)), parameters)
    assert_allclose(family.back(family.coordinates(parameters)), parameters)


def test_draws_say_what_rows_they_saw(family, rng):
    """The posterior of many rows is as wide as Fisher says, and so are the sums that stand in."""
    rows, draws = 300, 4000
    x, alone = rng.standard_t(4, (rows, 1)), Asked(StudentT(family.variables[:1]))
    parameters, kept = np.array([[0.0, 1.0]]), []
    for _ in range(draws):
        sums = alone.complete(x, parameters, np.zeros(rows, int), rng).sum(axis=0)
        parameters = alone.draw(posterior(alone, sums), rng)[None]
        kept.append(parameters)
    mean, concentration = alone.means(alone.valid(alone.fit(np.array(kept))))
    assert concentration[0, 0] == pytest.approx(rows, rel=0.25)
    again = alone.draw(np.tile(posterior(alone, mean[0] * concentration[0]), (draws, 1)), rng)
    spreads = [np.std(part, axis=0).ravel() for part in (kept, again)]
    assert_allclose(spreads[1] / spreads[0], 1, rtol=0.15)
    assert_allclose(again.mean(axis=0), np.mean(kept, axis=0)[0], atol=0.02)
    assert alone.mean_problems(mean) == ""


def test_affinity_is_the_integral(family, rng):
    one, other = some_parameters(rng, 2)
    found = np.exp(family.log_affinity(one, other))
    for q in range(2):
        p, r = (stats.t(4, part[2 * q], part[2 * q + 1]) for part in (one, other))
        # evenly in the arc sine, which is fine at the centres and reaches far
        x = np.sinh(np.linspace(-12, 12, 200_001))
        known = np.trapezoid(np.sqrt(p.pdf(x) * r.pdf(x)), x)
        assert found[q] == pytest.approx(known, abs=0.02)
    assert_allclose(family.log_affinity(one, one), 0, atol=1e-12)
    sd = stats.t(4, 0, one[1::2]).std()
    assert_allclose(family.spread(one), sd)


def test_equal_rows_leave_a_scale_above_zero(family, rng):
    sums = family.features(np.full((500, 2), 0.7)).sum(axis=0)
    assert (family.draw(np.tile(posterior(family, sums), (100, 1, 1)), rng)[..., 1::2] > 1e-3).all()


def test_what_comes_from_elsewhere_is_checked(family, rng):
    parameters = some_parameters(rng)
    assert family.problems(parameters) == ""
    parameters[0, 1] = 0.0
    assert family.problems(parameters)
    mean = family.nothing()
    assert family.mean_problems(mean[None]) == ""
    for place, value in ((2, 0.0), (1, -1.0), (5, -1.0)):
        wrong = mean.copy()
        wrong[place] = value
        assert family.mean_problems(wrong[None])
    assert breach(
        Product((family.family,)), mean[None], np.full((1, 2), 20.0), np.array([20]), Policy()
    )
