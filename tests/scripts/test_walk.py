"""How much of the package one must know to follow a default fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import silomix

MOST_MODULES = 50

PROGRAM = """
import pathlib, sys, threading
import silomix, silomix.api
root = str(pathlib.Path(silomix.__file__).parent)
table, _ = silomix.simulate("non-nested", rows=400, silos=4, seed=1)
options = {"silo": "silo", "iterations": 600, "seed": 1, "progress": False}
seen, fit = set(), silomix.fit
fit(table, **options)  # compiling runs more
def watch(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and code.co_name != "<module>":
        seen.add(code.co_filename)
threading.setprofile(watch)
sys.setprofile(watch)
fit(table, **options)
sys.setprofile(None)
print(*sorted(seen), sep="\\n")
"""


def test_a_default_fit_passes_through_few_modules():
    """In a process of its own: what another test has imported or cached does not count."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    modules = run.stdout.split()
    assert 30 < len(modules) <= MOST_MODULES, modules


def test_no_module_is_long():
    sizes = {
        path: len(path.read_text().splitlines())
        for path in Path(silomix.__file__).parent.rglob("*.py")
    }
    assert max(sizes.values()) <= 450, [path for path, lines in sizes.items() if lines > 450]
