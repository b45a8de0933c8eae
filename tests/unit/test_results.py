from __future__ import annotations

import dataclasses
import errno
import re

import numpy as np
import pandas as pd
import pytest

import silomix
from silomix.errors import DataError, SettingsError
from silomix.results import (
    as_record,
    as_text,
    assign_rows,
    assigned_record,
    assigned_view,
    check_free,
    describe,
    posterior_files,
    posterior_record,
    posterior_view,
    write_posterior,
    write_silo,
    write_text,
)
from silomix.results.common import write_table
from silomix.results.silo import profile_table, sizes_table
from unit.posteriors import SILOS, make_diagnostics, make_posterior, with_drift


@pytest.fixture(scope="module")
def posterior():
    table, truth = silomix.simulate("homogeneous", rows=120, silos=1, seed=1)
    draws = silomix.sample(table.drop(columns="silo"), iterations=200, threads=1, progress=False)
    return silomix.local_posterior(draws, partition=truth.labels, relabel="average")


def told(posterior):
    return " ".join(as_text(describe("north", posterior)).split())


def test_intervals_hold_the_means(posterior):
    for table, mean in ((sizes_table(posterior), "weight"), (profile_table(posterior), "mean")):
        assert (table["lower_95_hdi"] <= table[mean]).all()
        assert (table[mean] <= table["upper_95_hdi"]).all()


def test_shares_and_probabilities_sum_to_one(posterior):
    assert sizes_table(posterior)["share"].sum() == pytest.approx(1)
    totals = profile_table(posterior).groupby(["cluster", "variable"])["mean"].sum()
    np.testing.assert_allclose(totals, 1, rtol=1e-5)


def test_summary_says_how_it_was_made(posterior):
    text = told(posterior)
    assert "north: 120 rows, 10 variables, 5 clusters" in text
    assert "15 components, 2 chains of 200 sweeps (100 burn-in, then all kept), seed 0" in text
    assert "Partition by given; draws relabelled by average" in text
    assert "silos" not in text


def test_summary_says_when_a_subsample_was_used(posterior):
    partition = dataclasses.replace(posterior.partition, subsample=5000)
    changed = dataclasses.replace(posterior, partition=partition)
    assert "on a subsample of 5,000 rows" in told(changed)
    assert as_record("north", changed)["subsample"] == 5000


def test_summary_says_when_there_are_other_silos(posterior):
    draws = dataclasses.replace(posterior.draws, silos=3)
    assert "seed 0, one of 3 silos" in told(dataclasses.replace(posterior, draws=draws))


def test_constant_traces_have_no_numbers(posterior):
    diagnostics = posterior.draws.diagnostics
    constant = dataclasses.replace(diagnostics.traces["occupied"], rhat=np.nan, ess=np.nan)
    traces = dict(diagnostics.traces) | {"occupied": constant}
    changed = dataclasses.replace(diagnostics, traces=traces)
    draws = dataclasses.replace(posterior.draws, diagnostics=changed)
    posterior = dataclasses.replace(posterior, draws=draws)
    assert "occupied constant" in told(posterior)
    assert as_record("north", posterior)["traces"]["occupied"] == {"rhat": None, "ess": None}


def test_text_is_plain(posterior):
    text = as_text(describe("[red]north[/red]", posterior))
    assert text.startswith("[red]north[/red]: 120 rows")
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 88


def test_tables_on_disk_are_the_tables(tmp_path, posterior):
    folder = tmp_path / "a" / "b"
    files = write_silo(folder, "north", posterior)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in files)
    on_disk = pd.read_csv(folder / "profiles.csv", dtype={"level": "str"})
    pd.testing.assert_frame_equal(on_disk, profile_table(posterior), rtol=1e-5, check_dtype=False)
    assert b"\r" not in (folder / "profiles.csv").read_bytes()


@pytest.fixture
def whole(seed):
    """A posterior of made-up numbers over two silos."""
    return make_posterior(np.random.default_rng(seed))


def told_of(posterior):
    return " ".join(as_text(posterior_view(posterior)).split())


def test_the_whole_result_in_words(whole):
    text = told_of(whole)
    rows = sum(int(sizes.sum()) for sizes in whole.correspondence.sizes)
    assert f"3 clusters in 2 silos, {rows} rows, 3 variables" in text
    assert whole.diagnostics.verdict in text
    means = whole.weights.mean(axis=0)
    lower, upper = silomix.metrics.highest_density_interval(whole.weights)
    counted = np.bincount(whole.labels, minlength=3)
    for k in range(3):
        line = f"{k} {counted[k]} {means[k]:.1%} {lower[k]:.1%} to {upper[k]:.1%}"
        assert line in text
    assert "north 1,000 64 1,064" in text
    assert "Matched by evidence, aggregated by vcmc, 8 polish rounds. Seed 7" in text
    assert max(map(len, as_text(posterior_view(whole)).splitlines())) <= 88


