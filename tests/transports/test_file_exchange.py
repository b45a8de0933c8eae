from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import pytest
from federation.exchange_cases import (
    ALLOWING,
    DEFAULT,
    STUDIES,
    Case,
    Prompt,
    answer_all,
    assert_same,
    by_file,
    in_process,
    make_case,
)
from safetensors.numpy import load_file

from silomix.coordinator.pipeline import run_study
from silomix.errors import FileError, MessageError, OpenQuestion, StudyMismatch
from silomix.messages import Refused, SampleLocally
from silomix.messages.container import LARGEST_HEAD, Envelope
from silomix.messages.container import digest as digest_question
from silomix.messages.folder import read, write
from silomix.model.files import replace_file
from silomix.study import FewRounds, digest, make_study
from silomix.study.policy import Exchanges
from silomix.transports.exchange_folder import (
    asked_for,
    expected_questions,
    find_questions,
    lies_in,
    question_folder,
    read_exchange,
    silo_folder,
    spelled,
)
from silomix.transports.file_exchange import FileExchange, Unanswered

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_FILE, MOST_ROWS = 16_000_000, 5_000


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch):
    """A picture takes a second, as do many files on the disk; both have tests of their own."""
    monkeypatch.setattr("silomix.messages.folder.draw_profiles", lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def places(tmp_path):
    return tmp_path / "exchange", tmp_path / "stores"


class Finished(NamedTuple):
    case: Case
    folder: Path
    stores: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study by file that is done, under the default policy."""
    case = make_case(1, **STUDIES["files"])
    folder, stores = tmp_path_factory.mktemp("exchange"), tmp_path_factory.mktemp("stores")
    run_study(case.study, Prompt(case, folder, stores))
    return Finished(case, folder, stores)


def ask_all(case, folder):
    """Run the coordinator as far as the answers go; return the open question."""
    with pytest.raises(OpenQuestion) as raised:
        run_study(case.study, FileExchange(folder, case.study))
    return raised.value


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("word", ["files", "divergence", "polish", "exact"])
def test_by_file_is_bit_identical_to_one_process(word, places, seed):
    case = make_case(seed, **STUDIES[word])
    assert_same(in_process(case), run_study(case.study, Prompt(case, *places)))


def test_both_sides_may_be_restarted_at_every_question(places, seed):
    case = make_case(seed, **STUDIES["evidence"])
    found, questions = by_file(case, *places)
    assert questions == expected_questions(case.study) == 6
    assert_same(in_process(case), found)


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
            counts = counts[counts >= 0]  # a size that is withheld is -1
            assert (counts >= DEFAULT.minimum_count).all(), path
            assert (counts % DEFAULT.round_to == 0).all(), path
            checked += len(counts)
    assert checked > 3 * len(finished.case.study.table_schema.levels)


def test_labels_and_rows_stay_in_the_silo(finished):
    rows = finished.case.shards["silo 1"].rows
    for path in finished.folder.glob("answers/**/*.csv"):
        assert path.read_bytes().count(b"\n") - 1 < rows
    assert (
        len(load_file(finished.stores / "silo 1" / "membership.safetensors")["membership"]) == rows
    )


def test_an_open_question_says_who_must_do_what(places, seed):
    case = make_case(seed, **STUDIES["evidence"])
    folder, stores = places
    answer = "silo 2"
    ask_all(case, folder)
    answer_all(case, folder, stores, [answer])
    found = ask_all(case, folder)
    assert isinstance(found, Unanswered)
    assert (found.number, found.kind, found.about) == (1, "SampleLocally", 6)
    assert dict(found.missing) == {"silo 1": "01-silo-1", "silo 3": "03-silo-3"}
    for words in (
        "question 1 of about 6: sample locally is open",
        f"silomix answer {folder} --silo NAME --data TABLE",
        "silo 1 has not answered",
        f"carry {folder / 'questions'} and study.json to it; bring back answers/03-silo-3",
    ):
        assert words in str(found)
    assert answer not in str(found)


def test_answering_again_changes_nothing(places, seed):
    case = make_case(seed, **STUDIES["evidence"])
    folder, stores = places
    ask_all(case, folder)
    done = answer_all(case, folder, stores)
    assert [(a.number, a.question, a.reply) for a in done["silo 1"]] == [
        (1, "SampleLocally", "Release")
    ]
    assert done["silo 1"][0].bytes > 1000
    before = contents(folder)
    assert answer_all(case, folder, stores) == {name: [] for name in case.shards}
    assert answer_all(case, folder, stores, again=True) == {name: [] for name in case.shards}
    assert contents(folder) == before


def test_a_memory_stick_carries_questions_in_and_answers_out(tmp_path, seed):
    """Each silo sees study.json and questions alone, each time on a new stick."""
    case = make_case(seed, **STUDIES["divergence"])
    desk = tmp_path / "desk"
    for trip in range(20):
        exchange = FileExchange(desk, case.study)
        try:
            found = run_study(case.study, exchange)
            break
        except Unanswered as waiting:
            for name in waiting.missing:
                stick = tmp_path / f"stick {trip} {name}"
                shutil.copytree(desk / "questions", stick / "questions")
                shutil.copy(desk / "study.json", stick)
                answer_all(case, stick, tmp_path / "stores", [name])
                own = f"answers/{silo_folder(case.study.silos, name)}"
                shutil.copytree(stick / own, desk / own, dirs_exist_ok=True)
    assert_same(in_process(case), found)


def test_a_lost_store_is_made_again(places, seed):
    """What the silo was shown, and its rows' labels, come back from the questions."""
    case = make_case(seed, **STUDIES["evidence"])
    folder, stores = places
    for _ in range(3):
        ask_all(case, folder)
        answer_all(case, folder, stores)
    shutil.rmtree(stores)
    found, _ = by_file(case, *places)
    assert_same(in_process(case), found)
    before = contents(folder)
    shutil.rmtree(stores)
    assert answer_all(case, folder, stores) == {name: [] for name in case.shards}
    assert contents(folder) == before
    assert (stores / "silo 1" / "membership.safetensors").exists()


def policy(**changes):
    return ALLOWING.model_copy(update=changes)


ONE_ROUND = Exchanges(sharing=1, gradients=10 * 200)


def test_a_refusal_is_an_answer_that_can_be_given_again(places, seed):
    allowed = make_case(seed, **STUDIES["evidence"])
    rules = policy(exchanges=ONE_ROUND)
    case = make_case(seed, **STUDIES["evidence"] | {"policy": rules})
    folder, stores = places
    for _ in range(3):
        ask_all(case, folder)
        done = answer_all(case, folder, stores)
    assert [item.refused for item in done["silo 1"]] == ["limit"]
    found = ask_all(case, folder)
    assert dict(found.refused) == dict.fromkeys(case.shards, "limit")
    assert "refused: its policy allows no more questions of this kind" in str(found)
    assert "its owner may allow more" in str(found)
    assert "then answer with --again" in str(found)
    assert answer_all(allowed, folder, stores) == {name: [] for name in case.shards}
    done = answer_all(allowed, folder, stores, again=True)
    assert [item.reply for item in done["silo 1"]] == ["LogLikelihoodReply"]
    # the release echoes the policy that it was made under; the numbers are the same
    found, _ = by_file(allowed, *places)
    np.testing.assert_array_equal(found.weights, in_process(allowed).weights)


def test_a_lost_store_does_not_reset_what_a_policy_counts(places, seed):
    case = make_case(seed, **STUDIES["evidence"] | {"policy": policy(exchanges=ONE_ROUND)})
    folder, stores = places
    ask_all(case, folder)
    while "LogLikelihoodReply" not in [
        item.reply for item in answer_all(case, folder, stores)["silo 1"]
    ]:
        ask_all(case, folder)
    ledger = (stores / "silo 1" / "answered.json").read_bytes()
    assert list(json.loads(ledger)["gradients"].values()) == [10 * 200]
    shutil.rmtree(stores)
    ask_all(case, folder)
    done = answer_all(case, folder, stores)
    assert [item.refused for item in done["silo 1"]] == ["limit"]
    assert json.loads((stores / "silo 1" / "answered.json").read_bytes()) == json.loads(ledger)


@pytest.mark.parametrize("change", ["rounding", "table"])
def test_another_release_than_the_one_that_left_is_refused(change, places, seed):
    case = make_case(seed, **STUDIES["divergence"])
    folder, stores = places
    ask_all(case, folder)
    answer_all(case, folder, stores)
    ask_all(case, folder)
    other = replace(case, shards=case.shards | {"silo 2": case.shards["silo 1"]})
    if change == "rounding":
        other = make_case(seed, **STUDIES["divergence"] | {"policy": policy(round_to=20)})
    with pytest.raises(StudyMismatch, match="silo 2: the release that it handed over came from"):
        answer_all(other, folder, stores / "elsewhere", ["silo 2"])
    assert [path.name for path in (folder / "answers/02-silo-2").iterdir()] == [
        "0001-sample-locally"
    ]


@pytest.fixture
def answered(places, seed):
    """An exchange whose first question is answered by all."""
    case = make_case(seed, **STUDIES["evidence"])
    ask_all(case, places[0])
    answer_all(case, *places)
    return case


FIRST = "answers/02-silo-2/0001-sample-locally"


def test_a_damaged_answer_is_made_again(answered, places):
    (places[0] / FIRST / "message.json").unlink()
    done = answer_all(answered, *places, again=True)
    assert {name: len(items) for name, items in done.items()} == {
        "silo 1": 0,
        "silo 2": 1,
        "silo 3": 0,
    }
    assert ask_all(answered, places[0]).number == 3


def test_an_answer_to_an_earlier_question_is_not_taken_for_one_to_a_later(answered, places):
    """The questions of a number can differ where an answer before them was replaced."""
    folder = places[0]
    ask_all(answered, folder)
    answer_all(answered, *places)
    question = next((folder / "questions").glob("0003-*"))
    envelope, query = read(question, study=answered.study)
    shutil.rmtree(question)
    other = replace(query, weights=query.weights[::-1].copy(), profiles=query.profiles[::-1].copy())
    write(question, envelope, other, study=answered.study)
    with pytest.raises(MessageError, match="is not question 3 of this study as it stands"):
        run_study(answered.study, FileExchange(folder, answered.study))
    exchange = FileExchange(folder, answered.study)
    exchange.asked = 2
    with pytest.raises(MessageError, match=r"silo 1' to question 3, .* another question 3 than is"):
        exchange.ask(other)
    done = answer_all(answered, *places, again=True)
    assert [item.number for item in done["silo 1"]] == [3]
    exchange.asked = 2
    assert set(exchange.ask(other)) == set(answered.study.silos)


def put(reply, **envelope):
    """Put a message where an answer should be."""

    def change(folder, case):
        shutil.rmtree(folder)
        asked = digest_question(SampleLocally())
        said = {"study": digest(case.study), "silo": "silo 2", "number": 1, "answers": asked}
        said |= {"kind": type(reply).__name__} | envelope
        write(folder, Envelope(**said), reply, study=case.study)

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
        (put(Refused("policy"), answers="0" * 64), "another question 1 than is asked now"),
        (put(Refused("because")), "unknown code 'because'"),
        (put(SampleLocally()), "should be a Release"),
    ],
    ids=["changed", "half", "silo", "study", "number", "question", "code", "kind"],
)
def test_an_answer_that_cannot_be_used_is_refused_by_name(change, words, answered, places):
    change(places[0] / FIRST, answered)
    with pytest.raises(MessageError, match=f"'silo 2' to question 1.*{words}.*answer again"):
        run_study(answered.study, FileExchange(places[0], answered.study))


