"""What a policy lets out of numbers: attacks on it, and whether intervals stay honest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.families import posterior
from cases.number_cases import (
    AGE,
    DEFAULT,
    NUMBERS,
    VISITS,
    release_of,
    shard_of,
    two_clusters,
)

from silomix.families import disclosure, make_family
from silomix.families.disclosure import top_code
from silomix.families.release_rounding import Said, round_counts
from silomix.messages.message_checks import breaches, release_problems
from silomix.messages.released_draws import read_said
from silomix.model.schema import Prior, Schema, Shard
from silomix.study.policy import PRESETS, Policy

FAMILY = make_family(NUMBERS, Prior())
ROWS = 203
RULED = [one for one in PRESETS.values() if one.has_rules and one.name != "ukllc"]
every_policy = pytest.mark.parametrize("policy", RULED, ids=lambda policy: policy.name)


def ordinary(seed, rows=ROWS):
    rng = np.random.default_rng(seed)
    return np.c_[rng.normal(0.3, 0.8, rows), rng.poisson(3, rows)]


def units(release):
    """Released sums in steps: (cluster, sum)."""
    policy = Policy(**release.policy)
    sums, place, found = release.mean * FAMILY.repeat(release.concentration), 0, []
    for block in FAMILY.blocks:
        size = int(block.statistics.sum())
        own = sums[:, place : place + size].reshape(len(sums), len(block.variables), -1)[..., 1:]
        found.append((own / disclosure.steps_of(block, policy.round_to)).reshape(len(sums), -1))
        place += size
    return np.concatenate(found, axis=1)


@every_policy
@pytest.mark.parametrize("extreme", [[1e9, 10**9], [-1e9, 0], [10.0, 60]], ids=str)
def test_a_known_outlier_moves_no_sum_by_more_than_one_step(seed, policy, extreme):
    """The attacker knows all rows but one, and the seed, and runs the silo's sampler both ways."""
    rows = ordinary(seed)
    rows[0] = [0.2, 3]
    other = rows.copy()
    other[0] = extreme
    one, two = (release_of(shard_of(NUMBERS, each), policy) for each in (rows, other))
    assert np.abs(units(one) - units(two)).max() <= 1 + 1e-9
    np.testing.assert_array_equal(one.concentration, two.concentration)
    np.testing.assert_array_equal(one.sizes, two.sizes)


def test_without_rules_the_same_attack_succeeds(seed):
    rows = ordinary(seed)
    rows[0] = [10.0, 60]
    open_ = release_of(shard_of(NUMBERS, rows), PRESETS["open"])
    rows[0] = [0.2, 3]
    other = release_of(shard_of(NUMBERS, rows), PRESETS["open"])
    assert abs(open_.mean[0, 2] - other.mean[0, 2]) > 50 / ROWS


@every_policy
def test_an_outlier_is_hidden_where_cells_are_missing_too(rng, seed, policy):
    """Fewer known cells stand behind a sum: each must not count for more."""
    for share in (0.1, 0.3, 0.5, 0.8, 0.94):
        rows = ordinary(seed)
        rows[1:][rng.random((ROWS - 1, 2)) < share] = np.nan
        found = []
        for first in ([-4.0, 0], [1e9, 1e9]):
            rows[0] = first
            member, sizes = np.ones((ROWS, 1)), round_counts(np.array([ROWS]), policy)
            given = shard_of(NUMBERS, rows), member, np.full((1, 2), ROWS), sizes, policy
            found.append(disclosure.disclose(FAMILY, *given))
        one, two = found
        if share >= 0.8 and 0.0 in {one.concentration[0, 0], two.concentration[0, 0]}:
            continue  # at most 40 cells, of which half are top-coded
        np.testing.assert_array_equal(one.concentration, two.concentration)
        for place, reach in ((1, 8.0), (2, 16.0)):
            step = reach * max(1.6, policy.round_to)
            moved = np.abs(one.mean - two.mean)[0, place] * one.concentration[0, 0]
            assert moved <= step * (1 + 1e-9)
        assert disclosure.breach(FAMILY, one.mean, one.concentration, one.known, policy) == ""


