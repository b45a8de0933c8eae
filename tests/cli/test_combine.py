"""Draws from elsewhere by file: `silomix release --draws`, `inspect`, `combine`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from typer.testing import CliRunner

import silomix
from silomix import cli
from silomix.study.policy import OPEN

ROWS = {"north": 300, "south": 200}


def run(*words):
    return CliRunner().invoke(cli.app, [str(word) for word in words])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A netCDF file for each silo: clusters with mean and sd (0, 1) and (5, 2), in two chains."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    for silo, rows in ROWS.items():
        members = np.array([0.6, 0.4]) * rows
        noise = rng.standard_normal((2, 2, 400, 2)) / np.sqrt(members)
        group = xr.Dataset(
            {
                "w": (("chain", "draw", "k"), rng.dirichlet(members, (2, 400))),
                "mu": (("chain", "draw", "k"), [0.0, 5.0] + noise[0]),
                "sigma": (("chain", "draw", "k"), [1.0, 2.0] * np.exp(0.7 * noise[1])),
            }
        )
        # the second chain calls the clusters by each other's names
        group = xr.concat([group.isel(chain=[0]), group.isel(chain=[1], k=[1, 0])], "chain")
        folder = tmp_path / silo
        folder.mkdir()
        xr.DataTree.from_dict({"/posterior": group}).to_netcdf(folder / "draws.nc")
    return tmp_path


def release(silo, *more, policy="open"):
    about = ["--silo", silo, "--rows", ROWS[silo], "--weights", "w", "--policy", policy]
    return run("release", "--draws", f"{silo}/draws.nc", *about, *more)


@pytest.mark.parametrize("tier", ["draws", "summary"])
def test_releases_of_draws_are_combined(files, tier):
    policy = OPEN.model_copy(update={"tiers": (tier,), "name": "ours"})
    silomix.write_policy(policy, "policy.toml")
    for silo in ROWS:
        made = release(silo, "--out", f"release-of-{silo}", policy="policy.toml")
        assert made.exit_code == 0, made.output
        assert "Counted in:" in made.output
        assert (files / f"release-of-{silo}" / "weights.csv").exists() == (tier == "draws")
    shown = run("inspect", "release-of-north")
    assert "What the silo's rows say about mu, sigma" in " ".join(shown.output.split())
    folders = [f"release-of-{silo}" for silo in ROWS]
    done = run("combine", *folders, "--out", "results", "--seed", 1, "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["clusters"]) == 2
    posterior = silomix.load("results/posterior.silomix")
    assert_allclose(posterior.parameters.mean(axis=0), [[0, 1], [5, 2]], atol=0.2)
    assert_allclose(posterior.weights.mean(axis=0), [0.6, 0.4], atol=0.05)
    assert_allclose(posterior.parameters.std(axis=0)[0, 0], 1 / np.sqrt(300), rtol=0.2)
    assert posterior.diagnostics.trusted
    assert (files / "results" / "report.html").stat().st_size > 10_000


def test_priors_and_transforms_on_the_command_line(files):
    """As in Python; nothing is guessed of rows, since a folder would not say so."""
    for silo in ROWS:
        made = release(silo, "--transform", "sigma=log", "--out", f"release-of-{silo}")
        assert made.exit_code == 0, made.output
    asked = json.loads(run("inspect", "release-of-north", "--json").stdout)["explanation"]
    assert len(asked["What may still be asked"]) == 1
    folders = [f"release-of-{silo}" for silo in ROWS]
    priors = ["--prior", "mu=0,0.1", "--prior", "sigma=-1,9"]
    done = run("combine", *folders, "--transform", "mu=none", *priors, "--out", "results")
    assert done.exit_code == 0, done.output
    study = silomix.load("results/posterior.silomix").study
    assert [(v.transform, v.prior) for v in study.variables] == [
        ("none", (0.0, 0.1)),
        ("log", (-1.0, 9.0)),
    ]
    for wrong in (["--prior", "mu"], ["--transform", "log"]):
        assert run("combine", *folders, *wrong, "--out", "other").exit_code == 2
    for wrong in (["--prior", "mu=0"], ["--prior", "mu=0,1,2"], ["--transform", "mu=exp"]):
        assert run("combine", *folders, *wrong, "--out", "other").exit_code == 4
    about = ["--draws", "north/draws.nc", "--silo", "north", "--weights", "w", "--policy", "open"]
    assert run("release", *about, "--dry-run").exit_code == 2


def test_what_may_not_leave_does_not(files):
    made = release("north", "--out", "release", policy="default")
    assert made.exit_code == 6
    assert "nobody can tell how much one row moves" in " ".join(made.output.split())
    assert not (files / "release").exists()
    shown = release("north", "--dry-run")
    assert shown.exit_code == 0
    assert not (files / "north" / "silomix-ledger.json").exists()
    assert run("release", "--silo", "north", "--out", "release").exit_code == 2


def test_folders_of_something_else_are_named(files):
    assert release("north", "--out", "release").exit_code == 0
    twice = run("combine", "release", "release", "--out", "results")
    assert twice.exit_code != 0
    assert "is the second of its silo" in " ".join(twice.output.split())
    wrong = release("south", "--parameters", "nu", "--out", "other")
    assert "no variable 'nu'" in wrong.output
