"""What a silo counts across studies: whom it answered, and who has to be asked first."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import mode, run, words
from federation.exchange_cases import make_case
from federation.mutations import time_limit

from silomix.errors import (
    DataError,
    DataWarning,
    FileError,
    MessageError,
    PolicyRefusal,
    SettingsError,
)
from silomix.messages import PolishRound, Refused, Release, SampleLocally
from silomix.messages.folder import read_release
from silomix.model.reading import read_table
from silomix.model.table import infer_schema
from silomix.silo.answer import HANDLERS, answer, answer_or_refuse, permit
from silomix.silo.ledger import (
    Account,
    allow_study,
    begin_version,
    check_account,
    knows,
    note_left,
    open_account,
)
from silomix.silo.ledger_file import (
    OLD_NAME,
    Answered,
    Ledger,
    changing,
    find_ledger,
    read_ledger,
)
from silomix.silo.local import Silo, digest_cells, load_rows
from silomix.study import digest, make_study, write_study
from silomix.study.policy import Exchanges, Policy, find_policy, write_policy
from silomix.transports.flare.participant import open_own_silo

LEDGER = "ledger.sqlite"
DEFAULT = find_policy("default")
FOREIGN, REFUSED, SETTING, OPEN = 5, 6, 4, 7


def account(path, study="a", *, table="people", digest="1", rows="1", policy=DEFAULT, silo="north"):
    entry = Answered(
        study=study * 64,
        title=f"Study {study}",
        silo=silo,
        policy=policy.name,
        rounding=f"{policy.minimum_count}, {policy.round_to}",
        rows=rows * 64,
        cells=digest * 64,
        left={},
    )
    return Account(path / LEDGER, table, entry, policy)


def refused(one):
    with pytest.raises(PolicyRefusal) as error:
        check_account(one)
    assert error.value.code == "studies"
    return str(error.value)


TWO, NONE = Policy(name="two", studies=2), Policy(name="none", studies=0)
FINE = Policy(name="fine", minimum_count=5, round_to=1)
GROWN = {"digest": "2", "rows": "2"}
MANY = find_policy("open")
FEW = {"minimum_count": 1000}


class TestCounting:
    @pytest.mark.parametrize(
        ("answered", "policy", "asked", "words"),
        [
            ("a", DEFAULT, {}, None),
            ("a", DEFAULT, {"study": "b"}, "allows 1 study of one table"),
            ("", NONE, {}, "allows 0 studies of one table; answered from 'people': none"),
            ("a", TWO, {"study": "b"}, None),
            ("ab", TWO, {"study": "c"}, "2 studies"),
            # the table has changed, or only columns that the study does not look at have
            ("a", TWO, {"study": "b", **GROWN}, "'people' is not as it was"),
            ("a", TWO, {"study": "b", "rows": "2"}, None),
            ("a", DEFAULT, GROWN, "with other rows, on 2"),
            ("a", DEFAULT, {"digest": "2"}, None),
            ("a", DEFAULT, {"policy": FINE}, "with minimum count 10 and counts rounded to 5, on 2"),
            # a copy under another name is the same table
            ("a", DEFAULT, {"study": "b", "table": "copy"}, "answered from 'people': aaaa"),
            ("a", DEFAULT, {"table": "copy"}, None),
            ("a", DEFAULT, {"study": "b", "table": "others", "digest": "2"}, None),
            ("a", MANY, {"study": "b", **GROWN}, None),
        ],
    )
    def test_what_may_be_answered_beside_what_was(self, tmp_path, answered, policy, asked, words):
        for study in answered:
            note_left(account(tmp_path, study, policy=policy), "Release")
        asked = {"policy": policy, **asked}
        before = read_ledger(tmp_path / LEDGER)
        if words is None:
            check_account(account(tmp_path, **asked))
        else:
            assert words in refused(account(tmp_path, **asked))
            with pytest.raises(PolicyRefusal):
                note_left(account(tmp_path, **asked), "Release")
        assert read_ledger(tmp_path / LEDGER) == before  # what was not answered does not count


class TestOwner:
    def test_a_study_that_is_allowed_is_answered_and_no_other(self, tmp_path):
        note_left(account(tmp_path), "Release")
        allow_study(tmp_path / LEDGER, "b" * 64)
        grown = account(tmp_path, "b", **GROWN)
        note_left(grown, "Release")
        note_left(grown, "PolishReply")
        assert "answered from" in refused(account(tmp_path, "c"))
        assert "is not as it was" in refused(account(tmp_path, "c", digest="2"))
        with pytest.raises(SettingsError, match="none yet"):
            allow_study(tmp_path / "absent.json", "b" * 64)
        with pytest.raises(SettingsError, match="nothing has left"):
            begin_version(tmp_path / "absent.json", "people")
        note_left(account(tmp_path, table="others", digest="3"), "Release")
        with pytest.raises(SettingsError, match="'people', 'others'"):  # which one is meant?
            begin_version(tmp_path / LEDGER)

    def test_a_new_version_is_counted_anew_and_the_old_study_goes_on(self, tmp_path):
        note_left(account(tmp_path), "Release")
        begin_version(tmp_path / LEDGER)
        note_left(account(tmp_path, "b", **GROWN), "Release")
        assert "': bbbb" in refused(account(tmp_path, "c", **GROWN))
        note_left(account(tmp_path), "PolishReply")  # the study of then, from the rows of then
        (table,) = read_ledger(tmp_path / LEDGER).tables
        studies = [[one.study[0] for one in version.studies] for version in table.versions]
        assert studies == [["a"], ["b"]]
        assert sorted(table.versions[0].studies[0].left) == ["PolishReply", "Release"]


class TestFile:
    def test_what_left_is_noted_once_or_it_does_not_leave(self, tmp_path):
        first = account(tmp_path)
        for record in ("Release", "PolishReply", "Release"):
            note_left(first, record)
        (study,) = read_ledger(first.path).tables[0].counted.studies
        assert (study.study, study.title, study.silo) == ("a" * 64, "Study a", "north")
        assert list(study.left) == ["PolishReply", "Release"]
        with pytest.raises(FileError, match=r"cannot be used"):
            check_account(replace(first, path=first.path / LEDGER))

    @pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
    def test_nothing_beside_it_may_be_read_by_others_even_while_it_is_written(self, tmp_path):
        path = tmp_path / "data" / "silomix" / LEDGER
        before = os.umask(0o000)
        try:
            with changing(path):
                modes = {one.name: mode(one) for one in path.parent.iterdir()}
        finally:
            os.umask(before)
        assert modes == dict.fromkeys([LEDGER, f"{LEDGER}-journal", f".{LEDGER}.lock"], 0o600)
        assert mode(path.parent) == 0o700

    @pytest.mark.parametrize(
        "content",
        [b"", b"{}", b"{", b"[]", b"\xff", b'{"kind": "silomix ledger", "format": 2}',
         b'{"kind": "silomix ledger", "format": 1}', b'{"tables": 3}',
         b'{"tables": [{"name": "x", "allowed": [3]}]}', b"\x80\x04K\x01.", b"SQLite format 3\0"],
        ids=str,
    )  # fmt: skip
    def test_what_is_no_ledger_is_refused_and_left_as_it_is(self, tmp_path, content):
        (tmp_path / LEDGER).write_bytes(content)
        for use in (check_account, knows, lambda one: note_left(one, "Release")):
            with pytest.raises(FileError, match="is no ledger, or it is damaged, or of another"):
                use(account(tmp_path))
        assert (tmp_path / LEDGER).read_bytes() == content

    @pytest.mark.parametrize("change", ["cut", "zeros", "document", "version", "another's"])
    def test_a_damaged_one_is_refused(self, tmp_path, change):
        path = tmp_path / LEDGER
        for study in range(40):  # on several pages
            note_left(account(tmp_path, table=f"table {study}", digest=f"{study:02}"), "Release")
        content = path.read_bytes()
        edits = {
            "document": "UPDATE tables SET document = '{}'",
            "version": "PRAGMA user_version = 4",
            "another's": "PRAGMA application_id = 0",
        }
        if change == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif change == "zeros":
            path.write_bytes(content[:4096] + bytes(8192) + content[12288:])
        else:
            with closing(sqlite3.connect(path)) as file, file:
                file.execute(edits[change])
        with pytest.raises(FileError, match="is no ledger, or it is damaged, or of another"):
            check_account(account(tmp_path, "b"))

    @pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices are POSIX's")
    @pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
    def test_what_is_no_file_is_refused_at_once(self, tmp_path, kind):
        path = tmp_path / LEDGER
        make = {"pipe": os.mkfifo, "folder": Path.mkdir, "device": lambda _: None}[kind]
        make(path)
        path = Path("/dev/zero") if kind == "device" else path
        one = replace(account(tmp_path), path=path)
        with time_limit(20):
            for use in (check_account, knows, lambda one: note_left(one, "Release")):
                with pytest.raises(FileError, match=r"cannot be used: (it is not a file|Is a dir)"):
                    use(one)

    def test_a_first_use_is_said_aloud(self, tmp_path):
        with pytest.warns(DataWarning, match="a new ledger begins at .*if there was one before"):
            check_account(account(tmp_path))
        check_account(account(tmp_path))  # and only that

    def test_processes_at_once_lose_nothing_and_of_two_studies_one_is_answered(self, tmp_path):
        """Each begins the ledger, if another has not; all count in one table, and in their own."""
        (tmp_path / "count.py").write_text(COUNT)
        made = [
            subprocess.Popen([sys.executable, tmp_path / "count.py", tmp_path / LEDGER, study])
            for study in "abc"
        ]
        codes = [process.wait(120) for process in made]
        tables = {one.name: len(one.ever) for one in read_ledger(tmp_path / LEDGER).tables}
        assert tables == {f"of {study}": 20 for study in "abc"} | {"people": 1}
        assert sorted(codes) == [0, REFUSED, REFUSED]

    def test_of_two_studies_at_once_one_is_answered(self, tmp_path):
        """Both may begin; what counts is which leaves first."""
        both = [account(tmp_path, study) for study in "ab"]
        start, left = threading.Barrier(2), []

        def leave(one):
            check_account(one)
            start.wait(60)
            try:
                note_left(one, "Release")
            except PolicyRefusal:
                return
            left.append(one.entry.study)

        threads = [threading.Thread(target=leave, args=(one,)) for one in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        studies = read_ledger(tmp_path / LEDGER).tables[0].counted.studies
        assert [one.study for one in studies] == left
        assert len(left) == 1

    def test_a_limit_is_for_all_processes_together(self, tmp_path):
        """What was asked is known to another that opens the ledger."""
        case = make_case()
        policy = MANY.model_copy(update={"exchanges": Exchanges(polish=3)})
        silos = [
            replace(case.silo("silo 1", policy=policy), account=account(tmp_path, policy=policy))
            for _ in range(2)
        ]
        answered = 0
        for number in range(6):
            try:
                permit(a_round(number), silos[number % 2])
            except PolicyRefusal as error:
                assert error.code == "limit"
            else:
                answered += 1
        assert answered == 3
        for same in silos:
            permit(a_round(0), same)
        (study,) = read_ledger(tmp_path / LEDGER).tables[0].ever
        assert list(study.asked["polish"].values()) == [1, 1, 1]


def a_round(number):
    return PolishRound(number, np.ones((1, 1)), np.ones((1, 1, 5)), None, 1)


COUNT = """
import sys
from pathlib import Path
from silomix.errors import PolicyRefusal
from silomix.silo.ledger import Account, note_left
from silomix.silo.ledger_file import Answered
from silomix.study.policy import Policy