@every_policy
def test_fewer_extreme_rows_than_the_minimum_leave_no_trace(seed, policy):
    """Whatever location and scale the study sets: 0, 1 and 9 extreme people leave alike."""
    for rows in (60, 100, ROWS):
        column, leaving = np.sort(ordinary(seed, rows), axis=0), set()
        for few in (0, 1, policy.minimum_count - 1):
            for low, high in ((-1e9, 1e9), (1e9, -1e9), (4.0, 4.0)):
                values = column.copy()
                values[rows - few :] = np.maximum(high, column[rows - few :])
                values[:few] = np.minimum(low, column[:few])
                leaving.add(leaves_of(values, policy))
        assert len(leaving) == 1


def leaves_of(values, policy):
    """What leaves of one cluster with these numbers, (row, number), as bytes."""
    member, sizes = np.ones((len(values), 1)), round_counts(np.array([len(values)]), policy)
    given = shard_of(NUMBERS, values), member, np.full((1, 2), len(values)), sizes, policy
    found = disclosure.disclose(FAMILY, *given)
    return found.mean.tobytes(), found.concentration.tobytes(), found.known.tobytes()


@every_policy
def test_no_number_is_withheld_for_a_few_extreme_rows(policy):
    """A withheld number would tell of them: at 100 rows, neither with nor without one."""
    for number in range(40):
        rng = np.random.default_rng(number)
        for extreme in (None, 1e9):
            values = np.c_[rng.normal(0, 1e-3, 100), rng.poisson(3, 100)]
            values[0, 0] = values[0, 0] if extreme is None else extreme
            member, sizes = np.ones((100, 1)), round_counts(np.array([100]), policy)
            given = shard_of(NUMBERS, values), member, np.full((1, 2), 100.0), sizes, policy
            assert (disclosure.disclose(FAMILY, *given).concentration > 0).all()


def test_ranks_count_the_rows_that_belong():
    """Rows that belong by half count by half."""
    values, weights = np.arange(20.0)[:, None], np.repeat([0.5, 1.0], 10)
    coded, ends = top_code(values, weights, 3)
    assert ends.ravel().tolist() == [5.0, 17.0]
    assert (coded[:5] == 5).all()
    coded, ends = top_code(values, weights, 12)
    assert ends[0] == ends[1]


@every_policy
def test_a_sum_cannot_be_had_back(seed, policy):
    rows = ordinary(seed)
    release = release_of(shard_of(NUMBERS, rows), policy)
    found = units(release)
    np.testing.assert_allclose(found, np.rint(found), atol=1e-9)
    assert np.abs(release.mean[0, 1] * ROWS - rows[:, 0].sum()) > 1e-6


@every_policy
@pytest.mark.parametrize("value", [0.0, 0.31, -2.0])
def test_a_column_with_hardly_any_spread_looks_like_one_with_more(seed, policy, value):
    noise, rows, spread = np.random.default_rng(seed).normal(size=ROWS), ordinary(seed), []
    for sd in (1e-6, 0.04):
        rows[:, 0] = value + sd * noise
        spread.append(release_of(shard_of(NUMBERS, rows), policy))
    _, mean, square = spread[0].mean[0, :3]
    assert square - mean**2 >= 0.05**2 - 1e-12
    assert np.abs(units(spread[0]) - units(spread[1])).max() <= 1 + 1e-9


def of_groups(*values):
    """A column where each value but the first has so many rows: {name: column}."""
    (first, _), *others = values
    column = np.full(ROWS, float(first))
    column[: sum(count for _, count in others)] = np.repeat(*zip(*others, strict=True))
    return column


FEW = {
    "a constant": lambda few: of_groups((0.31, ROWS), (0.31, few)),
    "far beyond the location": lambda few: of_groups((-1e6, ROWS), (1e6, few)),
    "at the location of a tiny scale": lambda few: of_groups((-1e6, ROWS), (1e6, 90), (0.0, few)),
    "beside two clumps": lambda few: of_groups((-1.5, ROWS), (0.3, 12), (4.0, few)),
    "beside two clumps that are no points": lambda few: (
        of_groups((-1.5, ROWS), (0.3, 25), (4.0, few))
        + (np.arange(ROWS) >= few) * np.random.default_rng(few).normal(0, 1e-3, ROWS)
    ),
    "beside a clump with a huge scale": lambda few: np.r_[
        np.full(few, 4.0), np.random.default_rng(few).normal(0, 1e-3, ROWS - few)
    ],
}


