"""Tables and figures of the study, and what stands in for those that have no results yet."""

from __future__ import annotations

from running import read_lines
from writing import as_markdown


def not_run(script):
    return f"*Not run yet: `python reproduction/{script}.py`.*\n"


class Pages:
    """Where tables and figures go."""

    def __init__(self, results, folder):
        self.results, self.tables, self.images = results, folder / "tables", folder / "images"
        for folder in (results / "tables", self.tables, self.images):
            folder.mkdir(parents=True, exist_ok=True)

    def lines(self, script):
        """Return the lines of a script's results, or None while there are none."""
        lines = read_lines(self.results / f"{script}.csv", [])
        return lines if len(lines) else None

    def page(self, name, text):
        """Write a table's page."""
        (self.tables / f"{name}.md").write_text(text, encoding="utf-8")

    def rows(self, name, table, script):
        """Write a table, or that its script has no results yet."""
        self.page(name, as_markdown(table) if len(table) else not_run(script))

    def table(self, name, found):
        """Write a comparison as CSV, and a page."""
        compared, text = found
        compared.round(5).to_csv(self.results / "tables" / f"{name}.csv", index=False)
        self.page(name, text)

    def figure(self, name, draw, lines):
        """Draw a figure, if there are results."""
        if lines is not None:
            draw(lines, self.images / f"study-{name}.svg")
