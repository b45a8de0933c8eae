"""A federation of three sites as processes of this machine, and what to run on it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time

import pandas as pd
import psutil

from silomix.coordinator.pipeline import run_study
from silomix.model.table import infer_schema, load
from silomix.silo.local import Silo
from silomix.simulate import simulate
from silomix.study import digest, make_study, write_study
from silomix.transports.flare import participant, startup_kit
from silomix.transports.flare.session import stop_all
from silomix.transports.in_process import InProcess

NAMES = ("site-1", "site-2", "site-3")
JOB_PROCESS = "nvflare.private.fed.app.client.worker_process"


def stand_in_kit(folder, silo):
    """Make the kit of a site, its certificates stand-ins."""
    made = participant.build_kits(folder, "server.example", 8002, [silo]) / silo / "startup"
    startup = folder / silo / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "fed_client.json", startup)
    for name in participant.startup_files("client")[1:]:
        (startup / name).write_text(name)
    return folder / silo


def study_of(table, names=NAMES, **settings):
    return make_study(infer_schema(table, silo="silo"), names, **settings)


def run_in_process(table, study, out):
    """Save what the same study gives in one process, and return the file."""
    rows = pd.read_csv(table, dtype=str)
    silos = [
        Silo(name, place, load(rows[rows["silo"] == name], schema=study.table_schema), study)
        for place, name in enumerate(study.silos)
    ]
    return run_study(study, InProcess(silos, threads=2), threads=2).save(out)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kill_tree(process):
    """Kill a process and all those it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


class Federation:
    """A server and sites, each its own process; the table has the rows of all three.

    `by_request`: the sites have made their own keys, each in a folder of its own.
    """

    def __init__(self, root, *, by_request=False):
        self.root, self.port, self.table = root, free_port(), root / "table.csv"
        table, _ = simulate("non-nested", separability="easy", rows=600, silos=3, seed=1)
        table["silo"] = table["silo"].astype(str).str.replace("silo ", "site-")
        table.to_csv(self.table, index=False)
        self.kits = root / "kits"
        startup_kit.provision(NAMES, self.kits, port=self.port, trial=not by_request)
        self.sites = {name: self.kits / name for name in NAMES}
        if by_request:
            self.sites = {name: self.enrol(name, root / "hospitals" / name) for name in NAMES}
        self.admin = self.kits / "admin"
        self.processes = {}

    def enrol(self, name, place):
        """Let a site make its key in its own folder, and its kit from what comes back."""
        request, key = startup_kit.request_certificate(name, place / "request")
        signed, authority = self.root / f"{name}.signed.zip", self.kits / "authority"
        fingerprint = startup_kit.sign_request(request, authority, name, key=key, out=signed)
        startup_kit.enrol_site(signed, place / "request", place / name, authority=fingerprint)
        return place / name

    def start(self, name, command):
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | participant.VARIABLES,
                umask=participant.NOBODY_ELSE,
                start_new_session=True,
            )

    def start_server(self):
        command = participant.server_command(self.kits / "server", self.root / "journals")
        self.start("server", command)

    def start_site(self, name, study, kit=None, data=None, **settings):
        file = write_study(study, self.root / f"{name}-{digest(study)[:8]}.toml")
        store = str(self.root / "stores" / name)
        settings |= {"silo_column": "silo", "threads": 1, "policy": "open", "store": store}
        chosen = {"data": str(data or self.table), "study": str(file), **settings}
        self.start(name, participant.site_command(kit or self.sites[name], chosen))

    def restart_sites(self, study, names=NAMES, **settings):
        for name in NAMES:
            self.kill(name)
        for name in names:
            self.start_site(name, study, **settings)

    def run(self, study, out, *more, wait=60):
        """Start `silomix flare run` and return its process."""
        file = write_study(study, self.root / f"run-{digest(study)[:8]}.toml")
        words = ["run", file, "--admin", self.admin, "--out", out, "--wait", wait, *more]
        return subprocess.Popen(
            [sys.executable, "-m", "silomix", "flare", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def answers(self, study):
        """How many answers the server's journal of a study has."""
        folder = self.root / "journals" / digest(study)[:16]
        return len(list(folder.glob("*.reply")))

    def wait_for_answers(self, run, study, count):
        """Return when a run's journal has so many answers."""
        latest = time.monotonic() + 120
        while self.answers(study) < count:
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < latest, f"only {self.answers(study)} answers"
            time.sleep(0.02)

    def kill_process(self, name, module):
        """Kill the process that runs this module at a site."""
        children = psutil.Process(self.processes[name].pid).children(recursive=True)
        next(child for child in children if module in child.cmdline()).kill()

    def kill(self, name):
        """Kill a participant and all processes it has started."""
        if name in self.processes:
            kill_tree(self.processes.pop(name))

    def stop(self):
        """Stop the federation with its own command; return who does not end in time."""
        stop_all(self.admin)
        latest = time.monotonic() + 30
        running = list(self.processes)
        while running and time.monotonic() < latest:
            time.sleep(0.1)
            running = [name for name in running if self.processes[name].poll() is None]
        return running


def finish(process, seconds=240):
    """Wait for a command; return its exit code and what it printed."""
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        printed = process.communicate()[0] + f"killed after {seconds} s"
    return process.returncode, printed
