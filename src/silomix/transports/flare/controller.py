"""The coordinator in FLARE's server: runs the study over the sites, and leaves the result."""

from __future__ import annotations

import logging
import math
import queue
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from silomix.errors import SilomixError
from silomix.pipeline import run_study
from silomix.sampler import cores
from silomix.study import digest, read_study
from silomix.transports.flare.asking import AWAY, DEADLINE, NoAnswer, RemoteSilos, Silence
from silomix.transports.flare.job import (
    ALIVE_TOPIC,
    CODE_KEY,
    LETTER_KEY,
    PROGRESS_TOPIC,
    STUDY_FILE,
    TASK,
    Manners,
)
from silomix.transports.flare.kit import read_server_settings, write_json
from silomix.transports.flare.outcome import OUTCOME_FILE, POSTERIOR_FILE, STOPPED, Outcome
from silomix.transports.journal import open_journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nvflare.apis.client import Client
    from nvflare.apis.controller_spec import ClientTask
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal

    from silomix.posterior import Posterior
    from silomix.sampler import Progress
    from silomix.study import Study
    from silomix.transports.flare.asking import Asked

    Inbox = queue.SimpleQueue[tuple[str, bytes | Silence]]

LOOK_EVERY = 0.2
SILENT_AFTER, START_WITHIN = 15.0, 120.0
"""Seconds without a sign of life after which a site is away: in a run, and before its first.

FLARE itself does not notice a site that is killed and back within seconds, in none of its runs.
"""

log = logging.getLogger("silomix.coordinator")


class Stopped(Exception):
    """The run was aborted from outside."""


