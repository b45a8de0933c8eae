from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cases.families import categories, model_of
from cases.release_cases import PRIOR, clustered, conditions
from scipy.stats import beta, binom

from silomix import local_posterior, sample, simulate
from silomix.errors import PolicyRefusal
from silomix.families.categorical import fit_dirichlet, shares_of
from silomix.messages.released_draws import release_draws, release_medians, weight_shapes
from silomix.model.draws import Trace
from silomix.silo.partition import chain_agreement
from silomix.silo.release import NOT_TOLD, make_release
from silomix.study.policy import OPEN, PRESETS, Policy, echo

FALSE_ALARM = 1e-4
DEFAULT = PRESETS["default"]
WITH_DRAWS = Policy(name="with draws", tiers=("summary", "draws"))


def two_chains(rng):
    """Clusters of 30 and 20 rows; in one of two chains a few rows sit with the others."""
    local = clustered(rng, [30, 20], (2, 3))
    labels = np.array(local.draws.labels)
    labels[200:, 25:32] = 1
    traces = dict(local.draws.diagnostics.traces)
    occupied = np.ones((2, 200))
    occupied[1, 7] = local.draws.components
    traces["occupied"] = Trace(occupied, 1.0, 400.0)
    draws = replace(
        local.draws,
        labels=labels,
        chain=np.repeat([0, 1], 200),
        diagnostics=replace(local.draws.diagnostics, traces=traces),
    )
    agreement = chain_agreement(draws, 2)
    return replace(local, draws=draws, partition=replace(local.partition, agreement=agreement))


def _effective(release):
    return release.mean * np.repeat(release.concentration, [2, 3], axis=1)


def release_of(local, policy=OPEN, tier="summary"):
    return make_release(local, silo="north", place=1, study="s" * 64, tier=tier, policy=policy)


class TestOpen:
    def test_draws_leave_as_they_are(self, seed):
        local = clustered(np.random.default_rng(seed), [30, 4], (2, 3))
        release = release_of(local, tier="draws")
        offsets, own = np.array([0, 2, 5]), PRIOR.share(3)[1]
        mean, concentration = fit_dirichlet(local.probabilities, offsets)
        np.testing.assert_array_equal(release.weights, local.weights)
        np.testing.assert_array_equal(release.parameters, local.probabilities)
        assert (release.sizes == [30, 4]).all()
        assert release.rows == 34
        counts = mean * np.repeat(concentration, [2, 3], axis=1) - own
        np.testing.assert_allclose(_effective(release), np.maximum(counts, 0.0), atol=1e-9)
        totals = np.add.reduceat(np.maximum(counts, 0.0), offsets[:-1], axis=1)
        np.testing.assert_allclose(release.concentration, totals)
        assert (release_medians(release, None) == np.median(local.probabilities, axis=0)).all()
        assert release.policy == echo(OPEN)
        assert release.checks == ()
        assert release.diagnostics.rhat == {"log_likelihood": 1.00123}

    def test_summary_medians_are_those_of_the_fitted_dirichlets(self, seed):
        local = clustered(np.random.default_rng(seed), [300, 200], (2, 3), draws=4000)
        release = release_of(local)
        assert release.weights is None
        assert release.parameters is None
        found = release_medians(release, local.draws.silo_family)
        expected = np.median(local.probabilities, axis=0)
        np.testing.assert_allclose(found, expected, atol=4 / np.sqrt(4000 * 200))


def said(mean, concentration):
    return SimpleNamespace(mean=mean, concentration=concentration, parameters=None)


class TestMedians:
    def test_of_extreme_profiles_are_numbers(self):
        mean = np.array([[0.0, 1.0], [1e-9, 1 - 1e-9], [0.5, 0.5]])
        for concentration in (0.0, 1e-3, 1.0, 1e9):
            for own in (0.0, 0.5, 1e9):
                known, family = np.full((3, 1), concentration), categories((2,), own)
                found = release_medians(said(mean, known), family)
                assert np.isfinite(found).all()
                assert ((found >= 0) & (found <= 1)).all()
        # the prior is put back
        shares, known = np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([[10.0], [0.0]])
        found = release_medians(said(shares, known), categories((2,)))
        expected = [[beta.median(2.5, 8.5), beta.median(8.5, 2.5)], [0.5, 0.5]]
        np.testing.assert_allclose(found, expected)


