"""What of a live federation needs no other process; the processes are in tests/federation."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import sys
import uuid
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="the extra flare is not installed")

from federation.flare_cases import stand_in_kit
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.flare_api import flare_api
from nvflare.fuel.sec.audit import Auditor, AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.defs import new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent

from silomix import cli
from silomix.errors import (
    DataWarning,
    FileError,
    SettingsError,
    SiloError,
    StudyMismatch,
)
from silomix.messages import CountDistinctRows
from silomix.messages.container import Envelope, decode, digest_record, encode
from silomix.model.schema import Schema, Variable
from silomix.model.table import load
from silomix.silo.local import without
from silomix.simulate import simulate
from silomix.study import digest, make_study, read_study, write_study
from silomix.transports.encoded import respond
from silomix.transports.flare import executor, participant, session
from silomix.transports.flare.executor import SiloExecutor
from silomix.transports.flare.participant import (
    check_kit,
    open_own_silo,
    read_json,
    site_command,
    write_json,
)
from silomix.transports.flare.session import Outcome, write_job
from silomix.transports.flare.startup_kit import check_names

SCHEMA = Schema((Variable("a", ("no", "yes")), Variable("b", ("x", "y", "z"))))
STUDY = make_study(SCHEMA, ["north", "south"], title="Both", seed=1)
QUERY = CountDistinctRows()
AWAY = Outcome("away", "north is away")


def question(record, silo="north", study=STUDY):
    return encode(Envelope(digest(study), silo, 1, type(record).__name__), record)


@pytest.mark.parametrize(
    "names",
    [
        *(["south", name] for name in ("Saint Mary's", "Zürich", "a" * 61, "north.west", "")),
        *([name] for name in ("server", "Admin", "authority", "localhost")),
        ["North", "north"],
    ],
)
def test_names_that_no_kit_can_have(names):
    check_names(["north-1", "South_2"], "localhost")
    with pytest.raises(SettingsError, match="cannot have a kit by that name"):
        check_names(names, "localhost")


def test_a_study_without_a_silo_is_another_that_says_so():
    fewer = without(STUDY, ["south"])
    assert (fewer.silos, fewer.title) == (("north",), "Both (without south)")
    assert digest(fewer) != digest(STUDY)
    assert without(STUDY, []) is STUDY
    for left_out, error in ((["east"], StudyMismatch), (["north", "south"], SettingsError)):
        with pytest.raises(error):
            without(STUDY, left_out)


def test_a_job_carries_the_study_and_no_code(tmp_path):
    folder = write_job(tmp_path / "job", STUDY, 60.0)
    meta = read_json(folder / "meta.json")
    assert meta["deploy_map"] == {"coordinator": ["server"], "silo": ["north", "south"]}
    config = folder / "coordinator" / "config"
    assert digest(read_study(config / "study.toml")) == digest(STUDY)
    server = read_json(config / "config_fed_server.json")
    assert server["workflows"][0]["args"] == {"deadline": 60.0}
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".toml"}
    assert "north" not in (folder / "silo" / "config" / "config_fed_client.json").read_text()


@pytest.fixture
def kit(tmp_path):
    """The kit of the site north, its certificates stand-ins."""
    return stand_in_kit(tmp_path, "north")


@pytest.fixture
def site(tmp_path):
    """Settings of the silo north, its files written."""
    table, _ = simulate("non-nested", rows=80, silos=2, seed=1)
    table["silo"] = table["silo"].astype(str).map({"silo 1": "north", "silo 2": "south"})
    table.to_csv(tmp_path / "table.csv", index=False)
    schema = load(table.drop(columns="silo")).schema
    study = make_study(schema, ["north", "south"], iterations=40, seed=1)
    write_study(study, tmp_path / "study.toml")
    data, file, store = (str(tmp_path / name) for name in ("table.csv", "study.toml", "store"))
    where = {"data": data, "study": file, "store": store}
    return where | {"policy": "open", "silo_column": "silo"}


class TestKit:
    def test_a_site_builds_our_class_only_and_shows_no_files(self, kit, site):
        assert "uid=north" in site_command(kit, site)
        with pytest.raises(FileError, match="start-up kit of a FLARE server"):
            check_kit(kit, "server")
        local = kit / "run" / "local"
        resources = read_json(local / "resources.json")
        assert resources["class_allow_list"] == ["silomix.transports.flare.executor.SiloExecutor"]
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert resources["allow_log_streaming"] is False
        parts = [part["id"] for part in resources["components"]]
        assert parts == ["resource_manager", "resource_consumer", "process_launcher"]
        rules = read_json(local / "authorization.json")["permissions"]["project_admin"]
        assert (rules["byoc"], rules["shell_commands"]) == ("none", "none")
        assert read_json(local / "silomix.json") == site

    def test_every_start_makes_its_folder_anew(self, kit, site):
        (kit / "run" / "local").mkdir(parents=True)
        for name in ("log_config.json", "privacy.json", "log.txt"):
            (kit / "run" / "local" / name).write_text("old")
        for _ in range(2):
            site_command(kit, site)
            texts = {path.read_text() for path in (kit / "run").rglob("*") if path.is_file()}
            assert "old" not in texts
        assert (kit / "run.previous" / "local" / "silomix.json").is_file()

    @pytest.mark.parametrize(
        "name",
        [
            *("local/custom/evil.py", "local/log_config.json", "startup/comm_config.json"),
            *("startup/signature.json", "startup/custom/evil.py", "startup/evil__resources.json"),
        ],
    )
    def test_a_file_that_does_not_belong_is_named(self, kit, site, name):
        (kit / name).parent.mkdir(parents=True, exist_ok=True)
        (kit / name).touch()
        with pytest.raises(FileError, match=r"north/(startup|local)/.* does not belong") as caught:
            site_command(kit, site)
        assert str(Path(name).parts[1]) in str(caught.value)
        assert not (kit / "run").exists()

    @pytest.mark.skipif(sys.platform == "win32", reason="needs rights there")
    @pytest.mark.parametrize("name", ["silomix-worker.log", "run", "startup/client.crt", "store"])
    def test_a_link_out_of_the_kit_is_refused(self, kit, site, tmp_path, name):
        (kit / name).unlink(missing_ok=True)
        (kit / name).symlink_to(tmp_path)
        with pytest.raises(FileError, match=f"north/{name} does not belong"):
            site_command(kit, site)

    @pytest.mark.parametrize(
        "more",
        [
            {"components": [{"id": "evil", "path": "os.system"}]},
            {"handlers": []},
            {"overseer_agent": {"path": "evil.Agent"}},
            {"relay_config": {"address": "evil.example"}},
            {"require_signed_jobs": False},
            {"client": {"connection_security": "clear"}},
            {"client": {"ssl_private_key": "/etc/passwd"}},
            {"client": {"site_config": {}}},
            {"servers": []},
            {"servers": [{"service": {"target": "server.example"}}]},
            {"servers": [{"service": {"target": "server example:1"}}]},
            {"servers": [{"name": "silomix", "service": {"target": "evil:1", "scheme": "http"}}]},
            {"client": {"fqsn": "../north"}},
        ],
    )
    def test_an_address_is_just_that(self, kit, site, more):
        file = kit / "startup" / "fed_client.json"
        content = read_json(file)
        client = content["client"] | more.get("client", {})
        file.write_text(json.dumps(content | more | {"client": client}))
        words = f"settings that no kit needs: .*{next(iter(more))}|does not say which server"
        with pytest.raises(FileError, match=words):
            site_command(kit, site)
        assert not (kit / "run").exists()

    @pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"client": 1}', "\0"])
    def test_an_address_that_is_none(self, kit, site, text):
        (kit / "startup" / "fed_client.json").write_text(text)
        with pytest.raises(FileError, match="does not say which server to connect to"):
            site_command(kit, site)


class TestRequests:
    """What the site's process does for a server that says the site's rules do not apply."""

    def ask(self, topic, body="", **headers):
        message = Message(topic, body)
        message.set_headers(headers)
        here = SimpleNamespace(new_context=lambda: nullcontext(FLContext()))
        agent = FedAdminAgent("", SimpleNamespace(register_request_cb=lambda **_: None), here)
        for processor in executor.REQUESTS:
            agent.register_processor(processor)
        return agent._dispatch_request(new_cell_message({}, message)).payload.body

    @pytest.fixture(autouse=True)
    def audit(self, tmp_path, monkeypatch):
        monkeypatch.setattr(AuditService, "the_auditor", Auditor(str(tmp_path / "audit.log")))
        yield
        AuditService.the_auditor.close()

    def test_no_file_is_read_and_no_log_set_up(self, tmp_path):
        (tmp_path / "table.csv").write_text("secret")
        for topic in ("sys.shell", "sys.configure_site_log", "sys.report_env", "train.delete_run"):
            reply = self.ask(topic, f"cat {tmp_path / 'table.csv'}")
            assert reply == "invalid_request"

    @pytest.mark.parametrize("job", ["startup", "local", ".", "..", None, "0" * 32])
    def test_a_job_is_deployed_into_no_other_folder(self, job, monkeypatch):
        deploy = executor.training_cmds.DeployProcessor
        monkeypatch.setattr(deploy, "process", lambda *_: Message("", "done"))
        assert "exception_occurred" in self.ask("train.deploy", job_id=job)
        assert self.ask("train.deploy", job_id=str(uuid.uuid4())) == "done"


class TestWorker:
    def test_the_silo_has_its_own_rows_and_a_store_for_this_study(self, site):
        silo, _ = open_own_silo("north", **site)
        assert (silo.name, silo.place, silo.shard.rows) == ("north", 0, 40)
        assert silo.store.folder.name == digest(silo.study)[:16]
        with pytest.raises(StudyMismatch):
            open_own_silo("east", **site)

    def test_a_question_is_answered(self, site):
        opened = open_own_silo("north", **site)
        study = opened[0].study
        envelope, answer = decode(respond(question(QUERY, study=study), opened[0]))
        asked = digest_record(QUERY)
        assert envelope == Envelope(digest(study), "north", 1, "DistinctRows", asked)
        assert answer.counts.sum() == 40
        for wrong in (question(QUERY), question(QUERY, "south", study=study)):
            with pytest.raises(StudyMismatch):
                respond(wrong, opened[0])

    def test_a_silo_that_cannot_open_says_only_a_code_and_logs_for_its_owner(self, site, kit):
        """The executor opens the silo with the first question, from what its kit says."""
        site_command(kit, site | {"data": "absent.csv"})
        here = SimpleNamespace(
            get_identity_name=lambda: "north",
            get_workspace=lambda: SimpleNamespace(get_root_dir=lambda: str(kit / "run")),
        )
        before, logger = os.umask(0o022), logging.getLogger("silomix")
        try:
            made = SiloExecutor()
            for sent, code in ((question(QUERY), "data"), (b"?", "question")):
                assert made.execute("silomix", {"payload": sent}, here, None)["payload"] == code
                site_command(kit, site)
        finally:
            os.umask(before)
            while logger.handlers:
                logger.handlers.pop().close()
            logger.propagate = True
        log = kit / "silomix-worker.log"
        assert "absent.csv: no such file" in log.read_text()
        assert "not a message of at most" in log.read_text()
        if sys.platform != "win32":
            assert stat.S_IMODE(log.stat().st_mode) == 0o600


class TestCommands:
    def run(self, *words):
        return CliRunner().invoke(cli.app, ["flare", *(str(word) for word in words)])

    def test_a_site_checks_its_files_before_it_starts(self, site, kit, monkeypatch):
        started = []
        monkeypatch.setattr(participant, "become", started.append)
        words = ["--study", site["study"], "--policy", "open", "--silo-column", "silo"]
        done = self.run("site", kit, "--data", site["data"], *words)
        assert done.exit_code == 0, done.output
        assert "north: 40 rows, policy open, study" in done.output
        assert "silomix.transports.flare.executor" in started[0]
        assert read_json(kit / "run" / "local" / "silomix.json")["data"] == str(site["data"])
        assert self.run("site", kit, "--data", "absent.csv", *words).exit_code == 3
        assert len(started) == 1

    def test_a_policy_that_cannot_answer_is_refused_before_a_store_is_made(
        self, site, kit, tmp_path, monkeypatch
    ):
        """Which would be of this policy's rounding, and refuse the next."""
        started = []
        monkeypatch.setattr(participant, "become", started.append)
        study = make_study(read_study(site["study"]).table_schema, ["north", "south"], seed=1)
        write_study(study, tmp_path / "study.toml")
        (tmp_path / "policy.toml").write_text(
            'preset = "default"\ntiers = ["draws"]\n[exchanges]\ndistinct_rows = 1\n'
        )
        words = ["--data", site["data"], "--study", site["study"], "--silo-column", "silo"]
        for policy, said in (
            ("default", "asks for a release of tier 'draws'"),
            (tmp_path / "policy.toml", "its policy does not allow polish"),
        ):
            refused = self.run("site", kit, *words, "--policy", policy)
            assert refused.exit_code == 6, refused.output
            assert said in " ".join(refused.output.split())
        done = self.run("site", kit, *words, "--policy", "open")
        assert done.exit_code == 0, done.output
        assert len(started) == 1

    def test_wrong_settings_or_no_flare(self, site, tmp_path, monkeypatch):
        wrong = ["--admin", tmp_path, "--without", "east", "--out", tmp_path / "out"]
        assert self.run("run", site["study"], *wrong).exit_code == 5
        in_use = self.run("provision", site["study"], "--out", tmp_path)
        assert in_use.exit_code == 4
        assert "exists already; give another folder" in in_use.output
        monkeypatch.setattr(participant, "find_spec", lambda _: None)
        failed = self.run("provision", site["study"], "--out", tmp_path / "kits")
        assert failed.exit_code == 4
        assert "silomix[flare]" in failed.output


