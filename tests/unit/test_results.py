from __future__ import annotations

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest

import silomix
from silomix.errors import SettingsError
from silomix.results import (
    as_record,
    as_text,
    check_free,
    describe,
    profile_table,
    sizes_table,
    write_silo,
    write_text,
)


@pytest.fixture(scope="module")
def posterior():
    table, truth = silomix.simulate("homogeneous", rows=120, silos=1, seed=1)
    draws = silomix.sample(
        table.drop(columns="silo"), iterations=200, threads=1, progress=False
    )
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
    files = write_silo(folder, "north", posterior, summary="report.txt")
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in files)
    on_disk = pd.read_csv(folder / "profile.csv", dtype={"level": "str"})
    pd.testing.assert_frame_equal(
        on_disk, profile_table(posterior), rtol=1e-5, check_dtype=False
    )
    assert b"\r" not in (folder / "profile.csv").read_bytes()


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


def test_places_that_cannot_be_written(tmp_path):
    path = tmp_path / "absent" / "file.txt"
    message = f"{path} cannot be written: No such file or directory; choose another place"
    with pytest.raises(SettingsError, match=re.escape(message)):
        write_text("text", path)
