"""The silos of one table on joblib: processes of this machine, or a Dask cluster.

For a data centre, where whoever asks holds the table already: the silos' stores stay with the
asker, a question takes along what it needs of them, and what it adds comes back with the reply.
Workers keep nothing, so any of them can answer anything, and one that dies costs a repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, CancelledError
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed, parallel_config
from joblib.parallel import get_active_backend

from silomix.aggregation.oracles import distinct_rows
from silomix.errors import SiloError
from silomix.kernels.layout import Layout, lay_out
from silomix.messages import (
    AssignRows,
    CountDistinctRows,
    DivergenceCost,
    LogLikelihood,
    PolishRound,
    SampleLocally,
    ShareReleases,
)
from silomix.sampler import Progress
from silomix.silo import Silo, answer, permit
from silomix.store import Store
from silomix.types import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    from silomix.messages import DistinctRows, Query
    from silomix.store import Kept
    from silomix.study import Study
    from silomix.study.policy import Policy
    from silomix.types import Schema

LOST = (BrokenExecutor, CancelledError)
"""What joblib raises when a worker died: a process of this machine, or one of Dask's with data."""

NEEDS: dict[type, tuple[str, ...]] = {
    SampleLocally: ("codes",),
    DivergenceCost: ("codes", "kept"),
    LogLikelihood: ("rows", "shared", "matched"),
    ShareReleases: (),
    CountDistinctRows: ("rows",),
    PolishRound: ("layout",),
    AssignRows: ("codes",),
}
"""What each question takes along: the codes of the rows, and what a store has under that name."""

MADE_ONCE = ("layout", "rows")
"""Forms of the rows that a worker makes the first time one is needed."""

CHANCES = 2


@dataclass(frozen=True, eq=False)
class Post:
    """What a worker must know of a silo besides its rows; see `silomix.silo.Silo`."""

    name: str
    place: int
    schema: Schema
    study: Study
    policy: Policy
    checkpoint: Path | None


class Outcome(NamedTuple):
    """A reply, and what the question added to the silo's store."""

    reply: Any
    kept: Kept | None
    membership: NDArray[np.float32] | None


