"""The benchmark of scale: a tiny run that resumes, and slopes on numbers made up."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cases.script_cases import script

pytestmark = pytest.mark.slow
MEASURED = ["cpu_seconds", "calls", "peak_mb"]


@pytest.fixture(scope="module")
def scale():
    """The script, at sizes that take no time and without processes of their own."""
    with script("benchmarks", "scale") as (module, patch):
        small = module.Size(rows=240, variables=12, components=4, silos=2, draws=8)
        patch.setattr(module, "base_of", lambda stage: small)
        patch.setitem(module.FACTORS, "rows", (120, 240, 480))
        patch.setitem(module.FACTORS, "silos", (1, 2, 3))
        patch.setattr(module, "MORE_SILOS", (4,))
        patch.setattr(module, "apart", lambda function, *values: function(*values))
        patch.setattr(module, "MOST_CALLS", 1)
        yield module


@pytest.fixture(scope="module")
def pages(scale):
    return sys.modules["scale_pages"]


def run(scale, folder, *words):
    scale.main([f"--results={folder}", f"--pages={folder / 'pages'}", *words])
    return pd.read_csv(folder / "scale.csv")


@pytest.fixture(scope="module")
def made(scale, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    run(scale, folder, "--factors=rows,silos")
    return folder


def test_every_stage_has_a_line_for_every_size(scale, made):
    lines = pd.read_csv(made / "scale.csv")
    assert list(lines.columns) == scale.COLUMNS
    rows = lines[lines["factor"] == "rows"]
    for stage in scale.STAGES:
        assert sorted(rows.loc[rows["stage"] == stage, "value"]) == [120, 240, 480]
    match = lines[(lines["stage"] == "match") & (lines["factor"] == "silos")]
    assert sorted(match["value"]) == [1, 2, 3, 4]
    solve = lines[(lines["stage"] == "solve") & (lines["factor"] == "silos")]
    assert sorted(solve["value"]) == [2, 3]
    # the base point is measured once and belongs to every factor
    base = lines[(lines["stage"] == "polish") & (lines["rows"] == 240) & (lines["silos"] == 2)]
    assert list(base["factor"]) == list(scale.STAGES["polish"].factors)
    assert base["cpu_seconds"].nunique() == 1
    assert (lines["cpu_seconds"] > 0).all()


def test_sizes_are_those_asked_for(made):
    lines = pd.read_csv(made / "scale.csv")
    distinct, load = (lines[lines["stage"] == stage] for stage in ("distinct", "load"))
    assert (distinct["distinct"] == distinct["quality"]).all()
    assert (distinct["distinct"] <= distinct["rows"]).all()
    assert (load["quality"] == load["rows"]).all()
    match = lines[(lines["stage"] == "match") & (lines["factor"] == "silos")]
    assert (match["local_clusters"] <= match["components"] * match["silos"]).all()
    assert match.sort_values("value")["local_clusters"].is_monotonic_increasing


def test_what_is_there_is_not_run_again(scale, made, monkeypatch):
    before = (made / "scale.csv").read_bytes()
    monkeypatch.setattr(scale, "apart", None)
    run(scale, made, "--factors=rows,silos")
    assert (made / "scale.csv").read_bytes() == before


def test_a_stopped_run_goes_on_and_gives_the_same_numbers(scale, made, tmp_path):
    words = "--stages=distinct,solve", "--factors=rows"
    whole = run(scale, tmp_path, *words)
    path = tmp_path / "scale.csv"
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([header, *lines[:4], lines[4][:20]]), encoding="utf-8")
    again = run(scale, tmp_path, *words)
    pd.testing.assert_frame_equal(again.drop(columns=MEASURED), whole.drop(columns=MEASURED))
    # nor do they depend on which stages ran beside them
    merged = again.merge(pd.read_csv(made / "scale.csv"), on=["stage", "factor", "value"])
    np.testing.assert_array_equal(merged["quality_x"], merged["quality_y"])
    assert len(merged) == len(again)


def test_tables_and_figure_are_written(scale, made, capsys):
    run(scale, made, "--factors=rows,silos")
    printed = capsys.readouterr().out
    assert "time in distinct rows" in printed
    tables = made / "pages" / "tables"
    assert "| read and code the table: the Parquet file |" in (tables / "scale.md").read_text()
    assert "not judged" in (tables / "scale-bars.md").read_text()
    assert "| aggregate |" in (tables / "scale-factors.md").read_text()
    for name in ("scale", "scale-factors"):
        assert (made / "pages" / "images" / f"{name}.svg").stat().st_size < 100_000


def test_largest_and_words(scale, tmp_path):
    assert [case[1] for case in scale.cases_of("sample", ["rows"], 240)] == [240, 120]
    for words in ("--factors=row", "--stages=sampling"):
        with pytest.raises(SystemExit, match="is not known; choose from"):
            run(scale, tmp_path, words)


def test_slope_and_its_error(pages):
    x = np.array([1e3, 1e4, 1e5, 1e6])
    value, error = pages.slope(x, 3e-7 * x**1.3)
    assert value == pytest.approx(1.3)
    assert error == pytest.approx(0.0, abs=1e-7)
    # three equidistant points: the slope is that between the ends, and with h the height of the
    # middle one above the line between them, the residuals are −h/3, 2h/3, −h/3
    steps, middle = np.array([0.0, 1.0, 2.0]), 0.3
    value, error = pages.slope(np.exp(steps), np.exp(2 * steps + middle * (steps == 1)))
    assert value == pytest.approx(2.0)
    assert error == pytest.approx(np.sqrt(middle**2 * 6 / 9 / (3 - 2) / 2))
    assert np.isnan(pages.slope(x[:2], x[:2])).all()


def made_up(stage, power, rows=(1e3, 1e4, 1e5, 1e6), memory=1.0):
    """Lines whose time and memory are powers of the rows, with a constant in the smallest."""
    rows = np.array(rows)
    return pd.DataFrame(
        {
            "stage": stage,
            "factor": "rows",
            "value": rows,
            "rows": rows,
            "distinct": np.sqrt(rows),
            "cpu_seconds": 1e-6 * rows**power + (rows < 1e4),
            "peak_mb": 1e-3 * rows**memory * (rows > 1e3),
        }
    )


def test_slopes_are_of_the_largest_sizes(pages):
    lines = made_up("sample", 1.0)
    assert pages.slope_of(lines, "sample", "rows")[0] == pytest.approx(1.0)
    assert pages.slope_of(lines, "sample", "rows", "peak_mb")[0] == pytest.approx(1.0)
    # the time of an evaluation is held against distinct rows, its memory against rows
    lines = made_up("evaluate", 1.0)
    assert pages.slope_of(lines, "evaluate", "rows")[0] == pytest.approx(2.0)
    assert pages.slope_of(lines, "evaluate", "rows", "peak_mb")[0] == pytest.approx(1.0)


def test_bars(pages):
    lines = pd.concat([made_up("sample", 1.0), made_up("match", 2.0), made_up("assign", 1.04)])
    held = pages.bars(lines).set_index(["stage", "slope of"])["verdict"]
    assert held["sample", "time in rows"] == "pass"
    assert held["match", "time in rows"] == "**fail**"
    assert held["assign rows", "time in rows"] == "pass"
    steep = pages.bars(made_up("sample", 1.0, memory=1.1)).set_index("slope of")["verdict"]
    assert steep["memory in rows"] == "**fail**"


def test_the_row_by_row_matrix_is_not_judged(pages):
    below = pages.bars(made_up("local", 2.0, rows=(3e3, 1e4, 3e4)))
    assert set(below["verdict"]) == {"not judged"}
    above = pages.bars(made_up("local", 2.0, rows=(1e5, 3e5, 1e6)))
    assert list(above["verdict"]) == ["**fail**", "pass"]


def test_memory_is_that_of_the_call(scale, monkeypatch, tmp_path):
    """What making the inputs took at its worst is forgotten; inputs and the call's own count."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux")
    stages = sys.modules["scale_stages"]
    megabyte = 125_000

    def prepare(folder, size):
        passing = np.ones(400 * megabyte)
        kept = np.ones(20 * megabyte) + passing[0]
        del passing
        return stages.Work(lambda: np.ones(60 * megabyte) + kept[0], len)

    warm = stages.Work(lambda: None, len)
    small = scale.small(scale.Size())
    stage = replace(
        scale.STAGES["sample"], prepare=lambda f, s: warm if s == small else prepare(f, s)
    )
    monkeypatch.setitem(scale.STAGES, "sample", stage)
    found = scale.measure(tmp_path, "sample", scale.Size())
    # 20 of input and 60 of the call, not the 400 before; the rest is left for the interpreter
    assert 80 <= found["peak_mb"] < 120
