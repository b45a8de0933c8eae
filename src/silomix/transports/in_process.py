"""All silos in this process, side by side on its cores."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from silomix.messages import Query, SampleLocally, by_silo
from silomix.messages.progress import Progress, Report
from silomix.silo.answer import answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from silomix.silo.local import Silo

REPORT_EVERY = 0.1


class InProcess:
    """The silos of one table; satisfies `silomix.messages.Silos`.

    Each question is answered by all silos at once, `threads` of them at a time; with fewer silos
    than threads, a silo uses several. Kinds of questions that silomix itself does not ask come
    with `handlers` that answer them.
    """

    def __init__(
        self,
        silos: Sequence[Silo],
        threads: int = 1,
        report: Report | None = None,
        handlers: Mapping[type, Callable[[Any, Silo], Any]] | None = None,
    ) -> None:
        each = max(1, threads // len(silos))
        self._progress: dict[str, Progress] = {}
        self._stop = threading.Event()
        self._threads, self._report = min(threads, len(silos)), report
        self.names = tuple(silo.name for silo in silos)
        self._handlers = handlers or {}
        self.silos = tuple(
            replace(silo, threads=each, progress=self._listen(silo.name)) for silo in silos
        )

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own."""
        queries = by_silo(query, self.names)
        asked = [silo for silo in self.silos if silo.name in queries]
        kind = type(next(iter(queries.values())))
        handler: Callable[[Any, Silo], Any] = self._handlers.get(kind, answer)
        if self._threads == 1 and kind is not SampleLocally:  # a pool costs more than a round
            return {silo.name: handler(queries[silo.name], silo) for silo in asked}
        with ThreadPoolExecutor(max_workers=self._threads) as pool:
            try:
                replies = {
                    silo.name: pool.submit(handler, queries[silo.name], silo) for silo in asked
                }
                waiting = set(replies.values())
                while waiting:
                    finished, waiting = wait(waiting, REPORT_EVERY, FIRST_EXCEPTION)
                    for reply in finished:
                        reply.result()
                    if kind is SampleLocally:
                        self._tell()
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {name: reply.result() for name, reply in replies.items()}

    def _listen(self, name: str) -> Report:
        def note(progress: Progress) -> None:
            if self._stop.is_set():
                raise InterruptedError("another silo stopped the run")
            self._progress[name] = progress

        return note

    def _tell(self) -> None:
        if self._report is None or not self._progress:
            return
        known = list(self._progress.values())
        # silos that have not begun are taken to need as much as the first
        total = sum(at.total for at in known) + known[0].total * (len(self.silos) - len(known))
        stage = "compiling" if any(at.stage == "compiling" for at in known) else "sampling"
        done, chains_done = sum(at.done for at in known), sum(at.chains_done for at in known)
        self._report(Progress(stage, done, total, chains_done, known[0].chains * len(self.silos)))
