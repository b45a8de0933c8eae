"""What a silo counts across studies: whom it answered, and who has to be asked first."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import run, words

from silomix.errors import DataWarning, FileError, PolicyRefusal, SettingsError
from silomix.messages import Refused, SampleLocally
from silomix.messages.folder import read_release
from silomix.model.reading import read_table
from silomix.model.table import infer_schema
from silomix.silo.answer import answer, answer_or_refuse
from silomix.silo.ledger import (
    LEDGER,
    Account,
    Answered,
    allow_study,
    begin_version,
    check_account,
    knows,
    note_left,
    open_account,
    read_ledger,
)
from silomix.silo.local import Silo, digest_cells, load_rows
from silomix.study import digest, make_study, write_study
from silomix.study.policy import Policy, find_policy
from silomix.transports.flare.participant import open_own_silo

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
        left={},
    )
    return Account(path / LEDGER, table, digest * 64, entry, policy)


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
            ("a", DEFAULT, {"study": "b", "table": "copy"}, "answered from 'copy':"),
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
        note_left(grown, "AssignReply")
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
        note_left(account(tmp_path), "AssignReply")  # the study of then, from the rows of then
        (table,) = read_ledger(tmp_path / LEDGER).tables
        studies = [[one.study[0] for one in version.studies] for version in table.versions]
        assert studies == [["a"], ["b"]]
        assert sorted(table.versions[0].studies[0].left) == ["AssignReply", "Release"]


class TestFile:
    @pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
    def test_what_left_is_noted_once_for_its_owner_alone_or_it_does_not_leave(
        self, tmp_path, monkeypatch
    ):
        first = account(tmp_path)
        before = os.umask(0o000)
        try:
            for record in ("Release", "AssignReply", "Release"):
                note_left(first, record)
        finally:
            os.umask(before)
        (study,) = read_ledger(first.path).tables[0].counted.studies
        assert (study.study, study.title, study.silo) == ("a" * 64, "Study a", "north")
        assert list(study.left) == ["AssignReply", "Release"]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert modes == {LEDGER: 0o600, f".{LEDGER}.lock": 0o600}
        with pytest.raises(FileError, match=r"cannot be written"):
            check_account(replace(first, path=first.path / LEDGER))

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[]", b"\xff", b'{"kind": "silomix ledger", "format": 2}', b'{"tables": 3}',
         b'{"tables": [{"name": "x", "allowed": [3]}]}', b"\x80\x04K\x01."],
        ids=str,
    )  # fmt: skip
    def test_damaged_it_is_refused_and_left_as_it_is(self, tmp_path, content):
        (tmp_path / LEDGER).write_bytes(content)
        for use in (check_account, knows, lambda one: note_left(one, "Release")):
            with pytest.raises(FileError, match="is damaged, or of another version"):
                use(account(tmp_path))
        assert (tmp_path / LEDGER).read_bytes() == content

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
            place = open_account(loaded, study, "north", policy=policy, data=data, **options)
            return Silo("north", 0, loaded.shard, study, policy=policy, account=place)

        return make

    def test_an_answer_is_noted_before_it_leaves_and_a_refusal_is_not(self, opened, tmp_path):
        """So a study that began before another was answered is refused then."""
        for rule, code in (({"tiers": ("draws",)}, "policy"), (FEW, "too-few-rows")):
            silo = opened(policy=Policy(name="strict", **rule))
            assert answer_or_refuse(SampleLocally(), silo) == Refused(code)
            assert not (tmp_path / LEDGER).exists()
        silo, begun = opened(), opened(seed=2)
        answer(SampleLocally(), silo)
        (study,) = read_ledger(tmp_path / LEDGER).tables[0].counted.studies
        assert (study.study, list(study.left)) == (digest(silo.study), ["Release"])
        with pytest.raises(PolicyRefusal):
            opened(seed=2)
        assert answer_or_refuse(SampleLocally(), begun) == Refused("studies")

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
    found = {digest_cells(read_table(path)) for path in sorted(tmp_path.iterdir())}
    assert len(found) == 1
    grown = pd.concat([people, people[:1]])
    changed = people.copy()
    changed.iloc[5, 3] = "unknown"
    missing = people.copy()
    missing.iloc[5, 3] = None
    for other in (grown, changed, missing, people.assign(more="x"), people[::-1]):
        found.add(digest_cells(read_table(other)))
    assert len(found) == 6
    lists = people.assign(codes=[[q] for q in range(703)])
    assert digest_cells(read_table(lists)) not in found
    assert digest_cells(read_table(people.assign(row=1)), without=("row", None)) in found


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

    def test_two_releases_tell_of_the_person(self, desk, people):
        """Without a ledger: what differs between the two is what she has, and nothing else."""
        release(1, "--policy", "pcornet")
        grow(people)
        (desk / "north" / LEDGER).unlink()
        assert release(2, "--policy", "pcornet").exit_code == 0
        before, after = (read_release(desk / f"release{n}")[0] for n in (1, 2))
        assert after.rows == before.rows + 1

    @pytest.mark.parametrize("way", ["answer", "release"])
    def test_a_grown_table_is_refused_until_its_owner_allows_the_study(self, desk, people, way):
        """The message has the command that allows it."""
        give = {"answer": reply, "release": release}[way]
        ask(1)
        ask(2)
        first = give(1)
        assert first.exit_code == 0, first.output
        assert f"Counted in: {desk / 'north' / LEDGER}" in first.output
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

    def test_the_same_study_asked_anew_is_refused_too_whatever_was_lost(self, desk, people):
        """A ledger is made again from the answers that are there."""
        ask(1)
        ask(2)
        reply(1)
        (desk / "north" / LEDGER).unlink()
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

    def test_a_live_site_counts_in_the_same_ledger(self, desk):
        ask(1)
        reply(1)
        table, store = desk / "north/table.csv", str(desk / "store")
        site = {"data": str(table), "policy": "default", "store": store}
        silo, _ = open_own_silo("north", study=str(desk / "study1.toml"), **site)
        assert silo.account.path == desk / "north" / LEDGER
        with pytest.raises(PolicyRefusal, match="allows 1 study of one table"):
            open_own_silo("north", study=str(desk / "study2.toml"), **site)


class TestCommands:
    def test_it_shows_what_left_and_allows_a_study_by_its_file(self, desk):
        """Of a dry run nothing left."""
        release(1, "--dry-run")
        ledger = ["ledger", "--data", "north/table.csv"]
        empty = run(*ledger)
        assert (empty.exit_code, "Nothing has left" in empty.output) == (0, True)
        ask(1)
        ask(2)
        reply(1)
        result = run(*ledger)
        assert result.exit_code == 0, result.output
        for word in ("Study 1", "north", "default", "release", f"{desk}"):
            assert word in words(result)
        record = json.loads(run("ledger", "--ledger", f"north/{LEDGER}", "--json").stdout)
        (table,) = record["tables"]
        assert table["name"] == str(desk / "north/table.csv")
        (study,) = table["versions"][0]["studies"]
        assert (study["title"], list(study["left"])) == ("Study 1", ["Release"])
        assert reply(2).exit_code == REFUSED
        allowed = run(*ledger, "--allow", "study2.toml")
        assert "Allowed by its owner:" in allowed.output
        assert reply(2).exit_code == 0
        assert "A new version begins with the next study" in words(run(*ledger, "--new-version"))

    def test_wrong_words_are_explained_and_it_is_not_carried_away(self, desk):
        ask(1)
        result = reply(1, "--ledger", "exchange1/ledger.json")
        assert (result.exit_code, "is inside the exchange" in words(result)) == (SETTING, True)
        assert run("ledger", "--allow", "study1.toml", "--new-version").exit_code == 2
        assert run("ledger", "--allow", "absent.toml", "--table-name", "x").exit_code == SETTING
        assert "give --table-name NAME" in words(run("ledger", "--allow", "study1.toml"))
