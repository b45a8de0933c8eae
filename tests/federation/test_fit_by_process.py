"""A long fit that is killed loses no shard that was finished, and ends with the same bytes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from silomix.simulate.cohort import write_cohort

ROWS, SHARDS = 3000, 6


def command(table, out, checkpoint):
    return [
        sys.executable, "-m", "silomix", "fit", str(table),
        "--exclude", "age_at_entry,sex,region,died,age_at_death", "--shards", str(SHARDS),
        "--components", "12", "--iterations", "20000", "--seed", "1", "--threads", "1",
        "--checkpoint", str(checkpoint), "--out", str(out),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohort")
    return write_cohort(folder / "cohort.parquet", rows=ROWS, seed=1)[0]


@pytest.mark.slow
def test_a_killed_fit_keeps_its_finished_shards(cohort, tmp_path):
    kept = tmp_path / "kept"
    process = subprocess.Popen(
        command(cohort, tmp_path / "killed", kept),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 300
    while not (kept / "shard 3").exists():  # one thread: then two shards are done
        assert process.poll() is None, "the fit ended before it could be killed"
        assert time.monotonic() < until, "no third shard within five minutes"
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed").exists()
    finished = {
        file: file.stat().st_mtime_ns
        for shard in ("shard 1", "shard 2")
        for file in (kept / shard).iterdir()
    }
    assert len(finished) >= 2
    subprocess.run(command(cohort, tmp_path / "resumed", kept), check=True, capture_output=True)
    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    whole = command(cohort, tmp_path / "whole", tmp_path / "fresh")
    subprocess.run(whole, check=True, capture_output=True)
    for name in ("posterior.silomix", "labels.csv", "profiles.csv"):
        resumed = (tmp_path / "resumed" / name).read_bytes()
        assert resumed == (tmp_path / "whole" / name).read_bytes(), name
