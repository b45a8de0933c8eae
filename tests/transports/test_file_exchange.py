"""Studies by file: the result of one process, whatever is lost, changed or put there by others."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from federation.exchange_cases import (
    ALLOWING,
    DEFAULT,
    ONE_ROUND,
    STUDIES,
    Prompt,
    answer_all,
    assert_same,
    by_file,
    in_process,
    make_case,
)
from federation.message_cases import write
from safetensors.numpy import load_file

from silomix.coordinator.pipeline import run_study
from silomix.errors import FileError, MessageError, OpenQuestion, SilomixError, StudyMismatch
from silomix.messages import Refused, SampleLocally
from silomix.messages.container import LARGEST_HEAD, Envelope, digest_record
from silomix.messages.folder import read
from silomix.model.files import replace_file
from silomix.paper import FewRounds
from silomix.study import digest, make_study
from silomix.study.policy import Exchanges
from silomix.transports.exchange_folder import (
    FileExchange,
    Unanswered,
    asked_for,
    expected_questions,
    read_exchange,
    silo_folder,
)

LARGEST_FILE, MOST_ROWS = 16_000_000, 5_000


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch):
    """A picture takes a second, as do many files on the disk; both have tests of their own."""
    monkeypatch.setattr("silomix.messages.folder.draw_profiles", lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@cache
def case_of(word, seed=20, **rules):
    """The study of this word, under its own policy or one with other rules."""
    changed = {"policy": ALLOWING.model_copy(update=rules)} if rules else {}
    return make_case(seed, **STUDIES[word] | changed)


@cache
def expected(word):
    return in_process(case_of(word))


class Desk:
    """An exchange, the silos' stores, and both sides' commands."""

    def __init__(self, root, word):
        self.case, self.folder, self.stores = case_of(word), root / "exchange", root / "stores"

    @property
    def study(self):
        return self.case.study

    def run(self):
        """Run the coordinator as far as the answers go."""
        return run_study(self.study, FileExchange(self.folder, self.study))

    def ask(self):
        """Run the coordinator to the next open question, and return it."""
        with pytest.raises(OpenQuestion) as raised:
            self.run()
        return raised.value

    def answer(self, *names, case=None, stores=None, **options):
        stores = stores or self.stores
        return answer_all(case or self.case, self.folder, stores, names or None, **options)

    def go_on(self, times):
        """Ask and answer so many times, and ask again."""
        for _ in range(times):
            self.ask()
            self.answer()
        return self.ask()

    def contents(self):
        files = filter(os.path.isfile, sorted(self.folder.rglob("*")))
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}


NOTHING = {f"silo {n}": [] for n in (1, 2, 3)}
FIRST = "answers/02-silo-2/0001-sample-locally"


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path, "evidence")


@pytest.fixture(scope="module")
def answered_once(tmp_path_factory):
    """The exchange and the stores of that study, with its third question open."""
    desk = Desk(tmp_path_factory.mktemp("once"), "evidence")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("silomix.messages.folder.draw_profiles", lambda *_: None)
        desk.go_on(1)
    return desk.folder.parent


@pytest.fixture
def asked_again(answered_once, tmp_path):
    """A desk with a copy of them."""
    shutil.copytree(answered_once, tmp_path, dirs_exist_ok=True)
    return Desk(tmp_path, "evidence")


@pytest.fixture
def divergent(tmp_path):
    """A study that asks each silo something of its own."""
    return Desk(tmp_path, "divergence")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study by file that is done, under the default policy."""
    desk = Desk(tmp_path_factory.mktemp("finished"), "files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("silomix.messages.folder.draw_profiles", lambda *_: None)
        found = run_study(desk.study, Prompt(desk.case, desk.folder, desk.stores))
    assert_same(expected("files"), found)
    return desk


class TestOneProcess:
    """Bit for bit what one process finds; `finished` is compared, too."""

    def test_a_coordinator_that_never_stops(self, tmp_path):
        desk = Desk(tmp_path, "exact")
        assert_same(
            expected("exact"), run_study(desk.study, Prompt(desk.case, desk.folder, desk.stores))
        )

    def test_both_sides_may_be_restarted_at_every_question(self, desk):
        found, questions = by_file(desk.case, desk.folder, desk.stores)
        assert questions == expected_questions(desk.study) == 6
        assert_same(expected("evidence"), found)

    def test_a_memory_stick_carries_questions_in_and_answers_out(self, divergent, tmp_path):
        """Each silo sees study.json and questions alone, each time on a new stick."""
        for trip in range(20):
            try:
                found = divergent.run()
                break
            except Unanswered as waiting:
                for name in waiting.missing:
                    stick = tmp_path / f"stick {trip} {name}"
                    shutil.copytree(divergent.folder / "questions", stick / "questions")
                    shutil.copy(divergent.folder / "study.json", stick)
                    answer_all(divergent.case, stick, divergent.stores, [name])
                    own = f"answers/{silo_folder(divergent.study.silos, name)}"
                    shutil.copytree(stick / own, divergent.folder / own, dirs_exist_ok=True)
        assert_same(expected("divergence"), found)

    def test_a_lost_store_is_made_again(self, desk):
        """What the silo was shown, and its rows' labels, come back from the questions."""
        desk.go_on(2)
        shutil.rmtree(desk.stores)
        found, _ = by_file(desk.case, desk.folder, desk.stores)
        assert_same(expected("evidence"), found)
        before = desk.contents()
        shutil.rmtree(desk.stores)
        assert desk.answer() == NOTHING
        assert desk.contents() == before
        assert (desk.stores / "silo 1" / "membership.safetensors").exists()


def test_the_folder_has_only_what_an_airlock_takes(finished):
    for path in finished.folder.rglob("*"):
        assert path.name[0] != "."
        if path.is_file():
            assert path.suffix in {".csv", ".json", ".txt", ".png"}, path
            assert path.stat().st_size <= LARGEST_FILE
        if path.suffix == ".csv":
            assert path.read_bytes().count(b"\n") - 1 <= MOST_ROWS, path


def test_no_count_under_the_minimum_leaves(finished):
    checked = 0
    for path in finished.folder.glob("answers/*/*/**/*.csv"):
        table = pd.read_csv(path)
        for column in {"rows", "count", "of", "sizes"} & set(table.columns):
            counts = table[column].dropna()
            assert (counts >= DEFAULT.minimum_count).all(), path
            assert (counts % DEFAULT.round_to == 0).all(), path
            checked += len(counts)
    assert checked > 3 * len(finished.study.table_schema.levels)


def test_labels_and_rows_stay_in_the_silo(finished):
    rows = finished.case.shards["silo 1"].rows
    for path in finished.folder.glob("answers/**/*.csv"):
        assert path.read_bytes().count(b"\n") - 1 < rows
    kept = load_file(finished.stores / "silo 1" / "membership.safetensors")
    assert len(kept["membership"]) == rows


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_only_its_owner_may_open_what_a_silo_keeps(finished):
    for store in finished.stores.iterdir():
        assert stat.S_IMODE(store.stat().st_mode) == 0o700
        kept = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.iterdir()}
        assert {"kept.safetensors", "release.safetensors"} <= kept.keys()
        assert set(kept.values()) == {0o600}