path, study = Path(sys.argv[1]), sys.argv[2]

def note(table, studies, rows):
    policy = Policy(studies=studies)
    about = {"title": "", "silo": "north", "policy": "default", "rounding": "10, 5"}
    entry = Answered(study=study + rows, rows=rows, cells=table, left={}, **about)
    note_left(Account(path, table, entry, policy), "Release")

for rows in range(20):
    note(f"of {study}", 20, str(rows))
try:
    note("people", 1, "")
except PolicyRefusal:
    sys.exit(6)
"""


@pytest.fixture(scope="module")
def people():
    """703 people and twelve conditions, of whom each has one in twenty."""
    rng = np.random.default_rng(1)
    has = rng.random((703, 12)) < 0.05
    return pd.DataFrame(np.where(has, "yes", "no"), columns=[f"condition {q}" for q in range(12)])


def study_of(people, seed=1, names=("north", "south"), **settings):
    schema = infer_schema(people, silo=None)
    return make_study(
        schema, names, preset="files", components=2, iterations=200, seed=seed, **settings
    )


class TestSilo:
    @pytest.fixture
    def opened(self, people, tmp_path):
        def make(seed=1, policy=DEFAULT, rows=people, **options):
            study = study_of(people, seed)
            loaded = load_rows(rows, study, "north", column=None, frequency=None)
            data = tmp_path / "table.csv"
            place = open_account(
                loaded.digests, study, "north", policy=policy, data=data, **options
            )
            return Silo("north", 0, loaded.shard, study, policy=policy, account=place)

        return make

    def test_an_answer_is_noted_before_it_leaves_and_a_refusal_is_not(self, opened, ledger):
        """So a study that began before another was answered is refused then."""
        silo = opened(policy=Policy(name="strict", tiers=("draws",)))
        assert answer_or_refuse(SampleLocally(), silo) == Refused("policy")
        assert read_ledger(ledger) == Ledger()
        silo, begun = opened(), opened(seed=2)
        answer(SampleLocally(), silo)
        (study,) = read_ledger(ledger).tables[0].counted.studies
        assert (study.study, list(study.left)) == (digest(silo.study), ["Release"])
        with pytest.raises(PolicyRefusal):
            opened(seed=2)
        assert answer_or_refuse(SampleLocally(), begun) == Refused("studies")

    @pytest.mark.parametrize("code", ["failed", "data", "question", "too-few-rows"])
    def test_a_question_that_fails_on_the_rows_uses_up_a_study(self, opened, monkeypatch, code):
        """Whatever the failure says, asking study after study until one fails tells nothing."""
        errors = {"failed": ValueError, "data": DataError, "question": MessageError}

        def fail(query, silo):
            raise errors[code]("row 17")

        policy = Policy(name="strict", **FEW) if code == "too-few-rows" else DEFAULT
        silo, begun = opened(policy=policy), opened(seed=2, policy=policy)
        with monkeypatch.context() as patch:
            if code != "too-few-rows":
                patch.setitem(HANDLERS, SampleLocally, fail)
            for _ in range(2):
                assert answer_or_refuse(SampleLocally(), silo) == Refused(code)
            assert answer_or_refuse(SampleLocally(), begun) == Refused("studies")
        (study,) = read_ledger(silo.account.path).tables[0].counted.studies
        assert (study.study, list(study.left)) == (digest(silo.study), ["failed"])
        with pytest.raises(PolicyRefusal, match=r"on 20\d\d-\d\d-\d\d \(it failed\)"):
            opened(seed=2, policy=policy)
        # put right, the study goes on, also under another minimum count: nothing has left
        assert isinstance(answer_or_refuse(SampleLocally(), opened()), Release)
        (study,) = read_ledger(silo.account.path).tables[0].counted.studies
        assert (list(study.left), study.rounding) == (["Release", "failed"], "10, 5")
        with pytest.raises(PolicyRefusal, match="with minimum count 10 and counts rounded to 5"):
            opened(policy=FINE)

    def test_rows_in_another_order_in_another_folder_are_worth_a_warning(
        self, opened, people, recwarn
    ):
        answer(SampleLocally(), opened(table_name="spring"))
        mixed = people.sample(frac=1, random_state=1)
        told = r"12 of its 12 columns are those of 'spring', answered on 20\d\d-\d\d-\d\d, though"
        with pytest.warns(DataWarning, match=told):
            opened(seed=2, rows=mixed, table_name="summer")
        told = r"11 of its 13 columns are those of 'spring', answered"
        changed = mixed.assign(more="x", **{"condition 3": people["condition 4"]})
        with pytest.warns(DataWarning, match=told):
            opened(seed=2, rows=changed, table_name="summer")
        with pytest.warns(DataWarning, match=r"but knows 'spring'; if this is one of them with"):
            opened(seed=2, rows=people[:600], table_name="summer")
        recwarn.clear()
        others = people.rename(columns=lambda name: f"{name}?").assign(**people.iloc[:600, :5])
        study = study_of(others)
        loaded = load_rows(others, study, "north", column=None, frequency=None)
        open_account(loaded.digests, study, "north", DEFAULT, Path("others.csv"))
        assert not recwarn

    def test_the_table_has_its_place_for_a_name_or_the_one_that_its_owner_gives(
        self, opened, people, tmp_path
    ):
        there = {"ledger": tmp_path / "elsewhere" / "l.json"}
        answer(SampleLocally(), opened(table_name="spring", **there))
        (table,) = read_ledger(there["ledger"]).tables
        assert table.name == "spring"
        grown = pd.concat([people, people[:1]])
        known = r"has no table 'summer' yet, but knows 'spring'; if"
        with pytest.warns(DataWarning, match=known) as told:
            opened(seed=2, rows=grown, table_name="summer", **there)
        assert told[0].filename == __file__
        data = str(tmp_path.resolve() / "table.csv")
        assert opened().account.table == data
        assert opened(column="hospital").account.table == f"{data}, hospital = north"


def test_the_digest_is_of_the_cells_and_not_of_the_file(people, tmp_path):
    people.to_csv(tmp_path / "t.csv", index=False)
    people.to_csv(tmp_path / "t.tsv.gz", index=False, sep="\t")
    people[people.columns[::-1]].to_parquet(tmp_path / "t.parquet")
    found = {digest_cells(read_table(path))[0] for path in sorted(tmp_path.iterdir())}
    assert len(found) == 1
    grown = pd.concat([people, people[:1]])
    changed = people.copy()
    changed.iloc[5, 3] = "unknown"
    missing = people.copy()
    missing.iloc[5, 3] = None
    for other in (grown, changed, missing, people.assign(more="x"), people[::-1]):
        found.add(digest_cells(read_table(other))[0])
    assert len(found) == 6
    lists = people.assign(codes=[[q] for q in range(703)])
    assert digest_cells(read_table(lists))[0] not in found
    assert digest_cells(read_table(people.assign(row=1)), without=("row", None))[0] in found
    # ledgers of earlier versions have it
    assert "abd37b25e9977adc6226c36416a88a98324a48bdf7c9cab291fa26f18575ad93" in found


def test_the_digest_of_a_column_is_of_its_cells_in_any_order(people):
    _, before = digest_cells(read_table(people))
    changed = people[::-1].assign(**{"condition 3": people["condition 3"].replace("yes", None)})
    changed.iloc[5, 4] = "unknown"
    lists = [[q] for q in range(703)]
    _, after = digest_cells(read_table(changed.assign(codes=lists)))
    assert {name for name in before if after[name] != before[name]} == {
        "condition 3", "condition 4"
    }  # fmt: skip
    _, mixed = digest_cells(read_table(people.assign(codes=lists[::-1])))
    assert mixed["codes"] == after["codes"]


@pytest.fixture
def desk(people, tmp_path, monkeypatch, without_pictures):
    """A hospital with a table, and two studies that it is asked to take part in."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        write_study(study_of(people, number, title=f"Study {number}"), f"study{number}.toml")
    Path("north").mkdir()
    people.to_csv("north/table.csv", index=False)
    return tmp_path