def test_who_holds_what_and_how_sure_it_is(whole):
    confidence = np.eye(4)
    confidence[0, 2] = confidence[2, 0] = 0.834
    matched = silomix.types.Correspondence(
        silos=SILOS,
        groups=(np.array([0, 1]), np.array([0, 2])),
        sizes=(np.array([5, 4]), np.array([3, 2])),
        method="evidence",
        confidence=confidence,
    )
    text = told_of(dataclasses.replace(whole, correspondence=matched))
    assert "0 2 of 2 0.83 north (0.83), south (0.83)" in text
    assert "1 1 of 2 1.00 north" in text
    assert "2 1 of 2 1.00 south" in text
    unsure = dataclasses.replace(matched, confidence=None)
    changed = dataclasses.replace(whole, correspondence=unsure)
    assert "0 2 of 2 north, south" in told_of(changed)
    record = posterior_record(changed)["correspondence"]
    assert [line["confidence"] for line in record] == [None] * 4
    assert [line["cluster"] for line in record] == [0, 1, 0, 2]


def test_distinct_rows_are_called_what_they_are(whole):
    assert "but for its order" not in told_of(whole)
    sent = {name: {"DistinctRows": 10, "Rumour": 3} for name in SILOS}
    provenance = dataclasses.replace(whole.provenance, sent=sent)
    text = told_of(dataclasses.replace(whole, provenance=provenance))
    assert "Distinct rows with their counts are the table but for its order." in text
    assert "north 10 3 13" in text


def test_many_silos_are_summed_up(seed):
    rng = np.random.default_rng(seed)
    names = tuple(f"site {n}" for n in range(25))
    made = make_posterior(rng)
    sent = {name: {"Release": 100 + n} for n, name in enumerate(names)}
    provenance = dataclasses.replace(made.provenance, silos=names, sent=sent)
    matched = dataclasses.replace(
        made.correspondence,
        silos=names,
        groups=(np.array([0, 1, 2]),) * 25,
        sizes=(np.array([4, 4, 4]),) * 25,
        confidence=None,
    )
    many = dataclasses.replace(
        made, provenance=provenance, correspondence=matched, silo_weights=None, assignment=None
    )
    text = told_of(many)
    assert "site 19" in text
    assert "site 20" not in text
    assert "5 more, at most 124 124" in text
    assert "site 6, site 7 and 17 more" in text


@pytest.mark.parametrize("point", [False, True])
def test_the_table_of_drift_on_disk_is_the_frame(tmp_path, whole, seed, point):
    drifting = with_drift(whole, np.random.default_rng(seed), point=point)
    write_posterior(tmp_path, drifting)
    on_disk = pd.read_csv(tmp_path / "drift.csv")
    pd.testing.assert_frame_equal(on_disk, drifting.drift(), rtol=1e-5, check_dtype=False)
    assert np.isinf(on_disk["kappa"]).any()


def test_the_summary_says_in_which_variables_the_silos_differ(whole, seed):
    assert "In which variables the silos differ" not in told_of(whole)
    text = told_of(with_drift(whole, np.random.default_rng(seed)))
    assert "The silos differ in 1 of 3 variables, with a probability of at least 95% each" in text


def test_parts_that_a_posterior_lacks(tmp_path, whole):
    bare = dataclasses.replace(
        whole, correspondence=None, silo_weights=None, assignment=None,
        diagnostics=make_diagnostics(polish=None),
    )  # fmt: skip
    record = posterior_record(bare)
    assert record["correspondence"] is record["silo_weights"] is None
    assert [cluster["rows"] for cluster in record["clusters"]] == [None] * 3
    assert (record["polish_rounds"], record["still_moving"]) == (0, False)
    assert "3 clusters in 2 silos, 3 variables" in told_of(bare)
    drifting = with_drift(whole, np.random.default_rng(1))
    everything = {path.name for path in posterior_files(tmp_path)}
    assert {path.name for path in write_posterior(tmp_path, drifting)} == everything
    files = write_posterior(tmp_path, bare)
    gone = {"labels.csv", "correspondence.csv", "silo_weights.csv", "drift.csv"}
    assert {path.name for path in files} == everything - gone
    assert {path.name for path in tmp_path.iterdir()} == everything - gone


