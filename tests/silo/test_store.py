"""A store is its owner's alone, and several processes count in one ledger."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from cases.cli_cases import mode
from federation.exchange_cases import make_case

from silomix.errors import PolicyRefusal
from silomix.messages import PolishRound
from silomix.silo.answer import permit
from silomix.silo.store import open_store
from silomix.study.policy import Exchanges, find_policy

IDENTITY = {"silo": "north"}

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="modes and locks are POSIX's"),
    pytest.mark.usefixtures("usual_umask"),
]


@pytest.fixture
def two(tmp_path):
    """One folder, opened twice, as two processes would."""
    return open_store(tmp_path / "store", IDENTITY), open_store(tmp_path / "store", IDENTITY)


def question(number):
    return PolishRound(number, np.ones((1, 1)), np.ones((1, 1, 5)), None, 1)


def test_only_its_owner_may_open_a_store(tmp_path):
    folder = tmp_path / "store"
    store = open_store(folder, IDENTITY)
    store.note("polish", "a")
    store.assign(np.ones((3, 2), np.float32))
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == dict.fromkeys(
        ["silo.json", "answered.json", "membership.safetensors", "lock"], 0o600
    )


def test_a_limit_is_for_all_processes_together(two, seed):
    policy = find_policy("open").model_copy(update={"exchanges": Exchanges(polish=3)})
    silo = make_case(seed).silo("silo 1", policy=policy)
    silos = [replace(silo, store=store) for store in two]
    answered = 0
    for number in range(6):
        try:
            permit(question(number), silos[number % 2])
        except PolicyRefusal as error:
            assert error.code == "limit"
        else:
            answered += 1
    assert answered == 3
    for same in silos:
        permit(question(0), same)


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
            one.note("polish", "a")
    waiting.join(60)
    assert entered.is_set()
    assert other.ledger == {"polish": {"a": 1}}
