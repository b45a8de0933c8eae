from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from silomix.errors import SettingsError
from silomix.model.schema import Schema, Variable
from silomix.simulate import DESIGNS, draw_drift, simulate, simulate_like

FALSE_ALARM = 1e-4

SIXTH, FIFTH, THIRD, HALF = 1 / 6, 1 / 5, 1 / 3, 1 / 2
TABLE_1 = {
    "homogeneous": [[FIFTH] * 5] * 4,
    "nested": [
        [SIXTH] * 6,
        [FIFTH] * 5 + [0],
        [THIRD] * 3 + [0] * 3,
        [HALF] * 2 + [0] * 4,
    ],
    "non-nested": [
        [FIFTH] * 5 + [0],
        [0] + [FIFTH] * 5,
        [THIRD] * 3 + [0] * 3,
        [HALF] * 2 + [0] * 4,
    ],
}
GLOBAL_ROW = {
    "homogeneous": [0.20, 0.20, 0.20, 0.20, 0.20],
    "nested": [0.30, 0.30, 0.18, 0.09, 0.09, 0.04],
    "non-nested": [0.26, 0.31, 0.18, 0.10, 0.10, 0.05],
}

SCHEMA = Schema(
    (
        Variable("smoker", ("no", "yes")),
        Variable("stage", ("I", "II", "III", "IV")),
        Variable("country", ("FR",)),
    )
)


def chi_square(observed, expected):
    """Statistic and degrees of freedom; the rarest cells count as one that expects 20 rows."""
    order = np.argsort(expected)
    observed, expected = observed[order], expected[order]
    # with 5, the usual choice, the tail at FALSE_ALARM is too heavy for the rare levels here
    rare = np.count_nonzero(np.cumsum(expected) < 20) + 1
    observed = np.append(observed[:rare].sum(), observed[rare:])
    expected = np.append(expected[:rare].sum(), expected[rare:])
    return ((observed - expected) ** 2 / expected).sum(), len(expected) - 1


def p_value(tables):
    """Chi-square p-value of independent tables, each (observed, expected)."""
    parts = [chi_square(np.asarray(o), np.asarray(e)) for o, e in tables]
    return stats.chi2.sf(sum(s for s, _ in parts), sum(df for _, df in parts))


def silo_number(table, truth):
    return pd.Categorical(table["silo"], categories=truth.silos).codes


def label_tables(table, truth, weights_by_silo):
    silo = silo_number(table, truth)
    for s, weights in enumerate(weights_by_silo):
        labels = truth.labels[silo == s]
        yield np.bincount(labels, minlength=len(weights)), len(labels) * np.asarray(weights)


def cell_tables(table, truth, probabilities):
    for cluster in np.unique(truth.labels):
        rows = table[truth.labels == cluster]
        for name in table.columns[1:]:
            columns = [k for k, (variable, _) in enumerate(truth.levels) if variable == name]
            codes = rows[name].cat.codes
            observed = np.bincount(codes, minlength=len(columns))
            yield observed, len(rows) * probabilities[cluster, columns]


@pytest.mark.parametrize("design", TABLE_1)
def test_the_design_weights_are_those_of_table_1(design):
    _, truth = simulate(design)
    assert_allclose(truth.weights_by_silo, TABLE_1[design], rtol=1e-15)
    # the paper prints two decimals, cut or rounded
    assert_allclose(truth.weights, GLOBAL_ROW[design], atol=0.0051)
    assert truth.weights.sum() == pytest.approx(1)


@pytest.mark.statistical
@pytest.mark.parametrize("design", TABLE_1)
def test_labels_follow_the_weights_of_their_silo(design, seed):
    table, truth = simulate(design, seed=seed)
    assert p_value(label_tables(table, truth, truth.weights_by_silo)) > FALSE_ALARM
    assert truth.weights_by_silo[silo_number(table, truth), truth.labels].all()
    if design == "non-nested":
        assert p_value(label_tables(table, truth, np.full((4, 6), 1 / 6))) < FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("design", DESIGNS)
def test_cells_follow_the_probabilities_of_their_cluster(design, seed):
    table, truth = simulate(design, rows=8_000, seed=seed)
    assert p_value(cell_tables(table, truth, truth.probabilities)) > FALSE_ALARM
    wrong = np.roll(truth.probabilities, 1, axis=0)
    assert p_value(cell_tables(table, truth, wrong)) < FALSE_ALARM


