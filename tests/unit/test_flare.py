"""What of a live federation needs no other process; the processes are in tests/federation."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from silomix.cli import flare as commands
from silomix.data import load
from silomix.errors import (
    FileError,
    MessageError,
    MissingDependency,
    SettingsError,
    SiloError,
    StudyMismatch,
)
from silomix.messages import (
    AssignReply,
    CountDistinctRows,
    DistinctRows,
    Refused,
    SampleLocally,
)
from silomix.messages.container import Envelope, decode, encode
from silomix.messages.container import digest as digest_question
from silomix.silo import Silo
from silomix.simulate import simulate
from silomix.study import digest, make_study, read_study, write_study
from silomix.transports.flare import session
from silomix.transports.flare.asking import AWAY, DEADLINE, NoAnswer, RemoteSilos, Silence
from silomix.transports.flare.child import Worker
from silomix.transports.flare.frames import LETTER, REFUSED, read_frame, write_frame
from silomix.transports.flare.job import Manners, write_job
from silomix.transports.flare.kit import (
    SiteSettings,
    admin_name,
    kit_folder,
    read_json,
    read_site_settings,
    site_name,
    write_json,
    write_settings,
)
from silomix.transports.flare.outcome import Outcome, read_outcome
from silomix.transports.flare.provision import check_names, provision, require_flare
from silomix.transports.flare.settle import settle_site
from silomix.transports.flare.site import open_site, without
from silomix.transports.flare.worker import respond
from silomix.transports.journal import open_journal
from silomix.types import Schema, Variable

SCHEMA = Schema((Variable("a", ("no", "yes")), Variable("b", ("x", "y", "z"))))
STUDY = make_study(SCHEMA, ["north", "south"], title="Both", seed=1)
ROWS = DistinctRows(np.array([[0, 1], [1, 2]], dtype=np.uint8), np.array([3, 4]))
QUERY = CountDistinctRows()


def letter(record, silo="north", number=1, study=STUDY):
    return encode(Envelope(digest(study), silo, number, type(record).__name__), record)


def reply(record, silo="north", number=1, study=STUDY, query=QUERY):
    kind, answers = type(record).__name__, digest_question(query)
    return encode(Envelope(digest(study), silo, number, kind, answers), record)


class ScriptedPost:
    """Gives each silo's answers in turn; an answer is bytes or a `Silence`."""

    def __init__(self, **answers):
        self.answers = {name: list(given) for name, given in answers.items()}
        self.sent = []

    def exchange(self, letters, deadline):
        for name in letters:
            self.sent.append(name)
            yield name, self.answers[name].pop(0)


def ask(post, folder, retries=2, query=QUERY, times=1):
    notes = []
    journal = open_journal(folder, STUDY)
    silos = RemoteSilos(STUDY, post, journal, deadline=1, retries=retries, note=notes.append)
    for _ in range(times):
        replies = silos.ask(query)
    return replies, notes


