"""Progress for people: a line for each stage on a terminal, nothing when the output is piped."""

from __future__ import annotations

import sys
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
