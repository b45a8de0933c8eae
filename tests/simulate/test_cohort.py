from __future__ import annotations

import itertools
import json
import sys

import duckdb
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from silomix.errors import FileError, MissingDependency, SettingsError
from silomix.simulate.cohort import (
    BLOCK,
    CONDITIONS,
    PUBLISHED_ROWS,
    CohortTruth,
    at_least_two,
    best_labels,
    count_moments,
    lives,
    planted,
    prevalence,
    simulate_cohort,
    write_cohort,
)
from silomix.simulate.published import LOW, UNMARKED, compare_with_published, read_facts

FALSE_ALARM = 1e-4

FACTS = read_facts()
SUMMARY, CLUSTERS, SHARES = FACTS.summary, FACTS.clusters, FACTS.conditions["planted"].to_numpy()
MEN = ["Prostate cancer", "Benign prostatic hyperplasia", "Erectile dysfunction"]
WOMEN = ["Endometriosis", "Polycystic ovary syndrome"]


@pytest.fixture(scope="module")
def drawn():
    """A cohort to look at, of two blocks."""
    return simulate_cohort(20_000, seed=20)


def beyond(differences, errors):
    """Whether any of the differences is too many standard errors from zero, all together."""
    limit = stats.norm.isf(FALSE_ALARM / 2 / np.size(differences))
    return bool((np.abs(differences) > limit * np.asarray(errors)).any())


def test_facts_are_whole_and_their_tables_agree():
    assert (PUBLISHED_ROWS, len(CLUSTERS), len(CONDITIONS), len(set(CONDITIONS))) == (
        289_821, 27, 94, 94,
    )  # fmt: skip
    assert_allclose([sum(SUMMARY["regions"].values()), FACTS.weights.sum()], 1.0)
    # the number of conditions is the sum of their prevalences, printed to one digit
    printed = FACTS.conditions["prevalence"]
    assert round(printed.sum(), 1) == SUMMARY["conditions"]["mean"]
    # table 11 has two digits, so a mean over clusters may be half a hundredth off
    for name in ("mortality", "female"):
        assert abs(FACTS.weights @ CLUSTERS[name] - SUMMARY[name]) < 0.005
    # what is printed as zero is planted below its last digit
    assert ((SHARES > 0) & (SHARES < 0.0005))[printed == 0].all() and (printed == 0).sum() == 3
    assert_array_equal(SHARES[printed > 0], printed[printed > 0])


@pytest.mark.parametrize("chances", [[0.3, 0.6], [0.01, 0.2, 0.05, 0.7], [0.4] * 6])
def test_closed_forms_are_those_of_enumeration(chances):
    p = np.array(chances)
    rows = np.array(list(itertools.product([0, 1], repeat=len(p))))
    mass = np.prod(np.where(rows, p, 1 - p), axis=1)
    kept = rows.sum(axis=1) >= 2
    share = mass[kept] / mass[kept].sum()
    assert_allclose(at_least_two(p[np.newaxis]), mass[kept].sum())
    assert_allclose(prevalence(p[np.newaxis])[0], share @ rows[kept])
    mean, square = count_moments(p[np.newaxis])
    counts = rows[kept].sum(axis=1)
    assert_allclose([mean[0], square[0]], [share @ counts, share @ counts**2])


def test_planted_prevalences_and_counts_are_the_published_ones():
    mixture = planted()
    assert_allclose(mixture.weights @ mixture.prevalence, SHARES, atol=1e-9)
    assert ((mixture.chances > 0) & (mixture.chances < 1)).all()
    mean, sd = mixture.count_mean_and_sd()
    assert round(mean, 1) == SUMMARY["conditions"]["mean"]
    assert_allclose(sd, SUMMARY["conditions"]["sd"], atol=1e-6)


def test_marks_of_table_8_hold_with_a_margin():
    found = planted().prevalence
    assert (found / SHARES)[FACTS.marks > UNMARKED].min() > 1.8
    assert (found / SHARES)[FACTS.marks == LOW].max() < 0.51
    # "almost exclusively": clusters 2, 11 and 13
    for cluster, name in ((2, "Asthma"), (11, "Breast cancer"), (13, "Aortic aneurysm")):
        assert found[cluster - 1, CONDITIONS.index(name)] > 0.9
    # cluster 1 has nothing of its own, and cluster 19 most
    assert (found[0] < SHARES).all()
    assert (found.sum(axis=1).argmin(), found.sum(axis=1).argmax()) == (0, 18)