class TestAsking:
    def test_one_answer_from_each(self, tmp_path):
        south = reply(ROWS, "south")
        replies, notes = ask(ScriptedPost(north=[reply(ROWS)], south=[south]), tmp_path)
        assert list(replies) == ["north", "south"]
        assert replies["south"].counts.tolist() == [3, 4]
        assert (notes[0].number, notes[0].kind, notes[0].replayed) == (1, "CountDistinctRows", 0)
        assert notes[0].received == len(south) + len(reply(ROWS))

    def test_the_journal_answers_first(self, tmp_path):
        ask(ScriptedPost(north=[reply(ROWS)], south=[reply(ROWS, "south")]), tmp_path)
        replies, notes = ask(ScriptedPost(), tmp_path)
        assert replies["north"].counts.tolist() == [3, 4]
        assert notes[0].replayed == 2

    @pytest.mark.parametrize("failure", [Silence("died"), Silence(DEADLINE)])
    def test_a_passing_failure_is_asked_again(self, tmp_path, failure):
        post = ScriptedPost(north=[reply(ROWS)], south=[failure, failure, reply(ROWS, "south")])
        ask(post, tmp_path)
        assert post.sent == ["north", "south", "south", "south"]

    def test_retries_end_and_what_was_answered_is_kept(self, tmp_path):
        post = ScriptedPost(north=[reply(ROWS)], south=[Silence("died")] * 3)
        with pytest.raises(NoAnswer, match=r"south has no answer to question 1 .*worker died"):
            ask(post, tmp_path)
        post = ScriptedPost(south=[reply(ROWS, "south")])
        _, notes = ask(post, tmp_path)
        assert notes[0].replayed == 1

    @pytest.mark.parametrize(
        ("answer", "code", "words"),
        [
            (reply(Refused("policy")), "policy", "its policy does not allow"),
            (reply(Refused("study")), "study", "takes part in another study"),
            (Silence(AWAY), "away", "its site is not connected any more"),
            (Silence("rm -rf"), "failed", "something went wrong there"),
        ],
    )
    def test_a_lasting_failure_names_the_silo_at_once(self, tmp_path, answer, code, words):
        post = ScriptedPost(north=[answer])
        with pytest.raises(NoAnswer, match=words) as caught:
            ask(post, tmp_path)
        assert (caught.value.silo, caught.value.code) == ("north", code)
        assert "--without north" in str(caught.value)

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (reply(ROWS, "south"), "of silo 'south'"),
            (reply(ROWS, number=2), "of question 2"),
            (reply(ROWS, query=SampleLocally()), "answers another question 1"),
            (reply(ROWS, study=STUDY.model_copy(update={"seed": 9})), "is of study"),
            (reply(AssignReply(np.array([1]))), "the answer AssignReply to CountDistinctRows"),
            (b"nonsense", "no message of at most"),
        ],
    )
    def test_an_answer_that_does_not_fit_is_refused(self, tmp_path, answer, words):
        with pytest.raises(MessageError, match=words):
            ask(ScriptedPost(north=[answer], south=[reply(ROWS, "south")]), tmp_path)
        assert not list(tmp_path.glob("*-0-*.reply"))


class TestNames:
    @pytest.mark.parametrize("name", ["Saint Mary's", "Zürich", "a" * 61, "north.west"])
    def test_names_that_no_certificate_can_have(self, name):
        with pytest.raises(SettingsError, match="cannot have a certificate by that name"):
            check_names(["south", name])

    @pytest.mark.parametrize("name", ["server", "Admin", "authority"])
    def test_names_of_other_folders(self, name):
        with pytest.raises(SettingsError, match="has the name of another folder"):
            check_names([name])

    def test_names_that_differ_in_capitals(self):
        with pytest.raises(SettingsError, match="differ only in capitals"):
            check_names(["North", "north"])

    def test_good_names_pass(self):
        check_names(["north-1", "South_2"])


class TestWithout:
    def test_it_is_another_study_that_says_so(self):
        fewer = without(STUDY, ["south"])
        assert fewer.silos == ("north",)
        assert fewer.title == "Both (without south)"
        assert digest(fewer) != digest(STUDY)
        assert without(STUDY, []) is STUDY

    def test_unknown_and_all_silos(self):
        with pytest.raises(SettingsError, match="has no silo 'east' to go on without"):
            without(STUDY, ["east"])
        with pytest.raises(SettingsError, match="no silo is left"):
            without(STUDY, ["north", "south"])


@pytest.fixture
def kit(tmp_path):
    """A site's kit, as far as we look at it."""
    startup, local = tmp_path / "north" / "startup", tmp_path / "north" / "local"
    startup.mkdir(parents=True)
    local.mkdir()
    (startup / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "north"}}))
    streamer = {"id": "site_log_streamer"}
    resources = {"class_allow_list": ["nvflare"], "components": [streamer, {"id": "launcher"}]}
    (local / "resources.json.default").write_text(json.dumps(resources))
    (local / "authorization.json.default").write_text(json.dumps({"format_version": "1.0"}))
    return tmp_path / "north"


