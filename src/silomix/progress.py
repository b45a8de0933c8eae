"""Progress for people: a bar on a terminal, nothing when the output is piped."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from silomix.sampler import Progress

    Report = Callable[[Progress], None]


@contextmanager
def reporting(progress: Report | bool | None) -> Iterator[Report | None]:  # noqa: FBT001
    """Yield the callback to hand down: the caller's own, a bar on stderr, or None.

    `progress` is None for a bar where stderr is a terminal, True or False to force it, or a
    function that takes a `silomix.sampler.Progress`.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and sys.stderr.isatty()):
        with _bar() as report:
            yield report
    else:
        yield None


@contextmanager
def _bar() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sweeps"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # a file, where nothing can be erased, gets one line, at the end
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda at: bar.update(task, description=at.stage, completed=at.done, total=at.total)
