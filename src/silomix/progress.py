"""Progress for people: bars on a terminal, a few lines where a command's output is piped.

And what it took, by stage, once the work is done.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from silomix.sampler import Progress

    Report = Callable[[Progress], None]

STAGES = ("compiling", "sampling", "matching", "aggregating", "polishing", "assigning")
"""In the order of their lines; a stage without a place here comes last."""

LONG = 60
"""Seconds of work from which people want to know where they went."""

SLOW = 30
"""Seconds that a stage must take, as far as one can tell, for a line at every tenth."""

UNITS = {"sampling": "sweeps", "polishing": "rounds at most"}
"""What is counted; the other stages say only that they are under way."""


@contextmanager
def reporting(progress: Report | bool | None) -> Iterator[Report | None]:  # noqa: FBT001
    """Yield the callback to hand down: the caller's own, a display on stderr, or None.

    `progress` is None for a display where stderr is a terminal, True or False to force it, or a
    function that takes a `silomix.sampler.Progress`.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and sys.stderr.isatty()):
        with _display() as report:
            yield report
    else:
        yield None


@contextmanager
def showing(*, quiet: bool) -> Iterator[Report | None]:
    """Yield what a command hands down: a display on a terminal, lines off it, None if quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _display() as report:
            yield report
    else:
        yield PlainLines()


class PlainLines:
    """Writes a line for each stage that is reached, and one for every tenth of a slow one.

    Parameters
    ----------
    now : the clock, in seconds.
    write : takes a line.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self._now, self._write = now, write or _to_stderr
        self._said: set[str] = set()
        self._stage, self._since, self._tenth = "", 0.0, 0

    def __call__(self, at: Progress) -> None:
        """Take a report of where the work is."""
        if at.stage != self._stage:
            self._stage, self._since, self._tenth = at.stage, self._now(), 0
            if at.stage not in self._said:
                self._write(at.stage)
                self._said.add(at.stage)
        if at.total <= 0 or at.done <= 0:
            return
        tenth = 10 * at.done // at.total
        if self._tenth < tenth < 10:
            spent = self._now() - self._since
            if spent * at.total / at.done >= SLOW:
                left = spent * (at.total - at.done) / at.done
                self._write(f"{at.stage}: {_count(at)}, {_left(at.stage)} {_duration(left)} left")
        self._tenth = tenth  # a total that has grown begins again


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _count(at: Progress) -> str:
    """Return how far a stage is, such as "300 of 800 sweeps"."""
    unit = UNITS.get(at.stage, "").removesuffix(" at most")
    return f"{at.done:,} of {at.total:,} {unit}".rstrip()


def _left(stage: str) -> str:
    return "at most" if UNITS.get(stage, "").endswith(" at most") else "about"


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
        """End the current stage, and return the seconds of all, in the order of `STAGES`."""
        now = self._now()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._since = now
        ordered = [stage for stage in STAGES if stage in self.seconds]
        return {stage: self.seconds[stage] for stage in [*ordered, *self.seconds]}


def tell_seconds(seconds: dict[str, float]) -> list[str]:
    """Return a line with the time of each stage; none when all of them were soon done."""
    if sum(seconds.values()) < LONG:
        return []
    spent = ", ".join(f"{stage} {_duration(took)}" for stage, took in seconds.items())
    return [f"Time: {spent}"]


@contextmanager
def _display() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        SpinnerColumn("line", finished_text="+" if console.options.ascii_only else "✓"),
        TextColumn("{task.description:<11}"),
        BarColumn(),
        TextColumn("{task.fields[count]:<24}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=console) as bar:
        lines = _Lines(bar)
        yield lines
        lines.finish()


class _Lines:
    """Shows every stage that was reached; those before the current one are done."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.stages: list[str] = []
        self.tasks: dict[str, TaskID] = {}
        self.at: Progress | None = None
        for stage in STAGES:
            self._add(stage)

    def _add(self, stage: str) -> None:
        task = self.bar.add_task(stage, total=None, start=False, visible=False, count="")
        self.tasks[stage] = task
        self.stages.append(stage)

    def __call__(self, at: Progress) -> None:
        if at.stage not in self.tasks:
            self._add(at.stage)
        if self.at is None or self.at.stage != at.stage:
            self._enter(at.stage)
        self.at = at
        if at.stage in UNITS and at.total:
            count = f"{at.done}/{at.total} {UNITS[at.stage]}"
            if at.chains > 1:
                count += f", {at.chains_done}/{at.chains} chains"
            task = self.tasks[at.stage]
            self.bar.update(task, completed=at.done, total=at.total, count=count)

    def _enter(self, stage: str) -> None:
        """Show a stage, and tick the one it follows; a step back leaves that one open."""
        if self.at is not None and self.stages.index(self.at.stage) < self.stages.index(stage):
            self.finish()
        self.bar.reset(self.tasks[stage], total=None, visible=True, count="")

    def finish(self) -> None:
        """Tick the current stage; it may have needed fewer rounds than there could be."""
        if self.at is None:
            return
        done = self.at.total if self.at.stage == "sampling" else self.at.done
        unit = UNITS.get(self.at.stage, "").removesuffix(" at most")
        count = f"{done} {unit}" if unit and done else ""
        total = max(done, 1)
        self.bar.update(self.tasks[self.at.stage], total=total, completed=total, count=count)