def test_an_exchange_is_of_one_study(answered, places):
    other = make_study(answered.study.table_schema, answered.study.silos, seed=99)
    with pytest.raises(StudyMismatch, match="is the exchange of another study"):
        FileExchange(places[0], other)


def test_what_is_no_exchange_is_named(tmp_path, seed):
    study = make_case(seed).study
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileError, match=r"is not empty and has no study\.json"):
        FileExchange(tmp_path, study)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(FileError, match="cannot be written: Not a directory"):
        FileExchange(tmp_path / "thesis.txt" / "exchange", study)


def test_a_folder_is_made_from_whatever_a_killed_run_left(tmp_path, seed, monkeypatch):
    """Killed before each write: with nothing but its scratch file, and with each part missing."""
    study = make_case(seed).study
    whole = tmp_path / "whole"
    FileExchange(whole, study)
    parts = []

    class Killed(BaseException):
        pass

    def stop(path, content, **options):
        if len(parts) == at:
            path.with_name(f".{path.name}.partial").write_bytes(content[:20])
            raise Killed
        parts.append(path)
        replace_file(path, content, **options)

    for at in range(2):
        folder = tmp_path / f"killed {at}"
        parts.clear()
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr("silomix.transports.exchange_folder.replace_file", stop)
            FileExchange(folder, study)
        FileExchange(folder, study)
        assert contents(folder) == contents(whole)
        assert (folder / "questions").is_dir()


