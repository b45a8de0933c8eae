"""Every Python block of the pages runs; a text block right after is what it prints."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from cases.pages import blocks, run_page
from typer.testing import CliRunner

import silomix
from silomix import cli
from silomix.cli import EXITS
from silomix.families import KINDS
from silomix.study import AGGREGATIONS, MATCHINGS

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "reproduction").glob("*.md")),
]
LONG = {
    "tutorial.md",
    "scikit-learn-arviz.md",
    "data-centre.md",
    "outside-variables.md",
    "simulated-cohort.md",
}
"""Pages that fit large tables: `make slow` runs them."""
ELSEWHERE = {"numpyro-pymc.md"}
"""Pages that other tests run."""


def pages_with(language):
    found = [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in LONG else [])
        for page in PAGES
        if page.name not in ELSEWHERE and blocks(page.read_text(encoding="utf-8"), language)
    ]
    return pytest.mark.parametrize("page", found, ids=lambda page: str(page.relative_to(ROOT)))


def test_pages_are_found():
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "docs/tutorial.md", "reproduction/rivals.md"} <= names


@pages_with("python")
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    # pages register these, which other tests do not know
    added = [("exponential", KINDS), ("ordered", KINDS), ("linkage", MATCHINGS)]
    for word, registry in [*added, ("by-size", AGGREGATIONS)]:
        monkeypatch.setitem(registry, word, None)
        del registry[word]
    run_page(page.read_text(encoding="utf-8"))


@pages_with("sh")
def test_commands_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for code, _ in blocks(page.read_text(encoding="utf-8"), "sh"):
        for line in code.splitlines():
            if line.startswith("silomix "):
                result = CliRunner().invoke(cli.app, shlex.split(line)[1:])
                assert result.exit_code == 0, result.output
                assert "Do not trust" not in result.output


def anchors(page):
    """The headings of a page, as a code host and Sphinx name them in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_text_and_leads_somewhere(page):
    """Without a text, Sphinx would put the title there; a code host shows nothing."""
    for text, target in re.findall(r"\[([^\[\]]*)\]\(([^()\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert text and (path.startswith("https:") or there.is_file()), target
        assert not anchor or path.startswith("https:") or anchor in anchors(there), target


def test_pictures_are_there_and_small():
    shown = {
        # a piece of a page is included from the folder above
        ((page.parent.parent if page.parent.name == "tables" else page.parent) / path).resolve()
        for page in PAGES
        for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert {path.name for path in shown} >= {"report.png", "tutorial-profiles.png"}
    for path in shown:
        assert path.is_file(), path
        assert path.stat().st_size < 100_000, path
    script = (ROOT / "examples" / "tutorial_pictures.py").read_text(encoding="utf-8")
    assert all(p.name in script for p in shown if p.name.startswith(("tutorial-", "figure-")))


def test_the_page_on_choices_has_the_measured_numbers():
    """The defaults and the paper's preset in six cells, as the table of results has them."""
    page = (ROOT / "docs" / "how-to-choose.md").read_text(encoding="utf-8")
    results = pd.read_csv(ROOT / "reproduction" / "results" / "cells_summary.csv")
    by_cell = results.set_index(["cell", "method"])
    for cell in results["cell"].unique():
        both = [by_cell.loc[(cell, method)] for method in ("default", "paper")]
        agreement = [f"{line['ARI']:.3f}" for line in both]
        covered = [f"{100 * line[what]:.0f} %" for what in ("pi", "p0", "p1") for line in both]
        assert f"| {' | '.join([cell, *agreement, *covered])} |" in page
    shown = results[results["method"] != "pooled"]
    assert [shown["data sets"].min(), shown["data sets"].max()] == [40, 120]
    assert shown["ARI se"].max() < 0.013
    assert shown[["pi se", "p0 se", "p1 se"]].max(axis=None) < 0.0365


def test_every_exit_code_is_documented():
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8").replace("`", "")
    for code, meaning in EXITS.items():
        assert f"| {code} | {meaning} |" in page


def test_every_command_is_documented():
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for name in cli.COMMANDS:
        assert re.search(rf"`(silomix )?{name}( \w+| --dry-run)?`", page), name


def test_every_public_name_is_in_the_reference():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"^\.\. auto\w+:: (?:silomix\.)?(\w+)", text, re.MULTILINE))
    assert named >= set(silomix.__all__)


def test_a_wrong_page_fails():
    page = "```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n{}\n```\n"
    run_page(page.format(1))
    with pytest.raises(AssertionError):
        run_page(page.format(2))
    with pytest.raises(NameError):
        run_page("```python\nprint(y)\n```\n")


def test_tables_name_the_keys_of_a_study_file():
    from silomix.study import Study
    from silomix.study.methods import Polish, Vcmc
    from silomix.study.settings import LocalSettings, ModelSettings

    pages = [ROOT / "docs" / name for name in ("formats.md", "tables/settings.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for record in (Study, ModelSettings, LocalSettings, Vcmc, Polish):
        for key in record.model_fields:
            assert re.search(rf"[`\[. ]{key}[`\].]", text), (record, key)


def test_pages_have_the_numbers_of_the_formats():
    from silomix.messages.container import FORMAT, VERSION
    from silomix.posterior.saved_file import HEAD
    from silomix.study import settings

    messages, files = (
        " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())
        for name in ("formats-messages.md", "formats.md")
    )
    assert f'`"{FORMAT}"` and {VERSION};' in messages
    assert f"| version of the format, {settings.FORMAT} |" in files
    assert f'(`"{HEAD["kind"]}"` and {HEAD["format"]})' in files


NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
PRIVACY = ROOT / "docs" / "explanation" / "privacy.md"


@cache
def names_in(path):
    """The tests of a file: "test_a", "TestB::test_c"."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    inner = {f"{one.name}::{node.name}" for one in classes for node in one.body if named(node)}
    return inner | {node.name for node in body if named(node)}


def named(node):
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def test_every_promise_names_tests_that_there_are():
    text = PRIVACY.read_text(encoding="utf-8")
    promises = text.partition("## What is promised\n")[2].partition("\n## ")[0]
    sentences = promises.split("\n- ")[1:]
    assert len(sentences) > 15
    for sentence in sentences:
        tests = NAMED.findall(sentence)
        assert tests, sentence
        for file, name in tests:
            assert name in names_in(ROOT / file), f"{file}::{name}"
    assert len(NAMED.findall(text)) == promises.count("::test_")


def test_the_privacy_page_begins_with_the_threat_model():
    headings = re.findall(r"^## (.*)$", PRIVACY.read_text(encoding="utf-8"), re.MULTILINE)
    first = ["Threat model", "What is promised", "What a policy does not protect against"]
    assert headings[:3] == first