@pytest.mark.statistical
def test_the_variables_are_independent_within_a_cluster(seed):
    table, truth = simulate("homogeneous", separability="poor", rows=20_000, seed=seed)
    tables = []
    for cluster in range(5):
        rows = table[truth.labels == cluster]
        pair = pd.crosstab(rows["x1"], rows["x5"]).to_numpy()
        first, second = (truth.probabilities[cluster, k] for k in (slice(2), slice(8, 11)))
        tables.append((pair.ravel(), len(rows) * np.outer(first, second).ravel()))
    assert p_value(tables) > FALSE_ALARM


def first_levels(truths):
    """Probabilities of the first level of each variable, by its number of levels."""
    first = np.concatenate([t.probabilities[:, [lv == "1" for _, lv in t.levels]] for t in truths])
    return {2: first[:, :4].ravel(), 3: first[:, 4:].ravel()}


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("settings", "concentration", "wrong"),
    [
        ({"design": "nested"}, 0.3, 1.0),
        ({"design": "nested", "separability": "poor"}, 1.0, 0.3),
        ({"design": "appendix-b"}, 0.1, 0.3),
    ],
)
def test_level_probabilities_are_dirichlet(settings, concentration, wrong, seed):
    truths = [simulate(**settings, rows=10, seed=1000 * seed + i)[1] for i in range(30)]
    for levels, values in first_levels(truths).items():
        right, other = (stats.beta(c, (levels - 1) * c).cdf for c in (concentration, wrong))
        assert stats.kstest(values, right).pvalue > FALSE_ALARM
        assert stats.kstest(values, other).pvalue < FALSE_ALARM


def test_drift_changes_neither_clusters_nor_labels_nor_variables_without():
    kappa = [20 if q % 3 == 0 else np.inf for q in range(10)]
    table, truth = simulate("nested", rows=2000, seed=4)
    moved, drifted = simulate("nested", rows=2000, seed=4, drift=kappa)
    assert_array_equal(drifted.labels, truth.labels)
    assert_array_equal(drifted.probabilities, truth.probabilities)
    changed = [name for name in table if not table[name].equals(moved[name])]
    assert changed == ["x1", "x4", "x7", "x10"]


def drift_p(truths, kappa):
    """p-value that first levels of two-level variables are Beta(κp, κ(1 − p)) in each silo."""
    shared = np.array([t.probabilities[:, :8:2] for t in truths])[:, None]
    own = np.array([t.probabilities_by_silo[:, :, :8:2] for t in truths])
    reached = stats.beta(kappa * shared, kappa * (1 - shared)).cdf(own)
    # next to 0 and 1 a profile has no digits left to tell where in its own law it is
    inner = (np.broadcast_to(shared, own.shape) > 0.02) & (shared < 0.98)
    return stats.kstest(reached[inner], "uniform").pvalue


@pytest.mark.statistical
@pytest.mark.parametrize("kappa", [5.0, 50.0])
def test_profiles_of_silos_are_dirichlet_around_the_shared_ones(kappa, seed):
    seeds = range(1000 * seed, 1000 * seed + 40)
    truths = [simulate("nested", rows=10, seed=s, drift=kappa)[1] for s in seeds]
    assert drift_p(truths, kappa) > FALSE_ALARM
    assert drift_p(truths, 2 * kappa) < FALSE_ALARM


@pytest.mark.statistical
def test_cells_follow_the_profiles_of_their_silo(seed):
    table, truth = simulate("nested", rows=20_000, seed=seed, drift=10)
    silo = silo_number(table, truth)
    own, shared = [], []
    for s in range(4):
        rows = table[silo == s]
        of_silo = replace(truth, labels=truth.labels[silo == s])
        own += cell_tables(rows, of_silo, truth.probabilities_by_silo[s])
        shared += cell_tables(rows, of_silo, truth.probabilities)
    assert p_value(own) > FALSE_ALARM
    assert p_value(shared) < FALSE_ALARM


def test_profiles_next_to_zero_drift_without_underflow():
    schema = Schema((Variable("rare", ("no", "yes", "never")),))
    shared = np.array([[1 - 1e-9, 1e-9, 0.0]])
    own = draw_drift(np.random.default_rng(0), schema, shared, np.array([1e-3]), 500)
    assert_allclose(own.sum(axis=-1), 1)
    assert np.isfinite(own).all()
    assert not own[..., 2].any()


def broken_sticks(weights, concentration):
    """Return what is independent and uniform when weights are Dirichlet: (table, 10).

    Each weight as a share of what the ones before it leave is a Beta variable of its own.
    """
    left = 1 - np.cumsum(weights, axis=1) + weights
    after = weights.shape[1] - 1 - np.arange(10)
    return stats.beta(concentration, concentration * after).cdf((weights / left)[:, :10])