def fail(*_, **__):
    raise ConnectionError


class TestSession:
    def run(self, monkeypatch, ends, retries=2):
        """Run a study whose submissions end like this, one after the other."""
        ends = iter(ends)
        monkeypatch.setattr(session, "connected", nullcontext)
        monkeypatch.setattr(session, "wait_for", lambda *_: None)
        monkeypatch.setattr(session, "_run_once", lambda *_: next(ends))
        return session.run_live(STUDY, "kit", retries=retries)

    def test_a_site_that_went_away_is_waited_for(self, monkeypatch):
        ends = [(AWAY, None), (Outcome("stopped"), None), (Outcome(), "posterior")]
        assert self.run(monkeypatch, ends) == ("posterior", Outcome())

    @pytest.mark.parametrize(
        "end", [AWAY, Outcome("policy", "its policy"), Outcome("stopped", "ended")]
    )
    def test_it_ends_with_a_refusal_or_the_retries(self, monkeypatch, end):
        ends = [(end, None)] * (1 if end.code == "policy" else 2)
        with pytest.raises(SiloError, match=end.message):
            self.run(monkeypatch, ends, retries=1)

    def test_a_silo_that_is_not_connected_is_named(self):
        present = SimpleNamespace(get_connected_client_list=lambda: [SimpleNamespace(name="north")])
        session.wait_for(present, ["north"], 0)
        with pytest.raises(SiloError, match=r"not connected after 0 s: south; start .*--without"):
            session.wait_for(present, ["north", "south"], 0)
        told = []
        with pytest.raises(SiloError, match="not connected after"):
            session.wait_for(present, ["north", "south"], 0.01, told.append)
        assert told[0].stage == "waiting for south"

    def test_a_server_that_cannot_be_reached_or_is_lost(self, tmp_path, monkeypatch):
        with socket.create_server(("localhost", 0)) as server:
            port = server.getsockname()[1]
            (tmp_path / "startup").mkdir()
            admin = {"admin": {"username": "me", "host": "localhost", "port": port}}
            write_json(tmp_path / "startup" / "fed_admin.json", admin)
            lost = SimpleNamespace(list_jobs=fail, close=fail)
            monkeypatch.setattr(flare_api, "new_secure_session", lambda *_, **__: lost)
            with pytest.raises(SiloError, match=r"lost mid-run \(ConnectionError\)"):
                session.stop_all(tmp_path)
        monkeypatch.setattr(flare_api, "new_secure_session", fail)
        with (
            pytest.warns(DataWarning, match=rf"no server answers at localhost:{port} \(Connection"),
            pytest.raises(SiloError, match=r"cannot be reached .*host"),
        ):
            session.stop_all(tmp_path)