def test_the_study_comes_back_from_the_folder(tmp_path, seed):
    case = make_case(seed, names=["north", "Süd & Co", "東"], title="Three sites")
    FileExchange(tmp_path, case.study)
    assert read_exchange(tmp_path) == case.study


def edit_study(change):
    def edit(path):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return edit


def make_long(path):
    with path.open("wb") as file:
        file.truncate(10 * LARGEST_HEAD)


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit_study(lambda document: document["study"].update(seed=5)), "its digest does not fit"),
        (edit_study(lambda document: document["study"].update(seed="x")), "seed"),
        (edit_study(lambda document: document["study"].pop("seed")), "its digest does not fit"),
        (edit_study(lambda document: document.pop("study")), "study"),
        (edit_study(lambda document: document.update(study=[1])), ""),
        (edit_study(lambda document: document.update(format="a")), "no silomix exchange 2"),
        (make_long, "over 8,000,000 bytes"),
        (make_pipe, "it is no file, but a pipe or a device; give the folder"),
        (lambda path: path.unlink(), "cannot be read: No such file"),
    ],
    ids=["changed", "wrong", "short", "empty", "list", "version", "long", "pipe", "missing"],
)
def test_a_study_that_cannot_be_used_is_refused_by_name(change, words, tmp_path, seed):
    FileExchange(tmp_path, make_case(seed).study)
    change(tmp_path / "study.json")
    with pytest.raises(FileError, match=rf"(?s)study\.json .*{words}"):
        read_exchange(tmp_path)