@pytest.mark.statistical
def test_the_weights_of_appendix_b_are_dirichlet(seed):
    seeds = range(1000 * seed, 1000 * seed + 60)
    weights = np.array([simulate("appendix-b", rows=10, seed=s)[1].weights for s in seeds])
    assert stats.kstest(broken_sticks(weights, 0.5).ravel(), "uniform").pvalue > FALSE_ALARM
    assert stats.kstest(broken_sticks(weights, 1.0).ravel(), "uniform").pvalue < FALSE_ALARM


def test_appendix_b_has_its_own_size_and_the_same_rows_for_any_number_of_silos():
    table, truth = simulate("appendix-b", seed=3)
    finer, finer_truth = simulate("appendix-b", silos=500, seed=3)
    assert table.shape == (50_000, 11) and truth.weights_by_silo.shape == (10, 20)
    for some, size in ((table, 5_000), (finer, 100)):
        assert set(some["silo"].value_counts()) == {size}
    assert table.drop(columns="silo").equals(finer.drop(columns="silo"))
    assert_array_equal(truth.labels, finer_truth.labels)


@pytest.mark.parametrize(("rows", "silos"), [(1000, 1), (1000, 7), (3, 3)])
@pytest.mark.parametrize("design", TABLE_1)
def test_other_numbers_of_silos_repeat_the_four_in_order(design, rows, silos):
    table, truth = simulate(design, rows=rows, silos=silos, seed=2)
    sizes = table["silo"].value_counts()
    assert (len(table), len(sizes)) == (rows, silos)
    assert sizes.max() - sizes.min() <= 1
    patterns = [TABLE_1[design][s % 4] for s in range(silos)]
    assert_allclose(truth.weights_by_silo, patterns, rtol=1e-15)
    by_rows = np.average(patterns, axis=0, weights=sizes[list(truth.silos)])
    assert_allclose(truth.weights, by_rows, rtol=1e-12)


def digest(table):
    return hashlib.sha256(table.to_csv(index=False, lineterminator="\n").encode()).hexdigest()[:16]


# Cells, not floats: a level changes only if NumPy changes its streams or the code its draws.
@pytest.mark.golden
def test_a_seed_gives_the_tables_it_always_gave():
    assert digest(simulate("non-nested", rows=50, seed=5)[0]) == "14f3ccea140ddda8"
    assert digest(simulate("appendix-b", rows=50, seed=5)[0]) == "9164081e8f36696e"
    like = simulate_like(SCHEMA, rows=50, silos=2, missing=0.2, seed=5)
    assert digest(like) == "d18d8d6e8920384a"


