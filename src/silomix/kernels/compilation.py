"""Tells when numba compiles, so that a first call need not look like a hang."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from numba.core import event

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Watch(event.Listener):
    def __init__(self) -> None:
        self.begun = threading.Event()

    def on_start(self, _: Any) -> None:
        self.begun.set()

    def on_end(self, _: Any) -> None:
        pass


@contextmanager
def watch_compilation() -> Iterator[threading.Event]:
    """Yield an event that is set as soon as anything is compiled rather than loaded from disk."""
    watch = _Watch()
    with event.install_listener("numba:compile", watch):
        yield watch.begun