def mean_and_sd(shares, values):
    mean = (shares * values).sum()
    sd = np.sqrt((shares * values**2).sum() - mean**2)
    return {"mean": round(mean, 1), "sd": round(sd, 1)}


def test_tables_of_lives_are_those_of_the_paper():
    given, weights = lives(), planted().weights
    assert mean_and_sd(weights @ given.entry, given.ages).items() <= SUMMARY["age_at_entry"].items()
    dead = given.entry * given.died
    assert_allclose(dead.sum(axis=1), CLUSTERS["mortality"])
    at_death = given.ages[:, np.newaxis] + np.arange(given.years.shape[-1])
    joint = dead[:, :, np.newaxis] * given.years
    by_cluster = (joint * at_death).sum(axis=(1, 2)) / dead.sum(axis=1)
    assert_allclose(by_cluster, CLUSTERS["age_at_death"])
    joint = np.tensordot(weights, joint, 1) / (weights @ dead).sum()
    assert mean_and_sd(joint, at_death).items() <= SUMMARY["age_at_death"].items()


def test_values_are_possible(drawn):
    table, _ = drawn
    outside = ["age_at_entry", "sex", "region", "died", "age_at_death"]
    assert list(table.columns) == [*outside, *CONDITIONS]
    cells, women = table[list(CONDITIONS)], table["sex"] == "female"
    assert (cells.dtypes == np.uint8).all() and set(np.unique(cells)) == {0, 1}
    assert cells.sum(axis=1).min() == 2
    assert table["region"].cat.categories.tolist() == list(SUMMARY["regions"])
    assert table["age_at_entry"].between(80, 112).all()
    dead, alive = table[table["died"]], table[~table["died"]]
    assert alive["age_at_death"].isna().all()
    assert dead["age_at_death"].between(dead["age_at_entry"], 110).all()
    assert table.loc[women, MEN].to_numpy().sum() == 0
    assert table.loc[~women & ~table[MEN].any(axis=1), WOMEN].to_numpy().sum() == 0


@pytest.mark.statistical
def test_drawn_figures_are_planted_ones(seed):
    rows = 20_000
    table, truth = simulate_cohort(rows, seed=seed)
    counts = table[list(CONDITIONS)].sum(axis=1)
    mean, sd = planted().count_mean_and_sd()
    variance_error = np.sqrt(((counts - mean) ** 2).var() / rows)
    assert not beyond(counts.mean() - mean, sd / np.sqrt(rows))
    assert beyond(counts.mean() - 6.4, sd / np.sqrt(rows))
    assert not beyond(counts.var() - sd**2, variance_error)
    shares = np.concatenate([SHARES, FACTS.weights])
    clusters = np.bincount(truth.labels, minlength=27) / rows
    seen = np.concatenate([table[list(CONDITIONS)].mean(), clusters])
    errors = np.sqrt(shares * (1 - shares) / rows)
    # the normal tail is too thin for the rarest: those that expect fewer than 20 people
    frequent = shares * rows > 20
    assert not beyond((seen - shares)[frequent], errors[frequent])
    # sexes, deaths and ages of table 11
    differences, errors = [], []
    for c in np.flatnonzero(FACTS.weights > 0.01):
        people = table[truth.labels == c]
        ages = people["age_at_death"].dropna()
        women, died = (people["sex"] == "female").mean(), people["died"].mean()
        for name, share in (("female", women), ("mortality", died)):
            expected = CLUSTERS[name][c]
            differences.append(share - expected)
            errors.append(np.sqrt(expected * (1 - expected) / len(people)))
        differences.append(ages.mean() - CLUSTERS["age_at_death"][c])
        errors.append(ages.std() / np.sqrt(len(ages)))
    assert not beyond(differences, errors)
    assert beyond(np.array(differences) + 0.1, errors)