def test_an_open_question_says_who_must_do_what_and_answering_again_changes_nothing(desk):
    desk.ask()
    [item] = desk.answer("silo 2")["silo 2"]
    assert (item.number, item.question, item.reply) == (1, "SampleLocally", "Release")
    assert item.bytes > 1000
    found = desk.ask()
    assert isinstance(found, Unanswered)
    assert (found.number, found.kind, found.about) == (1, "SampleLocally", 6)
    assert dict(found.missing) == {"silo 1": "01-silo-1", "silo 3": "03-silo-3"}
    for words in (f"silomix answer {desk.folder} --silo NAME", "silo 1", "answers/03-silo-3"):
        assert words in str(found)
    assert "silo 2" not in str(found)
    before = desk.contents()
    for again in (False, True):
        assert desk.answer("silo 2", again=again) == {"silo 2": []}
    assert desk.contents() == before


def test_a_refusal_is_an_answer_that_can_be_given_again_and_a_lost_store_changes_no_limit(desk):
    once = Exchanges(sharing=1, gradients=ONE_ROUND)
    allowed, desk.case = desk.case, case_of("evidence", exchanges=once)
    desk.go_on(2)
    shutil.rmtree(desk.stores)
    assert [item.refused for item in desk.answer()["silo 1"]] == ["limit"]
    found = desk.ask()
    assert dict(found.refused) == dict.fromkeys(NOTHING, "limit")
    assert "--again" in str(found)
    assert desk.answer(case=allowed) == NOTHING
    done = desk.answer(case=allowed, again=True)
    assert [item.reply for item in done["silo 1"]] == ["LogLikelihoodReply"]
    # the release echoes the policy that it was made under; the numbers are the same
    found, _ = by_file(allowed, desk.folder, desk.stores)
    np.testing.assert_array_equal(found.weights, expected("evidence").weights)


