"""One fixed seed by default; SILOMIX_SEEDS=0-49 sweeps fifty of them."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# before NumPy is imported: small matrices gain nothing from threads, which spin while they wait
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings

# no test may count in the ledger of whoever runs it
OF_THE_SESSION = tempfile.TemporaryDirectory(prefix="silomix-")
os.environ["SILOMIX_LEDGER"] = str(Path(OF_THE_SESSION.name, "ledger.sqlite"))

# a machine that is busy is no fault of the code
settings.register_profile("silomix", deadline=None, derandomize=True)
settings.load_profile("silomix")


ROOT = Path(__file__).parents[1]


def pytest_addoption(parser):
    parser.addoption("--resume", action="store_true", help="only what has not passed on this tree")


def pytest_configure(config):
    if config.getoption("--resume"):
        config.pluginmanager.register(Resume(config))


class Resume:
    """Leaves out what passed before, as long as no file has changed since."""

    def __init__(self, config):
        self.config, self.tree = config, digest_of_tree()
        tree, passed = config.cache.get("silomix/passed", ["", []])
        self.passed = set(passed if tree == self.tree else [])

    def pytest_collection_modifyitems(self, config, items):
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid in self.passed])
        items[:] = [item for item in items if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report):
        # one process alone writes: the one that hears from all workers
        if hasattr(self.config, "workerinput"):
            return
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        elif report.failed:  # what comes after a test counts too
            self.passed.discard(report.nodeid)
        if report.when != "setup":
            self.config.cache.set("silomix/passed", [self.tree, sorted(self.passed)])

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.passed:
            session.exitstatus = pytest.ExitCode.OK


def digest_of_tree() -> str:
    """Return a digest of everything that a test may read, and of what runs it."""
    installed = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    switches = [os.environ.get(name, "") for name in ("NUMBA_DISABLE_JIT", "SILOMIX_SEEDS")]
    digest = hashlib.sha256(repr((sys.version, installed, switches)).encode())
    rooms = ["src", "tests", "docs", "examples", "r", "benchmarks", "reproduction", "verify"]
    files = [path for room in rooms for path in (ROOT / room).rglob("*")]
    for path in sorted([*files, *ROOT.glob("*.*"), ROOT / "Makefile"]):
        if path.is_file() and not {"__pycache__", "_build"} & set(path.parts):
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        first, _, last = os.environ.get("SILOMIX_SEEDS", "20").partition("-")
        metafunc.parametrize("seed", range(int(first), int(last or first) + 1))


@pytest.fixture(autouse=True)
def ledger(tmp_path_factory, monkeypatch, request):
    """Every test has a ledger of its own, which is not there yet."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    path = tmp_path_factory.getbasetemp() / "ledgers" / f"{name}.sqlite"
    monkeypatch.setenv("SILOMIX_LEDGER", str(path))
    return path


@pytest.fixture
def rng(seed) -> np.random.Generator:
    """One stream for the fixtures and the test that take it."""
    return np.random.default_rng(seed)


@pytest.fixture
def posterior(seed):
    """A posterior of made-up numbers over two silos."""
    from cases.posteriors import make_posterior

    return make_posterior(np.random.default_rng(seed))


@pytest.fixture
def drifting(posterior, seed):
    """The same, with profiles of each silo's own."""
    from cases.posteriors import with_drift

    return with_drift(posterior, np.random.default_rng(seed))


@pytest.fixture
def usual_umask():
    """Files of which nothing is said may be read by all."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def without_pictures(monkeypatch):
    """The picture of a release takes a second, and has tests of its own."""
    monkeypatch.setattr("silomix.messages.folder.draw_profiles", lambda *_: None)


@pytest.fixture
def data_folder() -> Path:
    """The folder of published data sets; a test that needs it skips without it, and says so."""
    folder = os.environ.get("SILOMIX_DATA")
    if not folder:
        pytest.skip("set SILOMIX_DATA to the folder of published data sets to run this test")
    return Path(folder)
