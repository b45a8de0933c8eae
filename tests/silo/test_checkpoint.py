"""A run goes on where it was, or says why it cannot."""

from __future__ import annotations

import errno
import json
import os
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
from cases.sampler_cases import assert_same_draws

import silomix
from silomix.errors import CheckpointError
from silomix.families.chains import CategoryChain
from silomix.kernels.reproducible import chain_key
from silomix.model.draws import Schedule
from silomix.model.schema import Prior, Schema, Shard, Variable
from silomix.silo import sampler
from silomix.silo.sampler import Job, sample_shard

SCHEDULE = Schedule(iterations=60, burn_in=20, chains=2, thin=2)
JOB = Job(components=4, prior=Prior(), schedule=SCHEDULE, silos=2, silo=1, seed=8)
ARRAYS = ("labels", "weights", "probabilities", "log_likelihood", "members")


def make_shard(levels=("a", "b", "c")):
    codes = np.random.default_rng(4).integers(0, 4, (90, 5)).astype(np.uint8)
    return Shard(Schema(tuple(Variable(f"v{q}", levels) for q in range(5))), codes)


SHARD = make_shard()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The checkpoint of a finished run, and its draws."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, sample_shard(SHARD, JOB, checkpoint=folder)


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of that checkpoint, to be damaged."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def refuse(words, folder, shard=SHARD, job=JOB):
    """Check that the run is refused, in these words, and the checkpoint left as it is."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError) as caught:
        sample_shard(shard, job, checkpoint=folder)
    assert words in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_finished_run_returns_its_draws_at_once(finished, monkeypatch):
    folder, expected = finished

    def fail(*_):
        raise AssertionError("a sweep was run")

    monkeypatch.setattr(CategoryChain, "advance", fail)
    seen = []
    draws = sample_shard(SHARD, JOB, checkpoint=folder, progress=seen.append)
    assert_same_draws(draws, expected)
    assert (seen[-1].done, seen[-1].total) == (120, 120)


@pytest.mark.parametrize(("file", "chains"), [("run.json", {0, 1}), ("chain-1.npz", {1})])
def test_what_a_kill_left_unsaid_is_made_again(file, chains, folder, finished, advances):
    """Neither a folder without its run.json is believed, nor labels of a chain without state."""
    (folder / file).unlink()
    np.lib.format.open_memmap(folder / "labels.npy", mode="r+")[1] = 0
    assert_same_draws(sample_shard(SHARD, JOB, checkpoint=folder), finished[1])
    assert min(sweeps[0] for _, sweeps, _ in advances) == 1
    assert {key for key, _, _ in advances} == {chain_key(8, 1, chain) for chain in chains}


def test_the_folder_is_made_with_its_parents_and_its_owners_alone(tmp_path):
    folder = tmp_path / "a" / "b"
    before = os.umask(0o022)
    try:
        draws = sample_shard(SHARD, JOB, checkpoint=str(folder))
    finally:
        os.umask(before)
    assert_same_draws(sample_shard(SHARD, JOB), draws)
    names = {f"{name}.npy" for name in ARRAYS} | {"run.json", "chain-0.npz", "chain-1.npz"}
    assert {path.name for path in folder.iterdir()} == names
    if sys.platform != "win32":
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


OTHER_CELL = SHARD.codes.copy()
OTHER_CELL[3, 2] = (OTHER_CELL[3, 2] + 1) % 4


@pytest.mark.parametrize(
    ("job", "shard", "found"),
    [
        ({"seed": 9, "components": 5}, SHARD, "components is 4 there and 5 here; seed is 8 there"),
        ({"silos": 3, "silo": 0}, SHARD, "silos is 2 there and 3 here; silo is 1 there"),
        ({"prior": Prior(beta=1.0)}, SHARD, f"prior is {asdict(JOB.prior)} there"),
        ({"schedule": replace(SCHEDULE, iterations=80)}, SHARD, f"schedule is {asdict(SCHEDULE)}"),
        ({}, Shard(SHARD.schema, OTHER_CELL), "rows is"),
        ({}, make_shard(("a", "b", "d")), "rows is"),
        ({}, Shard(SHARD.schema, SHARD.codes[::-1]), "rows is"),
    ],
    ids=["seed", "silo", "prior", "schedule", "a cell", "a level", "the order of the rows"],
)
def test_another_run_is_refused_by_what_differs(job, shard, found, folder):
    refuse(f"another run: {found}", folder, shard, replace(JOB, **job))


def test_another_format_and_a_file_in_the_way_are_refused(folder, monkeypatch):
    monkeypatch.setattr(sampler, "FORMAT", 3)
    refuse("format is 2 there and 3 here", folder)
    with pytest.raises(CheckpointError, match="cannot be written: Not a directory"):
        sample_shard(SHARD, JOB, checkpoint=folder / "run.json" / "run")


@pytest.mark.parametrize("name", [*(f"{name}.npy" for name in ARRAYS), "chain-0.npz", "run.json"])
def test_a_damaged_file_is_refused(name, folder):
    path = folder / name
    content = path.read_bytes()
    for damage in (content[:-1], content[: len(content) // 2], b"", b"not an array" * 1000):
        path.write_bytes(damage)
        refuse(f"file {path} is missing, damaged or truncated; delete the folder", folder)


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
        with pytest.raises(CheckpointError, match=r"No space left on device"):
            sample_shard(SHARD, JOB, checkpoint=tmp_path, checkpoint_every=10)
    assert not list(tmp_path.glob("*.partial"))
    resumed = sample_shard(SHARD, JOB, checkpoint=tmp_path)
    assert_same_draws(sample_shard(SHARD, JOB), resumed)


CHILD = """
import json, signal, sys
import silomix

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it

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
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "kills", "settings"),
    [
        (200, 2, {"iterations": 40_000, "thin": 200, "threads": 1, "checkpoint_every": 500}),
        (25_000, 10, {"iterations": 8_000, "thin": 40, "threads": 4, "checkpoint_every": 20}),
    ],
    ids=["small", "large"],
)
def test_a_run_stopped_again_and_again_ends_in_the_same_draws(
    rows, kills, settings, rng, seed, tmp_path
):
    """Killed outright every time but the second, when it is interrupted from the keyboard."""
    folder = tmp_path / "run"
    settings = {"components": 8, "chains": 2, "seed": seed, **settings}
    saved = []
    for number in range(kills):
        how = signal.SIGINT if number == 1 else signal.SIGKILL
        with start_child(folder, rows, settings) as child:
            child.stdout.readline()
            time.sleep(rng.uniform(0, 0.2))
            child.send_signal(how)
            _, errors = child.communicate(timeout=60)
        if child.returncode != -how and "KeyboardInterrupt" not in errors:
            break
        saved.append(sum(int(np.load(path)["sweep"]) for path in folder.glob("chain-*.npz")))
    assert len(saved) >= kills // 2, "the run was over too soon to be killed"
    assert saved == sorted(saved)
    assert 0 < saved[-1] < 2 * settings["iterations"]
    table = silomix.simulate("homogeneous", rows=rows, silos=1, seed=6)[0].drop(columns="silo")
    killed = silomix.sample(table, **settings, checkpoint=folder, progress=False)
    assert not list(folder.glob("*.partial"))
    whole = silomix.sample(table, **settings, progress=False)
    assert_same_draws(whole, killed)
