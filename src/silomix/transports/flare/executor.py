"""The silo's side in FLARE's client: hand each question to the worker, send the answer back."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import Shareable

from silomix.transports.flare.job import ALIVE_TOPIC, CODE, DIED, PAYLOAD
from silomix.transports.flare.startup_kit import HEARTBEAT
from silomix.transports.flare.worker import work

if TYPE_CHECKING:
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal

# Seconds between looks at whether the run was stopped.
LOOK_EVERY = 0.2


class Worker:
    """The process that works on the silo's rows, seen from FLARE's process."""

    def __init__(self, kit: Path, name: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(theirs, kit, name), daemon=True)
        self.process.start()
        theirs.close()  # so that its death closes the pipe

    def ask(self, question: bytes, abort: Signal) -> bytes | None:
        """Return the answer; None if the worker died, or was stopped with the run."""
        try:
            self._pipe.send_bytes(question)
            while not self._pipe.poll(LOOK_EVERY):
                if abort.triggered:
                    self.process.kill()
            return self._pipe.recv_bytes()
        except (OSError, EOFError):
            return None


class SiloExecutor(Executor):
    """Answers a study's questions; takes nothing from the job but the questions."""

    def __init__(self) -> None:
        super().__init__()
        self._worker: Worker | None = None
        self._lock, self._over = threading.Lock(), threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start the worker with the run, and end it with the run."""
        if event_type == EventType.START_RUN:
            threading.Thread(target=self._beat, args=(fl_ctx.get_engine(),), daemon=True).start()
            self._ready(fl_ctx)
        elif event_type in {EventType.ABORT_TASK, EventType.END_RUN}:
            self._over.set()
            with self._lock:
                if self._worker is not None:
                    self._worker.process.kill()

    def execute(
        self, _task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Answer one question; of what goes wrong in the worker, only a code leaves."""
        answer = self._ready(fl_ctx).ask(shareable[PAYLOAD], abort_signal)
        if answer:
            return Shareable({PAYLOAD: answer})
        return Shareable({CODE: DIED if answer is None else "question"})

    def _beat(self, engine: Any) -> None:
        """Tell the coordinator every so often that this site is still in the run."""
        to_server = {"targets": ["server"], "topic": ALIVE_TOPIC, "timeout": 0, "optional": True}
        while not self._over.wait(HEARTBEAT):
            with engine.new_context() as fl_ctx:
                engine.send_aux_request(request=Shareable(), fl_ctx=fl_ctx, **to_server)

    def _ready(self, fl_ctx: FLContext) -> Worker:
        with self._lock:
            if self._worker is None or not self._worker.process.is_alive():
                kit = Path(fl_ctx.get_workspace().get_root_dir())
                self._worker = Worker(kit, fl_ctx.get_identity_name())
            return self._worker
