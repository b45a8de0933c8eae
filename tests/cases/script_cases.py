"""Scripts of the benchmarks and of the reproduction as modules, to be run on little data."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def script(folder, name):
    """A script, and a patch to make it small with, undone at the end."""
    with pytest.MonkeyPatch.context() as patch:
        for library in ("OPENBLAS", "OMP", "MKL"):
            patch.setenv(f"{library}_NUM_THREADS", "1")
        patch.syspath_prepend(str(ROOT / folder))
        yield import_module(name), patch
