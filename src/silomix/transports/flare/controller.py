"""The coordinator in FLARE's server: runs the study over the sites, and leaves the result."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from silomix.coordinator.pipeline import run_study
from silomix.errors import SilomixError
from silomix.messages.progress import Progress
from silomix.model.sentences import cores
from silomix.study import digest, read_study
from silomix.transports.encoded import AWAY, DEADLINE, STOPPED, EncodedSilos
from silomix.transports.flare import session
from silomix.transports.flare.participant import SETTINGS_FILE, read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal


LOOK_EVERY = 0.005
# Seconds without a sign of life after which a site is away: in a run, and before its first. FLARE
# itself does not notice a site that is killed and back within seconds, in none of its runs.
SILENT_AFTER, START_WITHIN = 60.0, 120.0
log = logging.getLogger("silomix.coordinator")


class StudyController(Controller):
    """Runs `silomix.coordinator.pipeline.run_study` over the sites of a job.

    Parameters
    ----------
    deadline : seconds for each question.
    """

    def __init__(self, deadline: float) -> None:
        super().__init__(task_check_period=0.05)
        self._deadline = deadline
        self._asked: list[dict[str, Any]] = []
        self._progress = Progress("sampling", 0, 0)
        self._start, self._seen = time.monotonic(), dict[str, float]()
        self._abort: Any = None
        self._fl_ctx: Any = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Hear the sites' signs of life, and let the coordinator's user ask how far the run is."""
        engine = fl_ctx.get_engine()
        engine.register_app_command(session.PROGRESS_TOPIC, lambda *_: asdict(self._progress))
        engine.register_aux_message_handler(session.ALIVE_TOPIC, self._hear)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to stop."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the study; unless the run is stopped, say in its outcome what came of it."""
        self._abort, self._fl_ctx, self._start = abort_signal, fl_ctx, time.monotonic()
        workspace = fl_ctx.get_workspace()
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        try:
            config = Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
            local = read_json(Path(workspace.get_site_config_dir()) / SETTINGS_FILE)
            study = read_study(config / session.STUDY_FILE)
            journal = Path(local["journals"], digest(study)[:16])
            silos = EncodedSilos(study, self.exchange, journal, self._asked)
            report = partial(setattr, self, "_progress")
            posterior = run_study(study, silos, threads=cores(None), report=report)
            posterior.save(folder / session.POSTERIOR_FILE)
            outcome = session.Outcome()
        except Exception as error:
            log.exception("the study failed")
            kind = type(error).__name__
            text = f"{kind} at the coordinator; the server's log says more"
            message = str(error) if isinstance(error, SilomixError) else text
            outcome = session.Outcome(getattr(error, "code", kind), message)
        seconds = round(time.monotonic() - self._start, 3)
        outcome = replace(outcome, seconds=seconds, asked=self._asked)
        write_json(folder / session.OUTCOME_FILE, asdict(outcome))

    def exchange(self, questions: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | str]]:
        """Send each silo its question as a task; yield answers, or codes of why there is none."""
        present = {client.name for client in self._fl_ctx.get_engine().get_clients()}
        tasks: dict[str, Task] = {}
        try:
            for name, question in questions.items():
                if name not in present:
                    yield name, AWAY
                content = Shareable({session.PAYLOAD: question})
                tasks[name] = task = Task(session.TASK, content, timeout=math.ceil(self._deadline))
                self.broadcast(task, self._fl_ctx, targets=[name], min_responses=1)
            while tasks:
                for name, task in list(tasks.items()):
                    answer = self._look(name, task)
                    if answer is not None:
                        del tasks[name]
                        yield name, answer
                time.sleep(LOOK_EVERY)
        finally:
            if tasks:
                self.cancel_all_tasks(fl_ctx=self._fl_ctx)

    def _look(self, name: str, task: Task) -> bytes | str | None:
        """Outcome of a task so far: an answer, a code, or nothing yet."""
        if self._abort.triggered:
            return STOPPED
        for client_task in task.client_tasks:
            if client_task.result_received_time is not None:
                answer = client_task.result.get(session.PAYLOAD)
                return answer if isinstance(answer, bytes | str) else "failed"
        seen = self._seen.get(name)
        latest = self._start + START_WITHIN if seen is None else seen + SILENT_AFTER
        if time.monotonic() > latest or task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
            return AWAY
        return None if task.completion_status is None else DEADLINE

    def _hear(self, fl_ctx: FLContext, **_: object) -> Shareable:
        """Note a site's sign of life."""
        self._seen[fl_ctx.get_peer_context().get_identity_name()] = time.monotonic()
        return make_reply(ReturnCode.OK)