class TestKit:
    def test_the_silo_is_the_name_in_the_kit(self, kit):
        assert site_name(kit) == "north"

    def test_another_folder_is_no_kit(self, kit):
        with pytest.raises(FileError, match=r"no start-up kit of the server"):
            kit_folder(kit, "server")
        with pytest.raises(FileError, match=r"no start-up kit of an admin"):
            admin_name(kit)

    def test_a_damaged_file_is_named(self, tmp_path):
        (tmp_path / "x.json").write_text("[1]")
        with pytest.raises(FileError, match=r"x\.json is missing or damaged"):
            read_json(tmp_path / "x.json")

    def test_settings_come_back(self, kit):
        settings = SiteSettings("t.csv", "s.toml", "open", "store", without=("south",), threads=2)
        write_settings(kit, settings)
        assert read_site_settings(kit / "local") == settings

    def test_a_site_builds_our_class_only_and_shows_no_files(self, kit):
        settle_site(kit)
        resources = read_json(kit / "local" / "resources.json")
        assert resources["class_allow_list"] == ["silomix.transports.flare.executor.SiloExecutor"]
        assert resources["allow_log_streaming"] is False
        assert [part["id"] for part in resources["components"]] == ["launcher"]
        rules = read_json(kit / "local" / "authorization.json")["permissions"]["project_admin"]
        assert (rules["byoc"], rules["shell_commands"]) == ("none", "none")


class TestJob:
    def test_it_carries_the_study_and_no_code(self, tmp_path):
        folder = write_job(tmp_path / "job", STUDY, Manners(60.0, 1, ("east",)))
        meta = read_json(folder / "meta.json")
        assert meta["deploy_map"] == {"coordinator": ["server"], "silo": ["north", "south"]}
        config = folder / "coordinator" / "config"
        assert digest(read_study(config / "study.toml")) == digest(STUDY)
        server = read_json(config / "config_fed_server.json")
        assert server["workflows"][0]["args"] == {
            "deadline": 60.0,
            "retries": 1,
            "left_out": ["east"],
        }
        suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
        assert suffixes == {".json", ".toml"}
        site = (folder / "silo" / "config" / "config_fed_client.json").read_text()
        assert "north" not in site


class TestOutcome:
    def test_it_is_found_in_a_download(self, tmp_path):
        assert read_outcome(tmp_path) is None
        entry = {"number": 1, "kind": "X", "seconds": 0.1, "sent": 1, "received": 2, "replayed": 0}
        content = {"status": "failed", "code": "away", "silo": "north", "asked": [entry]}
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "outcome.json").write_text(json.dumps(content))
        found = read_outcome(tmp_path)
        assert found.passing
        assert found.asked[0].received == 2
        assert not Outcome("failed", "policy").passing


class TestFrames:
    def test_frames_come_back_and_an_end_is_an_end(self):
        stream = io.BytesIO()
        write_frame(stream, LETTER, b"abc")
        write_frame(stream, REFUSED, b"died")
        content = stream.getvalue()
        stream.seek(0)
        assert read_frame(stream) == (LETTER, b"abc")
        assert read_frame(stream) == (REFUSED, b"died")
        assert read_frame(stream) is None
        for cut in (3, 10):
            assert read_frame(io.BytesIO(content[:cut])) is None


@pytest.fixture
def site(tmp_path):
    """Settings of the silo north, its files written."""
    table, _ = simulate("non-nested", rows=80, silos=2, seed=1)
    table["silo"] = table["silo"].astype(str).map({"silo 1": "north", "silo 2": "south"})
    table.to_csv(tmp_path / "table.csv", index=False)
    schema = load(table.drop(columns="silo")).schema
    study = make_study(schema, ["north", "south"], iterations=40, seed=1)
    write_study(study, tmp_path / "study.toml")
    return SiteSettings(
        data=str(tmp_path / "table.csv"),
        study=str(tmp_path / "study.toml"),
        policy="open",
        store=str(tmp_path / "store"),
        silo_column="silo",
    )


