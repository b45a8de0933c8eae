"""Progress for people: bars on a terminal, lines where output is piped; and what silos sent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from silomix.messages import PolishReply, Query, Release, Silos
from silomix.messages.container import count_bytes


@dataclass(frozen=True)
class Progress:
    """Progress of a piece of work, as handed to the callback, whose result is ignored.

    Attributes
    ----------
    stage : "compiling", "sampling", "matching", "aggregating", "polishing" or "assigning".
    done, total : sweeps over all chains, or rounds; a total of 0 is unknown.
    chains_done, chains : chains that are finished, and all of them; 0 where there are none.
    """

    stage: str
    done: int
    total: int
    chains_done: int = 0
    chains: int = 0


Report = Callable[[Progress], None]

# Print the times of stages only for work that takes longer, in seconds.
LONG = 60

# Print a line for every tenth of a stage only if it will take longer, in seconds.
SLOW = 30

# Units of stages that are counted; for others, only their start is shown.
UNITS = {"sampling": "sweeps", "polishing": "rounds"}

# Stages that may end before their total.
AT_MOST = {"polishing"}


def reporting(progress: Report | bool | None) -> AbstractContextManager[Report | None]:  # noqa: FBT001
    """Context of the callback to use: the caller's own, a display on stderr, or None.

    `progress` is None for a display where stderr is a terminal, True or False to force it, or a
    function that takes a `silomix.messages.progress.Progress`.
    """
    if callable(progress):
        return nullcontext(progress)
    is_shown = sys.stderr.isatty() if progress is None else progress
    return _display() if is_shown else nullcontext()


def showing(*, quiet: bool) -> AbstractContextManager[Report | None]:
    """Callback of a command: a display on a terminal, lines elsewhere, None if quiet."""
    loud = None if sys.stderr.isatty() else PlainLines()
    return reporting(False if quiet else loud)


class PlainLines:
    """Prints a line for each stage that starts, and one for every tenth of a slow one."""

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._stage, self._since, self._tenth = "", 0.0, 0

    def __call__(self, now: Progress) -> None:
        """Take a report of progress."""
        if now.stage != self._stage:
            self._stage, self._since, self._tenth = now.stage, time.monotonic(), 0
            if now.stage not in self._reached:
                _write_line(now.stage)
                self._reached.add(now.stage)
        tenth = 10 * now.done // max(now.total, 1)
        spent = time.monotonic() - self._since
        if self._tenth < tenth < 10 and spent * now.total / now.done >= SLOW:
            remaining = duration(spent * (now.total - now.done) / now.done)
            count = f"{now.done:,} of {now.total:,} {UNITS.get(now.stage, '')}".rstrip()
            bound = "at most" if now.stage in AT_MOST else "about"
            _write_line(f"{now.stage}: {count}, {bound} {remaining} left")
        self._tenth = tenth  # a total that has grown begins again


def _write_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def duration(seconds: float) -> str:
    """Seconds or minutes, in words."""
    return f"{seconds / 60:.1f} min" if seconds >= LONG else f"{seconds:.0f} s"


class StageClock:
    """Seconds by stage of work that reports its progress, on any clock.

    Parameters
    ----------
    now : the clock, in seconds.
    report : also receives every report.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, report: Report | None = None
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._now, self._report = now, report
        self._stage, self._since = "sampling", now()

    def __call__(self, progress: Progress) -> None:
        """Take a report of progress."""
        if progress.stage != self._stage:
            self.stop()
            self._stage = progress.stage
        if self._report is not None:
            self._report(progress)

    def stop(self) -> dict[str, float]:
        """End the current stage; return the seconds of all stages, in order."""
        now = self._now()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._since = now
        return self.seconds


def tell_seconds(seconds: dict[str, float]) -> list[str]:
    """Line with the time of each stage; none for short work."""
    if sum(seconds.values()) < LONG:
        return []
    spent = ", ".join(f"{stage} {duration(took)}" for stage, took in seconds.items())
    return [f"Time: {spent}"]


class CountingSilos:
    """Silos whose replies, and the bytes of them, are counted by silo and kind; tells a report."""

    def __init__(self, silos: Silos, report: Report | None = None) -> None:
        self._silos, self.names, self._report = silos, silos.names, report
        self.sent: dict[str, dict[str, int]] = {name: {} for name in silos.names}
        self.answered: dict[str, dict[str, int]] = {name: {} for name in silos.names}
        # of each silo, as its last answer that tells it says
        self.rows: dict[str, int] = {}

    def say(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Report how far the study is."""
        if self._report is not None:
            self._report(Progress(stage, done, total))

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask, and count what comes back."""
        replies = self._silos.ask(query)
        for name, reply in replies.items():
            kind = type(reply).__name__
            self.sent[name][kind] = self.sent[name].get(kind, 0) + count_bytes(reply)
            self.answered[name][kind] = self.answered[name].get(kind, 0) + 1
            if isinstance(reply, Release):
                self.rows[name] = reply.rows
            elif isinstance(reply, PolishReply):
                self.rows[name] = int(reply.members[0].sum())
        return replies


@contextmanager
def _display() -> Iterator[Report]:
    """Show every stage that has started; all but the current one are done."""
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        SpinnerColumn("line", finished_text="+" if console.options.ascii_only else "✓"),
        TextColumn("{task.description:<11}"),
        BarColumn(),
        TextColumn("{task.fields[count]:<24}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    tasks: dict[str, TaskID] = {}
    last: Progress | None = None

    def show(at: Progress) -> None:
        nonlocal last
        if last is None or last.stage != at.stage:
            tick()
            if at.stage not in tasks:
                tasks[at.stage] = bar.add_task(at.stage, total=None, count="")
            bar.reset(tasks[at.stage], total=None, count="")
        last = at
        if at.stage in UNITS and at.total:
            count = f"{at.done}/{at.total} {UNITS[at.stage]}"
            count += " at most" if at.stage in AT_MOST else ""
            count += f", {at.chains_done}/{at.chains} chains" if at.chains > 1 else ""
            bar.update(tasks[at.stage], completed=at.done, total=at.total, count=count)

    def tick() -> None:
        """Tick the current stage; it may have needed fewer rounds than there could be."""
        if last is not None:
            done = last.total if last.stage == "sampling" else last.done
            count = f"{done} {UNITS[last.stage]}" if last.stage in UNITS and done else ""
            total = max(done, 1)
            bar.update(tasks[last.stage], total=total, completed=total, count=count)

    with Bar(*columns, console=console) as bar:
        yield show
        tick()
