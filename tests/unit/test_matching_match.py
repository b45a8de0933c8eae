"""`match`: numbering, absorbing, confidence, and releases that do not belong together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from silomix import matching as module
from silomix.errors import SettingsError, StudyMismatch
from silomix.matching import METHODS, match, number_by_rows
from silomix.matching.confidence import SWEEPS
from silomix.matching.records import by_appearance, local_clusters
from silomix.study import Evidence
from silomix.study.settings import MATCHINGS
from unit.matching_cases import PRIOR, SIZES, QuietSilos, draw_releases, make_release, offsets_of

OFFSETS = offsets_of(SIZES)
FIRST, SECOND = [95.0, 5, 90, 5, 5, 95, 5], [5.0, 95, 5, 90, 5, 5, 95]
FRAGMENT = [9.0, 1, 9, 0, 1, 9, 1]


def run(releases, settings=None, seed=0):
    return match(
        releases,
        Evidence() if settings is None else settings,
        QuietSilos(releases),
        prior=PRIOR,
        offsets=OFFSETS,
        seed=seed,
    )


def test_every_word_of_the_study_has_a_method():
    assert {"evidence", *METHODS} == set(MATCHINGS)


def test_groups_are_numbered_by_rows_then_by_the_roster():
    groups, sizes = np.array([5, 2, 9, 2, 5, 7]), np.array([10, 30, 40, 10, 30, 1])
    assert_array_equal(number_by_rows(groups, sizes), [0, 1, 2, 1, 0, 3])


def test_ids_are_numbered_by_appearance():
    assert_array_equal(by_appearance(np.array([7, 3, 7, 0, 3])), [0, 1, 0, 2, 1])


def test_local_clusters_know_their_names():
    clusters = local_clusters([make_release([FIRST]), make_release([SECOND, FIRST], place=1)])
    assert [clusters.name(k) for k in range(3)] == [("silo 0", 0), ("silo 1", 0), ("silo 1", 1)]


def test_correspondence_and_what_happened():
    releases = [
        make_release([SECOND, FIRST, FRAGMENT], members=[80, 100, 10]),
        make_release([FIRST], place=1, members=[100]),
    ]
    found, info = run(releases)
    assert found.silos == ("silo 0", "silo 1")
    assert found.method == "evidence"
    assert [group.tolist() for group in found.groups] == [[1, 0, 0], [0]]
    assert [sizes.tolist() for sizes in found.sizes] == [[80, 100, 10], [100]]
    assert len(info.gains) == 1
    assert info.absorbed[0].clusters == (("silo 0", 2),)
    assert info.sweeps == SWEEPS
    assert found.confidence[1, 3] > 0.99
    found, info = run(releases, Evidence(absorb=0))
    assert found.clusters == 3
    assert info.absorbed == ()


def test_correspondence_prints_as_a_table():
    found, _ = run([make_release([SECOND, FIRST]), make_release([FIRST], place=1)])
    lines = str(found).splitlines()
    assert lines[0].split() == ["silo", "local", "rows", "->", "global", "sure"]
    assert [line.split()[:6] for line in lines[1:]] == [
        ["silo", "0", "0", "100", "->", "1"],
        ["silo", "0", "1", "100", "->", "0"],
        ["silo", "1", "0", "100", "->", "0"],
    ]


def test_too_many_clusters_go_without_confidence(monkeypatch):
    monkeypatch.setattr(module, "MOST_LOCAL_CLUSTERS", 2)
    found, info = run([make_release([SECOND, FIRST]), make_release([FIRST], place=1)])
    assert found.confidence is None
    assert info.sweeps == 0
    assert "–" in str(found)


def test_same_seed_same_answer(seed):
    releases = draw_releases(np.random.default_rng(seed), [range(3)] * 4, rows=8, concentration=1.0)
    one, again, other = run(releases, seed=1), run(releases, seed=1), run(releases, seed=2)
    assert_array_equal(one[0].confidence, again[0].confidence)
    assert one[1] == again[1]
    assert not np.array_equal(one[0].confidence, other[0].confidence)


def test_no_release_is_refused():
    with pytest.raises(SettingsError, match="no release to match; give one from each silo"):
        run([])


@pytest.mark.parametrize("place", [0, 1])
def test_another_order_than_the_roster_s_is_refused(place):
    releases = [make_release([FIRST], place=1), make_release([FIRST], place=place, silo="b")]
    words = rf"'b' \(place {place} in the roster\) comes after that of 'silo 1' \(place 1\)"
    with pytest.raises(SettingsError, match=words):
        run(releases)


def test_releases_of_two_studies_are_refused():
    other = replace(make_release([FIRST], place=1), study="another study")
    words = "'silo 1' made its release for study another study, 'silo 0' for study a study"
    with pytest.raises(StudyMismatch, match=words):
        run([make_release([FIRST]), other])


def test_releases_of_another_schema_are_refused():
    other = make_release([[5, 5, 5, 5]], place=1, sizes=(2, 2))
    words = "'silo 1' has 4 level columns, the study's schema has 7"
    with pytest.raises(StudyMismatch, match=words):
        run([make_release([FIRST]), other])
