"""Progress for people: bars on a terminal, a few lines where a command's output is piped.

And what it took, by stage, once the work is done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a piece of work is. Handed to the callback; nothing comes back from it.

    Attributes
    ----------
    stage : "compiling", "sampling", "matching", "aggregating", "polishing" or "assigning".
    done, total : sweeps over all chains, or rounds; a total of 0 is not known.
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

# What is counted; the other stages say only that they are under way.
UNITS = {"sampling": "sweeps", "polishing": "rounds"}

# Stages that may end before their total.
AT_MOST = {"polishing"}


@contextmanager
def reporting(progress: Report | bool | None) -> Iterator[Report | None]:  # noqa: FBT001
    """Yield the callback to hand down: the caller's own, a display on stderr, or None.

    `progress` is None for a display where stderr is a terminal, True or False to force it, or a
    function that takes a `silomix.messages.progress.Progress`.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and sys.stderr.isatty()):
        with _display() as report:
            yield report
    else:
        yield None


def showing(*, quiet: bool) -> AbstractContextManager[Report | None]:
    """Return what a command hands down: a display on a terminal, lines off it, None if quiet."""
    loud = None if sys.stderr.isatty() else PlainLines()
    return reporting(False if quiet else loud)


class PlainLines:
    """Writes a line for each stage that is reached, and one for every tenth of a slow one."""

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._stage, self._since, self._tenth = "", 0.0, 0

    def __call__(self, at: Progress) -> None:
        """Take a report of where the work is."""
        if at.stage != self._stage:
            self._stage, self._since, self._tenth = at.stage, time.monotonic(), 0
            if at.stage not in self._reached:
                _write_line(at.stage)
                self._reached.add(at.stage)
        tenth = 10 * at.done // max(at.total, 1)
        spent = time.monotonic() - self._since
        if self._tenth < tenth < 10 and spent * at.total / at.done >= SLOW:
            left = _duration(spent * (at.total - at.done) / at.done)
            count = f"{at.done:,} of {at.total:,} {UNITS.get(at.stage, '')}".rstrip()
            bound = "at most" if at.stage in AT_MOST else "about"
            _write_line(f"{at.stage}: {count}, {bound} {left} left")
        self._tenth = tenth  # a total that has grown begins again


def _write_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= LONG else f"{seconds:.0f} s"


class StageClock:
    """Seconds by stage of work that reports where it is, on a clock of one's choice.

    Parameters
    ----------
    now : the clock, in seconds.
    report : gets every report too.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, report: Report | None = None
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._now, self._report = now, report
        self._stage, self._since = "sampling", now()

    def __call__(self, at: Progress) -> None:
        """Take a report of where the work is."""
        if at.stage != self._stage:
            self.stop()
            self._stage = at.stage
        if self._report is not None:
            self._report(at)

    def stop(self) -> dict[str, float]:
        """End the current stage, and return the seconds of all, in the order of their starts."""
        now = self._now()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._since = now
        return self.seconds


def tell_seconds(seconds: dict[str, float]) -> list[str]:
    """Return a line with the time of each stage; none when all of them were soon done."""
    if sum(seconds.values()) < LONG:
        return []
    spent = ", ".join(f"{stage} {_duration(took)}" for stage, took in seconds.items())
    return [f"Time: {spent}"]


@contextmanager
def _display() -> Iterator[Report]:
    """Show every stage that was reached; all but the current one are done."""
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
