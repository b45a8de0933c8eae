"""The coordinator's user: wait for the silos, submit the study, follow it, fetch the result."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.errors import SiloError, SilomixError
from silomix.messages.progress import Progress
from silomix.posterior import load
from silomix.transports.flare import job
from silomix.transports.flare.startup_kit import read_json, read_startup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from silomix.posterior import Posterior
    from silomix.study import Study

# Seconds between questions to the server, and for it to answer at first.
LOOK_EVERY, CONNECT_WITHIN = 0.5, 20.0


@contextmanager
def connected(kit: Path) -> Iterator[Any]:
    """Yield a session of the coordinator's user with the server."""
    user = read_startup(kit, "admin")["username"]
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            session = new_secure_session(user, str(kit.resolve()), timeout=CONNECT_WITHIN)
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
            f"the server was lost in mid-run ({type(error).__name__}); start it again and give "
            "the same command: what was answered is kept"
        ) from error
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
    rules: job.AskingRules,
    *,
    wait: float = 120.0,
    report: Callable[[Progress], None] | None = None,
) -> tuple[Posterior, job.Outcome]:
    """Run a study over the connected sites; return its posterior and how it went.

    A site that goes away ends FLARE's job, since a site cannot join one that runs: the study is
    then submitted again when the site is back, as often as `rules.retries` says, and goes on
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
    outcome = job.Outcome()
    for _ in range(rules.retries + 1):
        with connected(kit) as session:
            wait_for(session, study.silos, wait)
            outcome, posterior = _run_once(session, study, rules, report)
        if posterior is not None:
            return posterior, outcome
        if outcome.code not in {job.AWAY, job.STOPPED}:
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
    session: Any, study: Study, rules: job.AskingRules, report: Callable[[Progress], None] | None
) -> tuple[job.Outcome, Posterior | None]:
    """Submit once, follow to the end, and read what the run left."""
    with tempfile.TemporaryDirectory(prefix="silomix-") as scratch:
        submitted = session.submit_job(str(job.write_job(Path(scratch, "job"), study, rules)))
        try:
            while not str(session.get_job_meta(submitted).get("status")).startswith("FINISHED"):
                if report is not None:
                    with contextlib.suppress(Exception):  # not started yet, or just finished
                        progress = session.do_app_command(submitted, job.PROGRESS_TOPIC, None)
                        report(Progress(**progress))
                time.sleep(LOOK_EVERY)
        except BaseException:
            with contextlib.suppress(Exception):
                session.abort_job(submitted)
            raise
        folder = Path(session.download_job_result(submitted, str(Path(scratch, "result"))))
        left = {path.name: path for path in folder.rglob("*")}
        outcome = job.Outcome(job.STOPPED, "FLARE ended the run without a result; its logs say why")
        if job.OUTCOME_FILE in left:
            outcome = job.Outcome(**read_json(left[job.OUTCOME_FILE]))
        return outcome, load(left[job.POSTERIOR_FILE]) if job.POSTERIOR_FILE in left else None
