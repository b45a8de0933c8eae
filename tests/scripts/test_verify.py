"""The comparison with other programs: it passes with their kept numbers, and can fail."""

from __future__ import annotations

import pandas as pd
import pytest
from cases.script_cases import script

import silomix

KEPT = ["--installed", "no"]


@pytest.fixture(scope="module")
def compare():
    with script("verify", "verify") as (module, patch):
        patch.setattr(module, "ITERATIONS", 6_000)
        yield module


def failures(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("DIFFERS")]


def test_small_tables_agree_with_the_kept_numbers(compare, capsys):
    assert compare.main([*KEPT, "--tables", "cheating,counts,gaps"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for program in ("poLCA", "StepMix", "BayesLCA", "flexmix", "JAGS"):
        assert any(line.startswith("agrees") and program in line for line in lines)


@pytest.mark.parametrize(
    ("quantity", "factor", "names"),
    [("log likelihood", 1 - 1e-5, {"density", "maximum"}), ("FRAUD=2", 1.2, {"density"})],
)
def test_other_numbers_fail(compare, capsys, monkeypatch, tmp_path, quantity, factor, names):
    lines = pd.read_csv(compare.programs.NUMBERS)
    lines.loc[lines["quantity"] == quantity, "value"] *= factor
    lines.to_csv(tmp_path / "numbers.csv", index=False)
    monkeypatch.setattr(compare.programs, "NUMBERS", tmp_path / "numbers.csv")
    assert compare.main([*KEPT, "--tables", "cheating", "--programs", "poLCA"]) == 1
    assert names <= {line.split(": ")[1] for line in failures(capsys)}


def test_another_prior_fails(compare, capsys, monkeypatch):
    """Twice the prior of the weights, or of the profiles, is another posterior."""
    right = silomix.sample
    for other in ({"alpha": 1.0}, {"beta": 1.0}):
        monkeypatch.setattr(silomix, "sample", lambda *a, other=other, **k: right(*a, **other, **k))
        assert compare.main([*KEPT, "--tables", "gaps", "--programs", "JAGS"]) == 1
        assert failures(capsys)


def test_tables_that_are_not_here_are_left_out(compare, capsys, monkeypatch):
    monkeypatch.delenv("SILOMIX_DATA", raising=False)
    assert compare.main([*KEPT, "--tables", "wine"]) == 0
    assert "left out: wine" in capsys.readouterr().out
