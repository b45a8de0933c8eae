"""The silo's side in FLARE's client: hand each question to the worker, send the answer back."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from silomix.transports.flare.child import Worker
from silomix.transports.flare.frames import LETTER
from silomix.transports.flare.job import ALIVE_TOPIC, BEAT, CODE_KEY, LETTER_KEY, TASK

if TYPE_CHECKING:
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal

SERVER = "server"
WORKER_LOG = "silomix-worker.log"

log = logging.getLogger("silomix.executor")


class SiloExecutor(Executor):
    """Answers a study's questions; takes nothing from the job but the questions."""

    def __init__(self) -> None:
        super().__init__()
        self._worker: Worker | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start the worker with the run, and end it with the run."""
        if event_type == EventType.START_RUN:
            beat = threading.Thread(target=self._beat, args=(fl_ctx.get_engine(),), daemon=True)
            beat.start()
            self._ready(fl_ctx)
        elif event_type in {EventType.ABORT_TASK, EventType.END_RUN}:
            self._over.set()
            with self._lock:
                if self._worker is not None:
                    self._worker.stop()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Answer one question; whatever goes wrong, only a code leaves."""
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        reply = Shareable()
        try:
            letter = shareable[LETTER_KEY]
            frame = self._ready(fl_ctx).ask(letter, lambda: bool(abort_signal.triggered))
        except Exception:
            log.exception("the worker could not be asked")
            reply[CODE_KEY] = "failed"
            return reply
        if frame is None:
            reply[CODE_KEY] = "died"
        elif frame[0] == LETTER:
            reply[LETTER_KEY] = frame[1]
        else:
            reply[CODE_KEY] = frame[1].decode("ascii", "replace")
        return reply

    def _beat(self, engine: Any) -> None:
        """Tell the coordinator every so often that this site is still in the run."""
        while not self._over.wait(BEAT):
            with engine.new_context() as fl_ctx:
                engine.send_aux_request(
                    targets=[SERVER],
                    topic=ALIVE_TOPIC,
                    request=Shareable(),
                    timeout=0,
                    fl_ctx=fl_ctx,
                    optional=True,
                )

    def _ready(self, fl_ctx: FLContext) -> Worker:
        with self._lock:
            if self._worker is None or not self._worker.alive:
                workspace = fl_ctx.get_workspace()
                self._worker = Worker(
                    Path(workspace.get_site_config_dir()),
                    fl_ctx.get_identity_name(),
                    Path(workspace.get_root_dir()) / WORKER_LOG,
                )
            return self._worker
