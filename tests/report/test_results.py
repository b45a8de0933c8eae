from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cases.posteriors import SILOS, make_diagnostics, make_posterior, with_drift

import silomix
from silomix.errors import SettingsError
from silomix.report import make_report, sections, summary
from silomix.report import results_folder as files
from silomix.report.display import as_text


@pytest.fixture(scope="module")
def posterior():
    table, truth = silomix.simulate("homogeneous", rows=120, silos=1, seed=1)
    draws = silomix.sample(table.drop(columns="silo"), iterations=200, threads=1, progress=False)
    return silomix.local_posterior(draws, partition=truth.labels, relabel="average")


def told(posterior):
    return " ".join(as_text(summary.silo_view("north", posterior)).split())


def test_tables_of_one_silo(tmp_path, posterior):
    sizes, profiles = summary.silo_sizes(posterior), summary.silo_profiles(posterior)
    for table, mean in ((sizes, "weight"), (profiles, "mean")):
        assert table[mean].between(table["lower_95_hdi"], table["upper_95_hdi"]).all()
    assert sizes["share"].sum() == pytest.approx(1)
    np.testing.assert_allclose(profiles.groupby(["cluster", "variable"])["mean"].sum(), 1, 1e-5)
    folder = tmp_path / "a" / "b"
    assert {*files.write_silo(folder, "north", posterior)} == {*folder.iterdir()}
    on_disk = pd.read_csv(folder / "profiles.csv", dtype={"level": "str"})
    pd.testing.assert_frame_equal(on_disk, profiles, rtol=1e-5, check_dtype=False)
    assert b"\r" not in (folder / "profiles.csv").read_bytes()


def test_summary_says_how_it_was_made(posterior):
    text = told(posterior)
    assert "north: 120 rows, 10 variables, 5 clusters" in text
    assert "15 components, 2 chains of 200 sweeps (100 burn-in, then all kept), seed 0" in text
    assert "Partition by given; draws relabelled by average" in text
    assert "silos" not in text
    partition = replace(posterior.partition, subsample=5000)
    draws = replace(posterior.draws, silos=3)
    changed = replace(posterior, partition=partition, draws=draws)
    assert "seed 0, one of 3 silos. Partition by given on a subsample of 5,000 rows" in told(
        changed
    )
    assert summary.silo_record("north", changed)["subsample"] == 5000


def test_text_is_plain(posterior, whole):
    text = as_text(summary.silo_view("[red]north[/red]", posterior))
    assert text.startswith("[red]north[/red]: 120 rows")
    assert "\x1b" not in text
    for lines in (text, as_text(summary.posterior_view(whole))):
        assert max(map(len, lines.splitlines())) <= 88


@pytest.fixture
def whole(seed):
    """A posterior of made-up numbers over two silos."""
    return make_posterior(np.random.default_rng(seed))


def told_of(posterior):
    return " ".join(as_text(summary.posterior_view(posterior)).split())


def test_the_whole_result_in_words(whole):
    text = told_of(whole)
    assert f"3 clusters in 2 silos, {len(whole.labels)} rows, 3 variables" in text
    rows = sum(int(sizes.sum()) for sizes in whole.correspondence.sizes)
    assert f"2 silos, about {rows} rows" in told_of(replace(whole, assignment=None))
    assert whole.diagnostics.verdict in text
    means = whole.weights.mean(axis=0)
    lower, upper = silomix.metrics.highest_density_interval(whole.weights)
    counted = np.bincount(whole.labels, minlength=3)
    for k in range(3):
        line = rf"{k} {counted[k]} \S+ {means[k]:.1%} {lower[k]:.1%} to {upper[k]:.1%}"
        assert re.search(line, text)
    assert "north 1,000 64 1,064" in text
    for made in ("matched by 'evidence'", "combined by 'vcmc'", "8 exact Gibbs rounds", "Seed 7"):
        assert made in text


def test_page_terminal_and_folder_have_the_same_sections(tmp_path, whole):
    shown = sections(whole)
    ids = re.findall(r'<section id="(\w+)"', make_report(whole))
    assert ids == [section.id for section in shown]
    brief = [one.title for one in shown if one.tables or [*one.sentences(whole)]]
    lines = as_text(summary.posterior_view(whole)).splitlines()
    assert [line for line in lines if line in {one.title for one in shown}] == brief
    files.write_posterior(tmp_path, whole)
    frames = dict(frame for section in shown for frame in section.files)
    there = {name for name, (needed, _) in frames.items() if getattr(whole, needed) is not None}
    assert {path.name for path in tmp_path.glob("*.csv")} == there


def test_distinct_rows_are_called_what_they_are(whole):
    provenance = replace(whole.provenance, sent={name: {"DistinctRows": 10} for name in SILOS})
    words = "Distinct rows: with their counts they are the table, except for its order"
    assert words in told_of(replace(whole, provenance=provenance)) and words not in told_of(whole)


