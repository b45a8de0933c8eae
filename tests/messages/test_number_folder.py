"""Release folders of studies with numbers."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from cases.number_cases import MIXED, release_of, two_clusters

from silomix.errors import MessageError
from silomix.messages.folder import read, read_release, release_tables, write_release
from silomix.model.schema import Schema, Shard
from silomix.study import make_study
from silomix.study.policy import PRESETS

pytestmark = pytest.mark.usefixtures("without_pictures")

ARRAYS = ("sizes", "mean", "concentration")


@pytest.fixture(scope="module")
def shard():
    return two_clusters(np.random.default_rng(4), 300)[0]


@pytest.mark.parametrize(("policy", "tier"), [("default", "summary"), ("open", "draws")])
def test_every_array_reads_back_bit_for_bit(shard, tmp_path, policy, tier):
    release = release_of(shard, PRESETS[policy], tier, components=2)
    write_release(release, tmp_path / "out", MIXED)
    again, schema = read_release(tmp_path / "out")
    assert schema.variables == MIXED.variables
    for name in ARRAYS + (("weights", "parameters") if tier == "draws" else ()):
        found = getattr(again, name)
        np.testing.assert_array_equal(found, getattr(release, name))
        assert found.dtype == getattr(release, name).dtype


def test_a_data_officer_reads_means_and_spreads_in_the_units_of_the_data(shard):
    release = release_of(shard, components=2)
    text = release_tables(release, MIXED)["profile.csv"].decode()
    lines = list(csv.DictReader(text.splitlines()))
    assert [line["level"] for line in lines[:5]] == ["no", "yes", "mean", "sd", "rate"]
    mean, sd, rate = lines[2:5]
    _, x, square = release.mean[0, 2:5]
    assert float(mean["in_data_units"]) == pytest.approx(54 + 9 * x)
    assert float(sd["in_data_units"]) == pytest.approx(9 * np.sqrt(square - x * x))
    assert float(rate["in_data_units"]) == float(rate["mean"]) == release.mean[0, 6]
    assert (mean["kind"], mean["location"], mean["scale"]) == ("gaussian", "54.0", "9.0")
    assert mean["count"] == ""
    assert mean["basis"] == "cluster"


def test_the_page_for_people_says_what_numbers_leave(shard, tmp_path):
    for policy, word in (("default", "whatever its value"), ("open", "nearly exactly")):
        write_release(release_of(shard, PRESETS[policy]), tmp_path / policy, MIXED)
        page = " ".join((tmp_path / policy / "README.txt").read_text().split())
        assert word in page


def test_the_page_of_numbers_alone_does_not_speak_of_levels(shard, tmp_path):
    schema = Schema(MIXED.numbers)
    alone = Shard(schema, shard.codes[:, :0], shard.numbers)
    for policy, tier in (("default", "summary"), ("open", "draws")):
        release = release_of(alone, PRESETS[policy], tier, components=2)
        write_release(release, tmp_path / policy, schema)
        page = (tmp_path / policy / "README.txt").read_text()
        assert "level" not in page
        assert "How many rows each cluster has" in page


def test_another_location_is_another_study(shard, tmp_path):
    write_release(release_of(shard, components=2), tmp_path / "out", MIXED)
    read(tmp_path / "out", study=make_study(MIXED, ["north"]))
    (age, *others), categories = MIXED.numbers, MIXED.categories
    moved = Schema((*categories, replace(age, location=55.0), *others))
    with pytest.raises(MessageError, match="with different variables or levels from the study's"):
        read(tmp_path / "out", study=make_study(moved, ["north"]))


def test_a_release_need_not_say_how_cells_are_read(shard, tmp_path):
    """Of a number whose zeros are a variable of their own, and of levels cut from numbers."""
    zero, *others = MIXED.variables
    split = replace(zero, spike=0.0, source="age"), *(replace(v, spike=0.0) for v in others)
    for variables in (split, (replace(zero, edges=(0.5,)), *others)):
        schema = Schema(variables)
        write_release(release_of(shard, components=2), tmp_path / "out", schema, force=True)
        read(tmp_path / "out", study=make_study(schema, ["north"]))
    other = make_study(Schema((replace(zero, name="other"), *others)), ["north"])
    with pytest.raises(MessageError, match="with different variables or levels from the study's"):
        read(tmp_path / "out", study=other)


def test_numbers_that_no_table_shows_are_refused(shard):
    release = release_of(shard, components=2)
    mean = release.mean.copy()
    mean[0, 2] = 1.5  # of rows with a number, how many have it
    with pytest.raises(MessageError, match="does not count the rows"):
        release_tables(replace(release, mean=mean), MIXED)


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_units_that_no_study_has_are_refused(shard, tmp_path, wrong):
    """Everything in the folder fits together: it was made so."""
    smoker, age, visits = MIXED.variables
    schema = Schema((smoker, replace(age, scale=wrong), visits))
    write_release(release_of(shard), tmp_path / "out", schema)
    with pytest.raises(MessageError, match="scale"):
        read_release(tmp_path / "out")
