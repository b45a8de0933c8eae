"""Outside variables: the paper's tests against its table and SciPy, the averaged against truth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import run
from cases.posteriors import SCHEMA, SILOS, make_posterior
from scipy import special, stats
from statistical.exact import FALSE_ALARM

import silomix
from silomix.errors import DataError, DataWarning, SettingsError
from silomix.model.reading import read_table
from silomix.model.schema import Schema, Shard, Variable
from silomix.posterior.membership import ELSEWHERE, encoded_membership
from silomix.posterior.outside_estimates import (
    Target,
    compare_labels,
    compare_memberships,
    compare_shares,
    regress,
)
from silomix.report.outside_variables import compare_outside, read_outside

ROWS = 289_821
FEMALE, DEAD = 187_402, 139_288
"""Rows of the paper's cohort, and counts that its shares round to (64.7% and, unprinted, 48.1%)."""

TABLE_11 = [
    # having, rows, p value as printed
    (FEMALE, [(62, 89, 0.3810), (150, 215, 0.1351), (19, 31, 0.8378), (44, 61, 0.2773)]),
    (FEMALE, [(67, 100, 0.7006), (304, 478, 0.6615), (161, 233, 0.1777), (58, 92, 0.8294)]),
    (FEMALE, [(52, 66, 0.0231), (166, 263, 0.6463), (627, 1000, 0.2069)]),
    (DEAD, [(54, 89, 0.0229), (122, 215, 0.0132), (17, 31, 0.5649), (36, 61, 0.1131)]),
    (DEAD, [(65, 100, 0.0010), (153, 259, 0.0005), (57, 92, 0.0104), (44, 66, 0.0037)]),
]
"""Fendler et al. (2026), table 11: sex and mortality of the small clusters, whose shares of two
decimals leave no more than a few counts to choose from."""
ROUNDED = 0.00005


@pytest.mark.parametrize(("in_all", "clusters"), TABLE_11)
def test_the_z_test_gives_the_p_values_that_the_paper_prints(in_all, clusters):
    """It compares with the whole, the cluster included: against the rest they are not met."""
    having, rows, printed = map(np.array, zip(*clusters, strict=True))
    _, _, p_value = compare_shares(having, rows, in_all, ROWS, 0.95)
    assert np.abs(p_value - printed).max() < ROUNDED
    _, _, of_rest = compare_shares(having, rows, in_all - having, ROWS - rows, 0.95)
    # one group of deaths has p values that round alike under both readings
    assert np.abs(of_rest - printed).max() > ROUNDED or in_all == DEAD


@pytest.mark.parametrize("level", [None, "yes"])
def test_labels_are_compared_as_scipy_compares_them(rng, level):
    """Means by Welch's t-test, shares by χ² with Yates's correction, each against all rows."""
    labels = rng.integers(0, 4, 300)
    values = rng.normal(labels, 1 + labels)
    if level:
        values = (rng.random(300) < 0.2 + 0.1 * labels).astype(float)
    values[rng.random(300) < 0.1] = np.nan
    found = compare_labels(Target("y", level, values), labels, 4, 0.9)
    everyone = values[~np.isnan(values)]
    for cluster in range(4):
        here = values[(labels == cluster) & ~np.isnan(values)]
        assert found.rows[cluster] == len(here)
        assert found.estimate[cluster] == pytest.approx(here.mean())
        if level:
            counts = [[y.sum(), (1 - y).sum()] for y in (here, everyone)]
            expected = stats.chi2_contingency(counts, correction=True)
            share = stats.binomtest(int(here.sum()), len(here))
            own = share.proportion_ci(0.9, method="wilson")
        else:
            expected = stats.ttest_ind(here, everyone, equal_var=False)
            interval = found.lower[cluster], found.upper[cluster]
            assert interval == pytest.approx(tuple(expected.confidence_interval(0.9)))
            own = stats.ttest_1samp(here, 0).confidence_interval(0.9)
        reach = found.estimate_lower[cluster], found.estimate_upper[cluster]
        assert reach == pytest.approx(tuple(own))
        assert found.p_value[cluster] == pytest.approx(expected.pvalue)
    assert found.whole == pytest.approx(everyone.mean())


