"""The silos of one table on joblib: processes of this machine, or a Dask cluster.

For a data centre, where whoever asks holds the table already: the silos' stores stay with the
asker, a question takes along what it needs of them, and what it adds comes back with the reply.
Workers keep nothing, so any of them can answer anything, and one that dies costs a repetition.
"""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, CancelledError
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from joblib import Parallel, delayed, parallel_config
from joblib.parallel import get_active_backend

from silomix import messages
from silomix.errors import SiloError
from silomix.messages.progress import Progress, Report
from silomix.silo.answer import HANDLERS, answer, permit, shown_draws
from silomix.silo.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from silomix.messages import Query
    from silomix.model.schema import Shard
    from silomix.silo.local import Silo

# what joblib raises when a worker died: a process of this machine, or one of Dask's with data
LOST = (BrokenExecutor, CancelledError)
CHANCES = 2

# what a question takes along beside the rows: its name in a store, and how the asker gets it
NEEDS: dict[type, tuple[str, Callable[[Silo], object]]] = {
    messages.DivergenceCost: ("kept", lambda silo: silo.store.kept),
    messages.LogLikelihood: ("matched", shown_draws),
    messages.PolishRound: ("prepared", lambda silo: silo.rows.prepared),
    messages.AssignRows: ("kept", lambda silo: silo.store.kept),
}
# what a worker may add to the asker's store
ADDED = ("kept", "membership")


class Joblib:
    """The silos of one table, on the workers of joblib; satisfies `silomix.messages.Silos`.

    The caller's `joblib.parallel_config` says which workers, and how many; `jobs` is for where it
    does not. Each worker uses one thread. Within `with`, the workers and what they share of the
    rows stay up from question to question.
    """

    def __init__(self, silos: Sequence[Silo], jobs: int = 1, report: Report | None = None) -> None:
        self.silos = tuple(silos)
        self.names = tuple(silo.name for silo in silos)
        self._jobs, self._report = jobs, report
        self._parallel: Any = None
        self._scattered: dict[int, tuple[object, object]] = {}

    def __enter__(self) -> Self:
        self._parallel = workers(self._jobs).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        parallel, self._parallel = self._parallel, None
        self._scattered.clear()
        parallel.__exit__(*error)

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own."""
        queries = messages.by_silo(query, self.names)
        asked = {silo.name: silo for silo in self.silos if silo.name in queries}
        if isinstance(query, messages.ShareReleases):
            # nothing is computed: what is shown stays in the store
            return {name: answer(query, silo) for name, silo in asked.items()}
        for name, silo in asked.items():
            permit(queries[name], silo)
        replies = self._run(queries, asked)
        return {name: replies[name] for name in asked}

    def _job(self, query: Query, silo: Silo) -> Any:
        # a worker may run in another folder
        checkpoint = silo.checkpoint.absolute() if silo.checkpoint else None
        empty: dict[str, Any] = dict.fromkeys(("shard", "store", "account", "progress"))
        bare = replace(silo, threads=1, checkpoint=checkpoint, **empty)
        sent = {"shard": self._scatter(silo.shard)}
        if type(query) in NEEDS:
            word, take = NEEDS[type(query)]
            sent[word] = self._scatter(take(silo))
        # field by field, so that what silos are asked alike travels once
        values = [getattr(query, part.name) for part in fields(query)]
        return delayed(work)(bare, type(query), *values, **sent)

    def _scatter(self, value: object) -> object:
        """Stand-in to send for something that many questions need.

        joblib shares large arrays among the processes of this machine by itself; on Dask they
        are put on the cluster once.
        """
        client = getattr(get_active_backend()[0], "client", None)
        if client is None or value is None:
            return value
        if id(value) not in self._scattered:
            # the value is kept with its future, so that no other can get its id
            self._scattered[id(value)] = value, client.scatter([value], hash=False)[0]
        return self._scattered[id(value)][1]

    def _run(self, queries: Mapping[str, Query], silos: Mapping[str, Silo]) -> dict[str, Any]:
        """Let a worker answer each silo's question; another, where it died."""
        replies: dict[str, Any] = {}
        left, lost = list(silos), None
        for _ in range(CHANCES):
            if not left:
                break
            self._tell(queries[left[0]])
            jobs = [self._job(queries[name], silos[name]) for name in left]
            results = (self._parallel or workers(self._jobs))(jobs)
            try:
                for name, reply, added in results:
                    replies[name], store = as_local(reply), vars(silos[name].store)
                    store.update({word: as_local(value) for word, value in added.items()})
                    self._tell(queries[name])
            except LOST as error:
                lost = error
                self._scattered.clear()
            except BaseException as error:
                # joblib stops the workers for an error it sees; left alone, it warns of results
                results.throw(error)
                raise
            left = [name for name in left if name not in replies]
        if left:
            raise SiloError(
                f"{', '.join(left)}: the worker died, and so did the next; it may have run out of "
                "memory: let fewer workers run at a time, or make more silos of fewer rows"
            ) from lost
        return replies

    def _tell(self, query: Query) -> None:
        if self._report is not None and isinstance(query, messages.SampleLocally):
            schedule = self.silos[0].study.sampling
            sampled = sum(silo.store.kept is not None for silo in self.silos)
            done, chains = sampled * schedule.chains, len(self.silos) * schedule.chains
            sweeps = schedule.iterations
            self._report(Progress("sampling", sweeps * done, sweeps * chains, done, chains))


def workers(jobs: int) -> Any:
    """Joblib's workers: as many as the caller's `parallel_config` says, or else `jobs`."""
    with parallel_config() as active:
        chosen = active["n_jobs"]
    return Parallel(
        n_jobs=chosen if isinstance(chosen, int) else jobs,
        return_as="generator_unordered",
        mmap_mode="c",
    )


def work(
    bare: Silo, kind: type, *values: object, shard: Shard, **sent: Any
) -> tuple[str, Any, dict[str, Any]]:
    """Answer a question that was permitted, in a worker, from what was sent along.

    Returns
    -------
    The silo's name, its reply, and what the question added to its store, by name.
    """
    silo = replace(bare, shard=as_local(shard), store=Store())
    store = vars(silo.store)
    store.update({word: as_local(value) for word, value in sent.items()})
    reply = HANDLERS[kind](kind(*map(as_local, values)), silo)
    new = {word for word in ADDED if store[word] is not None and sent.get(word) is None}
    return silo.name, reply, {word: store[word] for word in new}


def as_local(value: Any) -> Any:
    """Copy of a record or an array as if it had been made here.

    Shared memory is mapped, and what comes over a network may be read-only: numba would compile
    the kernels once more for such arrays.
    """
    if isinstance(value, np.ndarray):
        return np.require(value, requirements=["ENSUREARRAY", "WRITEABLE"])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(as_local, value))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: as_local(getattr(value, part.name)) for part in fields(value)}
        return replace(value, **parts)
    return value