def grow(people):
    """One person more, with two conditions of her own."""
    person = {name: "yes" if name in ("condition 3", "condition 7") else "no" for name in people}
    pd.concat([people, pd.DataFrame([person])]).to_csv("north/table.csv", index=False)


def ask(number):
    where = ["--exchange", f"exchange{number}", "--out", f"results{number}"]
    result = run("coordinate", f"study{number}.toml", *where)
    assert result.exit_code == OPEN, result.output


def reply(number, *more, data="north/table.csv"):
    own = ["--silo", "north", "--data", data, "--study", f"study{number}.toml"]
    return run("answer", f"exchange{number}", *own, *more)


def release(number, *more):
    own = ["--silo", "north", "--study", f"study{number}.toml"]
    out = [] if "--dry-run" in more else ["--out", f"release{number}"]
    return run("release", "north/table.csv", *own, *out, *more)


class TestDifferencing:
    """One person more, and two releases: each rounds by itself, and their difference is hers."""

    def test_two_releases_tell_of_the_person(self, desk, people, ledger):
        """Without a ledger: what differs between the two is what she has, and nothing else."""
        release(1, "--policy", "pcornet")
        grow(people)
        ledger.unlink()
        assert release(2, "--policy", "pcornet").exit_code == 0
        before, after = (read_release(desk / f"release{n}")[0] for n in (1, 2))
        assert after.rows == before.rows + 1

    @pytest.mark.parametrize("way", ["answer", "release"])
    def test_a_grown_table_is_refused_until_its_owner_allows_the_study(
        self, desk, people, ledger, way
    ):
        """The message has the command that allows it."""
        give = {"answer": reply, "release": release}[way]
        ask(1)
        ask(2)
        first = give(1)
        assert first.exit_code == 0, first.output
        assert f"Counted in: {ledger}" in first.output
        grow(people)
        shutil.rmtree("north/silomix-store", ignore_errors=True)
        second = give(2)
        assert second.exit_code == REFUSED
        assert "is not as it was when study" in words(second)
        assert not list(desk.glob("exchange2/answers/*/*"))
        assert not (desk / "release2").exists()
        assert not (desk / "north/silomix-store").exists()
        command = words(second).partition("To allow this study all the same: ")[2].partition(";")[0]
        assert run(*command.split()[1:]).exit_code == 0
        second = give(2)
        assert second.exit_code == 0, second.output

    def test_the_same_study_asked_anew_is_refused_too_whatever_was_lost(self, desk, people, ledger):
        """A ledger is made again from the answers that are there."""
        ask(1)
        ask(2)
        reply(1)
        ledger.unlink()
        assert reply(1).exit_code == 0
        assert reply(2).exit_code == REFUSED
        grow(people)
        shutil.rmtree("north/silomix-store")
        shutil.rmtree("exchange1")
        ask(1)
        result = reply(1)
        assert (result.exit_code, "with other rows, on" in words(result)) == (REFUSED, True)

    def test_a_name_tells_the_ledger_that_a_new_file_is_the_same_table(self, desk, people):
        name = ["--table-name", "cohort"]
        ask(1)
        ask(2)
        assert reply(1, *name).exit_code == 0
        grow(people)
        Path("north/table.csv").rename("north/summer.csv")
        result = reply(2, *name, data="north/summer.csv")
        assert (result.exit_code, "'cohort' is not as it was" in words(result)) == (REFUSED, True)
        assert run("ledger", "--data", "north/summer.csv", *name, "--new-version").exit_code == 0
        result = reply(2, *name, data="north/summer.csv")
        assert result.exit_code == 0, result.output

    @pytest.mark.parametrize(
        "way", [shutil.copy, shutil.move, os.link], ids=lambda way: way.__name__
    )
    def test_the_table_in_another_folder_is_the_same_table(self, desk, way):
        ask(1)
        ask(2)
        assert reply(1).exit_code == 0
        Path("delivery").mkdir()
        way("north/table.csv", "delivery/people.csv")
        result = reply(2, data="delivery/people.csv")
        assert result.exit_code == REFUSED
        assert f"answered from '{desk}/north/table.csv'" in words(result)
        assert not list(desk.glob("exchange2/answers/*/*"))
        assert reply(1, data="delivery/people.csv").exit_code == 0

    def test_the_owner_is_told_of_a_delivery_with_other_rows_in_another_folder(self, desk, people):
        ask(1)
        ask(2)
        reply(1)
        Path("delivery").mkdir()
        grow(people)
        Path("north/table.csv").rename("delivery/table.csv")
        result = reply(2, data="delivery/table.csv")
        told = f"but knows '{desk}/north/table.csv'; if this is one of them with other rows, stop"
        assert (result.exit_code, told in words(result)) == (0, True)

    def test_a_failure_counts_and_is_counted_again_from_the_exchange(self, desk, ledger):
        write_policy(Policy(name="strict", **FEW), "strict.toml")
        ask(1)
        ask(2)
        strict = ["--policy", "strict.toml"]
        for lost in (False, True):
            if lost:
                ledger.unlink()
                shutil.rmtree("north/silomix-store")
            assert reply(1, *strict).exit_code == (0 if lost else REFUSED)
            (study,) = read_ledger(ledger).tables[0].ever
            assert list(study.left) == ["failed"]
        refused = reply(2, *strict)
        assert (refused.exit_code, "(it failed)" in words(refused)) == (REFUSED, True)
        assert not list(desk.glob("exchange2/answers/*/*"))

    def test_a_live_site_counts_in_the_same_ledger(self, desk, ledger):
        ask(1)
        reply(1)
        table, store = desk / "north/table.csv", str(desk / "store")
        site = {"data": str(table), "policy": "default", "store": store}
        silo, _ = open_own_silo("north", study=str(desk / "study1.toml"), **site)
        assert silo.account.path == ledger
        with pytest.raises(PolicyRefusal, match="allows 1 study of one table"):
            open_own_silo("north", study=str(desk / "study2.toml"), **site)