class TestLinks:
    """An exchange comes from elsewhere; nothing outside of it is written or removed."""

    @pytest.fixture
    def home(self, tmp_path):
        kept = tmp_path / "home" / ".ssh" / "key"
        kept.parent.mkdir(parents=True)
        kept.write_text("key")
        yield kept.parent.parent
        assert kept.read_text() == "key"

    @pytest.mark.parametrize("place", ["answers", "answers/01-silo-1"])
    def test_of_answers(self, home, places, seed, place):
        case = make_case(seed, **STUDIES["evidence"])
        ask_all(case, places[0])
        if place == "answers":
            (places[0] / place).rmdir()
        (places[0] / place).symlink_to(home)
        with pytest.raises(MessageError, match=rf"{place} is a link to another place, and an exch"):
            answer_all(case, *places, ["silo 1"])
        assert [path.name for path in home.iterdir()] == [".ssh"]

    def test_of_questions(self, home, places, seed):
        study = make_case(seed).study
        FileExchange(places[0], study)
        (places[0] / "questions").rmdir()
        (places[0] / "questions").symlink_to(home)
        with pytest.raises(MessageError, match="questions is a link to another place"):
            FileExchange(places[0], study)

    def test_in_the_place_of_scratch(self, home, places, seed):
        study = make_case(seed).study
        FileExchange(places[0], study)
        (places[0] / "README.txt").unlink()
        (places[0] / ".README.txt.partial").symlink_to(home / ".ssh" / "key")
        FileExchange(places[0], study)
        assert "silomix" in (places[0] / "README.txt").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_only_its_owner_may_open_what_a_silo_keeps(finished):
    for store in finished.stores.iterdir():
        assert stat.S_IMODE(store.stat().st_mode) == 0o700
        kept = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.iterdir()}
        assert {"kept.safetensors", "release.safetensors"} <= kept.keys()
        assert set(kept.values()) == {0o600}