class TestWithoutPrior:
    OFFSETS = np.array([0, 2, 5])
    FAMILY = categories((2, 3))

    def test_what_is_left_are_the_counts(self):
        counts = np.array([[3.0, 7.0, 0.0, 4.0, 6.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
        for own in (0.1, 1.0, 16.0):
            totals = np.add.reduceat(counts + own, [0, 2], axis=1)
            posterior = (counts + own) / np.repeat(totals, [2, 3], axis=1)
            left = posterior * np.repeat(totals, [2, 3], axis=1) - own
            mean, concentration = self.FAMILY.means(self.FAMILY.valid(left))
            found = mean * self.FAMILY.repeat(concentration)
            np.testing.assert_allclose(found, counts, atol=1e-12)
            np.testing.assert_allclose(concentration, [[10, 10], [0, 1]], atol=1e-12)
        # counts are never negative, and shares of none are equal
        profile, concentration = np.array([[0.01, 0.99, 0.2, 0.4, 0.4]]), np.array([[10.0, 1.0]])
        left = profile * np.repeat(concentration, [2, 3], axis=1) - 0.5
        mean, concentration = self.FAMILY.means(self.FAMILY.valid(left))
        np.testing.assert_allclose(mean, [[0.0, 1.0, 1 / 3, 1 / 3, 1 / 3]])
        np.testing.assert_allclose(concentration, [[9.4, 0.0]])
        found = shares_of(np.array([[0.0, 0.0, 1.0, 3.0, 0.0]]), self.OFFSETS)
        np.testing.assert_allclose(found, [[0.5, 0.5, 0.25, 0.75, 0.0]])


class TestPolicy:
    def test_rows_are_the_sum_of_the_released_sizes_and_whether_any_was_folded_is_not_said(
        self, seed
    ):
        """Else a condition that makes a cluster of its own is told from one that nobody has."""
        with_small, without = (
            clustered(np.random.default_rng(seed), members, (2, 3))
            for members in ([52, 43, 7], [52, 43])
        )
        release = release_of(with_small, DEFAULT)
        assert sorted(release.sizes) in ([45, 60], [50, 50])  # by which of them is nearer
        assert release.rows == release.sizes.sum()
        assert release.policy == echo(DEFAULT)
        assert release.diagnostics == NOT_TOLD
        folding = release.checks[0]
        assert (folding.result, folding.changed, folding.inside) == ("applied", None, "")
        assert folding == release_of(without, DEFAULT).checks[0]
        told = {"silo": "n", "place": 0, "study": "s", "tier": "summary", "policy": DEFAULT}
        inside = make_release(with_small, **told, inside=True).checks[0]
        assert inside.changed == 1
        assert "clusters of 7 rows" in inside.inside

    def test_nothing_is_told_of_the_run(self, rng):
        local = clustered(rng, [52, 43], (2, 3))
        assert release_of(local, DEFAULT).diagnostics == NOT_TOLD
        assert release_of(local, OPEN).diagnostics.rhat
        assert make_release(local, silo="a", place=0, study="", policy=DEFAULT, tier="summary",
                            inside=True).diagnostics.rhat  # fmt: skip

    def test_draws_of_a_summary_spread_as_released(self, rng):
        release = release_of(clustered(rng, [520, 430], (2, 3)), DEFAULT)
        drawn = release_draws(release, 4000, model_of((2, 3), 0), 3, rng)
        shapes = weight_shapes(release, PRIOR.share(3)[0])
        with_prior = _effective(release) + PRIOR.share(3)[1]
        sums = np.repeat(np.add.reduceat(with_prior, [0, 2], axis=1), [2, 3], axis=1)
        means, totals = (shapes / shapes.sum(), with_prior / sums), (shapes.sum(), sums)
        # counts of ten and more: kurtosis below 4, so five standard errors of a variance
        limit = 5 * np.sqrt((4 - 1) / 4000)
        for values, mean, total in zip(drawn, means, totals, strict=True):
            ratio = values.var(axis=0) / (mean * (1 - mean) / (total + 1))
            assert (np.abs(ratio - 1) < limit).all()
            assert (np.abs(2 * ratio - 1) > limit).all()  # twice the rows would be seen

    def test_weights_are_as_sure_as_profiles_say(self, rng):
        """Silent ones and full ones stand for the step below the rows: its middle is taken."""
        silent = release_of(clustered(rng, [14, 12], (2, 3)), DEFAULT)
        full = release_of(clustered(rng, [140, 120], (2, 3)), DEFAULT)
        assert (silent.concentration == 0).all()
        assert (full.concentration == full.sizes[:, None]).all()
        for release in (silent, full):
            worth = weight_shapes(release, 0.5) / (release.sizes + 0.5)
            np.testing.assert_allclose(worth, 2 ** (-2.2 / 4))
        sure = {"sizes": np.array([15, 15]), "concentration": np.array([[0, 15.0], [7.5, 0]])}
        without_rules = replace(full, policy=echo(OPEN), known=np.full((2, 2), 15), **sure)
        np.testing.assert_allclose(weight_shapes(without_rules, 0.5), 15.5 * (1 + 0.25) / 2)

    def test_too_few_rows_are_refused(self, seed):
        local = clustered(np.random.default_rng(seed), [9], (2,))
        with pytest.raises(PolicyRefusal, match="9 rows") as error:
            release_of(local, DEFAULT)
        assert error.value.code == "too-few-rows"
        assert release_of(local).rows == 9

    def test_draws_leave_only_where_the_policy_says_so(self, seed):
        local = clustered(np.random.default_rng(seed), [52, 43, 7], (2, 3))
        with pytest.raises(PolicyRefusal, match="tier 'draws'"):
            release_of(local, DEFAULT, "draws")
        release = release_of(local, WITH_DRAWS, "draws")
        ruled = release_of(local, WITH_DRAWS)
        assert release.parameters.shape == (400, 2, 5)
        assert (release.sizes == ruled.sizes).all()
        assert (release.mean == ruled.mean).all()


def attack(release, _):
    """Return the guesses of how many people have each condition: (condition,).

    The prior is out of the mean already.
    """
    return np.rint(release.mean[0, 1::2] * release.sizes[0])


SHIFTS = range(-3, 4)


def attack_draws(release, own):
    """The same from the draws alone: the posterior mean is (count + β)/(size + 2β)."""
    mean = release.parameters.mean(axis=0, dtype=np.float64)[0, 1::2]
    return np.rint(mean * (release.sizes[0] + 2 * own) - own)


@pytest.mark.parametrize(("separability", "error"), [("easy", 0.1), ("poor", 0.2)])
def test_weights_made_again_from_a_summary_spread_as_the_draws_did(separability, error):
    """Doubt about labels included; the square is a rule of thumb, good to a fifth."""
    table, _ = simulate("homogeneous", separability=separability, rows=1000, silos=1, seed=2)
    local = local_posterior(
        sample(table.drop(columns="silo"), iterations=6000, seed=2, progress=False)
    )
    release = make_release(local, silo="here", place=0, study="", tier="summary")
    rng, own = np.random.default_rng(0), local.weights.std(axis=0)
    made, sure = (
        np.exp(np.log(rng.dirichlet(shapes, 4000).std(axis=0) / own).mean())
        for shapes in (weight_shapes(release, PRIOR.alpha), release.sizes + PRIOR.alpha)
    )
    assert made == pytest.approx(1.0, abs=error)
    assert (sure < 0.75) == (separability == "poor")


@pytest.mark.statistical
class TestAttack:
    """Recover how many people have a condition that one in twenty has."""

    def cases(self, seed, policy, tier, guess):
        """Errors of the guesses, and the true counts."""
        rng = np.random.default_rng([seed, 9])
        errors, truth = [], []
        for rows in rng.integers(400, 1500, 15):
            local, counts = conditions(rng, int(rows), 30, draws=1000)
            release = release_of(local, policy, tier)
            errors.append(guess(release, PRIOR.share(3)[1]) - counts)
            truth.append(counts)
        return np.concatenate(errors), np.concatenate(truth)

    @pytest.mark.parametrize(
        ("tier", "guess"), [("summary", attack), ("draws", attack), ("draws", attack_draws)]
    )
    def test_succeeds_without_a_policy(self, seed, tier, guess):
        errors, _ = self.cases(seed, OPEN, tier, guess)
        assert (np.abs(errors) <= 1).mean() > 0.95

    @pytest.mark.parametrize(("base", "hidden"), [(5, True), (2, False)], ids=["rule", "teeth"])
    def test_succeeds_no_better_than_rounding_allows_with_one(self, seed, base, hidden):
        """To the nearest five, five counts round to the same; to the nearest two, too few."""
        policy = Policy(name="rounds", minimum_count=10, round_to=base)
        errors, truth = self.cases(seed, policy, "summary", attack)
        kept = errors[truth > 15]  # where rounding, and not the minimum, is what hides the count
        assert len(kept) > 300
        # an attacker may correct the guesses as well as can be
        hits = max(int((np.rint(kept) == shift).sum()) for shift in SHIFTS)
        most = binom.ppf(1 - FALSE_ALARM / len(SHIFTS), len(kept), 1 / 5)
        assert (hits <= most) == hidden

    def test_draws_defeat_the_rounding(self, seed):
        errors, _ = self.cases(seed, WITH_DRAWS, "draws", attack_draws)
        assert (np.abs(errors) <= 1).mean() > 0.9
