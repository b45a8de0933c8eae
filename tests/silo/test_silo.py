"""The silo's side of the seam: what it answers, what it refuses, and what it remembers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import silomix
from silomix import errors
from silomix.errors import CheckpointError, MessageError, PolicyRefusal
from silomix.messages import (
    REFUSALS,
    AssignRows,
    LogLikelihood,
    PolishRound,
    Refused,
    SampleLocally,
    ShareReleases,
)
from silomix.messages.container import Envelope, decode, encode
from silomix.messages.release_explained import QUESTIONS
from silomix.model.table import load
from silomix.paper import FewRounds
from silomix.silo.answer import HANDLERS, LIMITED, answer, answer_or_refuse, refusal_code
from silomix.silo.local import Silo, ran_enough
from silomix.silo.store import Store, open_store
from silomix.study import make_study
from silomix.study.policy import OPEN, find_policy

NAMES = ["north", "south"]


@pytest.fixture(scope="module")
def whole():
    table, _ = silomix.simulate("homogeneous", rows=1200, silos=2, seed=4)
    return load(table.drop(columns="silo"))


@pytest.fixture(scope="module")
def study(whole):
    return make_study(
        whole.schema,
        NAMES,
        seed=3,
        iterations=600,
        oracle="federated",
        solver=FewRounds(starts=100),
        polish=2,
    )


def make_silo(whole, study, place=0, **options):
    shard = silomix.model.schema.Shard(whole.schema, whole.codes[place::2])
    return Silo(name=NAMES[place], place=place, shard=shard, study=study, **options)


@pytest.fixture(scope="module")
def sampled(whole, study):
    """Both silos, sampled once."""
    silos = [make_silo(whole, study, place) for place in range(2)]
    for silo in silos:
        answer(SampleLocally(), silo)
    return silos


@pytest.mark.parametrize(
    ("agreement", "trusted", "polish", "enough"),
    [
        (0.9, True, "until", True),
        (0.9, False, "until", True),
        (0.8, True, "until", False),
        (0.9, True, 0, True),
        (0.9, False, 0, False),
    ],
)
def test_when_a_silo_has_sampled_enough(whole, agreement, trusted, polish, enough):
    """Its chains agree; where its draws are the answer they must have mixed too."""
    study = make_study(whole.schema, NAMES, polish=polish)
    draws = SimpleNamespace(diagnostics=SimpleNamespace(trusted=trusted))
    clusters = SimpleNamespace(agreement=agreement)
    assert ran_enough(draws, clusters, study) is enough
    alone = make_study(whole.schema, ["all"], polish=polish)
    assert ran_enough(draws, clusters, alone) is (enough and trusted)


def test_a_silo_goes_on_only_while_its_chains_disagree(whole, monkeypatch):
    study = make_study(whole.schema, NAMES, seed=3, iterations=4000)
    first = answer(SampleLocally(), make_silo(whole, study))
    assert first.diagnostics.sweeps == 1000
    assert first.diagnostics.agreement >= 0.85
    monkeypatch.setattr("silomix.silo.local.ENOUGH_AGREEMENT", 1.1)
    longest = answer(SampleLocally(), make_silo(whole, study))
    assert longest.diagnostics.sweeps == 4000
    files = make_study(whole.schema, NAMES, preset="files", iterations=1000)
    ruled = make_silo(whole, files, policy=find_policy("default"))
    assert answer(SampleLocally(), ruled).diagnostics.sweeps == 0


def polish_round(sampled, number=1):
    release = sampled[0].store.kept.release
    return PolishRound(
        number,
        np.full((3, release.clusters), 1 / release.clusters),
        np.repeat(release.mean[None], 3, axis=0),
        alpha=0.25,
        inner_sweeps=1,
    )


def shared_releases(sampled):
    releases = tuple(silo.store.kept.release for silo in sampled)
    groups = tuple(np.arange(release.clusters) for release in releases)
    return ShareReleases(releases, groups, 20)


def a_point(share):
    clusters = 1 + max(int(group.max()) for group in share.groups)
    held = np.array([[c < len(group) for c in range(clusters)] for group in share.groups])
    return LogLikelihood(
        share.key, 0, 10, np.full((1, 2), 0.5), (held / held.sum(axis=0))[None].astype(float)
    )


def with_limits(policy, **limits):
    return policy.model_copy(update={"exchanges": policy.exchanges.model_copy(update=limits)})


def test_every_question_but_for_the_release_is_limited_and_the_officer_told():
    # rivals bring questions of their own, which no message can carry
    carried = {kind for kind in HANDLERS if kind.__module__.startswith("silomix.messages")}
    assert LIMITED.keys() == carried - {SampleLocally, AssignRows}
    assert set(LIMITED.values()) == set(type(OPEN.exchanges).model_fields) == set(QUESTIONS)


def test_questions_are_counted_and_the_same_one_counts_once(whole, study, sampled):
    policy = with_limits(find_policy("default"), polish=2)
    silo = make_silo(whole, study, policy=policy)
    first = answer(polish_round(sampled, 1), silo)
    again = answer(polish_round(sampled, 1), silo)
    assert_array_equal(first.statistics, again.statistics)
    answer(polish_round(sampled, 2), silo)
    third = replace(polish_round(sampled, 2), inner_sweeps=2)
    assert answer_or_refuse(third, silo) == Refused("limit")
    assert_array_equal(answer(polish_round(sampled, 1), silo).statistics, first.statistics)


def forged(share):
    """The sharing with another release of the other silo."""
    one, other = share.releases
    return replace(share, releases=(one, replace(other, mean=other.mean[::-1].copy())))


class TestSharing:
    @pytest.fixture
    def limited(self, sampled):
        def make(policy=OPEN, **limits):
            store = Store()
            store.kept = sampled[0].store.kept
            return replace(sampled[0], policy=with_limits(policy, **limits), store=store)

        return make

    def test_a_question_about_other_releases_is_another_question(self, sampled, limited):
        share = shared_releases(sampled)
        back = decode(encode(Envelope("", "", 1, "ShareReleases"), share))[1]
        other = forged(share)
        assert back.key == share.key != other.key
        assert replace(share, draws=21).key != share.key
        silo = limited(gradients=10)
        answer(share, silo)
        point = a_point(share)
        value = answer(point, silo).value
        answer(other, silo)
        assert answer_or_refuse(point, silo) == Refused("order")
        assert answer_or_refuse(replace(point, shared=other.key), silo) == Refused("limit")
        answer(share, silo)
        assert_array_equal(answer(point, silo).value, value)

    def test_the_silo_knows_its_own_release(self, sampled, limited):
        share, silo = shared_releases(sampled), limited(sharing=5)
        own, other = share.releases
        for change in (
            {"mean": own.mean[:, ::-1].copy()},
            {"sizes": own.sizes + 1},
            {"concentration": own.concentration * 2},
            {"parameters": own.parameters[::-1].copy()},
            {"weights": None},
        ):
            wrong = replace(share, releases=(replace(own, **change), other))
            with pytest.raises(MessageError):
                answer(wrong, silo)
        # a wrong guess counts: it was held against what the silo made of its rows
        assert answer_or_refuse(share, silo) == Refused("limit")
        renamed = replace(own, policy={})
        answer(replace(share, releases=(renamed, other)), replace(silo, policy=OPEN))

    def test_points_are_counted_one_by_one(self, sampled, limited):
        """Ten draws at one starting point are ten points; half a question is not answered."""
        share, silo = shared_releases(sampled), limited(gradients=15)
        answer(share, silo)
        first = a_point(share)
        answer(first, silo)
        answer(first, silo)
        assert list(silo.store.asked["gradients"].values()) == [10]
        with pytest.raises(PolicyRefusal, match=r"15 points .* of which 5 are left, .* about 6"):
            answer(replace(first, first=10, last=16), silo)
        answer(replace(first, first=10, last=15), silo)
        with pytest.raises(PolicyRefusal, match="15 points about gradients and all were asked"):
            answer(replace(first, first=15, last=16), silo)
        points = {n: np.repeat(getattr(first, n), 2, axis=0) for n in ("weights", "profiles")}
        twice = limited(gradients=20)
        answer(share, twice)
        answer(replace(first, **points), twice)
        assert list(twice.store.asked["gradients"].values()) == [20]


def test_a_release_is_held_against_the_policy_of_today(sampled):
    strict = replace(sampled[0], policy=OPEN.model_copy(update={"tiers": ("summary",)}))
    assert answer_or_refuse(SampleLocally(), strict) == Refused("policy")
    hidden = with_limits(OPEN, sharing=0)
    release = answer(SampleLocally(), replace(sampled[0], policy=hidden))
    assert release.policy["exchanges"]["sharing"] == 0
    assert release.mean is sampled[0].store.kept.release.mean


def test_a_point_for_other_draws_than_were_shown_is_refused(sampled):
    share = shared_releases(sampled)
    answer(share, sampled[0])
    point = a_point(share)
    assert answer_or_refuse(replace(point, first=15, last=21), sampled[0]) == Refused("question")
    fewer = replace(point, profiles=np.full((1, 2, 1), 0.5))
    assert answer_or_refuse(fewer, sampled[0]) == Refused("question")


def test_the_text_of_an_error_stays_in_the_silo(whole, study, monkeypatch, caplog):
    """Not even its log has the text of another's error, which may quote a cell."""
    name = "Zoe"

    def fail(query, silo):
        raise ValueError(f"row 17 has the patient {name}")

    monkeypatch.setitem(HANDLERS, SampleLocally, fail)
    assert answer_or_refuse(SampleLocally(), make_silo(whole, study)) == Refused("failed")
    assert "in fail" in caplog.text
    assert "ValueError" in caplog.text
    assert name not in caplog.text