@pytest.mark.parametrize("change", ["rounding", "table"])
def test_another_release_than_the_one_that_left_is_refused(change, divergent):
    divergent.go_on(1)
    case = divergent.case
    other = replace(case, shards=case.shards | {"silo 2": case.shards["silo 1"]})
    if change == "rounding":
        other = case_of("divergence", round_to=20)
    with pytest.raises(StudyMismatch, match="silo 2: the release that it handed over came from"):
        divergent.answer("silo 2", case=other, stores=divergent.stores / "elsewhere")
    assert len(list((divergent.folder / "answers/02-silo-2").iterdir())) == 1


def put(reply, **envelope):
    """Put a message where an answer should be."""

    def change(folder, study):
        shutil.rmtree(folder)
        asked = digest_record(SampleLocally())
        said = {"study": digest(study), "silo": "silo 2", "number": 1, "answers": asked}
        said |= {"kind": type(reply).__name__} | envelope
        write(folder, Envelope(**said), reply, study=study)

    return change


def edit_sizes(folder, _):
    path = folder / "cluster_sizes.csv"
    path.write_text(path.read_text().replace("0,", "0,1", 1))


def take_from_silo_1(folder, _):
    shutil.rmtree(folder)
    shutil.copytree(folder.parents[1] / "01-silo-1" / folder.name, folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit_sizes, r"cluster_sizes\.csv"),
        (lambda folder, _: (folder / "message.json").unlink(), r"message\.json is missing"),
        (take_from_silo_1, "of silo 'silo 1'"),
        (put(Refused("policy"), study="0" * 64), "of study"),
        (put(Refused("policy"), number=2), "of question 2"),
        (put(Refused("policy"), answers="0" * 64), "another version of question 1"),
        (put(Refused("because")), "unknown code 'because'"),
        (put(SampleLocally()), "should be a Release"),
    ],
    ids=["changed", "half", "silo", "study", "number", "question", "code", "kind"],
)
def test_an_answer_that_cannot_be_used_is_refused_by_name_and_made_again(
    change, words, asked_again
):
    desk = asked_again
    shutil.rmtree(next((desk.folder / "questions").glob("0003-*")))
    change(desk.folder / FIRST, desk.study)
    with pytest.raises(MessageError, match=f"'silo 2' to question 1.*{words}.*answer again"):
        desk.run()
    if "Release" not in words:  # one who puts a question there must remove it
        desk.answer(again=True)
        assert desk.ask().number == 3