def test_a_changed_question_is_refused_by_both_sides(places, seed):
    case = make_case(seed, **STUDIES["evidence"])
    folder, stores = places
    ask_all(case, folder)
    answer_all(case, folder, stores)
    ask_all(case, folder)
    path = folder / "questions/0002-share-releases/groups.csv"
    path.write_text(path.read_text().replace("\n0,0,", "\n0,0,1"))
    with pytest.raises(MessageError, match=r"0002-share-releases was changed or is damaged.*group"):
        run_study(case.study, FileExchange(folder, case.study))
    with pytest.raises(MessageError, match=r"question 2 for 'silo 1'.*groups\.csv.*Bring the fold"):
        answer_all(case, folder, stores, ["silo 1"])
    shutil.rmtree(path.parent)
    assert ask_all(case, folder).number == 3
    assert path.exists()


def test_a_question_of_another_study_is_refused_by_the_silo(places, tmp_path, seed):
    case, other = make_case(seed), make_case(seed + 1)
    ask_all(case, places[0])
    ask_all(other, tmp_path / "other")
    shutil.rmtree(places[0] / "questions")
    shutil.copytree(tmp_path / "other/questions", places[0] / "questions")
    with pytest.raises(MessageError, match=r"question 1 for 'silo 1'.*of study"):
        answer_all(case, *places, ["silo 1"])


def test_a_question_for_another_silo_is_refused(places, seed):
    case = make_case(seed, **STUDIES["divergence"])
    ask_all(case, places[0])
    answer_all(case, *places)
    ask_all(case, places[0])
    asked = places[0] / "questions/0002-divergence-cost"
    assert [path.name for path in asked.iterdir()] == ["for-02-silo-2"]
    assert answer_all(case, *places, ["silo 1"]) == {"silo 1": []}
    shutil.copytree(asked / "for-02-silo-2", asked / "for-01-silo-1")
    with pytest.raises(MessageError, match=r"question 2 for 'silo 1'.*of silo 'silo 2'"):
        answer_all(case, *places, ["silo 1"])


def test_a_question_under_another_name_is_refused(places, seed):
    case = make_case(seed)
    ask_all(case, places[0])
    (places[0] / "questions/0001-sample-locally").rename(places[0] / "questions/0001-assign-rows")
    with pytest.raises(MessageError, match="it has a SampleLocally in it"):
        answer_all(case, *places, ["silo 1"])
    with pytest.raises(MessageError, match="is not question 1 of this study as it stands"):
        run_study(case.study, FileExchange(places[0], case.study))


def test_questions_that_follow_from_a_replaced_answer_are_refused(places, seed):
    case = make_case(seed, **STUDIES["evidence"])
    folder, stores = places
    ask_all(case, folder)
    answer_all(case, folder, stores)
    ask_all(case, folder)
    shutil.rmtree(folder / FIRST)
    coarse = make_case(seed, **STUDIES["evidence"] | {"policy": policy(round_to=20)})
    answer_all(coarse, folder, stores.with_name("others"), ["silo 2"])
    with pytest.raises(MessageError, match=r"an earlier answer was replaced.*delete the fold"):
        run_study(case.study, FileExchange(folder, case.study))


def test_two_folders_of_one_number_are_refused(places, seed):
    case = make_case(seed)
    ask_all(case, places[0])
    (places[0] / "questions/0001-assign-rows").mkdir()
    with pytest.raises(MessageError, match="are both question 1; delete both"):
        find_questions(places[0])


