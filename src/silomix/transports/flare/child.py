"""A site's worker, seen from FLARE's process: started, asked, and replaced when it dies."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from silomix.atomic import private_file
from silomix.transports.flare.frames import LETTER, read_frame, write_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

LOOK_EVERY = 0.2
"""Seconds between looks at whether the run was stopped."""


class Worker:
    """The process that works on the silo's rows."""

    def __init__(self, local: Path, name: str, log: Path) -> None:
        command = [sys.executable, "-m", "silomix.transports.flare.worker", str(local), name]
        private_file(log)  # what went wrong may quote a row
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
            )
        self._questions = cast("IO[bytes]", self._process.stdin)
        self._answers: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def ask(self, letter: bytes, stopped: Callable[[], bool]) -> tuple[bytes, bytes] | None:
        """Return the frame that answers a letter; None if it died, or when `stopped` says so."""
        try:
            write_frame(self._questions, LETTER, letter)
        except OSError:
            return None
        while not stopped():
            with suppress(queue.Empty):
                return self._answers.get(timeout=LOOK_EVERY)
        self.stop()
        return None

    def stop(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self._questions.close()

    def _listen(self) -> None:
        with cast("IO[bytes]", self._process.stdout) as stream:
            while (frame := read_frame(stream)) is not None:
                self._answers.put(frame)
        self._answers.put(None)
