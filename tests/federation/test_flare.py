"""Real processes, mutual TLS: a live federation does what one process does, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare", reason="the extra flare is not installed")

from federation.flare_cases import (
    JOB_PROCESS,
    NAMES,
    WORKER,
    Federation,
    descendants,
    finish,
    run_in_process,
    study_of,
)
from silomix.errors import SiloError
from silomix.posterior import load
from silomix.study import Psgd
from silomix.transports.flare.job import AskingRules
from silomix.transports.flare.provision import provision
from silomix.transports.flare.session import connected, run_live, wait_for

pytestmark = pytest.mark.federation

SECONDS_A_ROUND = 1.0
EXACT = {"strategy": "exact", "components": 6, "chains": 2, "seed": 5}
FEDERATED = {
    "components": 6,
    "iterations": 400,
    "chains": 2,
    "oracle": "federated",
    "seed": 4,
}


@contextlib.contextmanager
def running(made):
    """Run a federation's server; at the end, see that everything stops."""
    made.start_server()
    try:
        yield made
        assert made.stop() == [], "some processes of the federation do not end by themselves"
    finally:
        for name in list(made.processes):
            made.kill(name)


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    with running(Federation(tmp_path_factory.mktemp("flare"))) as made:
        yield made


def exact(federation, rounds):
    return study_of(federation.table, iterations=rounds, burn_in=rounds // 2, **EXACT)


def check_same(federation, study, out):
    """The posterior that the run has written is, byte for byte, that of one process."""
    here = run_in_process(federation.table, study, out / "here.silomix")
    assert (out / "posterior.silomix").read_bytes() == here.read_bytes()


def asked(out):
    return json.loads((out / "run.json").read_text())["asked"]


def test_the_same_result_as_in_one_process(federation, tmp_path):
    study = study_of(federation.table, NAMES[:2], polish=2, **FEDERATED)
    federation.restart_sites(study, NAMES[:2])
    posterior, outcome = run_live(study, federation.admin, AskingRules())
    posterior.save(tmp_path / "posterior.silomix")
    check_same(federation, study, tmp_path)
    kinds = {question["kind"] for question in outcome.asked}
    assert kinds == {"SampleLocally", "ShareReleases", "LogLikelihood", "PolishRound", "AssignRows"}
    if sys.platform != "win32":
        check_logs(federation)


def check_logs(federation):
    """What FLARE's processes log is for the eyes of their owner."""
    for name in ("server", *NAMES[:2]):
        kit = federation.kits / name
        assert stat.S_IMODE(kit.stat().st_mode) == 0o700
        # local and startup came with the kit, the rest is made by its processes
        parts = [path for path in kit.iterdir() if path.name not in {"local", "startup"}]
        made = [path for part in parts for path in (part, *part.rglob("*"))]
        logs = [path for path in made if path.is_file() and "log" in path.name]
        logs.append(kit / "local" / "silomix.json")
        assert "log.txt" in {path.name for path in logs}
        assert {stat.S_IMODE(path.stat().st_mode) for path in logs} == {0o600}


@pytest.mark.slow
def test_fifty_rounds_of_the_federated_oracle(federation, tmp_path):
    patient = Psgd(steps=60, tolerance=1e-9)
    study = study_of(federation.table, polish=0, solver=patient, **FEDERATED)
    federation.restart_sites(study)
    code, printed = finish(federation.run(study, tmp_path / "out"))
    assert code == 0, printed
    rounds = [q["seconds"] for q in asked(tmp_path / "out") if q["kind"] == "LogLikelihood"]
    assert len(rounds) >= 50
    assert np.mean(rounds) < SECONDS_A_ROUND
    check_same(federation, study, tmp_path / "out")


@pytest.mark.slow
def test_a_killed_coordinator_goes_on_with_the_same_chain(federation, tmp_path):
    study = exact(federation, 500)
    federation.restart_sites(study)
    first = federation.run(study, tmp_path / "out")
    federation.wait_for_answers(first, study, 3 * 200, seconds=250)
    federation.kill("server")
    code, printed = finish(first)
    assert code != 0
    assert "the server was lost in mid-run" in printed
    answered = federation.answers(study)
    assert answered < 3 * 500

    federation.start_server()
    code, printed = finish(federation.run(study, tmp_path / "out"), seconds=500)
    assert code == 0, printed
    questions = asked(tmp_path / "out")
    assert sum(question["replayed"] for question in questions) == answered
    rounds = [question["seconds"] for question in questions if not question["replayed"]]
    assert np.mean(rounds) < SECONDS_A_ROUND
    check_same(federation, study, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("module", [WORKER, JOB_PROCESS])
def test_a_killed_process_of_a_site_changes_nothing(federation, tmp_path, module):
    study = exact(federation, 120)
    study = study.model_copy(update={"seed": len(module)})
    federation.restart_sites(study)
    run = federation.run(study, tmp_path / "out")
    federation.wait_for_answers(run, study, 3 * 30)
    federation.process("site-2", module).kill()
    code, printed = finish(run, seconds=200)
    assert code == 0, printed
    check_same(federation, study, tmp_path / "out")
    submitted_again = any(question["replayed"] for question in asked(tmp_path / "out"))
    assert submitted_again == (module == JOB_PROCESS)


@pytest.mark.slow
def test_a_killed_site_that_comes_back_is_waited_for(federation, tmp_path):
    study = exact(federation, 120)
    study = study.model_copy(update={"seed": 6})
    federation.restart_sites(study)
    run = federation.run(study, tmp_path / "out")
    federation.wait_for_answers(run, study, 3 * 30)
    federation.kill("site-2")
    time.sleep(3)
    federation.start_site("site-2", study)
    code, printed = finish(run)
    assert code == 0, printed
    check_same(federation, study, tmp_path / "out")
    assert max(question["replayed"] for question in asked(tmp_path / "out")) == len(NAMES)


@pytest.mark.slow
def test_a_site_that_stays_away_is_named(federation, tmp_path):
    study = exact(federation, 40)
    federation.restart_sites(study, NAMES[:2])
    start = time.monotonic()
    code, printed = finish(federation.run(study, tmp_path / "out", wait=25))
    assert code != 0
    assert "site-3" in printed
    assert "--without" in printed
    assert time.monotonic() - start < 60


@pytest.mark.slow
def test_going_on_without_a_silo_needs_the_others_and_is_written_down(federation, tmp_path):
    study = exact(federation, 40)
    federation.restart_sites(study, NAMES[:2])
    code, printed = finish(federation.run(study, tmp_path / "out", "--without", "site-3"))
    assert code != 0
    assert "takes part in another study" in printed

    federation.restart_sites(study, NAMES[:2], without=("site-3",))
    code, printed = finish(federation.run(study, tmp_path / "out", "--without", "site-3"))
    assert code == 0, printed
    posterior = load(tmp_path / "out" / "posterior.silomix")
    assert posterior.study.silos == NAMES[:2]
    assert "without site-3" in posterior.study.title
    assert any("without site-3" in note for note in posterior.diagnostics.notes)


@pytest.mark.slow
def test_a_site_with_another_study_refuses(federation, tmp_path):
    study = exact(federation, 40)
    federation.restart_sites(study, NAMES[:2])
    federation.start_site("site-3", study.model_copy(update={"seed": 99}))
    code, printed = finish(federation.run(study, tmp_path / "out"))
    assert code != 0
    assert "site-3" in printed
    assert "takes part in another study" in printed


def wait_until_gone(session, name, seconds):
    latest = time.monotonic() + seconds
    while name in {client.name for client in session.get_connected_client_list()}:
        assert time.monotonic() < latest, f"{name} is still listed after {seconds} s"
        time.sleep(0.5)


@pytest.mark.slow
def test_a_site_without_our_certificate_is_not_let_in(federation, tmp_path):
    study = exact(federation, 40)
    foreign = provision(NAMES, tmp_path / "foreign", port=federation.port)
    federation.restart_sites(study, NAMES[:2])
    with connected(federation.admin) as session:
        wait_for(session, NAMES[:2], 60)
        wait_until_gone(session, "site-3", 90)  # the one with our certificate, killed just now
        federation.start_site("site-3", study, kits=foreign)
        time.sleep(10)
        with pytest.raises(SiloError, match="not connected after 1 s: site-3"):
            wait_for(session, NAMES, 1)
    federation.kill("site-3")


@pytest.mark.slow
def test_sites_that_made_their_own_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # FLARE keeps its records there
    with running(Federation(tmp_path, by_request=True)) as federation:
        assert not list(federation.kits.rglob("*site-*.key"))
        study = study_of(federation.table, polish=2, **FEDERATED)
        for name in NAMES:
            federation.start_site(name, study)
        code, printed = finish(federation.run(study, tmp_path / "out"))
        assert code == 0, printed
        check_same(federation, study, tmp_path / "out")

        federation.kill("site-3")
        with connected(federation.admin) as session:
            wait_until_gone(session, "site-3", 90)
            kit = swap_keys(federation.sites["site-3"], federation.sites["site-2"], tmp_path / "x")
            federation.start_site("site-3", study, kits=kit)
            time.sleep(10)
            with pytest.raises(SiloError, match="not connected after 1 s: site-3"):
                wait_for(session, NAMES, 1)
        federation.kill("site-3")


def swap_keys(site, other, out):
    """Copy a site's kit, with the certificate and key of another site of the federation."""
    shutil.copytree(site / "site-3", out / "site-3")
    for name in ("client.crt", "client.key"):
        shutil.copy(other / "site-2" / "startup" / name, out / "site-3" / "startup" / name)
    return out


@pytest.mark.slow
def test_text_of_an_error_stays_at_the_site(federation, tmp_path):
    study = exact(federation, 40)
    federation.restart_sites(study, NAMES[:2])
    table = federation.table.read_text()
    own = federation.table.with_name("own.csv")
    own.write_text(table)
    federation.start_site("site-3", study, data=own)
    with connected(federation.admin) as session:
        wait_for(session, NAMES, 60)
    own.write_text(table.replace("site-3,", "site-3,secret", 1))
    code, printed = finish(federation.run(study, tmp_path / "out"))
    assert code != 0
    assert "its table does not fit the study" in printed
    assert "secret" not in printed
    assert "secret" in (federation.kits / "site-3" / "silomix-worker.log").read_text()
    server = (federation.root / "server.log").read_text()
    assert "secret" not in server


@pytest.mark.slow
def test_the_page_works_as_printed(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "flare.md").read_text("utf-8")
    here = page.split("## On several machines")[0]
    [preparation] = re.findall(r"^```python\n(.*?)^```", here, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^\$ silomix (.*)$", here, re.MULTILINE)
    assert [line.split()[1] for line in lines if line.startswith("flare")] == [
        "provision", "server", "site", "site", "site", "run", "stop",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-c", preparation], cwd=tmp_path, check=True)
    going_on = []
    try:
        for line in lines:
            with (tmp_path / "printed.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "silomix", *line.split()],
                    cwd=tmp_path,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            if line.startswith(("flare server", "flare site")):
                going_on.append(process)
            else:
                assert process.wait(240) == 0, (line, (tmp_path / "printed.log").read_text())
        for process in going_on:
            assert process.wait(30) == 0
    finally:
        for process in going_on:
            for child in [*descendants(process), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.wait()
    assert load(tmp_path / "results" / "posterior.silomix").study.silos == (
        "north",
        "south",
        "west",
    )