def test_what_a_killed_run_left_is_removed_and_what_others_left_is_passed_over(places, seed):
    case = make_case(seed)
    folder, stores = places
    ask_all(case, folder)
    own = folder / "answers/01-silo-1"
    scratch = ".0001-sample-locally.partial"
    shutil.rmtree(folder / "questions/0001-sample-locally")
    for left in (folder / "questions" / scratch, own / scratch):
        left.mkdir(parents=True)
        (left / "message.json").write_text("{")
    for other in (folder / "questions/.DS_Store", folder / "questions/notes.txt"):
        other.write_text("")
    (folder / "questions/old").mkdir()
    ask_all(case, folder)
    answer_all(case, folder, stores, ["silo 1"])
    assert [path.name for path in own.iterdir()] == ["0001-sample-locally"]
    assert sorted(path.name for path in (folder / "questions").iterdir()) == [
        ".DS_Store",
        "0001-sample-locally",
        "notes.txt",
        "old",
    ]


def test_names_of_folders_cannot_collide_or_escape():
    hostile = ["../x", "..", "CON", "a/b", "A b", "a-b", "é", "e", "東京", "", " " * 9, "x" * 99]
    folders = [silo_folder(hostile, name) for name in hostile]
    assert folders[0] == "01-x"
    assert folders[2] == "03-con"
    assert folders[8] == "09"
    assert len({folder.lower() for folder in folders}) == len(hostile)
    for folder in folders:
        assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert len(folder) < 40
    many = [f"s{place}" for place in range(1000)]
    assert silo_folder(many, "s7") == "0008-s7"


def test_kinds_are_spelled_in_words():
    assert spelled("CountDistinctRows") == "count distinct rows"
    assert question_folder(12, "LogLikelihood") == "0012-log-likelihood"
    assert question_folder(12345, "PolishRound") == "12345-polish-round"


COURIER = {
    "tier": "summary",
    "oracle": "federated",
    "solver": FewRounds(rounds=3, starts=100),
    "polish": 0,
}


@pytest.mark.parametrize(
    ("settings", "questions", "words"),
    [
        ({"preset": "files"}, 1 + 1, "size and the profile|sizes"),
        ({"preset": "files", "matching": "divergence"}, 1 + 2 + 1, "profile|fit its rows|sizes"),
        (COURIER, 1 + 1 + 3 + 1, "size and the profile|sums over its rows|sizes of the final"),
        (COURIER | {"matching": "divergence"}, 1 + 2 + 1 + 3 + 1, "profile|fit|sums|sizes"),
        (COURIER | {"refine": 2}, 1 + 3 * (1 + 3) + 1, "profile|sums|sizes"),
        (COURIER | {"solver": "lbfgs"}, None, "profile|sums|sizes"),
        ({"polish": 0}, 1 + 1 + 1, "posterior draws|its table|sizes"),
        ({"polish": 3}, 1 + 1 + 3 + 1, "draws|its table|once a round: 3 rounds|sizes"),
        ({}, 1 + 1 + 200 + 1, "draws|its table|once a round: at most 200 rounds|sizes"),
        ({"aggregation": "cmc", "polish": 0}, 1 + 1, "draws|sizes"),
        ({"strategy": "exact", "iterations": 50}, 51, "once a round: 50 rounds|sizes"),
    ],
    ids=str,
)
def test_a_study_says_what_it_asks_for_and_how_often(settings, questions, words, seed):
    schema = make_case(seed).study.table_schema
    study = make_study(schema, ["a", "b", "c"], **settings)
    assert expected_questions(study) == questions
    for line, word in zip(asked_for(study), words.split("|"), strict=True):
        assert word in line


def test_the_readme_says_what_is_asked(places, seed):
    case = make_case(seed, title="A\nstudy", **STUDIES["divergence"])
    ask_all(case, places[0])
    text = (places[0] / "README.txt").read_text()
    assert "A silomix study by file: A study\n" in text
    assert f"digest starts with {digest(case.study)[:12]}" in text
    assert "    02-silo-2    silo 2\n" in text
    assert all(f"    - {line}\n" in text for line in asked_for(case.study))
    assert max(map(len, text.splitlines())) <= 100


def test_links_do_not_hide_that_a_path_is_inside(tmp_path):
    (tmp_path / "exchange").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "exchange")
    assert lies_in(tmp_path / "link" / "table.csv", tmp_path / "exchange")
    assert lies_in(tmp_path / "exchange" / ".." / "exchange" / "x", tmp_path / "link")
    assert not lies_in(tmp_path / "exchange-2", tmp_path / "exchange")
