"""Commands that end themselves by SIGKILL, just before one of the calls that change files."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from silomix import cli
from silomix.messages import folder

# What a command does to files; numba and others do it as well, elsewhere.
CALLS = ("fsync", "replace", "rename", "unlink")


def run_until(args, place, last, output):
    """Run a command in a folder; kill it before its call number `last`, if it gets there.

    What it prints goes into the file `output`, and the number of calls into one beside it.
    """
    os.chdir(place)
    folder.draw_profiles = lambda *_: None  # takes a second
    calls = 0

    def counting(call):
        def counted(path, *more, **options):
            nonlocal calls
            if isinstance(path, int) or Path.cwd() in (Path.cwd() / path).parents:
                calls += 1
                if calls == last:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(path, *more, **options)

        return counted

    for name in CALLS:
        setattr(os, name, counting(getattr(os, name)))
    shutil.rmtree = counting(shutil.rmtree)
    with output.open("w", encoding="utf-8") as file:
        sys.stdout = sys.stderr = file
        try:
            cli.app([str(arg) for arg in args])
        finally:
            output.with_suffix(".calls").write_text(str(calls))