class StudyController(Controller):
    """Runs `silomix.pipeline.run_study` over the sites of a job.

    Parameters
    ----------
    deadline, retries, left_out : as in `Manners`.
    """

    def __init__(
        self, deadline: float = 3600.0, retries: int = 2, left_out: Sequence[str] = ()
    ) -> None:
        super().__init__(task_check_period=0.05)
        self._manners = Manners(deadline, retries, tuple(left_out))
        self._asked: list[Asked] = []
        self._at: Progress | None = None
        self._seen: dict[str, float] = {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Hear the sites' signs of life, and let the coordinator's user ask how far the run is."""
        engine = fl_ctx.get_engine()
        engine.register_app_command(PROGRESS_TOPIC, self._tell)
        engine.register_aux_message_handler(ALIVE_TOPIC, self._hear)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to stop."""

    def process_result_of_unknown_task(self, client: Client, *_: object) -> None:
        """Leave out an answer that came after its deadline: the site has it, if asked again."""
        log.info("%s answered after the deadline", client.name)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the study; whatever happens, say so in the run's outcome."""
        workspace, job = fl_ctx.get_workspace(), fl_ctx.get_job_id()
        folder = Path(workspace.get_run_dir(job))
        start = time.monotonic()
        try:
            study = read_study(Path(workspace.get_app_config_dir(job)) / STUDY_FILE)
            journals = Path(read_server_settings(Path(workspace.get_site_config_dir())).journals)
            post = FlarePost(self, self._seen, abort_signal, fl_ctx)
            posterior = self._run(study, post, journals)
            posterior.save(folder / POSTERIOR_FILE)
            outcome = Outcome("done")
        except NoAnswer as error:
            outcome = Outcome("failed", error.code, error.silo, str(error))
        except Stopped:
            outcome = Outcome("failed", STOPPED, None, "the run was stopped from outside")
        except SilomixError as error:
            log.exception("the study failed")
            outcome = Outcome("failed", type(error).__name__, None, str(error))
        except Exception as error:
            log.exception("the study failed")
            message = f"{type(error).__name__} at the coordinator; the server's log says more"
            outcome = Outcome("failed", "failed", None, message)
        outcome = replace(
            outcome, seconds=round(time.monotonic() - start, 3), asked=tuple(self._asked)
        )
        write_json(folder / OUTCOME_FILE, asdict(outcome))

    def _run(self, study: Study, post: FlarePost, journals: Path) -> Posterior:
        journal = open_journal(journals / digest(study)[:16], study)
        silos = RemoteSilos(
            study,
            post,
            journal,
            deadline=self._manners.deadline,
            retries=self._manners.retries,
            note=self._asked.append,
        )
        posterior = run_study(study, silos, threads=cores(None), report=self._report)
        if not self._manners.left_out:
            return posterior
        note = f"By decision of the coordinator without {', '.join(self._manners.left_out)}."
        notes = (*posterior.diagnostics.notes, note)
        return replace(posterior, diagnostics=replace(posterior.diagnostics, notes=notes))

    def _hear(self, fl_ctx: FLContext, **_: object) -> Shareable:
        """Note a site's sign of life."""
        self._seen[fl_ctx.get_peer_context().get_identity_name()] = time.monotonic()
        return make_reply(ReturnCode.OK)

    def _report(self, progress: Progress) -> None:
        self._at = progress

    def _tell(self, _topic: str, _data: object, _fl_ctx: FLContext) -> dict[str, Any]:
        """Return how far the run is."""
        at = self._at
        return {
            "questions": len(self._asked),
            "stage": at.stage if at else "sampling",
            "done": at.done if at else 0,
            "total": at.total if at else 0,
        }


class FlarePost:
    """Carries letters as tasks, one for each silo; satisfies `Post` of the module `asking`.

    Parameters
    ----------
    seen : when each site gave its last sign of life; others keep it up to date.
    """

    def __init__(
        self, controller: Controller, seen: Mapping[str, float], abort: Signal, fl_ctx: FLContext
    ) -> None:
        self._controller, self._seen = controller, seen
        self._abort, self._fl_ctx = abort, fl_ctx
        self._start = time.monotonic()

    def exchange(
        self, letters: Mapping[str, bytes], deadline: float
    ) -> Iterator[tuple[str, bytes | Silence]]:
        """Send each silo its letter; yield what comes back, once for each, as it comes."""
        inbox: Inbox = queue.SimpleQueue()
        present = {client.name for client in self._fl_ctx.get_engine().get_clients()}
        waiting = set(letters)
        for name, letter in letters.items():
            if name in present:
                self._send(name, letter, deadline, inbox)
            else:
                inbox.put((name, Silence(AWAY)))
        try:
            while waiting:
                name, answer = self._next(inbox, waiting)
                if name in waiting:
                    waiting.remove(name)
                    yield name, answer
        finally:
            if waiting:
                self._controller.cancel_all_tasks(fl_ctx=self._fl_ctx)

    def _next(self, inbox: Inbox, waiting: set[str]) -> tuple[str, bytes | Silence]:
        """Return the next answer, or the first silo that is away."""
        while True:
            if self._abort.triggered:
                raise Stopped
            try:
                return inbox.get(timeout=LOOK_EVERY)
            except queue.Empty:
                away = next((name for name in sorted(waiting) if self._is_away(name)), None)
            if away is not None:
                return away, Silence(AWAY)

    def _is_away(self, name: str) -> bool:
        now = time.monotonic()
        if name not in self._seen:
            return now - self._start > START_WITHIN
        return now - self._seen[name] > SILENT_AFTER

    def _send(
        self,
        name: str,
        letter: bytes,
        deadline: float,
        inbox: Inbox,
    ) -> None:
        def received(client_task: ClientTask, **_: object) -> None:
            inbox.put((name, _open(client_task.result)))

        def ended(task: Task, **_: object) -> None:
            if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
                inbox.put((name, Silence(AWAY)))
            elif task.completion_status != TaskCompletionStatus.OK:
                inbox.put((name, Silence(DEADLINE)))

        content = Shareable()
        content[LETTER_KEY] = letter
        task = Task(
            TASK,
            content,
            timeout=math.ceil(deadline),
            result_received_cb=received,
            task_done_cb=ended,
        )
        self._controller.broadcast(task, self._fl_ctx, targets=[name], min_responses=1)


def _open(result: Any) -> bytes | Silence:
    """Return the letter in what a site sent, or why there is none."""
    if isinstance(result, Shareable) and result.get_return_code() == ReturnCode.OK:
        letter, code = result.get(LETTER_KEY), result.get(CODE_KEY)
        if isinstance(letter, bytes):
            return letter
        if isinstance(code, str):
            return Silence(code)
    return Silence("failed")
