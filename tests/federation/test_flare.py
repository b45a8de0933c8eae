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

import pytest

pytest.importorskip("nvflare", reason="the extra flare is not installed")

from federation.flare_cases import (
    JOB_PROCESS,
    NAMES,
    Federation,
    finish,
    kill_tree,
    run_in_process,
    study_of,
)

from silomix.errors import SiloError
from silomix.paper import FewRounds, Psgd
from silomix.posterior import load
from silomix.transports.flare.session import connected, run_live, wait_for
from silomix.transports.flare.startup_kit import provision

pytestmark = [
    pytest.mark.federation,
    pytest.mark.filterwarnings("ignore:no server answers"),  # it is still starting
]

VICTIMS = ("job process", "site", "server")
FEDERATED = {"components": 6, "iterations": 400, "chains": 2, "oracle": "federated", "seed": 4}


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


def exact(federation, rounds, seed=5):
    exactly = {"strategy": "exact", "components": 6, "chains": 2, "seed": seed}
    return study_of(federation.table, iterations=rounds, burn_in=rounds // 2, **exactly)


def check_same(federation, study, out):
    """The posterior that the run has written is, byte for byte, that of one process."""
    here = run_in_process(federation.table, study, out / "here.silomix")
    assert (out / "posterior.silomix").read_bytes() == here.read_bytes()


def ends(run, *words):
    """Wait for a run: it is done, or fails with these words."""
    code, printed = finish(run)
    assert (code != 0) == bool(words), printed
    assert all(word in " ".join(printed.split()) for word in words), printed
    return printed


def replayed(out):
    """How many answers to each question were in the journal."""
    return [asked["replayed"] for asked in json.loads((out / "run.json").read_text())["asked"]]


def test_the_same_result_as_in_one_process(federation, tmp_path):
    solver = FewRounds(rounds=2, starts=3)
    study = study_of(federation.table, NAMES[:2], polish=1, solver=solver, **FEDERATED)
    federation.restart_sites(study, NAMES[:2])
    posterior, outcome = run_live(study, federation.admin)
    posterior.save(tmp_path / "posterior.silomix")
    check_same(federation, study, tmp_path)
    kinds = {question["kind"] for question in outcome.asked}
    assert kinds == {"SampleLocally", "ShareReleases", "LogLikelihood", "PolishRound", "AssignRows"}
    with connected(federation.admin) as session:  # the site's process has no such command
        assert session.cat_target("site-1", file="log.txt") == "invalid_request"
    if sys.platform != "win32":
        check_logs(federation)


def check_logs(federation):
    """What FLARE's processes log is for the eyes of their owner."""
    for name in ("server", *NAMES[:2]):
        kit = federation.kits / name
        assert stat.S_IMODE(kit.stat().st_mode) == 0o700
        made = [path for path in kit.rglob("*") if path.parent != kit / "run" / "local"]
        logs = [path for path in made if path.is_file() and "log" in path.name]
        logs.append(kit / "run" / "local" / "silomix.json")
        assert "log.txt" in {path.name for path in logs}
        assert {stat.S_IMODE(path.stat().st_mode) for path in logs} == {0o600}


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_changes_nothing(federation, tmp_path, victim):
    study = exact(federation, 120, seed=20 + VICTIMS.index(victim))  # none is in the journal yet
    federation.restart_sites(study)
    run = federation.run(study, tmp_path / "out")
    federation.wait_for_answers(run, study, len(NAMES) * 30)
    if victim == "job process":
        federation.kill_process("site-2", JOB_PROCESS)
    elif victim == "site":
        federation.kill("site-2")
        time.sleep(3)
        federation.start_site("site-2", study)
    else:
        federation.kill("server")
        ends(run, "the server was lost mid-run")
        answered = federation.answers(study)
        assert answered < len(NAMES) * 120
        federation.start_server()
        run = federation.run(study, tmp_path / "out")
    ends(run)
    check_same(federation, study, tmp_path / "out")
    found = replayed(tmp_path / "out")
    assert max(found) == len(NAMES)
    if victim == "server":
        assert sum(found) == answered


@pytest.mark.slow
def test_a_site_that_stays_away_and_going_on_without_it(federation, tmp_path):
    study, out = exact(federation, 40), tmp_path / "out"
    federation.restart_sites(study, NAMES[:2])
    ends(federation.run(study, out, wait=25), "site-3", "--without")
    ends(federation.run(study, out, "--without", "site-3"), "takes part in another study")

    federation.restart_sites(study, NAMES[:2], without=("site-3",))
    ends(federation.run(study, out, "--without", "site-3"))
    posterior = load(out / "posterior.silomix")
    assert posterior.study.silos == NAMES[:2]
    assert "without site-3" in posterior.study.title


@pytest.mark.slow
def test_a_refusal_names_the_silo_and_text_of_an_error_stays_there(federation, tmp_path):
    study, table = exact(federation, 40, seed=9), federation.table.read_text()
    own = federation.table.with_name("own.csv")
    own.write_text(table)
    federation.restart_sites(study, NAMES[:2])
    federation.start_site("site-3", study, data=own)
    with connected(federation.admin) as session:
        wait_for(session, NAMES, 60)
    own.write_text(table.replace("site-3,", "site-3,secret", 1))
    run = federation.run(study, tmp_path / "out")
    assert "secret" not in ends(run, "its table does not fit the study")
    log = (federation.kits / "site-3" / "silomix-worker.log").read_text()
    assert "data row" in log
    assert "secret" not in log
    assert "secret" not in (federation.root / "server.log").read_text()

    federation.kill("site-3")
    federation.start_site("site-3", study.model_copy(update={"seed": 99}))
    ends(federation.run(study, tmp_path / "out"), "site-3", "takes part in another study")


@pytest.mark.slow
def test_sites_that_made_their_own_keys_and_strangers(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # FLARE keeps its records there
    with running(Federation(tmp_path, by_request=True)) as federation:
        assert not list(federation.kits.rglob("*site-*.key"))
        solver = Psgd(steps=60, tolerance=1e-9)  # more than fifty rounds
        study = study_of(federation.table, polish=0, solver=solver, **FEDERATED)
        federation.restart_sites(study)
        ends(federation.run(study, tmp_path / "out"))
        check_same(federation, study, tmp_path / "out")
        assert len(replayed(tmp_path / "out")) > 50

        federation.kill("site-3")
        foreign = tmp_path / "foreign" / "site-3"
        provision(NAMES, foreign.parent, port=federation.port, trial=True)
        swapped = shutil.copytree(federation.sites["site-3"], tmp_path / "swapped")
        for name in ("client.crt", "client.key"):  # of another site of the federation
            shutil.copy(federation.sites["site-2"] / "startup" / name, swapped / "startup")
        with connected(federation.admin) as session:
            wait_until_gone(session, "site-3")
            for stranger in (foreign, swapped):
                federation.start_site("site-3", study, kit=stranger)
                time.sleep(10)
                with pytest.raises(SiloError, match="not connected after 1 s: site-3"):
                    wait_for(session, NAMES, 1)
                federation.kill("site-3")


def wait_until_gone(session, name):
    latest = time.monotonic() + 90
    while name in {client.name for client in session.get_connected_client_list()}:
        assert time.monotonic() < latest, f"{name} is still listed"
        time.sleep(0.5)


@pytest.mark.slow
def test_the_page_works_as_printed(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "flare.md").read_text("utf-8")
    here = page.split("## On several machines")[0]
    [preparation] = re.findall(r"^```python\n(.*?)^```", here, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^\$ silomix (.*)$", here, re.MULTILINE)
    commands = [line.split()[1] for line in lines if line.startswith("flare")]
    assert commands == ["provision", "server", "site", "site", "site", "run", "stop"]
    subprocess.run([sys.executable, "-c", preparation], cwd=tmp_path, check=True)
    going_on, log = [], tmp_path / "printed.log"
    try:
        for line in lines:
            with log.open("ab") as file:
                process = subprocess.Popen(
                    [sys.executable, "-m", "silomix", *line.split()],
                    cwd=tmp_path,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
            if line.startswith(("flare server", "flare site")):
                going_on.append(process)
            else:
                assert process.wait(240) == 0, (line, log.read_text())
        assert [process.wait(30) for process in going_on] == [0] * 4
    finally:
        for process in going_on:
            kill_tree(process)
    posterior = load(tmp_path / "results" / "posterior.silomix")
    assert posterior.study.silos == ("north", "south", "west")