def test_the_interval_of_a_share_is_wald_s_with_the_correction():
    """By hand for 15 of 50 against 25 of 50; one all the way up stops at one."""
    lower, upper, _ = compare_shares(np.array([15.0]), np.array([50.0]), 25, 50, 0.95)
    half = stats.norm.ppf(0.975) * np.sqrt(0.3 * 0.7 / 50 + 0.5 * 0.5 / 50) + 0.5 * (2 / 50)
    assert [lower[0], upper[0]] == pytest.approx([-0.2 - half, -0.2 + half])
    assert compare_shares(np.array([2.0]), np.array([2.0]), 1, 9, 0.95)[1] == 1


def soft(rng, rows=400, clusters=3):
    return rng.dirichlet(np.full(clusters, 0.5), rows)


def mean_of(values):
    return Target("y", None, values)


def test_sure_memberships_are_compared_as_by_welch_with_the_rest(rng):
    """A cluster of three rows, where a correction for pooling would double the interval."""
    labels = (np.arange(40) > 2).astype(int)
    values = rng.normal(labels, 1 + 2 * labels)
    shares = np.eye(2)[labels]
    (found,) = compare_memberships([mean_of(values)], iter([shares] * 5), 0.95)
    expected = stats.ttest_ind(values[labels == 0], values[labels == 1], equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.p_value[0] == pytest.approx(expected.pvalue)
    assert [found.lower[0], found.upper[0]] == pytest.approx([interval.low, interval.high])
    own = stats.ttest_1samp(values[labels == 0], 0).confidence_interval(0.95)
    reach = found.estimate_lower[0], found.estimate_upper[0]
    assert reach == pytest.approx(tuple(own))
    alone = regress(shares, mean_of(values))
    assert alone.difference[0] / np.sqrt(alone.error[0]) == pytest.approx(expected.statistic)
    assert alone.freedom == pytest.approx(expected.df)


def test_sure_shares_are_compared_as_by_chi_square_with_the_rest(rng):
    """Their intervals are Wilson's and, but for the spread among the rest, Newcombe's."""
    labels = rng.integers(0, 3, 90)
    values = (rng.random(90) < 0.3 + 0.2 * labels).astype(float)
    shares, target = np.eye(3)[labels], Target("y", "yes", values)
    (found,) = compare_memberships([target], iter([shares] * 2), 0.95)
    for cluster in range(3):
        sides = values[labels == cluster], values[labels != cluster]
        counts = [[y.sum(), (1 - y).sum()] for y in sides]
        expected = stats.chi2_contingency(counts, correction=False).pvalue
        assert found.p_value[cluster] == pytest.approx(expected)
        difference = sides[0].mean() - sides[1].mean()
        assert found.difference[cluster] == pytest.approx(difference)
        ways = [stats.binomtest(int(y.sum()), len(y)).proportion_ci(0.95, "wilson") for y in sides]
        reach = found.estimate_lower[cluster], found.estimate_upper[cluster]
        assert reach == pytest.approx(tuple(ways[0]))
        (low, high), (least, most) = ways
        down = np.hypot(sides[0].mean() - low, most - sides[1].mean())
        up = np.hypot(high - sides[0].mean(), sides[1].mean() - least)
        interval = [found.lower[cluster], found.upper[cluster]]
        assert interval == pytest.approx([difference - down, difference + up], abs=0.01)
    halves = np.eye(2)[np.arange(90) % 2]
    alone = regress(halves, target)
    tamed = (45 * alone.estimate + 4 * values.mean()) / 49
    np.testing.assert_allclose(alone.error, (tamed * (1 - tamed) / 45).sum())


def test_a_rare_level_of_one_of_many_clusters_is_compared_as_by_newcombe():
    """3 of 200 against 0 of 2200 in eleven other clusters: 0.005 to 0.043, not below 0."""
    values, shares = np.zeros(2400), np.eye(12)[np.arange(2400) // 200]
    values[:3] = 1.0
    (found,) = compare_memberships([Target("y", "yes", values)], iter([shares] * 2), 0.95)
    low, high = stats.binomtest(3, 200).proportion_ci(0.95, "wilson")
    most = stats.binomtest(0, 2200).proportion_ci(0.95, "wilson").high
    expected = [0.015 - np.hypot(0.015 - low, most), high]
    assert [found.lower[0], found.upper[0]] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("rows", "share", "whole"), [(50, 0.03, 0.15), (150, 0.01, 0.1)])
def test_intervals_of_rare_levels_cover(rows, share, whole):
    """Exactly, over all counts in the cluster; around the share itself they cover 78 %."""
    counts = np.arange(12)
    weight = stats.binom.pmf(counts, rows, share)
    covered = np.zeros(2)
    having = round(whole * 1000)
    for count, mass in zip(counts, weight, strict=True):
        values = np.r_[np.arange(rows) < count, np.arange(1000) < having].astype(float)
        shares = np.eye(2)[np.r_[np.zeros(rows, int), np.ones(1000, int)]]
        (found,) = compare_memberships([Target("y", "yes", values)], iter([shares] * 2), 0.95)
        own = found.estimate_lower[0] <= share <= found.estimate_upper[0]
        apart = found.lower[0] <= share - whole <= found.upper[0]
        covered += mass * np.array([own, apart])
    assert (covered / weight.sum() > 0.93).all()


def test_intervals_of_rare_levels_cover_where_rows_are_doubtful(rng):
    """Of a level that one in a hundred has and one in three elsewhere, 12 % of labels wrong."""
    labels, missed = np.repeat([0, 1], [100, 300]), np.zeros(2)
    for _ in range(400):
        values = (rng.random(400) < np.array([0.01, 0.3])[labels]).astype(float)
        logits = 1.5 * (1.5 * np.eye(2)[labels] + rng.normal(size=(400, 2))) + np.log([0.25, 0.75])
        shares = special.softmax(logits, axis=1)
        (found,) = compare_memberships([Target("y", "yes", values)], iter([shares] * 2), 0.95)
        missed += found.estimate_lower[0] > 0.01, found.lower[0] > -0.29
    assert (missed / 400 < 0.05).all()


def test_the_interval_of_a_difference_is_newcombe_s_on_both_sides():
    """Of unequal shares in unequal numbers of rows, where its two arms differ."""
    values = np.r_[np.arange(40) < 36, np.arange(400) < 20].astype(float)
    shares = np.eye(2)[np.repeat([0, 1], [40, 400])]
    (found,) = compare_memberships([Target("y", "yes", values)], iter([shares] * 2), 0.95)
    (low, high), (least, most) = (
        stats.binomtest(*counts).proportion_ci(0.95, "wilson") for counts in ((36, 40), (20, 400))
    )
    down, up = np.hypot(0.9 - low, most - 0.05), np.hypot(high - 0.9, 0.05 - least)
    interval = [found.lower[0], found.upper[0]]
    assert interval == pytest.approx([0.85 - down, 0.85 + up], abs=2e-3)


def test_a_small_cluster_whose_rows_all_agree_is_not_sure_to_differ():
    """Five of five where the others have six in ten: Welch on zeros and ones would be certain."""
    values = np.r_[np.ones(5), np.tile([1, 1, 1, 0, 0], 100)]
    shares = np.eye(2)[np.r_[np.zeros(5, int), np.ones(500, int)]]
    (found,) = compare_memberships([Target("y", "yes", values)], iter([shares] * 2), 0.95)
    assert found.p_value[0] == pytest.approx(0.6**5, rel=0.2)
    assert found.lower[0] < 0 < found.upper[0]
    welch = regress(shares, mean_of(values))
    assert welch.difference[0] / np.sqrt(welch.error[0]) > 15


def test_the_estimate_is_that_of_bolck_croon_and_hagenaars(rng):
    """Their steps as published: classification errors, then weights that undo them."""
    shares, values = soft(rng), rng.normal(size=400)
    sizes = shares.sum(axis=0)
    classified = np.array(
        [[(shares[:, c] * shares[:, s]).sum() / sizes[c] for s in range(3)] for c in range(3)]
    )
    weights = shares @ np.linalg.inv(classified)
    expected = (weights * values[:, None]).sum(axis=0) / weights.sum(axis=0)
    found = regress(shares, mean_of(values))
    np.testing.assert_allclose(found.estimate, expected)
    np.testing.assert_allclose(found.estimate @ sizes / 400, values.mean())


def test_draws_are_pooled_by_rubin_s_rules(rng):
    memberships = [soft(rng) for _ in range(4)]
    values = rng.normal(size=400)
    (found,) = compare_memberships([mean_of(values)], iter(memberships), 0.95)
    draws = [regress(shares, mean_of(values)) for shares in memberships]
    for cluster in range(3):
        ours = np.array([draw.difference[cluster] for draw in draws])
        between = 1.25 * np.var(ours, ddof=1)
        total = np.mean([draw.error[cluster] for draw in draws]) + between
        lost, known = between / total, np.mean([draw.freedom[cluster] for draw in draws])
        observed = (known + 1) / (known + 3) * known * (1 - lost)
        freedom = 1 / (1 / (3 / lost**2) + 1 / observed)
        expected = 2 * stats.t.sf(abs(ours.mean()) / np.sqrt(total), freedom)
        assert found.p_value[cluster] == pytest.approx(expected)
        assert found.difference[cluster] == pytest.approx(ours.mean())
        half = stats.t.ppf(0.975, freedom) * np.sqrt(total)
        assert found.upper[cluster] - found.difference[cluster] == pytest.approx(half)


def test_shares_stay_between_nothing_and_all(rng):
    """Clusters that hardly differ, in which a regression alone passes both bounds."""
    shares = 0.5 + 0.02 * (rng.random((300, 1)) - 0.5) * [1, -1]
    values = (rng.random(300) < 0.1).astype(float)
    target = Target("y", "yes", values)
    free = regress(shares, target).estimate
    assert free.min() < 0
    (found,) = compare_memberships([target], iter([shares] * 2), 0.95)
    for part, least in ((found.estimate, 0), (found.lower, -1), (found.upper, -1)):
        assert part.min() >= least
        assert part.max() <= 1
    rest = found.estimate - found.difference
    assert rest.min() >= -1e-12
    assert rest.max() <= 1
    assert np.all((found.lower <= found.difference) & (found.difference <= found.upper))
    assert np.all(found.p_value > 0.001)
    # those inside the bounds are as they were
    shares = np.eye(2)[np.arange(300) % 2]
    (inside,) = compare_memberships([target], iter([shares] * 2), 0.95)
    np.testing.assert_allclose(inside.estimate, regress(shares, target).estimate)


def random_rows(rng, schema, rows):
    return pd.DataFrame({v.name: rng.choice(v.levels, rows) for v in schema.variables})


OVERLAPPING = Schema(tuple(Variable(f"x{q}", ("0", "1")) for q in range(8)))
WEIGHTS = np.array([0.5, 0.3, 0.2])
MEANS = np.array([0.0, 1.0, 2.0])
TRUE = (MEANS - WEIGHTS @ MEANS) / (1 - WEIGHTS)
"""Differences from the rest of the population."""


def overlapping(rng, rows):
    """Rows of three clusters that overlap, and a posterior of them: draws given the labels.

    About one row in four has another cluster as its most probable one.
    """
    having = np.array([[0.3] * 8, [0.7] * 4 + [0.4] * 4, [0.4] * 4 + [0.8] * 4])
    labels = rng.choice(3, rows, p=WEIGHTS)
    codes = (rng.random((rows, 8)) < having[labels]).astype(np.uint8)
    members = np.eye(3)[labels]
    draws = rng.beta(members.T @ codes + 0.5, members.T @ (1 - codes) + 0.5, (20, 3, 8))
    weights = rng.dirichlet(members.sum(axis=0) + 0.5, 20)
    posterior = make_posterior(
        rng,
        schema=OVERLAPPING,
        weights=weights,
        weights_by_silo=np.stack([weights, weights], axis=1),
        profile_draws=np.stack([1 - draws, draws], axis=3).reshape(20, 3, 16),
    )
    return posterior, labels, codes


def compare_overlapping(posterior, codes, values):
    rows = Shard(posterior.study.table_schema, codes), np.full(len(codes), ELSEWHERE), 1
    made = [encoded_membership(posterior, *rows, draw).membership for draw in range(20)]
    targets = [
        Target(str(place), "yes" if set(y) == {0, 1} else None, y) for place, y in enumerate(values)
    ]
    most = np.mean(made, axis=0).argmax(axis=1)
    return (
        compare_memberships(targets, iter(made), 0.95),
        [compare_labels(target, most, 3, 0.95) for target in targets],
        most,
    )


@pytest.mark.statistical
@pytest.mark.parametrize("binary", [False, True])
def test_p_values_of_an_unrelated_variable_are_uniform(rng, binary):
    """Kolmogorov-Smirnov, false alarms at FALSE_ALARM for each cluster; a related one fails it."""
    posterior, labels, codes = overlapping(rng, 600)

    def p_values(effect, variables):
        values = rng.normal(size=(variables, 600)) + effect * MEANS[labels]
        values = (values > 0.5).astype(float) if binary else values
        return np.array([one.p_value for one in compare_overlapping(posterior, codes, values)[0]])

    assert min(stats.kstest(p_values(0.0, 80), "uniform").pvalue) > FALSE_ALARM
    assert stats.kstest(p_values(0.5, 20)[:, 0], "uniform").pvalue < FALSE_ALARM


@pytest.mark.statistical
def test_intervals_cover_the_truth_where_those_of_labels_do_not(rng):
    """Coverage not below 95%, false alarms at FALSE_ALARM; labels fail, and shrink differences."""
    means, shares, own_means, own_shares, of_labels, wrong = ([] for _ in range(6))
    for _ in range(60):
        posterior, labels, codes = overlapping(rng, 800)
        related = [
            MEANS[labels] + rng.normal(size=800),
            (rng.random(800) < 0.2 + 0.3 * MEANS[labels]).astype(float),
        ]
        (mean, share), (labelled, _), most = compare_overlapping(posterior, codes, related)
        means.append([mean.lower, mean.difference, mean.upper])
        shares.append([share.lower, share.difference, share.upper])
        own_means.append([mean.estimate_lower, mean.estimate, mean.estimate_upper])
        own_shares.append([share.estimate_lower, share.estimate, share.estimate_upper])
        of_labels.append(labelled.estimate[2] - np.mean(related[0][most != 2]))
        wrong.append(np.mean(most != labels))
    assert 0.15 < np.mean(wrong) < 0.35
    truths = TRUE, 0.3 * TRUE, MEANS, 0.2 + 0.3 * MEANS
    for lines, truth in zip((means, shares, own_means, own_shares), truths, strict=True):
        found = np.array(lines)
        hits = ((found[:, 0] < truth) & (found[:, 2] > truth)).sum(axis=0)
        for cluster in range(3):
            at_least = stats.binomtest(int(hits[cluster]), 60, 0.95, alternative="less")
            assert at_least.pvalue > FALSE_ALARM / 3
        assert min(stats.ttest_1samp(found[:, 1], truth).pvalue) > FALSE_ALARM / 3
    assert stats.ttest_1samp(of_labels, TRUE[2], alternative="less").pvalue < FALSE_ALARM


@pytest.fixture
def table(rng):
    rows = random_rows(rng, SCHEMA, 40)
    return rows.assign(
        silo=rng.choice(SILOS, 40),
        age=np.where(np.arange(40) < 3, np.nan, rng.normal(80, 5, 40)),
        died=rng.integers(0, 2, 40),
        region=rng.choice(["east", "north", "west"], 40),
    )


@pytest.fixture
def posterior(rng):
    return make_posterior(rng)


def test_kinds_follow_the_values_unless_they_are_given(table):
    def levels(frame, columns):
        return [target.level for target in read_outside(read_table(frame), columns)]

    found = levels(table, ["age", "died", "region"])
    assert found == [None, "1", "east", "north", "west"]
    assert levels(table, {"died": "mean"}) == [None]
    assert levels(table, {"died": "0", "region": "west"}) == ["0", "west"]
    with pytest.raises(DataError, match="'west'"):
        levels(table, {"region": "West"})
    wards = table.assign(ward=np.arange(40) % 3)
    assert levels(wards, "ward") == [None]
    assert levels(wards, {"ward": "levels"}) == ["0", "1", "2"]
    declared = wards.astype({"ward": pd.CategoricalDtype([2, 1, 0])})
    assert levels(declared, ["ward"]) == ["2", "1", "0"]


@pytest.mark.parametrize("method", ["averaged", "labels"])
def test_rows_without_a_value_are_left_out_and_counted(table, posterior, method):
    found = compare_outside(posterior, table, ["age", "died"], "silo", method=method)
    assert found.missing == {"age": 3, "died": 0}
    alone = compare_outside(posterior, table.iloc[3:], "age", "silo", method=method)
    np.testing.assert_allclose(found.comparisons[0].p_value, alone.comparisons[0].p_value)
    assert found.comparisons[0].rows.sum() == pytest.approx(37)
    assert "age; 3 of 40 rows left out: no value" in repr(found)
    with pytest.warns(DataWarning, match="'age'"):
        compare_outside(posterior, table.fillna({"age": -9}), "age", "silo", method=method)
    coded = {"table": table.fillna({"age": -9}), "silo": "silo", "na_values": {"age": -9}}
    again = compare_outside(posterior, columns=["age", "died"], method=method, **coded)
    assert again.frame().equals(found.frame())
    if method == "averaged":  # the silos' own weights count
        overall = compare_outside(posterior, table.drop(columns="silo"), "age")
        assert np.abs(overall.comparisons[0].rows - found.comparisons[0].rows).max() > 0.01


def test_a_cluster_without_rows_or_rest_is_not_tested(table, posterior, rng):
    assert compare_outside(make_posterior(rng, clusters=1), table, "age", "silo").tests == 0
    labels = np.arange(40) % 2
    found = compare_outside(posterior, table, ["age", "died"], method="labels", labels=labels)
    assert found.tests == 4
    for one in found.comparisons:
        assert np.isnan(one.p_value[2])
    assert "–" in repr(found)
    empty = np.column_stack([np.eye(2)[labels], np.zeros(40)])
    target = Target("died", "1", table["died"].to_numpy(float))
    (one,) = compare_memberships([target], iter([empty, empty]), 0.95)
    assert np.isnan(one.p_value).tolist() == [False, False, True]
    assert np.isnan(one.estimate).tolist() == [False, False, True]


def test_frames_are_tidy_or_wide(table, posterior):
    found = compare_outside(posterior, table, ["age", "died"], "silo")
    tidy = found.frame()
    assert tidy.columns.tolist() == [
        *("variable", "level_name", "cluster", "rows", "estimate", "estimate_lower"),
        *("estimate_upper", "whole", "against", "difference", "lower", "upper", "interval"),
        *("p_value", "significant", "method"),
    ]
    assert len(tidy) == 6
    assert (tidy["significant"] == (tidy["p_value"] <= found.threshold)).all()
    wide = found.frame("wide", frame_like="polars")
    assert wide.columns == ["cluster", "age", "age, p value", "died = 1", "died = 1, p value"]
    assert wide["age"].to_list() == tidy["estimate"][:3].tolist()


def test_it_prints_what_it_found(table, posterior, rng):
    sure = table.assign(age=np.where(np.arange(40) % 2, 90.0, 80.0) + rng.random(40))
    labels = np.arange(40) % 2
    text = repr(compare_outside(posterior, sure, "age", method="labels", labels=labels))
    assert text.count("<0.0001 *") == 2
    named = posterior.with_names({1: "frail, renal"})
    text = repr(compare_outside(named, table, "age", "silo"))
    (head,) = (line for line in text.splitlines() if "   rows " in line)
    lines = [line for line in text.splitlines() if line.startswith((" 0 ", " 1: frail, renal "))]
    end = head.index("rows") + len("rows")
    assert len(lines) == 2
    assert all(line[end - 1].isdecimal() and line[end] == " " for line in lines)
    eight = table.assign(**{f"ward {n}": [*"ab"] * 20 for n in range(8)})
    many = compare_outside(posterior, eight, [f"ward {n}" for n in range(8)], "silo", level=0.9)
    assert (many.tests, many.threshold) == (24, pytest.approx(0.1 / 24))
    assert "... and 2 more: see .frame()" in repr(many)


WARDS = pd.Series([f"n{place % 60}" for place in range(80)])


@pytest.mark.parametrize(
    ("columns", "settings", "word"),
    [
        ([], {}, "columns is empty"),
        ({"age": "median"}, {}, "median"),
        (["smoker"], {}, "'smoker' was clustered"),
        (["silo"], {"silo": "silo"}, "'silo' names the silos"),
        (["age"], {"method": "soft"}, "method"),
        (["age"], {"level": 95}, "level"),
        (["age"], {"draws": 1}, "draws"),
        (["age"], {"labels": [0]}, "labels"),
        *[
            (["age"], {"method": "labels", "labels": labels}, "labels ")
            for labels in ([0, 1], [3] * 80, [-1] * 80, [0.7] * 80, ["one"] * 80)
        ],
        (["Age"], {}, r"'Age' to compare \(did you mean 'age'\?\)"),
        (["none"], {}, "no value at all"),
        (["name"], {}, "60 levels, more than the 50"),
        (["same"], {}, "the one value '7'"),
        ({"region": "mean"}, {}, r"'\w+' in data row \d+"),
    ],
)
def test_what_cannot_be_compared(table, posterior, columns, settings, word):
    table = pd.concat([table, table], ignore_index=True).assign(none=None, same=7, name=WARDS)
    with pytest.raises((SettingsError, DataError), match=word):
        compare_outside(posterior, table, columns, **settings)


@pytest.fixture
def on_disk(rng, tmp_path):
    """A table of patterns whose last two columns are not for clustering."""
    rows, _ = silomix.simulate("homogeneous", rows=120, silos=2, seed=1)
    rows = rows.assign(n=1 + np.arange(120) % 2, age=rng.normal(80, 5, 120), ward=list("ab") * 60)
    rows.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


SHORT = ("--silo", "silo", "--frequency", "n", "--iterations", "200", "--polish", "0")


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
def test_a_fit_compares_what_it_does_not_cluster(on_disk, tmp_path):
    out = tmp_path / "results"
    asked = ["--outside", "age,ward", "--outside-method", "labels", "--exclude", "x1"]
    shown = run("fit", on_disk, *SHORT, *asked, "--out", out)
    assert shown.exit_code == 0, shown.output
    lines = pd.read_csv(out / "outside.csv")
    assert (set(lines["variable"]), set(lines["method"])) == ({"age", "ward"}, {"labels"})
    rows = lines.groupby("variable")["rows"].sum().tolist()
    assert rows == pytest.approx([180, 180], abs=1e-3)
    assert "Outside variables" in (out / "report.html").read_text(encoding="utf-8")
    posterior = silomix.load(out / "posterior.silomix")
    assert [v.name for v in posterior.study.variables] == [f"x{q}" for q in range(2, 11)]
    again = run("fit", on_disk, *SHORT, "--exclude", "age,ward", "--force", "--out", out)
    assert again.exit_code == 0, again.output
    assert not (out / "outside.csv").exists()
    page = ["report", out, "--table", on_disk, "--covariates", "ward", "--out"]
    written = run(*page, tmp_path / "new" / "a.html", "--name", "0=frail")
    assert written.exit_code == 0, written.output
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"a.html", "odds.csv"}
    beside = run(*page, tmp_path / "new" / "b.html")
    assert beside.exit_code == 4
    assert "odds.csv; give --force to replace, or --out in another folder" in beside.stderr


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--outside", "silo"], 2),
        (["--outside", "n"], 2),
        (["--outside", "age", "--variables", "x1,age"], 2),
        (["--outside", "Age"], 3),
        (["--outside-method", "labels"], 2),
        (["--outside", "age", "--outside-method", "x"], 4),
    ],
)
def test_a_fit_refuses_before_it_samples(on_disk, tmp_path, options, code, monkeypatch):
    monkeypatch.setattr("silomix.cli.one_table.fit", None)
    told = run("fit", on_disk, *SHORT, *options, "--out", tmp_path / "results")
    assert told.exit_code == code, told.output
    assert "--outside" in told.output or "'Age'" in told.output