def test_an_answer_to_an_earlier_question_is_not_taken_for_one_to_a_later(desk):
    """The questions of a number can differ where an answer before them was replaced."""
    desk.go_on(2)
    question = next((desk.folder / "questions").glob("0003-*"))
    envelope, query = read(question, study=desk.study)
    shutil.rmtree(question)
    other = replace(query, weights=query.weights[::-1].copy(), profiles=query.profiles[::-1].copy())
    write(question, envelope, other, study=desk.study)
    with pytest.raises(MessageError, match="is not question 3 of this study as it stands"):
        desk.run()
    exchange = FileExchange(desk.folder, desk.study)
    exchange.encoded.asked = 2
    with pytest.raises(MessageError, match=r"silo 1' to question 3, .* another version of q"):
        exchange.ask(other)
    assert 3 in [item.number for item in desk.answer(again=True)["silo 1"]]
    exchange.encoded.asked = 2
    assert set(exchange.ask(other)) == set(desk.study.silos)


def test_questions_that_follow_from_a_replaced_answer_are_refused(asked_again):
    desk = asked_again
    shutil.rmtree(desk.folder / FIRST)
    coarse = case_of("evidence", round_to=20)
    desk.answer("silo 2", case=coarse, stores=desk.stores.with_name("others"))
    with pytest.raises(MessageError, match=r"an earlier answer was replaced.*delete the fold"):
        desk.run()


def test_a_changed_question_is_refused_by_both_sides(asked_again):
    desk = asked_again
    path = desk.folder / "questions/0002-share-releases/groups.csv"
    path.write_text(path.read_text().replace("\n0,0,", "\n0,0,1"))
    with pytest.raises(MessageError, match=r"0002-share-releases is not question 2.*groups"):
        desk.run()
    with pytest.raises(MessageError, match=r"question 2 for 'silo 1'.*groups\.csv.*Bring the fold"):
        desk.answer("silo 1")
    shutil.rmtree(path.parent)
    assert desk.ask().number == 3
    assert path.exists()


def test_a_question_of_another_study_or_for_another_silo_is_refused(divergent, tmp_path):
    other = Desk(tmp_path / "other", "evidence")
    other.ask()
    divergent.ask()
    shutil.rmtree(divergent.folder / "questions")
    shutil.copytree(other.folder / "questions", divergent.folder / "questions")
    with pytest.raises(MessageError, match=r"question 1 for 'silo 1'.*of study"):
        divergent.answer("silo 1")
    shutil.rmtree(divergent.folder / "questions/0001-sample-locally")
    divergent.go_on(1)
    asked = divergent.folder / "questions/0002-divergence-cost"
    assert [path.name for path in asked.iterdir()] == ["for-02-silo-2"]
    assert divergent.answer("silo 1") == {"silo 1": []}
    shutil.copytree(asked / "for-02-silo-2", asked / "for-01-silo-1")
    with pytest.raises(MessageError, match=r"question 2 for 'silo 1'.*of silo 'silo 2'"):
        divergent.answer("silo 1")


def test_a_question_under_another_name_is_refused(desk):
    desk.ask()
    one, other = (desk.folder / f"questions/0001-{k}" for k in ("sample-locally", "assign-rows"))
    one.rename(other)
    with pytest.raises(MessageError, match="it has a SampleLocally in it"):
        desk.answer("silo 1")
    with pytest.raises(MessageError, match="is not question 1 of this study as it stands"):
        desk.run()


def test_what_a_killed_run_left_is_removed_and_what_others_left_is_passed_over(desk):
    desk.ask()
    own, questions = desk.folder / "answers/01-silo-1", desk.folder / "questions"
    shutil.rmtree(questions / "0001-sample-locally")
    for place in (questions, own):
        left = place / ".0001-sample-locally.partial"
        left.mkdir(parents=True)
        (left / "message.json").write_text("{")
    others = {".DS_Store", "notes.txt", "old"}
    for name in others:
        (questions / name).mkdir()
    desk.ask()
    desk.answer("silo 1")
    assert [path.name for path in own.iterdir()] == ["0001-sample-locally"]
    assert {path.name for path in questions.iterdir()} == others | {"0001-sample-locally"}


