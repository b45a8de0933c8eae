"""The benchmark of the methods: a tiny run that resumes, and ratios on numbers made up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
from cases.script_cases import script

import silomix

pytestmark = pytest.mark.slow
CELL = "homogeneous easy"


@pytest.fixture(scope="module")
def methods():
    """The script, on data that take no time."""

    def small(seed):
        table, truth = silomix.simulate("homogeneous", rows=200, seed=seed)
        return table, truth, truth.labels

    with script("benchmarks", "methods") as (module, patch):
        patch.setitem(module.CASES, CELL, replace(module.CASES[CELL], draw=small))
        patch.setattr(module, "warm_up", lambda methods: None)
        patch.setitem(module.METHODS, "default", partial(module.ours, iterations=400))
        told = SimpleNamespace(stdout="1234567\n")
        patch.setattr(module.subprocess, "run", lambda *_, **__: told)
        yield module


def run(methods, folder):
    words = [f"--cases={CELL}", "--methods=default,fedmerdel,lca", f"--results={folder}"]
    methods.main(words)
    return pd.read_csv(folder / "methods.csv")


def test_methods_are_measured_once_at_a_commit(methods, tmp_path, monkeypatch):
    lines = run(methods, tmp_path)
    assert list(lines.columns) == methods.COLUMNS
    assert lines["method"].tolist() == ["default", "fedmerdel", "lca"] * 2
    again = lines.drop(columns=["seconds", "repeat", *methods.SECONDS])
    assert again[:3].equals(again[3:].reset_index(drop=True))
    assert run(methods, tmp_path).equals(lines)
    monkeypatch.setattr(methods, "describe_commit", lambda: "git def5678")
    assert run(methods, tmp_path)["commit"].tolist() == ["git 1234567"] * 6 + ["git def5678"] * 6


def test_ratios_are_taken_within_a_round(methods):
    """A round on a busy machine, in which everything takes twice as long, changes no ratio."""
    lines = pd.DataFrame({"method": ["default", "fedmerdel"] * 2, "repeat": [0, 0, 1, 1]})
    lines = lines.assign(case=CELL, seed=1, seconds=[3.0, 1.0, 6.0, 2.0], bytes=2_000_000)
    lines = lines.assign(planted=5, clusters=5, ari=0.9, best_ari=0.9)
    lines = methods.with_ratios(lines.assign(m_covered=9, m_total=10, pi_covered=5, pi_total=5))
    summary = methods.summarise(lines).set_index("method")
    assert summary.loc["default", ["ratio", "lowest", "highest"]].tolist() == [3.0, 3.0, 3.0]
    assert summary.loc["default", "CPU s"] == 4.5
    assert methods.noise(lines) == (2.0, 2.0)
    held = methods.held_bars(summary.reset_index()).set_index("default fit")["verdict"]
    assert held.to_dict() == {"CPU s": "missed", "ratio": "kept", "kB out": "missed"}
