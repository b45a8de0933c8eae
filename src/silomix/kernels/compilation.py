"""How the kernels are compiled, and a watch that tells when: a first call need not look hung."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numba
from numba.core import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile without the interpreter lock, kept on disk between runs."""
    compile_it: Callable[..., Callable[[Function], Function]] = numba.njit
    return compile_it(nogil=True, cache=True)(function)


@contextmanager
def watch_compilation() -> Iterator[threading.Event]:
    """Yield an event that is set as soon as anything is compiled rather than loaded from disk."""
    begun = threading.Event()

    class Watch(event.Listener):
        def on_start(self, _: Any) -> None:
            begun.set()

        def on_end(self, _: Any) -> None:
            pass

    with event.install_listener("numba:compile", Watch()):
        yield begun