class Joblib:
    """The silos of one table, on the workers of joblib; satisfies `silomix.messages.Silos`.

    The caller's `joblib.parallel_config` says which workers, and how many; `jobs` is for where it
    does not. Each worker uses one thread. Within `with`, the workers and what they share of the
    rows stay up from question to question.
    """

    def __init__(
        self,
        silos: Sequence[Silo],
        jobs: int = 1,
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        self.silos = tuple(silos)
        self._jobs, self._report = jobs, report
        self._parallel: Any = None
        self._lent: dict[int, tuple[object, object]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, in order."""
        return tuple(silo.name for silo in self.silos)

    def __enter__(self) -> Self:
        self._parallel = workers(self._jobs).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        parallel, self._parallel = self._parallel, None
        self._lent.clear()
        parallel.__exit__(*error)

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own."""
        queries: Mapping[str, Query]
        queries = query if isinstance(query, Mapping) else dict.fromkeys(self.names, query)
        asked = {silo.name: silo for silo in self.silos if silo.name in queries}
        for name, silo in asked.items():
            permit(queries[name], silo)
        for word in MADE_ONCE:
            self._make(word, [silo for silo in asked.values() if word in needs(queries[silo.name])])
        away = [name for name, silo in asked.items() if not at_hand(queries[name], silo)]
        tell = self._tell if isinstance(query, SampleLocally) else None
        found = self._run(lambda name: self._job(queries[name], asked[name]), away, tell)
        for name, outcome in found.items():
            remember(outcome, asked[name].store)
        return {
            name: found[name].reply if name in found else answer(queries[name], silo)
            for name, silo in asked.items()
        }

    def _make(self, word: str, silos: Sequence[Silo]) -> None:
        """Have the rows brought into the form that the questions to come need, once."""
        missing = {silo.name: silo for silo in silos if getattr(silo.store, word) is None}

        def job(name: str) -> Any:
            shard = missing[name].shard
            return delayed(make)(name, word, self._lend(shard.codes), shard.schema.sizes)

        for name, made in self._run(job, missing).items():
            silo = missing[name]
            if isinstance(made, Layout):
                made = made._replace(codes=np.ascontiguousarray(silo.shard.codes))
            setattr(silo.store, word, made)

    def _job(self, query: Query, silo: Silo) -> Any:
        # a worker may run in another folder
        checkpoint = silo.checkpoint.absolute() if silo.checkpoint else None
        post = Post(silo.name, silo.place, silo.shard.schema, silo.study, silo.policy, checkpoint)
        taken = {word: take(word, silo) for word in needs(query)}
        lent = {word: self._lend(item) for word, item in taken.items() if word != "shared"}
        # field by field, so that what silos are asked alike travels once
        return delayed(work)(post, type(query), *vars(query).values(), **(taken | lent))

    def _lend(self, value: object) -> object:
        """Return what to send in the place of something that many questions need.

        joblib shares large arrays among the processes of this machine by itself; on Dask they
        are put on the cluster once.
        """
        client = getattr(get_active_backend()[0], "client", None)
        if client is None or value is None:
            return value
        if id(value) not in self._lent:
            self._lent[id(value)] = value, client.scatter([value], hash=False)[0]
        return self._lent[id(value)][1]

    def _run(
        self,
        job: Callable[[str], Any],
        names: Iterable[str],
        tell: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """Run one job for each name; once more for those whose worker died."""
        found: dict[str, Any] = {}
        lost: Exception | None = None
        for _ in range(CHANCES):
            try:
                self._collect([job(name) for name in names if name not in found], found, tell)
            except LOST as error:
                lost = error
                self._lent.clear()
            else:
                return found
        left = ", ".join(name for name in names if name not in found)
        raise SiloError(
            f"{left}: the worker died, and so did the next; it may have run out of memory: let "
            "fewer workers run at a time, or make more silos of fewer rows"
        ) from lost

    def _collect(
        self, jobs: Sequence[Any], found: dict[str, Any], tell: Callable[[int], None] | None
    ) -> None:
        if not jobs:
            return
        if tell is not None:
            tell(len(found))
        results = (self._parallel or workers(self._jobs))(jobs)
        try:
            for name, result in results:
                found[name] = own(result)
                if tell is not None:
                    tell(len(found))
        except BaseException as error:
            # joblib stops the workers for an error it sees; left alone, it warns of unused results
            results.throw(error)
            raise

    def _tell(self, finished: int) -> None:
        if self._report is not None:
            schedule = self.silos[0].study.sampling
            silos = finished + sum(silo.store.kept is not None for silo in self.silos)
            done, chains = silos * schedule.chains, len(self.silos) * schedule.chains
            sweeps = schedule.iterations
            self._report(Progress("sampling", sweeps * done, sweeps * chains, done, chains))


def workers(jobs: int) -> Any:
    """Return joblib's workers: as many as the caller's `parallel_config` says, or else `jobs`."""
    with parallel_config() as active:
        chosen = active["n_jobs"]
    return Parallel(
        n_jobs=chosen if isinstance(chosen, int) else jobs,
        return_as="generator_unordered",
        mmap_mode="c",
    )


def needs(query: Query) -> tuple[str, ...]:
    """Return what the question takes along: "codes", or what a store has under the name."""
    if isinstance(query, AssignRows) and query.groups is not None:
        return ("codes", "kept")
    return NEEDS[type(query)]


def at_hand(query: Query, silo: Silo) -> bool:
    """Tell whether the answer needs no worker: there is nothing left to compute."""
    if isinstance(query, SampleLocally):
        return silo.store.kept is not None
    return isinstance(query, ShareReleases | CountDistinctRows)


def take(word: str, silo: Silo) -> object:
    """Return what a question needs of a silo, and no more."""
    if word == "codes":
        return silo.shard.codes
    shared = silo.store.shared
    if word == "shared" and shared is not None and silo.store.matched is not None:
        return replace(shared, releases=(), matched=None, known_as=shared.key)
    found: object = getattr(silo.store, word)
    return found


def remember(outcome: Outcome, store: Store) -> None:
    """Put what a question added into the silo's store."""
    if outcome.kept is not None:
        store.keep(outcome.kept)
    if outcome.membership is not None:
        store.assign(outcome.membership)


def work(post: Post, kind: type, *values: object, **sent: Any) -> tuple[str, Outcome]:
    """Answer a question in a worker, from what was sent along; see `NEEDS`."""
    store = Store()
    codes = own(sent.pop("codes", np.empty((0, len(post.schema.sizes)), dtype=np.uint8)))
    for word, value in sent.items():
        setattr(store, word, own(value))
    silo = Silo(
        name=post.name,
        place=post.place,
        shard=Shard(post.schema, codes),
        study=post.study,
        store=store,
        policy=post.policy,
        checkpoint=post.checkpoint,
    )
    reply = answer(kind(*map(own, values)), silo)
    kept = None if "kept" in sent else store.kept
    return post.name, Outcome(reply, kept, store.membership)


def make(
    name: str, word: str, codes: NDArray[np.unsignedinteger], sizes: NDArray[np.int64]
) -> tuple[str, Layout | DistinctRows]:
    """Bring a silo's rows into another form in a worker; a layout comes without its codes."""
    codes = own(codes)
    if word == "rows":
        return name, distinct_rows(codes)
    return name, lay_out(codes, sizes)._replace(codes=codes[:0])


def own(value: Any) -> Any:
    """Return a record or an array as if it had been made here.

    Shared memory is mapped, and what comes over a network may be read-only: numba would compile
    the kernels once more for such arrays.
    """
    if isinstance(value, np.ndarray):
        return np.require(value, requirements=["ENSUREARRAY", "WRITEABLE"])
    if isinstance(value, Layout | Outcome):
        return type(value)(*map(own, value))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: own(getattr(value, part.name)) for part in fields(value)}
        return replace(value, **parts)
    return value