class Killed(BaseException):
    """Stands for a signal that no writer can handle."""


def test_a_folder_is_made_from_whatever_a_killed_run_left(tmp_path, monkeypatch):
    """Killed before each write: with nothing but its scratch file, and with each part missing."""
    whole, parts = Desk(tmp_path, "evidence"), []
    FileExchange(whole.folder, whole.study)

    def stop(path, content, **options):
        if len(parts) == at:
            path.with_name(f".{path.name}.partial").write_bytes(content[:20])
            raise Killed
        parts.append(path)
        replace_file(path, content, **options)

    for at in range(2):
        killed = Desk(tmp_path / f"killed {at}", "evidence")
        parts.clear()
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr("silomix.transports.exchange_folder.replace_file", stop)
            FileExchange(killed.folder, killed.study)
        FileExchange(killed.folder, killed.study)
        assert killed.contents() == whole.contents()
        assert (killed.folder / "questions").is_dir()


def edit_study(change):
    def edit(path):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return edit


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit_study(lambda document: document["study"].update(seed=5)), "its digest does not fit"),
        (edit_study(lambda document: document["study"].update(seed="x")), "seed"),
        (edit_study(lambda document: document.pop("study")), "study"),
        (edit_study(lambda document: document.update(study=[1])), ""),
        (edit_study(lambda document: document.update(format="a")), "not a silomix exchange 2"),
        (lambda path: path.write_bytes(bytes(LARGEST_HEAD + 1)), "over 8,000,000 bytes"),
        (make_pipe, "it is not a file but a pipe or a device"),
        (lambda path: path.unlink(), "No such file"),
    ],
    ids=["changed", "wrong", "empty", "list", "version", "long", "pipe", "missing"],
)
def test_a_study_that_cannot_be_used_is_refused_by_name(change, words, desk):
    FileExchange(desk.folder, desk.study)
    change(desk.folder / "study.json")
    with pytest.raises(FileError, match=rf"(?s)study\.json .*{words}"):
        read_exchange(desk.folder)


