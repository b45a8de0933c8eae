"""Run the cells of a notebook in order and store what they print and draw, without Jupyter.

Needs matplotlib: pip install 'silomix[report]'. Run it from the root of the repository:

    python examples/run_notebook.py examples/three_hospitals.ipynb
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

DPI = 70


def main(path: str) -> None:
    """Write the outputs into the notebook itself."""
    notebook = json.loads(Path(path).read_text(encoding="utf-8"))
    run_cells(notebook)
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def run_cells(notebook: dict[str, Any]) -> None:
    """Run the code cells in one namespace, and replace their outputs."""
    plt.switch_backend("agg")
    plt.close("all")  # a figure that was open before is not the first cell's
    namespace: dict[str, Any] = {"__name__": "notebook"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
        lines = printed.getvalue().splitlines(keepends=True)
        said = [{"output_type": "stream", "name": "stdout", "text": lines}] if lines else []
        cell["outputs"] = [*said, *map(picture, plt.get_fignums())]
        cell["execution_count"] = number
        plt.close("all")


def picture(number: int) -> dict[str, Any]:
    """Return an open figure as an output."""
    data = io.BytesIO()
    plt.figure(number).savefig(data, format="png", dpi=DPI, bbox_inches="tight")
    shown = {"image/png": base64.b64encode(data.getvalue()).decode()}
    return {"output_type": "display_data", "data": shown, "metadata": {}}


if __name__ == "__main__":
    main(*sys.argv[1:])
