"""The coordinator's user: submit a study as a job, follow it, fetch what its run leaves.

A job carries the study and the names of two classes of the installed package: no code, no data.
"""

from __future__ import annotations

import contextlib
import io
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silomix.errors import DataWarning, SiloError, SilomixError, warn
from silomix.messages.progress import Progress, Report
from silomix.posterior import Posterior, load
from silomix.silo.local import without
from silomix.study import Study, write_study
from silomix.transports.encoded import AWAY, DEADLINE, STOPPED
from silomix.transports.flare import participant

TASK = "silomix"
PROGRESS_TOPIC, ALIVE_TOPIC = "silomix_progress", "silomix_alive"
# What a task and its result carry: a message, or the code of why there is none.
PAYLOAD = "payload"
STUDY_FILE, OUTCOME_FILE, POSTERIOR_FILE = "study.toml", "outcome.json", "posterior.silomix"
# Worth another job: the site may be back by then, or go on from its store.
PASSING = {DEADLINE, AWAY, STOPPED}
# Seconds between a site's looks for a question; they set the pace of many short rounds.
FETCH_EVERY = 0.02
# Seconds for one message over the network, however large.
TRANSFER_WITHIN = 300.0
# Seconds between questions to the server, and for it to answer at first.
LOOK_EVERY, CONNECT_WITHIN = 0.5, 20.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    code : why it failed: a code of `silomix.messages.REFUSALS`, "deadline", "away", "stopped",
        or the name of an error; None when it is done.
    message : the same in words.
    seconds : from the first question to the result.
    asked : for each question, in order: its number and kind, the seconds until the last answer,
        the bytes sent and received, and how many answers the journal had (replayed).
    """

    code: str | None = None
    message: str = ""
    seconds: float = 0.0
    asked: Sequence[dict[str, Any]] = ()


def write_job(folder: Path, study: Study, deadline: float) -> Path:
    """Write the job of a study into a new folder, as FLARE reads it."""
    flow = {"id": "study", "path": participant.CONTROLLER, "args": {"deadline": deadline}}
    executor = {"tasks": [TASK], "executor": {"path": participant.EXECUTOR, "args": {}}}
    files = {
        "meta.json": {
            "name": TASK,
            "resource_spec": {},
            # the coordinator itself decides what a missing silo means
            "min_clients": 1,
            "deploy_map": {"coordinator": ["server"], "silo": list(study.silos)},
        },
        "coordinator/config/config_fed_server.json": {
            "format_version": 2,
            "server": {"heart_beat_timeout": 600, "task_request_interval": FETCH_EVERY},
            "workflows": [flow],
        },
        "silo/config/config_fed_client.json": {
            "format_version": 2,
            "default_task_fetch_interval": FETCH_EVERY,
            "get_task_timeout": TRANSFER_WITHIN,
            "submit_task_result_timeout": TRANSFER_WITHIN,
            "executors": [executor],
        },
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True)
        participant.write_json(folder / name, content)
    write_study(study, folder / "coordinator" / "config" / STUDY_FILE)
    return folder


@contextlib.contextmanager
def connected(kit: Path) -> Iterator[Any]:
    """Yield a session of the coordinator's user with the server."""
    folder = participant.kit_folder(kit, "admin")
    _say_if_absent(folder)
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            session = new_secure_session(participant.USER, str(folder), timeout=CONNECT_WITHIN)
    except Exception as error:
        raise SiloError(
            f"the server cannot be reached with the kit {kit} ({type(error).__name__}); start it "
            "with `silomix flare server`, and check host, port and certificate"
        ) from error
    try:
        yield session
    except SilomixError:
        raise
    except Exception as error:  # FLARE has many kinds
        raise SiloError(
            f"the server was lost mid-run ({type(error).__name__}); start it again and give "
            "the same command: what was answered is kept"
        ) from error
    finally:
        with contextlib.suppress(Exception):
            session.close()