def test_a_smaller_cohort_begins_a_larger_one_and_blocks_differ(seed):
    more, truth = simulate_cohort(BLOCK + 300, seed=seed)
    fewer, begun = simulate_cohort(BLOCK - 7, seed=seed)
    pd.testing.assert_frame_equal(fewer, more.head(BLOCK - 7))
    assert_array_equal(begun.labels, truth.labels[: BLOCK - 7])
    assert not more.head(300).equals(more.tail(300).reset_index(drop=True))
    assert not simulate_cohort(50, seed=seed + 1)[0].equals(more.head(50))


@pytest.mark.parametrize("chunk", [BLOCK + 500, 4_000])
def test_files_hold_the_same_rows_whatever_the_chunk(tmp_path, seed, chunk):
    rows, told = BLOCK + 500, []
    table, truth = simulate_cohort(rows, seed=seed)
    files = write_cohort(
        tmp_path / "c.parquet", rows=rows, seed=seed, chunk=chunk,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert [file.name for file in files] == ["c.parquet", "c.truth.parquet", "c.truth.json"]
    read = duckdb.sql(f"select * from '{files[0]}'").df()
    for name in table.columns:
        assert_array_equal(read[name].to_numpy(), table[name].to_numpy(), err_msg=name)
    assert_array_equal(duckdb.sql(f"from '{files[1]}'").df()["cluster"], truth.labels)
    assert (len(told), told[-1]) == (-(-rows // chunk), (rows, rows))
    on_disk = json.loads(files[2].read_text(encoding="utf-8"))
    assert (on_disk["rows"], on_disk["seed"]) == (rows, seed)
    for name in ("weights", "chances", "prevalence", "at_least_two"):
        assert_array_equal(on_disk[name], getattr(truth, name))


def test_best_labels_are_those_of_brute_force():
    chances, weights = np.array([[0.05, 0.1, 0.1], [0.3, 0.2, 0.6]]), np.array([0.6, 0.4])
    rows = np.array(list(itertools.product([0, 1], repeat=3)))
    masses = weights * np.prod(np.where(rows[:, None] == 1, chances, 1 - chances), axis=2)
    kept = rows.sum(axis=1) >= 2
    rows, masses = rows[kept], masses[kept]
    # a cluster's people are those with two or more, so its masses are made to sum to its weight
    expected = (masses * weights / masses.sum(axis=0)).argmax(axis=1).tolist()
    parts = at_least_two(chances), prevalence(chances)
    truth = CohortTruth(np.zeros(0, np.int64), weights, ("a", "b", "c"), chances, *parts)
    assert best_labels(rows, truth).tolist() == expected
    assert best_labels(pd.DataFrame(rows, columns=list("abc")), truth).tolist() == expected
    assert set(expected) == {0, 1}
    # without the division by P(at least two) a label changes
    assert masses.argmax(axis=1).tolist() != expected


def test_comparison_with_the_paper(drawn):
    table, truth = drawn
    frame = compare_with_published(table, truth)
    assert frame.groupby("table").size().to_dict() == {6: 27, 7: 27, 10: 94, 11: 81}
    assert_allclose(frame["difference"], frame["drawn"] - frame["published"])
    seen = frame.fillna({"cluster": 0}).set_index(["table", "figure", "cluster"])["drawn"]
    assert seen[10, "Gout", 0] == table["Gout"].mean()
    assert seen[7, "share", 1] == (truth.labels == 0).mean()
    assert_allclose(seen[11, "died", 9], table.loc[truth.labels == 8, "died"].mean())


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": 2.5}, {"seed": -1}, {"chunk": 0}])
def test_bad_numbers(wrong, tmp_path):
    settings = {"rows": 5, **wrong}
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        write_cohort(tmp_path / "c.parquet", **settings)
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"c\.csv"):
        write_cohort(tmp_path / "c.csv", rows=5)
    with pytest.raises(FileError, match=r"c\.parquet cannot be written: No such file"):
        write_cohort(tmp_path / "nowhere" / "c.parquet", rows=5)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"silomix\[data\]"):
        write_cohort(tmp_path / "c.parquet", rows=5)
    assert list(tmp_path.iterdir()) == []
