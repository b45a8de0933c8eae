"""The notebook of the examples runs, and prints what it shows."""

from __future__ import annotations

import copy
import json

import pytest
from cases.script_cases import ROOT, script

pytestmark = pytest.mark.slow
PATH = ROOT / "examples" / "three_hospitals.ipynb"


def shown(notebook):
    """What each code cell printed, and how many pictures it drew."""
    outputs = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    texts = ["".join(line for o in cell for line in o.get("text", ())) for cell in outputs]
    return texts, [sum("data" in o for o in cell) for cell in outputs]


def test_it_shows_what_it_prints():
    for extra in ("matplotlib", "arviz_plots"):
        pytest.importorskip(extra, reason="needs the extra 'arviz'")
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    notebook = copy.deepcopy(stored)
    with script("examples", "run_notebook") as (runner, _):
        runner.run_cells(notebook)
    assert shown(notebook) == shown(stored)
    assert sum(shown(stored)[1]) >= 3