def _say_if_absent(kit: Path) -> None:
    """Warn at once where no server listens, which FLARE only notices after a while."""
    admin = participant.read_json(kit / "startup" / "fed_admin.json")["admin"]
    try:
        socket.create_connection((admin["host"], admin["port"]), CONNECT_WITHIN).close()
    except OSError as error:
        text = f"no server answers at {admin['host']}:{admin['port']} ({error.strerror or error}): "
        text += f"start it with `silomix flare server`; trying for {CONNECT_WITHIN:g} s"
        warn(DataWarning(text))


def wait_for(
    session: Any, silos: Sequence[str], seconds: float, report: Report | None = None
) -> None:
    """Wait until all these silos are connected.

    Raises
    ------
    SiloError
        When some are not, after `seconds`.
    """
    latest = time.monotonic() + seconds
    while absent := set(silos) - {each.name for each in session.get_connected_client_list()}:
        names = ", ".join(sorted(absent))
        if time.monotonic() >= latest:
            raise SiloError(
                f"not connected after {seconds:g} s: {names}; start "
                "`silomix flare site` there, or go on with --without"
            )
        if report is not None:
            report(Progress(f"waiting for {names}", 0, 0))
        time.sleep(LOOK_EVERY)


def run_live(
    study: Study,
    kit: Path,
    *,
    deadline: float = 3600.0,
    retries: int = 2,
    left_out: Sequence[str] = (),
    wait: float = 120.0,
    report: Report | None = None,
) -> tuple[Posterior, Outcome]:
    """Run a study over the connected sites; return its posterior and how it went.

    A failure that may pass ends FLARE's job, since a site cannot join one that runs: the study is
    then submitted again, when every site is there, and goes on from the journal.

    Parameters
    ----------
    kit : of the coordinator's user.
    deadline : seconds for each question.
    retries : how often to submit again.
    left_out : silos of the study to go on without.
    wait : seconds to wait for the silos to be connected.
    report : told how far the run is.

    Raises
    ------
    SiloError
        When a silo stays away, refuses, or does not answer.
    """
    study, outcome = without(study, left_out), Outcome()
    for _ in range(retries + 1):
        with connected(kit) as session:
            wait_for(session, study.silos, wait, report)
            outcome, posterior = _run_once(session, study, deadline, report)
        if posterior is not None:
            return posterior, outcome
        if outcome.code not in PASSING:
            break
    raise SiloError(outcome.message)


def stop_all(kit: Path) -> None:
    """Stop the jobs, the sites and the server."""
    with connected(kit) as session:
        for known in session.list_jobs():
            with contextlib.suppress(Exception):  # it has ended
                session.abort_job(known["job_id"])
        session.shutdown_system()


def _run_once(
    session: Any, study: Study, deadline: float, report: Report | None
) -> tuple[Outcome, Posterior | None]:
    """Submit once, follow to the end, and read what the run left."""
    with tempfile.TemporaryDirectory(prefix="silomix-") as scratch:
        submitted = session.submit_job(str(write_job(Path(scratch, "job"), study, deadline)))
        try:
            while not str(session.get_job_meta(submitted).get("status")).startswith("FINISHED"):
                if report is not None:
                    with contextlib.suppress(Exception):  # not started yet, or just finished
                        report(Progress(**session.do_app_command(submitted, PROGRESS_TOPIC, None)))
                time.sleep(LOOK_EVERY)
        except BaseException:
            with contextlib.suppress(Exception):
                session.abort_job(submitted)
            raise
        folder = Path(session.download_job_result(submitted, str(Path(scratch, "result"))))
        left = {path.name: path for path in folder.rglob("*")}
        outcome = Outcome(STOPPED, "FLARE ended the run without a result; its logs say why")
        if OUTCOME_FILE in left:
            outcome = Outcome(**participant.read_json(left[OUTCOME_FILE]))
        return outcome, load(left[POSTERIOR_FILE]) if POSTERIOR_FILE in left else None
