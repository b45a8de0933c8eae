"""Who sees progress, and where."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import silomix
from silomix.progress import reporting
from silomix.sampler import Progress


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


def test_true_gives_a_bar_on_stderr(capsys):
    with reporting(True) as report:
        report(Progress("compiling", 0, 400))
        report(Progress("sampling", 123, 400))
        report(Progress("sampling", 400, 400))
    out, err = capsys.readouterr()
    assert out == ""
    assert "compiling" in err
    assert "sampling" in err
    assert "400 sweeps" in err


def test_an_exception_passes_through_the_bar(capsys):
    with pytest.raises(KeyboardInterrupt), reporting(True) as report:
        report(Progress("sampling", 123, 400))
        raise KeyboardInterrupt
    assert "123/400 sweeps" in capsys.readouterr().err


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
