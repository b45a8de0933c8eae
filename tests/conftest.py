"""One fixed seed by default; SILOMIX_SEEDS=0-49 sweeps fifty of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# a machine that is busy is no fault of the code
settings.register_profile("silomix", deadline=None, derandomize=True)
settings.load_profile("silomix")


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        first, _, last = os.environ.get("SILOMIX_SEEDS", "20").partition("-")
        metafunc.parametrize("seed", range(int(first), int(last or first) + 1))


@pytest.fixture
def data_folder() -> Path:
    """The folder of published data sets; a test that needs it skips without it, and says so."""
    folder = os.environ.get("SILOMIX_DATA")
    if not folder:
        pytest.skip("set SILOMIX_DATA to the folder of published data sets to run this test")
    return Path(folder)