def test_an_exchange_is_of_one_study_and_what_is_none_is_left_alone(desk, divergent, tmp_path):
    FileExchange(desk.folder, desk.study)
    with pytest.raises(StudyMismatch, match="is the exchange of another study"):
        FileExchange(desk.folder, divergent.study)
    (tmp_path / "thesis.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "thesis.txt" / "exchange"):
        with pytest.raises(FileError, match=r"has no study\.json|cannot be written"):
            FileExchange(place, desk.study)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.txt", "exchange"}


class TestLinks:
    """An exchange comes from elsewhere; nothing outside of it is written or removed."""

    @pytest.fixture
    def home(self, tmp_path):
        kept = tmp_path / "home" / ".ssh" / "key"
        kept.parent.mkdir(parents=True)
        kept.write_text("key")
        yield kept.parent.parent
        assert [path.name for path in (tmp_path / "home").iterdir()] == [".ssh"]
        assert kept.read_text() == "key"

    @pytest.mark.parametrize("place", ["questions", "answers", "answers/01-silo-1"])
    def test_in_the_place_of_a_folder(self, home, desk, place):
        desk.ask()
        path = desk.folder / place
        shutil.rmtree(path, ignore_errors=True)
        path.symlink_to(home)
        with pytest.raises(MessageError, match=rf"{place} is a link to another place, not allowed"):
            desk.run() if place == "questions" else desk.answer("silo 1")

    @pytest.mark.parametrize(
        "place",
        [
            "study.json",
            "questions",
            "questions/0001-sample-locally",
            "questions/0001-sample-locally/message.json",
            "questions/0001-sample-locally/for-01-silo-1",
            "answers/01-silo-1/0001-sample-locally",
        ],
    )
    def test_nothing_outside_is_read(self, place, home, desk):
        """A silo does not follow a link either, even to a true copy of what belongs there."""
        desk.ask()
        path, copy = desk.folder / place, home.parent / "copy"
        original = path if path.exists() else desk.folder / "questions" / "0001-sample-locally"
        (shutil.copytree if original.is_dir() else shutil.copy)(original, copy)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(copy)
        with pytest.raises(SilomixError, match=r"is a link to another place|is not a file"):
            desk.answer("silo 1") if place != "study.json" else read_exchange(desk.folder)

    def test_in_the_place_of_an_answer(self, home, desk):
        desk.ask()
        desk.answer("silo 1")
        answer = desk.folder / "answers" / "01-silo-1" / "0001-sample-locally"
        shutil.move(answer, home.parent / "copy")
        answer.symlink_to(home.parent / "copy")
        with pytest.raises(MessageError, match="is a link to another place"):
            desk.ask()

    def test_in_the_place_of_scratch(self, home, desk):
        desk.ask()
        (desk.folder / "README.txt").unlink()
        (desk.folder / ".README.txt.partial").symlink_to(home / ".ssh" / "key")
        desk.ask()
        assert "silomix" in (desk.folder / "README.txt").read_text()


def test_names_of_folders_cannot_collide_or_escape():
    hostile = ["../x", "..", "CON", "a/b", "A b", "a-b", "é", "e", "東京", "", " " * 9, "x" * 99]
    folders = [silo_folder(hostile, name) for name in hostile]
    assert (folders[0], folders[2], folders[8]) == ("01-x", "03-con", "09")
    assert len({folder.lower() for folder in folders}) == len(hostile)
    for folder in folders:
        assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert len(folder) < 40


COURIER = {
    "tier": "summary",
    "oracle": "federated",
    "solver": FewRounds(rounds=3, starts=100),
    "polish": 0,
}


@pytest.mark.parametrize(
    ("settings", "questions", "words"),
    [
        ({"preset": "files"}, 1 + 1, "size and the profile|nothing more"),
        (COURIER | {"matching": "divergence"}, 1 + 2 + 1 + 3 + 1, "profile|fit|sums|nothing more"),
        (COURIER | {"refine": 2}, 1 + 3 * (1 + 3) + 1, "profile|sums|nothing more"),
        (COURIER | {"solver": "lbfgs"}, None, "profile|sums over its rows|nothing more"),
        ({"polish": 3}, 1 + 1 + 3 + 1, "draws|its table|once a round: 3 rounds|nothing more"),
        ({}, 1 + 1 + 200 + 1, "draws|its table|once a round: at most 200 rounds|nothing more"),
        ({"aggregation": "cmc", "polish": 0}, 1 + 1, "draws|nothing more"),
        ({"strategy": "exact", "iterations": 50}, 51, "once a round: 50 rounds|nothing more"),
    ],
    ids=str,
)
def test_a_study_says_what_it_asks_for_and_how_often(settings, questions, words):
    study = make_study(case_of("files").study.table_schema, ["a", "b", "c"], **settings)
    assert expected_questions(study) == questions
    for line, word in zip(asked_for(study), words.split("|"), strict=True):
        assert word in line


def test_the_folder_holds_the_study_and_tells_people_what_is_asked(tmp_path):
    study = make_case(names=["north", "Süd & Co", "東"], title="A\nstudy", **STUDIES["ball"]).study
    FileExchange(tmp_path, study)
    assert read_exchange(tmp_path) == study
    text = (tmp_path / "README.txt").read_text()
    assert "A silomix study by file: A study\n" in text
    assert f"digest starts with {digest(study)[:12]}" in text
    assert all(f"    - {line}\n" in text for line in asked_for(study))
    assert max(map(len, text.splitlines())) <= 100
