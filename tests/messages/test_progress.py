"""Who sees progress, and where."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import silomix
from silomix.messages.progress import (
    SLOW,
    PlainLines,
    Progress,
    StageClock,
    reporting,
    showing,
    tell_seconds,
)


@pytest.mark.parametrize("progress", [None, False])
def test_a_pipe_gets_no_bar(progress, capsys):
    assert not sys.stderr.isatty()
    with reporting(progress) as report:
        assert report is None
    assert capsys.readouterr() == ("", "")


def test_a_function_is_passed_through(capsys):
    seen = []
    with reporting(seen.append) as report:
        report(Progress("sampling", 1, 2))
    assert seen == [Progress("sampling", 1, 2)]
    assert capsys.readouterr() == ("", "")


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


class Lines:
    """Lines off a terminal, on a clock that is set by hand."""

    def __init__(self):
        self.seconds, self.written = 0.0, []
        self.lines = PlainLines(lambda: self.seconds, self.written.append)

    def at(self, seconds, stage, done=0, total=0):
        self.seconds = seconds
        self.lines(Progress(stage, done, total))


def test_off_a_terminal_every_stage_has_one_line():
    plain = Lines()
    for stage in ["sampling", "compiling", "sampling", "matching", "aggregating", "matching"]:
        plain.at(0, stage)
        plain.at(1, stage, 3, 4)
    assert plain.written == ["sampling", "compiling", "matching", "aggregating"]


def test_a_slow_stage_has_a_line_for_every_tenth_with_the_time_left():
    plain = Lines()
    plain.at(100, "sampling", 0, 4000)
    for done in range(100, 4001, 100):
        plain.at(100 + done / 10, "sampling", done, 4000)
    told = plain.written[1:]
    assert len(told) == 9
    assert told[0] == "sampling: 400 of 4,000 sweeps, about 6.0 min left"
    assert told[-1] == "sampling: 3,600 of 4,000 sweeps, about 40 s left"


def test_time_left_is_at_most_that_of_all_rounds():
    plain = Lines()
    plain.at(0, "polishing")
    plain.at(9, "polishing", 10, 50)
    assert plain.written[1:] == ["polishing: 10 of 50 rounds, at most 36 s left"]


def test_a_fast_stage_has_no_more_than_its_line():
    plain = Lines()
    for done in range(101):
        plain.at(done * (SLOW - 1) / 100, "sampling", done, 100)
    assert plain.written == ["sampling"]


def test_a_total_that_grows_begins_again():
    plain = Lines()
    plain.at(0, "sampling", 0, 1000)
    plain.at(90, "sampling", 900, 1000)
    plain.at(110, "sampling", 1100, 10_000)
    plain.at(200, "sampling", 2000, 10_000)
    assert plain.written[1:] == [
        "sampling: 900 of 1,000 sweeps, about 10 s left",
        "sampling: 2,000 of 10,000 sweeps, about 13.3 min left",
    ]


def test_a_command_writes_lines_to_a_pipe_unless_it_is_quiet(capsys):
    for quiet in (False, True):
        with showing(quiet=quiet) as report:
            assert (report is None) == quiet
            if report:
                report(Progress("matching", 0, 0))
    assert capsys.readouterr() == ("", "matching\n")


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


def test_a_stage_under_way_is_not_ticked(capsys):
    with pytest.raises(ValueError, match="stop"), reporting(True) as report:
        report(Progress("matching", 0, 0))
        report(Progress("aggregating", 0, 0))
        report(Progress("matching", 0, 0))
        raise ValueError("stop")
    lines = capsys.readouterr().err.splitlines()
    assert [("✓" in line) for line in lines] == [False, True]


def test_time_left_is_shown(capsys):
    with pytest.raises(ValueError, match="stop"), reporting(True) as report:
        for done in range(3):
            report(Progress("polishing", done, 10_000))
            time.sleep(0.02)
        raise ValueError("stop")
    err = capsys.readouterr().err
    assert "2/10000 rounds at most" in err
    assert re.search(r"\d:\d\d:\d\d", err)


def test_nothing_reached_shows_nothing(capsys):
    with reporting(True):
        pass
    assert capsys.readouterr().err.strip() == ""


def test_an_exception_passes_through_the_bar(capsys):
    with pytest.raises(KeyboardInterrupt), reporting(True) as report:
        report(Progress("sampling", 123, 400, chains_done=3, chains=8))
        raise KeyboardInterrupt
    assert "123/400 sweeps, 3/8 chains" in capsys.readouterr().err


CHILD = """
import sys
import silomix

table = silomix.simulate("homogeneous", rows=300, silos=1, seed=1)[0].drop(columns="silo")
options = {"progress": False} if "quiet" in sys.argv else {}
silomix.sample(table, components=5, iterations=20_000, **options)
"""


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_gets_a_bar_unless_told_otherwise(quiet):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *(["quiet"] if quiet else [])],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(silomix.__file__).parents[1]),
            "TERM": "xterm",
            "COLUMNS": "100",
        },
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        shown = read_all(ours)
        out, _ = child.communicate(timeout=20)
    assert child.returncode == 0
    assert out == b""
    assert (b"sampling" in shown) != quiet
    assert (b"40000 sweeps" in shown) != quiet


def read_all(descriptor):
    """Everything that is written to a terminal until its other end is closed."""
    read = b""
    try:
        while piece := os.read(descriptor, 4096):
            read += piece
    except OSError:
        return read  # how Linux says that the other end is closed
    finally:
        os.close(descriptor)
    return read
