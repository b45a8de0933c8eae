"""Every Python block of the pages runs; a text block right after is what it prints."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from silomix import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def blocks(text, language):
    """The blocks of a language on a page, each with the text block that follows it, or ''."""
    return [(code, printed) for kind, code, printed in FENCE.findall(text) if kind == language]


def pages_with(language):
    found = [page for page in PAGES if blocks(page.read_text(encoding="utf-8"), language)]
    return pytest.mark.parametrize("page", found, ids=lambda page: str(page.relative_to(ROOT)))


def run_page(text):
    """Run the Python blocks of a page in order, in one namespace."""
    namespace = {"__name__": "page"}
    for code, expected in blocks(text, "python"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "page", "exec"), namespace)
        if expected:
            assert printed.getvalue() == expected


def test_pages_are_found():
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "docs/tutorial.md", "docs/explanation/sampler.md"} <= names


@pages_with("python")
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page.read_text(encoding="utf-8"))


@pages_with("sh")
def test_commands_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for code, _ in blocks(page.read_text(encoding="utf-8"), "sh"):
        for line in code.splitlines():
            if line.startswith("silomix "):
                result = CliRunner().invoke(cli.app, shlex.split(line)[1:])
                assert result.exit_code == 0, result.output


def test_a_wrong_page_fails():
    page = "```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n{}\n```\n"
    run_page(page.format(1))
    with pytest.raises(AssertionError):
        run_page(page.format(2))
    with pytest.raises(NameError):
        run_page("```python\nprint(y)\n```\n")


def test_tables_name_the_keys_of_a_study_file():
    from silomix.study import Study
    from silomix.study.settings import Aggregation, LocalSettings, ModelSettings, Polish

    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    for record in (Study, ModelSettings, LocalSettings, Aggregation, Polish):
        for key in record.model_fields:
            assert re.search(rf"[`\[.]{key}[`\].]", page), (record, key)
