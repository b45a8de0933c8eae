"""Who sees progress, and where."""

from __future__ import annotations

import re
import sys
import time

import pytest

from silomix.messages import progress
from silomix.messages.progress import (
    SLOW,
    PlainLines,
    Progress,
    StageClock,
    reporting,
    tell_seconds,
)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("progress", [None, False, True])
def test_a_terminal_gets_a_display_unless_told_otherwise(progress, terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    shown = terminal if progress is None else progress
    with reporting(progress) as report:
        assert (report is not None) == shown
        if report is not None:
            report(Progress("sampling", 1, 2))
    out, err = capsys.readouterr()
    assert out == ""
    assert ("sampling" in err) == shown


def test_the_clock_adds_up_stages_and_passes_reports_on():
    times, seen = iter([0.0, 2.0, 5.0, 9.0, 20.0]), []
    clock = StageClock(lambda: next(times), seen.append)
    stages = ["sampling", "compiling", "compiling", "sampling", "matching"]
    for stage in stages:
        clock(Progress(stage, 0, 0))
    assert clock.stop() == {"compiling": 3.0, "sampling": 6.0, "matching": 11.0}
    assert [at.stage for at in seen] == stages


def test_only_long_work_tells_its_time():
    assert tell_seconds({"sampling": 50.0, "matching": 9.0}) == []
    told = tell_seconds({"sampling": 1011.0, "matching": 2.6})
    assert told == ["Time: sampling 16.9 min, matching 3 s"]


@pytest.fixture
def lines_at(monkeypatch, capsys):
    """What is written off a terminal: reports are (seconds, stage, done, total)."""

    def write(*reports):
        lines = PlainLines()
        for now, *report in reports:
            monkeypatch.setattr(progress.time, "monotonic", lambda now=now: now)
            lines(Progress(*report))
        monkeypatch.undo()
        return capsys.readouterr().err.splitlines()

    return write


def test_off_a_terminal_every_stage_has_one_line(lines_at):
    stages = ["sampling", "compiling", "sampling", "matching", "aggregating", "matching"]
    reports = [(at, stage, 3 * at, 4 * at) for stage in stages for at in (0, 1)]
    assert lines_at(*reports) == ["sampling", "compiling", "matching", "aggregating"]


def test_a_slow_stage_has_a_line_for_every_tenth_with_the_time_left(lines_at):
    told = lines_at(*((100 + done / 10, "sampling", done, 4000) for done in range(0, 4001, 100)))
    assert len(told) == 10
    assert told[1] == "sampling: 400 of 4,000 sweeps, about 6.0 min left"
    assert told[-1] == "sampling: 3,600 of 4,000 sweeps, about 40 s left"
    quick = lines_at(*((n * (SLOW - 1) / 100, "sampling", n, 100) for n in range(101)))
    assert quick == ["sampling"]


def test_time_left_is_at_most_that_of_all_rounds(lines_at):
    told = lines_at((0, "polishing", 0, 0), (9, "polishing", 10, 50))
    assert told[1:] == ["polishing: 10 of 50 rounds, at most 36 s left"]


def test_a_total_that_grows_begins_again(lines_at):
    reports = [(0, 0, 1000), (90, 900, 1000), (110, 1100, 10_000), (200, 2000, 10_000)]
    assert lines_at(*((at, "sampling", *counts) for at, *counts in reports))[1:] == [
        "sampling: 900 of 1,000 sweeps, about 10 s left",
        "sampling: 2,000 of 10,000 sweeps, about 13.3 min left",
    ]


def lines_of(err):
    """The lines of a display, without their bars: the tick, the stage, the count."""
    return [re.sub(r"[━╸╺]+|-{5,}", "", line).split()[:-1] for line in err.splitlines()]


def test_every_stage_that_was_reached_has_a_line(capsys):
    with reporting(True) as report:
        for stage, done, total in [
            ("compiling", 0, 900),
            ("sampling", 880, 900),
            ("matching", 0, 0),
            ("aggregating", 0, 0),
            ("polishing", 1, 50),
            ("polishing", 8, 50),
            ("assigning", 0, 0),
        ]:
            report(Progress(stage, done, total))
    assert lines_of(capsys.readouterr().err) == [
        ["✓", "compiling"],
        ["✓", "sampling", "900", "sweeps"],
        ["✓", "matching"],
        ["✓", "aggregating"],
        ["✓", "polishing", "8", "rounds"],
        ["✓", "assigning"],
    ]
    with reporting(True):
        pass
    assert capsys.readouterr().err.strip() == ""


def test_a_stage_under_way_is_not_ticked_and_shows_its_counts(capsys):
    with pytest.raises(KeyboardInterrupt), reporting(True) as report:
        report(Progress("polishing", 1, 10_000))
        report(Progress("sampling", 123, 400, chains_done=3, chains=8))
        for done in range(3):
            report(Progress("polishing", done, 10_000))
            time.sleep(0.02)
        report(Progress("sampling", 123, 400, chains_done=3, chains=8))
        raise KeyboardInterrupt
    polishing, sampling = capsys.readouterr().err.splitlines()
    assert "✓" in polishing and "✓" not in sampling
    assert "123/400 sweeps, 3/8 chains" in sampling
