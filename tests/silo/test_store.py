"""A store is its owner's alone, and one process at a time makes what is in it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from cases.cli_cases import mode

from silomix.silo.store import open_store

IDENTITY = {"silo": "north"}

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="modes and locks are POSIX's"),
    pytest.mark.usefixtures("usual_umask"),
]


@pytest.fixture
def two(tmp_path):
    """One folder, opened twice, as two processes would."""
    return open_store(tmp_path / "store", IDENTITY), open_store(tmp_path / "store", IDENTITY)


def test_only_its_owner_may_open_a_store(tmp_path):
    folder = tmp_path / "store"
    store = open_store(folder, IDENTITY)
    store.assign(np.ones((3, 2), np.float32))
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == dict.fromkeys(
        ["silo.json", "membership.safetensors", "lock"], 0o600
    )


def test_one_process_at_a_time(two):
    one, other = two
    entered = threading.Event()

    def enter():
        with other.lock:
            entered.set()

    waiting = threading.Thread(target=enter)
    with one.lock:
        waiting.start()
        assert not entered.wait(0.1)
        with one.lock:
            assert not entered.is_set()
    waiting.join(60)
    assert entered.is_set()
