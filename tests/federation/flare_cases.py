"""A federation of three sites as processes of this machine, and what to run on it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil

from silomix.data import load
from silomix.pipeline import run_study
from silomix.roster import rows_of, table_schema
from silomix.silo import Silo
from silomix.simulate import simulate
from silomix.study import digest, make_study, write_study
from silomix.transports.flare.provision import (
    enrol_site,
    provision,
    request_certificate,
    sign_request,
)
from silomix.transports.flare.session import stop_all
from silomix.transports.flare.startup_kit import (
    NOBODY_ELSE,
    SiteSettings,
    environment,
    server_command,
    site_command,
)
from silomix.transports.in_process import InProcess

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("site-1", "site-2", "site-3")
WORKER = "--multiprocessing-fork"
JOB_PROCESS = "nvflare.private.fed.app.client.worker_process"


def make_table(path):
    """Write the table of all three silos; each site reads its own rows of it."""
    table, _ = simulate("non-nested", separability="easy", rows=600, silos=3, seed=1)
    table["silo"] = table["silo"].astype(str).str.replace("silo ", "site-")
    table.to_csv(path, index=False)
    return path


def study_of(table, names=NAMES, **settings):
    return make_study(table_schema(table, silo="silo"), names, **settings)


def run_in_process(table, study, out):
    """Save what the same study gives in one process, and return the file."""
    silos = [
        Silo(
            name=name,
            place=place,
            shard=load(rows_of(table, "silo", name), schema=study.table_schema),
            study=study,
        )
        for place, name in enumerate(study.silos)
    ]
    return run_study(study, InProcess(silos, threads=2), threads=2).save(out)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def descendants(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def enrol_all(kits, hospitals):
    """Let each site make its key in its own folder, and its kit from what comes back."""
    for name in NAMES:
        place = hospitals / name
        request, key = request_certificate(name, place / "request")
        signed = hospitals / f"{name}.signed.zip"
        authority = sign_request(request, kits / "authority", name, key=key, out=signed)
        enrol_site(signed, place / "request", place / name, authority=authority)
    return {name: hospitals / name for name in NAMES}


class Federation:
    """A server and sites, each its own process.

    `by_request`: the sites have made their own keys, each in a folder of its own.
    """

    def __init__(self, root: Path, *, by_request: bool = False) -> None:
        self.root, self.port = root, free_port()
        self.table = make_table(root / "table.csv")
        self.kits = provision(NAMES, root / "kits", port=self.port, by_request=by_request)
        self.sites = dict.fromkeys(NAMES, self.kits)
        if by_request:
            self.sites = enrol_all(self.kits, root / "hospitals")
        self.admin = self.kits / "admin"
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, name, command):
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                umask=NOBODY_ELSE,
                start_new_session=True,
            )

    def start_server(self):
        self.start("server", server_command(self.kits / "server", self.root / "journals"))

    def start_site(self, name, study, kits=None, data=None, **settings):
        file = write_study(study, self.root / f"{name}-{digest(study)[:8]}.toml")
        chosen = SiteSettings(
            data=str(data or self.table),
            study=str(file),
            policy="open",
            store=str(self.root / "stores" / name),
            silo_column="silo",
            threads=1,
            **settings,
        )
        self.start(name, site_command((kits or self.sites[name]) / name, chosen))

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

    def wait_for_answers(self, run, study, count, seconds=60):
        """Return when a run's journal has so many answers."""
        latest = time.monotonic() + seconds
        while self.answers(study) < count:
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < latest, f"{self.answers(study)} answers after {seconds} s"
            time.sleep(0.02)

    def process(self, name, module):
        """The process that runs this module at a site."""
        return next(
            child for child in descendants(self.processes[name]) if module in child.cmdline()
        )

    def kill(self, name):
        """Kill a participant and all processes it has started."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        for child in descendants(process):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()

    def stop(self, seconds=30):
        """Stop the federation with its own command; return what it had to be killed for."""
        stop_all(self.admin)
        latest = time.monotonic() + seconds
        while time.monotonic() < latest and self._running():
            time.sleep(0.1)
        return self._running()

    def _running(self):
        return [name for name, process in self.processes.items() if process.poll() is None]


def finish(process, seconds=120):
    """Wait for a command; return its exit code and what it printed."""
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, _ = process.communicate()
        printed += f"killed after {seconds} s"
    return process.returncode, printed
