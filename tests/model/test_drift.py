"""Drift: kernels against readable twins and exact laws; discounted counts against integrals."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from cases import drift_twins as twins
from cases.families import categories
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import gammaln, logsumexp
from statistical.exact import FALSE_ALARM, p_value

from silomix.coordinator.polish import Shared, draw_kappa, exchange_clusters
from silomix.families.categorical import TRIED
from silomix.families.family import GRID
from silomix.kernels import dirichlet_multinomial as kernels

OFFSETS = np.array([0, 2, 5, 9])
FAMILY = categories(np.diff(OFFSETS))


def random_case(seed, silos=3, chains=5, clusters=2, most=60):
    """Counts with empty cells, small and large, around profiles with levels that hardly occur."""
    rng = np.random.default_rng(seed)
    sizes = np.diff(OFFSETS)
    mean = np.concatenate([rng.dirichlet(np.full(k, 0.3), (chains, clusters)) for k in sizes], -1)
    mean = np.maximum(mean, 1e-12)
    counts = rng.integers(0, most, (silos, chains, clusters, OFFSETS[-1]))
    counts[rng.random(counts.shape) < 0.3] = 0
    kappa = GRID[rng.integers(0, len(GRID), (chains, len(sizes)))]
    kappa[0, 0] = np.inf
    return counts, Shared(mean, kappa)


@pytest.mark.parametrize("x", [1e-300, 1e-30, 1e-6, 0.02, 0.5, 1.0, 3.0, 7.999, 8.0, 42.0, 3000.0])
def test_log_rising_is_a_difference_of_log_gammas(x):
    for n in (0, 1, 2, 7, 8, 9, 10, 50, 1000, 100_000, 10_000_000):
        exact = twins.log_rising(x, n)
        # the twin subtracts large numbers: its own rounding is of their size
        rounding = 1e-15 * max(abs(gammaln(x + n)), abs(gammaln(x)))
        assert abs(kernels.log_rising(x, n) - exact) < 1e-9 + rounding


@pytest.mark.parametrize("kappa", [3.0, 3000.0, np.inf])
@pytest.mark.parametrize("most", [10, 3000])
def test_log_probability_is_its_twin(seed, kappa, most):
    counts, shared = random_case(seed, most=most)
    for chain, mean in enumerate(shared.mean):
        for first, last in pairwise(OFFSETS):
            told = kernels.log_probability(counts[:, chain], mean, first, last, kappa)
            wanted = twins.log_probability(counts[:, chain], mean, first, last, kappa)
            # a sum over three silos and two clusters
            assert told == pytest.approx(wanted, rel=1e-12, abs=6e-9)


SHAPES = [1e-300, 1e-9, 1e-3, 0.05, 0.4, 3.0, 40.0, 2500.0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 40, 700, 20_000])
def test_tables_are_their_twins(shape, n, seed):
    compiled, plain = np.random.default_rng(seed), np.random.default_rng(seed)
    for _ in range(20):
        assert kernels.draw_tables(shape, n, compiled) == twins.draw_tables(shape, n, plain)
    assert compiled.random() == plain.random()


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("shape", "n"),
    [(0.01, 300), (0.3, 2), (0.3, 25), (0.3, 500), (2.0, 400), (7.5, 60), (90.0, 30)],
)
def test_tables_follow_antoniak(shape, n, rng):
    drawn = [kernels.draw_tables(shape, n, rng) for _ in range(8_000)]
    counts = np.bincount(drawn, minlength=n + 1).astype(float)
    assert p_value(counts, twins.table_masses(shape, n)) > FALSE_ALARM
    assert p_value(counts, twins.table_masses(1.3 * shape, n)) < FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize(("shape", "n"), [(6e4, 200_000), (1e9, 200_000), (2e5, 10_000_000)])
def test_tables_of_sums_of_large_counts_have_their_mean_and_variance(shape, n, rng):
    drawn = np.array([kernels.draw_tables(shape, n, rng) for _ in range(8_000)])

    def apart(shape):
        opens = shape / (shape + np.arange(n))
        mean, variance = opens.sum(), (opens * (1 - opens)).sum()
        return (drawn.mean() - mean) / np.sqrt(variance / 8_000), drawn.var() / variance - 1

    # errors of the mean, and of the variance by √(2/8000)
    z, ratio = apart(shape)
    assert abs(z) < 4
    assert abs(ratio) < 4 * np.sqrt(2 / 8_000)
    assert abs(apart(1.3 * shape)[0]) > 4


def test_sums_of_tables_are_their_twins(seed):
    counts, shared = random_case(seed, most=400)
    compiled, plain = np.random.default_rng(seed), np.random.default_rng(seed)
    found = kernels.sum_tables(counts, *shared[:2], OFFSETS, compiled)
    assert_array_equal(found, twins.sum_tables(counts, *shared[:2], OFFSETS, plain))
    assert compiled.random() == plain.random()
    same = np.isinf(np.repeat(shared.kappa, np.diff(OFFSETS), axis=1))[:, None]
    total = counts.sum(axis=0)
    assert_array_equal(np.where(same, found, 0), np.where(same, total, 0))
    assert np.all(found <= total)
    assert np.all(found >= (counts > 0).sum(axis=0))


@pytest.mark.parametrize("tried", [1, TRIED, len(GRID) - 1])
@pytest.mark.parametrize("most", [3, 60, 3000])
def test_draws_from_the_grid_are_their_twins(seed, tried, most):
    counts, shared = random_case(seed, chains=40, most=most)
    current = np.searchsorted(GRID, shared.kappa)
    odds = np.random.default_rng(seed).normal(0, 2, 40)
    compiled, plain = np.random.default_rng(seed), np.random.default_rng(seed)
    rest = (odds, OFFSETS, tried)
    found = kernels.draw_from_grid(GRID, counts, shared.mean, current, *rest, compiled)
    wanted = twins.draw_from_grid(counts, shared.mean, current, GRID, *rest, plain)
    assert_array_equal(found, wanted)
    assert compiled.random() == plain.random()


def one_variable():
    """Two silos, two clusters, one variable of three levels; no κ has most of the mass."""
    counts = np.array([[[9, 3, 0], [2, 2, 9]], [[5, 8, 2], [1, 0, 11]]])
    mean = np.array([[0.55, 0.4, 0.05], [0.1, 0.1, 0.8]])
    return counts, mean


def grid_p_value(start, steps, log_odds, seed, *, factor=0.0):
    """Many chains from `start` (chain,), so many draws of κ, against the law on the whole grid."""
    counts, mean = one_variable()
    chains = len(start)
    rng = np.random.default_rng(seed)
    place = start[:, None]
    for _ in range(steps):
        place = kernels.draw_from_grid(
            GRID,
            np.broadcast_to(counts[:, None], (2, chains, 2, 3)),
            np.broadcast_to(mean, (chains, 2, 3)),
            place, np.full(chains, log_odds + factor), np.array([0, 3]), TRIED, rng,
        )  # fmt: skip
    seen = np.bincount(place[:, 0], minlength=len(GRID)).astype(float)
    return p_value(seen, twins.grid_masses(counts, mean, GRID, log_odds))


@pytest.mark.statistical
@pytest.mark.parametrize("log_odds", [-1.0, 2.0])
def test_a_few_points_of_the_grid_leave_the_law_on_all_of_it(log_odds, rng, seed):
    target = twins.grid_masses(*one_variable(), GRID, log_odds)
    assert 0.1 < target[-1] < 0.9
    start = rng.choice(len(GRID), 15_000, p=target)
    assert grid_p_value(start, 1, log_odds, seed) > FALSE_ALARM
    # without the factor for sets drawn from infinity the finite points would count as tried
    wrong = np.log(TRIED / (len(GRID) - 1))
    assert grid_p_value(start, 1, log_odds, seed, factor=wrong) < FALSE_ALARM


def test_kappa_is_drawn_on_the_grid_and_one_share_is_learned_for_all_variables(rng, seed):
    """Without rows κ comes from its prior given the other variables: by Beta(1, 1) of the share."""
    chains = 20_000
    nothing = np.zeros((2, chains, 1, 9), np.int64)
    _, shared = random_case(seed, chains=chains, clusters=1)
    for same, wanted in ((3, 4 / 5), (0, 1 / 5), (1, 2 / 5)):
        kappa = np.full((chains, 3), GRID[7])
        kappa[:, :same] = np.inf
        drawn = draw_kappa(nothing, Shared(shared.mean, kappa), categories(np.diff(OFFSETS)), rng)
        assert np.isin(drawn, GRID).all()
        seen = np.isinf(drawn).sum(axis=1)
        # given the share all three are independent: a Beta-binomial
        law = stats.betabinom(3, 1 + same, 4 - same)
        assert law.mean() == pytest.approx(3 * wanted)
        assert p_value(np.bincount(seen, minlength=4) * 1.0, law.pmf(range(4))) > FALSE_ALARM


def test_silo_profiles_are_dirichlet_around_the_shared_ones(seed):
    chains = 4000
    counts, shared = random_case(seed, chains=1)
    shared = Shared(shared.mean, np.array([[np.inf, 3.0, 300.0]]))
    everywhere = np.broadcast_to(counts, (3, chains, 2, 9))
    many = Shared(*(np.broadcast_to(part, (chains, *part.shape[1:])) for part in shared[:2]))
    own = FAMILY.draw_own(everywhere, *many[:2], np.random.default_rng(seed))
    assert_allclose(np.add.reduceat(own, OFFSETS[:-1], axis=-1), 1.0)
    assert_array_equal(own[..., :2], np.broadcast_to(shared.mean[..., :2], (3, chains, 2, 2)))
    smallest = 1.0
    for kappa, first, last in ((3.0, 2, 5), (300.0, 5, 9)):
        shapes = kappa * shared.mean[0, :, first:last] + counts[:, 0, :, first:last]
        law = stats.beta(shapes, shapes.sum(axis=-1, keepdims=True) - shapes)
        drawn = own[..., first:last].mean(axis=1)
        z = (drawn - law.mean()) / (law.std() / np.sqrt(chains))
        smallest = min(smallest, stats.norm.sf(np.abs(z)).min() * 2 * 42)
    assert smallest > FALSE_ALARM


ROWS = np.array([[1, 0, 1, 0], [1, 0, 1, 0], [0, 1, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0]])
"""One silo's rows as cells of two variables of two levels; the last one's second is missing."""
ALPHA = 0.7


def exchange_law(shared):
    """Every labelling in three clusters: its counts, members and mass, given m and κ."""
    labels = np.array(list(product(range(3), repeat=len(ROWS))))
    members = np.eye(3, dtype=np.int64)[labels]
    counts = np.einsum("zrc,rl->zcl", members, ROWS)
    members = members.sum(axis=1)
    logs = gammaln(ALPHA + members).sum(axis=1)
    for variable, kappa in enumerate(shared.kappa[0]):
        levels = 2 * variable, 2 * variable + 2
        logs += [twins.log_probability(own[None], shared.mean[0], *levels, kappa) for own in counts]
    return counts, members, np.exp(logs - logsumexp(logs))


def exchange_p_values(exchange, seed, replicates=40_000):
    """Exact draws of labels and weights, one exchange: is the law of both still the same?"""
    mean = np.array([[[0.9, 0.1, 0.6, 0.4], [0.2, 0.8, 0.3, 0.7], [0.5, 0.5, 0.1, 0.9]]])
    shared = Shared(mean, np.array([[3.0, np.inf]]))
    counts, members, masses = exchange_law(shared)
    rng = np.random.default_rng(seed)
    start = rng.choice(len(masses), replicates, p=masses)
    weights = rng.standard_gamma(ALPHA + members[start])
    weights /= weights.sum(axis=1, keepdims=True)
    many = Shared(*(np.broadcast_to(part, (replicates, *part.shape[1:])) for part in shared[:2]))
    now, held = exchange(counts[start][None], weights[None], many, categories((2, 2)), rng)
    kinds = {key.tobytes(): None for key in counts}
    place = {key: number for number, key in enumerate(kinds)}
    kind = np.array([place[key.tobytes()] for key in counts])
    seen = np.bincount([place[own.tobytes()] for own in now[0]], minlength=len(place))
    # given its rows a cluster's weight is Beta; the members follow from the first variable
    rows = now[0, :, :, :2].sum(axis=-1)
    quantile = stats.beta(ALPHA + rows, 2 * ALPHA + len(ROWS) - rows - 0.0).cdf(held[0])
    uniform = np.bincount((quantile[:, 0] * 10).astype(int).clip(0, 9), minlength=10)
    moved = np.any(now[0] != counts[start], axis=(1, 2)).mean()
    return (
        p_value(seen * 1.0, np.bincount(kind, weights=masses)),
        p_value(uniform * 1.0, np.full(10, 0.1)),
        moved,
    )


@pytest.mark.statistical
def test_exchanges_leave_the_law_of_labels_and_weights(seed):
    labels, weights, moved = exchange_p_values(exchange_clusters, seed)
    assert moved > 0.1
    assert labels > FALSE_ALARM
    assert weights > FALSE_ALARM

    def always(counts, weights, *_):
        return counts[:, :, [1, 0, 2]], weights[:, :, [1, 0, 2]]

    def rows_alone(counts, weights, *given):
        return exchange_clusters(counts, weights, *given)[0], weights

    assert exchange_p_values(always, seed)[0] < FALSE_ALARM
    assert exchange_p_values(rows_alone, seed)[1] < FALSE_ALARM


@given(
    counts=st.lists(st.integers(0, 5000), min_size=9, max_size=9),
    kappa=st.sampled_from(GRID.tolist()),
)
def test_discounted_counts_are_between_none_and_all(counts, kappa):
    counts = np.array(counts, dtype=np.float64)
    found = FAMILY.discount(counts, np.array([kappa, np.inf, kappa]))
    assert np.all(found >= 0)
    assert np.all(found <= counts)
    assert_array_equal(found[2:5], counts[2:5])


def test_an_only_level_is_not_discounted(seed):
    counts = random_case(seed)[0].astype(np.float64)[..., :3]
    kappa = np.array([20.0, 300.0])
    found = categories((1, 2)).discount(counts, kappa)
    assert_array_equal(found[..., 0], counts[..., 0])
    assert_array_equal(found[..., 1:], categories((2,)).discount(counts[..., 1:], kappa[1:]))


def test_every_variable_is_discounted_at_its_own_kappa(seed):
    counts = random_case(seed)[0].astype(np.float64)
    kappa = np.array([20.0, np.inf, 300.0])
    parts = list(pairwise(OFFSETS))
    alone = [
        (categories((last - first,)), counts[..., first:last], np.array([size]))
        for size, (first, last) in zip(kappa, parts, strict=True)
    ]
    apart = np.concatenate([own.discount(*given) for own, *given in alone], axis=-1)
    assert_allclose(FAMILY.discount(counts, kappa), apart, rtol=1e-12)
    left_out = np.concatenate([own.log_remainder(*given) for own, *given in alone], axis=-1)
    assert_allclose(FAMILY.log_remainder(counts, kappa), left_out, atol=1e-8)


def discount_errors(seed, discounted, cases=100):
    """Gains of joining two clusters of one m, and single evidence, less the exact integrals."""
    rng, exact = np.random.default_rng(seed), twins.TwoLevels()
    gains, singles = [], []
    for _ in range(cases):
        kappa = 10 ** rng.uniform(1, 3)
        rows = np.exp(rng.uniform(np.log(20), np.log(2000), 2)).astype(int)
        m = np.clip(rng.beta(0.5, 0.5), 1e-9, 1 - 1e-9)
        first = rng.binomial(rows, rng.beta(kappa * m, kappa * (1 - m), 2))
        counts = np.stack([first, rows - first], axis=1).astype(np.float64)
        one, other = (exact.log_likelihood(own, kappa) for own in counts)
        alone = np.array([exact.log_integral(one), exact.log_integral(other)])
        stand_in = discounted(counts, np.array([kappa]))
        evidence = categories((2,)).log_evidence(stand_in)
        together = categories((2,)).log_evidence(stand_in.sum(axis=0))[0]
        gain = exact.log_integral(one, other) - alone.sum()
        gains.append(together - evidence.sum() - gain)
        alone = alone[:, None]
        singles.extend(categories((2,)).log_remainder(counts, np.array([kappa])) + evidence - alone)
    return np.abs(gains), np.abs(singles)


def test_joining_discounted_counts_gains_what_the_exact_integral_does(seed):
    gains, singles = discount_errors(seed, categories((2,)).discount)
    assert np.quantile(gains, 0.95) < 0.25
    assert np.quantile(singles, 0.95) < 0.25
    assert singles.max() < 0.5

    undiscounted = discount_errors(seed, lambda counts, *_: counts)[0]
    assert np.quantile(undiscounted, 0.95) > 0.25
