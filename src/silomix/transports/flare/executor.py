"""The silo's side in FLARE's client: answer each question, and say every so often: still here.

FLARE starts a process for each run at each site. If it is killed, the run ends, and the study is
submitted again.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import Shareable

from silomix.transports.flare.session import ALIVE_TOPIC, PAYLOAD
from silomix.transports.flare.startup_kit import HEARTBEAT
from silomix.transports.flare.worker import open_or_refuse, respond

if TYPE_CHECKING:
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal

    from silomix.transports.flare.worker import Site


log = logging.getLogger("silomix.worker")


class SiloExecutor(Executor):
    """Answers a study's questions; takes nothing from the job but the questions."""

    def __init__(self) -> None:
        super().__init__()
        self._site: Site | str | None = None
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
        if self._site is None:
            self._site = open_or_refuse(Path(fl_ctx.get_workspace().get_root_dir()), name)
        try:
            answer: bytes | str = respond(shareable[PAYLOAD], name, self._site)
        except Exception:  # FLARE would send the text of an error on, and it may quote a row
            log.exception("%s: a question could not be answered", name)
            answer = "failed"
        self._abort = None
        return Shareable({PAYLOAD: answer or "question"})

    def _beat(self, engine: Any) -> None:
        """Tell the coordinator that this site is still in the run; end with a run that is over."""
        to_server = {"targets": ["server"], "topic": ALIVE_TOPIC, "timeout": 0, "optional": True}
        while not self._over.wait(HEARTBEAT):
            if self._abort is not None and self._abort.triggered:
                os._exit(0)  # nobody waits for the answer any more, however long it still takes
            with engine.new_context() as fl_ctx:
                engine.send_aux_request(request=Shareable(), fl_ctx=fl_ctx, **to_server)