class TestCommands:
    def test_it_shows_what_left_and_allows_a_study_by_its_file(self, desk, ledger):
        """Of a dry run nothing left."""
        release(1, "--dry-run")
        shown = ["ledger", "--data", "north/table.csv"]
        empty = run(*shown)
        assert (empty.exit_code, "Nothing has left" in empty.output) == (0, True)
        ask(1)
        ask(2)
        reply(1)
        result = run(*shown)
        assert result.exit_code == 0, result.output
        for word in ("Study 1", "north", "default", "release", f"{desk}"):
            assert word in words(result)
        record = json.loads(run("ledger", "--ledger", ledger, "--json").stdout)
        (table,) = record["tables"]
        assert table["name"] == str(desk / "north/table.csv")
        (study,) = table["versions"][0]["studies"]
        assert (study["title"], list(study["left"])) == ("Study 1", ["Release"])
        assert reply(2).exit_code == REFUSED
        allowed = run(*shown, "--allow", "study2.toml")
        assert "Allowed by its owner:" in allowed.output
        assert reply(2).exit_code == 0
        assert "A new version begins with the next study" in words(run(*shown, "--new-version"))

    def test_wrong_words_are_explained_and_it_is_not_carried_away(self, desk):
        ask(1)
        result = reply(1, "--ledger", "exchange1/ledger.json")
        assert (result.exit_code, "is inside the exchange" in words(result)) == (SETTING, True)
        assert run("ledger", "--allow", "study1.toml", "--new-version").exit_code == 2
        assert run("ledger", "--allow", "absent.toml", "--table-name", "x").exit_code == SETTING
        assert "give --data TABLE or --table-name NAME" in words(
            run("ledger", "--allow", "study1.toml")
        )

    @pytest.mark.skipif(sys.platform == "win32", reason="pipes are POSIX's")
    def test_a_pipe_as_ledger_is_refused_by_every_command(self, desk):
        os.mkfifo("pipe")
        ask(1)
        with time_limit(60):
            for result in (reply(1, "--ledger", "pipe"), release(1, "--ledger", "pipe"),
                           run("ledger", "--ledger", "pipe")):  # fmt: skip
                assert result.exit_code == FOREIGN
                assert "cannot be used: it is not a file but a pipe" in words(result)

    def test_a_change_of_policy_is_written_down_and_shown(self, desk):
        """What was before and what now, however the count of studies came to allow another."""
        ask(1)
        ask(2)
        reply(1)
        loose = DEFAULT.model_copy(update={"name": "loose", "studies": 2})
        loose = loose.model_copy(update={"exchanges": Exchanges(polish=3)})
        write_policy(loose, "loose.toml")
        for _ in range(2):
            assert reply(2, "--policy", "loose.toml").exit_code == 0
        shown = words(run("ledger"))
        changes = "name default → loose, studies 1 → 2, exchanges.polish 0 → 3"
        assert f": its policy changed: {changes}" in shown
        assert shown.count("its policy changed") == 1
        (table,) = json.loads(run("ledger", "--json").stdout)["tables"]
        assert table["changes"][0]["before"]["studies"] == 1


