"""What says of a row where it belongs is its owner's alone, whatever the umask says."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import mode, run

import silomix
from silomix.model.spreadsheet import write_table
from silomix.report.results_folder import write_posterior, write_silo
from silomix.transports.flare import participant

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's"),
    pytest.mark.usefixtures("usual_umask"),
]


def test_results_and_a_folder_that_is_there_keeps_its_rights(posterior, tmp_path):
    (tmp_path / "shared").mkdir()
    for name, rights in (("results", 0o700), ("shared", 0o755)):
        folder = tmp_path / name
        write_posterior(folder, posterior)
        assert mode(folder) == rights
        assert {mode(folder / name) for name in ("labels.csv", "posterior.silomix")} == {0o600}
        assert mode(folder / "profiles.csv") == 0o644  # to be shown, once the folder is opened
    path = tmp_path / "open to all.silomix"
    path.touch(0o644)
    assert mode(posterior.save(path)) == 0o600


def test_results_of_one_silo(tmp_path, rng):
    table = pd.DataFrame(rng.integers(0, 2, (40, 3)), columns=list("abc"))
    draws = silomix.sample(table, iterations=40, threads=1, progress=False)
    local = silomix.local_posterior(draws, partition=rng.integers(0, 2, 40), relabel="average")
    write_silo(tmp_path / "one", "north", local, keep_draws=True)
    assert mode(tmp_path / "one") == 0o700
    assert {mode(tmp_path / "one" / name) for name in ("labels.csv", "draws.npz")} == {0o600}
    with np.load(tmp_path / "one" / "draws.npz", allow_pickle=False) as kept:
        np.testing.assert_array_equal(kept["labels"], draws.labels)


def test_assigned_rows(posterior, tmp_path):
    posterior.save(tmp_path / "p.silomix")
    rows = pd.DataFrame({"smoker": ["no"], "stage": ["I"], "sex": ["f"]})
    write_table(rows, tmp_path / "table.csv")
    out = tmp_path / "labels.csv"
    words = ["assign", tmp_path / "p.silomix", tmp_path / "table.csv", "--out", out]
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert mode(out) == 0o600


@pytest.mark.parametrize("kind", ["client", "server"])
def test_a_kit_and_its_settings_are_closed(tmp_path, kind):
    pytest.importorskip("nvflare", reason="the extra flare is not installed")
    made = participant.build_kits(tmp_path, "localhost", 8002, ["north"])
    kit = made / ("north" if kind == "client" else "localhost")
    shutil.rmtree(kit / "local")
    for path in (kit / "startup").glob("*.sh"):
        path.unlink()
    for name in participant.startup_files(kind)[1:]:
        (kit / "startup" / name).touch()
    if kind == "client":
        participant.site_command(kit, {"data": "t.csv", "study": "s.toml"})
    else:
        participant.server_command(kit)
    assert mode(kit) == 0o700
    assert mode(kit / "run" / "local" / "silomix.json") == 0o600