def test_who_holds_what_and_how_sure_it_is(whole):
    sure = np.eye(4)
    sure[0, 2] = sure[2, 0] = 0.834
    groups, sizes = (np.array([0, 1]), np.array([0, 2])), (np.array([5, 4]), np.array([3, 2]))
    matched = replace(whole.correspondence, groups=groups, sizes=sizes, confidence=sure)
    text = told_of(replace(whole, correspondence=matched))
    assert "0 2 of 2 0.83 north (0.83), south (0.83)" in text
    assert "1 1 of 2 1.00 north" in text
    assert "2 1 of 2 1.00 south" in text
    changed = replace(whole, correspondence=replace(matched, confidence=None))
    assert "0 2 of 2 north, south" in told_of(changed)


def test_the_folder_of_the_whole_result(tmp_path, whole):
    whole, folder = with_drift(whole, np.random.default_rng(1)), tmp_path / "a" / "b"
    everything = files.posterior_files(folder)
    rows_alone = {"outside.csv", "odds.csv"}
    everything = [path for path in everything if path.name not in rows_alone]
    assert files.write_posterior(folder, whole) == everything
    read = {path.stem: pd.read_csv(path) for path in everything if path.suffix == ".csv"}
    assert read["cluster_sizes"]["rows"].tolist() == np.bincount(whole.labels).tolist()
    np.testing.assert_allclose(read["cluster_sizes"]["mean"], whole.weights.mean(axis=0), 1e-5)
    levels = read["profiles"][["variable", "level_name"]].itertuples(index=False, name=None)
    assert list(levels) == whole.levels * 3
    assert len(read["correspondence"]) == 8
    np.testing.assert_allclose(
        read["silo_weights"]["profile"], whole.silo_weights.profiles.ravel(), rtol=1e-5
    )
    assert read["labels"]["silo"].tolist() == [SILOS[place] for place in whole.assignment.silos]
    kept = silomix.load(folder / "posterior.silomix")
    np.testing.assert_array_equal(kept.weights, whole.weights)
    assert silomix.read_study(folder / "study.toml") == whole.study
    # what another posterior lacks is removed
    bare = {"correspondence": None, "silo_weights": None, "assignment": None}
    bare = replace(whole, silo_profiles=None, **bare, diagnostics=make_diagnostics(polish=None))
    gone = {"labels.csv", "correspondence.csv", "silo_weights.csv", "drift.csv"}
    left = {path for path in everything if path.name not in gone}
    (folder / "outside.csv").touch()
    assert {*files.write_posterior(folder, bare)} == {*folder.iterdir()} == left
    record = summary.posterior_record(bare)
    assert record["correspondence"] is record["silo_weights"] is None
    assert [cluster["rows"] for cluster in record["clusters"]] == [None] * 3
    assert (record["polish_rounds"], record["still_moving"]) == (0, False)
    assert "3 clusters in 2 silos, 3 variables" in told_of(bare)


def test_assigned_rows(whole):
    table = pd.DataFrame({"smoker": ["no", "yes", None], "stage": ["I", "II", "III"], "sex": "f"})
    table["site"] = ["north", None, "west"]
    table["patient"] = ["a", "b", "c"]
    labels = whole.labels_frame(table, "site", id="patient", threads=1)
    assert labels["id"].tolist() == ["a", "b", "c"]
    expected = whole.membership(table, silo="site")
    assert labels["row"].tolist() == [1, 2, 3]
    assert labels["silo"].fillna("nowhere").tolist() == ["north", "nowhere", "west"]
    assert labels["cluster"].tolist() == expected.argmax(axis=1).tolist()
    assert labels["probability"].tolist() == expected.max(axis=1).round(4).tolist()
    for silo, others in (("site", 2), ("north", 0), (None, 3)):
        labels = whole.labels_frame(table=table, silo=silo)
        assert summary.assigned_record(whole, labels)["rows_of_other_silos"] == others
        text = " ".join(as_text(summary.assigned_view(whole, labels)).split())
        assert text.startswith("3 rows, 3 clusters")
        assert (f"labelled by the overall weights: {others}." in text) == (others > 0)
        assert ("give it with --silo" in text) == (silo is None)


def test_files_in_the_way(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.touch()
    files.check_free([two], force=False)
    files.check_free([one, two], force=True)
    for paths, words in (
        ([one, two], f"there: {one}; give"),
        ([one] * 8, f"{one} and 5 more; give"),
    ):
        with pytest.raises(SettingsError, match=re.escape(words)):
            files.check_free(paths, force=False)


def test_tables_and_texts_replace_what_was_there_or_say_why_not(tmp_path):
    for write, content in (
        (files.write_text, "new"),
        (files.write_table, pd.DataFrame({"a": [0.1, 2.5e-7]})),
    ):
        path = tmp_path / "file"
        write(content, path)
        assert path.read_bytes() in {b"new", b"a\n0.1\n2.5e-07\n"}
        with pytest.raises(SettingsError, match="cannot be written: No such file or directory"):
            write(content, tmp_path / "absent" / "file")
