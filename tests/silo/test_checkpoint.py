"""A run goes on where it was, or says why it cannot."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import silomix
from silomix.errors import CheckpointError
from silomix.model.draws import Schedule
from silomix.model.families.categorical import Categorical
from silomix.model.schema import Prior, Schema, Shard, Variable
from silomix.silo import checkpoint, sampler
from silomix.silo.sampler import Job, sample_shard

SCHEDULE = Schedule(iterations=60, burn_in=20, chains=2, thin=2)
LONGER = replace(SCHEDULE, iterations=80)
JOB = Job(components=4, prior=Prior(), schedule=SCHEDULE, silos=2, silo=1, seed=8)
ARRAYS = ("labels", "weights", "probabilities", "log_likelihood", "members")


def make_shard(levels=("a", "b", "c")):
    codes = np.random.default_rng(4).integers(0, 4, (90, 5)).astype(np.uint8)
    return Shard(Schema(tuple(Variable(f"v{q}", levels) for q in range(5))), codes)


SHARD = make_shard()


def arrays(draws):
    names = ("labels", "weights", "probabilities", "log_likelihood", "chain")
    traces = {name: trace.values for name, trace in draws.diagnostics.traces.items()}
    return {name: np.array(getattr(draws, name)) for name in names} | traces


def assert_same(one, other):
    for name, array in one.items():
        assert_array_equal(array, other[name], err_msg=name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The checkpoint of a finished run, and its draws."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, arrays(sample_shard(SHARD, JOB, checkpoint=folder))


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of that checkpoint, to be damaged."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def refuse(message, folder, shard=SHARD, job=JOB):
    """Check that the run is refused, in these words, and the checkpoint left as it is."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError, match=re.escape(message)):
        sample_shard(shard, job, checkpoint=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def damaged(path):
    return (
        f"the checkpoint file {path} is missing, damaged or truncated; delete the folder "
        f"{path.parent} to start the run again from the beginning"
    )


def test_a_finished_run_returns_its_draws_at_once(finished, monkeypatch):
    folder, expected = finished

    def fail(*_):
        raise AssertionError("a sweep was run")

    monkeypatch.setattr(Categorical, "advance", fail)
    seen = []
    draws = sample_shard(SHARD, JOB, checkpoint=folder, progress=seen.append)
    assert_same(arrays(draws), expected)
    assert (seen[-1].done, seen[-1].total) == (120, 120)


def test_the_folder_is_made_with_its_parents(tmp_path):
    folder = tmp_path / "a" / "b"
    draws = sample_shard(SHARD, JOB, checkpoint=str(folder))
    assert_same(arrays(sample_shard(SHARD, JOB)), arrays(draws))
    names = {f"{name}.npy" for name in ARRAYS} | {"run.json", "chain-0.npz", "chain-1.npz"}
    assert {path.name for path in folder.iterdir()} == names


def test_the_files_are_what_they_say(finished):
    folder, expected = finished
    for name in ("labels", "weights", "probabilities", "log_likelihood"):
        stored = np.load(folder / f"{name}.npy", allow_pickle=False)
        assert_array_equal(stored.reshape(expected[name].shape), expected[name])
    stored = json.loads((folder / "run.json").read_text())
    assert stored["format"] == checkpoint.FORMAT
    assert (stored["seed"], stored["components"], stored["silos"], stored["silo"]) == (
        8,
        4,
        2,
        1,
    )


def test_a_folder_without_run_json_holds_nothing(folder, finished, advances):
    """Killed while it was being made: what is there is not believed."""
    (folder / "run.json").unlink()
    (folder / "labels.npy").write_bytes(b"half a file")
    draws = sample_shard(SHARD, JOB, checkpoint=folder)
    assert min(sweeps.first for sweeps in advances) == 1
    assert_same(arrays(draws), finished[1])


def test_a_chain_without_state_starts_again(folder, finished, advances):
    (folder / "chain-1.npz").unlink()
    np.lib.format.open_memmap(folder / "labels.npy", mode="r+")[1] = 0
    draws = sample_shard(SHARD, JOB, checkpoint=folder)
    assert {sweeps.key for sweeps in advances} == {sampler.chain_key(8, 1, 1)}
    assert_same(arrays(draws), finished[1])


@pytest.fixture
def advances(monkeypatch):
    calls = []
    advance = Categorical.advance

    def record(self, chain, sweeps, kept, pool):
        calls.append(sweeps)
        advance(self, chain, sweeps, kept, pool)

    monkeypatch.setattr(Categorical, "advance", record)
    return calls


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"seed": 9}, "seed is 8 there and 9 here"),
        ({"components": 5}, "components is 4 there and 5 here"),
        ({"silos": 3}, "silos is 2 there and 3 here"),
        ({"silo": 0}, "silo is 1 there and 0 here"),
        (
            {"prior": Prior(beta=1.0)},
            f"prior is {asdict(JOB.prior)} there and {asdict(Prior(beta=1.0))} here",
        ),
        (
            {"schedule": LONGER},
            f"schedule is {asdict(SCHEDULE)} there and {asdict(LONGER)} here",
        ),
        (
            {"seed": 9, "components": 5},
            "components is 4 there and 5 here; seed is 8 there and 9 here",
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_another_run_is_refused_by_what_differs(change, found, folder):
    refuse(
        f"the checkpoint in {folder} belongs to another run: {found}. Use the settings and "
        "table it was made with, or give another folder",
        folder,
        job=replace(JOB, **change),
    )


@pytest.mark.parametrize("kind", ["a cell", "a level's name", "the order of the rows", "rows"])
def test_another_table_is_refused(kind, folder):
    codes = SHARD.codes.copy()
    codes[3, 2] = (codes[3, 2] + 1) % 4
    other = {
        "a cell": Shard(SHARD.schema, codes),
        "a level's name": make_shard(("a", "b", "d")),
        "the order of the rows": Shard(SHARD.schema, SHARD.codes[::-1]),
        "rows": Shard(SHARD.schema, SHARD.codes[:-1]),
    }[kind]
    here, there = (sampler._identity(shard, JOB)["rows"] for shard in (other, SHARD))
    refuse(f"rows is {there!r} there and {here!r} here", folder, shard=other)


def test_a_checkpoint_of_another_format_is_refused(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    refuse("format is 1 there and 2 here", folder)


def test_a_setting_this_version_does_not_know_is_refused(folder):
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tempering": 3}))
    refuse("tempering is 3 there and None here", folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe\x00", b"null"], ids=repr)
def test_a_garbled_run_file_is_refused(content, folder):
    path = folder / "run.json"
    path.write_bytes(content)
    refuse(damaged(path), folder)


@pytest.mark.parametrize("name", [*(f"{name}.npy" for name in ARRAYS), "chain-0.npz"])
@pytest.mark.parametrize("left", [0.0, 0.01, 0.5, 1.0], ids="{:.0%} and a bit less".format)
def test_a_truncated_file_is_refused(name, left, folder):
    path = folder / name
    size = path.stat().st_size
    os.truncate(path, max(0, int(left * size) - 1))
    refuse(damaged(path), folder)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_missing_array_is_refused(name, folder):
    path = folder / f"{name}.npy"
    path.unlink()
    refuse(damaged(path), folder)


@pytest.mark.parametrize("name", ["labels.npy", "chain-1.npz"])
def test_a_file_of_something_else_is_refused(name, folder):
    path = folder / name
    path.write_bytes(b"not an array" * 1000)
    refuse(damaged(path), folder)


@pytest.mark.parametrize(
    ("place", "reason"), [("file", "File exists"), ("file/run", "Not a directory")]
)
def test_a_folder_that_cannot_be_made_is_refused(place, reason, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError) as caught:
        sample_shard(SHARD, JOB, checkpoint=tmp_path / place)
    assert str(caught.value) == (
        f"cannot write a checkpoint to {tmp_path / place}: {reason}; choose a folder that "
        "exists or can be made, with enough space"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("mode", [0o500, 0o000], ids=["read-only", "closed"])
def test_a_folder_without_permission_is_refused(mode, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=mode)
    with pytest.raises(CheckpointError, match=r"cannot write .* Permission denied; choose"):
        sample_shard(SHARD, JOB, checkpoint=folder)
    folder.chmod(0o700)


@pytest.mark.parametrize("file", ["run.json", "chain-1.npz"])
def test_a_full_disk_is_said_and_leaves_no_partial_file(file, tmp_path, monkeypatch):
    sync = os.fsync

    def fail(descriptor):
        written = Path(f"/proc/self/fd/{descriptor}").readlink().stem
        if written == f".{file}":
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(CheckpointError) as caught:
            sample_shard(SHARD, JOB, checkpoint=tmp_path, checkpoint_every=10)
    assert str(caught.value) == (
        f"cannot write a checkpoint to {tmp_path}: No space left on device; choose a folder "
        "that exists or can be made, with enough space"
    )
    assert not list(tmp_path.glob("*.partial"))
    resumed = sample_shard(SHARD, JOB, checkpoint=tmp_path)
    assert_same(arrays(sample_shard(SHARD, JOB)), arrays(resumed))


CHILD = """
import json, sys
import silomix

def report(at):
    if at.done:
        print("sampling", flush=True)

folder, rows, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
table = silomix.simulate("homogeneous", rows=rows, silos=1, seed=6)[0].drop(columns="silo")
silomix.sample(table, **settings, checkpoint=folder, progress=report)
"""


def start_child(folder, rows, settings):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(rows), json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": str(Path(silomix.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_after(seconds, child):
    """Kill a child some time after its first sweeps; tell whether it was still at work."""
    child.stdout.readline()
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    return child.returncode == -signal.SIGKILL


def sweeps_saved(folder):
    return sum(int(np.load(path)["sweep"]) for path in folder.glob("chain-*.npz"))


@pytest.mark.parametrize(
    ("rows", "kills", "settings"),
    [
        pytest.param(
            300,
            4,
            {"iterations": 60_000, "thin": 200, "threads": 1, "checkpoint_every": 500},
            id="small",
        ),
        pytest.param(
            25_000,
            10,
            {"iterations": 8_000, "thin": 40, "threads": 4, "checkpoint_every": 20},
            id="large",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_killed_again_and_again_ends_in_the_same_draws(rows, kills, settings, seed, tmp_path):
    folder = tmp_path / "run"
    settings = {"components": 8, "chains": 2, "seed": seed, **settings}
    rng = np.random.default_rng(seed)
    saved = []
    for _ in range(kills):
        with start_child(folder, rows, settings) as child:
            if not kill_after(rng.uniform(0, 0.2), child):
                break
        saved.append(sweeps_saved(folder))
    assert len(saved) >= kills // 2, "the run was over too soon to be killed"
    assert saved == sorted(saved)
    assert 0 < saved[-1] < 2 * settings["iterations"]
    with start_child(folder, rows, settings) as child:
        child.communicate(timeout=300)
    assert child.returncode == 0
    assert not list(folder.glob("*.partial"))
    table = silomix.simulate("homogeneous", rows=rows, silos=1, seed=6)[0].drop(columns="silo")
    killed = silomix.sample(table, **settings, checkpoint=folder, progress=False)
    whole = silomix.sample(table, **settings, progress=False)
    assert_same(arrays(whole), arrays(killed))


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_only_its_owner_may_open_a_checkpoint(tmp_path):
    before = os.umask(0o022)
    try:
        sample_shard(SHARD, JOB, checkpoint=tmp_path / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()}
    assert {"labels.npy", "chain-0.npz", "run.json"} <= modes.keys()
    assert set(modes.values()) == {0o600}
