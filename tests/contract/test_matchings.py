"""Every matching does what the pipeline relies on."""

from __future__ import annotations

import numpy as np
import pytest
from cases.aggregation_cases import counts_of
from cases.families import model_of
from cases.matching_cases import (
    QuietSilos,
    RowSilos,
    draw_releases,
    plant_rows,
    rearrange,
    rearrange_groups,
    together,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from silomix.coordinator.matching import match
from silomix.errors import SettingsError
from silomix.study.methods import MATCHINGS

WORDS = sorted(MATCHINGS)
# without folding, which is the same for all
PLAIN = {word: MATCHINGS[word].record(absorb=0) for word in WORDS}

# no silo holds every cluster: the design of Fendler et al. (2026), table 1
NON_NESTED = [[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]


@pytest.fixture(params=WORDS)
def word(request):
    return request.param


def run(case, word, seed=0):
    silos = RowSilos(case.releases, case.codes, case.sizes)
    counts = counts_of(case.releases, case.model(seed))
    return match(case.releases, counts, PLAIN[word], silos, case.model(seed), drift=False)[0]


def assert_sound(found, releases):
    """All that `Correspondence` promises."""
    assert found.silos == tuple(release.silo for release in releases)
    assert [len(group) for group in found.groups] == [release.clusters for release in releases]
    ids, sizes = np.concatenate(found.groups), np.concatenate(found.sizes)
    assert set(ids) == set(range(found.clusters))
    rows = np.bincount(ids, weights=sizes)
    assert (np.diff(rows) <= 0).all()
    assert found.confidence.shape == (len(ids), len(ids))
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()


# clusters of each silo, its rows, and the matchings that need not find them there
PLANTED = {
    "all hold all": (np.ones((4, 5)), (600, 500, 400, 500), ()),
    "no silo holds all": (NON_NESTED, (600, 600, 400, 300), ("hungarian",)),
    "disjoint": ([[1, 1, 0, 0], [0, 0, 1, 1]], (300, 300), ("hungarian", "divergence")),
    "one silo": (np.ones((1, 4)), (300,), ()),
    "a silo of one row": ([[1, 1], [1, 0]], (300, 1), WORDS),
}


@pytest.mark.parametrize("name", PLANTED)
def test_finds_planted_clusters(word, name, seed):
    holds, rows, excused = PLANTED[name]
    case = plant_rows(seed, holds, rows)
    found = run(case, word)
    assert found.method == word
    assert_sound(found, case.releases)
    if word not in excused:
        truth = np.concatenate(case.correspondence.groups)
        assert_array_equal(together(np.concatenate(found.groups)), together(truth))


def test_hungarian_is_never_right_where_no_silo_holds_all(seed):
    for each in range(5):
        case = plant_rows([seed, each], NON_NESTED, (600, 600, 400, 300))
        assert run(case, "hungarian").clusters == 5


@pytest.mark.parametrize(
    "word", ["hungarian", "ball", "evidence", pytest.param("divergence", marks=pytest.mark.slow)]
)
def test_a_hundred_silos(word, seed):
    case = plant_rows(seed, np.ones((100, 2)), (40,) * 100)
    found = run(case, word)
    assert_sound(found, case.releases)
    truth = np.concatenate(case.correspondence.groups)
    # evidence may keep copies of one cluster apart; no matching may mix the two
    apart = truth[:, None] != truth
    assert not (together(np.concatenate(found.groups)) & apart).any()


@pytest.mark.parametrize("word", ["hungarian", "ball", "evidence"])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), number=st.integers(0, 10**6))
def test_another_order_of_silos_and_labels_gives_the_same_answer(word, data, number):
    """Divergence takes the silos in turn, so it is not asked to."""
    rng = np.random.default_rng(number)
    present = [rng.choice(4, rng.integers(1, 5), replace=False) for _ in range(4)]
    # rows differ between silos, so that the reference of hungarian is never a tie
    releases = draw_releases(rng, present, rows=20, concentration=1.0)
    silos = data.draw(st.permutations(range(4)))
    labels = [data.draw(st.permutations(range(release.clusters))) for release in releases]
    moved = rearrange(releases, silos, labels)
    model = model_of((2, 3, 2), 1)
    counts = counts_of(releases, model)
    before, after = (
        match(some, own, MATCHINGS[word].record(), QuietSilos(some), model, drift=False)[0]
        for some, own in (
            (releases, counts),
            (moved, [rearrange_groups(counts, silos, labels)]),
        )
    )
    expected = rearrange_groups(before.groups, silos, labels)
    assert_array_equal(together(np.concatenate(after.groups)), together(expected))
    places = np.split(np.arange(len(expected)), np.cumsum([r.clusters for r in releases])[:-1])
    order = rearrange_groups(places, silos, labels)
    assert_array_equal(after.confidence, before.confidence[np.ix_(order, order)])


@pytest.mark.parametrize(
    ("answer", "described"),
    [([0.5] * 10, "float64 of shape"), ([0] * 11, r"int64 of shape \(11,\)")],
)
def test_what_is_no_grouping_is_refused_with_the_name_of_the_matching(
    rng, monkeypatch, answer, described
):
    case = draw_releases(rng, [range(5), range(5)])
    entry = MATCHINGS["evidence"]._replace(function=lambda problem, settings: answer)
    monkeypatch.setitem(MATCHINGS, "evidence", entry)
    model = model_of((2, 3, 2), 0)
    given = case, counts_of(case, model), PLAIN["evidence"], QuietSilos(case), model
    with pytest.raises(SettingsError, match=f"'evidence' returned {described}.* 10 local clusters"):
        match(*given, drift=False)
