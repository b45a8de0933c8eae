"""The silo's side on FLARE: a client that does what a run needs, and the answers of a run.

Run as a program, this module is FLARE's client with the few requests of a server that a run needs,
in place of all: FLARE lets the server say whether the site's rules apply to a request, and one of
its requests reads any file.

FLARE starts a process for each run at each site, in which `SiloExecutor` answers the questions. If
it is killed, the run ends, and the study is submitted again. What goes wrong is logged in the
site's kit, and leaves as a code.
"""

from __future__ import annotations

import logging
import os
import runpy
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import Shareable
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client import scheduler_cmds, training_cmds
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from silomix.errors import as_logged, hiding_cells
from silomix.model.files import log_file
from silomix.silo.answer import refusal_code
from silomix.silo.local import Loaded, Silo, write_labels
from silomix.transports.encoded import respond
from silomix.transports.flare import participant
from silomix.transports.flare.session import ALIVE_TOPIC, PAYLOAD

if TYPE_CHECKING:
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal
    from nvflare.private.admin_defs import Message


WORKER_LOG = "silomix-worker.log"

log = logging.getLogger("silomix.worker")


class SiloExecutor(Executor):
    """Answers a study's questions; takes nothing from the job but the questions."""

    def __init__(self) -> None:
        super().__init__()
        self._site: tuple[Silo, Loaded] | None = None
        self._abort: Signal | None = None
        self._over = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Give signs of life from the run's start to its end."""
        if event_type == EventType.START_RUN:
            threading.Thread(target=self._beat, args=(fl_ctx.get_engine(),), daemon=True).start()
        elif event_type == EventType.END_RUN:
            self._over.set()

    def execute(
        self, _task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Answer one question; of what goes wrong, only a code leaves."""
        name, self._abort = fl_ctx.get_identity_name(), abort_signal
        answer: bytes | str
        try:
            with hiding_cells():
                if self._site is None:
                    self._site = open_kit(Path(fl_ctx.get_workspace().get_root_dir()), name)
                answer = respond(shareable[PAYLOAD], self._site[0])
                write_labels(*self._site)  # once they are known
        except Exception as error:  # FLARE would send its text on
            log.error("%s: a question could not be answered\n%s", name, as_logged(error))  # noqa: TRY400
            answer = refusal_code(error)
        self._abort = None
        return Shareable({PAYLOAD: answer})

    def _beat(self, engine: Any) -> None:
        """Tell the coordinator that this site is still in the run; end with a run that is over."""
        to_server = {"targets": ["server"], "topic": ALIVE_TOPIC, "timeout": 0, "optional": True}
        while not self._over.wait(participant.HEARTBEAT):
            if self._abort is not None and self._abort.triggered:
                os._exit(0)  # nobody waits for the answer any more, however long it still takes
            with engine.new_context() as fl_ctx:
                engine.send_aux_request(request=Shareable(), fl_ctx=fl_ctx, **to_server)


def open_kit(run: Path, name: str) -> tuple[Silo, Loaded]:
    """Open the silo whose kit has this folder `run`; log to a file of the kit from then on."""
    logger = logging.getLogger("silomix")
    logger.addHandler(log_file(run.parent / WORKER_LOG))
    logger.propagate = False  # what went wrong is not for FLARE's own logs
    settings = participant.read_json(run / "local" / participant.SETTINGS_FILE)
    return participant.open_own_silo(name, **settings)


class DeployRun(training_cmds.DeployProcessor):
    """Deploys a job into a folder of its own, never over ``startup`` or ``local``."""

    def process(self, req: Message, app_ctx: object) -> Message:
        """Refuse a job whose name, that of its folder, is not the number FLARE gives one."""
        job = req.get_header(RequestHeader.JOB_ID)
        if str(uuid.UUID(job)) != job:
            raise ValueError(f"{job!r} is not the number of a job")
        return super().process(req, app_ctx)


REQUESTS = [
    DeployRun(),
    scheduler_cmds.CancelResourceProcessor(),
    scheduler_cmds.CheckResourceProcessor(),
    scheduler_cmds.StartJobProcessor(),
    training_cmds.AbortAppProcessor(),
    training_cmds.ClientStatusProcessor(),
    training_cmds.NotifyJobStatusProcessor(),
    training_cmds.ShutdownClientProcessor(),
]

if __name__ == "__main__":
    ClientRequestProcessors.request_processors = REQUESTS
    runpy.run_module(
        "nvflare.private.fed.app.client.client_train", run_name="__main__", alter_sys=True
    )
