"""What a rounded release can stand for: the set of counts, draws on it, and what follows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cases.families import model_of
from cases.release_cases import PRIOR, known_local
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import gammaln
from scipy.stats import chisquare

from silomix.families.categorical import draw_levels, fit_dirichlet
from silomix.kernels.rounded_counts import Sources, draw_behind, release_units
from silomix.messages.released_draws import own_draws, with_own_counts
from silomix.model.metrics import highest_density_interval
from silomix.silo.release import make_release
from silomix.study.policy import find_policy

BASE, LEAST = 5, 2
OFFSETS = np.array([0, 2, 4])
FALSE_ALARM = 1e-4


def units_of(counts, units, least=LEAST):
    released = np.empty(len(counts), dtype=np.int64)
    release_units(np.asarray(counts, dtype=float), units, least, released)
    return released


def definition(counts, units, least):
    """The rule as one would say it: raise, share out, give the rest to the largest remainders."""
    counts = np.asarray(counts, dtype=float)
    raised = np.zeros(len(counts), dtype=bool)
    while True:
        left = units - least * raised.sum()
        share = np.where(raised, least, counts * left / counts[~raised].sum())
        low = ~raised & (share < least - 1e-9)
        if not low.any():
            break
        raised |= low
    whole = np.floor(share + 1e-9).astype(int)
    remainders = np.where(raised, -1.0, np.round(share - whole, 9))
    for level in np.argsort(-remainders, kind="stable")[: units - whole.sum()]:
        whole[level] += 1
    return whole


@given(
    counts=st.lists(st.integers(0, 300), min_size=2, max_size=6).filter(any),
    spare=st.integers(0, 60),
    least=st.integers(0, 4),
)
def test_units_are_those_of_the_definition(counts, spare, least):
    units = least * len(counts) + spare + 1
    released = units_of(counts, units, least)
    assert released.sum() == units
    assert (released >= least).all()
    assert_array_equal(released, definition(counts, units, least))
    assert_array_equal(units_of(released * BASE, units, least), released)
    assert {tuple(units_of([few, 200 - few], 40)) for few in range(11)} == {(2, 38)}


def draw(released, seed=0, worth=1.0, beta=0.5, draws=4000, thin=5):
    released = np.atleast_2d(released)
    silos = len(released)
    rules = np.full(silos, BASE), np.full(silos, LEAST), np.full(silos, worth)
    given = Sources(released, released * float(BASE), *rules)
    return draw_behind(given, beta, 500, thin, draws, np.random.default_rng(seed))


def exact_law(released, rows, worth, beta):
    """P(counts of level 0 | release) with the profile integrated out, two levels, one silo."""
    units = sum(released)
    inside = [n for n in range(rows + 1) if tuple(units_of([n, rows - n], units)) == released]
    n = np.array(inside, dtype=float)
    m = rows - n
    # the integral of multinomial(n; p)^f over p ~ Beta(β, β), coefficients to the power f
    coefficient = worth * (gammaln(rows + 1) - gammaln(n + 1) - gammaln(m + 1))
    logs = coefficient + gammaln(beta + worth * n) + gammaln(beta + worth * m)
    masses = np.exp(logs - logs.max())
    return inside, masses / masses.sum()


@pytest.mark.statistical
@pytest.mark.parametrize(("released", "worth"), [((2, 10), 1.0), ((4, 8), 0.5), ((3, 9), 1.0)])
def test_counts_follow_their_exact_law(released, worth, seed):
    """Chi-square at a false-alarm rate of 1e-4; a wrong prior fails it."""
    inside, masses = exact_law(released, 60, worth, beta=0.5)
    _, counts = draw(released, seed, worth, thin=20)
    seen = np.array([(counts[:, 0, 0] == n).sum() for n in inside])
    assert seen.sum() == len(counts)
    likely = masses * len(counts) >= 5
    seen, masses = seen[likely], masses[likely] / masses[likely].sum()
    if len(seen) > 1:
        assert chisquare(seen, masses * seen.sum()).pvalue > FALSE_ALARM
    if released == (2, 10):
        _, other = exact_law(released, 60, worth, beta=4.0)
        other = other[likely] / other[likely].sum()
        assert chisquare(seen, other * seen.sum()).pvalue < FALSE_ALARM


def test_drawn_counts_would_be_released_so(rng, seed):
    released = np.array([units_of(rng.multinomial(200, rng.dirichlet([0.5] * 4)), 40)] * 2)
    profiles, counts = draw(released, seed, draws=300)
    assert_allclose(profiles.sum(axis=1), 1.0)
    for of_draw, silo in product(counts[::30], range(2)):
        assert of_draw[silo].sum() == 200
        assert_array_equal(units_of(of_draw[silo], 40), released[silo])


def test_known_counts_stay_as_they_are():
    known = np.array([[12.5, 7.5]])
    none = np.zeros(1, dtype=np.int64)
    given = Sources(np.zeros((1, 2), dtype=np.int64), known, none, none, np.ones(1))
    _, counts = draw_behind(given, 0.5, 10, 1, 20, np.random.default_rng(0))
    assert (counts == known).all()


@pytest.mark.statistical
def test_intervals_cover_rare_levels_that_rounded_counts_miss(rng):
    """Four silos of 200 rows, 60 profiles with a rare level: .95 nominal, chance error .03."""
    covered = {"honest": 0, "naive": 0}
    for _ in range(60):
        rare = rng.uniform(0.001, 0.02)
        counts = rng.multinomial(200, [rare, 1 - rare], size=4)
        released = np.array([units_of(row, 40) for row in counts])
        honest, _ = draw(released, int(rng.integers(2**31)), draws=800)
        naive = rng.dirichlet(0.5 + BASE * released.sum(axis=0), 800)
        for name, draws in (("honest", honest), ("naive", naive)):
            lower, upper = highest_density_interval(draws, 0.95)
            covered[name] += lower[0] <= rare <= upper[0]
    assert covered["honest"] >= 50
    assert covered["naive"] <= 10


def test_own_counts_take_the_place_of_the_released_ones(rng, seed):
    """A level that nobody has in the silo leaves as a floor; inside, it is known to be rare."""
    codes = np.stack([np.zeros(200, int), np.arange(200) % 2], axis=1)
    local = known_local(rng, codes, np.zeros(200, int), (2, 2))
    release = release_of(local, "default")
    shared = own_draws(release, 2000, model_of((2, 2), seed), 3, rng)
    shared = np.concatenate([shared, shared], axis=1)
    model = model_of((2, 2), seed)
    found = with_own_counts(shared, release, local.probabilities, np.array([1]), model, 3)
    assert found.shape == shared.shape
    assert_allclose(found.sum(axis=2), 2.0)
    assert_array_equal(found[:, 0], shared[:, 0])
    rare, guessed = found[:, 1, 1].mean(), shared[:, 1, 1].mean()
    assert rare < 0.01 < guessed
    assert found[:, 1, 3].mean() == pytest.approx(0.5, abs=0.02)


def test_own_counts_add_to_those_of_others(rng, seed):
    """Shapes are β + what others said + own: with two such silos, as many rows again."""
    codes = np.stack([np.arange(200) % 2, np.arange(200) % 2], axis=1)
    local = known_local(rng, codes, np.zeros(200, int), (2, 2))
    release = release_of(local, "default")
    twice = draw_levels(PRIOR.beta + np.full((1, 4), 200.0), OFFSETS, rng, 4000)
    model = model_of((2, 2), seed)
    found = with_own_counts(twice, release, local.probabilities, np.array([0]), model, 3)
    _, concentration = fit_dirichlet(found, OFFSETS)
    assert_allclose(concentration, 401, rtol=0.15)


def release_of(local, policy):
    return make_release(
        local, silo="north", place=0, study="", tier="summary", policy=find_policy(policy)
    )