@pytest.mark.parametrize(
    "wrong",
    [
        {"design": "cohort"},
        {"separability": "hard"},
        {"variables": "numbers"},
        {"variables": "mixed", "design": "appendix-b"},
        {"separability": "easy", "design": "appendix-b"},
        {"rows": 3},
        {"silos": True},
        *[{"drift": drift} for drift in (0, np.nan, [5, 5])],
    ],
)
def test_settings_simulate_refuses(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        simulate(**{"design": "nested", **wrong})


@pytest.mark.parametrize(
    ("silos", "names"), [(2, ["silo 1", "silo 2"]), (["north", "south"], ["north", "south"])]
)
def test_a_table_like_a_schema_may_have_silos(silos, names):
    table = simulate_like(SCHEMA, rows=101, silos=silos)
    found = [(name, tuple(table[name].cat.categories)) for name in table.columns[1:]]
    assert found == [(variable.name, variable.levels) for variable in SCHEMA.variables]
    assert table["silo"].value_counts().to_dict() == dict(zip(names, (51, 50), strict=True))
    pd.testing.assert_frame_equal(table.drop(columns="silo"), simulate_like(SCHEMA, rows=101))


@pytest.mark.statistical
def test_a_share_of_the_cells_is_missing_completely_at_random(seed):
    whole = simulate_like(SCHEMA, rows=5000, seed=seed)
    table = simulate_like(SCHEMA, rows=5000, missing=0.15, seed=seed)
    empty = table.isna()
    assert_array_equal(table.to_numpy()[~empty], whole.to_numpy()[~empty])
    count = int(empty.to_numpy().sum())
    assert stats.binomtest(count, empty.size, 0.15).pvalue > FALSE_ALARM
    assert stats.binomtest(count, empty.size, 0.18).pvalue < FALSE_ALARM
    by_level = pd.crosstab(whole["stage"], empty["stage"])
    assert stats.chi2_contingency(by_level).pvalue > FALSE_ALARM


def dependence_p(table):
    """p-value that neighbouring binary variables are independent, n r² being chi-square."""
    codes = table.apply(lambda column: column.cat.codes)
    codes = codes.loc[:, codes.var() > 0.05].to_numpy()  # a rare level has no normal r
    pairs = codes.shape[1] // 2
    r = [np.corrcoef(codes[:, 2 * i], codes[:, 2 * i + 1])[0, 1] for i in range(pairs)]
    return stats.chi2.sf(len(codes) * np.square(r).sum(), pairs)


@pytest.mark.statistical
def test_rows_of_a_table_like_a_schema_come_in_clusters(seed):
    schema = Schema(tuple(Variable(f"v{q}", ("a", "b")) for q in range(20)))
    assert dependence_p(simulate_like(schema, seed=seed)) < FALSE_ALARM
    assert dependence_p(simulate_like(schema, clusters=1, seed=seed)) > FALSE_ALARM


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 4, "silos": 5},
        {"clusters": 0},
        *[{"missing": missing} for missing in (1.0, -0.1)],
        *[{"silos": silos} for silos in ("north", [], ["a", "a"])],
        {"seed": None},
    ],
)
def test_settings_simulate_like_refuses(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        simulate_like(SCHEMA, **wrong)


def parts(truth, word):
    """Columns of the truth whose name ends so."""
    return [place for place, (_, what) in enumerate(truth.levels) if what == word]


@pytest.mark.parametrize(
    ("variables", "kinds"),
    [
        ("gaussian", ["gaussian"] * 10),
        ("mixed", ["categorical"] * 5 + ["gaussian"] * 4 + ["poisson"]),
    ],
)
def test_designs_come_with_numbers_and_counts(variables, kinds):
    table, truth = simulate("nested", variables=variables, rows=4000, seed=3)
    assert list(truth.kinds.items()) == list(
        zip([f"x{q}" for q in range(1, 11)], kinds, strict=True)
    )
    assert truth.probabilities.shape == (6, len(truth.levels))
    assert_allclose(truth.weights_by_silo, TABLE_1["nested"], rtol=1e-15)
    empty = table.drop(columns="silo").isna().to_numpy()
    assert stats.binomtest(int(empty.sum()), empty.size, 0.1 * (variables == "mixed")).pvalue > 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("drift", [None, 10])
def test_numbers_follow_the_parameters_of_their_silo(drift, seed):
    table, truth = simulate("nested", variables="mixed", rows=8000, seed=seed, drift=drift)
    own = truth.probabilities_by_silo[silo_number(table, truth), truth.labels]
    means, sds, (rate,) = (parts(truth, word) for word in ("mean", "sd", "rate"))
    names = [name for name, kind in truth.kinds.items() if kind == "gaussian"]
    z = (table[names].to_numpy() - own[:, means]) / own[:, sds]
    assert stats.kstest(z[~np.isnan(z)], "norm").pvalue > FALSE_ALARM
    counts, rates = table["x10"].dropna(), own[table["x10"].notna(), rate]
    # a uniform variable in each step of the distribution function makes it continuous
    step = np.random.default_rng(seed).random(len(counts)) * stats.poisson(rates).pmf(counts)
    reached = stats.poisson(rates).cdf(counts - 1) + step
    assert stats.kstest(reached, "uniform").pvalue > FALSE_ALARM
    others = np.roll(truth.probabilities, 1, axis=0)[truth.labels]
    wrong = (table[names].to_numpy() - others[:, means]) / others[:, sds]
    assert stats.kstest(wrong[~np.isnan(wrong)], "norm").pvalue < FALSE_ALARM


@pytest.mark.statistical
def test_means_and_rates_of_silos_drift_around_the_shared_ones(seed):
    kappa, seeds = 20.0, range(1000 * seed, 1000 * seed + 40)
    truths = [simulate("nested", variables="mixed", rows=10, seed=s, drift=kappa)[1] for s in seeds]
    means, sds, rates = (parts(truths[0], word) for word in ("mean", "sd", "rate"))
    shared = np.array([truth.probabilities for truth in truths])[:, None]
    own = np.array([truth.probabilities_by_silo for truth in truths])
    assert_array_equal(own[..., sds], np.broadcast_to(shared, own.shape)[..., sds])
    z = (own - shared)[..., means] / shared[..., sds]
    reached = {
        size: (
            z * np.sqrt(size),
            stats.gamma(size * shared[..., rates]).cdf(size * own[..., rates]),
        )
        for size in (kappa + 1, 2 * kappa)
    }
    for size, (normal, uniform) in reached.items():
        p = [stats.kstest(normal.ravel(), "norm").pvalue]
        p.append(stats.kstest(uniform.ravel(), "uniform").pvalue)
        assert min(p) > FALSE_ALARM if size == kappa + 1 else max(p) < FALSE_ALARM