@every_policy
@pytest.mark.parametrize("column", FEW.values(), ids=FEW)
def test_a_number_does_not_count_few_rows(seed, policy, column):
    """The study chose location and scale so that its sums count rows: zero and few leave alike."""
    found, rows = [], ordinary(seed)
    for few in (0, 1, policy.minimum_count - 1):
        rows[:, 0] = column(few)
        release = release_of(shard_of(NUMBERS, rows), policy)
        found.append(release.mean.tolist())
    assert found[0] == found[1] == found[2]


@every_policy
@pytest.mark.parametrize("value", [5.0, 40.0])
def test_counts_that_are_nearly_all_alike_do_not_either(seed, policy, value):
    found, rows = [], ordinary(seed)
    for few in (0, 1, policy.minimum_count - 1):
        rows[:, 1] = of_groups((0, ROWS), (value, few))
        release = release_of(shard_of(NUMBERS, rows), policy)
        found.append((release.mean.tolist(), release.concentration.tolist()))
    assert found[0] == found[1] == found[2]


def test_too_few_cells_leave_the_pool_of_the_others_and_say_so(seed):
    rows, rng = ordinary(seed, 300), np.random.default_rng(seed)
    member = np.eye(3)[np.repeat([0, 1, 2], 100)]
    rows[200:291, 0] = np.nan
    sizes = np.full(3, 100)
    given = shard_of(NUMBERS, rows), member, np.full((3, 2), 100.0), sizes, DEFAULT
    found = disclosure.disclose(FAMILY, *given)
    assert found.concentration[:, 0].tolist() == [100, 100, 0]
    np.testing.assert_allclose(found.mean[2, :3], found.mean[:2, :3].mean(axis=0))
    rows[291:, 0] = rng.normal(3, 1, 9)
    again = disclosure.disclose(FAMILY, shard_of(NUMBERS, rows), *given[1:])
    np.testing.assert_array_equal(found.mean, again.mean)
    assert disclosure.breach(FAMILY, found.mean, found.concentration, found.known, DEFAULT) == ""
    rules = {deed.rule: deed.changed for deed in found.deeds if deed.where == "numbers"}
    assert rules["pooled profile"] == 1


def test_made_up_numbers_are_refused(seed):
    """Both doors compute the law: a mean off the grid, too sharp, too far, or a wrong stand-in."""
    release = release_of(shard_of(NUMBERS, ordinary(seed)))
    assert not list(release_problems(release, FAMILY))
    assert not list(breaches(release, DEFAULT, FAMILY))
    wrong = {
        "mean": [(0, 1, 0.0123), (0, 1, 50.0), (0, 2, 0.0), (0, 4, 0.777), (0, 4, 1e6)],
        "concentration": [(0, 0, 201.0), (0, 1, 0.0)],
    }
    for name, changes in wrong.items():
        for cluster, place, value in changes:
            array = getattr(release, name).copy()
            array[cluster, place] += value or -array[cluster, place]
            made = replace(release, **{name: array})
            assert list(breaches(made, DEFAULT, FAMILY)), (name, place, value)


def test_every_rule_says_what_it_did(seed):
    shard = shard_of(NUMBERS, ordinary(seed))
    release, shown = release_of(shard), release_of(shard, inside=True)
    for where in ("numbers", "counts"):
        rules = {check.rule for check in release.checks if check.where == where}
        assert {"values winsorised", "values top-coded by rank", "sums rounded"} <= rules
        assert {"smallest spread", "minimum count"} <= rules
    assert all(check.inside == "" for check in release.checks)
    inside = {check.rule: check.inside for check in shown.checks}
    assert inside["sums rounded"].endswith(", in the units of the study")
    assert inside["minimum count"] == ""


