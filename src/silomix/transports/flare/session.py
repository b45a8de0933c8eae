"""The coordinator's user: wait for the silos, submit the study, follow it, fetch the result."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.errors import SiloError
from silomix.posterior import load
from silomix.sampler import Progress
from silomix.transports.flare.job import PROGRESS_TOPIC, write_job
from silomix.transports.flare.kit import admin_name, kit_folder
from silomix.transports.flare.outcome import find_posterior, read_outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from silomix.posterior import Posterior
    from silomix.study import Study
    from silomix.transports.flare.job import Manners
    from silomix.transports.flare.outcome import Outcome

    Report = Callable[[Progress], None]

LOOK_EVERY, REPORT_EVERY = 0.5, 2.0
"""Seconds between questions to the server."""
CONNECT_WITHIN = 20.0


@contextmanager
def connected(kit: Path) -> Iterator[Any]:
    """Yield a session of the coordinator's user with the server."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    folder = kit_folder(kit, "admin")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            session = new_secure_session(admin_name(folder), str(folder), timeout=CONNECT_WITHIN)
    except Exception as error:
        raise SiloError(
            f"the server cannot be reached with the kit {kit} ({type(error).__name__}); start it "
            "with `silomix flare server`, and check host, port and certificate"
        ) from error
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):
            session.close()


def wait_for(session: Any, silos: Sequence[str], seconds: float) -> None:
    """Return when all these silos are connected.

    Raises
    ------
    SiloError
        When some are not, after `seconds`.
    """
    latest = time.monotonic() + seconds
    while True:
        with _talking():
            present = {client.name for client in session.get_connected_client_list()}
        absent = [name for name in silos if name not in present]
        if not absent:
            return
        if time.monotonic() >= latest:
            raise SiloError(
                f"not connected after {seconds:g} s: {', '.join(absent)}; start "
                "`silomix flare site` there, or decide to go on --without"
            )
        time.sleep(LOOK_EVERY)


def run_live(
    study: Study,
    kit: Path,
    manners: Manners,
    *,
    wait: float = 120.0,
    report: Report | None = None,
) -> tuple[Posterior, Outcome]:
    """Run a study over the connected sites; return its posterior and how it went.

    A site that goes away ends FLARE's job, since a site cannot join one that runs: the study is
    then submitted again when the site is back, as often as `manners.retries` says, and goes on
    from the journal.

    Parameters
    ----------
    kit : of the coordinator's user.
    wait : seconds to wait for the silos to be connected.
    report : told how far the run is.

    Raises
    ------
    SiloError
        When a silo stays away, refuses, or does not answer.
    """
    for attempt in range(manners.retries + 1):
        with connected(kit) as session:
            wait_for(session, study.silos, wait)
            outcome, posterior = _run_once(session, study, manners, report)
        if outcome is not None and posterior is not None:
            return posterior, outcome
        if outcome is not None and (not outcome.passing or attempt == manners.retries):
            raise SiloError(outcome.message or "the run failed; the server's log says why")
    raise SiloError(
        "FLARE ended the run without a result each time it was started; the logs of the server and "
        "of the sites say why"
    )


def stop_all(kit: Path) -> None:
    """Stop the jobs, the sites and the server."""
    with connected(kit) as session:
        for job in session.list_jobs():
            if not str(job["status"]).startswith("FINISHED"):
                with contextlib.suppress(Exception):
                    session.abort_job(job["job_id"])
        session.shutdown_system()


def _run_once(
    session: Any, study: Study, manners: Manners, report: Report | None
) -> tuple[Outcome | None, Posterior | None]:
    """Submit once, follow to the end, and read what the run left."""
    with tempfile.TemporaryDirectory(prefix="silomix-") as scratch:
        definition = write_job(Path(scratch, "job"), study, manners)
        with _talking():
            job = session.submit_job(str(definition))
            try:
                _follow(session, job, report)
            except BaseException:
                with contextlib.suppress(Exception):
                    session.abort_job(job)
                raise
            folder = Path(session.download_job_result(job, str(Path(scratch, "result"))))
        outcome, saved = read_outcome(folder), find_posterior(folder)
        return outcome, load(saved) if saved is not None else None


@contextmanager
def _talking() -> Iterator[None]:
    """Turn what FLARE raises in a session, errors of many kinds, into one of ours."""
    try:
        yield
    except Exception as error:
        raise SiloError(
            f"the server was lost in mid-run ({type(error).__name__}); start it again and give "
            "the same command: what was answered is kept"
        ) from error


def _follow(session: Any, job: str, report: Report | None) -> None:
    """Return when FLARE has closed the job; on the way, ask how far it is."""
    next_report = time.monotonic() + REPORT_EVERY
    while not str(session.get_job_meta(job).get("status", "")).startswith("FINISHED"):
        if report is not None and time.monotonic() > next_report:
            next_report = time.monotonic() + REPORT_EVERY
            with contextlib.suppress(Exception):  # not started yet, or just finished
                at = session.do_app_command(job, PROGRESS_TOPIC, None)
                report(Progress(str(at["stage"]), int(at["done"]), int(at["total"])))
        time.sleep(LOOK_EVERY)
