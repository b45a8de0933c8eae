"""The benchmark of scale: a tiny run that resumes, and slopes on numbers made up."""

from __future__ import annotations

import sys

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


def test_every_stage_has_a_line_for_every_size_and_pages_are_written(scale, tmp_path):
    lines = run(scale, tmp_path, "--factors=rows,silos")
    assert list(lines.columns) == scale.COLUMNS
    rows = lines[lines["factor"] == "rows"]
    for stage in scale.STAGES:
        assert sorted(rows.loc[rows["stage"] == stage, "value"]) == [120, 240, 480]
    match = lines[(lines["stage"] == "match") & (lines["factor"] == "silos")]
    assert sorted(match["value"]) == [1, 2, 3, 4]
    assert (lines["cpu_seconds"] > 0).all()
    distinct, load = (lines[lines["stage"] == stage] for stage in ("distinct", "load"))
    assert (distinct["distinct"] == distinct["quality"]).all()
    assert (load["quality"] == load["rows"]).all()
    tables = tmp_path / "pages" / "tables"
    assert "| read and code the table: the Parquet file |" in (tables / "scale.md").read_text()
    assert "not judged" in (tables / "scale-bars.md").read_text()
    for name in ("scale", "scale-factors"):
        assert (tmp_path / "pages" / "images" / f"{name}.svg").stat().st_size < 100_000


def test_a_stopped_run_goes_on_and_gives_the_same_numbers(scale, tmp_path, monkeypatch):
    words = "--stages=distinct,solve", "--factors=rows"
    whole, path = run(scale, tmp_path, *words), tmp_path / "scale.csv"
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([header, *lines[:4], lines[4][:20]]), encoding="utf-8")
    again = run(scale, tmp_path, *words)
    pd.testing.assert_frame_equal(again.drop(columns=MEASURED), whole.drop(columns=MEASURED))
    monkeypatch.setattr(scale, "apart", None)  # what is there is not run again
    assert run(scale, tmp_path, *words).equals(again)


def test_slope_and_its_error(pages):
    # three equidistant points: the slope is that between the ends, and with h the height of the
    # middle one above the line between them, the residuals are −h/3, 2h/3, −h/3
    steps, middle = np.array([0.0, 1.0, 2.0]), 0.3
    value, error = pages.slope(np.exp(steps), np.exp(2 * steps + middle * (steps == 1)))
    assert value == pytest.approx(2.0)
    assert error == pytest.approx(np.sqrt(middle**2 * 6 / 9 / (3 - 2) / 2))
    assert np.isnan(pages.slope(steps[:2] + 1, steps[:2] + 1)).all()


def made_up(stage, power, rows=(1e3, 1e4, 1e5, 1e6), memory=1.0):
    """Lines whose time and memory are powers of the rows, with a constant in the smallest."""
    rows = np.array(rows)
    lines = pd.DataFrame({"value": rows, "rows": rows, "distinct": np.sqrt(rows)})
    times, peak = 1e-6 * rows**power + (rows < 1e4), 1e-3 * rows**memory * (rows > 1e3)
    return lines.assign(stage=stage, factor="rows", cpu_seconds=times, peak_mb=peak)


def test_bars_are_of_slopes_at_the_largest_sizes(pages):
    lines = pd.concat([made_up("sample", 1.0), made_up("match", 2.0), made_up("assign", 1.04)])
    held = pages.bars(lines).set_index(["stage", "slope of"])["verdict"]
    assert held["sample", "time in rows"] == "pass"
    assert held["match", "time in rows"] == "**fail**"
    assert held["assign rows", "time in rows"] == "pass"
    steep = pages.bars(made_up("sample", 1.0, memory=1.1)).set_index("slope of")["verdict"]
    assert steep["memory in rows"] == "**fail**"
    # the time of an evaluation is held against distinct rows
    assert pages.slope_of(made_up("evaluate", 1.0), "evaluate", "rows")[0] == pytest.approx(2.0)
    # below the subsample there is a row by row matrix
    below = pages.bars(made_up("local", 2.0, rows=(3e3, 1e4, 3e4)))
    assert set(below["verdict"]) == {"not judged"}