def test_every_error_has_a_code_that_may_leave():
    known = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.code for kind in known if issubclass(kind, errors.SilomixError)}
    assert {"study", "question", "data", "dependency", "failed"} <= codes
    assert {*codes, refusal_code(PolicyRefusal("x"))} - {None} <= REFUSALS.keys()
    assert refusal_code(PolicyRefusal("x", code="too-few-rows")) == "too-few-rows"
    assert refusal_code(RuntimeError("x")) == "failed"


IDENTITY = {"silo": "north", "study": "s", "table": "t"}


def test_a_store_in_a_folder_remembers_everything(tmp_path, whole, study, sampled):
    first = make_silo(whole, study, policy=OPEN, store=open_store(tmp_path, IDENTITY))
    release = answer(SampleLocally(), first)
    share = shared_releases(sampled)
    answer(share, first)
    value = answer(a_point(share), first).value
    answer(polish_round(sampled), first)
    even = np.full((1, release.clusters), 1 / release.clusters)
    answer(AssignRows(even, release.mean[None]), first)

    second = replace(first, store=open_store(tmp_path, IDENTITY), shard=None)
    kept = second.store.kept
    assert_array_equal(kept.release.mean, release.mean)
    assert_array_equal(kept.labels, first.store.kept.labels)
    assert_array_equal(second.store.membership, first.store.membership)
    assert answer(SampleLocally(), second).sizes.tolist() == release.sizes.tolist()
    second = replace(second, shard=first.shard)
    assert_array_equal(answer(a_point(share), second).value, value)


@pytest.mark.parametrize("name", ["silo.json", "shared.safetensors"])
def test_a_store_of_something_else_or_damaged_is_refused(tmp_path, name):
    open_store(tmp_path, IDENTITY)
    (tmp_path / "taken").touch()
    for place, changes in (("", {"study": "another"}), ("taken", {})):
        with pytest.raises(CheckpointError):
            open_store(tmp_path / place, IDENTITY | changes)
    (tmp_path / name).write_bytes(b"[1, 2")
    with pytest.raises(CheckpointError, match="delete it: its contents are made again"):
        open_store(tmp_path, IDENTITY)