class TestSite:
    def test_the_silo_has_its_own_rows_and_a_store_for_this_study(self, site):
        silo, _ = open_site(site, "north")
        assert isinstance(silo, Silo)
        assert (silo.name, silo.place, silo.shard.rows) == ("north", 0, 40)
        assert silo.store.folder.name == digest(silo.study)[:16]

    def test_a_name_that_is_not_in_the_study(self, site):
        with pytest.raises(StudyMismatch, match="the study has no silo 'east'; its roster is"):
            open_site(site, "east")

    def test_a_letter_is_answered(self, site):
        silo, rows = open_site(site, "north")
        kind, answer = respond(letter(QUERY, study=silo.study), "north", (silo, rows))
        envelope, reply = decode(answer)
        assert kind == LETTER
        asked = digest_question(QUERY)
        assert envelope == Envelope(digest(silo.study), "north", 1, "DistinctRows", asked)
        assert reply.counts.sum() == 40

    @pytest.mark.parametrize(
        ("content", "code"),
        [
            (letter(SampleLocally()), "study"),
            (letter(SampleLocally(), "south"), "study"),
        ],
    )
    def test_a_letter_of_another_study_is_refused(self, site, content, code):
        _, answer = respond(content, "north", open_site(site, "north"))
        assert decode(answer)[1] == Refused(code)

    def test_a_letter_to_another_silo_is_refused(self, site):
        silo, rows = open_site(site, "north")
        _, answer = respond(letter(QUERY, "south", study=silo.study), "north", (silo, rows))
        assert decode(answer)[1] == Refused("question")

    def test_what_is_no_letter_is_refused(self, site):
        assert respond(b"?", "north", open_site(site, "north")) == (REFUSED, b"question")

    def test_a_silo_that_could_not_open_says_only_a_code(self):
        _, answer = respond(letter(QUERY), "north", "data")
        assert decode(answer)[1] == Refused("data")

    def test_the_worker_answers_over_its_pipes_and_ends_with_them(self, site, kit):
        write_settings(kit, site)
        command = [sys.executable, "-m", "silomix.transports.flare.worker", kit / "local", "north"]
        study = read_study(site.study)
        asked = io.BytesIO()
        write_frame(asked, LETTER, letter(QUERY, study=study))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as worker:
            worker.stdin.write(asked.getvalue())
            worker.stdin.flush()
            kind, answer = read_frame(worker.stdout)
            worker.stdin.close()
            assert worker.wait(10) == 0
        assert kind == LETTER
        assert decode(answer)[1].counts.sum() == 40