def test_tables_of_the_whole_result(tmp_path, whole):
    whole = with_drift(whole, np.random.default_rng(1))
    files = write_posterior(tmp_path / "a" / "b", whole)
    assert files == posterior_files(tmp_path / "a" / "b")
    folder = files[0].parent
    sizes = pd.read_csv(folder / "cluster_sizes.csv")
    assert sizes["rows"].tolist() == np.bincount(whole.labels, minlength=3).tolist()
    np.testing.assert_allclose(sizes["mean"], whole.weights.mean(axis=0), rtol=1e-5)
    profiles = pd.read_csv(folder / "profiles.csv", dtype={"level_name": str})
    assert list(zip(profiles["variable"], profiles["level_name"], strict=True)) == (
        whole.levels * 3
    )
    assert len(pd.read_csv(folder / "correspondence.csv")) == 8
    weights = pd.read_csv(folder / "silo_weights.csv")
    np.testing.assert_allclose(weights["profile"], whole.silo_weights.profiles.ravel(), rtol=1e-5)
    labels = pd.read_csv(folder / "labels.csv")
    assert labels["silo"].tolist() == [SILOS[place] for place in whole.assignment.silos]
    kept = silomix.load(folder / "posterior.silomix")
    np.testing.assert_array_equal(kept.weights, whole.weights)
    assert silomix.read_study(folder / "study.toml") == whole.study


def test_assigned_rows(whole):
    table = pd.DataFrame(
        {"site": ["north", None, "west"], "smoker": ["no", "yes", None],
         "stage": ["I", "II", "III"], "sex": ["f", "m", "f"]}
    )  # fmt: skip
    labels = assign_rows(whole, table, "site", threads=1)
    expected = whole.membership(table, silo="site")
    assert labels["row"].tolist() == [1, 2, 3]
    assert labels["silo"].fillna("nowhere").tolist() == ["north", "nowhere", "west"]
    assert labels["cluster"].tolist() == expected.argmax(axis=1).tolist()
    assert labels["probability"].tolist() == expected.max(axis=1).round(4).tolist()
    assert assigned_record(whole, labels)["rows_of_other_silos"] == 2
    text = " ".join(as_text(assigned_view(whole, labels)).split())
    assert text.startswith("3 rows, 3 clusters")
    assert "overall weights apply: 2." in text
    ours = assign_rows(whole, table, "north")
    assert assigned_record(whole, ours)["rows_of_other_silos"] == 0
    assert "overall weights" not in as_text(assigned_view(whole, ours))
    told = " ".join(as_text(assigned_view(whole, assign_rows(whole, table, None))).split())
    assert "apply: 3. If a column names their silos, give --silo and its name." in told


@pytest.mark.parametrize("silo", ["sight", "smoker"])
def test_a_misspelt_silo_column(whole, silo):
    table = pd.DataFrame({"smoker": ["no"], "stage": ["I"], "sex": ["f"]})
    message = (
        f"{silo!r} is neither a column of the table that names silos nor a silo of the "
        "posterior, whose silos are 'north', 'south'; correct the name"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        assign_rows(whole, table, silo)


def test_files_in_the_way(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.touch()
    check_free([two], force=False)
    check_free([one, two], force=True)
    message = f"{one} exists already; give --force to replace, or another --out"
    with pytest.raises(SettingsError, match=re.escape(message)):
        check_free([one, two], force=False)
    two.touch()
    with pytest.raises(SettingsError, match=re.escape(f"{one}, {two} exist already; give")):
        check_free([one, two], force=False)
    many = [tmp_path / str(place) for place in range(4)]
    for path in many:
        path.touch()
    message = f"{tmp_path} has results already, 4 files; give --force to replace, or another"
    with pytest.raises(SettingsError, match=re.escape(message)):
        check_free(many, force=False)


def test_places_that_cannot_be_written(tmp_path):
    path = tmp_path / "absent" / "file.txt"
    message = f"{path} cannot be written: No such file or directory; choose another place"
    with pytest.raises(SettingsError, match=re.escape(message)):
        write_text("text", path)


@pytest.mark.parametrize(
    ("write", "content"), [(write_text, "new"), (write_table, pd.DataFrame({"a": [0.1, 2.5e-7]}))]
)
def test_results_are_there_whole_or_not_at_all(tmp_path, monkeypatch, write, content):
    def refuse(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    write(content, path)
    whole = path.read_bytes()
    assert whole in {b"new", b"a\n0.1\n2.5e-07\n"}
    path.write_bytes(b"old")
    with monkeypatch.context() as patch, pytest.raises(SettingsError, match="No space left"):
        patch.setattr("os.fsync", refuse)
        write(content, path)
    assert path.read_bytes() == b"old"
    write(content, path)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