def test_other_clusters_do_not_show_an_outlier_either(seed):
    """A row on its own is a cluster that is folded: what leaves is as if its value were a bound."""
    shard, _ = two_clusters(np.random.default_rng(seed), 400)
    sums = []
    for value in (4.5, 1e6):
        numbers = shard.numbers.copy()
        numbers[0, 0] = value
        release = release_of(Shard(shard.schema, shard.codes, numbers), components=4)
        sums.append(release.mean[:, 3] * release.concentration[:, 1])
    assert len(sums[0]) == len(sums[1]) == 2
    assert np.abs(sums[0] - sums[1]).max() <= 40 * (1 + 1e-9)


def said_by(variable, columns, policy):
    """What silos say that share one cluster: columns (silo, row) of one variable."""
    family, parts = make_family(Schema((variable,)), Prior()), []
    for column in columns:
        shard, rows = shard_of(Schema((variable,)), column[:, None]), len(column)
        sizes = round_counts(np.array([rows]), policy)
        found = disclosure.disclose(
            family, shard, np.ones((rows, 1)), np.full((1, 1), float(rows)), sizes, policy
        )
        base, least = np.array([policy.round_to]), np.array([policy.minimum_count])
        parts.append(Said(found.mean, found.concentration, found.known, base, least))
    return Said._make(map(np.concatenate, zip(*parts, strict=True))), family


TRUTHS = {
    "sd from the prior": (
        AGE,
        lambda rng, _: [rng.uniform(-1, 1), np.sqrt(0.25 / rng.standard_gamma(2.0))],
    ),
    "sd that can be seen": (
        AGE,
        lambda rng, least: [rng.uniform(-1, 1), least * rng.uniform(1.5, 2)],
    ),
    "rate": (VISITS, lambda rng, _: [np.exp(rng.uniform(np.log(0.5), np.log(8)))]),
}


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("policy", [DEFAULT, PRESETS["pcornet"]], ids=lambda policy: policy.name)
@pytest.mark.parametrize("rows", [200, 1000])
@pytest.mark.parametrize("what", TRUTHS)
def test_intervals_allow_for_rounding(what, rows, policy):
    """200 sets: coverage .95 is seen below .90 once in 500, above .98 once in 40; seeds are fixed.

    The mean is flat where it matters, so the prior of the variance given it is inverse-gamma(2,
    .25). Rounded sums taken for exact fail, but for rates of 1000 rows.
    """
    (variable, draw_truth), hits, naive = TRUTHS[what], [], []
    least = np.sqrt(16 * max(1.6, policy.round_to) / rows)
    for number in range(200):
        rng = np.random.default_rng([number, rows, policy.round_to])
        truth = draw_truth(rng, least)
        draw_rows = rng.poisson if what == "rate" else rng.normal
        said, family = said_by(variable, draw_rows(*truth, (4, rows)).astype(float), policy)
        exact = said._replace(base=np.zeros(4, dtype=np.int64))
        for kept, given in ((hits, said), (naive, exact)):
            low, high = np.quantile(
                disclosure.draw_behind(family, given, 400, rng), [0.025, 0.975], axis=0
            )
            kept.append((low <= truth) & (truth <= high))
    cover = np.mean(hits, axis=0)
    assert ((cover >= 0.90) & (cover <= 0.98)).all(), cover
    if what != "rate" or rows == 200:
        assert np.mean(naive, axis=0)[-1] < 0.90


def test_exact_sums_behind_are_the_posterior(seed):
    """Without rules nothing is behind: draws are those of the conjugate posterior."""
    release = release_of(shard_of(NUMBERS, ordinary(seed)), PRESETS["open"])
    drawn = disclosure.draw_behind(FAMILY, read_said(release), 4000, np.random.default_rng(seed))
    said = release.mean * FAMILY.repeat(release.concentration)
    plain = FAMILY.draw(posterior(FAMILY, said), np.random.default_rng(seed + 1), 4000)[:, 0]
    error = plain.std(axis=0) / np.sqrt(4000)
    assert (np.abs(drawn.mean(axis=0) - plain.mean(axis=0)) < 8 * error).all()