class TestCommands:
    def run(self, *words):
        return CliRunner().invoke(commands.flare_app, [str(word) for word in words])

    def test_a_site_checks_its_files_before_it_starts(self, site, kit, monkeypatch):
        started = []
        monkeypatch.setattr(commands, "_become", started.append)
        done = self.run(
            "site", kit, "--data", site.data, "--study", site.study, "--policy", "open",
            "--silo-column", "silo",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        assert "north: 40 rows, policy open, study" in done.output
        assert "nvflare.private.fed.app.client.client_train" in started[0]
        assert "uid=north" in started[0]
        assert read_site_settings(kit / "local").data == site.data

        failed = self.run("site", kit, "--data", "absent.csv", "--study", site.study)
        assert failed.exit_code == 3
        assert len(started) == 1

    def test_going_on_without_an_unknown_silo(self, site, tmp_path):
        failed = self.run(
            "run", site.study, "--admin", tmp_path, "--out", tmp_path / "out", "--without", "east"
        )
        assert failed.exit_code == 4
        assert "has no silo 'east' to go on without" in failed.output

    def test_a_folder_in_use_is_not_provisioned(self, site, tmp_path):
        failed = self.run("provision", site.study, "--out", tmp_path)
        assert failed.exit_code == 4
        assert "is not empty" in failed.output


class TestSession:
    def run(self, monkeypatch, ends, retries=2):
        """Run a study whose submissions end like this, one after the other."""
        ends = iter(ends)
        monkeypatch.setattr(session, "connected", lambda kit: nullcontext(kit))
        monkeypatch.setattr(session, "wait_for", lambda *_: None)
        monkeypatch.setattr(session, "_run_once", lambda *_: next(ends))
        return session.run_live(STUDY, "kit", Manners(retries=retries))

    def test_a_site_that_went_away_is_waited_for(self, monkeypatch):
        away = (Outcome("failed", "away", "north", "north is away"), None)
        stopped = (Outcome("failed", "stopped", None, "stopped"), None)
        done = (Outcome("done"), "posterior")
        assert self.run(monkeypatch, [away, stopped, done]) == ("posterior", Outcome("done"))
        with pytest.raises(SiloError, match="north is away"):
            self.run(monkeypatch, [away, away], retries=1)

    def test_a_refusal_ends_it(self, monkeypatch):
        with pytest.raises(SiloError, match="its policy"):
            self.run(monkeypatch, [(Outcome("failed", "policy", "north", "its policy"), None)])

    def test_runs_without_any_outcome(self, monkeypatch):
        with pytest.raises(SiloError, match="FLARE ended the run without a result each time"):
            self.run(monkeypatch, [(None, None)] * 3)

    def test_a_silo_that_is_not_connected_is_named(self):
        present = SimpleNamespace(get_connected_client_list=lambda: [SimpleNamespace(name="north")])
        session.wait_for(present, ["north"], 0)
        with pytest.raises(SiloError, match=r"not connected after 0 s: south; start .*--without"):
            session.wait_for(present, ["north", "south"], 0)

    def test_a_server_that_is_lost(self):
        def fail():
            raise ConnectionError

        gone = SimpleNamespace(get_connected_client_list=fail)
        with pytest.raises(SiloError, match=r"lost in mid-run \(ConnectionError\); start it again"):
            session.wait_for(gone, ["north"], 0)

    def test_a_server_that_cannot_be_reached(self, tmp_path, monkeypatch):
        api = pytest.importorskip("nvflare.fuel.flare_api.flare_api")
        (tmp_path / "startup").mkdir()
        (tmp_path / "startup" / "fed_admin.json").write_text('{"admin": {"username": "me"}}')

        def fail(*_, **__):
            raise ConnectionError

        monkeypatch.setattr(api, "new_secure_session", fail)
        with (
            pytest.raises(SiloError, match=r"the server cannot be reached with the kit .*host"),
            session.connected(tmp_path),
        ):
            pass


class TestProvision:
    def test_a_host_that_is_no_name(self, tmp_path):
        pytest.importorskip("nvflare")
        with pytest.raises(SettingsError, match=r"FLARE cannot provision this federation: .*host"):
            provision(["north"], tmp_path / "kits", host="not a host")
        assert not list((tmp_path / "kits").iterdir())

    def test_without_flare_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "nvflare", None)
        with pytest.raises(MissingDependency, match=r"silomix\[flare\]"):
            require_flare()


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_only_its_owner_may_read_the_log_of_a_worker(tmp_path):
    log = tmp_path / "silomix-worker.log"
    before = os.umask(0o022)
    try:
        Worker(tmp_path, "north", log).stop()
    finally:
        os.umask(before)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_full_disk_leaves_the_old_settings(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_json(tmp_path / "settings.json", {"threads": 1})
    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "settings.json", {"threads": 2})
    assert read_json(tmp_path / "settings.json") == {"threads": 1}