class TestOldLedger:
    def test_one_of_version_0_2_0_beside_the_table_stops_everything(self, desk, ledger):
        ask(1)
        Path(f"north/{OLD_NAME}").write_text("{}")
        for result in (reply(1), release(1), run("ledger", "--data", "north/table.csv")):
            assert result.exit_code == FOREIGN
            assert f"{OLD_NAME} is a ledger of version 0.2.0" in words(result)
        assert not ledger.exists()
        Path(f"north/{OLD_NAME}").unlink()
        assert reply(1).exit_code == 0

    def test_named_as_the_ledger_it_is_refused_and_left_as_it_is(self, desk):
        ask(1)
        Path("old.json").write_text('{"kind": "silomix ledger", "format": 1, "tables": []}')
        before = Path("old.json").read_bytes()
        result = reply(1, "--ledger", "old.json")
        assert (result.exit_code, "old.json is no ledger" in words(result)) == (FOREIGN, True)
        assert Path("old.json").read_bytes() == before


class TestPlace:
    def test_it_is_the_users_unless_something_else_is_said(self, monkeypatch, tmp_path):
        monkeypatch.delenv("SILOMIX_LEDGER")
        for name in ("HOME", "USERPROFILE"):
            monkeypatch.setenv(name, str(tmp_path))
        for platform, variable, usual in (
            ("linux", "XDG_DATA_HOME", ".local/share"),
            ("darwin", "", "Library/Application Support"),
            ("win32", "LOCALAPPDATA", "AppData/Local"),
        ):
            monkeypatch.setattr(sys, "platform", platform)
            monkeypatch.delenv(variable, raising=False)
            assert find_ledger() == tmp_path / usual / "silomix" / LEDGER
            if variable:
                monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
                assert find_ledger() == tmp_path / "elsewhere" / "silomix" / LEDGER
        monkeypatch.setenv("SILOMIX_LEDGER", str(tmp_path / "mine"))
        assert find_ledger() == tmp_path / "mine"
        assert find_ledger(tmp_path / "given") == tmp_path / "given"
        monkeypatch.setenv("SILOMIX_LEDGER", "mine")
        with pytest.raises(SettingsError, match="set it to an absolute path"):
            find_ledger()
